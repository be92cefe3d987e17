package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Handle is a process handle: it keeps naming the same process, and Windows
// gives its pid to no other one as long as a handle is open. Its methods may be
// called at the same time; after Close they answer Unknown or os.ErrClosed.
type Handle struct {
	pid int

	mu    sync.RWMutex // held shared around every use of h: Close waits for them
	h     windows.Handle
	id    *ID
	death *event
}

// rights are what a user has on the processes of others too, protected ones
// included. Whatever needs more asks for it when it is needed.
const rights = windows.PROCESS_QUERY_LIMITED_INFORMATION | windows.SYNCHRONIZE

// Open takes a handle on the process with this pid. The handle comes first and
// everything that is read about the process is read through it. A process that
// ended still opens for as long as anybody has a handle; Alive says so.
func Open(pid int) (*Handle, error) {
	if pid <= 0 {
		return nil, ErrGone
	}
	h, err := windows.OpenProcess(rights, false, uint32(pid))
	switch {
	case err == nil:
	case errors.Is(err, windows.ERROR_INVALID_PARAMETER):
		// Also the answer for a thread's id.
		return nil, ErrGone
	default:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// 4n+1 to 4n+3 open the process 4n: the two low bits are not part of a pid.
	if real, err := windows.GetProcessId(h); err == nil && int(real) != pid {
		windows.CloseHandle(h)
		return nil, ErrGone
	}
	return &Handle{pid: pid, h: h}, nil
}

// FromFile takes over a process handle that was opened elsewhere, usually
// inherited, and closes it even when it fails. A handle of another process is
// refused.
func FromFile(f *os.File, pid int) (*Handle, error) {
	defer f.Close()
	return fromHandle(windows.Handle(f.Fd()), pid)
}

// FromHandle is FromFile for a bare handle, which stays the caller's.
func FromHandle(h uintptr, pid int) (*Handle, error) { return fromHandle(windows.Handle(h), pid) }

func fromHandle(h windows.Handle, pid int) (*Handle, error) {
	if pid <= 0 {
		return nil, ErrGone
	}
	real, err := windows.GetProcessId(h)
	if err != nil {
		return nil, fmt.Errorf("take over the handle of process %d: %w", pid, err)
	}
	if int(real) != pid {
		return nil, fmt.Errorf("take over the handle of process %d: it is one of process %d: %w", pid, real, windows.ERROR_INVALID_HANDLE)
	}
	own, err := duplicate(h)
	if err != nil {
		return nil, fmt.Errorf("take over the handle of process %d: %w", pid, err)
	}
	return &Handle{pid: pid, h: own}, nil
}

func duplicate(h windows.Handle) (windows.Handle, error) {
	var own windows.Handle
	self := windows.CurrentProcess()
	err := windows.DuplicateHandle(self, h, self, &own, 0, false, windows.DUPLICATE_SAME_ACCESS)
	return own, err
}

// PID is the number the handle was opened for.
func (h *Handle) PID() int { return h.pid }

// File is nil: a process handle is no file here. Raw is what can be handed on.
func (h *Handle) File() *os.File { return nil }

// Raw runs use with the kernel's handle, which stays open meanwhile.
func (h *Handle) Raw(use func(raw uintptr) error) error {
	return h.with(func(raw windows.Handle) error { return use(uintptr(raw)) })
}

// Close gives the handle back and ends every Wait with os.ErrClosed.
func (h *Handle) Close() error {
	h.mu.Lock()
	raw, death := h.h, h.death
	h.h = 0
	h.mu.Unlock()
	if raw == 0 {
		return os.ErrClosed
	}
	if death != nil {
		waiters.forget(death)
	}
	return windows.CloseHandle(raw)
}

// with runs use with the handle held open.
func (h *Handle) with(use func(raw windows.Handle) error) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.h == 0 {
		return os.ErrClosed
	}
	return use(h.h)
}

// Alive says whether the process runs. The handle is signalled once it does
// not, also while others keep it open.
func (h *Handle) Alive() Answer {
	answer := Answer(Unknown)
	_ = h.with(func(raw windows.Handle) error {
		switch event, _ := windows.WaitForSingleObject(raw, 0); event {
		case windows.WAIT_OBJECT_0:
			answer = No
		case uint32(windows.WAIT_TIMEOUT):
			answer = Yes
		}
		return nil
	})
	return answer
}

// Wait returns nil once the process is dead, and otherwise the context's error
// or os.ErrClosed. All waits of this program share a thread for every 63
// processes.
func (h *Handle) Wait(ctx context.Context) error {
	switch h.Alive() {
	case No:
		return nil
	case Unknown:
		if err := h.with(func(windows.Handle) error { return nil }); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	if h.h == 0 {
		h.mu.Unlock()
		return os.ErrClosed
	}
	e := h.death
	if e == nil {
		var err error
		if e, err = waiters.add(h.h); err != nil {
			h.mu.Unlock()
			return fmt.Errorf("wait for process %d: %w", h.pid, err)
		}
		h.death = e
	}
	h.mu.Unlock()
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reaped is Wait: nobody has to collect a process here.
func (h *Handle) Reaped(ctx context.Context) error { return h.Wait(ctx) }

// Signal reaches the handle's process or nobody.
//
// Windows has no signals. One that asks for an end (SIGTERM, SIGINT, SIGHUP) is
// a request to whoever answers for the process: a keeper or reaper, which
// listens by CatchStop for itself and for its process. Where nobody listens, and
// for every other signal, the process is ended with an exit code that Exit reads
// as that signal.
func (h *Handle) Signal(sig syscall.Signal) error {
	if h.Alive() == No {
		return ErrGone
	}
	if asks(sig) {
		if id, err := h.ID(); err == nil && askToStop(id) {
			return nil
		}
	}
	if err := h.terminate(KilledBy(sig)); err != nil {
		if h.Alive() == No {
			return ErrGone
		}
		return fmt.Errorf("end process %d: %w", h.pid, err)
	}
	return nil
}

func (h *Handle) terminate(code uint32) error {
	return h.with(func(windows.Handle) error {
		// By pid, which is this process's as long as our handle is open.
		killer, err := windows.OpenProcess(windows.PROCESS_TERMINATE, false, uint32(h.pid))
		if err != nil {
			return err
		}
		defer windows.CloseHandle(killer)
		return windows.TerminateProcess(killer, code)
	})
}

func asks(sig syscall.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGHUP
}

// killed is in the high half of the exit code of a process that we ended, the
// signal it stands for in the low half. TerminateProcess takes a code and no
// reason; 1, which others use, is every program's failure.
const killed = 0x5047_0000

// controlC is the exit code of a process that did not answer CTRL_C or
// CTRL_BREAK (STATUS_CONTROL_C_EXIT).
const controlC = 0xC000_013A

// KilledBy is the exit code that Exit reads as this signal.
func KilledBy(sig syscall.Signal) uint32 { return killed | uint32(sig)&0x7f }

// exitOf reads an exit code.
func exitOf(code uint32) Exit {
	switch {
	case code == controlC:
		return Exit{Signal: syscall.SIGINT}
	case code&^0x7f == killed && code != killed:
		return Exit{Signal: syscall.Signal(code & 0x7f)}
	}
	return Exit{Code: int(code)}
}

// Exit is how the process ended; anybody with a handle may ask, also long
// after. false: it runs, or the code could not be read.
func (h *Handle) Exit() (Exit, bool) {
	if h.Alive() != No {
		return Exit{}, false // 259 means "still active" and is a code as well
	}
	var code uint32
	if h.with(func(raw windows.Handle) error { return windows.GetExitCodeProcess(raw, &code) }) != nil {
		return Exit{}, false
	}
	return exitOf(code), true
}

// WaitExit waits for the death and says how it came.
func (h *Handle) WaitExit(ctx context.Context) (Exit, bool) {
	if h.Wait(ctx) != nil {
		return Exit{}, false
	}
	return h.Exit()
}

// Reap is Exit: there is nothing to collect.
func (h *Handle) Reap() (Exit, bool) { return h.Exit() }

func (h *Handle) identity() (ID, error) { return h.ID() }

// ID is what is known of the process's identity.
func (h *Handle) ID() (ID, error) {
	h.mu.RLock()
	known := h.id
	h.mu.RUnlock()
	if known != nil {
		return *known, nil
	}
	id := ID{PID: h.pid, NS: NS()}
	var created, exited, kernel, user windows.Filetime
	err := h.with(func(raw windows.Handle) error {
		return windows.GetProcessTimes(raw, &created, &exited, &kernel, &user)
	})
	if errors.Is(err, os.ErrClosed) {
		return ID{}, err
	}
	if err != nil {
		return id, nil // hidden from us: nothing is known, which is no error
	}
	if boot := BootID(); boot != "" {
		id.Started = boot + ":" + strconv.FormatInt(ticks(created), 10)
	}
	h.mu.Lock()
	h.id = &id
	h.mu.Unlock()
	return id, nil
}

// ticks are the 100 ns since 1601 that the kernel counts in. They are the wall
// clock's at the time of the start and are never changed afterwards.
func ticks(t windows.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }

// Parent is the pid of the process that started this one. It may be another
// process's by now; Windows hands children to nobody.
func (h *Handle) Parent() (int, error) {
	info, err := h.basic()
	return int(info.InheritedFromUniqueProcessId), err
}

func (h *Handle) basic() (windows.PROCESS_BASIC_INFORMATION, error) {
	var info windows.PROCESS_BASIC_INFORMATION
	err := h.with(func(raw windows.Handle) error {
		return windows.NtQueryInformationProcess(raw, windows.ProcessBasicInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)), nil)
	})
	if err != nil {
		err = fmt.Errorf("read process %d: %w", h.pid, err)
	}
	return info, err
}

// UID is not a thing here.
func (h *Handle) UID() (uint32, error) {
	return 0, fmt.Errorf("user id of process %d: %w", h.pid, errors.ErrUnsupported)
}

// State is Running or Dead; there are no others to be told from outside.
func (h *Handle) State() (State, error) {
	switch h.Alive() {
	case Yes:
		return Running, nil
	case No:
		return Dead, nil
	}
	return 0, fmt.Errorf("state of process %d: %w", h.pid, os.ErrClosed)
}

// NS is 0: pids are the machine's.
func NS() uint64 { return 0 }

// BootMillis is the time since the boot, sleep included.
func BootMillis() int64 { return windows.DurationSinceBoot().Milliseconds() }

// BootID changes with every boot and never in between. The kernel counts its
// boots where every process can read it. The boot time is no such thing: it
// moves with every correction of the clock, and whoever started a second copy
// because of that would be right by the rules. Wine has no count; there it is
// the start of the Wine server, which it keeps.
var BootID = sync.OnceValue(func() string {
	// KUSER_SHARED_DATA.BootId, at this address in every process.
	address := uintptr(0x7ffe0000 + 0x2c4)
	if n := **(**uint32)(unsafe.Pointer(&address)); n != 0 {
		return "boot" + strconv.FormatUint(uint64(n), 10)
	}
	at, err := bootTime()
	if err != nil {
		return ""
	}
	return "since" + strconv.FormatInt(at, 10)
})

// bootTime is when the machine was booted, by the wall clock as it is now.
func bootTime() (int64, error) {
	var info struct{ boot, now, zone, rest [6]int64 }
	err := windows.NtQuerySystemInformation(windows.SystemTimeOfDayInformation, unsafe.Pointer(&info), 48, nil)
	return info.boot[0], err
}

// SinceBoot is how long after the boot a process with this start identity was
// started; false when that cannot be told.
func SinceBoot(started string) (ms int64, ok bool) {
	boot, text, ok := splitStarted(started)
	if !ok || boot != BootID() {
		return 0, false
	}
	at, err := strconv.ParseInt(text, 10, 64)
	booted, berr := bootTime()
	if err != nil || berr != nil {
		return 0, false
	}
	return (at - booted) / 10_000, true
}

// Children lists the direct children of pid that run.
func Children(pid int) ([]int, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("children of process %d: %w", pid, err)
	}
	defer windows.CloseHandle(snapshot)
	parent, err := Open(pid)
	if err != nil {
		return nil, fmt.Errorf("children of process %d: %w", pid, err)
	}
	defer parent.Close()
	since, err := parent.ID()
	if err != nil {
		return nil, fmt.Errorf("children of process %d: %w", pid, err)
	}
	var kids []int
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if int(entry.ParentProcessID) == pid && entry.ProcessID != 0 && !olderThan(int(entry.ProcessID), since) {
			kids = append(kids, int(entry.ProcessID))
		}
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, fmt.Errorf("children of process %d: %w", pid, err)
	}
	return kids, nil
}

// olderThan tells a process whose parent's pid was given to another process.
func olderThan(pid int, parent ID) bool {
	h, err := Open(pid)
	if err != nil {
		return false
	}
	defer h.Close()
	id, err := h.ID()
	_, mine, ok := splitStarted(id.Started)
	_, parents, pok := splitStarted(parent.Started)
	if err != nil || !ok || !pok {
		return false
	}
	a, aerr := strconv.ParseInt(mine, 10, 64)
	b, berr := strconv.ParseInt(parents, 10, 64)
	return aerr == nil && berr == nil && a < b
}

// EndedAt is when the process ended, in the kernel's 100 ns; false while it runs.
func (h *Handle) EndedAt() (int64, bool) {
	if h.Alive() != No {
		return 0, false
	}
	var created, exited, kernel, user windows.Filetime
	err := h.with(func(raw windows.Handle) error {
		return windows.GetProcessTimes(raw, &created, &exited, &kernel, &user)
	})
	return ticks(exited), err == nil && ticks(exited) > 0
}
