package usage

import (
	"os"
	"os/exec"
	"testing"
)

func TestReadThisProcess(t *testing.T) {
	kid := exec.Command("/bin/sleep", "60")
	if err := kid.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { kid.Process.Kill(); kid.Wait() }()
	c, ok := Read(os.Getpid())
	if !ok || c.RSSBytes < 1<<20 || c.Threads < 2 || c.Children != 1 {
		t.Fatalf("read %+v, %v", c, ok)
	}
	if c, ok := Read(kid.Process.Pid); !ok || c.Threads != 1 || c.Children != 0 {
		t.Fatalf("of a sleep: %+v, %v", c, ok)
	}
}

func TestNothingToRead(t *testing.T) {
	for _, pid := range []int{0, -1, 1 << 40, 4194304 - 1} {
		if c, ok := Read(pid); ok {
			t.Errorf("pid %d: %+v", pid, c)
		}
	}
	dead := exec.Command("/bin/true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	pid := dead.Process.Pid
	dead.Wait()
	if c, ok := Read(pid); ok {
		t.Errorf("of a process that ended: %+v", c)
	}
}
