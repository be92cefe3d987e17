package guard

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// subreaper asks whether this process adopts orphans below it.
func subreaper(on *int) bool {
	var v int32
	if unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&v)), 0, 0, 0) != nil {
		return false
	}
	*on = int(v)
	return true
}

// cannotExecute is nil when we may execute path, in this process's own rights.
func cannotExecute(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

func errnoName(err error) string {
	if errno, ok := err.(unix.Errno); ok {
		return unix.ErrnoName(errno)
	}
	return ""
}

const nonblock = unix.O_NONBLOCK
