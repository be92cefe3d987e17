package reap

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"processguard/go/internal/lock"
)

// DefaultGrace is how long another host may take to appear when nobody said.
const DefaultGrace = 8 * time.Second

// Options are what a reaper is told on its command line. There is nothing else
// it listens to: the command line is recorded, and whoever reads the record
// compares it with the running process.
type Options struct {
	HostPID            int
	HostStarted        string // start identity of the host, "" when not told
	PidDir             string
	Grace              time.Duration
	SelfLock           string
	ReplacementPidFile string
	Log                string
}

// ParseRun reads the flags of `reaper run`. Flags come in pairs; one that is
// not known is passed over with its value, and one without a value is passed
// over alone.
func ParseRun(args []string) (Options, error) {
	o := Options{Grace: DefaultGrace}
	for i := 0; i < len(args); i++ {
		flag := args[i]
		if !strings.HasPrefix(flag, "--") || i+1 == len(args) || strings.HasPrefix(args[i+1], "--") {
			continue
		}
		i++
		o.set(flag, args[i])
	}
	if o.HostPID <= 0 {
		return o, fmt.Errorf("reaper: --host-pid must be a pid; nothing is watched")
	}
	if o.PidDir == "" {
		return o, fmt.Errorf("reaper: --pid-dir is missing; nothing is watched")
	}
	return o, nil
}

func (o *Options) set(flag, value string) {
	switch flag {
	case "--host-pid":
		// Only plain digits are a pid: the kernel takes a negative number for
		// a group, and 0 for the caller's own.
		if n, err := strconv.ParseInt(value, 10, 32); err == nil {
			o.HostPID = int(n)
		}
	case "--host-started":
		o.HostStarted = value
	case "--pid-dir":
		o.PidDir = value
	case "--grace-ms":
		if ms, err := strconv.ParseFloat(value, 64); err == nil && ms >= 0 && ms <= math.MaxInt32 {
			o.Grace = time.Duration(ms * float64(time.Millisecond))
		}
	case "--self-lock":
		o.SelfLock = value
	case "--replacement-pid-file":
		o.ReplacementPidFile = value
	case "--log":
		o.Log = value
	}
}

// Launch is what `reaper launch` is told, beside the flags of the reaper.
type Launch struct {
	Token   string
	Version int64
	Run     []string // the reaper's own flags, word for word
	Options Options
}

// ParseLaunch reads the arguments of `reaper launch`. Token and version come
// first, so that what follows is exactly the reaper's command line.
func ParseLaunch(args []string) (Launch, error) {
	var l Launch
	if len(args) < 4 || args[0] != "--token" || args[2] != "--version" || args[1] == "" {
		return l, fmt.Errorf("reaper: launch needs --token and --version first; no reaper was started")
	}
	version, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil || version < 0 {
		return l, fmt.Errorf("reaper: --version %q is no version; no reaper was started", args[3])
	}
	l = Launch{Token: args[1], Version: version, Run: args[4:]}
	if l.Options, err = ParseRun(l.Run); err != nil {
		return l, err
	}
	if _, _, ok := splitLock(l.Options.SelfLock); !ok {
		return l, fmt.Errorf("reaper: --self-lock must be the path of a .pid file; no reaper was started")
	}
	return l, nil
}

// splitLock takes the path of a record apart into its directory and its name.
func splitLock(path string) (dir, name string, ok bool) {
	name, ok = strings.CutSuffix(filepath.Base(path), lock.RecordSuffix)
	if path == "" || !ok || name == "" {
		return "", "", false
	}
	return filepath.Dir(path), name, true
}
