//go:build unix

package reap

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openHostFile opens a host's pid file for reading. O_NONBLOCK, because a FIFO
// of that name would otherwise hold the reaper up until somebody writes to it.
func openHostFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

var errLogFile = errors.New("not a regular file of ours; nothing is written to it")

// openLog opens the log for one line. The reaper outlives its host by design,
// and with it whoever may have put something else in the log's place since.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !info.Mode().IsRegular() || !ok || int(st.Uid) != os.Geteuid() {
			err = fmt.Errorf("log %s: %w", path, errLogFile)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
