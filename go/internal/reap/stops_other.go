//go:build !windows

package reap

import (
	"os"
	"strconv"
	"strings"
	"time"

	"processguard/go/internal/proc"
)

// alsoStops: a signal is all that stops a reaper.
func alsoStops(chan<- os.Signal) {}

// startedAfterBoot is the process's start as the time since boot.
func startedAfterBoot(started string) (time.Duration, bool) {
	boot, ticks, ok := strings.Cut(started, ":")
	if !ok || boot == "" || boot != proc.BootID() {
		return 0, false
	}
	n, err := strconv.ParseInt(ticks, 10, 64)
	// USER_HZ is 100 on every architecture Go runs on.
	return time.Duration(n) * 10 * time.Millisecond, err == nil
}
