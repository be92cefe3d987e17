package hostpid

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestClearWithRealProcesses(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "pids"), 0o700); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("/bin/sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	zombie := exec.Command("/bin/true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer zombie.Wait()
	until(t, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))
		return strings.Contains(string(text), ") Z ")
	})
	tid := 0
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, e := range tasks {
		fmt.Sscan(e.Name(), &tid)
		if tid != os.Getpid() {
			break
		}
	}
	if tid == os.Getpid() || syscall.Kill(tid, 0) != nil {
		t.Fatal("no second thread that answers signal 0")
	}
	for name, pid := range map[string]int{"real": sleep.Process.Pid, "stranger": sleep.Process.Pid, "zombie": zombie.Process.Pid, "thread": tid, "dead": 4194304 - 1} {
		if err := os.WriteFile(filepath.Join(root, "pids", name+".pid"), fmt.Appendf(nil, "%d\n7\n", pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := map[string]Answer{}
	for _, a := range Clear(root, []Target{
		{Name: "real", Argv: []string{"/bin/sleep", "60"}},
		{Name: "stranger", Argv: []string{"/bin/agent"}},
		{Name: "zombie", Argv: []string{"/bin/true"}},
		{Name: "thread", Argv: []string{"x"}},
		{Name: "dead", Argv: []string{"x"}},
		{Name: "none", Argv: []string{"x"}},
	}) {
		said[a.Name] = a
	}
	for _, name := range []string{"real", "dead"} {
		if _, err := os.Stat(filepath.Join(root, "pids", name+".pid")); err != nil {
			t.Errorf("%s: its file is gone: %v", name, err)
		}
	}
	for name, what := range map[string]string{"stranger": "is running `/bin/sleep`", "zombie": "never reaped", "thread": "is a thread"} {
		if _, err := os.Stat(filepath.Join(root, "pids", name+".pid")); err == nil {
			t.Errorf("%s: its file is still there", name)
		}
		if !said[name].Removed || !strings.Contains(said[name].What, what) {
			t.Errorf("%s: said %+v", name, said[name])
		}
	}
	if len(said) != 3 {
		t.Errorf("answers about %v", said)
	}
}

func TestAKeeperProtectsItsLockAlsoThroughALink(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"pids", "real"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	real, err := filepath.EvalSymlinks(filepath.Join(root, "real"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	// A shell that carries the flag as a keeper does.
	keeper := exec.Command("/bin/sh", "-c", "read x", "keeper", "--lock", filepath.Join(real, "a.pid"))
	in, err := keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); keeper.Wait() }()
	if err := os.WriteFile(filepath.Join(root, "pids", "a.pid"), fmt.Appendf(nil, "%d", keeper.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := Clear(root, []Target{{Name: "a", Argv: []string{"/bin/agent"}, Lock: filepath.Join(root, "link", "a.pid")}}); len(said) != 0 {
		t.Fatalf("removed: %+v", said)
	}
	if said := Clear(root, []Target{{Name: "a", Argv: []string{"/bin/agent"}, Lock: filepath.Join(root, "link", "b.pid")}}); len(said) != 1 {
		t.Fatalf("another name's keeper was left: %+v", said)
	}
}

func until(t *testing.T, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if fact() {
			return
		}
	}
	t.Fatal("it did not come to that in 10 s")
}
