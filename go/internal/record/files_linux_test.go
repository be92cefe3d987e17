package record

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/role"
)

const name = "agent"

func TestMain(m *testing.M) {
	role.Main(m, map[string]func(*role.Stage){
		"full":  fullRole,
		"aside": asideRole,
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dir(t testing.TB) *lock.Dir {
	t.Helper()
	d, err := lock.OpenDir(filepath.Join(t.TempDir(), "pids"))
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func gate(t testing.TB, d *lock.Dir) *lock.Gate {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), role.Patience)
	defer cancel()
	g, err := d.Lock(ctx, name)
	must(t, err)
	t.Cleanup(g.Unlock)
	return g
}

// entries are the directory's files but the gate.
func entries(t testing.TB, d *lock.Dir) []string {
	t.Helper()
	all, err := d.Names("")
	must(t, err)
	out := []string{}
	for _, n := range all {
		if n != name+lock.GateSuffix {
			out = append(out, n)
		}
	}
	return out
}

func expect(t testing.TB, d *lock.Dir, want ...string) {
	t.Helper()
	if got := entries(t, d); !reflect.DeepEqual(got, append([]string{}, want...)) {
		t.Errorf("the directory has %q, not %q", got, want)
	}
}

func TestWriteReadRemove(t *testing.T) {
	d := dir(t)
	if r, err := Read(d, name); r != nil || err != nil {
		t.Errorf("none: %v %v", r, err)
	}
	g := gate(t, d)
	must(t, Write(d, g, name, whole()))
	st, err := os.Stat(d.Join(name + lock.RecordSuffix))
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", st.Mode().Perm())
	}
	r, err := Read(d, name)
	must(t, err)
	if !reflect.DeepEqual(r, whole()) {
		t.Errorf("%+v", r)
	}
	expect(t, d, name+lock.RecordSuffix)
	must(t, Remove(d, g, name))
	must(t, Remove(d, g, name))
	expect(t, d)
	must(t, os.WriteFile(d.Join(name+lock.RecordSuffix), nil, 0o600))
	if r, err := Read(d, name); r != nil || err != nil {
		t.Errorf("empty: %v %v", r, err)
	}
}

// A reader takes no lock, and never sees half of a record.
func TestReadersNeverSeeATornRecord(t *testing.T) {
	rounds := 2000
	if os.Getenv("PG_FULL") != "" {
		rounds = 10_000
	}
	d := dir(t)
	g := gate(t, d)
	r := whole()
	r.Restarts, r.Argv, r.Extra = 0, []string{"a", ""}, map[string]json.RawMessage{"pad": []byte("0")}
	must(t, Write(d, g, name, r))
	var done atomic.Bool
	var reads atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			last := 0
			for !done.Load() {
				r, err := Read(d, name)
				if err != nil || r == nil {
					t.Errorf("%v %v", r, err)
					return
				}
				pad := r.Argv[len(r.Argv)-1]
				if n, err := strconv.Atoi(string(r.Extra["pad"])); err != nil || n != len(pad) || r.Restarts < last {
					t.Errorf("restarts %d after %d, %d bytes of %s", r.Restarts, last, len(pad), r.Extra["pad"])
					return
				}
				last = r.Restarts
				reads.Add(1)
			}
		})
	}
	for i := 1; i <= rounds; i++ {
		pad := i * 7919 % 3000
		r.Restarts = i
		r.Argv = []string{"a", strings.Repeat("x", pad)}
		r.Extra["pad"] = []byte(strconv.Itoa(pad))
		must(t, Write(d, g, name, r))
	}
	role.Within(t, role.Patience, "a hundred reads", func() bool { return reads.Load() > 100 || t.Failed() })
	done.Store(true)
	all.Wait()
	expect(t, d, name+lock.RecordSuffix)
}

func TestFailedRenameLeavesNothing(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, os.Mkdir(d.Join(name+lock.RecordSuffix), 0o700))
	err := Write(d, g, name, whole())
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), d.Join(name+lock.RecordSuffix)) {
		t.Error(err)
	}
	expect(t, d, name+lock.RecordSuffix)
}

// fullRole writes on a file system of its own that has no room.
func fullRole(s *role.Stage) {
	path := s.Args()[0]
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, "size=32k,mode=700")
	}
	if err != nil {
		s.Say("skip: %v", err)
		return
	}
	d, err := lock.OpenExisting(path)
	if err != nil {
		s.Say("%v", err)
		return
	}
	g, err := d.Lock(context.Background(), name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	old := whole()
	if err := Write(d, g, name, old); err != nil {
		s.Say("%v", err)
		return
	}
	f, err := d.CreateLife(name, token)
	if err != nil {
		s.Say("%v", err)
		return
	}
	_ = os.WriteFile(filepath.Join(path, "filler"), make([]byte, 32<<10), 0o600)
	tell := func(what string, err error) {
		s.Say("%s: %t", what, errors.Is(err, unix.ENOSPC) && strings.Contains(err.Error(), path))
	}
	tell("write", Write(d, g, name, whole()))
	tell("exit", WriteExit(d, g, name, Exit{Token: token, Outcome: Gone}))
	tell("life", PutLife(d, g, name, other, life()))
	_, err = Prepare(d, name, whole())
	tell("prepare", err)
	// The slot was allocated when there was room.
	s.Say("last words: %v", WriteLife(f, life()))
	l, err := ReadLife(f)
	s.Say("read: %v %t", err, l.Words != nil && l.Words.Outcome == Released)
	r, err := Read(d, name)
	s.Say("old: %v %t", err, reflect.DeepEqual(r, old))
	names, err := d.Names(name + ".")
	s.Say("%v %q", err, names)
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c := role.Command("full", filepath.Join(t.TempDir(), "m"))
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	k := role.Run(t, c)
	for i, want := range []string{
		"write: true", "exit: true", "life: true", "prepare: true", "last words: <nil>", "read: <nil> true", "old: <nil> true",
		`<nil> ["agent.pid" "agent.pid.claiming" "agent.pid.keeper.` + token + `"]`,
	} {
		line := k.Line()
		if i == 0 && strings.HasPrefix(line, "skip") {
			t.Skip(line)
		}
		if line != want {
			t.Errorf("%s, not %s", line, want)
		}
	}
}

func TestTempOfAKilledWriterIsReplaced(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, os.WriteFile(d.Join(name+".pid."+token+".tmp"), []byte("half of a rec"), 0o400))
	must(t, Write(d, g, name, whole()))
	if r, err := Read(d, name); err != nil || !reflect.DeepEqual(r, whole()) {
		t.Errorf("%v %+v", err, r)
	}
	expect(t, d, name+lock.RecordSuffix)
	// A directory there is nobody's leftover.
	must(t, os.Mkdir(d.Join(name+".pid."+token+".tmp"), 0o700))
	if err := Write(d, g, name, whole()); err == nil {
		t.Error("written through a directory")
	}
	expect(t, d, name+lock.RecordSuffix, name+".pid."+token+".tmp")
}

func TestNothingIsWrittenWithoutTheGate(t *testing.T) {
	for what, lose := range map[string]func(d *lock.Dir) error{
		"unlinked":           func(d *lock.Dir) error { return os.Remove(d.Join(name + lock.GateSuffix)) },
		"replaced":           func(d *lock.Dir) error { return os.WriteFile(d.Join("new"), nil, 0o600) },
		"directory replaced": func(d *lock.Dir) error { return os.Rename(d.Path(), d.Path()+".old") },
	} {
		t.Run(what, func(t *testing.T) {
			d := dir(t)
			g := gate(t, d)
			old := whole()
			old.PID = 1234
			must(t, Write(d, g, name, old))
			must(t, os.WriteFile(d.Join(name+lock.RecordSuffix+".orig"), nil, 0o600))
			p, err := Prepare(d, name, whole())
			must(t, err)
			must(t, lose(d))
			if what == "replaced" {
				must(t, os.Rename(d.Join("new"), d.Join(name+lock.GateSuffix)))
			}
			for call, err := range map[string]error{
				"Commit":       p.Commit(g),
				"Write":        Write(d, g, name, whole()),
				"Remove":       Remove(d, g, name),
				"WriteExit":    WriteExit(d, g, name, Exit{Token: token, Outcome: Gone}),
				"PutLife":      PutLife(d, g, name, other, life()),
				"BeginReaping": func() error { _, err := BeginReaping(d, g, name); return err }(),
			} {
				if !errors.Is(err, lock.ErrGateLost) {
					t.Errorf("%s: %v", call, err)
				}
			}
			if r, err := Read(d, name); err != nil || !reflect.DeepEqual(r, old) {
				t.Errorf("%v %+v", err, r)
			}
			expect(t, d, name+lock.RecordSuffix, name+lock.RecordSuffix+".orig")
		})
	}
}

func TestAbort(t *testing.T) {
	d := dir(t)
	p, err := Prepare(d, name, whole())
	must(t, err)
	text, err := os.ReadFile(d.Join(name + ".pid." + token + ".tmp"))
	must(t, err)
	if !reflect.DeepEqual(Decode(text), whole()) {
		t.Errorf("%q", text)
	}
	p.Abort()
	expect(t, d)
}

func exitOf(t testing.TB, d *lock.Dir) string {
	t.Helper()
	x, err := ReadExit(d, name)
	must(t, err)
	if x == nil {
		return "none"
	}
	return x.Token + " " + string(x.Outcome)
}

// One slot for a name: the last word of the generation that has the record, or
// of the last one that had it.
func TestExitRecordOfAnotherGeneration(t *testing.T) {
	mine, theirs := token, other
	for _, c := range []struct {
		what        string
		record, old string // tokens; "" none, "bare" not ours
		want        string
	}{
		{"nothing there", "", "", mine + " gone"},
		{"my own", "", mine, mine + " gone"},
		{"another's, no record", "", theirs, theirs + " released"},
		{"none, another has the record", theirs, "", "none"},
		{"another's, who has the record", theirs, theirs, theirs + " released"},
		{"my own, another has the record", theirs, mine, mine + " released"},
		{"I have the record", mine, "", mine + " gone"},
		{"I have the record, another's is left", mine, theirs, mine + " gone"},
		{"a bare pid file", "bare", "", mine + " gone"},
		{"a bare pid file, another's", "bare", theirs, theirs + " released"},
		{"garbage is no record of anybody", "", "garbage", mine + " gone"},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := dir(t)
			g := gate(t, d)
			switch c.record {
			case "":
			case "bare":
				must(t, os.WriteFile(d.Join(name+lock.RecordSuffix), []byte("12\n"), 0o600))
			default:
				r := whole()
				r.Token = c.record
				must(t, Write(d, g, name, r))
			}
			switch c.old {
			case "":
			case "garbage":
				must(t, os.WriteFile(d.Join(name+lock.ExitSuffix), []byte("{}"), 0o600))
			default:
				must(t, os.WriteFile(d.Join(name+lock.ExitSuffix), EncodeExit(Exit{Token: c.old, Outcome: Released}), 0o600))
			}
			must(t, WriteExit(d, g, name, Exit{Token: mine, Outcome: Gone}))
			if got := exitOf(t, d); got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

func TestRemoveExit(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, WriteExit(d, g, name, Exit{Token: token, Outcome: Gone}))
	must(t, RemoveExit(d, name))
	must(t, RemoveExit(d, name))
	expect(t, d)
}

// A planted record must never steer a signal.
func TestFilesOfAnotherUserAreIgnored(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d := dir(t)
	g := gate(t, d)
	for file, read := range map[string]func() (bool, error){
		name + lock.RecordSuffix:  func() (bool, error) { r, err := Read(d, name); return r != nil, err },
		name + lock.ReapingSuffix: func() (bool, error) { r, err := ReadReaping(d, name); return r != nil, err },
		name + lock.ExitSuffix:    func() (bool, error) { x, err := ReadExit(d, name); return x != nil, err },
	} {
		text := Encode(whole())
		if file == name+lock.ExitSuffix {
			text = EncodeExit(Exit{Token: token, Outcome: Gone})
		}
		must(t, os.WriteFile(d.Join(file), text, 0o644))
		if found, err := read(); !found || err != nil {
			t.Errorf("%s: %t %v", file, found, err)
		}
		must(t, os.Chown(d.Join(file), 4242, -1))
		found, err := read()
		var foreign *ForeignError
		if found || !errors.As(err, &foreign) || foreign.UID != 4242 || foreign.Path != d.Join(file) || !strings.Contains(err.Error(), "uid 4242") {
			t.Errorf("%s: %t %v", file, found, err)
		}
	}
	// Ours goes over it, whatever it says.
	must(t, WriteExit(d, g, name, Exit{Token: other, Outcome: Gone}))
	if got := exitOf(t, d); got != other+" gone" {
		t.Error(got)
	}
	must(t, Write(d, g, name, whole()))
	if r, err := Read(d, name); err != nil || !r.Ours() {
		t.Errorf("%v %+v", err, r)
	}
}

func TestReadingWhatIsNoFile(t *testing.T) {
	d := dir(t)
	must(t, unix.Mkfifo(d.Join(name+lock.RecordSuffix), 0o600))
	must(t, os.Mkdir(d.Join(name+lock.ExitSuffix), 0o700))
	must(t, os.Symlink("/etc/passwd", d.Join(name+lock.ReapingSuffix)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if r, err := Read(d, name); r != nil || err == nil {
			t.Errorf("%v %v", r, err)
		}
		if x, err := ReadExit(d, name); x != nil || err == nil {
			t.Errorf("%v %v", x, err)
		}
		if r, err := ReadReaping(d, name); r != nil || err == nil {
			t.Errorf("%v %v", r, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("reading waits")
	}
}

func TestOversizedRecordIsNotReadForEver(t *testing.T) {
	d := dir(t)
	f, err := os.Create(d.Join(name + lock.RecordSuffix))
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("42\n1\n{\"token\":\"a\",\"argv\":[\"")
	must(t, err)
	must(t, f.Truncate(1<<40)) // sparse
	r, err := Read(d, name)
	if err != nil || r == nil || r.Ours() {
		t.Errorf("%v %+v", err, r)
	}
}

// The slot has no lock of its own: a reader meets the old entry, the new one,
// or none.
func TestLifeSlotUnderConcurrentWriters(t *testing.T) {
	d := dir(t)
	f, err := d.CreateLife(name, token)
	must(t, err)
	defer f.Close()
	long, short := life(), life()
	long.Argv = []string{strings.Repeat("l", 2000)}
	short.PID, short.Words, short.Argv = 9, nil, []string{"s"}
	must(t, WriteLife(f, long))
	var done atomic.Bool
	var torn, read atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			f, err := OpenLife(d, name, token)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for !done.Load() {
				l, err := ReadLife(f)
				read.Add(1)
				switch {
				case errors.Is(err, ErrTorn) && !errors.Is(err, ErrEmpty):
					torn.Add(1)
				case err != nil || !reflect.DeepEqual(l, long) && !reflect.DeepEqual(l, short):
					t.Errorf("%v %+v", err, l)
					return
				}
			}
		})
	}
	for i := range 2000 {
		if i%2 == 0 {
			must(t, WriteLife(f, short))
		} else {
			must(t, WriteLife(f, long))
		}
	}
	role.Within(t, role.Patience, "a hundred reads", func() bool { return read.Load() > 100 || t.Failed() })
	done.Store(true)
	all.Wait()
	t.Logf("%d of %d reads met a half-written slot", torn.Load(), read.Load())
}

func TestLastWordsOutliveTheirFile(t *testing.T) {
	d := dir(t)
	f, err := d.CreateLife(name, token)
	must(t, err)
	watcher, err := OpenLife(d, name, token)
	must(t, err)
	defer watcher.Close()
	if _, err := ReadLife(watcher); !errors.Is(err, ErrEmpty) {
		t.Errorf("nothing yet: %v", err)
	}
	must(t, WriteLife(f, life()))
	must(t, d.Remove(lock.LifeName(name, token)))
	must(t, f.Close())
	again, err := d.CreateLife(name, token)
	must(t, err)
	defer again.Close()
	if l, err := ReadLife(watcher); err != nil || !reflect.DeepEqual(l, life()) {
		t.Errorf("%v %+v", err, l)
	}
	if _, err := OpenLife(d, name, other); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestPutLife(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	for _, old := range [][]byte{nil, {}, make([]byte, lock.LifeSize), []byte("half")} {
		if old != nil {
			must(t, os.WriteFile(d.Join(lock.LifeName(name, token)), old, 0o600))
		}
		must(t, PutLife(d, g, name, token, life()))
		f, err := OpenLife(d, name, token)
		must(t, err)
		if l, err := ReadLife(f); err != nil || !reflect.DeepEqual(l, life()) {
			t.Errorf("%v %+v", err, l)
		}
		f.Close()
		expect(t, d, lock.LifeName(name, token))
	}
}

// A half-written file must not be taken for a life file, whoever finds it.
func TestTemporaryNames(t *testing.T) {
	tmp := tmpName(name, token)
	if lock.LifeToken(name, tmp) != "" || !Leftover(name, tmp) || Leftover("other", tmp) || Leftover("agent.pid", tmp) {
		t.Error(tmp)
	}
	d := dir(t)
	g := gate(t, d)
	// The rename of a whole one is refused, and what is there is what was there.
	must(t, os.Mkdir(d.Join(lock.LifeName(name, token)), 0o700))
	if err := PutLife(d, g, name, token, life()); err == nil || !strings.Contains(err.Error(), d.Join(tmp)) {
		t.Errorf("%v", err)
	}
	expect(t, d, lock.LifeName(name, token))
}

// asideRole is a reaper at work on one record.
func asideRole(s *role.Stage) {
	d, err := lock.OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	g, err := d.Lock(context.Background(), name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	a, err := BeginReaping(d, g, name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	g.Unlock()
	s.Say("aside")
	s.UntilTold()
	s.Say("%v", a.Done())
	s.UntilTestEnds()
}

func TestSetAside(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	if _, err := BeginReaping(d, g, name); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := ResumeReaping(d, name); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, Write(d, g, name, whole()))
	g.Unlock()
	k := role.Start(t, "aside", d.Path())
	k.Says("aside")
	if r, err := Read(d, name); r != nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
	if r, err := ReadReaping(d, name); err != nil || !reflect.DeepEqual(r, whole()) {
		t.Errorf("%v %+v", err, r)
	}
	if a := d.ReapingHeld(name); a != proc.Yes {
		t.Errorf("its reaper lives: %s", a)
	}
	if _, err := ResumeReaping(d, name); !errors.Is(err, lock.ErrBusy) {
		t.Error(err)
	}
	k.Kill()
	if a := d.ReapingHeld(name); a != proc.No {
		t.Errorf("its reaper died: %s", a)
	}
	a, err := ResumeReaping(d, name)
	must(t, err)
	if held := d.ReapingHeld(name); held != proc.Yes {
		t.Errorf("resumed: %s", held)
	}
	a.Leave()
	if held := d.ReapingHeld(name); held != proc.No {
		t.Errorf("left: %s", held)
	}
	expect(t, d, name+lock.ReapingSuffix)
	a, err = ResumeReaping(d, name)
	must(t, err)
	must(t, a.Done())
	expect(t, d)
}

// A claimant saw the process gone and took the file away; what it started was
// set aside by another reaper. The first one's Done took that file, and the
// next claimant started a second process beside it.
func TestDoneLeavesAnotherReapersFile(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, Write(d, g, name, whole()))
	first, err := BeginReaping(d, g, name)
	must(t, err)
	must(t, d.Remove(name+lock.ReapingSuffix))
	next := whole()
	next.Token = other
	must(t, Write(d, g, name, next))
	second, err := BeginReaping(d, g, name)
	must(t, err)
	must(t, first.Done())
	if r, err := ReadReaping(d, name); err != nil || r == nil || r.Token != other {
		t.Errorf("%v %+v", err, r)
	}
	must(t, second.Done())
	expect(t, d)
	// And one that is gone is no error.
	must(t, Write(d, g, name, next))
	third, err := BeginReaping(d, g, name)
	must(t, err)
	must(t, d.Remove(name+lock.ReapingSuffix))
	must(t, third.Done())
}
