package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// subreaper: Windows hands orphans to nobody.
func subreaper(*int) bool { return false }

// cannotExecute is nil when path is there to be executed.
func cannotExecute(path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && filepath.Ext(path) == "" {
		// The keeper looks for these too.
		for _, ext := range []string{".com", ".exe"} {
			if _, err := os.Stat(path + ext); err == nil {
				return nil
			}
		}
	}
	return err
}

func errnoName(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "ENOENT"
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return "EACCES"
	}
	return ""
}

const nonblock = 0
