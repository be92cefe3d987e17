//go:build !linux && !windows

package reap

import "runtime"

func launchMain([]string) int {
	complain("reaper: launch is not there yet on %s; no reaper was started", runtime.GOOS)
	return exitFailed
}
