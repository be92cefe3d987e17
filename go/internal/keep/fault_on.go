//go:build fault && linux

package keep

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"processguard/go/internal/fault"
)

// faultEnv is "<point>:kill|stop|exit" or "<point>:kill:<n>", the n-th time
// the point is passed. It acts in launch, keep and hold. faultMark is a file
// that is made right before.
const (
	faultEnv  = "PG_FAULT"
	faultMark = "PG_FAULT_MARK"
)

// points are all steps that something can go wrong between.
var points = []string{
	"launch-begin",
	"launch-life-made",
	"launch-gate",
	"launch-forked",
	"launch-named",
	"launch-end",

	"keep-begin",
	"keep-grace",
	"keep-gate",
	"keep-forked",
	"keep-life-written",
	"keep-named",
	"keep-went",
	"keep-left",
	"keep-ran",
	"keep-confirmed",

	"keep-died",
	"keep-reaped",
	"keep-words",
	"keep-crash-gate",
	"keep-crash-recorded",
	"keep-crash-exit",
	"keep-backoff",
	"keep-backoff-over",

	"keep-end-gate",
	"keep-removed",
	"keep-exit-written",
	"keep-life-removed",
	"keep-end",

	"hold-begin",
	"hold-go",
	"hold-exec",
}

// FaultPoints lists the points of this build.
func FaultPoints() []string { return points }

var (
	faultOnce  sync.Once
	faultName  string
	faultDo    string
	faultCount int
)

func faultPoint(name string) {
	faultOnce.Do(func() {
		words := strings.Split(os.Getenv(faultEnv), ":")
		if len(words) < 2 {
			return
		}
		faultName, faultDo, faultCount = words[0], words[1], 1
		if len(words) > 2 {
			faultCount, _ = strconv.Atoi(words[2])
		}
	})
	if !slices.Contains(points, name) {
		panic("fault point " + name + " is not listed")
	}
	if name != faultName {
		return
	}
	if faultCount--; faultCount != 0 {
		return
	}
	if mark := os.Getenv(faultMark); mark != "" {
		_ = os.WriteFile(mark, nil, 0o600)
	}
	switch faultDo {
	case "kill":
		fault.Here(syscall.SIGKILL)
		select {} // the signal may come a moment later
	case "stop":
		fault.Here(syscall.SIGSTOP)
	case "exit":
		os.Exit(3)
	}
}

// withoutFaults keeps the variable from the process.
func withoutFaults(environ []string) []string {
	return slices.DeleteFunc(environ, func(e string) bool {
		return strings.HasPrefix(e, "PG_FAULT") || strings.HasPrefix(e, "PG_PLANT")
	})
}
