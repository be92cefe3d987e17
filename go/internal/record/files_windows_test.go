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
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/role"
)

const name = "agent"

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

func TestWriteReadRemove(t *testing.T) {
	d := dir(t)
	if r, err := Read(d, name); r != nil || err != nil {
		t.Errorf("none: %v %v", r, err)
	}
	g := gate(t, d)
	must(t, Write(d, g, name, whole()))
	must(t, Write(d, g, name, whole()))
	if r, err := Read(d, name); err != nil || !reflect.DeepEqual(r, whole()) {
		t.Errorf("%+v %v", r, err)
	}
	must(t, Remove(d, g, name))
	must(t, Remove(d, g, name))
	if names, err := d.Names(""); err != nil || len(names) != 1 {
		t.Errorf("%q %v", names, err)
	}
	must(t, WriteExit(d, g, name, Exit{Token: token, Outcome: Gone}))
	if x, err := ReadExit(d, name); err != nil || x == nil || x.Outcome != Gone {
		t.Errorf("%+v %v", x, err)
	}
	must(t, RemoveExit(d, name))
}

// Replaces under readers (ten thousand with PG_FULL), none of which may fail or
// see a torn one.
func TestReplacesUnderReaders(t *testing.T) {
	rounds := 500
	if os.Getenv("PG_FULL") != "" {
		rounds = 10_000
	}
	d := dir(t)
	g := gate(t, d)
	r := whole()
	r.Restarts, r.Argv, r.Extra = 0, []string{"a", ""}, map[string]json.RawMessage{"pad": []byte("0")}
	must(t, Write(d, g, name, r))
	wine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
	var done atomic.Bool
	var reads atomic.Int64
	var all sync.WaitGroup
	for range 2 {
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
				if wine {
					// Wine 10 replaces no file that is open, so the writer needs an
					// instant without a reader; Windows does not.
					time.Sleep(2 * time.Millisecond)
				}
			}
		})
	}
	began := time.Now()
	for i := 1; i <= rounds && !t.Failed(); i++ {
		pad := i * 7919 % 3000
		r.Restarts = i
		r.Argv = []string{"a", strings.Repeat("x", pad)}
		r.Extra["pad"] = []byte(strconv.Itoa(pad))
		must(t, Write(d, g, name, r))
	}
	took := time.Since(began)
	done.Store(true)
	all.Wait()
	t.Logf("%d replaces in %s, %d reads", rounds, took, reads.Load())
}

func TestSetAside(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, Write(d, g, name, whole()))
	s, err := BeginReaping(d, g, name)
	must(t, err)
	if r, err := Read(d, name); r != nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
	if d.ReapingHeld(name) != proc.Yes {
		t.Error("its reaper lives")
	}
	if _, err := ResumeReaping(d, name); !errors.Is(err, lock.ErrBusy) {
		t.Errorf("two reapers: %v", err)
	}
	s.Leave()
	if d.ReapingHeld(name) != proc.No {
		t.Error("its reaper left")
	}
	s, err = ResumeReaping(d, name)
	must(t, err)
	must(t, s.Done())
	if r, err := ReadReaping(d, name); r != nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
	must(t, Write(d, g, name, whole()))
	s, err = BeginReaping(d, g, name)
	must(t, err)
	g.Unlock()
	g = gate(t, d)
	if r, err := ReadReaping(d, name); r == nil || err != nil {
		t.Errorf("%v %v", r, err)
	}
	must(t, s.Done())
	if d.Exists(name + lock.ReapingSuffix) {
		t.Error("still there")
	}
}

func TestLastWordsOutliveTheirFile(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, PutLife(d, g, name, token, life()))
	watcher, err := OpenLife(d, name, token)
	must(t, err)
	defer watcher.Close()
	must(t, d.Remove(lock.LifeName(name, token)))
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

func TestNothingIsWrittenWithoutTheGate(t *testing.T) {
	d := dir(t)
	g := gate(t, d)
	must(t, Write(d, g, name, whole()))
	must(t, d.Rename(name+lock.GateSuffix, "elsewhere"))
	must(t, os.WriteFile(d.Join(name+lock.GateSuffix), nil, 0o600))
	if err := Write(d, g, name, whole()); !errors.Is(err, lock.ErrGateLost) {
		t.Error(err)
	}
	if err := Remove(d, g, name); !errors.Is(err, lock.ErrGateLost) {
		t.Error(err)
	}
}
