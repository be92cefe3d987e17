// Package spec is what a thread tells the keeper about the process to run, and
// how the process's environment gets past the launchers.
//
// It travels in the environment and not on a command line: arguments may be
// secrets, and a keeper's command line is readable by everybody.
package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Spec is one generation's task.
type Spec struct {
	Name        string   `json:"name"`
	Title       string   `json:"title"`
	Lock        string   `json:"lock"` // absolute path of <name>.pid
	Token       string   `json:"token"`
	Version     int64    `json:"version"`
	Host        int      `json:"host"`
	HostStarted string   `json:"hostStarted"`
	File        string   `json:"file"`       // what is executed, absolute
	Argv        []string `json:"argv"`       // argv[0] included
	RecordArgv  []string `json:"recordArgv"` // what the record says and identity compares
	Cwd         string   `json:"cwd"`        // absolute
	UID         int      `json:"uid"`        // -1: the keeper's
	GID         int      `json:"gid"`        // -1: the keeper's
	Detached    bool     `json:"detached"`   // own session rather than own group
	Piped       []int    `json:"piped"`      // slots below 3 that the keeper relays
	Slots       int      `json:"slots"`      // declared stdio slots, at least 3
	Ignored     []int    `json:"ignored"`    // slots from 3 up that stay closed
	Restarts    int      `json:"restarts"`   // already used up
	Restart     Restart  `json:"restart"`
	Deliberate  []int    `json:"deliberateExitCodes"`
	GraceMs     int64    `json:"graceMs"`   // how long to wait for the orphan's end
	GraceKill   bool     `json:"graceKill"` // SIGKILL it after that
	Orphan      *Orphan  `json:"orphan,omitempty"`
}

// Restart is the back-off after crashes: base, doubled each time, up to cap.
type Restart struct {
	Max          int   `json:"max"` // 0: never
	BaseMs       int64 `json:"baseMs"`
	CapMs        int64 `json:"capMs"`
	ResetAfterMs int64 `json:"resetAfterMs"` // a run this long clears the count; 0: never
}

// DefaultRestart is the original's: 1, 2, 4, 8, 16 s, then no more.
var DefaultRestart = Restart{Max: 5, BaseMs: 1000, CapMs: 16000}

// WaitMs is the pause before the restart that follows used ones.
func (r Restart) WaitMs(used int) int64 {
	wait := max(r.BaseMs, 0)
	for i := 0; i < used && wait < r.CapMs; i++ {
		wait *= 2
	}
	return min(wait, r.CapMs)
}

// Orphan is the displaced process to wait for.
type Orphan struct {
	PID     int    `json:"pid"`
	Started string `json:"started"`
	Inode   uint64 `json:"inode"`
}

const (
	prefix = "PG_SPEC_"
	// KeepPrefix marks a variable that is meant for the process only.
	KeepPrefix = "PG_ENV_"
	// LifeFD and HostFD tell a keeper and a reaper which descriptor they inherited.
	LifeFD = "PG_LIFE_FD"
	HostFD = "PG_HOST_FD"
)

// chunk stays below the kernel's limit for one string: 128 KiB on Linux, 32,767
// characters on Windows.
const chunk = 30 << 10

// Environ is the spec as environment variables.
func (s Spec) Environ() []string {
	text, err := json.Marshal(s)
	if err != nil {
		return nil // strings and numbers only: cannot fail
	}
	var out []string
	for i := 0; len(text) > 0; i++ {
		n := min(len(text), chunk)
		// Each chunk passes through a JavaScript string: a character cut in two
		// would become two replacement characters.
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		out = append(out, prefix+strconv.Itoa(i)+"="+string(text[:n]))
		text = text[n:]
	}
	return out
}

// ErrMissing says that a launcher or keeper was started without its task.
var ErrMissing = errors.New("no " + prefix + "0 in the environment; it is started by process guard and not by hand")

// FromEnviron finds the spec in an environment.
func FromEnviron(environ []string) (Spec, error) {
	chunks := map[int]string{}
	for _, e := range environ {
		rest, ok := strings.CutPrefix(e, prefix)
		if !ok {
			continue
		}
		number, text, ok := strings.Cut(rest, "=")
		if n, err := strconv.Atoi(number); ok && err == nil {
			chunks[n] = text
		}
	}
	if len(chunks) == 0 {
		return Spec{}, ErrMissing
	}
	var b strings.Builder
	for i := range len(chunks) {
		b.WriteString(chunks[i])
	}
	s := Spec{UID: -1, GID: -1, Slots: 3}
	if err := json.Unmarshal([]byte(b.String()), &s); err != nil {
		return Spec{}, fmt.Errorf("task in %s0: %w", prefix, err)
	}
	return s, nil
}

// acts says whether a variable would act on a Node or Go program between the
// host and the process. A tracer preloaded by NODE_OPTIONS ran in the
// original's keepers too, and GODEBUG would act on ours.
func acts(name string) bool {
	if runtime.GOOS == "windows" {
		name = strings.ToUpper(name) // PATH is called Path there, and is the same
	}
	switch name {
	case "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "PATH", LifeFD, HostFD:
		return true
	}
	for _, p := range [...]string{"NODE_", "LD_", "DYLD_", KeepPrefix, prefix} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// Shield renames what would act on launchers, so that it reaches the process
// only. hostPath is the PATH that a launcher is looked up with.
func Shield(env map[string]string, hostPath *string) map[string]string {
	out := make(map[string]string, len(env)+1)
	for name, value := range env {
		if acts(name) {
			name = KeepPrefix + name
		}
		out[name] = value
	}
	if hostPath != nil {
		out["PATH"] = *hostPath
	}
	return out
}

// Restore is the environment of the process, from a keeper's.
func Restore(environ []string) []string {
	out := make([]string, 0, len(environ))
	for _, e := range environ {
		if kept, ok := strings.CutPrefix(e, KeepPrefix); ok {
			out = append(out, kept)
			continue
		}
		name, _, _ := strings.Cut(e, "=")
		if !acts(name) {
			out = append(out, e)
		}
	}
	return out
}
