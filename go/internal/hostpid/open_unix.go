//go:build unix

package hostpid

import (
	"os"
	"syscall"
)

// open follows no link and waits for the writer of no FIFO.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}
