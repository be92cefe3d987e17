package keep

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/spec"
)

// What is said over the socket between a keeper and its held child. The child
// reads one byte, which is go, or end-of-file, which is the keeper's end. It
// answers `ready` right before the exec, and only if that fails a stage and an
// errno; a successful exec closes the socket.
const (
	sayGo    = 'g'
	sayReady = 'x'
	reportSz = 5
)

// hold becomes the process. Until go it has done nothing that anybody sees.
//
// A stop signal must end it at once. Go's own handler would do that too, but
// on some thread, and the exec of another thread would end that thread half-way:
// the signal would be lost and the process run on. The kernel's default loses none.
func hold() int {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		setDefault(sig)
	}
	s, err := spec.FromEnviron(os.Environ())
	if err != nil {
		return sayUsage(err)
	}
	sock := s.Slots
	unix.CloseOnExec(sock)
	env := withoutFaults(spec.Restore(os.Environ()))
	faultPoint("hold-begin")
	if !readGo(sock) {
		return exitFailed // the record may name us: a 0 would read as a clean end of the process
	}
	faultPoint("hold-go")
	st, err := become(&s, sock, env)
	report(sock, st, err)
	return exitFailed
}

func readGo(sock int) bool {
	var b [1]byte
	n := 0
	err := again("read", "socket", func() (err error) {
		n, err = unix.Read(sock, b[:])
		return err
	})
	return err == nil && n == 1 && b[0] == sayGo
}

// become execs, in libuv's order: the directory is entered with the rights of
// the host's user, the executable is looked up with those of the process's.
func become(s *spec.Spec, sock int, env []string) (stage, error) {
	if s.Cwd != "" {
		if err := again("chdir", "cwd", func() error { return unix.Chdir(s.Cwd) }); err != nil {
			return stageChdir, err
		}
	}
	if s.UID >= 0 || s.GID >= 0 {
		// Refused to everybody but root, and then there is nothing to drop.
		_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	}
	// This thread is the only one that survives, so its ids are the process's.
	if s.GID >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGID, uintptr(s.GID), 0, 0); errno != 0 {
			return stageGID, errno
		}
	}
	if s.UID >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETUID, uintptr(s.UID), 0, 0); errno != 0 {
			return stageUID, errno
		}
	}
	faultPoint("hold-exec")
	defaultSignals()
	// A keeper that does not hear this takes the exec for an end without one: the
	// process would run on while everybody waits for the confirmation of its start.
	if err := say(sock, []byte{sayReady}); err != nil {
		return stageExec, err
	}
	err := fault.Do("exec", "process", func() error { return syscall.Exec(s.File, s.Argv, env) })
	if err == syscall.ENOEXEC {
		// A script without a #! line: execvp hands it to the shell, and so
		// does a Node host.
		argv := append([]string{"/bin/sh", s.File}, s.Argv[1:]...)
		if shErr := syscall.Exec("/bin/sh", argv, env); shErr != syscall.ENOENT {
			err = shErr
		}
	}
	return stageExec, err
}

// sigaction is the kernel's.
type sigaction struct {
	handler uintptr
	rest    [3]uint64 // flags, restorer, mask
}

const sigIgn = 1

func setDefault(sig syscall.Signal) {
	var dfl sigaction
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0)
}

// defaultSignals gives the process what a child of the host has: nothing
// ignored, nothing blocked. An exec resets handlers but keeps what is ignored,
// and whoever started the host under nohup ignores SIGHUP.
func defaultSignals() {
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		var old sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&old)), 8, 0, 0)
		if errno == 0 && old.handler == sigIgn {
			setDefault(sig)
		}
	}
	var none uint64
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
}

func report(sock int, st stage, err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	msg := [reportSz]byte{byte(st)}
	binary.LittleEndian.PutUint32(msg[1:], uint32(errno))
	_ = say(sock, msg[:])
}

func say(sock int, words []byte) error {
	return again("write", "socket", func() error {
		_, err := unix.Write(sock, words)
		return err
	})
}

// again makes a call anew for as long as a signal interrupts it, which a directory on
// a file system in user space lets happen.
func again(op, file string, call func() error) error {
	for {
		if err := fault.Do(op, file, call); err != unix.EINTR {
			return err
		}
	}
}

// readReport takes apart what a held child said until it closed the socket.
// ready: its exec was next. A stage of 0 means that nothing failed.
func readReport(said []byte) (ready bool, st stage, errno syscall.Errno) {
	if len(said) > 0 && said[0] == sayReady {
		ready, said = true, said[1:]
	}
	if len(said) >= reportSz {
		return false, stage(said[0]), syscall.Errno(binary.LittleEndian.Uint32(said[1:reportSz]))
	}
	return ready, 0, 0
}

func errnoName(e syscall.Errno) string { return unix.ErrnoName(e) }
