package reap

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

// kept starts a shell script under the real keeper and returns its record.
func (w *world) kept(name, script string) *record.Record {
	w.t.Helper()
	argv := []string{"/bin/sh", "-c", script}
	token := fmt.Sprintf("%d.0.1.%s", w.host.pid(), name)
	w.write(name, &record.Record{
		Version: 1, Token: token, Host: w.host.pid(), HostStarted: w.host.id().Started, Argv: argv,
		ClaimedAt: proc.BootMillis(), Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(),
	})
	lockFile := w.dir.Join(name + ".pid")
	task := spec.Spec{
		Name: name, Title: name, Lock: lockFile, Token: token, Version: 1, Host: w.host.pid(), HostStarted: w.host.id().Started,
		File: argv[0], Argv: argv, RecordArgv: argv, Cwd: w.root, UID: -1, GID: -1, Slots: 3,
		Restart: spec.Restart{Max: 5, BaseMs: 60_000, CapMs: 60_000},
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer null.Close()
	l := spawn(w.t, func(c *exec.Cmd) { c.Stdout, c.Stderr = null, null }, []string{keeperPath, "launch", "--lock", lockFile, "--token", token}, task.Environ()...)
	if code := l.ends(); code != 0 {
		w.t.Fatalf("the keeper's launcher ended with %d", code)
	}
	var rec *record.Record
	until(w.t, "a process of "+name, func() bool {
		rec, err = record.Read(w.dir, name)
		return err == nil && rec != nil && rec.PID > 0 && !rec.Starting
	})
	track(w.t, rec.PID)
	track(w.t, rec.Keeper)
	return rec
}

func TestRealKeepersEndWithTheHost(t *testing.T) {
	w := newWorld(t)
	told := w.root + "/told"
	served := w.kept("served", `trap 'echo SIGTERM >> '`+told+`'; kill $!; exit 0' TERM; sleep 600 & while :; do wait; done`)
	stubborn := w.kept("stubborn", `trap '' TERM; exec sleep 600`)
	crashed := w.kept("crashed", `sleep 0.1; exit 3`)
	until(t, "the back-off", func() bool { return strings.Contains(w.file("crashed.pid.exit"), "restarting") })
	stopped := w.kept("keeper stopped", `exec sleep 600`)
	stoppedKeeper := track(t, stopped.Keeper)
	// In a hold of the gate: a keeper that is stopped inside would keep it, and
	// nobody can tell its name anything from then on.
	g, err := w.dir.Lock(t.Context(), "keeper stopped")
	if err == nil {
		err = stoppedKeeper.Signal(syscall.SIGSTOP)
		g.Unlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	over := func(pid int) bool {
		h, err := proc.Open(pid)
		if err != nil {
			return true
		}
		defer h.Close()
		return h.Alive() == proc.No
	}
	w.reap(w.options(0), quick)
	for _, rec := range []*record.Record{served, stubborn, crashed, stopped} {
		if !over(rec.PID) {
			t.Errorf("pid %d of %q is alive", rec.PID, rec.Argv)
		}
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left: %q\n%s", left, w.log())
	}
	// A keeper whose record is gone ends by itself.
	if err := stoppedKeeper.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, rec := range []*record.Record{served, stubborn, crashed, stopped} {
		until(t, "the end of the keeper of "+rec.Argv[2], func() bool { return over(rec.Keeper) })
	}
	if text, _ := os.ReadFile(told); string(text) != "SIGTERM\n" {
		t.Errorf("the process was told %q", text)
	}
	for name, text := range w.files(t) {
		if strings.Contains(name, ".keeper.") {
			t.Errorf("left: %s", name)
		}
		if name == "served.pid.exit" && !strings.Contains(text, `"outcome":"gone"`) {
			t.Errorf("%s: %s", name, text)
		}
	}
}
