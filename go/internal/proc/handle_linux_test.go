package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSelf(t *testing.T) {
	id := Self()
	if id.PID != os.Getpid() || id.NS == 0 || id.NS != NS() {
		t.Errorf("Self() = %+v", id)
	}
	if boot, _, ok := splitStarted(id.Started); !ok || boot != BootID() {
		t.Errorf("started %q, boot %q", id.Started, BootID())
	}
	h := open(t, os.Getpid())
	if (id.Inode != 0) != onPidfs(h.fd) {
		t.Errorf("inode %d, pidfs %v", id.Inode, onPidfs(h.fd))
	}
	if other, err := h.ID(); err != nil || other != id {
		t.Errorf("a handle on ourselves says %+v, %v", other, err)
	}
	if h.Identify(Want{Started: id.Started, Inode: id.Inode}) != Match || h.Alive() != Yes {
		t.Error("we are not ourselves")
	}
}

// What we read is what ps reads.
func TestAgreesWithPS(t *testing.T) {
	// Trailing empty arguments are what other libraries drop.
	c := start(t, nil, "wait", "exit:0", "two words", "", "x", "", "")
	c.says("up")
	h := open(t, c.pid)
	out, err := exec.Command("ps", "-o", "ppid=,euid=,state=", "-p", strconv.Itoa(c.pid)).Output()
	must(t, err)
	ppid, perr := h.Parent()
	uid, uerr := h.UID()
	state, serr := h.State()
	if err := errors.Join(perr, uerr, serr); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%d %d %c", ppid, uid, state), strings.Join(strings.Fields(string(out)), " "); got != want {
		t.Errorf("parent, user, state: %q, ps says %q", got, want)
	}
	argv, err := h.Argv()
	must(t, err)
	if want := []string{helper(t), "wait", "exit:0", "two words", "", "x", "", ""}; !slices.Equal(argv, want) {
		t.Errorf("argv %q, want %q", argv, want)
	}
}

func TestOpenRefusesWhatIsNoProcess(t *testing.T) {
	for _, pid := range []int{0, -1, -os.Getpid(), 1 << 30} {
		if h, err := Open(pid); !errors.Is(err, ErrGone) || h != nil {
			t.Errorf("Open(%d) = %v", pid, err)
		}
		if v, h := Identify(pid, Want{Argv: []string{"x"}}); v != Differs || h != nil {
			t.Errorf("Identify(%d) = %v", pid, v)
		}
	}
}

// A thread's id answers kill, has a directory in /proc and a command line,
// and is no process.
func TestThreadIsNoProcess(t *testing.T) {
	c := start(t, nil, "thread", "exit:0")
	tid := c.says("tid")
	if tid == c.pid {
		t.Fatal("no thread")
	}
	if err := syscall.Kill(tid, 0); err != nil {
		t.Fatalf("the thread is not there: %v", err)
	}
	if h, err := Open(tid); !errors.Is(err, ErrGone) {
		t.Errorf("Open of a thread: %v, %v", h, err)
	}
	if v, h := Identify(tid, Want{Argv: []string{helper(t)}}); v != Differs || h != nil {
		t.Errorf("Identify of a thread: %v", v)
	}
	if open(t, c.pid).Alive() != Yes {
		t.Error("its process is not alive")
	}
}

// A leader that ended reads Z, and its process runs on: taking it for dead
// starts a second one beside it.
func TestLeaderlessProcessIsAlive(t *testing.T) {
	for how, want := range map[string]Exit{
		"exit:3": {Code: 3}, "exit:0": {}, "kill:11": {Signal: syscall.SIGSEGV}, "return": {},
	} {
		t.Run(how, func(t *testing.T) {
			c := start(t, nil, "leaderless", how)
			c.says("tid")
			h := open(t, c.pid)
			eventually(t, "the leader is a zombie", func() bool { s, err := h.State(); return err == nil && s == Zombie })
			if h.Alive() != Yes {
				t.Fatalf("it is alive, and reads %v", h.Alive())
			}
			if e, ok := h.Exit(); ok {
				t.Fatalf("it did not end, and shows %+v", e)
			}
			id, err := h.ID()
			must(t, err)
			if v := h.Identify(Want{Started: id.Started}); v != Match {
				t.Errorf("identified as %v", v)
			}
			if v := h.Identify(Want{Argv: []string{helper(t)}}); v != Unknown {
				t.Errorf("it shows no command line, and was compared: %v", v)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := h.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Wait: %v", err)
			}
			c.next()
			must(t, h.Wait(patient(t)))
			if e, ok := h.Exit(); !ok || e != want {
				t.Errorf("exit of the zombie: %+v, %v", e, ok)
			}
			if e, ok := h.Reap(); !ok || e != want {
				t.Errorf("waitid: %+v, %v", e, ok)
			}
			if e, ok := h.Exit(); !ok || e != want {
				t.Errorf("exit of the reaped: %+v, %v", e, ok)
			}
		})
	}
}

// An exec by another thread replaces the leader, and the process lives on
// under the same identity.
func TestExecKeepsTheIdentity(t *testing.T) {
	for _, mode := range []string{"exec", "threadexec"} {
		t.Run(mode, func(t *testing.T) {
			c := start(t, nil, mode, helper(t), "wait", "exit:4")
			if mode == "exec" {
				c.says("up")
			} else {
				c.says("tid")
			}
			h := open(t, c.pid)
			before, err := h.ID()
			must(t, err)
			dead := make(chan error, 1)
			go func() { dead <- h.Wait(patient(t)) }()
			c.next()
			if pid := c.says("up"); pid != c.pid {
				t.Fatalf("the pid became %d", pid)
			}
			fresh := open(t, c.pid)
			after, err := fresh.ID()
			must(t, err)
			if before != after {
				t.Errorf("the identity became %+v, it was %+v", after, before)
			}
			if h.Alive() != Yes || h.Identify(Want{Argv: []string{helper(t), "wait"}}) != Match {
				t.Error("the handle lost the process")
			}
			select {
			case err := <-dead:
				t.Fatalf("Wait ended at the exec: %v", err)
			default:
			}
			c.next()
			must(t, <-dead)
			if e, ok := h.Exit(); !ok || e.Code != 4 {
				t.Errorf("exit: %+v, %v", e, ok)
			}
		})
	}
}

func TestIdentify(t *testing.T) {
	c := start(t, nil, "wait", "exit:0")
	c.says("up")
	h := open(t, c.pid)
	id, err := h.ID()
	must(t, err)
	titled := start(t, nil, "title", "xxxxxxxxxxxxxxxx")
	titled.says("title")
	mine, err := open(t, os.Getpid()).Argv()
	must(t, err)
	argv := []string{helper(t), "wait", "exit:0"}
	other := []string{"somebody", "else"}
	boot, ticks, _ := splitStarted(id.Started)
	n, err := strconv.Atoi(ticks)
	must(t, err)
	later := boot + ":" + strconv.Itoa(n+1)
	type table []struct {
		name string
		pid  int
		want Want
		v    Verdict
	}
	cases := table{
		{"nothing known", c.pid, Want{}, Unknown},
		{"its start", c.pid, Want{Started: id.Started}, Match},
		{"its start, other words", c.pid, Want{Started: id.Started, Argv: other}, Match},
		{"another start, its words", c.pid, Want{Started: later, Argv: argv}, Differs},
		{"another boot", c.pid, Want{Started: "0-0:" + ticks, Argv: argv}, Differs},
		{"a start in a strange form, its words", c.pid, Want{Started: "Mon Dec 1 10:00:00 2025", Argv: argv}, Match},
		{"a start in a strange form, other words", c.pid, Want{Started: "Mon Dec 1 10:00:00 2025", Argv: other}, Differs},
		{"an inode without a boot", c.pid, Want{Inode: id.Inode + 1, Argv: argv}, Match},
		{"its words", c.pid, Want{Argv: argv}, Match},
		{"the first of its words", c.pid, Want{Argv: argv[:2]}, Match},
		{"other words", c.pid, Want{Argv: other}, Differs},
		{"other words, its parent as keeper", c.pid, Want{Argv: other, Keeper: os.Getpid(), KeeperArgv: mine}, Match},
		{"a title, its parent as keeper", titled.pid, Want{Argv: argv, Keeper: os.Getpid(), KeeperArgv: mine[:1]}, Match},
		{"a title, no keeper", titled.pid, Want{Argv: argv}, Differs},
		{"a keeper that is another", c.pid, Want{Argv: other, Keeper: os.Getpid(), KeeperArgv: other}, Differs},
		{"a keeper without words", c.pid, Want{Argv: other, Keeper: os.Getpid()}, Differs},
		{"a keeper that is not the parent", c.pid, Want{Argv: other, Keeper: titled.pid, KeeperArgv: []string{"worker: idle"}}, Differs},
		{"a keeper that is init", c.pid, Want{Argv: other, Keeper: 1, KeeperArgv: other}, Differs},
		{"a keeper that is gone", c.pid, Want{Argv: other, Keeper: 1 << 30, KeeperArgv: mine}, Differs},
		{"no words recorded, a keeper that is another", c.pid, Want{Keeper: os.Getpid(), KeeperArgv: other}, Unknown},
		{"no words recorded, its parent as keeper", c.pid, Want{Keeper: os.Getpid(), KeeperArgv: mine}, Match},
	}
	if id.Inode != 0 {
		cases = append(cases, table{
			{"its inode", c.pid, Want{Inode: id.Inode, Started: id.Started}, Match},
			{"its inode before its start", c.pid, Want{Inode: id.Inode, Started: later}, Match},
			{"another inode, its start and words", c.pid, Want{Inode: id.Inode + 1, Started: id.Started, Argv: argv}, Differs},
			{"its inode in another boot", c.pid, Want{Inode: id.Inode, Started: "0-0:" + ticks, Argv: argv}, Differs},
		}...)
	}
	for _, k := range cases {
		v, got := Identify(k.pid, k.want)
		if v != k.v || got == nil {
			t.Errorf("%s: %v, want %v", k.name, v, k.v)
		}
		if got != nil {
			must(t, got.Close())
		}
	}
	must(t, h.Signal(syscall.SIGKILL))
	must(t, h.Wait(patient(t)))
	// Dead comes before every match, also as a zombie.
	if v := h.Identify(Want{Started: id.Started, Inode: id.Inode, Argv: argv}); v != Differs {
		t.Errorf("a zombie: %v", v)
	}
	must(t, h.Close())
	if v := h.Identify(Want{Started: id.Started}); v != Unknown || h.Alive() != Unknown {
		t.Errorf("a closed handle: %v, %v", v, h.Alive())
	}
}

func TestKernelThreadShowsNoWords(t *testing.T) {
	if name, err := os.ReadFile("/proc/2/comm"); err != nil || string(name) != "kthreadd\n" {
		t.Skip("pid 2 is no kernel thread here")
	}
	if v, h := Identify(2, Want{Argv: []string{"kthreadd"}}); v != Unknown || h == nil {
		t.Errorf("%v", v)
	} else if argv, err := h.Argv(); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("Argv: %q, %v", argv, err)
	}
}

// Init adopts everybody, so being its child says nothing.
func TestInitIsNobodysKeeper(t *testing.T) {
	c := start(t, nil, "orphan", "exit:0")
	h := open(t, c.says("orphan"))
	t.Cleanup(func() { _ = h.Signal(syscall.SIGKILL) })
	if ppid, err := h.Parent(); err != nil || ppid != 1 {
		t.Skipf("a subreaper took the orphan: its parent is %d, %v", ppid, err)
	}
	init, err := open(t, 1).Argv()
	must(t, err)
	if v := h.Identify(Want{Argv: []string{"another"}, Keeper: 1, KeeperArgv: init}); v != Differs {
		t.Errorf("%v", v)
	}
}

// No core file may turn a signal into another one.
func TestDecode(t *testing.T) {
	for status, want := range map[int]Exit{
		0: {}, 0x300: {Code: 3}, 0xff00: {Code: 255},
		9: {Signal: syscall.SIGKILL}, 0x80 | 11: {Signal: syscall.SIGSEGV}, 40: {Signal: 40},
	} {
		if got := decode(status); got != want {
			t.Errorf("decode(%#x) = %+v, want %+v", status, got, want)
		}
	}
}

// A status is read by somebody who is not the parent: while it is a zombie,
// from its stat; once it was reaped, from the pidfd.
func TestExitOfAnothersChild(t *testing.T) {
	for how, want := range map[string]Exit{
		"exit:0": {}, "exit:1": {Code: 1}, "exit:255": {Code: 255},
		"kill:15": {Signal: syscall.SIGTERM}, "kill:9": {Signal: syscall.SIGKILL},
		"kill:11": {Signal: syscall.SIGSEGV}, "kill:6": {Signal: syscall.SIGABRT}, "kill:40": {Signal: 40},
	} {
		t.Run(how, func(t *testing.T) {
			c := start(t, func(cmd *exec.Cmd) { cmd.Dir = t.TempDir() }, "family", how) // cores go there
			pid := c.says("child")
			h := open(t, pid)
			if e, ok := h.Exit(); ok {
				t.Fatalf("it lives, and ended with %+v", e)
			}
			if e, ok := h.Reap(); ok {
				t.Fatalf("it lives, and was reaped with %+v", e)
			}
			c.next()
			must(t, h.Wait(patient(t)))
			if h.Alive() != No {
				t.Error("a zombie is not dead")
			}
			if e, ok := h.Exit(); !ok || e != want {
				t.Errorf("zombie: %+v, %v", e, ok)
			}
			if e, ok := h.Reap(); ok {
				t.Errorf("another's child was reaped: %+v", e)
			}
			for when, ask := range map[string]func(int) (bool, error){"poll": reapedNow, "signal": reapedBySignal} {
				if gone, err := ask(h.fd); err != nil || gone {
					t.Errorf("a zombie, by %s: %v, %v", when, gone, err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			if err := h.Reaped(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("nobody reaped it, and Reaped says %v", err)
			}
			both := make(chan error, 2)
			go func() { both <- h.Reaped(patient(t)) }()
			go func() { both <- h.reapedByAsking(patient(t)) }()
			c.next()
			must(t, <-both)
			must(t, <-both)
			c.says("reaped")
			for when, ask := range map[string]func(int) (bool, error){"poll": reapedNow, "signal": reapedBySignal} {
				if gone, err := ask(h.fd); err != nil || !gone {
					t.Errorf("reaped, by %s: %v, %v", when, gone, err)
				}
			}
			if e, ok := h.Exit(); !ok || e != want {
				t.Errorf("reaped: %+v, %v", e, ok)
			}
			if err := h.Signal(0); !errors.Is(err, ErrGone) {
				t.Errorf("a signal to the reaped: %v", err)
			}
			if _, err := h.Argv(); !errors.Is(err, ErrGone) {
				t.Errorf("the argv of the reaped: %v", err)
			}
			if v, other := Identify(pid, Want{Argv: []string{helper(t)}}); v != Differs {
				t.Errorf("its pid is %v", v)
				_ = other.Close()
			}
		})
	}
}

func TestExitOfAnOrphan(t *testing.T) {
	for how, want := range map[string]Exit{"exit:0": {}, "exit:3": {Code: 3}, "kill:9": {Signal: syscall.SIGKILL}} {
		t.Run(how, func(t *testing.T) {
			c := start(t, nil, "orphan", how)
			h := open(t, c.says("orphan"))
			// The end of a failed test must not leave it.
			t.Cleanup(func() { _ = h.Signal(syscall.SIGKILL) })
			if ppid, err := h.Parent(); err != nil || ppid == os.Getpid() {
				t.Fatalf("its parent is %d, %v", ppid, err)
			}
			c.next()
			if e, ok := h.WaitExit(patient(t)); !ok || e != want {
				t.Errorf("%+v, %v", e, ok)
			}
		})
	}
}

func TestReapOfOurChild(t *testing.T) {
	c := start(t, nil, "wait", "exit:7")
	c.says("up")
	h := open(t, c.pid)
	if e, ok := h.Reap(); ok {
		t.Fatalf("it lives, and was reaped: %+v", e)
	}
	c.next()
	must(t, h.Wait(patient(t)))
	if e, ok := h.Reap(); !ok || e.Code != 7 {
		t.Errorf("%+v, %v", e, ok)
	}
	must(t, h.Reaped(patient(t)))
	if e, ok := h.Reap(); ok {
		t.Errorf("reaped twice: %+v", e)
	}
	c.reap() // the os package finds it gone, and copes
}

func TestWaitEnds(t *testing.T) {
	c := start(t, nil, "wait", "exit:0")
	c.says("up")
	before := count()
	h, err := Open(c.pid)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	const waiters = 50
	cancelled, closed := make(chan error, waiters), make(chan error, 2*waiters)
	for range waiters {
		go func() { cancelled <- h.Wait(ctx) }()
		go func() { closed <- h.Wait(t.Context()) }()
		go func() { closed <- h.Reaped(t.Context()) }()
	}
	cancel()
	for range waiters {
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	}
	if err := h.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	eventually(t, "one goroutine waits for all", func() bool {
		return runtime.NumGoroutine() <= before.goroutines+2*waiters+1
	})
	must(t, h.Close())
	for range 2 * waiters {
		if err := <-closed; !errors.Is(err, os.ErrClosed) {
			t.Fatalf("closed: %v", err)
		}
	}
	for what, err := range map[string]error{
		"Wait": h.Wait(t.Context()), "Reaped": h.Reaped(t.Context()), "Signal": h.Signal(0),
		"ID": second(h.ID()), "Argv": second(h.Argv()), "Parent": second(h.Parent()), "UID": second(h.UID()), "State": second(h.State()),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if _, ok := h.Exit(); ok {
		t.Error("Exit after Close proves something")
	}
	settle(t, before)
}

func second[T any](_ T, err error) error { return err }

// Whoever waits for the reaping must not hold back whoever waits for the
// death: both go through one descriptor.
func TestDeathIsToldBeforeTheReaping(t *testing.T) {
	c := start(t, nil, "family", "exit:0")
	h := open(t, c.says("child"))
	reaped, dead := make(chan error, 1), make(chan error, 1)
	go func() { reaped <- h.Reaped(patient(t)) }()
	go func() { dead <- h.Wait(patient(t)) }()
	c.next()
	must(t, <-dead)
	select {
	case err := <-reaped:
		t.Fatalf("it is a zombie, and Reaped says %v", err)
	default:
	}
	c.next()
	must(t, <-reaped)
}

func TestFromFile(t *testing.T) {
	c := start(t, nil, "wait", "exit:5")
	c.says("up")
	fd, err := unix.PidfdOpen(c.pid, 0) // blocking, as a parent in C would leave it
	must(t, err)
	h, err := FromFile(os.NewFile(uintptr(fd), "inherited"), c.pid)
	must(t, err)
	defer h.Close()
	if h.PID() != c.pid || h.Alive() != Yes {
		t.Errorf("pid %d, alive %v", h.PID(), h.Alive())
	}
	c.next()
	if e, ok := h.WaitExit(patient(t)); !ok || e.Code != 5 {
		t.Errorf("%+v, %v", e, ok)
	}
}

func TestFromFileRefuses(t *testing.T) {
	before := count()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	must(t, err)
	if _, err := FromFile(os.NewFile(uintptr(fd), "inherited"), os.Getpid()+1); !errors.Is(err, unix.EBADF) {
		t.Errorf("another process's handle: %v", err)
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	if _, err := FromFile(null, os.Getpid()); !errors.Is(err, unix.EBADF) {
		t.Errorf("no handle: %v", err)
	}
	if err := null.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the refused file is still open: %v", err)
	}
	settle(t, before)
}

// The handle is passed on as a descriptor, which must neither block the
// parent's own waiting nor end it.
func TestHandleSurvivesBeingInherited(t *testing.T) {
	c := start(t, nil, "wait", "exit:6")
	c.says("up")
	h := open(t, c.pid)
	cmd := part("inherited", []string{strconv.Itoa(c.pid)})
	cmd.ExtraFiles = []*os.File{h.File()}
	heir := run(t, cmd)
	line, err := heir.out.ReadString('\n')
	if err != nil || line != "waiting\n" {
		t.Fatalf("%q, %v", line, err)
	}
	c.next()
	if e, ok := h.WaitExit(patient(t)); !ok || e.Code != 6 {
		t.Errorf("here: %+v, %v", e, ok)
	}
	c.reap()
	if line, err := heir.out.ReadString('\n'); err != nil || line != "{6 signal 0} true\n" {
		t.Errorf("there: %q, %v", line, err)
	}
}

func init() {
	parts["inherited"] = func(args []string) error {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		h, err := FromFile(os.NewFile(3, "inherited"), pid)
		if err != nil {
			return err
		}
		fmt.Println("waiting")
		e, ok := h.WaitExit(context.Background())
		fmt.Println(e, ok)
		return nil
	}
}

func TestChildren(t *testing.T) {
	c := start(t, nil, "family", "exit:0")
	pid := c.says("child")
	kids, err := Children(c.pid)
	if err != nil || !slices.Equal(kids, []int{pid}) {
		t.Errorf("children of %d: %v, %v; want %d", c.pid, kids, err, pid)
	}
	if mine, err := Children(os.Getpid()); err != nil || !slices.Contains(mine, c.pid) || slices.Contains(mine, pid) || !slices.IsSorted(mine) {
		t.Errorf("ours: %v, %v", mine, err)
	}
	h := open(t, pid)
	c.next()
	must(t, h.Wait(patient(t)))
	if kids, err := Children(c.pid); err != nil || !slices.Equal(kids, []int{pid}) {
		t.Errorf("with the zombie: %v, %v", kids, err)
	}
	c.next()
	must(t, h.Reaped(patient(t)))
	if kids, err := Children(c.pid); err != nil || len(kids) != 0 {
		t.Errorf("without it: %v, %v", kids, err)
	}
	if _, err := Children(0); !errors.Is(err, ErrGone) {
		t.Errorf("of nobody: %v", err)
	}
}

// A process that was short of descriptors at the first question must know
// itself once it is not.
func TestFailuresAreNotRemembered(t *testing.T) {
	cmd := part("scarce", nil)
	runPart(t, cmd)
}

func init() {
	parts["scarce"] = func([]string) error {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		none := limit
		none.Cur = 0
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			return err
		}
		if id := Self(); id.Started != "" || BootID() != "" || BootMillis() != 0 {
			return fmt.Errorf("the limit does nothing: %+v", id)
		}
		if v, h := Identify(os.Getpid(), Want{Argv: os.Args}); v != Unknown || h != nil {
			return fmt.Errorf("identified: %v", v)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		if id := Self(); id.Started == "" || BootID() == "" || BootMillis() == 0 {
			return fmt.Errorf("still unknown: %+v", id)
		}
		return nil
	}
}

// A thousand deaths at once: every status right, no OS thread and nothing
// else left behind.
func TestThousandAtOnce(t *testing.T) {
	const n = 1000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 4*n {
		t.Skipf("needs %d descriptors, may have %d", 4*n, limit.Cur)
	}
	path := helper(t)
	before, threads := count(), osThreads(t)
	r, w, err := os.Pipe()
	must(t, err)
	up, upW, err := os.Pipe()
	must(t, err)
	cmds := make([]*exec.Cmd, n)
	handles := make([]*Handle, n)
	want := make([]Exit, n)
	defer func() {
		_ = w.Close()
		for i, cmd := range cmds {
			if cmd != nil && cmd.Process != nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			if handles[i] != nil {
				_ = handles[i].Close()
			}
		}
	}()
	for i := range cmds {
		how := "exit:" + strconv.Itoa(i%256)
		want[i] = Exit{Code: i % 256}
		if i%10 == 9 {
			how, want[i] = "kill:15", Exit{Signal: syscall.SIGTERM}
		}
		cmds[i] = exec.Command(path, "wait", how)
		cmds[i].Stdin, cmds[i].Stdout = r, upW
		must(t, cmds[i].Start())
		handles[i], err = Open(cmds[i].Process.Pid)
		must(t, err)
	}
	must(t, r.Close())
	must(t, upW.Close())
	for i, lines := 0, bufio.NewScanner(up); i < n; i++ {
		if !lines.Scan() {
			t.Fatalf("only %d came up: %v", i, lines.Err())
		}
	}
	must(t, up.Close())
	ctx := patient(t)
	var all sync.WaitGroup
	for i, h := range handles {
		all.Go(func() {
			if e, ok := h.WaitExit(ctx); !ok || e != want[i] {
				t.Errorf("process %d: %+v, %v; want %+v", i, e, ok, want[i])
			}
		})
	}
	eventually(t, "all are waited for", func() bool {
		return !slices.ContainsFunc(handles, func(h *Handle) bool {
			h.mu.RLock()
			defer h.mu.RUnlock()
			return h.death == nil
		})
	})
	if now := osThreads(t); now > threads+20 {
		t.Errorf("%d waits take %d OS threads, %d before", n, now, threads)
	}
	must(t, w.Close())
	all.Wait()
	for i, h := range handles {
		if e, ok := h.Reap(); !ok || e != want[i] {
			t.Errorf("process %d: reaped as %+v, %v", i, e, ok)
		}
		if e, ok := h.Exit(); !ok || e != want[i] {
			t.Errorf("process %d: after the reaping %+v, %v", i, e, ok)
		}
		// The os package keeps its own handle when somebody else reaped.
		_ = cmds[i].Wait()
		must(t, cmds[i].Process.Release())
		must(t, h.Close())
	}
	settle(t, before)
}

func osThreads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return len(tasks)
}

// Handles come and go from many goroutines while their process ends.
func TestHandlesUnderRace(t *testing.T) {
	before := count()
	for range 20 {
		c := start(t, nil, "wait", "exit:2")
		c.says("up")
		shared := open(t, c.pid)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					h, err := Open(c.pid)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = h.ID()
					_, _ = h.Argv()
					_ = shared.Alive()
					_, _ = shared.ID()
					done := make(chan struct{})
					go func() { defer close(done); _ = h.Wait(t.Context()) }()
					_ = h.Close()
					<-done
				}
				if e, ok := shared.WaitExit(t.Context()); !ok || e.Code != 2 {
					t.Errorf("%+v, %v", e, ok)
				}
			})
		}
		c.next()
		all.Wait()
		c.reap()
		must(t, shared.Close())
	}
	settle(t, before)
}

// Alive is asked on every turn of a claim.
func TestAliveAllocatesNothing(t *testing.T) {
	h := open(t, os.Getpid())
	if n := testing.AllocsPerRun(100, func() { h.Alive() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
