//go:build fault && linux

package reap

import (
	"os"
	"runtime"
	"strings"
	"syscall"
)

// faultPoint ends or stops this process where PG_FAULT says so:
// "<point>:kill", "<point>:stop" or "<point>:exit", several with commas.
func faultPoint(point string) {
	for _, f := range strings.Split(os.Getenv("PG_FAULT"), ",") {
		at, how, _ := strings.Cut(f, ":")
		if at != point {
			continue
		}
		switch how {
		case "kill":
			_ = killHere()
			select {} // another thread may take the signal first
		case "stop":
			_ = stopHere()
		case "exit":
			os.Exit(9)
		}
	}
}

// stopHere and killHere signal this very thread: a signal to the process may be
// taken by another thread while this one goes on (once all the way to its exit).
func stopHere() error { return here(syscall.SIGSTOP) }
func killHere() error { return here(syscall.SIGKILL) }

func here(sig syscall.Signal) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(sig))
	if errno != 0 {
		return errno
	}
	return nil
}
