package lock

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

func (g *Gate) try() (bool, error) {
	f, err := g.dir.Open(g.name+GateSuffix, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		if g.dir.Moved() {
			// Nothing can be made in a removed directory; ENOENT would read as
			// if the gate were missing.
			err = fmt.Errorf("%s: %w", g.dir.path, ErrMoved)
		}
		return false, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
			return false, &UnfitError{Path: g.dir.path, Mount: "flock refused", Err: err}
		}
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		unlock(f)
		return false, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	g.f, g.ino = f, st.Ino
	if !g.Intact() {
		// Somebody unlinked it between our open and our lock: this lock
		// excludes nobody, the next one is on the file that is there now.
		unlock(f)
		if g.dir.Moved() {
			return false, fmt.Errorf("%s: %w", g.dir.path, ErrMoved)
		}
		return false, nil
	}
	if text := gateText(f); text.pid > 0 && text.pid != os.Getpid() && !fault.Planted("no-gate") {
		age := time.Since(time.Unix(st.Mtim.Unix()))
		if age >= 0 && age < foreignGate && processExists(text.pid) {
			unlock(f)
			return false, nil
		}
	}
	mark := markText(unix.Gettid())
	// The text only names the holder for a reader; on a full disk the lock
	// itself still holds, so a failed write is no failure.
	if n, err := f.WriteAt([]byte(mark), 0); err == nil {
		_ = f.Truncate(int64(n))
	}
	return true, nil
}

// Intact says whether the path still leads to the gate that is locked. Whoever
// can write to the directory can unlink it, and a second holder would follow;
// record writers ask right before every rename.
func (g *Gate) Intact() bool {
	var st unix.Stat_t
	err := unix.Fstatat(g.dir.FD(), g.name+GateSuffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == g.ino && !g.dir.Moved()
}

func unlock(f *os.File) {
	_ = flock(f, unix.LOCK_UN)
	f.Close()
}

func flock(f *os.File, how int) error {
	if fault.Planted("no-gate") {
		return nil
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// folded is how the file system tells names apart.
func folded(name string) string { return name }
