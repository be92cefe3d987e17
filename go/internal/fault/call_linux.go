//go:build fault

package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What goes wrong with system calls is said by three variables.
//
//   - PG_FAULT_CALL is "<role>/<op>:<kind>:<nth>:<what>", for example
//     "keep/rename:record:1:ENOSPC" or "launch/open:life:1:stop". The role is
//     that of the process (see role), the kind that of the file (see kind), and
//     what is an errno's name, "delay" for 20 ms, or "stop" and "stop-after" for
//     a SIGSTOP right before and right after the call.
//   - PG_FAULT_TRACE is a file that every call passed is appended to, as
//     "role op kind", and a call that went wrong as "fault role op kind nth what".
//   - PG_FAULT_ARM is a file. As long as it is not there nothing is counted,
//     traced or done: a test makes it when what it is about begins.
//
// In a host, where one process goes through many faults, Set says the first two.
const (
	callEnv  = "PG_FAULT_CALL"
	traceEnv = "PG_FAULT_TRACE"
	armEnv   = "PG_FAULT_ARM"
)

const delay = 20 * time.Millisecond

var plan = newPlan(os.Getenv(callEnv), os.Getenv(traceEnv), os.Getenv(armEnv))

var setting sync.RWMutex // around plan itself, which only a host changes

// planned is what is to go wrong, and how far that has come.
type planned struct {
	role, op, kind string
	nth            int
	what           string
	trace, arm     string

	mu     sync.Mutex
	passed int
}

func newPlan(call, trace, arm string) *planned {
	p := &planned{trace: trace, arm: arm}
	role, rest, _ := strings.Cut(call, "/")
	if words := strings.Split(rest, ":"); len(words) == 4 {
		p.role, p.op, p.kind, p.what = role, words[0], words[1], words[3]
		p.nth, _ = strconv.Atoi(words[2])
	}
	return p
}

// Set replaces what the environment said. Calls under way keep the old plan.
func Set(call, trace string) {
	setting.Lock()
	defer setting.Unlock()
	plan = newPlan(call, trace, "")
}

// Do makes one system call, unless it is to fail.
func Do(op, file string, call func() error) error {
	what, err := before(op, file)
	if err != nil {
		return err
	}
	err = call()
	after(what)
	return err
}

// Get is Do for a call that returns something.
func Get[T any](op, file string, call func() (T, error)) (T, error) {
	what, err := before(op, file)
	if err != nil {
		var none T
		return none, err
	}
	v, err := call()
	after(what)
	return v, err
}

func before(op, file string) (what string, err error) {
	setting.RLock()
	p := plan
	setting.RUnlock()
	if p.trace == "" && p.role == "" {
		return "", nil
	}
	if p.arm != "" && unix.Access(p.arm, unix.F_OK) != nil {
		return "", nil
	}
	me, kind := role(), kindOf(file)
	p.note("%s %s %s\n", me, op, kind)
	if me != p.role || op != p.op || kind != p.kind {
		return "", nil
	}
	p.mu.Lock()
	p.passed++
	now := p.passed == p.nth
	p.mu.Unlock()
	if !now {
		return "", nil
	}
	p.note("fault %s %s %s %d %s\n", me, op, kind, p.nth, p.what)
	switch p.what {
	case "delay":
		time.Sleep(delay)
	case "stop":
		Here(syscall.SIGSTOP)
	case "stop-after":
	default:
		errno, ok := errnos[p.what]
		if !ok {
			panic("no such fault: " + p.what)
		}
		return "", errno
	}
	return p.what, nil
}

func after(what string) {
	if what == "stop-after" {
		Here(syscall.SIGSTOP)
	}
}

// note appends one line. The file is opened for it: in a held child nothing may
// stay open, and several processes write to one file.
func (p *planned) note(format string, args ...any) {
	if p.trace == "" {
		return
	}
	fd, err := unix.Open(p.trace, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, fmt.Appendf(nil, format, args...))
	_ = unix.Close(fd)
}

// errnos are the errors that can be asked for.
var errnos = map[string]syscall.Errno{
	"EACCES": unix.EACCES, "EAGAIN": unix.EAGAIN, "EINTR": unix.EINTR, "EIO": unix.EIO, "EMFILE": unix.EMFILE,
	"ENFILE": unix.ENFILE, "ENOLCK": unix.ENOLCK, "ENOMEM": unix.ENOMEM, "ENOSPC": unix.ENOSPC, "EPERM": unix.EPERM,
	"EROFS": unix.EROFS,
}

// role is what this process is, by its command line: a mode of the keeper or of
// the reaper, and everything else is a host.
var role = sync.OnceValue(func() string {
	if len(os.Args) < 2 {
		return "host"
	}
	switch name, mode := filepath.Base(os.Args[0]), os.Args[1]; {
	case name == "keeper":
		return mode // launch, keep or hold
	case name == "reaper" && mode == "launch":
		return "reap-launch"
	case name == "reaper":
		return "reap"
	}
	return "host"
})

// kindOf is what a file is to us, by its name. A word that is no file's name
// stands for itself: pidfd, socket, dir.
func kindOf(file string) string {
	base := filepath.Base(file)
	switch {
	case strings.HasPrefix(file, "/proc/"):
		return "proc-" + base
	case strings.HasSuffix(base, ".pid"):
		return "record"
	case strings.HasSuffix(base, ".tmp"):
		return "tmp"
	case strings.Contains(base, ".pid.keeper."):
		return "life"
	}
	if i := strings.LastIndex(base, ".pid."); i >= 0 {
		return base[i+len(".pid."):] // claiming, exit, reaping
	}
	if strings.ContainsAny(file, "/.") {
		return "other"
	}
	return file
}
