//go:build unix

package reap

import (
	"os"
	"syscall"
)

// openHostFile opens a host's pid file for reading. O_NONBLOCK, because a FIFO
// of that name would otherwise hold the reaper up until somebody writes to it.
func openHostFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
