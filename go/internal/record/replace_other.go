//go:build !linux && !windows

package record

import (
	"fmt"

	"github.com/natefinch/atomic"

	"processguard/go/internal/lock"
)

// replace uses the library that knows how each platform replaces a file that
// may be open; its WriteFile is not used because it hides the errno.
func replace(d *lock.Dir, tmp, dst string) error {
	if err := atomic.ReplaceFile(d.Join(tmp), d.Join(dst)); err != nil {
		return fmt.Errorf("rename %s to %s: %w", d.Join(tmp), dst, err)
	}
	return nil
}
