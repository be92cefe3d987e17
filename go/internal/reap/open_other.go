//go:build !unix

package reap

import "os"

func openHostFile(path string) (*os.File, error) { return os.Open(path) }

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}
