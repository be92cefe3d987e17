package proc

import (
	"context"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

// Exit is how the process ended, where that is proven; false means not
// proven, or not ended. It never blocks and needs not be the parent.
func (h *Handle) Exit() (Exit, bool) {
	if h.Alive() != No {
		return Exit{}, false
	}
	if e, ok := h.exitOfReaped(); ok {
		return e, true
	}
	if e, ok := h.exitOfZombie(); ok {
		return e, true
	}
	// It may have been reaped between the two questions.
	return h.exitOfReaped()
}

// exitOfReaped asks the pidfd, which keeps the status once the process was
// reaped (Linux 6.15). The returned mask is the proof: without the bit the
// field is 0 and would read as a clean exit.
func (h *Handle) exitOfReaped() (Exit, bool) {
	info, err := h.info(unix.PIDFD_INFO_EXIT)
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return Exit{}, false
	}
	return decode(int(info.Exit_code)), true
}

func (h *Handle) exitOfZombie() (Exit, bool) {
	s, err := h.stat()
	if err != nil || s.state != Zombie && s.state != Dead {
		return Exit{}, false
	}
	if s.exit == 0 && !h.mayReadExit() {
		return Exit{}, false
	}
	return decode(s.exit), true
}

// decode takes a wait status apart: the low seven bits are the signal, bit 7
// tells of a core file, the next eight are the exit code.
func decode(status int) Exit {
	if sig := status & 0x7f; sig != 0 {
		return Exit{Signal: syscall.Signal(sig)}
	}
	return Exit{Code: status >> 8 & 0xff}
}

// WaitExit waits for the death and for the first moment at which its status
// is proven, which may be the reaping. False after that, or when ctx ended.
func (h *Handle) WaitExit(ctx context.Context) (Exit, bool) {
	if h.Wait(ctx) != nil {
		return Exit{}, false
	}
	if e, ok := h.Exit(); ok {
		return e, true
	}
	// Without PIDFD_INFO_EXIT the reaping takes the last evidence away, so
	// there is nothing to wait for.
	if _, err := h.info(unix.PIDFD_INFO_EXIT); err == unix.ENOTTY || err == unix.EINVAL {
		return Exit{}, false
	}
	if h.Reaped(ctx) != nil {
		return Exit{}, false
	}
	return h.Exit()
}

// Reap collects the process if it is our own child and dead; false if it is
// not ours, lives, or was collected before. It never blocks.
//
// It is for children that nobody else collects. For one of os/exec the os
// package's Wait fails afterwards and its pidfd stays open until the garbage
// collector comes, unless Process.Release is called.
func (h *Handle) Reap() (Exit, bool) {
	var info unix.Siginfo
	err := h.with(func(fd int) error {
		for {
			err := fault.Do("waitid", "pidfd", func() error {
				return unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG, nil)
			})
			if err != unix.EINTR {
				return err
			}
		}
	})
	child := (*siginfoChild)(unsafe.Add(unsafe.Pointer(&info), siginfoUnion))
	if err != nil || child.pid == 0 {
		return Exit{}, false
	}
	if info.Code == cldExited {
		return Exit{Code: int(child.status)}, true
	}
	return Exit{Signal: syscall.Signal(child.status)}, true
}

// x/sys leaves the union inside siginfo_t opaque. It follows three ints at
// the alignment of a pointer.
const (
	pointerSize  = unsafe.Sizeof(uintptr(0))
	siginfoUnion = (3*4 + pointerSize - 1) &^ (pointerSize - 1)
	cldExited    = 1
)

type siginfoChild struct {
	pid    int32
	uid    uint32
	status int32
}
