//go:build !linux && !windows

package guard

import (
	"errors"
	"io/fs"
	"os"
)

// subreaper: no other platform hands orphans to anybody but pid 1.
func subreaper(*int) bool { return false }

// cannotExecute is nil when path is there to be executed.
func cannotExecute(path string) error {
	_, err := os.Stat(path)
	return err
}

func errnoName(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "ENOENT"
	}
	return ""
}

const nonblock = 0
