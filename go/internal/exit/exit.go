// Package exit puts into words how a process ended or why it could not start,
// and says whether an end was meant. Restarts and messages both go by it, so
// that no message calls a crash what was treated as a stop.
package exit

import (
	"slices"
	"strconv"
	"syscall"

	"processguard/go/internal/proc"
)

// Reading is one exit status in words.
type Reading struct {
	// Killed means ended by a signal that nobody uses to ask for an end.
	Killed bool
	// Deliberate means asked for: exit code 0, or a signal that asks.
	Deliberate bool
	Detail     string
	// ExitCode is what a shell would report: 128 plus the signal.
	ExitCode int
}

// Describe reads a status in the form a Node child reports it: a nil code
// with a signal's name, or a code with "". Neither is possible too, when a
// wrapper kept the status to itself.
func Describe(code *int, signal string) Reading {
	switch {
	case signal != "":
		r := Reading{Detail: "terminated by " + signal, ExitCode: 128 + int(number(signal))}
		if asks(signal) {
			r.Deliberate = true
			return r
		}
		r.Killed = true
		r.Detail += ": a crash or an OOM kill, unless somebody sent it"
		return r
	case code == nil:
		return Reading{Detail: "ended with neither an exit code nor a signal", ExitCode: 1}
	case *code == 0:
		return Reading{Deliberate: true, Detail: "exited cleanly"}
	default:
		return Reading{Detail: "exited with code " + strconv.Itoa(*code), ExitCode: *code}
	}
}

// asks tells the signals that ask for an end from those that enforce one.
func asks(signal string) bool {
	return signal == "SIGTERM" || signal == "SIGINT" || signal == "SIGHUP"
}

// Deliberate says whether an end was meant and nothing is to be restarted: a
// signal that asks, or one of the codes. Nil codes are the default, 0 alone;
// an empty list means that no exit code is.
func Deliberate(e proc.Exit, codes []int) bool {
	if e.Signal != 0 {
		return asks(SignalName(e.Signal))
	}
	if codes == nil {
		return e.Code == 0
	}
	return slices.Contains(codes, e.Code)
}

// Status turns a kernel status into the pair a Node child reports: the code,
// or nil and the signal's name.
func Status(e proc.Exit) (code *int, signal string) {
	if e.Signal != 0 {
		return nil, SignalName(e.Signal)
	}
	return &e.Code, ""
}

// Cause is the short form inside a sentence: "signal SIGKILL", "exit code 3".
func Cause(code *int, signal string) string {
	switch {
	case signal != "":
		return "signal " + signal
	case code == nil:
		return "no exit code"
	default:
		return "exit code " + strconv.Itoa(*code)
	}
}

// SignalName is the name Node gives the signal. Real-time signals have none
// there; they get their number, so that they never read as no signal.
func SignalName(sig syscall.Signal) string {
	if sig == 0 {
		return ""
	}
	if name := name(sig); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(int(sig))
}

// number also reads what SignalName makes of a signal without a name.
func number(signal string) syscall.Signal {
	if sig := numberOf(signal); sig != 0 {
		return sig
	}
	if len(signal) > 3 && signal[:3] == "SIG" {
		if n, err := strconv.Atoi(signal[3:]); err == nil && n > 0 && n < 128 {
			return syscall.Signal(n)
		}
	}
	return 0
}

// SpawnFailure says in one sentence why path could not be started. code is
// the errno's name; a code that needs no explanation passes message through
// word for word, which is where a host's own refusal shows.
func SpawnFailure(code, message, path string) string {
	if path == "" {
		path = "the executable" // a bare " does not exist" names nothing
	}
	switch code {
	case "ENOENT":
		return path + " does not exist (ENOENT), or the interpreter or the working directory it needs does not"
	case "EACCES":
		return path + " may not be executed (EACCES): look at its mode, at the directories above it and for a noexec mount"
	case "ENOEXEC":
		return path + " is no program for this machine (ENOEXEC): built for another system or processor, or a script without a #! line"
	}
	switch {
	case message != "":
		return message
	case code != "":
		return path + " could not be started (" + code + ")"
	default:
		return path + " could not be started, and no reason was given"
	}
}
