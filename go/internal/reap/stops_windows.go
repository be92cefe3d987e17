package reap

import (
	"os"
	"syscall"
	"time"

	"processguard/go/internal/proc"
)

// alsoStops passes requests to stop this reaper on as SIGTERM.
func alsoStops(signals chan<- os.Signal) {
	_, _ = proc.CatchStop(proc.Self(), func() {
		select {
		case signals <- syscall.SIGTERM:
		default:
		}
	})
}

// startedAfterBoot is the process's start as the time since boot.
func startedAfterBoot(started string) (time.Duration, bool) {
	ms, ok := proc.SinceBoot(started)
	return time.Duration(ms) * time.Millisecond, ok
}
