package lock

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/windows"
)

// The locks lie far past the end of every file of ours: a lock here keeps others
// from reading and writing the bytes it is on.
const farAway = 1 << 30

// place is one byte out there.
func place(n uint32) *windows.Overlapped { return &windows.Overlapped{Offset: farAway + n} }

// Which byte is whose.
const (
	gateByte   = 0
	firstByte  = 1 // of a life file: its launcher; of a record that is set aside: its reaper
	keeperByte = 2 // of a life file: its keeper
)

// tryLock is false when somebody else has the byte.
func tryLock(f *os.File, n uint32) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, place(n))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}

func (g *Gate) try() (bool, error) {
	f, err := g.dir.Open(g.name+GateSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		if g.dir.Moved() {
			err = fmt.Errorf("%s: %w", g.dir.path, ErrMoved)
		}
		return false, err
	}
	ok, err := tryLock(f, gateByte)
	if !ok {
		f.Close()
		if err != nil {
			return false, &UnfitError{Path: g.dir.path, Mount: "LockFileEx refused", Err: err}
		}
		return false, nil
	}
	id, err := identify(windows.Handle(f.Fd()))
	if err != nil {
		unlock(f)
		return false, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	g.f, g.ino = f, id.ino
	if err := g.Check(); err != nil {
		unlock(f)
		if g.dir.Moved() {
			return false, fmt.Errorf("%s: %w", g.dir.path, ErrMoved)
		}
		if errors.Is(err, ErrGateLost) {
			// Somebody removed it between our open and our lock: this lock excludes
			// nobody, the next one is on the file that is there now.
			return false, nil
		}
		return false, err
	}
	if text := gateText(f); text.pid > 0 && text.pid != os.Getpid() {
		age := time.Since(time.Unix(0, id.info.LastWriteTime.Nanoseconds()))
		if age >= 0 && age < foreignGate && processExists(text.pid) {
			unlock(f)
			return false, nil
		}
	}
	// The text only names the holder for a reader; on a full disk the lock
	// itself still holds, so a failed write is no failure.
	if n, err := f.WriteAt([]byte(markText(int(windows.GetCurrentThreadId()))), 0); err == nil {
		_ = f.Truncate(int64(n))
	}
	return true, nil
}

// Check is nil as long as the path leads to the gate that is locked. Whoever can
// write to the directory can remove it, and a second holder would follow; record
// writers ask right before every rename. ErrGateLost is that and nothing else.
func (g *Gate) Check() error {
	h, err := g.dir.open(g.name+GateSuffix, windows.FILE_READ_ATTRIBUTES|windows.SYNCHRONIZE, windows.FILE_OPEN, 0)
	if errors.Is(err, os.ErrNotExist) {
		return ErrGateLost
	}
	if err != nil {
		return fmt.Errorf("stat %s: %w", g.dir.Join(g.name+GateSuffix), err)
	}
	defer windows.CloseHandle(h)
	id, err := identify(h)
	if err == nil && id.ino != g.ino || g.dir.Moved() {
		return ErrGateLost
	}
	if err != nil {
		return fmt.Errorf("stat %s: %w", g.dir.Join(g.name+GateSuffix), err)
	}
	return nil
}

// unlock does not leave it to the close, after which the kernel may take its
// time.
func unlock(f *os.File) {
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, place(gateByte))
	f.Close()
}

// folded is how the file system tells names apart: not by case.
func folded(name string) string { return strings.ToLower(name) }

// lockedBy is the process that holds the gate; this system does not tell.
func lockedBy(*os.File) int { return 0 }
