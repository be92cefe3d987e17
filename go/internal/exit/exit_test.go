package exit

import (
	"strings"
	"syscall"
	"testing"

	"processguard/go/internal/proc"
)

func code(n int) *int { return &n }

func TestDescribe(t *testing.T) {
	const crash = ": a crash or an OOM kill, unless somebody sent it"
	for _, c := range []struct {
		code   *int
		signal string
		want   Reading
	}{
		{code(0), "", Reading{Deliberate: true, Detail: "exited cleanly"}},
		{code(1), "", Reading{Detail: "exited with code 1", ExitCode: 1}},
		{code(255), "", Reading{Detail: "exited with code 255", ExitCode: 255}},
		{nil, "", Reading{Detail: "ended with neither an exit code nor a signal", ExitCode: 1}},
		{nil, "SIGHUP", Reading{Deliberate: true, Detail: "terminated by SIGHUP", ExitCode: 129}},
		{nil, "SIGINT", Reading{Deliberate: true, Detail: "terminated by SIGINT", ExitCode: 130}},
		{nil, "SIGTERM", Reading{Deliberate: true, Detail: "terminated by SIGTERM", ExitCode: 143}},
		{nil, "SIGKILL", Reading{Killed: true, Detail: "terminated by SIGKILL" + crash, ExitCode: 137}},
		{nil, "SIGSEGV", Reading{Killed: true, Detail: "terminated by SIGSEGV" + crash, ExitCode: 139}},
		{nil, "SIGABRT", Reading{Killed: true, Detail: "terminated by SIGABRT" + crash, ExitCode: 128 + int(syscall.SIGABRT)}},
		{nil, "SIG40", Reading{Killed: true, Detail: "terminated by SIG40" + crash, ExitCode: 168}},
		{nil, "SIGNOSUCH", Reading{Killed: true, Detail: "terminated by SIGNOSUCH" + crash, ExitCode: 128}},
		// A signal and a code together: the signal ended it.
		{code(0), "SIGKILL", Reading{Killed: true, Detail: "terminated by SIGKILL" + crash, ExitCode: 137}},
	} {
		if got := Describe(c.code, c.signal); got != c.want {
			t.Errorf("Describe(%s, %q) = %+v, want %+v", Cause(c.code, ""), c.signal, got, c.want)
		}
	}
}

func TestDeliberate(t *testing.T) {
	for _, c := range []struct {
		exit  proc.Exit
		codes []int
		want  bool
	}{
		{proc.Exit{}, nil, true},
		{proc.Exit{Code: 1}, nil, false},
		{proc.Exit{Code: 1}, []int{0}, false},
		{proc.Exit{Code: 75}, []int{0, 75}, true},
		{proc.Exit{Code: 0}, []int{75}, false},
		{proc.Exit{Code: 0}, []int{}, false},
		{proc.Exit{Signal: syscall.SIGTERM}, []int{}, true},
		{proc.Exit{Signal: syscall.SIGINT}, nil, true},
		{proc.Exit{Signal: syscall.SIGHUP}, nil, true},
		{proc.Exit{Signal: syscall.SIGKILL}, nil, false},
		{proc.Exit{Signal: syscall.SIGSEGV}, []int{0, 11, 139}, false},
		{proc.Exit{Signal: syscall.SIGQUIT}, nil, false},
	} {
		if got := Deliberate(c.exit, c.codes); got != c.want {
			t.Errorf("Deliberate(%+v, %v) = %v", c.exit, c.codes, got)
		}
	}
}

// The two readings of one status must agree, or a message says "shut down"
// about a process that is being restarted.
func TestDescribeAndDeliberateAgree(t *testing.T) {
	for n := range 256 {
		for _, e := range []proc.Exit{{Code: n}, {Signal: syscall.Signal(n % 65)}} {
			if got, want := Describe(Status(e)).Deliberate, Deliberate(e, nil); got != want {
				t.Errorf("%+v: described as deliberate=%v, decided %v", e, got, want)
			}
		}
	}
}

func TestStatusAndCause(t *testing.T) {
	for _, c := range []struct {
		exit proc.Exit
		want string
	}{
		{proc.Exit{}, "exit code 0"},
		{proc.Exit{Code: 3}, "exit code 3"},
		{proc.Exit{Signal: syscall.SIGKILL}, "signal SIGKILL"},
		{proc.Exit{Signal: 40}, "signal SIG40"},
	} {
		if got := Cause(Status(c.exit)); got != c.want {
			t.Errorf("Cause of %+v = %q, want %q", c.exit, got, c.want)
		}
	}
	if got := Cause(nil, ""); got != "no exit code" {
		t.Errorf("Cause of nothing = %q", got)
	}
}

func TestSpawnFailure(t *testing.T) {
	for _, c := range []struct {
		code, message, path string
		want                []string
	}{
		{"ENOENT", "spawn /x ENOENT", "/x", []string{"/x does not exist (ENOENT)"}},
		{"EACCES", "spawn /x EACCES", "/x", []string{"/x", "(EACCES)"}},
		{"ENOEXEC", "spawn ENOEXEC", "/x", []string{"/x", "(ENOEXEC)"}},
		{"EACCES", "", "", []string{"the executable", "(EACCES)"}},
		{"EAGAIN", "spawn /x EAGAIN", "/x", []string{"spawn /x EAGAIN"}},
		{"EAGAIN", "", "/x", []string{"/x", "(EAGAIN)"}},
		{"", "Command x is not allowed", "/x", []string{"Command x is not allowed"}},
		{"", "", "/x", []string{"/x", "no reason"}},
	} {
		got := SpawnFailure(c.code, c.message, c.path)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("SpawnFailure(%q, %q, %q) = %q, without %q", c.code, c.message, c.path, got, want)
			}
		}
		if strings.Contains(got, "\n") {
			t.Errorf("SpawnFailure(%q) takes more than one line: %q", c.code, got)
		}
	}
	// What the host said is passed on word for word.
	if got := SpawnFailure("", "Command x is not allowed", "/x"); got != "Command x is not allowed" {
		t.Errorf("a refusal became %q", got)
	}
}
