// Package proc answers who a process is, whether it lives and how it ended.
//
// Every answer that may be wrong has three values: what could not be read is
// Unknown and never a "no". A pid alone names nothing, since the kernel hands
// it out again; everything here goes through a Handle that is opened before
// anything about the process is believed, and a signal goes through the same
// handle the proof was read from.
package proc

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode"
)

// ErrGone means that no process has this pid: there is none, or the number is
// a thread's. What could merely not be read is never reported as gone.
var ErrGone = errors.New("no such process")

// Unknown is the third value of both Answer and Verdict, hence untyped. It is
// their zero value on purpose: a forgotten assignment must not become a proof.
const Unknown = 0

// Answer is a yes or a no that may also be unknown.
type Answer uint8

// The two answers that are proofs.
const (
	Yes Answer = 1
	No  Answer = 2
)

func (a Answer) String() string {
	switch a {
	case Yes:
		return "yes"
	case No:
		return "no"
	default:
		return "unknown"
	}
}

// Verdict says whether a pid still is the process that was meant.
type Verdict uint8

const (
	// Match means that it is the same process.
	Match Verdict = 1
	// Differs means that the process is gone or is another one.
	Differs Verdict = 2
)

func (v Verdict) String() string {
	switch v {
	case Match:
		return "match"
	case Differs:
		return "differs"
	default:
		return "unknown"
	}
}

// ID names one process for as long as the machine runs.
type ID struct {
	PID int
	// Started is "<boot id>:<start ticks>", the ticks free of any time
	// namespace's offset; empty when it could not be read.
	Started string
	// Inode is the pidfs inode, unique within one boot; 0 where the kernel
	// has none (before Linux 6.9, other systems).
	Inode uint64
	// NS is the pid namespace of the process that wrote this ID: a pid means
	// nothing in another one. 0 when unknown.
	NS uint64
}

// State is the kernel's one-letter process state.
//
// Zombie alone does not mean dead: a leader that ended before its threads
// reads Z while the process runs on. Ask Alive.
type State byte

// The states that somebody decides by or has to name in a message.
const (
	Running  State = 'R'
	Sleeping State = 'S'
	DiskWait State = 'D'
	Stopped  State = 'T'
	Traced   State = 't'
	Zombie   State = 'Z'
	Dead     State = 'X'
	Idle     State = 'I'
)

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Sleeping:
		return "sleeping"
	case DiskWait:
		return "waiting for a disk"
	case Stopped:
		return "stopped"
	case Traced:
		return "stopped by a debugger"
	case Zombie:
		return "zombie"
	case Dead:
		return "dead"
	case Idle:
		return "idle"
	case 0:
		return "unknown"
	default:
		return string(rune(s))
	}
}

// Exit is how a process ended. Signal 0 means that it exited by itself.
type Exit struct {
	Code   int
	Signal syscall.Signal
}

// Want describes the process a pid is expected to be. Empty fields are not
// known and decide nothing.
type Want struct {
	Started    string
	Inode      uint64
	Argv       []string
	Keeper     int
	KeeperArgv []string
}

// once caches an answer that cannot change, but no failure to get one: a
// process that is short of descriptors at its first question would otherwise
// not know itself for the rest of its life.
type once[T any] struct {
	mu    sync.Mutex
	known bool
	value T
}

func (o *once[T]) get(read func() (T, bool)) T {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known {
		return o.value
	}
	value, ok := read()
	if ok {
		o.value, o.known = value, true
	}
	return value
}

var self once[ID]

// Self is the identity of the calling process. What could not be read of it
// stays empty.
func Self() ID {
	return self.get(func() (ID, bool) {
		id := ID{PID: os.Getpid(), NS: NS()}
		h, err := Open(id.PID)
		if err != nil {
			return id, false
		}
		defer h.Close()
		known, err := h.ID()
		if err != nil {
			return id, false
		}
		return known, known.Started != ""
	})
}

// Identify opens pid and compares it with w. The handle comes back whenever
// there is one, so that a signal can go to exactly the process judged; the
// caller closes it. A pid that nobody has differs, without a handle.
func Identify(pid int, w Want) (Verdict, *Handle) {
	h, err := Open(pid)
	if errors.Is(err, ErrGone) {
		return Differs, nil
	}
	if err != nil {
		return Unknown, nil
	}
	return h.Identify(w), h
}

// Identify says whether the handle's process is the one described. The
// strongest evidence that both sides have decides: the pidfs inode, then the
// start time, then the command line, and for a process that rewrote its
// command line the keeper that is its parent.
func (h *Handle) Identify(w Want) Verdict {
	switch h.Alive() {
	case No:
		return Differs
	case Unknown:
		return Unknown
	}
	if w.Inode != 0 || w.Started != "" {
		id, err := h.identity()
		if !errors.Is(err, ErrGone) && !errors.Is(err, os.ErrClosed) {
			if v := compareID(id, w); v != Unknown {
				return v
			}
			if _, _, told := splitStarted(w.Started); told && err != nil {
				// What would decide could not be read. The command line must not decide
				// instead: for a reader that was out of memory for a moment, a stranger
				// with the words of an old record was ours, to be signalled.
				return Unknown
			}
		}
	}
	v := h.identifyByArgv(w)
	// It may have died while we read: an empty command line then is a dying
	// process's, not an unreadable one's.
	if v != Differs && h.Alive() == No {
		return Differs
	}
	return v
}

// passing says whether an error is about us or the machine at this moment and not
// about the process.
func passing(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.EAGAIN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func (h *Handle) identifyByArgv(w Want) Verdict {
	argv, err := h.Argv()
	if err != nil {
		argv = nil
	}
	v := CompareArgv(argv, w.Argv)
	if v == Match || w.Keeper <= 1 || len(w.KeeperArgv) == 0 {
		return v
	}
	// A process that set its title cannot be told by its words, but its
	// parent's identity is as good: only a keeper with this token starts it.
	keeper, err := Open(w.Keeper)
	if err != nil {
		return v
	}
	defer keeper.Close()
	argv, err = keeper.Argv()
	if err != nil {
		argv = nil
	}
	kv := CompareArgv(argv, w.KeeperArgv)
	if kv == Differs {
		return v
	}
	// Asked after the keeper's handle was open and its words were read, and
	// the keeper's life after that: a parent that changed in between would
	// lend its name to a process it never started.
	parent, err := h.Parent()
	if err != nil || parent != w.Keeper || keeper.Alive() != Yes {
		return v
	}
	return kv
}

// compareID is Unknown unless both sides know the same kind of identity.
func compareID(id ID, w Want) Verdict {
	boot, _, ok := splitStarted(w.Started)
	if !ok {
		return Unknown
	}
	if here := BootID(); here != "" && boot != here {
		return Differs // nothing outlives its boot
	} else if here != "" && id.Inode != 0 && w.Inode != 0 {
		// An inode is unique within one boot only: the counter starts anew.
		if id.Inode == w.Inode {
			return Match
		}
		return Differs
	}
	if id.Started == "" {
		return Unknown
	}
	if id.Started == w.Started {
		return Match
	}
	return Differs
}

// splitStarted refuses everything that is not "<boot id>:<digits>": a start
// time in another system's form is evidence of nothing here.
func splitStarted(started string) (boot, ticks string, ok bool) {
	boot, ticks, _ = strings.Cut(started, ":")
	if boot == "" || ticks == "" {
		return "", "", false
	}
	for i := 0; i < len(ticks); i++ {
		if ticks[i] < '0' || ticks[i] > '9' {
			return "", "", false
		}
	}
	return boot, ticks, true
}

// CompareArgv says whether expected is a leading run of actual: a process may
// be given more than was recorded (a debugger's flags appended), never less.
func CompareArgv(actual, expected []string) Verdict {
	if len(expected) == 0 || actual == nil {
		return Unknown
	}
	if len(actual) < len(expected) {
		return Differs
	}
	for i, word := range expected {
		if actual[i] != word {
			return Differs
		}
	}
	return Match
}

// Printable is a foreign process's word as a log may show it: in one line, not
// too long, and without what a terminal obeys.
func Printable(word string) string {
	word = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, word)
	if len(word) > 200 {
		word = word[:200] + "…"
	}
	return word
}
