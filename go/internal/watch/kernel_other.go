//go:build !linux && !windows

package watch

import (
	"errors"
	"fmt"
	"runtime"
)

// kernel has no implementation on this system yet: the timer does its work.
type kernel struct{}

func openKernel(*Hub) (*kernel, error) {
	return nil, fmt.Errorf("directory watches on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (k *kernel) follow(*Hub) error { return errors.ErrUnsupported }

func (k *kernel) close() {}

func notDirectory(error) bool { return false }

func (k *kernel) watches(*Hub) bool { return true }
