package watch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what may leak: descriptors and goroutines.
type usage struct{ files, goroutines int }

func count(t *testing.T) usage {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return usage{len(files), runtime.NumGoroutine()}
}

// settle waits for the use to fall back to what it was: a closed hub's
// goroutine ends a moment after Release.
func settle(t *testing.T, before usage) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		now := count(t)
		if now.files <= before.files && now.goroutines <= before.goroutines {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %+v, before %+v", now, before)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestNothingLeftBehind(t *testing.T) {
	before := count(t)
	for range 20 {
		root := t.TempDir()
		kept, lost := filepath.Join(root, "kept"), filepath.Join(root, "lost")
		must(t, os.Mkdir(kept, 0o700))
		must(t, os.Mkdir(lost, 0o700))
		a, err := For(kept)
		must(t, err)
		b, err := For(lost)
		must(t, err)
		a.Subscribe("agent").Close()
		must(t, os.Remove(lost))
		goneIn(t, b, "the removal")
		a.Release()
		b.Release()
	}
	settle(t, before)
	if len(hubs) != 0 {
		t.Errorf("%d hubs are still registered", len(hubs))
	}
}

func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	before := count(t)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				h, err := For(dir)
				if err != nil {
					t.Error(err)
					return
				}
				name := "n" + strconv.Itoa(i)
				s := h.Subscribe(name)
				if err := os.WriteFile(filepath.Join(dir, name+".pid"), nil, 0o600); err != nil {
					t.Error(err)
				}
				select {
				case <-s.C():
				case <-time.After(patience):
					t.Errorf("%s: not woken", name)
				}
				s.Close()
				h.Release()
			}
		})
	}
	all.Wait()
	settle(t, before)
}

// watched is what the kernel says the instance watches: inode -> mask.
func watched(t *testing.T, h *Hub) map[uint64]uint32 {
	t.Helper()
	h.mu.Lock()
	fd := h.kernel.fd
	h.mu.Unlock()
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	must(t, err)
	masks := map[uint64]uint32{}
	for line := range bytes.Lines(text) {
		var wd, dev int
		var ino uint64
		var mask uint32
		if n, _ := fmt.Sscanf(string(line), "inotify wd:%x ino:%x sdev:%x mask:%x", &wd, &ino, &dev, &mask); n == 4 {
			masks[ino] = mask
		}
	}
	return masks
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

// A pid directory in /tmp must not wake its keeper for every file somebody
// deletes in /tmp; only an empty one has to listen there.
func TestParentIsListenedToOnlyWhileEmpty(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pids")
	must(t, os.Mkdir(dir, 0o700))
	h := hubFor(t, dir)
	s := subscribe(t, h, "agent")
	parent := inode(t, root)
	expect := func(when string, wide bool) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			got := watched(t, h)[parent]
			if got&unix.IN_MOVE_SELF != 0 && (got&unix.IN_DELETE != 0) == wide {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the parent's mask is %#x", when, got)
			}
			time.Sleep(time.Millisecond)
		}
	}
	expect("empty at first", true)
	write(t, filepath.Join(dir, "agent.pid"))
	woken(t, s, "its record")
	expect("filled", false)
	must(t, os.Remove(filepath.Join(dir, "agent.pid")))
	woken(t, s, "its record's removal")
	expect("emptied", true)
}

func TestOverflowWakesEverybody(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	if limit > 100_000 {
		t.Skipf("max_queued_events is %d, filling it takes too long", limit)
	}
	dir := t.TempDir()
	h := hubFor(t, dir)
	s := subscribe(t, h, "agent")
	noise := subscribe(t, h, "noise")
	h.mu.Lock() // the hub stops at the first event it wants to deliver
	write(t, filepath.Join(dir, "noise.pid"))
	for i := 0; i <= limit; i++ {
		// Names differ, or the kernel merges the events.
		must(t, unix.Mkdir(filepath.Join(dir, strconv.Itoa(i%2)), 0o700))
		must(t, unix.Rmdir(filepath.Join(dir, strconv.Itoa(i%2))))
	}
	write(t, filepath.Join(dir, "agent.pid")) // its own event is lost
	h.mu.Unlock()
	woken(t, noise, "its record")
	woken(t, s, "the overflow")
	select {
	case <-h.Gone():
		t.Fatal("an overflow is no reason to say gone")
	default:
	}
}

// Truncated or odd event runs come from nobody, and must not take the
// process down that hosts a whole Node application.
func FuzzDeliver(f *testing.F) {
	event := func(wd int32, mask, size uint32, name string) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = binary.NativeEndian.AppendUint32(b, size)
		return append(b, name...)
	}
	f.Add([]byte{})
	f.Add(event(1, unix.IN_CREATE, 16, "agent.pid\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(event(1, unix.IN_CREATE, 4000, "agent.pid\x00"))
	f.Add(event(-1, unix.IN_Q_OVERFLOW, 0, ""))
	f.Add(event(1, unix.IN_IGNORED, 0, ""))
	f.Add(event(2, unix.IN_MOVE_SELF, 0, "")[:15])
	dir := f.TempDir()
	info, err := os.Stat(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, events []byte) {
		h := &Hub{path: dir, dir: info, refs: 1, gone: make(chan struct{}), closed: make(chan struct{}), subs: map[string]map[*Sub]struct{}{}}
		s := h.Subscribe("agent")
		defer s.Close()
		k := &kernel{own: 1, fd: -1}
		k.deliver(h, events)
	})
}

// helperEnv makes the test binary, run again, do one test's part in a place
// where the test itself cannot go.
const helperEnv = "PG_WATCH_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "limited":
		helperLimited()
	}
}

// The limit is set inside a user namespace of its own, in /proc/sys/user: what
// /proc/sys/fs/inotify shows is the whole machine's in every namespace, and
// root of a user namespace may still write it.
func TestWithoutInotify(t *testing.T) {
	out, err := exec.Command("unshare", "--user", "--map-root-user", "true").CombinedOutput()
	if err != nil {
		t.Skipf("no user namespaces here: %v %s", err, out)
	}
	for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
		t.Run(limit, func(t *testing.T) {
			cmd := exec.Command("unshare", "--user", "--map-root-user", os.Args[0])
			cmd.Env = append(os.Environ(), helperEnv+"=limited", "DIR="+t.TempDir(), "LIMIT=/proc/sys/user/"+limit)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all said") {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func helperLimited() {
	die := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	set := func(n string) {
		if err := os.WriteFile(os.Getenv("LIMIT"), []byte(n), 0); err != nil {
			die("%v", err)
		}
	}
	wake := func(s *Sub, by string) {
		select {
		case <-s.C():
		case <-time.After(patience):
			die("not woken by %s", by)
		}
	}
	do := func(err error) {
		if err != nil {
			die("%v", err)
		}
	}
	// A fresh namespace has no limit. Anything else is the machine's own, and
	// not ours to touch.
	if text, err := os.ReadFile(os.Getenv("LIMIT")); err != nil || strings.TrimSpace(string(text)) != "2147483647" {
		die("this is no namespace of our own: %s %v", text, err)
	}
	askAgain = 2 * lookEvery
	dir := filepath.Join(os.Getenv("DIR"), "pids")
	do(os.Mkdir(dir, 0o700))
	set("0")
	h, err := For(dir)
	do(err)
	if err := h.Degraded(); err == nil || !strings.Contains(err.Error(), "fs.inotify.max_user_") {
		die("degraded: %v", err)
	}
	s := h.Subscribe("agent")
	record := filepath.Join(dir, "agent.pid")
	do(os.WriteFile(record, []byte("1"), 0o600))
	wake(s, "a write")
	do(os.WriteFile(filepath.Join(dir, "temp"), []byte("2"), 0o600))
	do(os.Rename(filepath.Join(dir, "temp"), record))
	wake(s, "a rename")
	do(os.Remove(record))
	wake(s, "a removal")

	// Others gave their watches back.
	set("1000")
	deadline := time.Now().Add(patience)
	for h.Degraded() != nil {
		if time.Now().After(deadline) {
			die("still degraded: %v", h.Degraded())
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.Release()

	set("0")
	h, err = For(dir)
	do(err)
	do(os.Remove(dir))
	select {
	case <-h.Gone():
	case <-time.After(patience):
		die("the removal went unnoticed")
	}
	h.Release()
	fmt.Println("all said")
	os.Exit(0)
}
