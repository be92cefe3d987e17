package keep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/windows"

	"processguard/go/internal/spec"
)

// ownStdio are the handles that go on to the keeper.
func ownStdio(*spec.Spec) [3]windows.Handle { return stdioHandles() }

// startKeeper starts `keeper keep` outside of the host's console and, where that
// may be, of the host's job. It inherits stdio and an event by which it says that
// it holds the life file's lock.
func startKeeper(exe string, argv []string, s *spec.Spec, stdio [3]windows.Handle, _ *os.File) (pid int, handedOver func(), err error) {
	for slot := 3; slot < s.Slots; slot++ {
		if !slices.Contains(s.Ignored, slot) {
			return 0, nil, fmt.Errorf("stdio slot %d: a keeper on Windows hands on 0, 1 and 2 only", slot)
		}
	}
	ready, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", exe, err)
	}
	own, err := inheritable(ready)
	windows.CloseHandle(ready)
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", exe, err)
	}
	env := append(os.Environ(), spec.LifeFD+"="+strconv.FormatUint(uint64(own), 10), "GOMAXPROCS=1", "GOGC=25")
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{uintptr(stdio[0]), uintptr(stdio[1]), uintptr(stdio[2])},
		Sys: &syscall.SysProcAttr{
			CmdLine:                    spec.CommandLine(argv),
			AdditionalInheritedHandles: []syscall.Handle{syscall.Handle(own)},
		},
	}
	if s.Cwd != "" {
		attr.Dir = filepath.VolumeName(exe) + `\` // no directory is kept busy by a keeper
	}
	// A console of its own without a window: CTRL_BREAK reaches the process only
	// through a console that both have. A group of its own, so that the host's
	// CTRL_C reaches neither.
	const flags = windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP
	attr.Sys.CreationFlags = flags | windows.CREATE_BREAKAWAY_FROM_JOB
	pid, process, err := syscall.StartProcess(exe, argv, attr)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		// A job that lets nobody leave. A host's own job lets go of grandchildren
		// all the same; one around the host ends its keepers with it.
		attr.Sys.CreationFlags = flags
		pid, process, err = syscall.StartProcess(exe, argv, attr)
	}
	if err != nil {
		windows.CloseHandle(own)
		return 0, nil, fmt.Errorf("start %s: %w", exe, err)
	}
	return pid, func() {
		// Its own lock ends with this process.
		_, _ = windows.WaitForMultipleObjects([]windows.Handle{own, windows.Handle(process)}, false, windows.INFINITE)
	}, nil
}
