package keep

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/spec"
)

// startKeeper starts `keeper keep` in a session of its own. It inherits the
// declared slots and the life file's lock.
func startKeeper(exe string, argv []string, s *spec.Spec, declared []bool, life *os.File) (pid int, handedOver func(), err error) {
	files := make([]uintptr, s.Slots+1)
	for fd := range declared {
		files[fd] = noFD
		if declared[fd] {
			files[fd] = uintptr(fd)
		}
	}
	files[s.Slots] = life.Fd()
	env := append(os.Environ(),
		spec.LifeFD+"="+strconv.Itoa(s.Slots),
		// One thread runs Go code; a keeper never has two things to do. The
		// collector's first round would otherwise come at 4 MB.
		"GOMAXPROCS=1", "GOGC=25")
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}
	if s.Cwd != "" {
		attr.Dir = "/" // no mount is kept busy by a keeper
	}
	pid, err = fault.Get("fork", "keeper", func() (int, error) { return syscall.ForkExec(exe, argv, attr) })
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", exe, err)
	}
	return pid, func() {}, nil
}

// noFD leaves a descriptor of the child closed.
const noFD = ^uintptr(0)

// ownStdio tells which of the declared slots there are, and keeps everything else
// from the keeper.
func ownStdio(s *spec.Spec) []bool {
	declared := inherited(s.Slots)
	closeOnExecFrom(s.Slots)
	return declared
}

// inherited tells which of the first n descriptors came from our parent. A
// declared slot may be empty, and Go's own descriptors fill such holes; they
// close on exec, and nothing that was inherited does.
func inherited(n int) []bool {
	open := make([]bool, n)
	for fd := range open {
		flags, err := fault.Get("getfd", "slot", func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0) })
		open[fd] = err == nil && flags&unix.FD_CLOEXEC == 0
	}
	return open
}

// closeOnExecFrom keeps everything that was not declared from the keeper: a
// descriptor the host leaked would stay open for as long as the process runs.
// It marks instead of closing, because Go's own descriptors are among them.
func closeOnExecFrom(fd int) {
	if unix.CloseRange(uint(fd), 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// Before Linux 5.11.
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		if open, err := strconv.Atoi(n.Name()); err == nil && open >= fd {
			unix.CloseOnExec(open)
		}
	}
}
