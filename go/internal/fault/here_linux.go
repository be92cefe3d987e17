//go:build fault

package fault

import (
	"os"
	"runtime"
	"syscall"
)

// Here signals this very thread: a signal to the process may be taken by another
// thread while this one goes on (once all the way to its exit).
func Here(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(sig))
}
