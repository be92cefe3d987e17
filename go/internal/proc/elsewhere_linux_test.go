package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests in this file look from somewhere else: as another user, from
// other namespaces, through a filter.

// args of most parts: a pid, and what this process knows of it.
func known(h *Handle, t *testing.T) []string {
	t.Helper()
	id, err := h.ID()
	must(t, err)
	argv, err := h.Argv()
	must(t, err)
	return []string{strconv.Itoa(h.pid), id.Started, strconv.FormatUint(id.Inode, 10), argv[0]}
}

func parseKnown(args []string) (int, Want, error) {
	pid, err := strconv.Atoi(args[0])
	inode, ierr := strconv.ParseUint(args[2], 10, 64)
	return pid, Want{Started: args[1], Inode: inode, Argv: args[3:4]}, errors.Join(err, ierr)
}

// Another user's process is not ours to signal, and is not gone for that.
func TestNoPermissionIsNotGone(t *testing.T) {
	needRoot(t)
	c := start(t, nil, "wait", "exit:0")
	c.says("up")
	h := open(t, c.pid)
	runPart(t, asNobody(part("stranger", known(h, t))))
	if h.Alive() != Yes {
		t.Error("it was reached all the same")
	}
}

func init() {
	parts["stranger"] = func(args []string) error {
		pid, want, err := parseKnown(args)
		if err != nil {
			return err
		}
		h, err := Open(pid)
		if err != nil {
			return err
		}
		defer h.Close()
		err = h.Signal(syscall.SIGKILL)
		if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrGone) {
			return fmt.Errorf("signal: %w", err)
		}
		for _, ask := range []func(int) (bool, error){reapedNow, reapedBySignal} {
			if gone, err := ask(h.fd); gone || err != nil {
				return fmt.Errorf("reaped %v, %w", gone, err)
			}
		}
		if v := h.Identify(want); v != Match || h.Alive() != Yes {
			return fmt.Errorf("%v, alive %v", v, h.Alive())
		}
		if uid, err := h.UID(); err != nil || uid != 0 {
			return fmt.Errorf("user %d, %w", uid, err)
		}
		if _, ok := h.Reap(); ok {
			return errors.New("reaped another's child")
		}
		return nil
	}
}

// The kernel writes 0 for an exit code that the reader may not see. Taken for
// a clean exit, it leaves a crashed process unrestarted.
func TestHiddenExitCodeIsNoCleanExit(t *testing.T) {
	needRoot(t)
	for _, how := range []string{"exit:0", "exit:3", "kill:9"} {
		t.Run(how, func(t *testing.T) {
			c := start(t, nil, "family", how)
			pid := c.says("child")
			h := open(t, pid)
			watcher := run(t, asNobody(part("exit", []string{strconv.Itoa(pid)})))
			watcher.says("opened")
			c.next()
			must(t, h.Wait(patient(t)))
			if watcher.says("proven") != 0 {
				t.Error("a zombie's status was read without the right to")
			}
			c.next()
			must(t, h.Reaped(patient(t)))
			if want, ok := h.Exit(); !ok {
				t.Error("we do not know it either")
			} else if got := watcher.says("status"); got != want.Code+1000*int(want.Signal) {
				t.Errorf("once reaped everybody may know, and read %d; want %+v", got, want)
			}
		})
	}
}

func init() {
	parts["exit"] = func(args []string) error {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		h, err := Open(pid)
		if err != nil {
			return err
		}
		fmt.Println("opened 0")
		if err := h.Wait(noDeadline); err != nil {
			return err
		}
		proven := 0
		if _, ok := h.Exit(); ok {
			proven = 1
		}
		fmt.Println("proven", proven)
		status := -1
		if e, ok := h.WaitExit(noDeadline); ok {
			status = e.Code + 1000*int(e.Signal)
		}
		fmt.Println("status", status)
		return nil
	}
}

// Under hidepid a foreign process has no directory in /proc. It is alive all
// the same, and is told apart by its inode or not at all.
func TestHidepid(t *testing.T) {
	needRoot(t)
	c := start(t, nil, "wait", "exit:0")
	c.says("up")
	h := open(t, c.pid)
	args := known(h, t)
	can(t, "--mount")
	self, err := os.Executable()
	must(t, err)
	// setpriv execs the binary by a path that nobody else may walk.
	copied := filepath.Join(filepath.Dir(helper(t)), "test")
	binary, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(copied, binary, 0o755)) //nolint:gosec // it is run as another user
	script := `mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$0"`
	cmd := part("hidden", args, "unshare", "--mount", "--propagation=private", "sh", "-c", script, copied)
	cmd.Args = cmd.Args[:len(cmd.Args)-1] // $0 is the binary already
	runPart(t, cmd)
}

func init() {
	parts["hidden"] = func(args []string) error {
		pid, want, err := parseKnown(args)
		if err != nil {
			return err
		}
		if _, err := os.Stat("/proc/" + args[0]); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is not hidden: %w", err)
		}
		h, err := Open(pid)
		if err != nil {
			return err
		}
		defer h.Close()
		if h.Alive() != Yes {
			return fmt.Errorf("alive %v", h.Alive())
		}
		for what, err := range map[string]error{"argv": second(h.Argv()), "state": second(h.State())} {
			if err == nil || errors.Is(err, ErrGone) {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		for _, w := range []Want{{Started: want.Started}, {Argv: want.Argv}, {Argv: []string{"another"}}} {
			if v := h.Identify(w); v != Unknown {
				return fmt.Errorf("%+v: %v", w, v)
			}
		}
		id, err := h.ID()
		if err != nil || id.Started != "" {
			return fmt.Errorf("id %+v, %w", id, err)
		}
		if onPidfs(h.fd) {
			other := want
			other.Inode++
			if v, o := h.Identify(want), h.Identify(other); v != Match || o != Differs {
				return fmt.Errorf("by its inode: %v, by another: %v", v, o)
			}
		}
		// Ourselves we always see.
		if me := Self(); me.Started == "" {
			return fmt.Errorf("self %+v", me)
		}
		return nil
	}
}

// Start times and ages go into records that other containers read.
func TestTimeNamespaceChangesNothing(t *testing.T) {
	needRoot(t)
	can(t, "--time", "--boottime", "100000")
	c := start(t, nil, "wait", "exit:0")
	c.says("up")
	h := open(t, c.pid)
	args := append(known(h, t), strconv.FormatInt(BootMillis(), 10))
	for _, offset := range []string{"100000", "0", "7"} {
		t.Run(offset, func(t *testing.T) {
			runPart(t, part("shifted", append(args, offset), "unshare", "--fork", "--time", "--boottime", offset))
		})
	}
}

func init() {
	parts["shifted"] = func(args []string) error {
		pid, want, err := parseKnown(args)
		outer, oerr := strconv.ParseInt(args[4], 10, 64)
		offset, ferr := strconv.ParseInt(args[5], 10, 64)
		if err := errors.Join(err, oerr, ferr); err != nil {
			return err
		}
		if got, ok := bootOffset(); !ok || got != time.Duration(offset)*time.Second {
			return fmt.Errorf("the offset reads %v, %v", got, ok)
		}
		h, err := Open(pid)
		if err != nil {
			return err
		}
		id, err := h.ID()
		if err != nil || id.Started != want.Started {
			return fmt.Errorf("started %q, outside %q: %w", id.Started, want.Started, err)
		}
		if late := BootMillis() - outer; late < 0 || late > patience.Milliseconds() {
			return fmt.Errorf("%d ms since boot, outside it was %d", BootMillis(), outer)
		}
		return nil
	}
}

func TestBootOffset(t *testing.T) {
	for text, want := range map[string]struct {
		offset time.Duration
		ok     bool
	}{
		"monotonic           0         0\nboottime            0         0\n": {0, true},
		"monotonic 5 0\nboottime 100000 0\n":                                 {100000 * time.Second, true},
		"monotonic 5 0\nboottime -7 500000000\n":                             {-6500 * time.Millisecond, true},
		"monotonic 5 0\n":                                                    {},
		"boottime 5\n":                                                       {},
		"boottime x 0\n":                                                     {},
		"boottime 99999999999999999999 0":                                    {},
		"boottime 9223372036854775807 0\n":                                   {},
		"":                                                                   {},
	} {
		got, ok := parseBootOffset([]byte(text))
		if ok != want.ok || got != want.offset {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
}

// The kernel rounds after it added the offset, so the start time cannot be
// had from within a namespace whose offset is no whole tick.
func TestStartedAt(t *testing.T) {
	for _, c := range []struct {
		boot   string
		ticks  uint64
		offset time.Duration
		want   string
	}{
		{"b", 500, 0, "b:500"},
		{"b", 500, time.Second, "b:400"},
		{"b", 500, -time.Second, "b:600"},
		{"b", 500, 10 * time.Millisecond, "b:499"},
		{"b", 500, time.Second + 1, ""},
		{"b", 500, 15 * time.Millisecond, ""},
		{"", 500, 0, ""},
	} {
		if got := startedAt(c.boot, c.ticks, c.offset); got != c.want {
			t.Errorf("startedAt(%q, %d, %v) = %q, want %q", c.boot, c.ticks, c.offset, got, c.want)
		}
	}
}

// The kernel hands a pid out again. What was opened before must not reach who
// has it now.
func TestRecycledPidIsNotSignalled(t *testing.T) {
	needRoot(t)
	can(t, "--pid", "--fork", "--mount-proc")
	cmd := part("recycled", []string{helper(t), strconv.FormatUint(NS(), 10)}, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if reason, skip := strings.CutPrefix(text, "skip: "); err == nil && skip {
		t.Skip(strings.TrimSuffix(reason, "done"))
	}
	if err != nil || !strings.HasSuffix(text, "done") {
		t.Fatalf("%v\n%s", err, text)
	}
}

func init() {
	parts["recycled"] = func(args []string) error {
		if NS() == 0 || strconv.FormatUint(NS(), 10) == args[1] {
			return errors.New("this is no namespace of our own")
		}
		const last = "/proc/sys/kernel/ns_last_pid"
		if _, err := os.Stat(last); err != nil {
			fmt.Println("skip: this kernel cannot choose a pid:", err)
			return nil
		}
		begin := func() (*exec.Cmd, error) {
			cmd := exec.Command(args[0], "wait", "exit:0")
			if _, err := cmd.StdinPipe(); err != nil {
				return nil, err
			}
			return cmd, cmd.Start()
		}
		first, err := begin()
		if err != nil {
			return err
		}
		pid := first.Process.Pid
		old, err := Open(pid)
		if err != nil {
			return err
		}
		oldID, err := old.ID()
		if err != nil {
			return err
		}
		unread, err := Open(pid) // its identity was never asked for
		if err != nil {
			return err
		}
		inherited, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(first.Process.Kill(), old.Wait(noDeadline)); err != nil {
			return err
		}
		_ = first.Wait()
		var second *exec.Cmd
		for range 100 { // our own threads take pids too
			if err := os.WriteFile(last, []byte(strconv.Itoa(pid-1)), 0); err != nil {
				return err
			}
			if second, err = begin(); err != nil {
				return err
			}
			if second.Process.Pid == pid {
				break
			}
			_ = second.Process.Kill()
			_ = second.Wait()
		}
		if second.Process.Pid != pid {
			fmt.Println("skip: the pid never came again")
			return nil
		}
		for _, h := range []*Handle{old, unread} {
			if err := h.Signal(syscall.SIGKILL); !errors.Is(err, ErrGone) {
				return fmt.Errorf("a signal through the old handle: %w", err)
			}
			if h.Alive() != No || h.Identify(Want{Argv: args[:1]}) != Differs {
				return fmt.Errorf("the old handle sees the new process: %v", h.Alive())
			}
			if argv, err := h.Argv(); !errors.Is(err, ErrGone) {
				return fmt.Errorf("the old handle reads %q, %w", argv, err)
			}
			if e, ok := h.Exit(); !ok || e.Signal != syscall.SIGKILL {
				return fmt.Errorf("the old handle's exit: %+v, %v", e, ok)
			}
		}
		if id, err := unread.ID(); !errors.Is(err, ErrGone) || id.Started != "" {
			return fmt.Errorf("the old handle takes the new process's start: %+v, %w", id, err)
		}
		heir, err := FromFile(os.NewFile(uintptr(inherited), "inherited"), pid)
		if err != nil || heir.Alive() != No {
			return fmt.Errorf("an inherited handle of the old process: %w", err)
		}
		for _, w := range []Want{{Inode: oldID.Inode, Started: oldID.Started}, {Inode: oldID.Inode, Started: oldID.Started, Argv: args[:1]}} {
			v, h := Identify(pid, w)
			if v == Match {
				// Without inodes two starts within one tick look the same.
				if id, _ := h.ID(); oldID.Inode != 0 || id.Started != oldID.Started {
					return fmt.Errorf("the new process is taken for the old one by %+v", w)
				}
			}
			if h.Alive() != Yes {
				return errors.New("the new process was reached")
			}
		}
		return errors.Join(second.Process.Kill(), waitKilled(second))
	}
}

func waitKilled(cmd *exec.Cmd) error {
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		return fmt.Errorf("it ended otherwise: %w", err)
	}
	return nil
}

// After a plain unshare --pid, /proc/<pid> still is the outer namespace's: it
// shows another process than the one our pid names.
func TestForeignProcIsNotBelieved(t *testing.T) {
	needRoot(t)
	can(t, "--pid", "--fork")
	runPart(t, part("foreign", []string{helper(t)}, "unshare", "--pid", "--fork", "--kill-child"))
}

func init() {
	parts["foreign"] = func(args []string) error {
		cmd := exec.Command(args[0], "wait", "exit:0")
		in, err := cmd.StdinPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			return err
		}
		h, err := Open(cmd.Process.Pid)
		if err != nil {
			return err
		}
		for what, err := range map[string]error{"argv": second(h.Argv()), "state": second(h.State()), "children": second(Children(os.Getpid()))} {
			if err := errorIs(err, errForeignProc); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if id, err := h.ID(); err != nil || id.Started != "" || Self().Started != "" {
			return fmt.Errorf("id %+v, %w", id, err)
		}
		if v := h.Identify(Want{Argv: args[:1]}); v != Unknown {
			return fmt.Errorf("identified: %v", v)
		}
		fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			return err
		}
		heir, err := FromFile(os.NewFile(uintptr(fd), "inherited"), cmd.Process.Pid)
		if err != nil || heir.Alive() != Yes {
			return fmt.Errorf("an inherited handle: %w", err)
		}
		if err := in.Close(); err != nil {
			return err
		}
		if err := h.Wait(noDeadline); err != nil {
			return err
		}
		if e, ok := h.Exit(); ok {
			return fmt.Errorf("a zombie nobody can look at ended with %+v", e)
		}
		if e, ok := h.Reap(); !ok || e != (Exit{}) {
			return fmt.Errorf("reaped %+v, %v", e, ok)
		}
		return nil
	}
}

// Sandboxes refuse pidfd_open with either of these. Nothing is known then.
func TestRefusedHandleIsUnknown(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EPERM, unix.ENOSYS, unix.EMFILE} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			number := strconv.Itoa(int(errno))
			runPart(t, part("refused", []string{number, strconv.Itoa(os.Getpid())}, helper(t), "filtered", number))
		})
	}
}

func init() {
	parts["refused"] = func(args []string) error {
		number, err := strconv.Atoi(args[0])
		pid, perr := strconv.Atoi(args[1])
		if err := errors.Join(err, perr); err != nil {
			return err
		}
		for _, pid := range []int{pid, os.Getpid(), 1 << 30} {
			h, err := Open(pid)
			if h != nil || !errors.Is(err, syscall.Errno(number)) || errors.Is(err, ErrGone) {
				return fmt.Errorf("Open(%d): %w", pid, err)
			}
			if v, h := Identify(pid, Want{Argv: []string{"x"}}); v != Unknown || h != nil {
				return fmt.Errorf("Identify(%d): %v", pid, v)
			}
		}
		if id := Self(); id.PID != os.Getpid() || id.NS == 0 {
			return fmt.Errorf("self %+v", id)
		}
		return nil
	}
}
