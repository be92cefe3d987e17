//go:build unix

package once

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func openLocked(path string) (*os.File, error) {
	f, err := openRegular(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	for i := 0; ; i++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, err
		}
		if i == tries {
			f.Close()
			return nil, errBusy
		}
		// No event tells of a released flock, and a blocking one would hold the
		// JavaScript thread for as long as a stopped holder likes.
		<-time.After(pause)
	}
}

func openRead(path string) (*os.File, error) { return openRegular(path, os.O_RDONLY) }

// openRegular follows no link and does not wait for the writer of a FIFO.
func openRegular(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, unix.EINVAL
	}
	if flag&os.O_RDWR != 0 && st.Nlink > 1 {
		f.Close()
		return nil, unix.EMLINK // what is written would end up in the file of the other name
	}
	return f, nil
}

func closeLocked(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}
