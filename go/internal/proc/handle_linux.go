package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

// Handle is a pidfd: it keeps naming the same process after the kernel gave
// the pid to another one. Its methods may be called at the same time; after
// Close they answer Unknown or os.ErrClosed.
//
// An idle handle costs one descriptor and no goroutine; the first Wait adds
// the one goroutine that waits for all.
type Handle struct {
	pid  int
	file *os.File
	conn syscall.RawConn

	mu     sync.RWMutex // held shared around every use of fd: Close waits for them
	fd     int          // -1 once closed
	id     *ID
	death  *event
	reaped *event
}

// event is one kernel event with any number of waiters and one goroutine.
type event struct {
	done chan struct{}
	err  error // read only after done was closed
}

// Open takes a handle on the process with this pid. The pidfd comes first and
// everything that is read about the process comes after it, so that whatever
// was read about a successor is found out. A zombie that nobody reaped yet
// still opens.
func Open(pid int) (*Handle, error) {
	if pid <= 0 {
		// 0 and negative numbers name groups in every call that takes a pid.
		return nil, ErrGone
	}
	// A multi-threaded exec replaces the leader; the pid then may look like a
	// thread's for an instant, hence a second and a third look.
	var err error
	for range 3 {
		var fd int
		fd, err = pidfdOpen(pid)
		if err == nil {
			return newHandle(fd, pid), nil
		}
		switch err {
		case unix.ESRCH:
			return nil, ErrGone
		case unix.EINVAL, unix.ENOENT:
			// A thread id, or a leader that is being reaped right now: EINVAL
			// up to Linux 6.8, ENOENT since.
			if tgid, terr := tgidOf(pid); terr != nil || tgid != pid {
				return nil, ErrGone
			}
		default:
			// EPERM and ENOSYS come from seccomp filters, EMFILE from
			// ourselves. None says anything about the process.
			return nil, fmt.Errorf("open process %d: %w", pid, err)
		}
	}
	return nil, fmt.Errorf("open process %d: %w", pid, err)
}

// FromFile takes over a pidfd that was opened elsewhere, usually inherited,
// and closes it even when it fails. pid is the number it was opened for; a
// descriptor of another process is refused.
func FromFile(f *os.File, pid int) (*Handle, error) {
	defer f.Close()
	if pid <= 0 {
		return nil, ErrGone
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take over the handle of process %d: %w", pid, err)
	}
	// A copy, because an *os.File that was made from a blocking descriptor
	// never enters Go's poller again.
	fd := -1
	cerr := conn.Control(func(raw uintptr) {
		fd, err = fault.Get("dup", "pidfd", func() (int, error) { return unix.FcntlInt(raw, unix.F_DUPFD_CLOEXEC, 0) })
	})
	if err = errors.Join(cerr, err); err != nil {
		return nil, fmt.Errorf("take over the handle of process %d: %w", pid, err)
	}
	if err = checkPidfd(fd, pid); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take over the handle of process %d: %w", pid, err)
	}
	return newHandle(fd, pid), nil
}

func newHandle(fd, pid int) *Handle {
	h := &Handle{pid: pid, fd: fd, file: os.NewFile(uintptr(fd), "pidfd")}
	// SyscallConn fails only on a nil or closed file.
	h.conn, _ = h.file.SyscallConn()
	return h
}

func pidfdOpen(pid int) (int, error) {
	fd, err := fault.Get("pidfd_open", "pidfd", func() (int, error) { return unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) })
	if err != unix.EINVAL {
		return fd, err
	}
	// Linux 5.3 to 5.9 know no flags; asked without, EINVAL is about the pid.
	fd, err = unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// checkPidfd compares a descriptor with the pid it is said to be of. A reaped
// process reads -1 there and stays acceptable: the number was right once.
func checkPidfd(fd, pid int) error {
	// The kernel's own word that it is a pidfd at all: nothing else takes a
	// signal. ESRCH is a reaped process, EPERM one of another user.
	if err := fault.Do("probe", "pidfd", func() error { return unix.PidfdSendSignal(fd, 0, nil, 0) }); err == unix.EBADF || err == unix.EINVAL {
		return fmt.Errorf("not a process handle: %w", err)
	}
	if !procIsOurs() {
		return nil // the number it shows is another namespace's
	}
	text, err := readFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	named, _ := field(text, "Pid:")
	if n, err := strconv.Atoi(named); err != nil || n != pid && n != -1 {
		return fmt.Errorf("it is a handle of process %q: %w", named, unix.EBADF)
	}
	return nil
}

// PID is the number the handle was opened for. It may belong to another
// process by now.
func (h *Handle) PID() int { return h.pid }

// File is the pidfd itself, to be handed to a child. It stays the handle's.
func (h *Handle) File() *os.File { return h.file }

// Close gives the descriptor back and ends every Wait with os.ErrClosed.
func (h *Handle) Close() error {
	h.mu.Lock()
	h.fd = -1
	h.mu.Unlock()
	return h.file.Close()
}

func (h *Handle) isClosed() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.fd < 0
}

// with runs use with the descriptor held open.
func (h *Handle) with(use func(fd int) error) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return os.ErrClosed
	}
	return use(h.fd)
}

// poll is what the pidfd reports right now: POLLIN once the process ended,
// POLLHUP once it was reaped too (Linux 6.9).
func (h *Handle) poll() (int16, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return 0, os.ErrClosed
	}
	return pollNow(h.fd)
}

func pollNow(fd int) (int16, error) { return pollFor(fd, 0) }

func pollFor(fd int, limit time.Duration) (int16, error) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := fault.Get("poll", "pidfd", func() (int, error) { return unix.Poll(fds[:], int(limit.Milliseconds())) })
		if err == nil {
			if fds[0].Revents&unix.POLLNVAL != 0 {
				return 0, os.ErrClosed
			}
			return fds[0].Revents, nil
		}
		if err != unix.EINTR {
			return 0, err
		}
	}
}

// Alive says whether the process runs. A leader in state Z whose threads run
// on is alive, a zombie that waits to be reaped is not: the pidfd becomes
// readable at exactly that border.
func (h *Handle) Alive() Answer {
	events, err := h.poll()
	switch {
	case err != nil:
		return Unknown
	case events != 0:
		return No
	default:
		return Yes
	}
}

// Wait returns nil once the process is dead, and otherwise the context's
// error or os.ErrClosed. It neither polls nor parks an OS thread.
func (h *Handle) Wait(ctx context.Context) error {
	if events, err := h.poll(); err != nil || events != 0 {
		return err
	}
	return h.await(ctx, &h.death, unix.POLLIN|unix.POLLHUP)
}

// Reaped returns nil once the process is dead and no zombie either.
func (h *Handle) Reaped(ctx context.Context) error {
	// The two events share one read lock inside os.File, so the later one
	// must not be waited for first: it would hold back the earlier one.
	if err := h.Wait(ctx); err != nil {
		return err
	}
	gone, err := h.isReaped()
	if err != nil || gone {
		return err
	}
	hangsUp := false
	if err := h.with(func(fd int) error { hangsUp = onPidfs(fd); return nil }); err != nil {
		return err
	}
	if !hangsUp {
		return h.reapedByAsking(ctx)
	}
	return h.await(ctx, &h.reaped, unix.POLLHUP)
}

func (h *Handle) isReaped() (bool, error) {
	gone := false
	err := h.with(func(fd int) error {
		var err error
		gone, err = reapedNow(fd)
		return err
	})
	return gone, err
}

// reapedByAsking serves kernels before 6.9, which report the death and stay
// silent about the reaping: there is no event to wait for. The pauses grow to
// 250 ms because a zombie nobody reaps may stay for the life of the machine.
func (h *Handle) reapedByAsking(ctx context.Context) error {
	pause := time.Millisecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		if gone, err := h.isReaped(); err != nil || gone {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, 250*time.Millisecond)
		timer.Reset(pause)
	}
}

// await joins the goroutine that waits for one of the wanted events, and
// starts it if there is none.
func (h *Handle) await(ctx context.Context, slot **event, wanted int16) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	if h.fd < 0 {
		h.mu.Unlock()
		return os.ErrClosed
	}
	e := *slot
	if e == nil {
		e = &event{done: make(chan struct{})}
		*slot = e
		go h.watch(e, wanted)
	}
	h.mu.Unlock()
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch ends with the event or with Close.
func (h *Handle) watch(e *event, wanted int16) {
	defer close(e.done)
	var err error
	// Go's poller is edge triggered: what happened before this call makes no
	// edge any more, and one that was meant for POLLIN must not count as
	// POLLHUP. So every round asks the kernel before it waits.
	rerr := fault.Do("wait", "pidfd", func() error {
		return h.conn.Read(func(fd uintptr) bool {
			var events int16
			events, err = pollNow(int(fd))
			return err != nil || events&wanted != 0
		})
	})
	if rerr != nil && !h.isClosed() {
		// The poller has no room for it (fs.epoll.max_user_watches, memory). A wait
		// that ended here was taken for a death: a second process beside the first.
		rerr = h.watchAlone(wanted)
	}
	switch {
	case rerr != nil && h.isClosed():
		// RawConn's own error for this is internal to Go's poller.
		e.err = os.ErrClosed
	case rerr != nil:
		e.err = fmt.Errorf("wait for process %d: %w", h.pid, rerr)
	case err != nil:
		e.err = fmt.Errorf("wait for process %d: %w", h.pid, err)
	}
}

// watchAlone waits in the kernel on a thread of its own. It looks up now and then
// only for Close, which cannot end a poll that is under way.
func (h *Handle) watchAlone(wanted int16) error {
	for {
		var events int16
		err := h.with(func(fd int) (err error) {
			events, err = pollFor(fd, 100*time.Millisecond)
			return err
		})
		if err != nil || events&wanted != 0 {
			return err
		}
	}
}

// Signal reaches the handle's process or nobody. Signalling a zombie is no
// error, as with kill.
func (h *Handle) Signal(sig syscall.Signal) error {
	err := h.with(func(fd int) error {
		return fault.Do("signal", "pidfd", func() error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	})
	switch err {
	case nil:
		return nil
	case unix.ESRCH:
		return ErrGone
	default:
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), h.pid, err)
	}
}

// ID is what is known of the process's identity. A part that could not be
// read stays empty; only a process that is gone before anything was read, or
// a closed handle, is an error.
func (h *Handle) ID() (ID, error) {
	id, err := h.identity()
	if errors.Is(err, ErrGone) || errors.Is(err, os.ErrClosed) {
		return id, err
	}
	return id, nil
}

// identity is ID with the reason why the start time stayed empty.
func (h *Handle) identity() (ID, error) {
	h.mu.RLock()
	known := h.id
	h.mu.RUnlock()
	if known != nil {
		return *known, nil
	}
	id := ID{PID: h.pid, NS: NS()}
	err := h.with(func(fd int) error {
		id.Inode = inodeOf(fd)
		return nil
	})
	if err != nil {
		return ID{}, err
	}
	s, err := h.stat()
	if err != nil {
		return id, err // hidden from us, say: the inode is all there is, and not kept
	}
	if id.Started, err = startedHere(s.started); err != nil {
		return id, err // what is not known for now is not kept either
	}
	h.mu.Lock()
	h.id = &id
	h.mu.Unlock()
	return id, nil
}

// read returns a file of the process's /proc directory. A successor's is
// never returned: the handle is asked afterwards whether the pid was still
// held, if only by the zombie.
func (h *Handle) read(name string) ([]byte, error) {
	if !procIsOurs() {
		return nil, errForeignProc
	}
	text, err := readFile("/proc/" + strconv.Itoa(h.pid) + "/" + name)
	gone, rerr := h.isReaped()
	switch {
	case rerr != nil:
		return nil, rerr
	case gone:
		return nil, ErrGone
	case err != nil:
		// Held, and yet not to be read: hidepid, a policy, or no memory.
		return nil, fmt.Errorf("read %s of process %d: %w", name, h.pid, err)
	}
	return text, nil
}

func (h *Handle) stat() (stat, error) {
	text, err := h.read("stat")
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(text)
	if err != nil {
		return s, fmt.Errorf("read stat of process %d: %w", h.pid, err)
	}
	return s, nil
}

// Argv is the command line, empty trailing arguments included. A process
// without one (a zombie, a kernel thread) is an error and no empty list.
func (h *Handle) Argv() ([]string, error) {
	text, err := h.read("cmdline")
	if err != nil {
		return nil, err
	}
	argv := splitArgv(text)
	if argv == nil {
		if h.Alive() == No {
			return nil, ErrGone
		}
		return nil, fmt.Errorf("process %d shows no command line", h.pid)
	}
	return argv, nil
}

// Parent is the parent's pid; 0 when it is outside our pid namespace.
func (h *Handle) Parent() (int, error) {
	if info, err := h.info(unix.PIDFD_INFO_PID); err == nil && info.Mask&unix.PIDFD_INFO_PID != 0 {
		return int(info.Ppid), nil
	}
	s, err := h.stat()
	return s.ppid, err
}

// UID is the effective user id.
func (h *Handle) UID() (uint32, error) {
	if info, err := h.info(unix.PIDFD_INFO_CREDS); err == nil && info.Mask&unix.PIDFD_INFO_CREDS != 0 {
		return info.Euid, nil
	}
	text, err := h.read("status")
	if err != nil {
		return 0, err
	}
	// "Uid:\t<real>\t<effective>\t<saved>\t<file system>"
	if ids, ok := field(text, "Uid:"); ok {
		if words := strings.Fields(ids); len(words) == 4 {
			if id, err := strconv.ParseUint(words[1], 10, 32); err == nil {
				return uint32(id), nil
			}
		}
	}
	return 0, fmt.Errorf("read status of process %d: no Uid line", h.pid)
}

// State is the state of the process's leader.
func (h *Handle) State() (State, error) {
	s, err := h.stat()
	return s.state, err
}

// info asks the kernel through the pidfd (Linux 6.13), which works under
// hidepid too.
func (h *Handle) info(mask uint64) (unix.PidfdInfo, error) {
	info := unix.PidfdInfo{Mask: mask}
	err := h.with(func(fd int) error {
		return fault.Do("info", "pidfd", func() error { return unix.IoctlPidfdInfo(fd, &info) })
	})
	return info, err
}
