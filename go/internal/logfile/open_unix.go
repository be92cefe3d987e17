//go:build unix

package logfile

import (
	"fmt"
	"os"
	"syscall"
)

// Open opens the log for one line. A reaper outlives its host by design, and
// with it whoever may have put something else in the log's place since: a link,
// a FIFO, a device, a second name of a file that is none of ours.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if err := fit(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return f, nil
}

func fit(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("is not a regular file: %w", syscall.EINVAL)
	case !ok || int(st.Uid) != os.Geteuid():
		return fmt.Errorf("belongs to another user: %w", syscall.EPERM)
	case st.Nlink > 1:
		return fmt.Errorf("has another name (a hard link): %w", syscall.EMLINK)
	}
	return nil
}
