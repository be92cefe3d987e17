package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

// catchStops is called before anything else. Notify and never Ignore: what is
// ignored is inherited by the process.
func catchStops() chan os.Signal {
	stops := make(chan os.Signal, 16)
	signal.Notify(stops, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	return stops
}

// open takes over what the launcher handed on.
func (k *keeper) open() error {
	fd, err := strconv.Atoi(os.Getenv(spec.LifeFD))
	if err != nil || fd < k.spec.Slots {
		return fmt.Errorf("%s=%q is no inherited life file", spec.LifeFD, os.Getenv(spec.LifeFD))
	}
	k.declared = inherited(k.spec.Slots)
	for fd := 3; fd < k.spec.Slots; fd++ {
		if k.declared[fd] {
			unix.CloseOnExec(fd)
		}
	}
	unix.CloseOnExec(fd)
	k.env = os.Environ()
	if k.dir, err = lock.OpenExisting(filepath.Dir(k.spec.Lock)); err != nil {
		return err
	}
	k.life = os.NewFile(uintptr(fd), lock.LifeName(k.spec.Name, k.spec.Token))
	var ours, named unix.Stat_t
	if err := fault.Do("fstat", k.life.Name(), func() error { return unix.Fstat(fd, &ours) }); err != nil {
		return fmt.Errorf("inherited life file: %w", err)
	}
	err = fault.Do("stat", k.life.Name(), func() error {
		return unix.Fstatat(k.dir.FD(), k.life.Name(), &named, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil || named.Ino != ours.Ino || named.Dev != ours.Dev {
		return fmt.Errorf("descriptor %d is not %s", fd, k.dir.Join(k.life.Name()))
	}
	k.entry.Keeper, k.entry.KeeperArgv = os.Getpid(), k.argv
	k.relays, err = newRelays(k.spec)
	return err
}

func (k *keeper) hold() (*child, error) {
	pair, err := fault.Get("socketpair", "socket", func() ([2]int, error) {
		return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("socket to the held child: %w", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("socket to the held child: %w", err)
	}
	sock := os.NewFile(uintptr(pair[0]), "held child")
	files := make([]uintptr, k.spec.Slots+1)
	for fd := range k.declared {
		files[fd] = noFD
		if k.declared[fd] {
			files[fd] = uintptr(fd)
		}
		if fd < 3 && k.relays.ends[fd] >= 0 {
			files[fd] = uintptr(k.relays.ends[fd])
		}
	}
	files[k.spec.Slots] = uintptr(pair[1])
	attr := &syscall.ProcAttr{Env: k.env, Files: files, Sys: &syscall.SysProcAttr{
		Setsid:  k.spec.Detached,
		Setpgid: !k.spec.Detached,
	}}
	pid, err := fault.Get("fork", "held", func() (int, error) {
		return syscall.ForkExec(selfPath(k.exe), []string{k.exe, "hold"}, attr)
	})
	if err != nil {
		sock.Close()
		return nil, err
	}
	h, err := proc.Open(pid)
	if err != nil {
		sock.Close() // it ends at end-of-file
		_, _ = unix.Wait4(pid, nil, 0, nil)
		return nil, err
	}
	id, err := h.ID()
	if err != nil {
		id = proc.ID{PID: pid}
	}
	return &child{handle: h, id: id, held: held{sock: sock}}, nil
}

// selfPath is this very executable: after an upgrade its path leads to another
// one, which may not speak the same words to us.
func selfPath(exe string) string {
	const self = "/proc/self/exe"
	if unix.Access(self, unix.X_OK) == nil {
		return self
	}
	return exe
}

// stopUnderWay says whether the kernel holds a stop signal that none of our
// threads has taken yet: a keeper that was itself stopped goes on with one
// thread before the other has seen what came meanwhile.
func stopUnderWay() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Only what the asking thread blocks is reported.
	mask, old, pending := uint64(stopMask), uint64(0), uint64(0)
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&mask)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_RT_SIGPENDING, uintptr(unsafe.Pointer(&pending)), 8, 0)
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	return pending&stopMask != 0
}

const stopMask = 1<<(unix.SIGTERM-1) | 1<<(unix.SIGINT-1) | 1<<(unix.SIGHUP-1)

// flushStops makes sure that a signal Go has taken is in its channel: Stop
// waits for that, whichever channel it is asked about.
func flushStops() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM)
	signal.Stop(c)
}

// follow waits for what the child says and then for its end. In that order, so
// a death is never heard of before it is known whether the exec happened.
func (k *keeper) follow(c *child) {
	said := make([]byte, 0, 8)
	for len(said) < cap(said) {
		n, err := fault.Get("read", "socket", func() (int, error) { return c.sock.Read(said[len(said):cap(said)]) })
		said = said[:len(said)+n]
		if err != nil {
			break
		}
	}
	k.inbox <- func() (Event, bool) { return k.execAnswer(c, said) }
	_ = c.handle.Wait(context.Background())
	k.inbox <- func() (Event, bool) { return k.died(c) }
}

func (k *keeper) execAnswer(c *child, said []byte) (Event, bool) {
	if k.child != c {
		return 0, false
	}
	c.sock.Close()
	ready, st, errno := readReport(said)
	switch {
	case st != 0:
		e := &startError{stage: st, err: errno, file: k.spec.File, cwd: k.spec.Cwd, id: k.spec.UID}
		if st == stageGID {
			e.id = k.spec.GID
		}
		return k.startFailed(e), true
	case !ready:
		return 0, false // it ended before its exec; its death is next
	}
	c.ready, c.since = true, time.Now()
	k.first, k.ran, k.count.tries, k.retry = false, true, 0, 0
	faultPoint("keep-ran")
	return Ran, true
}

// platform is what a keeper knows on this system only.
type platform struct {
	declared []bool
	clean    []mapping
}

// held is the socket over which a held child is let go and answers.
type held struct{ sock *os.File }

// letGo lets the child exec. One that died meanwhile has closed its end; the
// wait tells of it. One that does not hear it would be held for ever.
func (c *child) letGo() {
	_, err := fault.Get("write", "socket", func() (int, error) { return c.sock.Write([]byte{sayGo}) })
	if err != nil && !errors.Is(err, unix.EPIPE) {
		c.unheard = err
		c.abandon()
	}
}

// tell passes a stop on.
func (c *child) tell(sig syscall.Signal) { _ = c.handle.Signal(sig) }

func (c *child) kill() { _ = c.handle.Signal(unix.SIGKILL) }

// abandon makes a held child end by itself.
func (c *child) abandon() { c.sock.Close() }

func (c *child) close() { c.handle.Close() }

// alsoTemporary are this system's own words for what may be had later.
var alsoTemporary []error
