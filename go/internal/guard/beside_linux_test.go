package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// putRecord writes a record as any writer does: beside it, then renamed.
func putRecord(t *testing.T, dir string, pid int, argv ...string) {
	t.Helper()
	line, err := json.Marshal(map[string]any{"token": "1.1.1.abc", "host": os.Getpid(), "argv": argv})
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, "r.tmp")
	if err := os.WriteFile(tmp, fmt.Appendf(nil, "%d\n7\n%s\n", pid, line), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "r.pid")); err != nil {
		t.Fatal(err)
	}
}

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestAWatchedRecordTellsEachChangeOnceAndTheEndOfItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	out, ch := recorder()
	e := NewEnv(out)
	defer e.Close()
	args, _ := json.Marshal(map[string]string{"pidDir": dir, "name": "r"})
	e.Call(1, "watchRecord", args)
	expect := func(want string) {
		t.Helper()
		if got := next(t, ch); !strings.Contains(got.payload, want) {
			t.Fatalf("%s, want %s in it", got.payload, want)
		}
	}
	expect(`"open":true`)
	expect(`{"pid":0,"running":false,"t":"record"}`)

	one, two := sleeper(t), sleeper(t)
	putRecord(t, dir, one.Process.Pid, "/bin/sleep", "60")
	expect(fmt.Sprintf(`{"pid":%d,"running":true,`, one.Process.Pid))
	putRecord(t, dir, one.Process.Pid, "/bin/sleep", "60") // no news
	putRecord(t, dir, two.Process.Pid, "/bin/sleep", "60")
	expect(fmt.Sprintf(`{"pid":%d,"running":true,`, two.Process.Pid))
	_ = two.Process.Kill()
	expect(fmt.Sprintf(`{"pid":%d,"running":false,`, two.Process.Pid))
	putRecord(t, dir, one.Process.Pid, "/bin/somebody") // a recycled pid
	expect(fmt.Sprintf(`{"pid":%d,"running":false,`, one.Process.Pid))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for {
		got := next(t, ch)
		if got.kind == KindEnd {
			break
		}
		if !strings.Contains(got.payload, `"gone"`) && !strings.Contains(got.payload, `"pid":0`) {
			t.Fatal(got.payload)
		}
	}
}

func TestADroppedWatchEnds(t *testing.T) {
	dir := t.TempDir()
	out, ch := recorder()
	e := NewEnv(out)
	args, _ := json.Marshal(map[string]string{"pidDir": dir, "name": "r"})
	e.Call(1, "watchRecord", args)
	next(t, ch)
	next(t, ch)
	e.Drop(1)
	if got := next(t, ch); got.kind != KindEnd {
		t.Fatalf("%+v", got)
	}
	e.Call(2, "watchRecord", args)
	next(t, ch)
	e.Close() // the thread ends
	over := make(chan struct{})
	go func() { e.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("it watches for a thread that has ended")
	}
}

func TestAWatchOfWhatIsNotThereIsRefused(t *testing.T) {
	out, ch := recorder()
	e := NewEnv(out)
	defer e.Close()
	args, _ := json.Marshal(map[string]string{"pidDir": filepath.Join(t.TempDir(), "none"), "name": "r"})
	e.Call(1, "watchRecord", args)
	if got := next(t, ch); !strings.Contains(got.payload, `"error"`) {
		t.Fatal(got.payload)
	}
	if _, err := os.Stat(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Fatal("it made the directory")
	}
}

func TestWhatOneThreadHasSeenAnotherKnows(t *testing.T) {
	out, _ := recorder()
	one, two := NewEnv(out), NewEnv(out)
	defer one.Close()
	defer two.Close()
	key := t.TempDir()
	for _, c := range []struct {
		e    *Env
		args map[string]any
		want string
	}{
		{one, map[string]any{"key": key}, `{"ok":false}`},
		{one, map[string]any{"key": key, "note": true}, `{"ok":true}`},
		{two, map[string]any{"key": key}, `{"ok":true}`},
		{two, map[string]any{"key": "another"}, `{"ok":false}`},
	} {
		args, _ := json.Marshal(c.args)
		if got := string(c.e.Sync("seen", args)); got != c.want {
			t.Errorf("%s: %s", args, got)
		}
	}
}
