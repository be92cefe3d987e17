package reap

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"golang.org/x/sys/windows"

	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

// keepDescriptors: only what is listed is inherited.
func keepDescriptors() {}

// startDetached starts the reaper outside of the host's console and, where that may be,
// of the host's job, with a handle on the host if it is proven.
func startDetached(exe string, argv, env []string, host *proc.Handle) (*proc.Handle, error) {
	attr := &syscall.ProcAttr{
		Files: []uintptr{uintptr(syscall.Stdin), uintptr(syscall.Stdout), uintptr(syscall.Stderr)},
		Sys:   &syscall.SysProcAttr{CmdLine: spec.CommandLine(argv)},
	}
	if host != nil {
		var own windows.Handle
		self := windows.CurrentProcess()
		err := host.Raw(func(raw uintptr) error {
			return windows.DuplicateHandle(self, windows.Handle(raw), self, &own, 0, true, windows.DUPLICATE_SAME_ACCESS)
		})
		if err == nil {
			defer windows.CloseHandle(own)
			env = append(env, spec.HostFD+"="+strconv.FormatUint(uint64(own), 10))
			attr.Sys.AdditionalInheritedHandles = []syscall.Handle{syscall.Handle(own)}
		}
	}
	attr.Env = env
	const flags = windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP
	attr.Sys.CreationFlags = flags | windows.CREATE_BREAKAWAY_FROM_JOB
	pid, process, err := syscall.StartProcess(exe, argv, attr)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		// A job that lets nobody leave; see the keeper.
		attr.Sys.CreationFlags = flags
		pid, process, err = syscall.StartProcess(exe, argv, attr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", exe, err)
	}
	defer windows.CloseHandle(windows.Handle(process))
	child, err := proc.FromHandle(process, pid)
	if err != nil {
		_ = windows.TerminateProcess(windows.Handle(process), proc.KilledBy(syscall.SIGKILL))
		return nil, err
	}
	return child, nil
}
