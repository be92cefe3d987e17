package reap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

// The processes of these tests are this test binary in one of these roles.
var roles = map[string]func(){
	// Ends on SIGTERM, like most.
	"plain": func() { ready(); untilTestEnds() },
	// Says each SIGTERM and does not end of it.
	"stubborn": func() {
		c := make(chan os.Signal, 16)
		signal.Notify(c, syscall.SIGTERM)
		go func() {
			for range c {
				fmt.Println("SIGTERM")
			}
		}()
		ready()
		untilTestEnds()
	},
	// Says the number of a thread of its own that is not the first.
	"thread": func() {
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			if tid, _ := strconv.Atoi(task.Name()); tid != os.Getpid() {
				fmt.Println(tid)
				break
			}
		}
		untilTestEnds()
	},
	// Holds a gate until its stdin ends.
	"gate": func() {
		d, err := lock.OpenExisting(os.Args[2])
		if err == nil {
			_, err = d.Lock(context.Background(), os.Args[3])
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		ready()
		untilTestEnds()
	},
}

func ready() { fmt.Println("ready") }

// untilTestEnds keeps no process longer than the test, however that ends.
func untilTestEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

const roleEnv = "REAP_TEST_ROLE"

var (
	reaperPath string // as it ships
	faultyPath string // with fault points
	keeperPath string
)

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv(roleEnv)]; ok {
		role()
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "reap-test-")
	if err == nil {
		reaperPath, faultyPath, keeperPath = filepath.Join(dir, "reaper"), filepath.Join(dir, "faulty"), filepath.Join(dir, "keeper")
		err = errors.Join(build(reaperPath, "reaper", ""), build(faultyPath, "reaper", "fault"), build(keeperPath, "keeper", ""))
	}
	code := 1
	if err != nil {
		fmt.Println(err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func build(path, command, tags string) error {
	c := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-tags", tags, "-o", path, "processguard/go/cmd/"+command)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	return nil
}

// process is a child of the test that is ended and collected with it.
type process struct {
	*exec.Cmd
	t      *testing.T
	handle *proc.Handle
	dead   chan struct{} // collected
	mu     sync.Mutex
	lines  []string
	in     io.WriteCloser
}

func role(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := spawn(t, nil, append([]string{os.Args[0], name}, args...), roleEnv+"="+name)
	p.until("its first line", func() bool { return len(p.said()) > 0 })
	return p
}

// spawn starts argv with the environment of the test and more.
func spawn(t *testing.T, prepare func(*exec.Cmd), argv []string, env ...string) *process {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), env...)
	p := &process{Cmd: c, t: t, dead: make(chan struct{})}
	// A pipe of ours: Cmd's own would be closed by Wait with words unread.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if prepare != nil {
		prepare(c)
	}
	if p.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if p.handle, err = proc.Open(c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		s := bufio.NewScanner(r)
		for s.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
		r.Close()
	}()
	go func() { _ = c.Wait(); close(p.dead) }()
	t.Cleanup(func() {
		_ = p.handle.Signal(syscall.SIGKILL)
		<-p.dead
		p.handle.Close()
	})
	return p
}

func (p *process) pid() int { return p.Process.Pid }

func (p *process) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

func (p *process) until(what string, ok func() bool) { p.t.Helper(); until(p.t, what, ok) }

// until waits for a fact.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("30 s without %s", what)
		}
	}
}

func (p *process) id() proc.ID {
	p.t.Helper()
	id, err := p.handle.ID()
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p *process) alive() bool { return p.handle.Alive() == proc.Yes }

func (p *process) kill(sig syscall.Signal) {
	p.t.Helper()
	if err := p.handle.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// ends waits for the end and returns the exit code, -1 for a signal.
func (p *process) ends() int {
	p.t.Helper()
	select {
	case <-p.dead:
	case <-time.After(30 * time.Second):
		p.t.Fatalf("pid %d did not end in 30 s; it said %q", p.pid(), p.said())
	}
	return p.ProcessState.ExitCode()
}

// world is a pidDir with a host.
type world struct {
	t    *testing.T
	root string
	dir  *lock.Dir
	host *process
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, root: t.TempDir()}
	var err error
	if w.dir, err = lock.OpenDir(filepath.Join(w.root, "pids")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.dir.Close() })
	w.host = role(t, "plain", "host")
	return w
}

// recordOf is what a keeper would have written about p.
func (w *world) recordOf(p *process) *record.Record {
	id := p.id()
	return &record.Record{
		PID: p.pid(), Version: 1, Token: fmt.Sprintf("%d.0.1.%016x", w.host.pid(), p.pid()), Argv: p.Args,
		Host: w.host.pid(), HostStarted: w.host.id().Started, Started: id.Started, Inode: id.Inode,
		Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(),
	}
}

func (w *world) write(name string, rec *record.Record) {
	w.t.Helper()
	g, err := w.dir.Lock(context.Background(), name)
	if err == nil {
		err = record.Write(w.dir, g, name, rec)
		g.Unlock()
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// guarded is a process in that role under a record of that name.
func (w *world) guarded(name, as string) *process {
	w.t.Helper()
	p := role(w.t, as, name)
	w.write(name, w.recordOf(p))
	return p
}

// file is the text of a file in pidDir, "" when it is not there.
func (w *world) file(name string) string {
	text, err := os.ReadFile(w.dir.Join(name))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return string(text)
}

func (w *world) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := w.dir.Names("")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		all[n] = w.file(n)
	}
	return all
}

// left are the records and the files of a reaping in pidDir.
func (w *world) left() []string {
	var left []string
	for name := range w.files(w.t) {
		if strings.HasSuffix(name, lock.RecordSuffix) || strings.HasSuffix(name, lock.ReapingSuffix) || strings.HasSuffix(name, ".tmp") {
			left = append(left, name)
		}
	}
	return left
}

func (w *world) hostFile() string { return filepath.Join(w.root, "hdb.pid") }
func (w *world) logFile() string  { return filepath.Join(w.root, "log") }

func (w *world) log() string {
	text, err := os.ReadFile(w.logFile())
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return string(text)
}

func (w *world) logged(parts ...string) {
	w.t.Helper()
	for _, p := range parts {
		if !strings.Contains(w.log(), p) {
			w.t.Errorf("the log has no %q:\n%s", p, w.log())
		}
	}
}

func (w *world) options(grace time.Duration) Options {
	return Options{
		HostPID: w.host.pid(), HostStarted: w.host.id().Started, PidDir: w.dir.Path(), Grace: grace,
		SelfLock: w.dir.Join("reaper.pid"), ReplacementPidFile: w.hostFile(), Log: w.logFile(),
	}
}

func flags(o Options) []string {
	return []string{
		"--host-pid", strconv.Itoa(o.HostPID), "--host-started", o.HostStarted, "--pid-dir", o.PidDir,
		"--grace-ms", strconv.FormatInt(o.Grace.Milliseconds(), 10), "--self-lock", o.SelfLock,
		"--replacement-pid-file", o.ReplacementPidFile, "--log", o.Log,
	}
}

// reaper starts the executable and writes its own lock as a launcher would.
func (w *world) reaper(exe string, o Options, env ...string) *process {
	w.t.Helper()
	r := spawn(w.t, nil, append([]string{exe, "run"}, flags(o)...), env...)
	if rec := w.recordOf(r); r.alive() {
		w.write("reaper", rec)
	}
	until(w.t, "the reaper's first line", func() bool {
		return !r.alive() || strings.Contains(w.log(), fmt.Sprintf("[reaper %d] watching pid %d", r.pid(), o.HostPID))
	})
	return r
}

// quick are limits for a reaper inside the test.
var quick = Limits{Term: 500 * time.Millisecond, Kill: 10 * time.Second, Gate: 50 * time.Millisecond, LastGate: 300 * time.Millisecond, Look: 5 * time.Millisecond}

// reap runs a reaper inside the test, to its end, after the host was killed.
func (w *world) reap(o Options, limits Limits) time.Duration {
	w.t.Helper()
	r := New(o, limits)
	w.host.kill(syscall.SIGKILL)
	start := time.Now()
	done := make(chan struct{})
	go func() { r.Run(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		w.t.Fatalf("the reaper did not come to an end in 60 s:\n%s", w.log())
	}
	return time.Since(start)
}
