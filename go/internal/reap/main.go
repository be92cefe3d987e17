package reap

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"processguard/go/internal/fault"
)

// Exit codes of the executable.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
	exitLost   = 3 // launch: the claim was no longer ours
)

// Main is the executable, in one of its two modes.
func Main(args []string) int {
	mode := ""
	if len(args) > 0 {
		mode = args[0]
	}
	switch mode {
	case "run":
		return runMain(args[1:])
	case "launch":
		return launchMain(args[1:])
	}
	complain("reaper: the mode must be run or launch; nothing was done")
	return exitUsage
}

func runMain(args []string) int {
	faultPoint("run-begin")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	alsoStops(signals)
	o, err := ParseRun(args)
	if err != nil {
		complain("%v", err)
		return exitUsage
	}
	r := New(o, DefaultLimits)
	// A working directory of the host's would keep its file system busy. Where
	// there is no "/" to go to there is nothing to be kept busy either.
	_ = fault.Do("chdir", "cwd", func() error { return os.Chdir("/") })
	go func() {
		name := "SIGTERM"
		if <-signals == syscall.SIGINT {
			name = "SIGINT"
		}
		r.Stop(name)
		os.Exit(exitFine)
	}()
	r.Run()
	return exitFine
}

func complain(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
