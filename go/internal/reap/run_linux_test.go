package reap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

func TestHostKilledNothingIsLeft(t *testing.T) {
	w := newWorld(t)
	served := w.guarded("served", "plain")
	// A keeper in back-off: the process of its record is over.
	keeper := role(t, "plain", "keep", "--lock", w.dir.Join("waiting.pid"), "--token", "t")
	over := role(t, "plain")
	rec := w.recordOf(over)
	rec.Keeper, rec.KeeperArgv = keeper.pid(), keeper.Args
	over.kill(syscall.SIGKILL)
	<-over.dead
	w.write("waiting", rec)
	// A claim that the host did not get to finish.
	claim := w.recordOf(over)
	claim.PID, claim.Started, claim.Inode = 0, "", 0
	w.write("claimed", claim)

	r := w.reaper(reaperPath, w.options(0))
	w.host.kill(syscall.SIGKILL)
	if code := r.ends(); code != 0 {
		t.Errorf("the reaper ended with %d", code)
	}
	served.ends()
	keeper.ends()
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	w.logged(
		"is gone", fmt.Sprintf("served: sent SIGTERM to pid %d (%s)", served.pid(), served.Args[0]),
		fmt.Sprintf("waiting: sent SIGTERM to its keeper pid %d", keeper.pid()), "claimed: nothing had been started", "] done.",
	)
	if served.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the process ended by %v", served.ProcessState)
	}
}

func TestReplacementInsideTheGraceKeepsEverything(t *testing.T) {
	w := newWorld(t)
	served := w.guarded("served", "plain")
	r := w.reaper(reaperPath, w.options(time.Minute))
	w.host.kill(syscall.SIGKILL)
	until(t, "the grace", func() bool { return strings.Contains(w.log(), "is gone; waiting 60000 ms") })
	before := w.file("served.pid")
	next := role(t, "plain", "host")
	// As Harper's main writes it: the number alone.
	if err := os.WriteFile(w.hostFile(), []byte(strconv.Itoa(next.pid())), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := r.ends(); code != 0 {
		t.Errorf("the reaper ended with %d", code)
	}
	if !served.alive() || w.file("served.pid") != before || w.file("reaper.pid") != "" {
		t.Errorf("alive %v, files %v", served.alive(), w.files(t))
	}
	w.logged(fmt.Sprintf("host pid %d took over inside the grace window", next.pid()))
}

// Every way in which a replacement file is written must end the grace at once
// and not at its end.
func TestReplacementIsNoticedHoweverItIsWritten(t *testing.T) {
	for name, write := range map[string]func(path, text string) error{
		"written in place": func(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) },
		"renamed into place": func(path, text string) error {
			if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
				return err
			}
			return os.Rename(path+".tmp", path)
		},
		"linked into place": func(path, text string) error {
			if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
				return err
			}
			_ = os.Remove(path)
			return os.Link(path+".tmp", path)
		},
		"with blanks and more lines": func(path, text string) error {
			return os.WriteFile(path, []byte("\n "+text+"\nmore\n"), 0o644)
		},
	} {
		for _, file := range []string{"hdb.pid", "not called so", "made later/hdb.pid", "made again/hdb.pid"} {
			t.Run(name+", "+file, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				served := w.guarded("served", "plain")
				o := w.options(30 * time.Second)
				o.ReplacementPidFile = filepath.Join(w.root, file)
				next := role(t, "plain", "host")
				again := filepath.Join(w.root, "made again")
				if err := os.Mkdir(again, 0o755); err != nil {
					t.Fatal(err)
				}
				go func() {
					for !strings.Contains(w.log(), "is gone; waiting") {
						time.Sleep(time.Millisecond)
					}
					time.Sleep(20 * time.Millisecond) // until it is watched
					_ = os.Remove(again)
					_ = os.Mkdir(filepath.Dir(o.ReplacementPidFile), 0o755)
					if err := write(o.ReplacementPidFile, strconv.Itoa(next.pid())); err != nil {
						t.Error(err)
					}
				}()
				if took := w.reap(o, quick); took > 10*time.Second {
					t.Errorf("noticed after %s", took)
				}
				if !served.alive() {
					t.Error("the process was stopped")
				}
			})
		}
	}
}

func TestWhatIsNoReplacement(t *testing.T) {
	w := newWorld(t)
	zombie := spawnZombie(t)
	threads := role(t, "thread")
	tid := threads.said()[0]
	stranger := role(t, "plain")
	ended := role(t, "plain")
	ended.kill(syscall.SIGKILL)
	<-ended.dead
	hour := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name     string
		text     string
		modified time.Time
		want     proc.Answer
	}{
		{"a host", strconv.Itoa(stranger.pid()), time.Time{}, proc.Yes},
		{"a recycled pid: the file is older than its process", strconv.Itoa(stranger.pid()), hour, proc.No},
		{"a zombie", strconv.Itoa(zombie), time.Time{}, proc.No},
		{"a thread id", tid, time.Time{}, proc.No},
		{"the watched host", strconv.Itoa(w.host.pid()), time.Time{}, proc.No},
		{"nobody", strconv.Itoa(ended.pid()), time.Time{}, proc.No},
		{"a group", "-" + strconv.Itoa(stranger.pid()), time.Time{}, proc.No},
		{"zero", "0", time.Time{}, proc.No},
		{"no number", "pid", time.Time{}, proc.No},
		{"empty", "", time.Time{}, proc.No},
	} {
		if err := os.WriteFile(w.hostFile(), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if !c.modified.IsZero() {
			if err := os.Chtimes(w.hostFile(), time.Time{}, c.modified); err != nil {
				t.Fatal(err)
			}
		}
		f := hostFile{path: w.hostFile(), hostPID: w.host.pid(), hostStarted: w.host.id().Started, clock: &clock{}}
		if pid, got := f.replacement(); got != c.want {
			t.Errorf("%s (%q, pid %d): %s; want %s", c.name, c.text, pid, got, c.want)
		}
	}
	if err := os.Remove(w.hostFile()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(w.hostFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	// With somebody who has it open for writing and writes nothing.
	writer, err := os.OpenFile(w.hostFile(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	f := hostFile{path: w.hostFile(), clock: &clock{}}
	if pid, got := f.replacement(); got != proc.No {
		t.Errorf("a FIFO: %d, %s", pid, got)
	}
	f.path = w.root
	if pid, got := f.replacement(); got != proc.No {
		t.Errorf("a directory: %d, %s", pid, got)
	}
	f.path = w.hostFile()
	// The number of the host that went, for another process: that is a host
	// which got the pid again, and not the one that was watched.
	if err := os.Remove(w.hostFile()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.hostFile(), []byte(strconv.Itoa(stranger.pid())), 0o644); err != nil {
		t.Fatal(err)
	}
	f = hostFile{path: w.hostFile(), hostPID: stranger.pid(), hostStarted: proc.BootID() + ":1", clock: &clock{}}
	if _, got := f.replacement(); got != proc.Yes {
		t.Errorf("the host's pid, given to another process that wrote the file: %s", got)
	}
	f.hostStarted = ""
	if _, got := f.replacement(); got != proc.No {
		t.Errorf("the host's pid, and nothing known of its start: %s", got)
	}
}

// spawnZombie is a child that ended and is collected at the end of the test.
func spawnZombie(t *testing.T) int {
	t.Helper()
	c := exec.Command("true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Wait() })
	h, err := proc.Open(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

func TestStaleReplacementFileKeepsNothingRunning(t *testing.T) {
	w := newWorld(t)
	served := w.guarded("served", "plain")
	stranger := role(t, "plain")
	if err := os.WriteFile(w.hostFile(), []byte(strconv.Itoa(stranger.pid())), 0o644); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(w.hostFile(), old, old); err != nil {
		t.Fatal(err)
	}
	w.reap(w.options(200*time.Millisecond), quick)
	served.ends()
	if !stranger.alive() {
		t.Error("the stranger was signalled")
	}
}

// nomad#23969, go-plugin#320: the recorded pid belongs to somebody else by now.
func TestRecycledPidGetsNoSignalAtAll(t *testing.T) {
	w := newWorld(t)
	later := role(t, "stubborn")
	rec := w.recordOf(later)
	rec.Started, rec.Inode = proc.BootID()+":1", rec.Inode-1
	w.write("started differs", rec)
	reboot := w.recordOf(later)
	reboot.Started, reboot.Boot, reboot.Inode = "00000000-0000-0000-0000-000000000000:7", "", 0
	w.write("rebooted", reboot)
	program := w.recordOf(later)
	program.Started, program.Inode, program.Argv = "", 0, []string{"/usr/bin/other"}
	w.write("program differs", program)
	w.reap(w.options(0), quick)
	if said := later.said(); len(said) != 1 || !later.alive() {
		t.Errorf("alive %v, said %q", later.alive(), said)
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	w.logged("started differs: pid "+strconv.Itoa(later.pid())+" is not that process (differs), left alone", "rebooted: pid "+strconv.Itoa(later.pid())+" is already gone")
}

func TestKeeperOfARecycledPidIsStopped(t *testing.T) {
	w := newWorld(t)
	stranger := role(t, "stubborn")
	keeper := role(t, "plain", "keep", "--lock", w.dir.Join("x.pid"), "--token", "t")
	another := role(t, "stubborn", "keep", "--lock", w.dir.Join("x.pid"), "--token", "another")
	rec := w.recordOf(stranger)
	rec.Started, rec.Inode = proc.BootID()+":1", 0
	rec.Keeper, rec.KeeperArgv = keeper.pid(), keeper.Args
	w.write("x", rec)
	rec.Keeper = another.pid()
	w.write("y", rec)
	w.reap(w.options(0), quick)
	keeper.ends()
	for _, p := range []*process{stranger, another} {
		if said := p.said(); len(said) != 1 {
			t.Errorf("%q was signalled: %q", p.Args, said)
		}
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestStubbornProcessGetsOneSIGTERMThenSIGKILL(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("stubborn", "stubborn")
	took := w.reap(w.options(0), quick)
	p.ends()
	if said := p.said(); len(said) != 2 || said[1] != "SIGTERM" {
		t.Errorf("said %q", said)
	}
	if took < quick.Term {
		t.Errorf("killed after %s", took)
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	w.logged(fmt.Sprintf("stubborn: pid %d ignored SIGTERM for 500 ms, sent SIGKILL", p.pid()))
}

// The original stopped them one after the other: 20 took 100 s.
func TestTwentyStubbornProcessesTakeAsLongAsOne(t *testing.T) {
	w := newWorld(t)
	var all []*process
	for i := range 20 {
		all = append(all, w.guarded(fmt.Sprintf("p%d", i), "stubborn"))
	}
	r := w.reaper(reaperPath, w.options(0))
	start := time.Now()
	w.host.kill(syscall.SIGKILL)
	r.ends()
	took := time.Since(start)
	for _, p := range all {
		p.ends()
	}
	if took < 5*time.Second || took > 15*time.Second {
		t.Errorf("took %s", took)
	}
	t.Logf("20 stubborn processes: %s", took.Round(time.Millisecond))
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestStoppedProcessIsKilled(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("stopped", "plain")
	p.kill(syscall.SIGSTOP)
	w.reap(w.options(0), quick)
	p.ends()
}

func TestSIGTERMInTheMiddleKillsWhatWasToldToEndAndWritesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		w := newWorld(t)
		a, b := w.guarded("a", "stubborn"), w.guarded("b", "stubborn")
		r := w.reaper(reaperPath, w.options(0))
		w.host.kill(syscall.SIGKILL)
		until(t, "both SIGTERMs", func() bool { return strings.Count(w.log(), "sent SIGTERM") == 2 })
		files, lines := w.files(t), strings.Count(w.log(), "\n")
		start := time.Now()
		r.kill(sig)
		if code := r.ends(); code != 0 {
			t.Errorf("%v: ended with %d", sig, code)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%v: ended after %s", sig, took)
		}
		a.ends()
		b.ends()
		if now := w.files(t); fmt.Sprint(now) != fmt.Sprint(files) {
			t.Errorf("%v: pidDir was\n%v\nand is\n%v", sig, files, now)
		}
		if n := strings.Count(w.log(), "\n"); n != lines+1 {
			t.Errorf("%v: %d lines, not one:\n%s", sig, n-lines, w.log())
		}
		name := map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT"}[sig]
		w.logged("received "+name+", exiting; sending SIGKILL to ", strconv.Itoa(a.pid()), strconv.Itoa(b.pid()))
	}
}

func TestSIGTERMBeforeTheHostIsGoneTouchesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("a", "stubborn")
	r := w.reaper(reaperPath, w.options(time.Minute))
	files := w.files(t)
	r.kill(syscall.SIGTERM)
	if code := r.ends(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	w.logged("received SIGTERM, exiting")
	r = w.reaper(reaperPath, w.options(time.Minute))
	files["reaper.pid"] = w.file("reaper.pid")
	w.host.kill(syscall.SIGKILL)
	until(t, "the grace", func() bool { return strings.Contains(w.log(), "is gone; waiting") })
	r.kill(syscall.SIGTERM)
	if code := r.ends(); code != 0 {
		t.Errorf("in the grace: ended with %d", code)
	}
	if now := w.files(t); fmt.Sprint(now) != fmt.Sprint(files) {
		t.Errorf("pidDir was\n%v\nand is\n%v", files, now)
	}
	if said := p.said(); len(said) != 1 {
		t.Errorf("the process was signalled: %q", said)
	}
}

// Wherever a reaper is killed, the next one finishes: no process, no record.
func TestReaperKilledAtEveryStepTheNextOneFinishes(t *testing.T) {
	for _, point := range []string{"watching", "host-gone", "grace-over", "decided", "before-rename", "renamed", "signalled", "killed", "over", "own-lock"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.guarded("served", "stubborn")
			keeper := role(t, "plain", "keep", "--lock", w.dir.Join("waiting.pid"), "--token", "t")
			over := role(t, "plain")
			rec := w.recordOf(over)
			rec.Keeper, rec.KeeperArgv = keeper.pid(), keeper.Args
			over.kill(syscall.SIGKILL)
			<-over.dead
			w.write("waiting", rec)

			r := w.reaper(faultyPath, w.options(0), "PG_FAULT="+point+":kill")
			w.host.kill(syscall.SIGKILL)
			if code := r.ends(); code != -1 {
				t.Fatalf("the reaper passed %s and ended with %d:\n%s", point, code, w.log())
			}
			if point == "renamed" {
				if len(w.left()) == 0 || !p.alive() {
					t.Errorf("nothing to be finished: %q, alive %v", w.left(), p.alive())
				}
			}
			next := New(w.options(0), quick)
			next.Run()
			p.ends()
			if point != "signalled" || keeper.alive() {
				keeper.ends()
			}
			for _, file := range w.left() {
				// The lock of the killed one stays for the next claim.
				if file != "reaper.pid" {
					t.Errorf("left: %s", file)
				}
			}
		})
	}
}

func TestClaimantSeesWhetherAReaperIsAtWork(t *testing.T) {
	w := newWorld(t)
	w.guarded("served", "stubborn")
	r := w.reaper(reaperPath, w.options(0))
	w.host.kill(syscall.SIGKILL)
	until(t, "the SIGTERM", func() bool { return strings.Contains(w.log(), "sent SIGTERM") })
	if held := w.dir.ReapingHeld("served"); held != proc.Yes {
		t.Errorf("while it works: %s", held)
	}
	// Another reaper leaves it to the first, whose patience is not over.
	second := New(w.options(0), quick)
	second.Run()
	w.logged("served: left alone: another reaper is stopping pid")
	r.kill(syscall.SIGKILL)
	r.ends()
	if held := w.dir.ReapingHeld("served"); held != proc.No {
		t.Errorf("after its death: %s", held)
	}
}

func TestHostDeadAtStart(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("a", "plain")
	o := w.options(0)
	w.host.kill(syscall.SIGKILL)
	w.host.ends()
	New(o, quick).Run()
	p.ends()
}

func TestHostPidOfAnotherProcess(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("a", "plain")
	o := w.options(0)
	o.HostStarted = proc.BootID() + ":1"
	New(o, quick).Run()
	p.ends()
	if !w.host.alive() {
		t.Error("the process that has the host's pid was signalled")
	}
}

func TestHostWithoutAKnownStartIsWatchedByPid(t *testing.T) {
	w := newWorld(t)
	p := w.guarded("a", "plain")
	o := w.options(0)
	o.HostStarted = ""
	done := make(chan struct{})
	go func() { New(o, quick).Run(); close(done) }()
	until(t, "the first line", func() bool { return strings.Contains(w.log(), "watching pid") })
	select {
	case <-done:
		t.Fatal("it did not wait for the host")
	case <-time.After(100 * time.Millisecond):
	}
	w.host.kill(syscall.SIGKILL)
	<-done
	p.ends()
}

func TestHeldGateComesLast(t *testing.T) {
	w := newWorld(t)
	p, q := w.guarded("held", "plain"), w.guarded("free", "plain")
	holder := role(t, "gate", w.dir.Path(), "held")
	limits := quick
	limits.LastGate = 30 * time.Second
	go func() {
		q.ends()
		holder.in.Close()
	}()
	w.reap(w.options(0), limits)
	p.ends()
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestGateThatIsNeverLeftKeepsOneNameAndNoOther(t *testing.T) {
	w := newWorld(t)
	p, q := w.guarded("held", "plain"), w.guarded("free", "plain")
	holder := role(t, "gate", w.dir.Path(), "held")
	w.reap(w.options(0), quick)
	q.ends()
	if !p.alive() || w.file("held.pid") == "" {
		t.Errorf("alive %v, files %v", p.alive(), w.files(t))
	}
	w.logged("held: left alone: gate", fmt.Sprintf("held by pid %d", holder.pid()))
}

func TestWhatIsNotAGuardsIsNotTouched(t *testing.T) {
	w := newWorld(t)
	p := role(t, "stubborn")
	text := fmt.Sprintf("%d\n", p.pid())
	for _, name := range []string{"bare.pid", "torn.pid", "ns.pid", "watchman.pid", "claimed.pid"} {
		if err := os.WriteFile(w.dir.Join(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w.dir.Join("torn.pid"), []byte("\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	ns := w.recordOf(p)
	ns.NS++
	w.write("ns", ns)
	// Another reaper of this host, under another name: the two would stop each
	// other and leave what neither had reached.
	watchman := role(t, "stubborn", "run", "--host-pid", strconv.Itoa(w.host.pid()), "--self-lock", w.dir.Join("watchman.pid"))
	w.write("watchman", w.recordOf(watchman))
	// A claim that another host is at work on.
	other := role(t, "plain", "host")
	claim := w.recordOf(p)
	claim.PID, claim.Started, claim.Inode, claim.Host, claim.HostStarted = 0, "", 0, other.pid(), other.id().Started
	w.write("claimed", claim)
	link := w.dir.Join("link.pid")
	if err := os.Symlink(w.dir.Join("ns.pid"), link); err != nil {
		t.Fatal(err)
	}
	before := w.files(t)
	w.reap(w.options(0), quick)
	after := w.files(t)
	for name, text := range before {
		if !strings.HasSuffix(name, ".claiming") && after[name] != text {
			t.Errorf("%s was %q and is %q", name, text, after[name])
		}
	}
	for _, x := range []*process{p, watchman} {
		if said := x.said(); len(said) != 1 {
			t.Errorf("%q was signalled: %q", x.Args, said)
		}
	}
	w.logged("ns: left alone", "watchman: left alone", "claimed: left alone", "link: left alone")
}

func TestLockOfADeadReaperIsRemoved(t *testing.T) {
	w := newWorld(t)
	watchman := role(t, "plain", "run", "--host-pid", "1", "--self-lock", w.dir.Join("old.pid"))
	w.write("old", w.recordOf(watchman))
	watchman.kill(syscall.SIGKILL)
	watchman.ends()
	w.reap(w.options(0), quick)
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAnotherUsersRecordSteersNoSignal(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	p := w.guarded("planted", "stubborn")
	if err := os.Chown(w.dir.Join("planted.pid"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	w.reap(w.options(0), quick)
	if said := p.said(); len(said) != 1 || w.file("planted.pid") == "" {
		t.Errorf("said %q", said)
	}
	w.logged("planted: left alone: ", "belongs to uid 65534")
}

const nobody = 65534

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make another user's files and processes")
	}
}

// asNobody gives a world to another user, who can then do less than root.
func (w *world) asNobody() func(*exec.Cmd) {
	w.t.Helper()
	exe := filepath.Join(w.root, "reaper")
	text, err := os.ReadFile(reaperPath)
	if err == nil {
		err = os.WriteFile(exe, text, 0o755)
	}
	for dir := w.root; err == nil && dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o755)
	}
	for _, path := range []string{w.root, w.dir.Path(), exe} {
		if err == nil {
			err = os.Chown(path, nobody, nobody)
		}
	}
	names, _ := w.dir.Names("")
	for _, n := range names {
		if err == nil {
			err = os.Chown(w.dir.Join(n), nobody, nobody)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return func(c *exec.Cmd) {
		c.Path = exe
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

func TestRefusedSignalPutsTheRecordBack(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	p := w.guarded("roots", "stubborn")
	before := w.file("roots.pid")
	r := spawn(t, w.asNobody(), append([]string{reaperPath, "run"}, flags(w.options(0))...))
	w.host.kill(syscall.SIGKILL)
	r.ends()
	if said := p.said(); len(said) != 1 || w.file("roots.pid") != before || w.file("roots.pid.reaping") != "" {
		t.Errorf("said %q, files %v", said, w.files(t))
	}
	w.logged("roots: could not SIGTERM pid", "operation not permitted")
}

// The original took a directory it could not read for an empty one.
func TestDirectoryUnreadableForAMomentIsWaitedFor(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	as := w.asNobody()
	p := role(t, "plain")
	rec := w.recordOf(p)
	served := w.dir.Join("served.pid")
	if err := errors.Join(os.WriteFile(served, record.Encode(rec), 0o600), os.Chown(served, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.dir.Path(), 0); err != nil {
		t.Fatal(err)
	}
	p.kill(syscall.SIGKILL) // gone: nobody may not signal root's
	<-p.dead
	r := spawn(t, as, append([]string{reaperPath, "run"}, flags(w.options(0))...))
	w.host.kill(syscall.SIGKILL)
	until(t, "the line about it", func() bool { return strings.Contains(w.log(), "cannot read "+w.dir.Path()+" yet, trying again") })
	if !r.alive() {
		t.Fatal("the reaper ended")
	}
	if err := os.Chmod(w.dir.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	r.ends()
	if w.file("served.pid") != "" {
		t.Errorf("files %v", w.files(t))
	}
}

func TestDirectoryThatIsGoneIsNothingToDo(t *testing.T) {
	w := newWorld(t)
	o := w.options(0)
	if err := os.RemoveAll(w.dir.Path()); err != nil {
		t.Fatal(err)
	}
	w.reap(o, quick)
	if strings.Contains(w.log(), "could not") {
		t.Errorf("the log: %s", w.log())
	}
	w.logged("] done.")
}

func TestOwnLockIsRemovedOnlyWhileItNamesThisReaper(t *testing.T) {
	w := newWorld(t)
	r := w.reaper(reaperPath, w.options(0))
	newer := role(t, "plain")
	w.write("reaper", w.recordOf(newer))
	w.host.kill(syscall.SIGKILL)
	r.ends()
	if w.file("reaper.pid") == "" || !newer.alive() {
		t.Errorf("the newer reaper's lock is gone, or it: %v", newer.alive())
	}
	w.logged(fmt.Sprintf("now names pid %d", newer.pid()))

	w = newWorld(t)
	r = w.reaper(reaperPath, w.options(0))
	w.host.kill(syscall.SIGKILL)
	r.ends()
	if w.file("reaper.pid") != "" {
		t.Error("its own lock stayed")
	}
}

func TestLogIsWrittenOnlyIntoAFileOfOurs(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		make func(path string) error
	}{
		{"link", func(p string) error { return os.Symlink(filepath.Join(dir, "victim"), p) }},
		{"fifo", func(p string) error { return syscall.Mkfifo(p, 0o600) }},
		{"dir", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"missing/log", func(string) error { return nil }},
	} {
		path := filepath.Join(dir, c.name)
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		Log{path}.say("x") // neither blocks nor panics
	}
	if _, err := os.Stat(filepath.Join(dir, "victim")); !os.IsNotExist(err) {
		t.Errorf("a link was followed: %v", err)
	}
	path := filepath.Join(dir, "log")
	Log{path}.say("one\nline")
	Log{path}.say("two")
	text, _ := os.ReadFile(path)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], fmt.Sprintf("Z [reaper %d] one line", os.Getpid())) {
		t.Errorf("%q", text)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		Log{path}.say("three")
		if now, _ := os.ReadFile(path); string(now) != string(text) {
			t.Error("written into another user's file")
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"stop"}, {"run"}, {"run", "--host-pid", "0", "--pid-dir", "/p"}, {"launch"}, {"launch", "--host-pid", "1", "--pid-dir", "/p"}} {
		p := spawn(t, nil, append([]string{reaperPath}, args...))
		if code := p.ends(); code != 2 {
			t.Errorf("%q: ended with %d", args, code)
		}
		until(t, "a line on stderr", func() bool { return len(p.said()) == 1 })
	}
}

// What a killed keeper and a displaced reaper leave behind names nobody any
// more, and nobody else may ever come to that pidDir again.
func TestLifeFilesOfWhatIsOverAreRemoved(t *testing.T) {
	w := newWorld(t)
	w.guarded("served", "plain")
	w.guarded("gone", "plain").kill(syscall.SIGKILL)
	life := func(name, token string, p *process) *os.File {
		f, err := w.dir.CreateLife(name, token)
		if err != nil {
			t.Fatal(err)
		}
		id := p.id()
		if err := record.WriteLife(f, record.Life{PID: p.pid(), Started: id.Started, Inode: id.Inode, NS: proc.NS(), Argv: p.Args}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	over := role(t, "plain")
	living := role(t, "plain")
	life("served", "over", over).Close()
	life("served", "living", living).Close()
	held := life("served", "held", over)
	defer held.Close()
	life("gone", "over", over).Close()
	torn, err := w.dir.CreateLife("gone", "torn")
	if err != nil {
		t.Fatal(err)
	}
	torn.Close()
	over.kill(syscall.SIGKILL)
	<-over.dead

	r := w.reaper(reaperPath, w.options(0))
	life("reaper", "older", r).Close()
	newer := role(t, "plain")
	w.write("reaper", w.recordOf(newer))
	w.host.kill(syscall.SIGKILL)
	r.ends()
	var left []string
	for name := range w.files(t) {
		if strings.Contains(name, ".keeper.") {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	if want := []string{"served.pid.keeper.held", "served.pid.keeper.living"}; !slices.Equal(left, want) {
		t.Errorf("left %q, not %q", left, want)
	}
	if !living.alive() {
		t.Error("a generation that lives was signalled")
	}
}

func TestLifeFileOfTheGenerationOnTheRecordStays(t *testing.T) {
	w := newWorld(t)
	p := role(t, "plain")
	rec := w.recordOf(p)
	w.write("a", rec)
	for _, token := range []string{rec.Token, "another"} {
		f, err := w.dir.CreateLife("a", token)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	sweep(w.dir, "a")
	if !w.dir.Exists("a.pid.keeper."+rec.Token) || w.dir.Exists("a.pid.keeper.another") {
		t.Errorf("%v", w.files(t))
	}
}
