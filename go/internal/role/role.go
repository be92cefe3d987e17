// Package role lets a test binary play the other processes of its own tests.
// Only tests import it.
//
// A child is the test binary again with a role in its environment. It ends
// when its standard input does, so whatever becomes of the test, it does not
// stay; what cannot read its input any more (stopped, or a program of the
// system) is ended by the kernel with the test binary or by the test's cleanup,
// always by its own pid.
package role

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const variable = "PROCESS_GUARD_TEST_ROLE"

// Patience is how long a test waits for a fact. Tests share two cores with
// others; nothing here takes a tenth of it.
const Patience = 30 * time.Second

// Stage is what a role has to talk to its test.
type Stage struct{ in *bufio.Scanner }

// Args are the arguments behind the program's name.
func (s *Stage) Args() []string { return os.Args[1:] }

// Say tells the test one line.
func (s *Stage) Say(format string, args ...any) {
	fmt.Fprintln(os.Stdout, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// Heard waits for the test's next line; false once there are no more.
func (s *Stage) Heard() (string, bool) {
	ok := s.in.Scan()
	return s.in.Text(), ok
}

// UntilTold waits for one line or for the test's end.
func (s *Stage) UntilTold() { s.in.Scan() }

// UntilTestEnds keeps the process for as long as the test has it.
func (s *Stage) UntilTestEnds() {
	for s.in.Scan() {
	}
}

// Main is the body of TestMain: it plays the role this process was given, or
// runs the tests.
func Main(m *testing.M, roles map[string]func(*Stage)) {
	name, given := os.LookupEnv(variable)
	if !given {
		os.Exit(m.Run())
	}
	os.Unsetenv(variable)
	play, ok := roles[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no role", name)
		os.Exit(2)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	play(&Stage{in: in})
	os.Exit(0)
}

// Child is one process of a test.
type Child struct {
	*exec.Cmd
	t     testing.TB
	in    io.WriteCloser
	lines chan string
	quiet chan struct{} // it said its last line
	once  sync.Once
	dead  chan struct{}
}

// Start starts the test binary in a role.
func Start(t testing.TB, name string, args ...string) *Child {
	t.Helper()
	return Run(t, Command(name, args...))
}

// Command is the test binary in a role, not started yet.
func Command(name string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	c := exec.Command(exe, args...)
	c.Env = append(os.Environ(), variable+"="+name)
	return c
}

// Program starts a program of the system. It gets a pipe for its input that
// ends with the test.
func Program(t testing.TB, argv ...string) *Child {
	t.Helper()
	return Run(t, exec.Command(argv[0], argv[1:]...))
}

// Run starts c, which ends and is collected with the test.
func Run(t testing.TB, c *exec.Cmd) *Child {
	t.Helper()
	k := &Child{Cmd: c, t: t, lines: make(chan string, 1024), quiet: make(chan struct{}), dead: make(chan struct{})}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	k.in = in
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(c.SysProcAttr)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(k.quiet)
		defer close(k.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			k.lines <- lines.Text()
		}
	}()
	t.Cleanup(k.Kill)
	return k
}

// PID is the child's.
func (k *Child) PID() int { return k.Process.Pid }

// Tell sends the role one line.
func (k *Child) Tell(line string) {
	k.t.Helper()
	if _, err := io.WriteString(k.in, line+"\n"); err != nil {
		k.t.Fatalf("pid %d does not listen: %v", k.PID(), err)
	}
}

// Line is the next thing the role says.
func (k *Child) Line() string {
	k.t.Helper()
	return k.LineWithin(Patience)
}

// LineWithin is Line with another patience.
func (k *Child) LineWithin(patience time.Duration) string {
	k.t.Helper()
	select {
	case line, ok := <-k.lines:
		if !ok {
			k.t.Fatalf("pid %d ended and said nothing more", k.PID())
		}
		return line
	case <-time.After(patience):
		k.t.Fatalf("pid %d said nothing for %s", k.PID(), patience)
	}
	return ""
}

// Lines is everything that the role says from now on, until it ends.
func (k *Child) Lines() <-chan string { return k.lines }

// Says waits for exactly this line.
func (k *Child) Says(want string) {
	k.t.Helper()
	if got := k.Line(); got != want {
		k.t.Fatalf("pid %d said %q, not %q", k.PID(), got, want)
	}
}

// Signal sends sig to the child, which is not collected before Wait or Kill.
func (k *Child) Signal(sig syscall.Signal) {
	k.t.Helper()
	if err := k.Process.Signal(sig); err != nil {
		k.t.Fatalf("signal pid %d: %v", k.PID(), err)
	}
}

// Kill ends the child at once and collects it. It may be called again.
func (k *Child) Kill() {
	_ = k.Process.Kill()
	k.collect()
}

// End lets a role end by itself, by ending its input.
func (k *Child) End() {
	k.t.Helper()
	_ = k.in.Close()
	k.Wait()
}

// Wait waits for the child's end and collects it.
func (k *Child) Wait() {
	k.t.Helper()
	go k.collect()
	select {
	case <-k.dead:
	case <-time.After(Patience):
		k.t.Fatalf("pid %d has not ended for %s", k.PID(), Patience)
	}
}

func (k *Child) collect() {
	k.once.Do(func() {
		// Wait closes what is still to be read. It ends with the process,
		// unless somebody else has it too.
		select {
		case <-k.quiet:
		case <-time.After(Patience):
		}
		_ = k.Cmd.Wait()
		close(k.dead)
	})
	<-k.dead
}

// Within waits for a fact.
func Within(t testing.TB, patience time.Duration, what string, fact func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !fact() {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %s", what, patience)
		}
		time.Sleep(time.Millisecond)
	}
}
