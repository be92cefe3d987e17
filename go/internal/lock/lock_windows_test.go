package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"processguard/go/internal/proc"
	"processguard/go/internal/role"
)

func TestMain(m *testing.M) {
	role.Main(m, map[string]func(*role.Stage){
		"hold": func(s *role.Stage) {
			d, err := OpenExisting(s.Args()[0])
			if err != nil {
				s.Say("%v", err)
				return
			}
			if _, err = d.Lock(context.Background(), "agent"); err != nil {
				s.Say("%v", err)
				return
			}
			s.Say("inside")
			s.UntilTestEnds()
		},
		"count": func(s *role.Stage) {
			d, err := OpenExisting(s.Args()[0])
			for range 40 {
				if err != nil {
					break
				}
				err = addOne(d)
			}
			s.Say("%v", err)
		},
		"life": func(s *role.Stage) {
			d, err := OpenExisting(s.Args()[0])
			if err == nil && s.Args()[1] == "make" {
				_, err = d.CreateLife("agent", "t")
			} else if err == nil {
				_, err = d.KeepLife("agent", "t")
			}
			s.Say("%v", err)
			s.UntilTestEnds()
		},
	})
}

// addOne loses counts when two are inside.
func addOne(d *Dir) error {
	g, err := d.Lock(context.Background(), "agent")
	if err != nil {
		return err
	}
	defer g.Unlock()
	path := d.Join("count")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(string(text))
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dir(t testing.TB) *Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(t.TempDir(), "pids"))
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func TestOneInsideAtATime(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("count"), []byte("0"), 0o600))
	var kids []*role.Child
	for range 4 {
		kids = append(kids, role.Start(t, "count", d.Path()))
	}
	var own sync.WaitGroup
	for range 4 {
		own.Go(func() {
			for range 40 {
				if err := addOne(d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	own.Wait()
	for _, k := range kids {
		k.Says("<nil>")
	}
	text, err := os.ReadFile(d.Join("count"))
	must(t, err)
	if string(text) != "320" {
		t.Errorf("%s of 320", text)
	}
}

func TestKilledHolderFreesTheGate(t *testing.T) {
	d := dir(t)
	k := role.Start(t, "hold", d.Path())
	k.Says("inside")
	if g, err := d.TryLock("agent"); g != nil || err != nil {
		t.Fatalf("%v %v", g, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := d.Lock(ctx, "agent")
	var held *HeldError
	if !errors.As(err, &held) || held.Holder != k.PID() || held.State != "running" || !strings.Contains(err.Error(), fmt.Sprintf("end pid %d", k.PID())) {
		t.Errorf("%v", err)
	}
	// Names are the same to the file system in any case of letters.
	if g, err := d.TryLock("AGENT"); g != nil || err != nil {
		t.Errorf("%v %v", g, err)
	}
	k.Kill()
	ctx, cancel = context.WithTimeout(context.Background(), role.Patience)
	defer cancel()
	g, err := d.Lock(ctx, "agent")
	must(t, err)
	if g.Check() != nil {
		t.Error("not intact")
	}
	text, err := os.ReadFile(d.Join("agent.pid.claiming"))
	if err != nil || !strings.HasPrefix(string(text), strconv.Itoa(os.Getpid())+" ") {
		t.Errorf("the gate cannot be read while it is held: %q %v", text, err)
	}
	g.Unlock()
	if text, err := os.ReadFile(d.Join("agent.pid.claiming")); err != nil || len(text) != 0 {
		t.Errorf("%q %v", text, err)
	}
}

// wine says whether these are Wine's files: it keeps the name of a removed file
// that is locked, and of a removed directory that is open, until both are closed.
func wine() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}

func TestRemovedGateIsNoticed(t *testing.T) {
	if wine() {
		t.Skip("Wine keeps the name of a locked file")
	}
	d := dir(t)
	g, err := d.Lock(context.Background(), "agent")
	must(t, err)
	must(t, d.Remove("agent.pid.claiming"))
	if g.Check() == nil {
		t.Error("intact without its file")
	}
	must(t, os.WriteFile(d.Join("agent.pid.claiming"), nil, 0o600))
	if g.Check() == nil {
		t.Error("intact with another file")
	}
	g.Unlock()
}

func TestLifeIsHandedOver(t *testing.T) {
	d := dir(t)
	if a := d.LifeHeld("agent", "t"); a != proc.No {
		t.Errorf("no file: %v", a)
	}
	launcher := role.Start(t, "life", d.Path(), "make")
	launcher.Says("<nil>")
	if a := d.LifeHeld("agent", "t"); a != proc.Yes {
		t.Errorf("launcher: %v", a)
	}
	keeper := role.Start(t, "life", d.Path(), "keep")
	keeper.Says("<nil>")
	launcher.Kill()
	if a := d.LifeHeld("agent", "t"); a != proc.Yes {
		t.Errorf("keeper: %v", a)
	}
	if _, err := d.KeepLife("agent", "t"); !errors.Is(err, ErrBusy) {
		t.Errorf("two keepers: %v", err)
	}
	keeper.Kill()
	role.Within(t, role.Patience, "free", func() bool { return d.LifeHeld("agent", "t") == proc.No })
	f, err := d.KeepLife("agent", "t")
	must(t, err)
	f.Close()
}

// Whoever asks takes a lock for an instant; an owner must not take that for
// another owner.
func TestAskingNeverMakesAnOwnerFail(t *testing.T) {
	d := dir(t)
	f, err := d.CreateLife("agent", "t")
	must(t, err)
	f.Close()
	var over atomic.Bool
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for !over.Load() {
				if d.LifeHeld("agent", "t") == proc.Unknown {
					t.Error("unknown")
				}
			}
		})
	}
	for i := range 200 {
		f, err := d.KeepLife("agent", "t")
		if err != nil {
			t.Errorf("%d: %v", i, err)
			break
		}
		f.Close()
	}
	over.Store(true)
	all.Wait()
}

func TestReplacesUnderReaders(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("agent.pid"), []byte("0"), 0o600))
	var over atomic.Bool
	var reads atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for !over.Load() {
				f, err := d.Open("agent.pid", os.O_RDONLY, 0)
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				text, err := io.ReadAll(f)
				f.Close()
				if _, nerr := strconv.Atoi(string(text)); err != nil || nerr != nil {
					t.Errorf("read %q %v", text, err)
				}
				reads.Add(1)
				if wine() {
					time.Sleep(time.Millisecond) // Wine 10 replaces no file that is open
				}
			}
		})
	}
	for i := range 1000 {
		must(t, os.WriteFile(d.Join("new"), []byte(strconv.Itoa(i)), 0o600))
		if err := d.Rename("new", "agent.pid"); err != nil {
			t.Errorf("%d: %v", i, err)
			break
		}
	}
	over.Store(true)
	all.Wait()
	t.Logf("%d reads", reads.Load())
}

func TestRenameAndRemoveOfOpenFiles(t *testing.T) {
	if wine() {
		t.Skip("Wine 10 replaces no file that is open")
	}
	d := dir(t)
	must(t, os.WriteFile(d.Join("a"), []byte("a"), 0o600))
	must(t, os.WriteFile(d.Join("b"), []byte("b"), 0o400))
	a, err := d.Open("a", os.O_RDWR, 0)
	must(t, err)
	defer a.Close()
	b, err := d.Open("b", os.O_RDONLY, 0)
	must(t, err)
	defer b.Close()
	must(t, d.Rename("a", "b"))
	if text, err := os.ReadFile(d.Join("b")); err != nil || string(text) != "a" {
		t.Errorf("%q %v", text, err)
	}
	if text, err := io.ReadAll(b); err != nil || string(text) != "b" {
		t.Errorf("the replaced file reads %q %v", text, err)
	}
	must(t, d.Remove("b"))
	must(t, d.Remove("b"))
	if d.Exists("b") {
		t.Error("a removed file that is open has its name still")
	}
	// The name can be used at once.
	f, err := d.Open("b", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	f.Close()
	if _, err := d.Open("b", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if _, err := d.Open("none", os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if names, err := d.Names(""); err != nil || !slices.Equal(names, []string{"b"}) {
		t.Errorf("%q %v", names, err)
	}
}

// A reader that does not share the deletion holds a replace up only while it reads.
func TestReplaceWaitsForARudeReader(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("agent.pid"), []byte("old"), 0o600))
	name, err := windows.UTF16PtrFromString(d.Join("agent.pid"))
	must(t, err)
	rude, err := windows.CreateFile(name, windows.GENERIC_READ, windows.FILE_SHARE_READ, nil, windows.OPEN_EXISTING, 0, 0)
	must(t, err)
	must(t, os.WriteFile(d.Join("new"), []byte("new"), 0o600))
	go func() {
		time.Sleep(100 * time.Millisecond)
		windows.CloseHandle(rude)
	}()
	must(t, d.Rename("new", "agent.pid"))
}

func TestNamesThatAreNoFiles(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("a"), nil, 0o600))
	for _, name := range []string{"", ".", "..", `x\a`, "x/a", "a:stream", `..\a`} {
		if f, err := d.Open(name, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
			f.Close()
			t.Errorf("%q was opened", name)
		}
	}
	must(t, os.Mkdir(d.Join("sub"), 0o700))
	if _, err := d.Open("sub", os.O_RDONLY, 0); err == nil {
		t.Error("a directory was opened")
	}
	if err := os.Symlink(d.Join("a"), d.Join("link")); err != nil {
		t.Logf("no links here: %v", err)
	} else if f, err := d.Open("link", os.O_RDONLY, 0); err == nil {
		f.Close()
		t.Error("a link was followed")
	}
}

func TestRenameAndRemove(t *testing.T) {
	d := dir(t)
	must(t, os.WriteFile(d.Join("a"), []byte("a"), 0o600))
	must(t, os.WriteFile(d.Join("b"), []byte("b"), 0o400))
	must(t, d.Rename("a", "b"))
	if text, err := os.ReadFile(d.Join("b")); err != nil || string(text) != "a" || d.Exists("a") {
		t.Errorf("%q %v", text, err)
	}
	open, err := d.Open("b", os.O_RDONLY, 0)
	must(t, err)
	defer open.Close()
	must(t, d.Rename("b", "c"))
	if text, err := io.ReadAll(open); err != nil || string(text) != "a" {
		t.Errorf("%q %v", text, err)
	}
	must(t, d.Remove("c"))
	must(t, d.Remove("c"))
	if d.Exists("c") {
		t.Error("a removed file that is open has its name still")
	}
	f, err := d.Open("c", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	f.Close()
	if _, err := d.Open("c", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if _, err := d.Open("none", os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if names, err := d.Names(""); err != nil || !slices.Equal(names, []string{"c"}) {
		t.Errorf("%q %v", names, err)
	}
}

func TestDirectory(t *testing.T) {
	d := dir(t)
	if d.Moved() {
		t.Error("moved")
	}
	again, err := OpenExisting(d.Path())
	must(t, err)
	defer again.Close()
	dev, ino := d.Inode()
	if adev, aino := again.Inode(); dev != adev || ino != aino || ino == 0 {
		t.Errorf("%d:%d and %d:%d", dev, ino, adev, aino)
	}
	if _, err := OpenExisting(filepath.Join(d.Path(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(d.Join("file"), nil, 0o600))
	if _, err := OpenExisting(d.Join("file")); err == nil {
		t.Error("a file opened as a directory")
	}
	must(t, os.Remove(d.Join("file")))
	if wine() {
		t.Skip("Wine keeps the name of an open directory")
	}
	if err := os.Remove(d.Path()); err != nil {
		t.Fatal(err)
	}
	if !d.Moved() {
		t.Error("removed, and not noticed")
	}
	if _, err := d.Lock(context.Background(), "agent"); !errors.Is(err, ErrMoved) {
		t.Errorf("gate in a removed directory: %v", err)
	}
}

func TestOwner(t *testing.T) {
	d := dir(t)
	f, err := d.Open("mine", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	if uid, err := Owner(f); uid != os.Geteuid() || err != nil {
		t.Errorf("%d %v", uid, err)
	}
}
