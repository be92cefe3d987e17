package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"processguard/go/internal/role"
)

func TestMain(m *testing.M) {
	role.Main(m, map[string]func(*role.Stage){
		"wait": func(s *role.Stage) {
			s.Say("here")
			s.UntilTestEnds()
		},
		"exit": func(s *role.Stage) {
			code, _ := s.Heard()
			n := 0
			fmt.Sscan(code, &n)
			os.Exit(n)
		},
		"listen": func(s *role.Stage) {
			stops := make(chan struct{}, 8)
			_, err := CatchStop(Self(), func() { stops <- struct{}{} })
			s.Say("listening %v", err)
			for range stops {
				s.Say("asked to stop")
			}
		},
		"child": func(s *role.Stage) {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "PROCESS_GUARD_TEST_ROLE=wait")
			in, _ := c.StdinPipe()
			defer in.Close()
			if err := c.Start(); err != nil {
				s.Say("%v", err)
				return
			}
			s.Say("%d", c.Process.Pid)
			s.UntilTestEnds()
		},
	})
}

func open(t *testing.T, pid int) *Handle {
	t.Helper()
	h, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestLifeAndDeath(t *testing.T) {
	k := role.Start(t, "exit")
	h := open(t, k.PID())
	if h.Alive() != Yes {
		t.Errorf("alive: %v", h.Alive())
	}
	if s, err := h.State(); s != Running || err != nil {
		t.Errorf("state %v %v", s, err)
	}
	if x, ok := h.Exit(); ok {
		t.Errorf("a running process ended with %+v", x)
	}
	soon, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := h.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited: %v", err)
	}
	k.Tell("7")
	if x, ok := h.WaitExit(t.Context()); !ok || x != (Exit{Code: 7}) {
		t.Errorf("%+v %v", x, ok)
	}
	k.Wait()
	if h.Alive() != No || h.Wait(t.Context()) != nil || h.Signal(syscall.SIGKILL) != ErrGone {
		t.Error("dead, and not quite")
	}
	if x, ok := h.Exit(); !ok || x.Code != 7 {
		t.Errorf("later: %+v %v", x, ok)
	}
}

// A process that ends with the code that GetExitCodeProcess also gives for a
// running one.
func TestExitCode259(t *testing.T) {
	k := role.Start(t, "exit")
	h := open(t, k.PID())
	k.Tell("259")
	if x, ok := h.WaitExit(t.Context()); !ok || x.Code != 259 {
		t.Errorf("%+v %v", x, ok)
	}
}

func TestNobody(t *testing.T) {
	for _, pid := range []int{0, -1, -4, 999_999_996} {
		if h, err := Open(pid); !errors.Is(err, ErrGone) {
			t.Errorf("pid %d: %v %v", pid, h, err)
		}
	}
	// The kernel takes 4n+1 for 4n.
	if h, err := Open(os.Getpid() + 1); !errors.Is(err, ErrGone) {
		t.Errorf("pid+1: %v %v", h, err)
	}
	if h, err := Open(int(windows.GetCurrentThreadId())); err == nil && h.PID() != os.Getpid() {
		t.Error("a thread opened as a process")
	}
}

func TestSignalIsReadFromTheExitCode(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		k := role.Start(t, "wait")
		k.Says("here")
		h := open(t, k.PID())
		if err := h.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if x, ok := h.WaitExit(t.Context()); !ok || x.Signal != sig || x.Code != 0 {
			t.Errorf("%v: %+v %v", sig, x, ok)
		}
	}
	if x := exitOf(controlC); x.Signal != syscall.SIGINT {
		t.Errorf("CTRL_BREAK: %+v", x)
	}
	if x := exitOf(1); x != (Exit{Code: 1}) {
		t.Errorf("%+v", x)
	}
}

// SIGTERM is a request where somebody listens, and an end where nobody does.
func TestStopRequest(t *testing.T) {
	k := role.Start(t, "listen")
	k.Says("listening <nil>")
	h := open(t, k.PID())
	for range 3 {
		if err := h.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		k.Says("asked to stop")
	}
	if h.Alive() != Yes {
		t.Error("it was ended")
	}
	id, err := h.ID()
	if err != nil {
		t.Fatal(err)
	}
	// A second listener for one process would take the first one's requests.
	if _, err := CatchStop(id, func() {}); err == nil {
		t.Error("two listen")
	}
	k.Kill()
	forget, err := CatchStop(id, func() {})
	if err != nil {
		t.Fatal(err)
	}
	forget()
	if askToStop(id) {
		t.Error("nobody listens any more")
	}
}

func TestIdentity(t *testing.T) {
	a, b := role.Start(t, "wait"), role.Start(t, "wait")
	a.Says("here")
	b.Says("here")
	ha, hb := open(t, a.PID()), open(t, b.PID())
	ia, _ := ha.ID()
	ib, _ := hb.ID()
	boot, ticks, ok := splitStarted(ia.Started)
	if !ok || boot != BootID() || len(ticks) != 18 || ia.Started == ib.Started {
		t.Errorf("%q %q", ia.Started, ib.Started)
	}
	if v := ha.Identify(Want{Started: ia.Started}); v != Match {
		t.Error(v)
	}
	for _, other := range []string{ib.Started, "boot0:" + ticks} {
		if v := ha.Identify(Want{Started: other, Argv: a.Args}); v != Differs {
			t.Errorf("%s: %v", other, v)
		}
	}
	if v := ha.Identify(Want{Argv: a.Args}); v != Match {
		t.Errorf("by argv: %v", v)
	}
	if ms, ok := SinceBoot(ia.Started); !ok || ms < 0 || ms > BootMillis()+1000 {
		t.Errorf("%d ms after the boot, which was %d ms ago", ms, BootMillis())
	}
	again := role.Start(t, "wait")
	again.Says("here")
	if BootID() == "" || Self().Started == "" {
		t.Error("this process has no identity")
	}
}

func TestBootIDIsTheSameInEveryProcess(t *testing.T) {
	k := role.Start(t, "wait")
	k.Says("here")
	if id, err := open(t, k.PID()).ID(); err != nil || !strings.HasPrefix(id.Started, BootID()+":") {
		t.Errorf("%v %v", id, err)
	}
}

func TestArgv(t *testing.T) {
	want := []string{"", "a b", `quo"te`, `back\slash\`, `\\"`, "grüße 🦊", "*.go", "%PATH%", "^&|"}
	c := role.Command("wait", want...)
	k := role.Run(t, c)
	k.Says("here")
	h := open(t, k.PID())
	argv, err := h.Argv()
	if err != nil || len(argv) == 0 || !slices.Equal(argv[1:], want) {
		t.Errorf("%q %v", argv, err)
	}
	if line, err := h.commandLineOfPEB(); err != nil || !strings.Contains(line, "grüße 🦊") {
		t.Errorf("PEB: %q %v", line, err)
	}
	k.Kill()
	if _, err := h.Argv(); !errors.Is(err, ErrGone) {
		t.Errorf("dead: %v", err)
	}
}

func TestArgvFromTheKernel(t *testing.T) {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		t.Skip("Wine 10 has no ProcessCommandLineInformation")
	}
	for _, size := range []int{10, 5000, 30_000} {
		k := role.Run(t, role.Command("wait", strings.Repeat("x", size)))
		k.Says("here")
		h := open(t, k.PID())
		told, err := h.commandLineTold()
		read, rerr := h.commandLineOfPEB()
		if err != nil || rerr != nil || told != read {
			t.Errorf("%d: %d and %d characters, %v, %v", size, len(told), len(read), err, rerr)
		}
	}
}

func TestParentAndChildren(t *testing.T) {
	k := role.Start(t, "child")
	pid := 0
	if _, err := fmt.Sscan(k.Line(), &pid); err != nil {
		t.Fatal(err)
	}
	if p, err := open(t, pid).Parent(); err != nil || p != k.PID() {
		t.Errorf("parent %d %v, not %d", p, err, k.PID())
	}
	if kids, err := Children(k.PID()); err != nil || !slices.Equal(kids, []int{pid}) {
		t.Errorf("%v %v", kids, err)
	}
	if kids, err := Children(os.Getpid()); err != nil || !slices.Contains(kids, k.PID()) {
		t.Errorf("%v %v", kids, err)
	}
}

// More than one thread can wait for: 64.
func TestManyWaits(t *testing.T) {
	k := role.Start(t, "wait")
	k.Says("here")
	var all sync.WaitGroup
	handles := make([]*Handle, 150)
	errs := make([]error, len(handles))
	for i := range handles {
		handles[i] = open(t, k.PID())
		all.Go(func() { errs[i] = handles[i].Wait(context.Background()) })
	}
	role.Within(t, role.Patience, "all wait", func() bool {
		waiters.mu.Lock()
		defer waiters.mu.Unlock()
		n := 0
		for _, c := range waiters.crowds {
			n += len(c.events)
		}
		return n >= len(handles)
	})
	for i := range handles {
		if i%3 == 0 {
			handles[i].Close()
		}
	}
	k.Kill()
	all.Wait()
	for i, err := range errs {
		if i%3 == 0 && !errors.Is(err, os.ErrClosed) || i%3 != 0 && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	role.Within(t, role.Patience, "the threads are given back", func() bool {
		waiters.mu.Lock()
		defer waiters.mu.Unlock()
		return len(waiters.crowds) == 0
	})
}

func TestFromFile(t *testing.T) {
	k := role.Start(t, "wait")
	k.Says("here")
	h := open(t, k.PID())
	err := h.Raw(func(raw uintptr) error {
		own, err := FromHandle(raw, k.PID())
		if err != nil {
			return err
		}
		defer own.Close()
		if own.Alive() != Yes {
			t.Error("not the process")
		}
		if _, err := FromHandle(raw, os.Getpid()); err == nil {
			t.Error("taken for another process")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FromFile(f, k.PID()); err == nil {
		t.Error("a file taken for a process")
	}
}

func TestClosedHandle(t *testing.T) {
	h := open(t, os.Getpid())
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if h.Alive() != Unknown || !errors.Is(h.Wait(t.Context()), os.ErrClosed) {
		t.Error("still answers")
	}
	if _, err := h.ID(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}
