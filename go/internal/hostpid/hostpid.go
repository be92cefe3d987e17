// Package hostpid reads the host's own pid files and says which are stale.
//
// A host that constrains child_process writes `<root>/pids/<name>.pid` and
// hands back whatever process that pid belongs to by now. A file that names a
// recycled pid, a zombie or one of the host's own threads makes every later
// spawn of that name return a stranger.
package hostpid

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"processguard/go/internal/proc"
)

// Target is one name whose file is looked at.
type Target struct {
	Name   string   `json:"name"`
	Argv   []string `json:"argv"`   // what a process under that name runs; nil: not known
	Script string   `json:"script"` // what a process without a known command line runs
	Lock   string   `json:"lock"`   // the guard's record of that name
}

// Answer is what was done about one file. A file that was left has none.
type Answer struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	PID     int    `json:"pid"`
	Removed bool   `json:"removed"`
	What    string `json:"what"`  // what the pid turned out to be: "is running …"
	Error   string `json:"error"` // why the file could not be removed
}

// Found is what a pid in a host's file turned out to be.
type Found uint8

// What a pid can be.
const (
	Dead    Found = iota // nothing: the host itself sees that
	Zombie               // ended and never reaped; the host takes it for alive
	Thread               // the id of a thread; answers signal 0 like a process
	Hidden               // alive, and its command line cannot be read
	Running              // alive, and Argv says what it is
)

// Facts are what a decision depends on.
type Facts struct {
	Found Found
	Argv  []string // of the running process
}

// Stale is the decision: whether the file has to go.
func Stale(f Facts, t Target) bool {
	switch f.Found {
	case Zombie, Thread:
		return true
	case Running:
		return !protects(f.Argv, t)
	}
	// A dead pid the host recognises by itself; what cannot be read is left.
	return false
}

// protects says whether a running process is the one the file is about.
func protects(argv []string, t Target) bool {
	if t.Lock != "" && (carries(argv, "--lock", t.Lock) || carries(argv, "--self-lock", t.Lock)) {
		// Its keeper, its reaper, or the launcher of either, which through node
		// carries the lock and not the program.
		return true
	}
	if len(t.Argv) > 0 {
		return proc.CompareArgv(argv, t.Argv) == proc.Match
	}
	return t.Script != "" && t.Lock == "" && runs(argv, t.Script)
}

// carries looks for a flag with exactly this value; another name's lock may
// begin with the same path.
func carries(argv []string, flag, value string) bool {
	if len(argv) == 1 {
		// Platforms that keep a command line as one string.
		line := slashes(argv[0]) + " "
		return strings.Contains(line, " "+flag+" "+slashes(value)+" ") || strings.Contains(line, " "+flag+` "`+slashes(value)+`" `)
	}
	for i, a := range argv {
		if a == flag && i+1 < len(argv) && slashes(argv[i+1]) == slashes(value) {
			return true
		}
	}
	return false
}

// runs says whether a command line names the script: the original's, or the Go
// program that took its place.
func runs(argv []string, script string) bool {
	script = slashes(script)
	names := []string{script, strings.TrimSuffix(script, ".js")}
	for _, a := range argv {
		a = slashes(a)
		for _, n := range names {
			if strings.HasSuffix(a, n) || len(argv) == 1 && (strings.Contains(a, n+" ") || strings.Contains(a, n+".exe")) {
				return true
			}
		}
	}
	return false
}

func slashes(s string) string { return strings.ReplaceAll(s, `\`, "/") }

// Clear looks at the file of every target under root and removes the stale.
func Clear(root string, targets []Target) []Answer {
	var out []Answer
	for _, t := range targets {
		if filepath.Base(t.Name) != t.Name {
			continue // a name of the host's, never the way to another file
		}
		path := filepath.Join(root, "pids", t.Name+".pid")
		pid, text := readPID(path)
		if pid <= 0 {
			continue
		}
		f := look(pid)
		if !Stale(f, t) || !Stale(f, t.resolved()) {
			continue
		}
		a := Answer{Name: t.Name, Path: path, PID: pid, What: describe(f)}
		// The same text still: the host may have written a new one meanwhile.
		if _, now := readPID(path); now != text {
			continue
		}
		switch err := os.Remove(path); {
		case err == nil:
			a.Removed = true
		case errors.Is(err, os.ErrNotExist):
			continue
		default:
			a.Error = err.Error()
		}
		out = append(out, a)
	}
	return out
}

// resolved is t with the lock's real path: a keeper carries that one, also when
// the caller reached its directory through a link.
func (t Target) resolved() Target {
	if t.Lock != "" {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(t.Lock)); err == nil {
			t.Lock = filepath.Join(dir, filepath.Base(t.Lock))
		}
	}
	return t
}

func readPID(path string) (int, string) {
	// On Windows a link is only found by its own name.
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return 0, ""
	}
	f, err := open(path)
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	// Somebody may have put a FIFO in its place since.
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0, ""
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return 0, ""
	}
	var pid int
	if _, err := fmt.Sscanf(string(text), "%d", &pid); err != nil {
		return 0, ""
	}
	return pid, string(text)
}

func look(pid int) Facts {
	h, err := proc.Open(pid)
	if errors.Is(err, proc.ErrGone) {
		if exists(pid) {
			return Facts{Found: Thread}
		}
		return Facts{Found: Dead}
	}
	if err != nil {
		return Facts{Found: Hidden}
	}
	defer h.Close()
	if h.Alive() == proc.No {
		return Facts{Found: Zombie}
	}
	argv, err := h.Argv()
	if err != nil || len(argv) == 0 {
		if h.Alive() == proc.No {
			return Facts{Found: Zombie}
		}
		return Facts{Found: Hidden}
	}
	return Facts{Found: Running, Argv: argv}
}

func exists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

func describe(f Facts) string {
	switch f.Found {
	case Zombie:
		return "has exited and was never reaped"
	case Thread:
		return "is a thread of another process"
	case Running:
		// Its arguments may be secrets, and lines of a log if it wants.
		program := proc.Printable(f.Argv[0])
		return fmt.Sprintf("is running `%s`", program)
	}
	return "cannot be told"
}
