package lock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/proc"
	"processguard/go/internal/role"
)

const name = "agent"

func TestMain(m *testing.M) {
	role.Main(m, map[string]func(*role.Stage){
		"gate":    gateRole,
		"try":     tryRole,
		"count":   countRole,
		"life":    lifeRole,
		"mounted": mountedRole,
		"inherit": func(s *role.Stage) { s.Say("here"); s.UntilTestEnds() },
	})
}

// gateRole holds a gate until it is told to leave it.
func gateRole(s *role.Stage) {
	d, err := OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	g, err := d.Lock(context.Background(), name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	s.Say("in")
	s.UntilTold()
	g.Unlock()
	s.Say("out")
	s.UntilTestEnds()
}

// tryRole asks for the gate whenever it is told to.
func tryRole(s *role.Stage) {
	d, err := OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	for {
		if _, ok := s.Heard(); !ok {
			return
		}
		g, err := d.TryLock(name)
		switch {
		case err != nil:
			s.Say("%v", err)
		case g == nil:
			s.Say("held")
		default:
			g.Unlock()
			s.Say("free")
		}
	}
}

func dir(t testing.TB) *Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(t.TempDir(), "pids"))
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lockIn(t testing.TB, d *Dir, patience time.Duration) (*Gate, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return d.Lock(ctx, name)
}

// held is the error of a gate that was not to be had within patience.
func held(t testing.TB, d *Dir, patience time.Duration) *HeldError {
	t.Helper()
	g, err := lockIn(t, d, patience)
	var e *HeldError
	if !errors.As(err, &e) {
		g.Unlock()
		t.Fatalf("the gate was not held: %v", err)
	}
	return e
}

// quickly fails the test when f takes longer than anything that is refused may.
func quickly(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatalf("%s waits", what)
	}
}

func rootOnly(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// full says that the long form of a test was asked for.
func full() bool { return os.Getenv("PG_FULL") != "" }

// countRole adds to a number in a file under the gate, with several goroutines.
func countRole(s *role.Stage) {
	a := s.Args()
	d, err := OpenExisting(a[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	file := a[1]
	workers, _ := strconv.Atoi(a[2])
	rounds, _ := strconv.Atoi(a[3])
	s.Say("ready")
	s.UntilTold()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rounds {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				g, err := d.Lock(ctx, name)
				cancel()
				if err != nil {
					s.Say("%v", err)
					return
				}
				text, _ := os.ReadFile(file)
				n, _ := strconv.Atoi(string(text))
				_ = os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
				g.Unlock()
			}
		})
	}
	all.Wait()
	s.Say("done")
	s.UntilTestEnds()
}

// Two that were inside at once lose a count.
func TestOneInsideAtATime(t *testing.T) {
	processes, workers, rounds, patience := 16, 4, 50, role.Patience
	if full() {
		processes, workers, rounds, patience = 64, 1, 1000, 10*time.Minute
	}
	d := dir(t)
	file := filepath.Join(t.TempDir(), "count")
	kids := make([]*role.Child, processes)
	for i := range kids {
		kids[i] = role.Start(t, "count", d.Path(), file, strconv.Itoa(workers), strconv.Itoa(rounds))
	}
	for _, k := range kids {
		k.Says("ready")
	}
	for _, k := range kids {
		k.Tell("go")
	}
	for _, k := range kids {
		if line := k.LineWithin(patience); line != "done" {
			t.Fatal(line)
		}
	}
	text, err := os.ReadFile(file)
	must(t, err)
	if want := strconv.Itoa(processes * workers * rounds); string(text) != want {
		t.Fatalf("counted %s of %s", text, want)
	}
}

func TestOneInsideAtATimeInOneProcess(t *testing.T) {
	rounds := 100
	if full() {
		rounds = 1000
	}
	d := dir(t)
	inside, count := 0, 0
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range rounds {
				g, err := lockIn(t, d, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				inside++
				if inside != 1 {
					t.Errorf("%d are inside", inside)
				}
				count++
				inside--
				g.Unlock()
			}
		})
	}
	all.Wait()
	if count != 64*rounds {
		t.Errorf("counted %d of %d", count, 64*rounds)
	}
}

// Goroutines wait for one gate together, however the directory was opened:
// each would otherwise ask the kernel for itself, and cost a descriptor.
func TestOneQueueForEveryHandleOfADirectory(t *testing.T) {
	d := dir(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(d.Path(), link))
	other, err := OpenExisting(link)
	must(t, err)
	defer other.Close()
	if other.Path() != d.Path() {
		t.Errorf("%s and %s are one directory", other.Path(), d.Path())
	}
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	defer g.Unlock()
	if e := held(t, other, 50*time.Millisecond); e.Holder != os.Getpid() {
		t.Errorf("held by %d", e.Holder)
	}
}

func TestKilledHolderFreesTheGateAtOnce(t *testing.T) {
	d := dir(t)
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	held(t, d, 50*time.Millisecond)
	k.Signal(syscall.SIGKILL)
	// It is not collected yet: a zombie named by the gate's young text holds
	// nothing either.
	start := time.Now()
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	defer g.Unlock()
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestStoppedHolderKeepsTheGate(t *testing.T) {
	d := dir(t)
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	k.Signal(syscall.SIGSTOP)
	stopped(t, k.PID())
	// However old it looks: the original broke a gate of 7 s.
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(d.Join(name+GateSuffix), old, old))
	e := held(t, d, 200*time.Millisecond)
	if e.Holder != k.PID() || e.State != "stopped" || !errors.Is(e, context.DeadlineExceeded) {
		t.Errorf("%+v", e)
	}
	for _, part := range []string{d.Join(name + GateSuffix), fmt.Sprintf("pid %d (stopped)", k.PID()), "nothing was started", fmt.Sprintf("kill -CONT %d", k.PID())} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("%q does not say %q", e, part)
		}
	}
	k.Signal(syscall.SIGCONT)
	k.Tell("leave")
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	g.Unlock()
}

func stopped(t testing.TB, pid int) {
	t.Helper()
	h, err := proc.Open(pid)
	must(t, err)
	defer h.Close()
	role.Within(t, role.Patience, "stopped", func() bool {
		s, err := h.State()
		return err == nil && s == proc.Stopped
	})
}

func TestHeldErrorSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		e    HeldError
		want string
	}{
		{HeldError{Holder: 7, State: "sleeping"}, "pid 7 (sleeping); nothing was started: end pid 7"},
		{HeldError{Holder: 7, State: "stopped"}, "pid 7 (stopped); nothing was started: let it go on with kill -CONT 7"},
		{HeldError{Holder: 7, State: "stopped by a debugger"}, "pid 7 (stopped by a debugger); nothing was started: detach the debugger"},
		{HeldError{Holder: 7}, "pid 7; nothing was started: end pid 7"},
		{HeldError{Holder: os.Getpid(), State: "running"}, "another thread of this process; nothing was started: try again"},
		{HeldError{}, "a process that left no name; nothing was started: end its holder"},
	} {
		if got := c.e.Error(); !strings.Contains(got, c.want) {
			t.Errorf("%q does not say %q", got, c.want)
		}
	}
}

func TestUnlinkedGateIsNoticed(t *testing.T) {
	d := dir(t)
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	if g.Check() != nil {
		t.Fatal("a gate that nobody touched")
	}
	must(t, os.Remove(d.Join(name+GateSuffix)))
	if g.Check() == nil {
		t.Error("an unlinked gate counts as intact")
	}
	// Another process gets the new file; the first holder must still see that
	// its own lock is worth nothing.
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	if g.Check() == nil {
		t.Error("the gate is another file by now")
	}
	g.Unlock()
	if e := held(t, d, 50*time.Millisecond); e.Holder != k.PID() {
		t.Errorf("held by %d, not by %d", e.Holder, k.PID())
	}
	k.Tell("leave")
	k.Says("out")
	g, err = lockIn(t, d, role.Patience)
	must(t, err)
	defer g.Unlock()
	if g.Check() != nil {
		t.Error("the new gate")
	}
}

// A lock that was waited for on a file that is gone by then excludes nobody.
func TestGateUnlinkedWhileSomebodyWaits(t *testing.T) {
	d := dir(t)
	for range 50 {
		k := make(chan *Gate)
		g, err := lockIn(t, d, role.Patience)
		must(t, err)
		// Another slot: as another process would, it asks the kernel itself.
		other := *d
		other.ino++
		go func() {
			g, err := lockIn(t, &other, role.Patience)
			if err != nil && !errors.Is(err, ErrMoved) {
				t.Error(err)
			}
			k <- g
		}()
		must(t, os.Remove(d.Join(name+GateSuffix)))
		g.Unlock()
		(<-k).Unlock()
	}
}

func TestReplacedDirectoryIsNoticed(t *testing.T) {
	for _, c := range []struct {
		what    string
		replace func(path string) error
	}{
		{"renamed", func(p string) error { return os.Rename(p, p+".old") }},
		{"renamed, a new one in its place", func(p string) error {
			return errors.Join(os.Rename(p, p+".old"), os.Mkdir(p, 0o700))
		}},
		{"renamed, a link to it in its place", func(p string) error {
			return errors.Join(os.Rename(p, p+".old"), os.Symlink(p+".old", p))
		}},
		{"removed", os.RemoveAll},
		{"removed, a new one in its place", func(p string) error { return errors.Join(os.RemoveAll(p), os.Mkdir(p, 0o700)) }},
		{"a file in the place of the directory above", func(p string) error {
			up := filepath.Dir(p)
			return errors.Join(os.Rename(up, up+".old"), os.WriteFile(up, nil, 0o600))
		}},
		{"removed, a file in its place", func(p string) error { return errors.Join(os.RemoveAll(p), os.WriteFile(p, nil, 0o600)) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := dir(t)
			g, err := lockIn(t, d, role.Patience)
			must(t, err)
			if d.Moved() {
				t.Fatal("a directory that nobody touched")
			}
			must(t, c.replace(d.Path()))
			if !d.Moved() || g.Check() == nil {
				t.Errorf("moved %t, intact %t", d.Moved(), g.Check() == nil)
			}
			g.Unlock()
			quickly(t, "a lock in it", func() {
				g, err := lockIn(t, d, role.Patience)
				if !errors.Is(err, ErrMoved) {
					t.Errorf("%v, not %v", err, ErrMoved)
				}
				g.Unlock()
			})
		})
	}
}

func TestUnlockReachesCopiesOfAForkedChild(t *testing.T) {
	d := dir(t)
	other := role.Start(t, "try", d.Path())
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	c := role.Command("inherit")
	c.ExtraFiles = []*os.File{g.f}
	k := role.Run(t, c)
	k.Says("here")
	other.Tell("try")
	other.Says("held")
	g.Unlock()
	other.Tell("try")
	other.Says("free")
}

// The original makes its gates by hard link and takes no kernel lock.
func TestGateTextOfTheOriginal(t *testing.T) {
	alive := role.Program(t, "cat").PID()
	zombie := role.Program(t, "true")
	h, err := proc.Open(zombie.PID())
	must(t, err)
	defer h.Close()
	must(t, h.Wait(context.Background()))
	gone := role.Program(t, "true")
	gone.Wait()
	for _, c := range []struct {
		what string
		text string
		age  time.Duration
		held bool
	}{
		{"young, another live process", fmt.Sprintf("%d 0 1 %d", alive, time.Now().UnixMilli()), 0, true},
		{"young, a bare pid", strconv.Itoa(alive), 6 * time.Second, true},
		{"old", fmt.Sprintf("%d 0 1 1", alive), 8 * time.Second, false},
		{"from the future", fmt.Sprintf("%d 0 1 1", alive), -time.Hour, false},
		{"a dead process", fmt.Sprintf("%d 0 1 1", gone.PID()), 0, false},
		{"a zombie", fmt.Sprintf("%d 0 1 1", zombie.PID()), 0, false},
		{"ourselves", fmt.Sprintf("%d 0 1 1", os.Getpid()), 0, false},
		{"no text", "", 0, false},
		{"no number", "hello 1", 0, false},
		{"a group", fmt.Sprintf("-%d 0 1 1", alive), 0, false},
		{"a huge number", "99999999999999999999 0 1", 0, false},
		{"bytes", "\x00\xff\x00", 0, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := dir(t)
			tmp := d.Join("made")
			must(t, os.WriteFile(tmp, []byte(c.text), 0o600))
			at := time.Now().Add(-c.age)
			must(t, os.Chtimes(tmp, at, at))
			must(t, os.Link(tmp, d.Join(name+GateSuffix)))
			must(t, os.Remove(tmp))
			if c.held {
				if e := held(t, d, 50*time.Millisecond); e.Holder != alive {
					t.Errorf("held by %d", e.Holder)
				}
				return
			}
			g, err := lockIn(t, d, 5*time.Second) // it would count for 7
			must(t, err)
			g.Unlock()
		})
	}
}

func TestGateTextNamesTheHolderWhileInside(t *testing.T) {
	d := dir(t)
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	text, err := os.ReadFile(d.Join(name + GateSuffix))
	must(t, err)
	if !strings.HasPrefix(string(text), strconv.Itoa(os.Getpid())+" ") {
		t.Errorf("inside: %q", text)
	}
	g.Unlock()
	text, err = os.ReadFile(d.Join(name + GateSuffix))
	must(t, err)
	if len(text) > 0 {
		t.Errorf("left: %q", text)
	}
}

// odd puts things that are no regular file under a name.
func odd(t *testing.T, path string) map[string]func() {
	target := filepath.Join(t.TempDir(), "target")
	all := map[string]func(){
		"symbolic link to a file": func() {
			must(t, os.WriteFile(target, []byte("1\n1\n"), 0o600))
			must(t, os.Symlink(target, path))
		},
		"dangling symbolic link": func() { must(t, os.Symlink(target+".none", path)) },
		"FIFO":                   func() { must(t, unix.Mkfifo(path, 0o600)) },
		"directory":              func() { must(t, os.Mkdir(path, 0o700)) },
		"socket": func() {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { l.Close() })
		},
	}
	if os.Geteuid() == 0 {
		all["device"] = func() { must(t, unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))) } // /dev/zero
	}
	return all
}

func TestOnlyRegularFilesUnderOurNames(t *testing.T) {
	const token = "1.0.1.0123456789abcdef"
	for _, file := range []string{name + RecordSuffix, name + GateSuffix, name + ExitSuffix, name + ReapingSuffix, LifeName(name, token)} {
		for what := range odd(t, "") {
			t.Run(file+" is a "+what, func(t *testing.T) {
				// The path of a socket is at most 107 bytes long.
				d, err := OpenDir(mkdirTemp(t))
				must(t, err)
				t.Cleanup(func() { d.Close() })
				odd(t, d.Join(file))[what]()
				for _, flag := range []int{unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR | unix.O_CREAT} {
					quickly(t, "opening it", func() {
						f, err := d.Open(file, flag, 0o600)
						if err == nil {
							f.Close()
							t.Errorf("flags %#x: it was opened", flag)
							return
						}
						if !strings.Contains(err.Error(), d.Join(file)) || !strings.Contains(err.Error(), "regular file") && !strings.Contains(err.Error(), "is a directory") && !strings.Contains(err.Error(), "symbolic link") {
							t.Errorf("flags %#x: %v", flag, err)
						}
					})
				}
				quickly(t, "asking for it", func() {
					if strings.Contains(file, lifeInfix) {
						if a := d.LifeHeld(name, token); a != proc.Unknown {
							t.Errorf("its lock is held: %s", a)
						}
						if f, err := d.CreateLife(name, token); !errors.Is(err, fs.ErrExist) {
							f.Close()
							t.Errorf("made over it: %v", err)
						}
					}
					if file == name+ReapingSuffix && d.ReapingHeld(name) != proc.Unknown {
						t.Error("its lock is known")
					}
					if file == name+GateSuffix {
						g, err := lockIn(t, d, role.Patience)
						if err == nil {
							g.Unlock()
							t.Error("it was locked")
						}
					}
				})
				if _, err := os.Lstat(d.Join(file)); err != nil {
					t.Errorf("it is gone: %v", err)
				}
			})
		}
	}
}

func mkdirTemp(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "pg")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

func TestOpenDir(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", "b")
	old := unix.Umask(0)
	d, err := OpenDir(path)
	unix.Umask(old)
	must(t, err)
	defer d.Close()
	st, err := os.Stat(path)
	must(t, err)
	if st.Mode().Perm() != 0o700 {
		t.Errorf("mode %o", st.Mode().Perm())
	}
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	must(t, os.Symlink("loop", filepath.Join(root, "loop")))
	for _, bad := range []string{"file", "file/under", "fifo", "loop"} {
		quickly(t, bad, func() {
			if _, err := OpenDir(filepath.Join(root, bad)); err == nil || !strings.Contains(err.Error(), filepath.Join(root, bad)) {
				t.Errorf("%s: %v", bad, err)
			}
		})
	}
	if _, err := OpenExisting(filepath.Join(root, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(root, "none")); err == nil {
		t.Error("it was made")
	}
}

func TestNetworkMountsAreRefused(t *testing.T) {
	path := t.TempDir()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what was forgotten
	before := files(t)
	defer func() { statfs = unix.Fstatfs }()
	for magic, kind := range remote {
		statfs = func(fd int, st *unix.Statfs_t) error {
			err := unix.Fstatfs(fd, st)
			st.Type = int64(int32(magic)) // as 32-bit systems report it
			return err
		}
		_, err := OpenDir(path)
		var unfit *UnfitError
		if !errors.As(err, &unfit) || unfit.Mount != kind || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "local disk") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	statfs = func(int, *unix.Statfs_t) error { return unix.EPERM }
	d, err := OpenDir(path)
	must(t, err) // what cannot be asked is tried
	d.Close()
	if now := files(t); now != before {
		t.Errorf("%d descriptors, before %d", now, before)
	}
}

func files(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

// A select with two ready channels takes one of them by chance: asked with a
// context that had ended, a free gate was refused every second time.
func TestTryLockOfAFreeGate(t *testing.T) {
	d := dir(t)
	for i := range 200 {
		g, err := d.TryLock(name)
		must(t, err)
		if g == nil {
			t.Fatalf("refused the %dth time, and nobody has it", i+1)
		}
		g.Unlock()
	}
}

func TestTryLockOfAHeldGate(t *testing.T) {
	d := dir(t)
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	for range 50 {
		if g, err := d.TryLock(name); g != nil || err != nil {
			t.Fatal(g, err)
		}
	}
	k.Tell("leave")
	k.Says("out")
	g, err := d.TryLock(name)
	must(t, err)
	for range 50 { // by ourselves
		if g, err := d.TryLock(name); g != nil || err != nil {
			t.Fatal(g, err)
		}
	}
	g.Unlock()
	must(t, os.Remove(d.Join(name+GateSuffix)))
	must(t, os.Mkdir(d.Join(name+GateSuffix), 0o700))
	if g, err := d.TryLock(name); g != nil || err == nil {
		t.Error("a directory was locked")
	}
}

func TestCancelledWaitsLeaveNothing(t *testing.T) {
	d := dir(t)
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	goroutines, open := runtime.NumGoroutine(), files(t)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := d.Lock(ctx, name)
			var e *HeldError
			if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || e.Holder != k.PID() {
				t.Error(err)
			}
		})
	}
	all.Wait()
	role.Within(t, role.Patience, "goroutines and descriptors as before", func() bool {
		return runtime.NumGoroutine() <= goroutines && files(t) <= open
	})
	inside.Lock()
	defer inside.Unlock()
	if len(inside.slots) != 0 {
		t.Errorf("%d gates are still queued for", len(inside.slots))
	}
}

func TestUnlockTwice(t *testing.T) {
	d := dir(t)
	g, err := lockIn(t, d, role.Patience)
	must(t, err)
	g.Unlock()
	g.Unlock()
	(*Gate)(nil).Unlock()
	k := role.Start(t, "gate", d.Path())
	k.Says("in")
	g.Unlock()
	held(t, d, 20*time.Millisecond)
}

// mountedRole has a mount namespace of its own, which ends with it.
func mountedRole(s *role.Stage) {
	path, what := s.Args()[0], s.Args()[1]
	if err := os.Mkdir(path, 0o700); err != nil {
		s.Say("%v", err)
		return
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=16k,mode=700"); err != nil {
		s.Say("skip: %v", err)
		return
	}
	d, err := OpenExisting(path)
	if err != nil {
		s.Say("%v", err)
		return
	}
	lock := func(name string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g, err := d.Lock(ctx, name)
		g.Unlock()
		return err
	}
	switch what {
	case "read-only":
		if err := lock(name); err != nil {
			s.Say("%v", err)
			return
		}
		if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			s.Say("skip: %v", err)
			return
		}
		start := time.Now()
		for _, n := range []string{name, "other"} {
			err := lock(n)
			s.Say("%t %t %v", errors.Is(err, unix.EROFS), time.Since(start) < time.Second, err)
		}
		_, err = d.CreateLife(name, "token")
		s.Say("%t %v", errors.Is(err, unix.EROFS), err)
		_, err = OpenDir(filepath.Join(path, "new"))
		s.Say("%t %v", errors.Is(err, unix.EROFS), err)
	case "full":
		if err := os.WriteFile(filepath.Join(path, "filler"), make([]byte, 16<<10), 0o600); err != nil {
			s.Say("%v", err)
			return
		}
		s.Say("%v", lock(name))
		_, err = d.CreateLife(name, "token")
		s.Say("%t %t", errors.Is(err, unix.ENOSPC), d.Exists(LifeName(name, "token")))
	}
}

func mounted(t *testing.T, what string) *role.Child {
	rootOnly(t)
	c := role.Command("mounted", filepath.Join(t.TempDir(), "m"), what)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return role.Run(t, c)
}

func TestReadOnlyFileSystem(t *testing.T) {
	k := mounted(t, "read-only")
	for i, start := range []string{"true true open ", "true true open ", "true open ", "true pidDir "} {
		line := k.Line()
		if i == 0 && strings.HasPrefix(line, "skip") {
			t.Skip(line)
		}
		if !strings.HasPrefix(line, start) || !strings.Contains(line, "read-only file system") {
			t.Errorf("%d: %s", i, line)
		}
	}
}

// A full disk takes no lock away; a life file that could not be allocated is
// not left behind.
func TestFullDisk(t *testing.T) {
	k := mounted(t, "full")
	line := k.Line()
	if strings.HasPrefix(line, "skip") {
		t.Skip(line)
	}
	if line != "<nil>" {
		t.Errorf("lock: %s", line)
	}
	k.Says("true false")
}

// lifeRole inherits a life file, and hands it on when it is told to.
func lifeRole(s *role.Stage) {
	s.Say("has it")
	s.UntilTestEnds()
}

func TestLifeLockEndsWithItsLastHolder(t *testing.T) {
	const token = "1.0.1.0123456789abcdef"
	d := dir(t)
	if a := d.LifeHeld(name, token); a != proc.No {
		t.Errorf("no file: %s", a)
	}
	f, err := d.CreateLife(name, token)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Size != LifeSize || st.Blocks*512 < LifeSize || st.Mode&0o777 != 0o600 {
		t.Errorf("size %d, blocks %d, mode %o", st.Size, st.Blocks, st.Mode&0o777)
	}
	if a := d.LifeHeld(name, token); a != proc.Yes {
		t.Errorf("made: %s", a)
	}
	if a := LockHeld(f); a != proc.No {
		t.Errorf("asked through the owner's own file: %s", a)
	}
	if _, err := d.CreateLife(name, token); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	second, err := d.Open(LifeName(name, token), unix.O_RDWR, 0)
	must(t, err)
	defer second.Close()
	if err := LockFile(second); !errors.Is(err, ErrBusy) {
		t.Errorf("locked twice: %v", err)
	}
	kids := make([]*role.Child, 2)
	for i := range kids {
		c := role.Command("life")
		c.ExtraFiles = []*os.File{f}
		kids[i] = role.Run(t, c)
		kids[i].Says("has it")
	}
	must(t, f.Close())
	for i, k := range kids {
		if a := d.LifeHeld(name, token); a != proc.Yes {
			t.Fatalf("%d holders left: %s", 2-i, a)
		}
		if i == 0 {
			k.Kill()
		} else {
			k.End()
		}
	}
	if a := d.LifeHeld(name, token); a != proc.No {
		t.Errorf("nobody left: %s", a)
	}
	must(t, LockFile(second))
}

// The descriptor closes on exec in everything that is not handed it.
func TestLifeLockIsNotInheritedByAccident(t *testing.T) {
	d := dir(t)
	f, err := d.CreateLife(name, "t")
	must(t, err)
	role.Program(t, "cat")
	must(t, f.Close())
	if a := d.LifeHeld(name, "t"); a != proc.No {
		t.Errorf("held: %s", a)
	}
}

// A probe that tries for the lock would make an owner that comes meanwhile fail.
func TestAskingNeverMakesAnOwnerFail(t *testing.T) {
	d := dir(t)
	f, err := d.CreateLife(name, "t")
	must(t, err)
	must(t, f.Close())
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					d.LifeHeld(name, "t")
				}
			}
		})
	}
	for range 2000 {
		f, err := d.Open(LifeName(name, "t"), unix.O_RDWR, 0)
		must(t, err)
		if err := LockFile(f); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	close(stop)
	all.Wait()
}

func TestReapingHeld(t *testing.T) {
	d := dir(t)
	if a := d.ReapingHeld(name); a != proc.No {
		t.Errorf("no file: %s", a)
	}
	must(t, os.WriteFile(d.Join(name+ReapingSuffix), nil, 0o600))
	if a := d.ReapingHeld(name); a != proc.No {
		t.Errorf("free: %s", a)
	}
	f, err := d.Open(name+ReapingSuffix, unix.O_RDWR, 0)
	must(t, err)
	must(t, LockFile(f))
	if a := d.ReapingHeld(name); a != proc.Yes {
		t.Errorf("locked: %s", a)
	}
	f.Close()
	if a := d.ReapingHeld(name); a != proc.No {
		t.Errorf("left: %s", a)
	}
}

func TestNames(t *testing.T) {
	d := dir(t)
	for _, n := range []string{"b.pid", "a.pid", "a.pid.keeper.2", "a.pid.keeper.1", "ab.pid"} {
		must(t, os.WriteFile(d.Join(n), nil, 0o600))
	}
	for prefix, want := range map[string]string{"": "[a.pid a.pid.keeper.1 a.pid.keeper.2 ab.pid b.pid]", "a.pid.keeper.": "[a.pid.keeper.1 a.pid.keeper.2]", "z": "[]"} {
		for range 2 { // a second list begins at the start again
			got, err := d.Names(prefix)
			must(t, err)
			if fmt.Sprint(got) != want {
				t.Errorf("%q: %v", prefix, got)
			}
		}
	}
}

// The name "a" may stand beside one called "a.pid.keeper.b": the files of the
// second begin like life files of the first, and its record was swept as one.
func TestLifeTokenOfAnotherName(t *testing.T) {
	for file, want := range map[string]string{
		LifeName("a", "1.0.1.0123456789abcdef"): "1.0.1.0123456789abcdef",
		LifeName("a", "77.2.9.m3f9a8b2"):        "77.2.9.m3f9a8b2", // the original's
		LifeName("b", "1"):                      "",
		"a.pid":                                 "",
		"a.pid.keeper.":                         "",
		"a.pid.keeper.b.pid":                    "",
		"a.pid.keeper.b.pid.claiming":           "",
		"a.pid.keeper.b.pid.exit":               "",
		"a.pid.keeper.b.pid.keeper.1.0.1.01234": "",
		"a.pid.keeper.b.pid.1.0.1.01234.tmp":    "",
	} {
		if got := LifeToken("a", file); got != want {
			t.Errorf("%s: %q, not %q", file, got, want)
		}
	}
}

func TestRenameAndRemove(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("a"), []byte("a"), 0o600))
	must(t, os.WriteFile(d.Join("b"), []byte("b"), 0o600))
	must(t, d.Rename("a", "b"))
	if text, _ := os.ReadFile(d.Join("b")); string(text) != "a" {
		t.Errorf("%q", text)
	}
	if err := d.Rename("a", "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, d.Remove("b"))
	must(t, d.Remove("b"))
	if d.Exists("b") {
		t.Error("it exists")
	}
	must(t, os.Symlink("nowhere", d.Join("l")))
	if !d.Exists("l") {
		t.Error("a dangling link exists")
	}
}
