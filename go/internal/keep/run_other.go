//go:build !linux && !windows

package keep

import (
	"os"
	"syscall"

	"processguard/go/internal/spec"
)

// Keepers of other systems are not built yet. Without one the library starts
// the process itself and says so.

func catchStops() chan os.Signal { return nil }

func launch([]string, *spec.Spec) int { return exitFailed }

func keep([]string, *spec.Spec, chan os.Signal) int { return exitFailed }

func hold() int { return exitFailed }

func errnoName(syscall.Errno) string { return "" }

var alsoTemporary []error
