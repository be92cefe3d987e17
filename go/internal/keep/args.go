package keep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"processguard/go/internal/lock"
	"processguard/go/internal/spec"
)

// The exit codes of every mode.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// usage is what a person sees who starts a keeper by hand. Nothing else is
// ever written to stdio: it is the process's.
const usage = "usage: keeper launch|keep --lock <pidDir>/<name>.pid --token <token>\n" +
	"The keeper is started by process guard; see docs/protocol.md.\n"

// Main runs one mode and returns the exit code.
func Main(argv []string) int {
	if len(argv) < 2 {
		return sayUsage(errors.New("no mode"))
	}
	switch argv[1] {
	case "hold":
		return hold()
	case "faultpoints":
		os.Stdout.WriteString(strings.Join(append(FaultPoints(), ""), "\n"))
		return exitOK
	case "launch", "keep":
	default:
		return sayUsage(fmt.Errorf("unknown mode %q", argv[1]))
	}
	// Signals first: one that comes while the task is read must not be lost.
	var stops chan os.Signal
	if argv[1] == "keep" {
		stops = catchStops()
	}
	s, err := task(argv, os.Environ())
	if err != nil {
		return sayUsage(err)
	}
	if argv[1] == "launch" {
		return launch(argv, s)
	}
	return keep(argv, s, stops)
}

func sayUsage(err error) int {
	os.Stderr.WriteString("keeper: " + err.Error() + "\n" + usage)
	return exitUsage
}

// task reads the spec and holds it against the command line, which is all that
// others can see of it.
func task(argv, environ []string) (*spec.Spec, error) {
	if len(argv) != 6 || argv[2] != "--lock" || argv[4] != "--token" {
		return nil, errors.New("wrong arguments")
	}
	s, err := spec.FromEnviron(environ)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Lock != argv[3] || s.Token != argv[5]:
		return nil, errors.New("the task is for another lock or token")
	case !filepath.IsAbs(s.Lock) || filepath.Base(s.Lock) != s.Name+lock.RecordSuffix:
		return nil, fmt.Errorf("lock %s is not the absolute path of %s%s", s.Lock, s.Name, lock.RecordSuffix)
	case !lock.GoodToken(s.Token):
		return nil, fmt.Errorf("token %q", s.Token)
	case s.File == "" || len(s.Argv) == 0 || len(s.RecordArgv) == 0:
		return nil, errors.New("the task names no command")
	case s.Slots < 3:
		return nil, fmt.Errorf("%d stdio slots", s.Slots)
	}
	return &s, nil
}
