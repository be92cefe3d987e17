package lock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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
	if err := g.dir.ownGate(f); err != nil {
		f.Close()
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
	st, err := fstat(f.Name(), int(f.Fd()))
	if err != nil {
		unlock(f)
		return false, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	g.f, g.ino = f, st.Ino
	if err := g.Check(); err != nil {
		unlock(f)
		if g.dir.Moved() {
			return false, fmt.Errorf("%s: %w", g.dir.path, ErrMoved)
		}
		if errors.Is(err, ErrGateLost) {
			// Somebody unlinked it between our open and our lock: this lock
			// excludes nobody, the next one is on the file that is there now.
			return false, nil
		}
		return false, err
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
	// itself still holds, so a failed write is no failure. A file with a second
	// name is somebody's victim, or what a killed original left behind: the
	// text went into a planted hard link, and what it led to was cut to nothing.
	g.mute = st.Nlink != 1
	if g.mute {
		return true, nil
	}
	if n, err := fault.Get("write", f.Name(), func() (int, error) { return f.WriteAt([]byte(mark), 0) }); err == nil {
		_ = f.Truncate(int64(n))
	}
	return true, nil
}

// ownGate refuses a gate that another user planted, who could hold it for ever
// or take it away from under us. Whoever owns the directory can do so anyway.
func (d *Dir) ownGate(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if uid := int(st.Uid); Foreign(uid) && uid != d.uid {
		return fmt.Errorf("gate %s belongs to uid %d, not to us or root; nothing was started: remove it and give pidDir to one user", f.Name(), uid)
	}
	if st.Mode&0o077 != 0 && int(st.Uid) == os.Geteuid() && st.Nlink == 1 {
		// Whoever can read it can lock it: the original made its files 0644.
		_ = f.Chmod(0o600)
	}
	return nil
}

// lockedBy is the process that the kernel says holds the gate f, 0 when it does
// not tell: the text is the last holder's, and whoever can only read writes none.
func lockedBy(f *os.File) int {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4242 fe:00:393 0 EOF
		if f := strings.Fields(line); len(f) > 5 && f[1] == "FLOCK" && f[5] == file {
			pid, _ := strconv.Atoi(f[4])
			return max(pid, 0)
		}
	}
	return 0
}

// Check is nil as long as the path leads to the gate that is locked. Whoever can
// write to the directory can unlink it, and a second holder would follow; record
// writers ask right before every rename. ErrGateLost is that and nothing else:
// said of a gate that could not be looked at, it sent people looking for somebody
// who removes files.
func (g *Gate) Check() error {
	st, err := g.dir.lstat(g.name + GateSuffix)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Ino != g.ino || g.dir.Moved() {
		return ErrGateLost
	}
	return err
}

func unlock(f *os.File) {
	_ = flock(f, unix.LOCK_UN)
	f.Close()
}

func flock(f *os.File, how int) error {
	if fault.Planted("no-gate") {
		return nil
	}
	op := "flock"
	if how == unix.LOCK_UN {
		op = "unlock"
	}
	return do(op, f.Name(), func() error { return unix.Flock(int(f.Fd()), how) })
}

// folded is how the file system tells names apart.
func folded(name string) string { return name }
