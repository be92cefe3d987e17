//go:build fault && linux

package reap

import (
	"os"
	"strings"
	"syscall"

	"processguard/go/internal/fault"
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
			fault.Here(syscall.SIGKILL)
			select {} // another thread may take the signal first
		case "stop":
			fault.Here(syscall.SIGSTOP)
		case "exit":
			os.Exit(9)
		}
	}
}
