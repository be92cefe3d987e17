package record

import (
	"errors"
	"fmt"
	"time"

	"github.com/natefinch/atomic"
	"golang.org/x/sys/windows"

	"processguard/go/internal/lock"
)

// replace goes through the directory handle and replaces a file that is open.
// A file system that cannot (FAT, an older Windows) gets MoveFileEx, which waits
// for every reader to be gone.
func replace(d *lock.Dir, tmp, dst string) error {
	err := d.Rename(tmp, dst)
	if err == nil || !cannot(err) {
		return err
	}
	for end := time.Now().Add(time.Second); ; {
		err := atomic.ReplaceFile(d.Join(tmp), d.Join(dst))
		if err == nil {
			return nil
		}
		// Nothing tells when a reader is done.
		if !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_SHARING_VIOLATION) || time.Now().After(end) {
			return fmt.Errorf("rename %s to %s: %w", d.Join(tmp), dst, err)
		}
		<-time.After(time.Millisecond)
	}
}

// cannot tells the answers of a file system that does not know the call.
func cannot(err error) bool {
	for _, e := range []error{windows.ERROR_INVALID_PARAMETER, windows.ERROR_NOT_SUPPORTED, windows.ERROR_INVALID_FUNCTION} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
