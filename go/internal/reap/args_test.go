package reap

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFlagsOfRun(t *testing.T) {
	full := []string{
		"--host-pid", "42", "--host-started", "b:7", "--pid-dir", "/p", "--grace-ms", "1500",
		"--self-lock", "/p/r.pid", "--replacement-pid-file", "/x/hdb.pid", "--log", "/x/log",
	}
	want := Options{HostPID: 42, HostStarted: "b:7", PidDir: "/p", Grace: 1500 * time.Millisecond, SelfLock: "/p/r.pid", ReplacementPidFile: "/x/hdb.pid", Log: "/x/log"}
	for _, c := range []struct {
		name string
		args []string
		want Options
		bad  bool
	}{
		{name: "all", args: full, want: want},
		{name: "grace by default", args: []string{"--host-pid", "42", "--pid-dir", "/p"}, want: Options{HostPID: 42, PidDir: "/p", Grace: DefaultGrace}},
		{name: "no grace", args: []string{"--host-pid", "42", "--pid-dir", "/p", "--grace-ms", "0"}, want: Options{HostPID: 42, PidDir: "/p"}},
		{name: "grace that is none", args: []string{"--host-pid", "42", "--pid-dir", "/p", "--grace-ms", "-5"}, want: Options{HostPID: 42, PidDir: "/p", Grace: DefaultGrace}},
		{name: "grace without end", args: []string{"--host-pid", "42", "--pid-dir", "/p", "--grace-ms", "Inf"}, want: Options{HostPID: 42, PidDir: "/p", Grace: DefaultGrace}},
		{name: "unknown flags", args: append([]string{"--new", "1", "word"}, full...), want: want},
		{name: "a flag without a value takes none", args: append(slices.Clone(full), "--log", "--new", "1"), want: want},
		{name: "a last flag without a value", args: append(slices.Clone(full), "--log"), want: want},
		{name: "no host", args: []string{"--pid-dir", "/p"}, bad: true},
		{name: "host 0", args: []string{"--host-pid", "0", "--pid-dir", "/p"}, bad: true},
		{name: "a group for a host", args: []string{"--host-pid", "-42", "--pid-dir", "/p"}, bad: true},
		{name: "a host that is no number", args: []string{"--host-pid", "42x", "--pid-dir", "/p"}, bad: true},
		{name: "a host beyond every pid", args: []string{"--host-pid", "4294967338", "--pid-dir", "/p"}, bad: true},
		{name: "no directory", args: []string{"--host-pid", "42"}, bad: true},
		{name: "nothing", bad: true},
	} {
		got, err := ParseRun(c.args)
		if (err != nil) != c.bad || !c.bad && got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestFlagsOfLaunch(t *testing.T) {
	run := []string{"--host-pid", "42", "--pid-dir", "/p", "--self-lock", "/p/r.pid"}
	l, err := ParseLaunch(append([]string{"--token", "t", "--version", "3"}, run...))
	if err != nil || l.Token != "t" || l.Version != 3 || !slices.Equal(l.Run, run) || l.Options.HostPID != 42 {
		t.Errorf("%+v, %v", l, err)
	}
	for name, args := range map[string][]string{
		"nothing":          nil,
		"other order":      append([]string{"--version", "3", "--token", "t"}, run...),
		"not first":        append(append([]string{}, run...), "--token", "t", "--version", "3"),
		"no token":         append([]string{"--token", "", "--version", "3"}, run...),
		"no version":       append([]string{"--token", "t", "--version", "x"}, run...),
		"negative version": append([]string{"--token", "t", "--version", "-1"}, run...),
		"no own lock":      {"--token", "t", "--version", "3", "--host-pid", "42", "--pid-dir", "/p"},
		"own lock no lock": {"--token", "t", "--version", "3", "--host-pid", "42", "--pid-dir", "/p", "--self-lock", "/p/.pid"},
		"own lock no .pid": {"--token", "t", "--version", "3", "--host-pid", "42", "--pid-dir", "/p", "--self-lock", "/p/r"},
		"no host":          {"--token", "t", "--version", "3", "--pid-dir", "/p", "--self-lock", "/p/r.pid"},
	} {
		if l, err := ParseLaunch(args); err == nil {
			t.Errorf("%s: accepted as %+v", name, l)
		}
	}
}

// FuzzArgs reads the command lines of both modes, one word a line. A pid that
// is none would make the reaper watch, or signal, whatever the kernel takes it for.
func FuzzArgs(f *testing.F) {
	f.Add("--host-pid\n42\n--pid-dir\n/p\n--grace-ms\n1e3\n--self-lock\n/p/r.pid")
	f.Add("--token\nt\n--version\n3\n--host-pid\n42\n--pid-dir\n/p\n--self-lock\n/p/r.pid")
	f.Add("--token\n--version\n3\n4")
	f.Add("--host-pid\n-1\n--host-pid\n2147483648\n--pid-dir\n--x\n--grace-ms\nNaN")
	f.Add("--host-pid\n0x2a\n--pid-dir\n\x00\n--grace-ms\n-0")
	f.Add("--")
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		sound := func(o Options) bool {
			return o.HostPID > 0 && o.HostPID <= math.MaxInt32 && o.PidDir != "" && o.Grace >= 0 && o.Grace <= math.MaxInt32*time.Millisecond
		}
		if o, err := ParseRun(args); err == nil && !sound(o) {
			t.Errorf("%q was accepted as %+v", text, o)
		}
		l, err := ParseLaunch(args)
		if err != nil {
			return
		}
		dir, name, ok := splitLock(l.Options.SelfLock)
		if !sound(l.Options) || l.Token == "" || l.Version < 0 || !ok || dir == "" || name == "" || strings.Contains(name, "/") {
			t.Errorf("%q was accepted as %+v", text, l)
		}
	})
}
