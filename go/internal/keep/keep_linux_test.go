package keep

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestStartThenStop(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	r := c.start()
	want := []string{built.keeper, "keep", "--lock", c.spec.Lock, "--token", c.spec.Token}
	if r.Keeper <= 0 || r.Started == "" || r.Launcher != 0 || !slices.Equal(r.KeeperArgv, want) {
		t.Fatalf("record %+v", r)
	}
	h, err := proc.Open(r.Keeper)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if argv, err := h.Argv(); err != nil || !slices.Equal(argv, want) {
		t.Fatalf("the keeper's command line is %q, %v", argv, err)
	}
	if v, p := proc.Identify(r.PID, proc.Want{Started: r.Started, Inode: r.Inode}); v != proc.Match {
		t.Fatalf("the recorded identity %s", v)
	} else {
		p.Close()
	}
	life, err := record.OpenLife(c.dir, c.spec.Name, c.spec.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	if l, err := record.ReadLife(life); err != nil || l.PID != r.PID || l.Keeper != r.Keeper || l.Version != 7 || l.Words != nil {
		t.Fatalf("life file %s, %v", asJSON(l), err)
	}
	if held := c.dir.LifeHeld(c.spec.Name, c.spec.Token); held != proc.Yes {
		t.Fatalf("life lock held: %s", held)
	}
	signalPID(t, r.Keeper, unix.SIGTERM)
	x := c.ended(r.Keeper)
	if x.Outcome != record.Released || x.Code != nil || x.Signal == nil || *x.Signal != "SIGTERM" || x.PID != r.PID || x.Keeper != r.Keeper || !x.Released || x.Restarts != 0 {
		t.Fatalf("exit %s", asJSON(x))
	}
	// Removed, and yet it tells whoever had it open.
	if l, err := record.ReadLife(life); err != nil || l.Words == nil || l.Words.Outcome != record.Released || *l.Words.Signal != "SIGTERM" || l.Words.PID != r.PID {
		t.Fatalf("last words %s, %v", asJSON(l), err)
	}
}

// Everything that a process inherits and Go's runtime touches on the way: a
// host under nohup, with limits of its own, must not find its children changed.
func TestTheProcessIsWhatTheHostsOwnChildWouldBe(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Argv = []string{"a name", "300"}
	c.spec.Cwd = t.TempDir()
	c.env = append(c.env, "PG_ENV_PATH=/own/bin", "PG_ENV_GOGC=17", "PG_ENV_NODE_OPTIONS=--x", "HOME=/h", "EMPTY=")
	c.before = "trap '' HUP INT USR1 PIPE CHLD; ulimit -S -n 777; ulimit -S -c 5; umask 027; /usr/bin/renice -n 3 $$ >/dev/null"
	c.through = []string{"/usr/bin/env", "--block-signal=USR2,WINCH,RTMIN", "--ignore-signal=RTMIN"}
	r := c.start()
	for key, want := range map[string]string{
		"SigIgn": "0000000000000000", "SigBlk": "0000000000000000", "SigCgt": "0000000000000000",
		"Umask": "0027", "Threads": "1", "PPid": fmt.Sprint(r.Keeper),
	} {
		if got := status(t, r.PID, key); got != want {
			t.Errorf("%s is %s, not %s", key, got, want)
		}
	}
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.PID))
	for _, want := range []string{"Max open files 777 ", "Max core file size 5"} {
		if want == "Max core file size 5" {
			continue // counted in blocks whose size differs between shells
		}
		found := false
		for _, line := range strings.Split(string(limits), "\n") {
			found = found || strings.HasPrefix(strings.Join(strings.Fields(line), " ")+" ", want)
		}
		if !found {
			t.Errorf("no %q in the limits:\n%s", want, limits)
		}
	}
	if nice, err := unix.Getpriority(unix.PRIO_PROCESS, r.PID); err != nil || nice != 20-3 {
		t.Errorf("nice is %d, %v", 20-nice, err)
	}
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", r.PID))
	got := strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00")
	want := []string{"CLAIM=" + c.spec.Token, "PATH=/own/bin", "GOGC=17", "NODE_OPTIONS=--x", "HOME=/h", "EMPTY="}
	got = slices.DeleteFunc(got, func(e string) bool {
		return strings.HasPrefix(e, "PWD=") || strings.HasPrefix(e, "_=") || strings.HasPrefix(e, "OLDPWD=")
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, not %q", got, want)
	}
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.PID))
	if string(cmdline) != "a name\x00300\x00" {
		t.Errorf("command line %q", cmdline)
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", r.PID)); cwd != c.spec.Cwd {
		t.Errorf("cwd %s", cwd)
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", r.Keeper)); cwd != "/" {
		t.Errorf("the keeper keeps %s busy", cwd)
	}
	c.until(func() bool { return len(descriptors(t, r.PID)) == 3 }, "three descriptors")
	if pgid, _ := unix.Getpgid(r.PID); pgid != r.PID {
		t.Errorf("group %d", pgid)
	}
	if sid, _ := unix.Getsid(r.PID); sid != r.Keeper {
		t.Errorf("session %d, the keeper is %d", sid, r.Keeper)
	}
	if sid, _ := unix.Getsid(r.Keeper); sid != r.Keeper {
		t.Errorf("the keeper is in session %d", sid)
	}
	// The keeper itself must hear what the host ignored.
	signalPID(t, r.Keeper, unix.SIGHUP)
	if x := c.ended(r.Keeper); x.Outcome != record.Released || *x.Signal != "SIGHUP" {
		t.Fatalf("exit %s", asJSON(x))
	}
}

func TestDetachedHasItsOwnSession(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Detached = true
	r := c.start()
	if sid, _ := unix.Getsid(r.PID); sid != r.PID {
		t.Errorf("session %d of %d", sid, r.PID)
	}
}

func TestDeclaredDescriptorsAndNoOthers(t *testing.T) {
	var files []*os.File
	for i := range 7 {
		f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint("slot", i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Slots = 6
	c.stdio = files // slot 6 is one the host leaked
	c.before = "exec 4<&-"
	r := c.start()
	for round := range 2 {
		want := map[int]string{}
		for fd, f := range files[:6] {
			if fd != 4 {
				want[fd] = f.Name()
			}
		}
		// A program that was just executed still has its libraries open.
		c.until(func() bool { return reflect.DeepEqual(descriptors(t, r.PID), want) }, fmt.Sprintf("round %d: %v", round, want))
		for fd, name := range descriptors(t, r.Keeper) {
			if name == files[6].Name() {
				t.Errorf("the keeper holds what the host leaked, as %d", fd)
			}
		}
		signalPID(t, r.PID, unix.SIGKILL)
		r = c.running(r.PID)
	}
}

func TestAnotherUserAndGroup(t *testing.T) {
	needRoot(t)
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.UID, c.spec.GID = 65534, 65533
	// Only the host's user may enter it, and the process still starts there.
	c.spec.Cwd = t.TempDir()
	if err := os.Chmod(c.spec.Cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	c.cred = &syscall.Credential{Groups: []uint32{12, 34}}
	r := c.start()
	for key, want := range map[string]string{
		"Uid": "65534 65534 65534 65534", "Gid": "65533 65533 65533 65533", "Groups": "",
	} {
		if got := status(t, r.PID, key); got != want {
			t.Errorf("%s is %q, not %q", key, got, want)
		}
	}
	if got := status(t, r.Keeper, "Uid"); got != "0 0 0 0" {
		t.Errorf("the keeper is %s", got)
	}
}

func TestScriptWithoutInterpreterLine(t *testing.T) {
	script := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(script, []byte("echo \"$0 $1\" >told; exec sleep 300\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := newClaim(t, script, "one")
	c.spec.Cwd = t.TempDir()
	c.start()
	told := filepath.Join(c.spec.Cwd, "told")
	c.until(func() bool { return slices.Equal(lines(told), []string{script, "one"}) }, "the script's line")
}

func TestFirstStartThatFails(t *testing.T) {
	noexec := filepath.Join(t.TempDir(), "noexec")
	if err := os.WriteFile(noexec, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, says string
		change     func(c *claim)
	}{
		{"no such file", "does not exist (ENOENT)", func(c *claim) { c.spec.File = "/nonexistent/x" }},
		{"not executable", "EACCES", func(c *claim) { c.spec.File = noexec }},
		{"no working directory", "working directory /nonexistent: no such file", func(c *claim) { c.spec.Cwd = "/nonexistent" }},
		{"not allowed to be that user", "uid 1: operation not permitted", func(c *claim) {
			c.spec.UID = 1
			if os.Geteuid() == 0 {
				c.cred = &syscallCredential
				if err := os.Chown(c.dir.Path(), 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClaim(t, "/bin/sleep", "300")
			test.change(c)
			c.write()
			if c.cred != nil {
				for p := built.dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
					_ = os.Chmod(p, 0o755)
				}
				for p := c.dir.Path(); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
					_ = os.Chmod(p, 0o755)
				}
				for _, n := range c.files() {
					if err := os.Chown(c.dir.Join(n), 65534, 65534); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := c.command().Run(); err != nil {
				t.Fatalf("launcher: %v", err)
			}
			c.until(func() bool { return c.exit() != nil }, "an exit record")
			x := c.exit()
			c.ended(x.Keeper)
			if x.Outcome != record.Failed || x.PID != 0 || !x.Released || x.Code != nil || x.Signal != nil || !strings.Contains(x.Error, test.says) {
				t.Fatalf("exit %s", asJSON(x))
			}
			if c.record() != nil {
				t.Fatalf("record %+v", c.record())
			}
		})
	}
}

func TestCrashesAreRestartedUpToTheMaximum(t *testing.T) {
	starts := filepath.Join(t.TempDir(), "starts")
	c := sh(t, "echo $$ >>"+starts+"; exit 3")
	c.spec.Restart = spec.Restart{Max: 3, BaseMs: 20, CapMs: 50}
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	var seen []record.Exit
	c.until(func() bool {
		x := c.exit()
		if x != nil && (len(seen) == 0 || !reflect.DeepEqual(seen[len(seen)-1], *x)) {
			seen = append(seen, *x)
		}
		return x != nil && x.Outcome != record.Restarting
	}, "the end")
	last := c.ended(seen[0].Keeper)
	if last.Outcome != record.GaveUp || last.Restarts != 3 || *last.Code != 3 || !last.Released {
		t.Fatalf("exit %s", asJSON(last))
	}
	pids := lines(starts)
	if len(pids) != 4 {
		t.Fatalf("started %d times: %v", len(pids), pids)
	}
	if fmt.Sprint(last.PID) != pids[3] {
		t.Fatalf("last was %d of %v", last.PID, pids)
	}
	waits := []int64{20, 40, 50}
	for _, x := range seen[:len(seen)-1] {
		if x.Outcome != record.Restarting || x.Restarts < 1 || x.WaitMs != waits[x.Restarts-1] || *x.Code != 3 || x.Released {
			t.Errorf("exit %s", asJSON(x))
		}
	}
}

func TestNoRestartWhenMaxIsZero(t *testing.T) {
	c := sh(t, "exit 3")
	c.spec.Restart.Max = 0
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.until(func() bool { return c.exit() != nil }, "an exit record")
	if x := c.ended(c.exit().Keeper); x.Outcome != record.GaveUp || x.Restarts != 0 {
		t.Fatalf("exit %s", asJSON(x))
	}
}

func TestWhatIsACrash(t *testing.T) {
	for _, test := range []struct {
		script  string
		codes   []int
		outcome record.Outcome
	}{
		{"exit 0", nil, record.Released},
		{"kill -TERM $$", nil, record.Released},
		{"kill -INT $$", nil, record.Released},
		{"kill -HUP $$", nil, record.Released},
		{"exit 143", []int{0, 143}, record.Released},
		{"exit 143", nil, record.GaveUp},
		{"exit 0", []int{}, record.GaveUp},
		{"kill -KILL $$", nil, record.GaveUp},
		{"kill -SEGV $$", nil, record.GaveUp},
		{"kill -USR1 $$", nil, record.GaveUp},
	} {
		t.Run(fmt.Sprint(test.script, test.codes), func(t *testing.T) {
			c := sh(t, test.script)
			c.spec.Restart = spec.Restart{Max: 1, BaseMs: 1, CapMs: 1}
			c.spec.Deliberate = test.codes
			if err := c.launch(); err != nil {
				t.Fatal(err)
			}
			c.until(func() bool { x := c.exit(); return x != nil && x.Outcome != record.Restarting }, "the end")
			x := c.ended(c.exit().Keeper)
			if want := map[record.Outcome]int{record.GaveUp: 1}[test.outcome]; x.Outcome != test.outcome || x.Restarts != want {
				t.Fatalf("exit %s", asJSON(x))
			}
		})
	}
}

// Every signal a keeper gets reaches the process once, and nothing is started
// after the first, whatever the process then ends with.
func TestSignalsAreForwardedOnceEach(t *testing.T) {
	c, told := teller(t, "count")
	r := c.start()
	c.until(func() bool { return len(told()) == 1 }, "the process's handlers")
	want := []string{"ready"}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGTERM} {
		signalPID(t, r.Keeper, sig)
		want = append(want, unix.SignalName(sig))
		c.until(func() bool { return len(told()) >= len(want) }, "the signal")
	}
	signalPID(t, r.Keeper, unix.SIGINT) // ends it with code 3, a crash at any other time
	x := c.ended(r.Keeper)
	if got := append(want, "SIGINT"); !slices.Equal(told(), got) {
		t.Errorf("the process got %v, not %v", told(), got)
	}
	if x.Outcome != record.Released || *x.Code != 3 || x.Restarts != 0 {
		t.Fatalf("exit %s", asJSON(x))
	}
}

func TestStopDuringBackOff(t *testing.T) {
	starts := filepath.Join(t.TempDir(), "starts")
	c := sh(t, "echo x >>"+starts+"; exit 3")
	c.spec.Restart = spec.Restart{Max: 5, BaseMs: 600_000, CapMs: 600_000}
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.until(func() bool { x := c.exit(); return x != nil && x.Outcome == record.Restarting }, "the back-off")
	r := c.record()
	if r == nil || r.PID == 0 || r.Restarts != 1 || r.Starting {
		t.Fatalf("record in back-off %+v", r)
	}
	signalPID(t, r.Keeper, unix.SIGTERM)
	x := c.ended(r.Keeper)
	if x.Outcome != record.Released || *x.Code != 3 || len(lines(starts)) != 1 {
		t.Fatalf("exit %s, started %v", asJSON(x), lines(starts))
	}
}

func TestLongRunClearsTheCount(t *testing.T) {
	marks := t.TempDir()
	// Short, short, long, short, short: with a maximum of 2 the fifth only
	// comes about because the third run cleared the count.
	c := sh(t, "n=$(ls "+marks+" | wc -l); : >"+marks+"/$n; [ $n = 2 ] && sleep 0.5; exit 3")
	c.env = append(c.env, "PG_ENV_PATH=/usr/bin:/bin")
	c.spec.Restart = spec.Restart{Max: 2, BaseMs: 1, CapMs: 1, ResetAfterMs: 400}
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.until(func() bool { x := c.exit(); return x != nil && x.Outcome == record.GaveUp }, "the end")
	c.ended(c.exit().Keeper)
	if entries, _ := os.ReadDir(marks); len(entries) != 5 {
		t.Fatalf("started %d times", len(entries))
	}
}

// The executable disappears while the process runs.
func TestRestartThatCannotExec(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "mine")
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, text, 0o700); err != nil {
		t.Fatal(err)
	}
	c := newClaim(t, exe, "300")
	r := c.start()
	if err := os.Remove(exe); err != nil {
		t.Fatal(err)
	}
	signalPID(t, r.PID, unix.SIGKILL)
	x := c.ended(r.Keeper)
	if x.Outcome != record.Failed || x.Restarts != 1 || !strings.Contains(x.Error, "ENOENT") || x.PID != r.PID || *x.Signal != "SIGKILL" {
		t.Fatalf("exit %s", asJSON(x))
	}
}

// replaceRecord puts another generation's claim where ours is.
func (c *claim) replaceRecord() {
	g := c.gate()
	defer g.Unlock()
	r := &record.Record{Version: 8, Token: "other", Host: os.Getpid(), Argv: c.spec.RecordArgv, UID: os.Geteuid(), NS: proc.NS()}
	if err := record.Write(c.dir, g, c.spec.Name, r); err != nil {
		c.t.Fatal(err)
	}
	if err := record.RemoveExit(c.dir, c.spec.Name); err != nil {
		c.t.Fatal(err)
	}
}

func (c *claim) removeRecord() {
	g := c.gate()
	defer g.Unlock()
	if err := record.Remove(c.dir, g, c.spec.Name); err != nil {
		c.t.Fatal(err)
	}
}

// keeperOf waits for the keeper of a claim that names no process yet.
func (c *claim) keeperOf() int {
	var keeper int
	c.until(func() bool {
		r := c.record()
		if r != nil {
			keeper = r.Keeper
		}
		return keeper > 0
	}, "a keeper")
	return keeper
}

func (c *claim) stopped(pid int) {
	c.until(func() bool { return status(c.t, pid, "State") == "T (stopped)" }, "the stop at the fault point")
}

func TestClaimLostBeforeTheStart(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprint("taken ", taken), func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			c := sh(t, "touch "+ran)
			c.fault = "keep-begin:stop"
			if err := c.launch(); err != nil {
				t.Fatal(err)
			}
			keeper := c.keeperOf()
			c.stopped(keeper)
			if taken {
				c.replaceRecord()
			} else {
				c.removeRecord()
			}
			signalPID(t, keeper, unix.SIGCONT)
			c.gone(keeper, "the keeper")
			if taken {
				if r := c.record(); r == nil || r.Token != "other" || c.exit() != nil {
					t.Fatalf("touched what is another's: %+v, %+v", r, c.exit())
				}
			} else if x := c.exit(); x == nil || x.Outcome != record.Gone {
				t.Fatalf("exit %s", asJSON(x))
			}
			if c.dir.Exists(lock.LifeName(c.spec.Name, c.spec.Token)) {
				t.Error("the life file is left")
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("it ran")
			}
		})
	}
}

func TestClaimLostDuringBackOff(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprint("taken ", taken), func(t *testing.T) {
			starts := filepath.Join(t.TempDir(), "starts")
			c := sh(t, "echo x >>"+starts+"; exit 3")
			c.spec.Restart = spec.Restart{Max: 5, BaseMs: 300, CapMs: 300}
			if err := c.launch(); err != nil {
				t.Fatal(err)
			}
			c.until(func() bool { x := c.exit(); return x != nil && x.Outcome == record.Restarting }, "the back-off")
			keeper := c.record().Keeper
			if taken {
				c.replaceRecord()
			} else {
				c.removeRecord()
			}
			c.gone(keeper, "the keeper")
			if taken {
				if r := c.record(); r == nil || r.Token != "other" || c.exit() != nil {
					t.Fatalf("touched what is another's: %+v, %+v", r, c.exit())
				}
			} else if x := c.exit(); x.Outcome != record.Gone || *x.Code != 3 {
				t.Fatalf("exit %s", asJSON(x))
			}
			if n := len(lines(starts)); n != 1 {
				t.Fatalf("started %d times", n)
			}
		})
	}
}

// An orphan of a newer generation runs on, and what it ends with is not
// written over the newer one's word.
func TestDisplacedKeeperSaysNothing(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	r := c.start()
	c.replaceRecord()
	if h, err := proc.Open(r.PID); err != nil || h.Alive() != proc.Yes {
		t.Fatal("the orphan ended")
	}
	signalPID(t, r.PID, unix.SIGKILL)
	c.gone(r.Keeper, "the keeper")
	if c.exit() != nil || c.record().Token != "other" || c.dir.Exists(lock.LifeName(c.spec.Name, c.spec.Token)) {
		t.Fatalf("exit %+v, record %+v", c.exit(), c.record())
	}
}

func TestStopBeforeTheProcessIsLetGo(t *testing.T) {
	for _, point := range []string{"keep-begin", "keep-gate", "keep-forked", "keep-life-written", "keep-named"} {
		t.Run(point, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			c := sh(t, "touch "+ran)
			c.fault = point + ":stop"
			if err := c.launch(); err != nil {
				t.Fatal(err)
			}
			keeper := c.keeperOf()
			c.stopped(keeper)
			signalPID(t, keeper, unix.SIGTERM)
			signalPID(t, keeper, unix.SIGCONT)
			x := c.ended(keeper)
			if x.Outcome != record.Released || !x.Released {
				t.Fatalf("exit %s", asJSON(x))
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("user code ran after the stop")
			}
			if _, left := c.mine(); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}

// A stop that comes between go and the exec must neither get lost nor wait.
func TestStopDuringTheExec(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("to the process itself ", direct), func(t *testing.T) {
			c, told := teller(t, "count")
			c.fault = "hold-exec:stop"
			if err := c.launch(); err != nil {
				t.Fatal(err)
			}
			var r *record.Record
			c.until(func() bool { r = c.record(); return r != nil && r.PID > 0 }, "a record")
			c.stopped(r.PID)
			if direct {
				signalPID(t, r.PID, unix.SIGTERM)
			} else {
				signalPID(t, r.Keeper, unix.SIGTERM)
				c.until(func() bool { return strings.TrimLeft(status(t, r.PID, "ShdPnd"), "0") != "" }, "the forwarded signal")
			}
			signalPID(t, r.PID, unix.SIGCONT)
			x := c.ended(r.Keeper)
			if x.Outcome != record.Released || x.Signal == nil || *x.Signal != "SIGTERM" || len(told()) > 0 {
				t.Fatalf("exit %s, told %v", asJSON(x), told())
			}
		})
	}
}

func TestPidDirGoneStopsTheProcess(t *testing.T) {
	for name, vanish := range map[string]func(c *claim) error{
		"removed": func(c *claim) error { return os.RemoveAll(c.dir.Path()) },
		"moved":   func(c *claim) error { return os.Rename(c.dir.Path(), c.dir.Path()+".old") },
		"replaced": func(c *claim) error {
			if err := os.Rename(c.dir.Path(), c.dir.Path()+".old"); err != nil {
				return err
			}
			return os.Mkdir(c.dir.Path(), 0o700)
		},
		"moved with its parent": func(c *claim) error {
			parent := filepath.Dir(c.dir.Path())
			return os.Rename(parent, parent+".old")
		},
		"emptied": func(c *claim) error {
			for _, n := range c.files() {
				if err := os.Remove(c.dir.Join(n)); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClaim(t, "/bin/sleep", "300")
			c.spec.Cwd = "/"
			r := c.start()
			life, err := record.OpenLife(c.dir, c.spec.Name, c.spec.Token)
			if err != nil {
				t.Fatal(err)
			}
			defer life.Close()
			if err := vanish(c); err != nil {
				t.Fatal(err)
			}
			end := time.Now().Add(patience)
			for alive(r.PID) || alive(r.Keeper) {
				if time.Now().After(end) {
					t.Fatal("the process or its keeper runs on")
				}
				time.Sleep(5 * time.Millisecond)
			}
			if l, err := record.ReadLife(life); err != nil || l.Words == nil || l.Words.Outcome != record.Gone || *l.Words.Signal != "SIGTERM" {
				t.Fatalf("last words %s, %v", asJSON(l), err)
			}
		})
	}
}

func alive(pid int) bool {
	h, err := proc.Open(pid)
	if err != nil {
		return false
	}
	defer h.Close()
	return h.Alive() != proc.No
}

func TestPidDirGoneAndAProcessThatDoesNotCare(t *testing.T) {
	c, told := teller(t, "deaf")
	r := c.start()
	c.until(func() bool { return len(told()) == 1 }, "the process's handlers")
	if err := os.RemoveAll(c.dir.Path()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for alive(r.Keeper) {
		if time.Since(began) > patience {
			t.Fatal("the keeper runs on")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if took := time.Since(began); took < killAfter-100*time.Millisecond || alive(r.PID) || !slices.Equal(told(), []string{"ready", "SIGTERM"}) {
		t.Fatalf("after %v, told %v", took, told())
	}
}

func TestPidDirGoneDuringBackOff(t *testing.T) {
	starts := filepath.Join(t.TempDir(), "starts")
	c := sh(t, "echo x >>"+starts+"; exit 3")
	c.spec.Restart = spec.Restart{Max: 5, BaseMs: 600_000, CapMs: 600_000}
	c.spec.Cwd = "/"
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.until(func() bool { x := c.exit(); return x != nil && x.Outcome == record.Restarting }, "the back-off")
	keeper := c.record().Keeper
	if err := os.RemoveAll(c.dir.Path()); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(patience)
	for alive(keeper) {
		if time.Now().After(end) {
			t.Fatal("the keeper waits on")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := len(lines(starts)); n != 1 {
		t.Fatalf("started %d times", n)
	}
}

// orphan starts a process that plays an older version's.
func orphan(t *testing.T, argv ...string) (*exec.Cmd, *spec.Orphan, chan struct{}) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	h, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id, err := h.ID()
	h.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return cmd, &spec.Orphan{PID: id.PID, Started: id.Started, Inode: id.Inode}, done
}

func TestGraceWaitsForTheOrphan(t *testing.T) {
	old, o, _ := orphan(t, "/bin/sleep", "300")
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Orphan, c.spec.GraceMs, c.spec.GraceKill = o, 600_000, true
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.keeperOf()
	time.Sleep(150 * time.Millisecond)
	if r := c.record(); r.PID != 0 || !alive(o.PID) {
		t.Fatalf("did not wait: %+v", r)
	}
	if err := old.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.running(0)
}

func TestGraceKillsWhenAsked(t *testing.T) {
	for _, kill := range []bool{true, false} {
		t.Run(fmt.Sprint("kill ", kill), func(t *testing.T) {
			_, o, done := orphan(t, "/bin/sleep", "300")
			c := newClaim(t, "/bin/sleep", "300")
			c.spec.Orphan, c.spec.GraceMs, c.spec.GraceKill = o, 100, kill
			began := time.Now()
			c.start()
			if took := time.Since(began); took < 100*time.Millisecond {
				t.Errorf("after %v", took)
			}
			select {
			case <-done:
				if !kill {
					t.Error("the orphan was killed")
				}
			default:
				if kill && alive(o.PID) {
					t.Error("the orphan runs on")
				}
			}
		})
	}
}

func TestGraceNeverKillsAnotherProcess(t *testing.T) {
	_, o, _ := orphan(t, "/bin/sleep", "300")
	o.Inode++
	o.Started += "0"
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Orphan, c.spec.GraceMs, c.spec.GraceKill = o, 600_000, true
	c.start() // at once: the orphan is gone, somebody else has its pid
	if !alive(o.PID) {
		t.Fatal("killed a stranger")
	}
}

func TestGraceKillsNobodyItCannotIdentify(t *testing.T) {
	_, o, _ := orphan(t, "/bin/sleep", "300")
	o.Inode, o.Started = 0, ""
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Orphan, c.spec.GraceMs, c.spec.GraceKill = o, 100, true
	began := time.Now()
	c.start()
	if !alive(o.PID) || time.Since(began) < 100*time.Millisecond {
		t.Fatalf("the orphan lives: %v, after %v", alive(o.PID), time.Since(began))
	}
}

func TestStopDuringGrace(t *testing.T) {
	_, o, _ := orphan(t, "/bin/sleep", "300")
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Orphan, c.spec.GraceMs, c.spec.GraceKill = o, 600_000, true
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	keeper := c.keeperOf()
	c.until(func() bool {
		for _, what := range descriptors(t, keeper) {
			if strings.Contains(what, "pidfd") {
				return true
			}
		}
		return false
	}, "the keeper's wait for the orphan")
	signalPID(t, keeper, unix.SIGTERM)
	if x := c.ended(keeper); x.Outcome != record.Released || x.PID != 0 || c.record() != nil || !alive(o.PID) {
		t.Fatalf("exit %s, record %+v", asJSON(x), c.record())
	}
}

// A keeper waits for the gate as long as it takes, says its last words before,
// and still hears a stop.
func TestTheGateIsHeldWhenTheProcessCrashes(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprint("stopped meanwhile ", stop), func(t *testing.T) {
			c := newClaim(t, "/bin/sleep", "300")
			r := c.start()
			life, err := record.OpenLife(c.dir, c.spec.Name, c.spec.Token)
			if err != nil {
				t.Fatal(err)
			}
			defer life.Close()
			says := func(o record.Outcome) func() bool {
				return func() bool {
					l, err := record.ReadLife(life)
					return err == nil && l.Words != nil && l.Words.Outcome == o && *l.Words.Signal == "SIGKILL"
				}
			}
			g := c.gate()
			signalPID(t, r.PID, unix.SIGKILL)
			c.until(says(record.Restarting), "the last words")
			if stop {
				signalPID(t, r.Keeper, unix.SIGTERM)
				c.until(says(record.Released), "other last words")
			}
			if now := c.record(); now.PID != r.PID || now.Restarts != 0 || c.exit() != nil {
				t.Fatalf("wrote outside the gate: %+v, %+v", now, c.exit())
			}
			g.Unlock()
			if !stop {
				r = c.running(r.PID)
				signalPID(t, r.Keeper, unix.SIGTERM)
			}
			if x := c.ended(r.Keeper); x.Outcome != record.Released {
				t.Fatalf("exit %s", asJSON(x))
			}
		})
	}
}

// A reaper has set the record aside: its keeper restarts nothing and leaves
// the reaper's file alone.
func TestAProcessThatAReaperStops(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		c := newClaim(t, "/bin/sleep", "300")
		r := c.start()
		g := c.gate()
		aside, err := record.BeginReaping(c.dir, g, c.spec.Name)
		if err != nil {
			t.Fatal(err)
		}
		signalPID(t, r.PID, sig)
		g.Unlock()
		c.gone(r.Keeper, "the keeper")
		if x := c.exit(); x == nil || x.Outcome != record.Gone || *x.Signal != unix.SignalName(sig) || c.record() != nil {
			t.Fatalf("exit %s, record %+v", asJSON(x), c.record())
		}
		if !c.dir.Exists(c.spec.Name + lock.ReapingSuffix) {
			t.Error("the reaper's file is gone")
		}
		aside.Leave()
	}
}

// Without an inotify instance (a user has 128 by default) it is looked at.
func TestPidDirGoneWithoutInotify(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	life, err := c.dir.CreateLife(c.spec.Name, c.spec.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	w := &dirWatch{dir: c.dir, life: life, name: c.spec.Name, fd: -1}
	gone := make(chan struct{})
	go w.blind(5*time.Millisecond, func() { close(gone) })
	select {
	case <-gone:
		t.Fatal("gone while it is there")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.RemoveAll(c.dir.Path()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("not noticed")
	}
}

// A restart whose exec is refused for now is no run: threads that watch said that the
// process ran again, and a moment later that it was gone and nobody knew how.
func TestARestartThatCannotExecYetIsNeverConfirmed(t *testing.T) {
	text, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(file, text, 0o700); err != nil {
		t.Fatal(err)
	}
	c := newClaim(t, file, "-c", "exit 3")
	c.spec.Restart = spec.Restart{Max: 1, BaseMs: 500, CapMs: 1000}
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	var x *record.Exit
	c.until(func() bool { x = c.exit(); return x != nil && x.Outcome == record.Restarting }, "the back-off")
	crashed := x.PID
	busy, err := os.OpenFile(file, os.O_WRONLY, 0) // ETXTBSY from here on
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	c.until(func() bool { x = c.exit(); return x != nil && x.Error != "" }, "a start that was refused")
	if r := c.record(); r == nil || r.PID == crashed || !r.Starting {
		t.Errorf("it is confirmed although it never ran: %+v", r)
	}
	busy.Close()
	keeper := c.record().Keeper
	if x := c.ended(keeper); x.Outcome != record.GaveUp || x.Restarts != 1 {
		t.Errorf("exit %s", asJSON(x))
	}
}
