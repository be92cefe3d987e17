package lock

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"processguard/go/internal/proc"
)

// CreateLife makes and locks the life file of a generation. The lock belongs
// to the open file, so it goes to whoever inherits the descriptor and ends
// with the last of them.
func (d *Dir) CreateLife(name, token string) (*os.File, error) {
	f, err := d.Open(LifeName(name, token), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := d.allocate(f); err != nil {
		f.Close()
		_ = d.Remove(LifeName(name, token))
		return nil, err
	}
	if err := LockFile(f); err != nil {
		f.Close()
		_ = d.Remove(LifeName(name, token))
		return nil, err
	}
	return f, nil
}

func (d *Dir) allocate(f *os.File) error {
	err := do("fallocate", f.Name(), func() error { return unix.Fallocate(int(f.Fd()), 0, 0, LifeSize) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		_, err = f.WriteAt(make([]byte, LifeSize), 0)
	}
	if err != nil {
		return fmt.Errorf("allocate %s: %w", f.Name(), err)
	}
	return nil
}

// LockFile puts a write lock that belongs to the open file on f, without
// waiting. An error that is ErrBusy says that another open file has it.
func LockFile(f *os.File) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := do("setlk", f.Name(), func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("lock %s: %w", f.Name(), ErrBusy)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// ErrBusy says that a lock is somebody else's.
var ErrBusy = errors.New("held by another process")

// LockHeld says whether an open file other than f has LockFile's lock on the
// file. It asks and never tries, so it cannot make an owner fail.
func LockHeld(f *os.File) proc.Answer {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := do("getlk", f.Name(), func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) }); err != nil {
		return proc.Unknown
	}
	if l.Type == unix.F_UNLCK {
		return proc.No
	}
	return proc.Yes
}

// LifeHeld says whether a launcher or keeper of that generation lives. A life
// file that is not there is held by nobody.
func (d *Dir) LifeHeld(name, token string) proc.Answer { return d.held(LifeName(name, token)) }

// ReapingHeld says whether the reaper that set `<name>.pid.reaping` aside
// still lives: it holds the file's lock until it is done.
func (d *Dir) ReapingHeld(name string) proc.Answer { return d.held(name + ReapingSuffix) }

func (d *Dir) held(file string) proc.Answer {
	f, err := d.Open(file, unix.O_RDONLY, 0)
	if errors.Is(err, unix.ENOENT) {
		return proc.No
	}
	if err != nil {
		return proc.Unknown
	}
	defer f.Close()
	if uid, err := Owner(f); err == nil && Foreign(uid) {
		return proc.No // planted: it stands for nothing of ours
	}
	return LockHeld(f)
}
