package reap

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

// startDetached starts the reaper in a session of its own, with a handle on the host if
// it is proven.
func startDetached(exe string, argv, env []string, host *proc.Handle) (*proc.Handle, error) {
	files := []uintptr{0, 1, 2}
	if host != nil {
		env = append(env, spec.HostFD+"="+strconv.Itoa(len(files)))
		files = append(files, host.File().Fd())
	}
	pidfd := -1
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	pid, err := fault.Get("fork", "reaper", func() (int, error) { return syscall.ForkExec(exe, argv, attr) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", exe, err)
	}
	var child *proc.Handle
	if pidfd >= 0 {
		child, err = proc.FromFile(os.NewFile(uintptr(pidfd), "reaper"), pid)
	} else {
		child, err = proc.Open(pid) // nobody but us reaps it, so the pid is its
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return nil, err
	}
	return child, nil
}

// keepDescriptors keeps from the reaper whatever the host had open without
// close-on-exec: it would stay open for as long as the reaper lives, listening
// sockets, databases, deleted files.
func keepDescriptors() { closeOnExec(3) }

// closeOnExec marks every descriptor from first up. They stay open here: some
// are Go's own.
func closeOnExec(first uint) {
	if unix.CloseRange(first, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// Before Linux 5.11.
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd >= int(first) {
			syscall.CloseOnExec(fd)
		}
	}
}
