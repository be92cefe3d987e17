package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Failures in the wild, see docs/failures.md.

// Check, then signal by number: between the two the process is killed and
// another one gets its pid. Whoever has it now lives on, in every round.
func TestCheckThenSignalNeverReachesWhoHasThePidNow(t *testing.T) {
	needRoot(t)
	can(t, "--pid", "--fork", "--mount-proc")
	rounds := "300"
	if os.Getenv("PG_FULL") != "" {
		rounds = "10000"
	}
	cmd := part("heirs", []string{helper(t), strconv.FormatUint(NS(), 10), rounds}, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if reason, skip := strings.CutPrefix(text, "skip: "); err == nil && skip {
		t.Skip(strings.TrimSuffix(reason, "done"))
	}
	if err != nil || !strings.HasSuffix(text, "done") {
		t.Fatalf("%v\n%s", err, text)
	}
	t.Log(strings.TrimSuffix(text, "done"))
}

func init() {
	parts["heirs"] = func(args []string) error {
		if NS() == 0 || strconv.FormatUint(NS(), 10) == args[1] {
			return errors.New("this is no namespace of our own")
		}
		const last = "/proc/sys/kernel/ns_last_pid"
		if _, err := os.Stat(last); err != nil {
			fmt.Println("skip: this kernel cannot choose a pid:", err)
			return nil
		}
		rounds, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		in, keep, err := os.Pipe() // they end with us
		if err != nil {
			return err
		}
		defer keep.Close()
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		begin := func() (*os.Process, error) {
			return os.StartProcess(args[0], []string{args[0], "wait", "exit:0"}, &os.ProcAttr{Files: []*os.File{in, null, null}})
		}
		// An heir of pid: the next process that is started has that number.
		heirOf := func(pid int) (*os.Process, error) {
			for range 1000 { // our own threads take pids too
				if err := os.WriteFile(last, []byte(strconv.Itoa(pid-1)), 0); err != nil {
					return nil, err
				}
				p, err := begin()
				if err != nil || p.Pid == pid {
					return p, err
				}
				if _, err := ended(p); err != nil {
					return nil, err
				}
			}
			return nil, fmt.Errorf("pid %d never came again", pid)
		}
		victim, err := begin()
		if err != nil {
			return err
		}
		signals := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
		reached := 0
		for i := range rounds {
			pid, sig := victim.Pid, signals[i%2]
			h, err := Open(pid)
			if err != nil {
				return err
			}
			id, err := h.ID()
			if err != nil {
				return err
			}
			if v := h.Identify(Want{Inode: id.Inode, Started: id.Started}); v != Match {
				return fmt.Errorf("round %d: the check says %v", i, v)
			}
			// In every second pair of rounds the signal comes at any moment of what
			// follows, else when all of it is over.
			during := i%4 >= 2
			sent := make(chan error, 1)
			if during {
				go func() { sent <- h.Signal(sig) }()
			}
			how, err := ended(victim)
			if err != nil {
				return err
			}
			if how != syscall.SIGKILL && (!during || how != sig) {
				return fmt.Errorf("round %d: pid %d was ended by %v, a signal that was meant for who had the pid before", i, pid, how)
			}
			if how == sig {
				reached++
			}
			heir, err := heirOf(pid)
			if err != nil {
				return err
			}
			if !during {
				sent <- h.Signal(sig)
			}
			if err := <-sent; !errors.Is(err, ErrGone) && (err != nil || !during) {
				return fmt.Errorf("round %d: the signal: %w", i, err)
			}
			if err := h.Close(); err != nil {
				return err
			}
			victim = heir
		}
		how, err := ended(victim)
		if err != nil || how != syscall.SIGKILL {
			return fmt.Errorf("the last one was ended by %v, %w", how, err)
		}
		fmt.Printf("%d rounds; in %d the signal came in time for whom it was meant\n", rounds, reached)
		return nil
	}
}

// ended kills p and says which signal it had ended by before that.
func ended(p *os.Process) (syscall.Signal, error) {
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	state, err := p.Wait()
	if err != nil {
		return 0, err
	}
	return state.Sys().(syscall.WaitStatus).Signal(), nil
}

// Kqueue misses an exit: a child that ends before anybody registers for it must
// be told at once, as a zombie and when it was reaped as well.
func TestExitBeforeTheWatchIsToldAtOnce(t *testing.T) {
	for i := range 50 {
		c := start(t, nil, "wait", "exit:3")
		c.says("up")
		early := open(t, c.pid)
		c.next()
		must(t, early.Wait(patient(t)))
		began := time.Now()
		h, err := Open(c.pid)
		if err != nil {
			t.Fatalf("round %d: a zombie: %v", i, err)
		}
		must(t, h.Wait(patient(t)))
		if x, ok := h.WaitExit(patient(t)); h.Alive() != No || !ok || x.Code != 3 {
			t.Fatalf("round %d: alive %v, %+v, %v", i, h.Alive(), x, ok)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("round %d: it took %v", i, took)
		}
		must(t, h.Close())
		c.reap()
		if _, err := Open(c.pid); !errors.Is(err, ErrGone) {
			t.Fatalf("round %d: reaped: %v", i, err)
		}
		must(t, early.Close())
	}
}
