package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// patience is for what must happen; how long it took is no test's subject.
const patience = 10 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("1\n"), 0o600))
}

func hubFor(t *testing.T, dir string) *Hub {
	t.Helper()
	h, err := For(dir)
	must(t, err)
	t.Cleanup(h.Release)
	return h
}

func subscribe(t *testing.T, h *Hub, name string) *Sub {
	t.Helper()
	s := h.Subscribe(name)
	t.Cleanup(s.Close)
	return s
}

func woken(t *testing.T, s *Sub, by string) {
	t.Helper()
	select {
	case <-s.C():
	case <-time.After(patience):
		t.Fatalf("%s was not woken by %s", s.name, by)
	}
}

// asleep relies on a later event as the proof that the earlier ones were
// handled: events of one directory arrive in order.
func asleep(t *testing.T, h *Hub, s *Sub, by string) {
	t.Helper()
	fence := subscribe(t, h, "fence")
	write(t, filepath.Join(h.path, "fence.pid"))
	woken(t, fence, "its record")
	select {
	case <-s.C():
		t.Fatalf("%s was woken by %s", s.name, by)
	default:
	}
}

// quiet swallows what earlier writes of the test caused.
func quiet(t *testing.T, h *Hub, s *Sub) {
	t.Helper()
	fence := subscribe(t, h, "fence")
	write(t, filepath.Join(h.path, "fence.pid"))
	woken(t, fence, "its record")
	select {
	case <-s.C():
	default:
	}
}

func goneIn(t *testing.T, h *Hub, what string) {
	t.Helper()
	select {
	case <-h.Gone():
	case <-time.After(patience):
		t.Fatalf("%s went unnoticed", what)
	}
}

func TestNameOf(t *testing.T) {
	for file, want := range map[string]string{
		"agent.pid":             "agent",
		"agent.pid.exit":        "agent",
		"agent.pid.reaping":     "agent",
		"a.pid.exit.pid":        "a.pid.exit",
		"a.pid.pid":             "a.pid",
		"agent.pid.claiming":    "",
		"agent.pid.keeper.1.2":  "",
		"agent.pid.exit.12.tmp": "",
		".pid":                  "",
		"":                      "",
	} {
		got, _ := nameOf([]byte(file))
		if string(got) != want {
			t.Errorf("nameOf(%q) = %q, want %q", file, got, want)
		}
	}
}

func TestWakes(t *testing.T) {
	for _, suffix := range suffixes {
		t.Run(suffix, func(t *testing.T) {
			dir := t.TempDir()
			h := hubFor(t, dir)
			s := subscribe(t, h, "agent")
			other := subscribe(t, h, "agen")
			file, temp := filepath.Join(dir, "agent"+suffix), filepath.Join(dir, "agent"+suffix+".77.tmp")
			for _, step := range []struct {
				by string
				do func() error
			}{
				{"a rename into place", func() error { write(t, temp); return os.Rename(temp, file) }},
				{"a write", func() error { return os.WriteFile(file, []byte("2"), 0o600) }},
				{"a rename away", func() error { return os.Rename(file, temp) }},
				{"a link", func() error { return os.Link(temp, file) }},
				{"a removal", func() error { return os.Remove(file) }},
			} {
				quiet(t, h, s)
				must(t, step.do())
				woken(t, s, step.by)
			}
			asleep(t, h, other, "another name's files")
		})
	}
}

// A waiter that takes the gate to look at a record would wake itself for ever.
func TestGateAndTemporaryFilesWakeNobody(t *testing.T) {
	dir := t.TempDir()
	h := hubFor(t, dir)
	s := subscribe(t, h, "agent")
	for _, file := range []string{"agent.pid.claiming", "agent.pid.keeper.1.0.2.ffff", "agent.pid.12.0.tmp", "agent.pid.exit.12.tmp", "agent", "agent.pi"} {
		write(t, filepath.Join(dir, file))
		must(t, os.Remove(filepath.Join(dir, file)))
	}
	asleep(t, h, s, "a gate, a life file or a temporary file")
}

// Nobody reading C must neither lose the last wake nor stop the hub.
func TestWakesCoalesceAndNeverBlock(t *testing.T) {
	dir := t.TempDir()
	h := hubFor(t, dir)
	lazy, eager := subscribe(t, h, "agent"), subscribe(t, h, "agent")
	for range 200 {
		write(t, filepath.Join(dir, "agent.pid"))
	}
	woken(t, eager, "200 writes")
	quiet(t, h, eager)
	woken(t, lazy, "200 writes")
	asleep(t, h, lazy, "a wake that was already delivered")
}

func TestClosedSubscriptionIsSilent(t *testing.T) {
	dir := t.TempDir()
	h := hubFor(t, dir)
	s, other := subscribe(t, h, "agent"), subscribe(t, h, "agent")
	s.Close()
	s.Close()
	write(t, filepath.Join(dir, "agent.pid"))
	woken(t, other, "a write")
	select {
	case <-s.C():
		t.Fatal("a closed subscription was woken")
	default:
	}
}

func TestOneHubPerDirectory(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	a, b := hubFor(t, dir), hubFor(t, link)
	if a != b {
		t.Fatal("two hubs for one directory")
	}
	c := hubFor(t, t.TempDir())
	if a == c {
		t.Fatal("one hub for two directories")
	}
}

func TestForRefusesWhatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"))
	if h, err := For(filepath.Join(dir, "file")); err == nil {
		h.Release()
		t.Error("a file was watched")
	}
	h, err := For(filepath.Join(dir, "absent"))
	if err == nil {
		h.Release()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// The ways a directory stops being what its path leads to. It matters most
// while somebody has it open, as every keeper has: the kernel sends no event
// of the directory's own then.
func TestGone(t *testing.T) {
	for _, held := range []bool{false, true} {
		for _, filled := range []bool{false, true} {
			for what, do := range map[string]func(root, dir string) error{
				"removed":        func(_, dir string) error { return os.RemoveAll(dir) },
				"moved":          func(root, dir string) error { return os.Rename(dir, filepath.Join(root, "else")) },
				"parent moved":   func(root, dir string) error { return os.Rename(filepath.Dir(dir), filepath.Join(root, "else")) },
				"ancestor moved": func(root, dir string) error { return os.Rename(filepath.Join(root, "a"), filepath.Join(root, "else")) },
				"all removed":    func(root, _ string) error { return os.RemoveAll(filepath.Join(root, "a")) },
				"replaced by a rename": func(root, dir string) error {
					must(t, os.RemoveAll(filepath.Join(dir, "agent.pid")))
					must(t, os.Mkdir(filepath.Join(root, "new"), 0o700))
					return syscall.Rename(filepath.Join(root, "new"), dir) // os.Rename refuses to
				},
				"removed and made again": func(_, dir string) error { must(t, os.RemoveAll(dir)); return os.Mkdir(dir, 0o700) },
				"replaced by a symlink": func(root, dir string) error {
					must(t, os.Rename(dir, filepath.Join(root, "else")))
					return os.Symlink(t.TempDir(), dir)
				},
			} {
				t.Run(fmt.Sprintf("%s/held=%v/filled=%v", what, held, filled), func(t *testing.T) {
					root := t.TempDir()
					dir := filepath.Join(root, "a", "b", "pids")
					must(t, os.MkdirAll(dir, 0o700))
					if filled {
						write(t, filepath.Join(dir, "agent.pid"))
					}
					h := hubFor(t, dir)
					if held {
						f, err := os.Open(dir)
						must(t, err)
						defer f.Close()
					}
					s := subscribe(t, h, "nobody")
					must(t, do(root, dir))
					goneIn(t, h, what)
					woken(t, s, what)
				})
			}
		}
	}
}

// paused keeps the hub inside the delivery of one event while do runs, so that
// it sees nothing but the outcome.
func paused(t *testing.T, h *Hub, do func()) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	write(t, filepath.Join(h.path, "fence.pid"))
	do()
}

// A directory that moves away and comes back is the same directory, and what
// is above it now has to be watched instead of what was.
func TestMovedAndBackIsNotGone(t *testing.T) {
	root := t.TempDir()
	parent, aside := filepath.Join(root, "a"), filepath.Join(root, "aside")
	dir := filepath.Join(parent, "pids")
	must(t, os.MkdirAll(dir, 0o700))
	write(t, filepath.Join(dir, "agent.pid"))
	h := hubFor(t, dir)
	s := subscribe(t, h, "agent")
	paused(t, h, func() {
		must(t, os.Rename(parent, aside))
		must(t, os.Mkdir(parent, 0o700))
		must(t, os.Rename(filepath.Join(aside, "pids"), dir))
	})
	asleep(t, h, s, "a move there and back")
	select {
	case <-h.Gone():
		t.Fatal("gone, and yet there")
	default:
	}
	must(t, os.Rename(parent, filepath.Join(root, "c")))
	goneIn(t, h, "a move of the new parent")
}

// The hub used to ask the parent for the removal of an emptied directory, and
// to forget that it may have been removed before it got to ask.
func TestRemovedBeforeTheLastDeletionIsRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pids")
	must(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "agent.pid"))
	h := hubFor(t, dir)
	held, err := os.Open(dir)
	must(t, err)
	defer held.Close()
	paused(t, h, func() { must(t, os.RemoveAll(dir)) })
	goneIn(t, h, "the removal")
}

// ext4 hands the inode number of a removed directory to the next one, so the
// number alone made For hand out a hub that said Gone right after.
func TestForAfterRemovalIsFresh(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pids")
	for i := range 300 {
		must(t, os.Mkdir(dir, 0o700))
		h, err := For(dir)
		must(t, err)
		must(t, os.Remove(dir))
		must(t, os.Mkdir(dir, 0o700))
		again, err := For(dir)
		must(t, err)
		if h == again {
			t.Fatalf("round %d: the removed directory's hub came back", i)
		}
		goneIn(t, h, "the removal")
		s := again.Subscribe("agent")
		write(t, filepath.Join(dir, "agent.pid"))
		woken(t, s, "a write in the new directory")
		s.Close()
		select {
		case <-again.Gone():
			t.Fatalf("round %d: the new directory's hub says gone", i)
		default:
		}
		must(t, os.RemoveAll(dir))
		h.Release()
		again.Release()
	}
}
