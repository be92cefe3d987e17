//go:build fault && unix

package reap

import (
	"os"
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
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // another thread may take the signal first
		case "stop":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		case "exit":
			os.Exit(9)
		}
	}
}
