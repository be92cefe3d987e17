package keep

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

// faultPoints asks the build that has some.
func faultPoints(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command(built.fault, "faultpoints").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func TestEveryFaultPointIsListedAndExists(t *testing.T) {
	var used []string
	sources, _ := filepath.Glob("*.go")
	call := regexp.MustCompile(`faultPoint\("([a-z-]+)"\)`)
	for _, file := range sources {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			used = append(used, m[1])
		}
	}
	listed := faultPoints(t)
	slices.Sort(used)
	slices.Sort(listed)
	if !slices.Equal(used, listed) {
		t.Errorf("in the code %v\nlisted %v", used, listed)
	}
	if out, err := exec.Command(built.keeper, "faultpoints").Output(); err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("the build that ships has fault points: %s, %v", out, err)
	}
}

// SIGKILL at every step, the first and the second time it is passed, of a life
// that starts, crashes, is restarted and is stopped. At no moment do two
// processes live, none lives that no record names, and whoever claims next can
// go on.
func TestKilledAtEveryStep(t *testing.T) {
	for _, point := range faultPoints(t) {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprint(point, " ", nth), func(t *testing.T) {
				t.Parallel()
				killedAt(t, point, nth)
			})
		}
	}
}

func killedAt(t *testing.T, point string, nth int) {
	dir := t.TempDir()
	first, fired := filepath.Join(dir, "first"), filepath.Join(dir, "fired")
	c := sh(t, "if [ -e "+first+" ]; then exec sleep 300; fi; : >"+first+"; exit 3")
	c.env = append(c.env, "PG_ENV_PATH=/usr/bin:/bin", "PG_FAULT_MARK="+fired)
	if strings.HasPrefix(point, "keep-grace") {
		_, o, _ := orphan(t, "/bin/sleep", "300")
		c.spec.Orphan, c.spec.GraceMs = o, 20
	}
	c.fault = fmt.Sprintf("%s:kill:%d", point, nth)

	count := watchProcesses(t, c)
	launched := c.launch()
	var r *record.Record
	c.until(func() bool {
		r = c.record()
		return c.noKeeper() || r != nil && r.Restarts > 0 && r.PID > 0 && !r.Starting && alive(r.PID) && exists(first)
	}, "a keeper's end or the second run")
	if keepers, _ := c.mine(); len(keepers) > 0 {
		_ = unix.Kill(r.Keeper, unix.SIGTERM)
	}
	c.until(c.noKeeper, "the keeper's end")
	c.until(func() bool { return len(c.held()) == 0 }, "the end of a held child whose keeper is gone")
	if most := count(); most > 1 {
		t.Fatalf("%d processes at once", most)
	}
	if nth == 1 && !exists(fired) {
		t.Errorf("the point was never passed (launcher: %v)", launched)
	}

	// What is left has to be something a claimant can decide about at once.
	// An ending process loses its command line a moment before its files.
	c.until(func() bool { return c.dir.LifeHeld(c.spec.Name, c.spec.Token) == proc.No }, "the end of the life lock")
	_, left := c.mine()
	if len(left) > 0 {
		r := c.record()
		if r == nil || len(left) > 1 || r.PID != left[0] {
			t.Fatalf("runs %v, recorded %+v", left, r)
		}
		if v, h := proc.Identify(r.PID, proc.Want{Started: r.Started, Inode: r.Inode}); v != proc.Match {
			t.Fatalf("its record is a match: %s", v)
		} else {
			h.Close()
		}
		signalPID(t, left[0], unix.SIGKILL) // a claimant would join it
		c.gone(left[0], "the process")
	}
	if err := os.WriteFile(first, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := c.spec.Token
	c.spec.Token += "next"
	c.fault, c.spec.Orphan = "", nil
	c.exe = built.keeper
	r = c.start()
	c.until(func() bool { _, now := c.mine(); return len(now) == 1 && now[0] == r.PID }, "one process, the recorded one")
	signalPID(t, r.Keeper, unix.SIGTERM)
	c.gone(r.Keeper, "the keeper")
	for _, n := range c.files() {
		// The killed generation's life file is the next claimant's to sweep;
		// a temporary file is taken by the next writer of its token.
		if n != "agent.pid.claiming" && n != "agent.pid.exit" && n != lock.LifeName("agent", old) {
			t.Errorf("left behind: %s", n)
		}
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// noKeeper looks twice: in the middle of its exec a process has no command line.
func (c *claim) noKeeper() bool {
	for range 2 {
		if keepers, _ := c.mine(); len(keepers) > 0 {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// held are children that still wait for go.
func (c *claim) held() []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if !strings.HasSuffix(string(cmdline), "\x00hold\x00") {
			continue
		}
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if strings.Contains(string(environ), "CLAIM="+c.mark) {
			var pid int
			_, _ = fmt.Sscan(e.Name(), &pid)
			out = append(out, pid)
		}
	}
	return out
}

// watchProcesses counts the claim's live processes in the process table until
// asked for the most there were at once.
func watchProcesses(t *testing.T, c *claim) func() int {
	var mu sync.Mutex
	most, stop := 0, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, now := c.mine(); len(now) > 1 {
				// A count that one scan got from two moments is none.
				lasting := 0
				for _, pid := range now {
					if alive(pid) {
						lasting++
					}
				}
				mu.Lock()
				most = max(most, lasting)
				mu.Unlock()
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	var once sync.Once
	end := func() int {
		once.Do(func() { close(stop); wg.Wait() })
		return most
	}
	t.Cleanup(func() { end() })
	return end
}

// Whoever watched the held child of a killed keeper must not take its end for
// the process's own wish.
func TestAHeldChildsEndIsNoCleanExit(t *testing.T) {
	c := newClaim(t, "/bin/sleep", "300")
	c.fault = "keep-named:stop"
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	keeper := c.keeperOf()
	c.stopped(keeper)
	h, err := proc.Open(c.record().PID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	signalPID(t, keeper, unix.SIGKILL)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if x, ok := h.WaitExit(ctx); ok && x.Signal == 0 && x.Code == 0 {
		t.Fatal("it reads as exit 0")
	}
}
