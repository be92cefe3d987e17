package keep

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// smallDisk is a pidDir on a file system of its own, and a way to fill it.
func smallDisk(t *testing.T) (pids string, fill func(), free func()) {
	t.Helper()
	needRoot(t)
	pids = filepath.Join(t.TempDir(), "pids")
	if err := os.Mkdir(pids, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", pids, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("no file system of our own: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(pids, unix.MNT_DETACH) })
	ballast := filepath.Join(pids, "ballast")
	fill = func() {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
	return pids, fill, func() { _ = os.Remove(ballast) }
}

func TestAFullDiskDelaysARestart(t *testing.T) {
	pids, fill, free := smallDisk(t)
	c := newClaimIn(t, pids, "/bin/sleep", "300")
	c.spec.Cwd = "/"
	c.spec.Restart = spec.Restart{Max: 1, BaseMs: 10, CapMs: 50}
	r := c.start()
	life, err := record.OpenLife(c.dir, c.spec.Name, c.spec.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	fill()
	signalPID(t, r.PID, unix.SIGKILL)
	// The last words need no space.
	c.until(func() bool {
		l, err := record.ReadLife(life)
		return err == nil && l.Words != nil && l.Words.Outcome == record.Restarting && *l.Words.Signal == "SIGKILL"
	}, "the last words")
	time.Sleep(300 * time.Millisecond)
	if now := c.record(); now.PID != r.PID || !alive(r.Keeper) {
		t.Fatalf("record %+v", now)
	}
	free()
	now := c.running(r.PID)
	if now.Restarts != 1 || now.Keeper != r.Keeper {
		t.Fatalf("record %+v", now)
	}
	signalPID(t, now.Keeper, unix.SIGTERM)
	c.ended(now.Keeper)
}

func TestAFullDiskTakesNoExitStatusAway(t *testing.T) {
	pids, fill, _ := smallDisk(t)
	c := newClaimIn(t, pids, "/bin/sleep", "300")
	c.spec.Cwd = "/"
	c.fault = "keep-removed:stop"
	r := c.start()
	signalPID(t, r.Keeper, unix.SIGTERM)
	c.stopped(r.Keeper)
	fill() // the removed record's block, too
	signalPID(t, r.Keeper, unix.SIGCONT)
	c.gone(r.Keeper, "the keeper")
	if c.record() != nil || c.exit() != nil {
		t.Fatalf("record %+v, exit %+v", c.record(), c.exit())
	}
	c.saysLast(record.Released, "")
}

// saysLast reads a life file that stays because no exit record could be written.
func (c *claim) saysLast(outcome record.Outcome, why string) {
	c.t.Helper()
	life, err := record.OpenLife(c.dir, c.spec.Name, c.spec.Token)
	if err != nil {
		c.t.Fatal(err)
	}
	defer life.Close()
	if l, err := record.ReadLife(life); err != nil || l.Words == nil || l.Words.Outcome != outcome || !strings.Contains(l.Words.Error, why) {
		c.t.Fatalf("last words %s, %v", asJSON(l), err)
	}
}

func TestAFullDiskFailsAFirstStart(t *testing.T) {
	pids, fill, _ := smallDisk(t)
	ran := filepath.Join(t.TempDir(), "ran")
	c := newClaimIn(t, pids, "/bin/sh", "-c", ": >"+ran)
	c.spec.Cwd = "/"
	c.write()
	fill()
	if err := c.command().Run(); err == nil {
		t.Error("the launcher saw nothing wrong")
	}
	keepers, processes := c.mine()
	if len(keepers)+len(processes) > 0 || exists(ran) || c.record() != nil {
		t.Fatalf("keepers %v, processes %v, record %+v", keepers, processes, c.record())
	}
}

func TestAFullDiskAfterTheLaunchFailsAFirstStart(t *testing.T) {
	pids, fill, free := smallDisk(t)
	ran := filepath.Join(t.TempDir(), "ran")
	c := newClaimIn(t, pids, "/bin/sh", "-c", ": >"+ran)
	c.spec.Cwd = "/"
	c.fault = "keep-begin:stop"
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	keeper := c.keeperOf()
	c.stopped(keeper)
	fill()
	signalPID(t, keeper, unix.SIGCONT)
	c.gone(keeper, "the keeper")
	free()
	if x := c.ended(keeper); x.Outcome != record.Failed || !x.Released || !strings.Contains(x.Error, "no space left") {
		t.Fatalf("exit %s", asJSON(x))
	}
	if exists(ran) || c.record() != nil {
		t.Fatalf("ran: %v, record %+v", exists(ran), c.record())
	}
}

// unprivileged makes the keeper a user that resource limits bind.
func unprivileged(t *testing.T, c *claim) {
	t.Helper()
	needRoot(t)
	c.cred = &syscallCredential
	for _, top := range []string{built.dir, c.dir.Path()} {
		for p := top; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
			_ = os.Chmod(p, 0o755)
		}
	}
	if err := os.Chown(c.dir.Path(), 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

// claimAs writes the claim and gives the files to the unprivileged user.
func (c *claim) launchAs() {
	c.t.Helper()
	c.write()
	for _, n := range c.files() {
		if err := os.Chown(c.dir.Join(n), 65534, 65534); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.command().Run(); err != nil {
		c.t.Fatalf("launcher: %v; exit record: %+v", err, c.exit())
	}
}

// processSlots limits the keeper's user, as that user: root needs
// CAP_SYS_RESOURCE for it and containers drop that.
func processSlots(t *testing.T, pid, n int) {
	t.Helper()
	cmd := exec.Command("prlimit", "--pid", fmt.Sprint(pid), fmt.Sprintf("--nproc=%d:", n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscallCredential}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("prlimit: %v: %s", err, out)
	}
}

func TestNoProcessSlotDelaysARestart(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Restart = spec.Restart{Max: 1, BaseMs: 10, CapMs: 50}
	unprivileged(t, c)
	c.launchAs()
	r := c.running(0)
	processSlots(t, r.Keeper, 0)
	signalPID(t, r.PID, unix.SIGKILL)
	c.until(func() bool {
		x := c.exit()
		return x != nil && x.Outcome == record.Restarting && strings.Contains(x.Error, "temporarily unavailable")
	}, "an exit record that tells why")
	if x := c.exit(); x.Restarts != 1 || !alive(r.Keeper) {
		t.Fatalf("exit %s", asJSON(x))
	}
	processSlots(t, r.Keeper, 1000)
	now := c.running(r.PID)
	if now.Restarts != 1 {
		t.Fatalf("record %+v", now)
	}
	signalPID(t, now.Keeper, unix.SIGTERM)
	c.ended(now.Keeper)
}

// Go's runtime may end a keeper that gets no thread, anywhere in what it does about
// that. The claim is then as good as given back: nothing ran and the life lock is
// free; and a record that is gone already left its last words in the life file.
func TestNoProcessSlotFailsAFirstStart(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	unprivileged(t, c)
	c.fault = "keep-begin:stop"
	c.launchAs()
	keeper := c.keeperOf()
	c.stopped(keeper)
	life, err := os.Open(c.dir.Join(lock.LifeName(c.spec.Name, c.spec.Token)))
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	processSlots(t, keeper, 0)
	signalPID(t, keeper, unix.SIGCONT)
	c.gone(keeper, "the keeper")
	if x := c.exit(); x != nil {
		if c.ended(keeper); x.Outcome != record.Failed || !x.Released || !strings.Contains(x.Error, "temporarily unavailable") {
			t.Fatalf("exit %s", asJSON(x))
		}
	} else if r := c.record(); r != nil && r.PID != 0 || c.dir.LifeHeld(c.spec.Name, c.spec.Token) != proc.No {
		t.Fatalf("record %+v", r)
	} else if r == nil {
		l, err := record.ReadLife(life)
		if err != nil || l.Words == nil || l.Words.Outcome != record.Failed || !strings.Contains(l.Words.Error, "temporarily unavailable") {
			t.Fatalf("no record, no exit record, and the life file says %s, %v", asJSON(l), err)
		}
	}
	if _, ran := c.mine(); len(ran) > 0 {
		t.Fatalf("runs %v", ran)
	}
}

// While the executable is being written it cannot be run; an upgrade in place
// must not end the process for good.
func TestAnExecutableBeingReplacedDelaysARestart(t *testing.T) {
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
	signalPID(t, r.Keeper, unix.SIGSTOP)
	signalPID(t, r.PID, unix.SIGKILL)
	var f *os.File
	c.until(func() bool { f, err = os.OpenFile(exe, os.O_WRONLY, 0); return err == nil }, "the right to write")
	signalPID(t, r.Keeper, unix.SIGCONT)
	c.until(func() bool { x := c.exit(); return x != nil && strings.Contains(x.Error, "text file busy") }, "an exit record that tells why")
	f.Close()
	if now := c.running(r.PID); now.Restarts != 1 {
		t.Fatalf("record %+v", now)
	}
}

func TestALauncherThatCannotStartGivesTheClaimBack(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.write()
	cmd := c.command()
	// A life file under this token is another launcher's.
	f, err := c.dir.CreateLife(c.spec.Name, c.spec.Token)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Run(); err == nil {
		t.Error("two launchers for one token")
	}
	if r := c.record(); r == nil || r.Token != c.spec.Token {
		t.Fatalf("took the other launcher's claim away: %+v", r)
	}
	f.Close()
	if err := c.dir.Remove(lock.LifeName(c.spec.Name, c.spec.Token)); err != nil {
		t.Fatal(err)
	}
	// argv[0] is what a keeper is started as.
	cmd = c.command()
	cmd.Args[0] = "/nonexistent/keeper"
	if err := cmd.Run(); err == nil {
		t.Error("started a keeper that does not exist")
	}
	x := c.exit()
	if x == nil || x.Outcome != record.Failed || !x.Released || x.Keeper != 0 || !strings.Contains(x.Error, "/nonexistent/keeper") || c.record() != nil {
		t.Fatalf("exit %s, record %+v", asJSON(x), c.record())
	}
}

func TestALaunchOfALostClaim(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.write()
	c.replaceRecord()
	if err := c.command().Run(); err == nil {
		t.Error("the launcher saw nothing wrong")
	}
	if r := c.record(); r.Token != "other" || r.Keeper != 0 || c.exit() != nil || c.dir.Exists(lock.LifeName(c.spec.Name, c.spec.Token)) {
		t.Fatalf("record %+v, files %v", r, c.files())
	}
}

func TestWrongUse(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	for name, change := range map[string]func() (args, env []string){
		"no mode":      func() (a, e []string) { return nil, nil },
		"unknown mode": func() (a, e []string) { return []string{"x"}, nil },
		"no task":      func() (a, e []string) { return []string{"launch", "--lock", c.spec.Lock, "--token", c.spec.Token}, nil },
		"another's task": func() (a, e []string) {
			return []string{"launch", "--lock", c.spec.Lock, "--token", "x"}, c.spec.Environ()
		},
		"no life file": func() (a, e []string) {
			return []string{"keep", "--lock", c.spec.Lock, "--token", c.spec.Token}, c.spec.Environ()
		},
		"hold by a hand": func() (a, e []string) { return []string{"hold"}, nil },
		"relative lock": func() (a, e []string) {
			s := c.spec
			s.Lock = "agent.pid"
			return []string{"launch", "--lock", s.Lock, "--token", s.Token}, s.Environ()
		},
		"token with path": func() (a, e []string) {
			s := c.spec
			s.Token = "../x"
			return []string{"launch", "--lock", s.Lock, "--token", s.Token}, s.Environ()
		},
	} {
		t.Run(name, func(t *testing.T) {
			args, env := change()
			cmd := c.command()
			cmd.Args, cmd.Env = append(cmd.Args[:1], args...), env
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "usage: keeper") {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
	if names := c.files(); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// A keeper costs nothing while nothing happens. Both limits are the issue's.
func TestAnIdleKeeperCostsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	c := newClaim(t, "/bin/sleep", "300")
	r := c.start()
	time.Sleep(500 * time.Millisecond) // the start's own tail
	before := switches(t, r.Keeper)
	time.Sleep(10 * time.Second)
	if after := switches(t, r.Keeper); after != before {
		t.Errorf("%d context switches in ten idle seconds", after-before)
	}
	affordable(t, r.Keeper)
}

func affordable(t *testing.T, keeper int) {
	t.Helper()
	dirty, pss := memory(t, keeper)
	t.Logf("Private_Dirty %d kB, Pss %d kB, %s threads", dirty, pss, status(t, keeper, "Threads"))
	if dirty > 1638 || pss > 3072 {
		t.Errorf("Private_Dirty %d kB, Pss %d kB", dirty, pss)
	}
}

func TestAKeeperDoesNotGrowWithItsRestarts(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.spec.Restart = spec.Restart{Max: 1000, BaseMs: 1, CapMs: 1}
	r := c.start()
	for range 40 {
		signalPID(t, r.PID, unix.SIGKILL)
		r = c.running(r.PID)
	}
	time.Sleep(100 * time.Millisecond)
	affordable(t, r.Keeper)
}

func switches(t *testing.T, pid int) (n int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
		for _, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, "ctxt_switches") {
				var one int
				_, _ = fmt.Sscan(line[strings.Index(line, ":")+1:], &one)
				n += one
			}
		}
	}
	return n
}

func memory(t *testing.T, pid int) (dirty, pss int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		_, _ = fmt.Sscanf(line, "Private_Dirty: %d kB", &dirty)
		_, _ = fmt.Sscanf(line, "Pss: %d kB", &pss)
	}
	return dirty, pss
}

// Claimants wait for as long as a record says starting, so what could not be
// written is written later.
func TestAFullDiskDelaysTheEndOfAStart(t *testing.T) {
	pids, fill, free := smallDisk(t)
	c := newClaimIn(t, pids, "/bin/sleep", "300")
	c.spec.Cwd = "/"
	c.fault = "keep-ran:stop"
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	keeper := c.keeperOf()
	c.stopped(keeper)
	fill()
	signalPID(t, keeper, unix.SIGCONT)
	time.Sleep(200 * time.Millisecond)
	if r := c.record(); r == nil || r.PID == 0 || !r.Starting || !alive(r.PID) {
		t.Fatalf("record %+v", r)
	}
	free()
	c.running(0)
}
