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

func TestStale(t *testing.T) {
	argv := Target{Name: "a", Argv: []string{"/bin/agent", "run"}}
	kept := Target{Name: "a", Argv: []string{"/bin/agent", "run"}, Lock: "/p/a.pid"}
	reaper := Target{Name: "r", Script: "/reaper.js", Lock: "/p/r.pid"}
	for name, c := range map[string]struct {
		f    Facts
		t    Target
		want bool
	}{
		"dead":                        {Facts{Found: Dead}, argv, false},
		"hidden":                      {Facts{Found: Hidden}, argv, false},
		"zombie":                      {Facts{Found: Zombie}, argv, true},
		"thread":                      {Facts{Found: Thread}, argv, true},
		"the process":                 {Facts{Running, []string{"/bin/agent", "run", "--more"}}, argv, false},
		"a stranger":                  {Facts{Running, []string{"/bin/sleep", "9"}}, argv, true},
		"its keeper":                  {Facts{Running, []string{"/x/keeper", "keep", "--lock", "/p/a.pid", "--token", "t"}}, kept, false},
		"its launcher":                {Facts{Running, []string{"node", "/x/launch.js", "keeper", "launch", "--lock", "/p/a.pid", "--token", "t"}}, kept, false},
		"another name's keeper":       {Facts{Running, []string{"/x/keeper", "keep", "--lock", "/p/a.pid.b.pid", "--token", "t"}}, kept, true},
		"the original's keeper":       {Facts{Running, []string{"node", "/x/keeper.js", "--keep", "--lock", "/p/a.pid"}}, kept, false},
		"the reaper":                  {Facts{Running, []string{"/x/reaper", "run", "--self-lock", "/p/r.pid"}}, reaper, false},
		"another directory's reaper":  {Facts{Running, []string{"/x/reaper", "run", "--self-lock", "/q/r.pid"}}, reaper, true},
		"a reaper in one string":      {Facts{Running, []string{`C:\x\reaper.exe run --self-lock C:\p\r.pid --log z`}}, Target{Script: "/reaper.js", Lock: `C:\p\r.pid`}, false},
		"nothing known of the target": {Facts{Running, []string{"/bin/sleep"}}, Target{Name: "a"}, true},
	} {
		if got := Stale(c.f, c.t); got != c.want {
			t.Errorf("%s: stale %v", name, got)
		}
	}
}

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
		{Name: "real", Argv: []string{"/bin/sleep", "60"}}, {Name: "stranger", Argv: []string{"/bin/agent"}},
		{Name: "zombie", Argv: []string{"/bin/true"}}, {Name: "thread", Argv: []string{"x"}}, {Name: "dead", Argv: []string{"x"}}, {Name: "none", Argv: []string{"x"}},
	}) {
		said[a.Name] = a
	}
	for _, name := range []string{"real", "dead"} {
		if _, err := os.Stat(filepath.Join(root, "pids", name+".pid")); err != nil {
			t.Errorf("%s: its file is gone: %v", name, err)
		}
	}
	for name, what := range map[string]string{"stranger": "/bin/sleep 60", "zombie": "never reaped", "thread": "thread"} {
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

func until(t *testing.T, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if fact() {
			return
		}
	}
	t.Fatal("it did not come to that in 10 s")
}
