package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"

	"processguard/go/internal/proc"
)

// A lock belongs to the process that took it and does not go to whoever inherits
// the handle. So a life file has two: the launcher holds the first until the
// keeper holds the second.

// CreateLife makes and locks the life file of a generation.
func (d *Dir) CreateLife(name, token string) (*os.File, error) {
	f, err := d.Open(LifeName(name, token), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(make([]byte, LifeSize), 0); err != nil {
		err = fmt.Errorf("allocate %s: %w", f.Name(), err)
	} else {
		err = LockFile(f)
	}
	if err != nil {
		f.Close()
		_ = d.Remove(LifeName(name, token))
		return nil, err
	}
	return f, nil
}

// KeepLife opens the life file of a generation for its keeper and puts the
// keeper's lock on it.
func (d *Dir) KeepLife(name, token string) (*os.File, error) {
	f, err := d.Open(LifeName(name, token), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := lockByte(f, keeperByte); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LockFile puts a lock on f that ends with the file or with this process,
// without waiting for its owner. An error that is ErrBusy says that another open
// file has it.
func LockFile(f *os.File) error { return lockByte(f, firstByte) }

func lockByte(f *os.File, n uint32) error {
	for wait := patience(openPatience); ; {
		ok, err := tryLock(f, n)
		if err != nil {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if ok {
			return nil
		}
		// It may be LockHeld's, for microseconds; an owner's stays.
		if !wait.once() {
			return fmt.Errorf("lock %s: %w", f.Name(), ErrBusy)
		}
	}
}

// ErrBusy says that a lock is somebody else's.
var ErrBusy = errors.New("held by another process")

// LockHeld says whether an open file other than f has a lock on the file. There
// is no asking on Windows: it tries for a shared lock and gives it back at once,
// which two may do at the same time, and which an owner waits out.
func LockHeld(f *os.File) proc.Answer {
	h := windows.Handle(f.Fd())
	for n := uint32(firstByte); n <= keeperByte; n++ {
		err := windows.LockFileEx(h, windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, place(n))
		switch {
		case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
			return proc.Yes
		case err != nil:
			return proc.Unknown
		}
		_ = windows.UnlockFileEx(h, 0, 1, 0, place(n))
	}
	return proc.No
}

// LifeHeld says whether a launcher or keeper of that generation lives. A life
// file that is not there is held by nobody.
func (d *Dir) LifeHeld(name, token string) proc.Answer { return d.held(LifeName(name, token)) }

// ReapingHeld says whether the reaper that set `<name>.pid.reaping` aside
// still lives: it holds the file's lock until it is done.
func (d *Dir) ReapingHeld(name string) proc.Answer { return d.held(name + ReapingSuffix) }

func (d *Dir) held(file string) proc.Answer {
	f, err := d.Open(file, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return proc.No
	}
	if err != nil {
		return proc.Unknown
	}
	defer f.Close()
	return LockHeld(f)
}
