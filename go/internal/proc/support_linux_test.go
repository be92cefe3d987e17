package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is for what must happen; how long it took is no test's subject.
const patience = 20 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// needRoot skips with a reason, so that a run without root shows what it left
// out.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a namespace or another user")
	}
}

var built struct {
	sync.Once
	dir, path string
	err       error
}

// helper is testdata/helper.c, compiled once.
func helper(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		cc, err := exec.LookPath("cc")
		if err != nil {
			built.err = err
			return
		}
		if built.dir, err = os.MkdirTemp("", "pg-proc"); err != nil {
			built.err = err
			return
		}
		// Other users run it too.
		if err := os.Chmod(built.dir, 0o755); err != nil { //nolint:gosec // see above
			built.err = err
			return
		}
		built.path = filepath.Join(built.dir, "helper")
		out, err := exec.Command(cc, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", built.path, "testdata/helper.c").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("compile testdata/helper.c: %v", built.err)
	}
	return built.path
}

// child is a running helper.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pid  int
	once sync.Once
}

// start runs a helper and kills and reaps it when the test ends, if it is
// still there then.
func start(t *testing.T, prepare func(*exec.Cmd), args ...string) *child {
	t.Helper()
	cmd := exec.Command(helper(t), args...)
	if prepare != nil {
		prepare(cmd)
	}
	return run(t, cmd)
}

func run(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	c := &child{t: t, cmd: cmd}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	c.in, c.out, c.pid = in, bufio.NewReader(out), cmd.Process.Pid
	t.Cleanup(func() {
		_ = c.in.Close()
		_ = cmd.Process.Kill()
		c.reap()
	})
	return c
}

// says returns the number behind the word that the helper says next.
func (c *child) says(word string) int {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	got, number, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, nerr := strconv.Atoi(number)
	if err != nil || nerr != nil || got != word {
		c.t.Fatalf("the helper said %q and not %q: %v", line, word, err)
	}
	return n
}

// next lets the helper do its next step.
func (c *child) next() {
	c.t.Helper()
	_, err := c.in.Write([]byte{'\n'})
	must(c.t, err)
}

func (c *child) reap() {
	c.once.Do(func() {
		_ = c.cmd.Wait()
		_ = c.cmd.Process.Release() // for the tests that reaped it themselves
	})
}

func open(t *testing.T, pid int) *Handle {
	t.Helper()
	h, err := Open(pid)
	if err != nil {
		t.Fatalf("open %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// eventually waits for a fact that no event tells of.
func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !fact() {
		if time.Now().After(deadline) {
			t.Fatalf("in %s it never came true: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// usage is what may leak.
type usage struct{ files, goroutines int }

func count() usage {
	files, _ := os.ReadDir("/proc/self/fd")
	return usage{len(files), runtime.NumGoroutine()}
}

func settle(t *testing.T, before usage) {
	t.Helper()
	var now usage
	deadline := time.Now().Add(patience)
	for {
		now = count()
		if now.files <= before.files && now.goroutines <= before.goroutines {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %+v, before %+v", now, before)
		}
		time.Sleep(time.Millisecond)
	}
}

// The test binary runs again where a test itself cannot be: as another user,
// in other namespaces. partEnv names the part.
const partEnv = "PG_PROC_TEST_PART"

var parts = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(partEnv); name != "" {
		part := parts[name]
		if part == nil {
			fmt.Println("no such part:", name)
			os.Exit(2)
		}
		if err := part(strings.Split(os.Getenv(partEnv+"_ARGS"), "\n")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("done")
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// part is the command of a part. wrapper is put before the test binary.
func part(name string, args []string, wrapper ...string) *exec.Cmd {
	// The binary lies in a directory of go test's that is closed to others;
	// this link leads any user to it.
	self := "/proc/self/exe"
	if len(wrapper) > 0 {
		self = os.Args[0] // the link would be the wrapper's own
	}
	argv := append(wrapper[:len(wrapper):len(wrapper)], self)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), partEnv+"="+name, partEnv+"_ARGS="+strings.Join(args, "\n"))
	return cmd
}

func runPart(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil || !strings.HasSuffix(text, "done") {
		t.Fatalf("%v\n%s", err, text)
	}
}

const nobody = 65534

func asNobody(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// can skips the test where unshare may not do this.
func can(t *testing.T, unshare ...string) {
	t.Helper()
	out, err := exec.Command("unshare", append(unshare, "true")...).CombinedOutput()
	if err != nil {
		t.Skipf("unshare %s is not possible here: %v %s", strings.Join(unshare, " "), err, out)
	}
}

// noDeadline is for parts: their test has one.
var noDeadline = context.Background()

func errorIs(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return fmt.Errorf("got %v, want %w", err, target)
}
