package reap

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

// claim is the reaper's lock as the thread leaves it for the launcher.
func (w *world) claim(o Options, token string) *record.Record {
	w.t.Helper()
	rec := &record.Record{
		Version: 7, Token: token, Host: w.host.pid(), HostStarted: w.host.id().Started,
		Argv: append([]string{reaperPath, "run"}, flags(o)...), ClaimedAt: 5, Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(),
	}
	w.write("reaper", rec)
	return rec
}

func (w *world) own() *record.Record {
	w.t.Helper()
	rec, err := record.Read(w.dir, "reaper")
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// launched is the launcher's command with the same flags.
func launched(exe, token string, o Options) []string {
	return append([]string{exe, "launch", "--token", token, "--version", "7"}, flags(o)...)
}

// track ends a reaper that a launcher left, at the latest with the test.
func track(t *testing.T, pid int) *proc.Handle {
	t.Helper()
	h, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.Alive() == proc.Yes {
			_ = h.Signal(syscall.SIGKILL)
		}
		h.Close()
	})
	return h
}

func TestLaunchedReaperIsOnItsLockAndOutOfTheHostsSession(t *testing.T) {
	w := newWorld(t)
	served := w.guarded("served", "plain")
	o := w.options(0)
	w.claim(o, "mine")
	secret, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	out, err := os.Create(filepath.Join(w.root, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	l := spawn(t, func(c *exec.Cmd) {
		c.ExtraFiles = []*os.File{secret, secret}
		c.Stdout = out
		c.Dir = w.root
	}, launched(reaperPath, "mine", o), "PG_ENV_NODE_OPTIONS=--import x", "GODEBUG=x=1", "LD_AUDIT=", "PG_SPEC_0={}", "MARK=kept")
	if code := l.ends(); code != 0 {
		t.Fatalf("the launcher ended with %d: %q", code, l.said())
	}
	rec := w.own()
	h := track(t, rec.PID)
	until(t, "the reaper's first line", func() bool { return strings.Contains(w.log(), "watching pid") })
	id, err := h.ID()
	if err != nil {
		t.Fatal(err)
	}
	argv, err := h.Argv()
	want := append([]string{reaperPath, "run"}, flags(o)...)
	if err != nil || !slices.Equal(argv, want) || !slices.Equal(rec.Argv, want) {
		t.Errorf("runs %q (%v), recorded %q; want %q", argv, err, rec.Argv, want)
	}
	if rec.Token != "mine" || rec.Version != 7 || rec.Host != w.host.pid() || rec.HostStarted != o.HostStarted ||
		rec.Started != id.Started || rec.Inode != id.Inode || rec.Keeper != 0 || rec.ClaimedAt != 5 || rec.UID != os.Geteuid() {
		t.Errorf("recorded %+v; is %+v", rec, id)
	}
	if sid, err := unix.Getsid(rec.PID); err != nil || sid != rec.PID {
		t.Errorf("its session is %d, %v", sid, err)
	}
	proc := "/proc/" + strconv.Itoa(rec.PID)
	if cwd, err := os.Readlink(proc + "/cwd"); err != nil || cwd != "/" {
		t.Errorf("it stays in %s, %v", cwd, err)
	}
	if to, err := os.Readlink(proc + "/fd/1"); err != nil || to != out.Name() {
		t.Errorf("its stdout is %s, %v", to, err)
	}
	pidfds := 0
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		to, _ := os.Readlink(proc + "/fd/" + fd.Name())
		n, _ := strconv.Atoi(fd.Name())
		if to == "anon_inode:[pidfd]" {
			pidfds++
		} else if n > 2 && !strings.HasPrefix(to, "anon_inode:") {
			t.Errorf("descriptor %d leads to %s", n, to)
		}
	}
	if pidfds != 1 {
		t.Errorf("%d process handles", pidfds)
	}
	env, err := os.ReadFile(proc + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range strings.Split(string(env), "\x00") {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "PG_") && name != "PG_HOST_FD" || strings.HasPrefix(name, "NODE_") || strings.HasPrefix(name, "LD_") || name == "GODEBUG" {
			t.Errorf("it was given %s", e)
		}
	}
	if !strings.Contains(string(env), "\x00MARK=kept") {
		t.Error("the environment is not the launcher's")
	}

	w.host.kill(syscall.SIGKILL)
	if err := h.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	served.ends()
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Between the launcher's look at the host and the reaper's the host may end and
// its pid be given to another process.
func TestLauncherHandsItsHandleOfTheHostOn(t *testing.T) {
	w := newWorld(t)
	o := w.options(0)
	w.claim(o, "mine")
	if code := spawn(t, nil, launched(faultyPath, "mine", o), "PG_FAULT=run-begin:stop").ends(); code != 0 {
		t.Fatalf("the launcher ended with %d", code)
	}
	rec := w.own()
	h := track(t, rec.PID)
	until(t, "the reaper's stop", func() bool {
		state, err := h.State()
		return err == nil && state == proc.Stopped
	})
	if of := number(t, "/proc/"+strconv.Itoa(rec.PID)+"/fdinfo/3", "Pid:"); of != w.host.pid() {
		t.Errorf("descriptor 3 is of process %d", of)
	}
	w.host.kill(syscall.SIGKILL)
	w.host.ends()
	if err := h.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.logged("is gone", "] done.")
}

// The number in the test's process table, for whatever a launcher left behind.
func reapersOf(t *testing.T, o Options) []int {
	t.Helper()
	var found []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), "\x00run\x00") && strings.Contains(string(line), o.SelfLock) {
			found = append(found, pid)
		}
	}
	return found
}

func TestLauncherWhoseClaimIsNoLongerItsOwnLeavesNoReaper(t *testing.T) {
	w := newWorld(t)
	o := w.options(0)
	for name, claim := range map[string]func(){
		"another token": func() { w.claim(o, "another") },
		"no record":     func() { _ = w.dir.Remove("reaper.pid") },
		"no directory":  func() { _ = os.Rename(w.dir.Path(), w.dir.Path()+".moved") },
	} {
		claim()
		before := w.file("reaper.pid")
		l := spawn(t, nil, launched(reaperPath, "mine", o))
		if code := l.ends(); code != 3 {
			t.Errorf("%s: ended with %d", name, code)
		}
		until(t, "the line on stderr", func() bool { return len(l.said()) == 1 })
		until(t, "the end of its reaper", func() bool { return len(reapersOf(t, o)) == 0 })
		if after := w.file("reaper.pid"); after != before {
			t.Errorf("%s: the record was %q and is %q", name, before, after)
		}
		_ = os.Rename(w.dir.Path()+".moved", w.dir.Path())
	}
}

// An upgrade of the package that comes between the launcher and its reaper.
func TestLauncherThatCannotStartAReaper(t *testing.T) {
	w := newWorld(t)
	o := w.options(0)
	w.claim(o, "mine")
	before := w.file("reaper.pid")
	exe := filepath.Join(w.root, "reaper")
	if err := os.Link(faultyPath, exe); err != nil {
		t.Fatal(err)
	}
	l := spawn(t, nil, launched(exe, "mine", o), "PG_FAULT=launch-begin:stop")
	until(t, "the launcher's stop", func() bool {
		state, err := l.handle.State()
		return err == nil && state == proc.Stopped
	})
	if err := os.Remove(exe); err != nil {
		t.Fatal(err)
	}
	l.kill(syscall.SIGCONT)
	if code := l.ends(); code != 1 {
		t.Errorf("ended with %d", code)
	}
	until(t, "the line on stderr", func() bool { return len(l.said()) == 1 && strings.Contains(l.said()[0], "could not be started") })
	if after := w.file("reaper.pid"); after != before {
		t.Errorf("the record was %q and is %q", before, after)
	}
}

func TestLauncherOfADeadHost(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("served", "plain")
	o := w.options(0)
	w.claim(o, "mine")
	w.host.kill(syscall.SIGKILL)
	w.host.ends()
	l := spawn(t, nil, launched(reaperPath, "mine", o))
	l.ends()
	p.ends()
	until(t, "the end of the reaper", func() bool { return len(reapersOf(t, o)) == 0 })
	if w.file("served.pid") != "" {
		t.Error("the lock stayed")
	}
}

func TestLauncherWhereTheHostsPidIsAnothers(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("served", "plain")
	o := w.options(0)
	o.HostStarted = proc.BootID() + ":1"
	w.claim(o, "mine")
	l := spawn(t, nil, launched(reaperPath, "mine", o))
	l.ends()
	p.ends()
	until(t, "the end of the reaper", func() bool { return len(reapersOf(t, o)) == 0 })
	if !w.host.alive() {
		t.Error("the process with the host's pid was signalled")
	}
}

// Without a start time the parent is the proof: this test is the host here.
func TestLauncherProvesAHostWithoutAStartTimeByBeingItsChild(t *testing.T) {
	o := Options{HostPID: os.Getppid()}
	h := provenHost(o)
	if h == nil {
		t.Fatal("the parent was not proven")
	}
	h.Close()
	for name, o := range map[string]Options{
		"no parent":               {HostPID: os.Getpid()},
		"another start":           {HostPID: os.Getppid(), HostStarted: proc.BootID() + ":1"},
		"no parent, other system": {HostPID: os.Getpid(), HostStarted: "Mon Jan 1"},
		"nobody":                  {HostPID: 1 << 30},
	} {
		if h := provenHost(o); h != nil {
			h.Close()
			t.Errorf("%s: proven", name)
		}
	}
}

func TestInheritedHandleOfAnotherProcessIsNotTheHost(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("served", "plain")
	other := role(t, "plain")
	o := w.options(0)
	r := spawn(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{other.handle.File()} }, append([]string{reaperPath, "run"}, flags(o)...), "PG_HOST_FD=3")
	until(t, "the first line", func() bool { return strings.Contains(w.log(), "watching pid") })
	other.kill(syscall.SIGKILL)
	other.ends()
	select {
	case <-r.dead:
		t.Fatal("it watched the process of the handle")
	case <-time.After(100 * time.Millisecond):
	}
	w.host.kill(syscall.SIGKILL)
	r.ends()
	p.ends()
}

func TestInheritedHandleOfAProcessThatGotTheHostsPid(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("served", "plain")
	o := w.options(0)
	o.HostStarted = proc.BootID() + ":1"
	r := spawn(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{w.host.handle.File()} }, append([]string{reaperPath, "run"}, flags(o)...), "PG_HOST_FD=3")
	r.ends()
	p.ends()
	if !w.host.alive() {
		t.Error("the process with the host's pid was signalled")
	}
}

func TestLauncherKilledAtEveryStep(t *testing.T) {
	for _, point := range []string{"launch-spawned", "launch-gate", "launch-committed"} {
		w := newWorld(t)
		p := w.guarded("served", "plain")
		o := w.options(0)
		w.claim(o, "mine")
		l := spawn(t, nil, launched(faultyPath, "mine", o), "PG_FAULT="+point+":kill")
		if code := l.ends(); code != -1 {
			t.Fatalf("%s was passed: %d", point, code)
		}
		// The reaper is there and does its work, on its lock or not.
		until(t, "the first line", func() bool { return strings.Contains(w.log(), "watching pid") })
		w.host.kill(syscall.SIGKILL)
		p.ends()
		until(t, "the end of the reaper", func() bool { return len(reapersOf(t, o)) == 0 })
		if rec := w.own(); (rec != nil) != (point != "launch-committed") {
			t.Errorf("%s: its own lock is %+v", point, rec)
		}
	}
}

func TestIdleReaperCostsLittle(t *testing.T) {
	w := newWorld(t)
	o := w.options(0)
	w.claim(o, "mine")
	spawn(t, nil, launched(reaperPath, "mine", o)).ends()
	rec := w.own()
	track(t, rec.PID)
	pid := strconv.Itoa(rec.PID)
	switches := func() (n int) {
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			n += number(t, task, "voluntary_ctxt_switches:") + number(t, task, "nonvoluntary_ctxt_switches:")
		}
		return n
	}
	// The Go runtime's own threads settle first.
	before := switches()
	until(t, "three quiet seconds", func() bool {
		time.Sleep(3 * time.Second)
		now := switches()
		quiet := now == before
		before = now
		return quiet
	})
	// The executable was written a moment ago: until that reaches the disk its
	// pages count as dirty.
	unix.Sync()
	dirty := number(t, "/proc/"+pid+"/smaps_rollup", "Private_Dirty:")
	t.Logf("Private_Dirty %d kB, Pss %d kB", dirty, number(t, "/proc/"+pid+"/smaps_rollup", "Pss:"))
	if dirty > 1600 {
		t.Errorf("Private_Dirty is %d kB", dirty)
	}
	w.host.kill(syscall.SIGKILL)
	until(t, "the end of the reaper", func() bool { return len(reapersOf(t, o)) == 0 })
}

func number(t *testing.T, path, field string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", path, field)
	return 0
}
