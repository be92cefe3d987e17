//go:build !unix

package logfile

import "os"

// Open opens the log for one line.
func Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}
