package keep

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"processguard/go/internal/exit"
	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

// death is how one run of the process ended.
type death struct {
	exit  proc.Exit
	known bool          // false: somebody else collected the status
	ran   time.Duration // since its exec
}

// count is how many restarts a generation has used up.
type count struct {
	used  int // crashes that were answered
	tries int // starts since then that did not come about, through no fault of the process
}

// judge names a death and says what it does to the count.
func judge(d death, c count, s *spec.Spec) (Event, count) {
	if d.known && exit.Deliberate(d.exit, s.Deliberate) {
		return Deliberate, c
	}
	if reset := s.Restart.ResetAfterMs; reset > 0 && d.ran >= ms(reset) {
		c = count{}
	}
	if c.used >= s.Restart.Max {
		return LastCrash, c
	}
	return Crash, count{used: c.used + 1}
}

// pause is the back-off before the next start. A start that could not be made
// takes no restart away; it only waits longer, and never less than
// 10 ms doubled, since a base of 1 ms would ask a machine that is out of
// memory a thousand times a second.
func pause(c count, r spec.Restart) time.Duration {
	wait := ms(r.WaitMs(max(c.used-1, 0) + c.tries))
	if c.tries > 0 {
		wait = max(wait, min(10*time.Millisecond<<min(c.tries, 16), 16*time.Second))
	}
	return wait
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// stage is how far a start had come when it failed.
type stage byte

const (
	stageFork  stage = 'f'
	stageName  stage = 'n' // writing the record
	stageChdir stage = 'c'
	stageGID   stage = 'g'
	stageUID   stage = 'u'
	stageExec  stage = 'X'
	stageEnded stage = 'e' // ended by itself before the exec
)

// startError is a start that failed.
type startError struct {
	stage stage
	err   error
	file  string
	cwd   string
	id    int // the uid or gid that could not be had
}

func (e *startError) Unwrap() error { return e.err }

func (e *startError) Error() string {
	var errno syscall.Errno
	errors.As(e.err, &errno)
	switch e.stage {
	case stageChdir:
		return fmt.Sprintf("working directory %s: %v; %s was not started", e.cwd, e.err, e.file)
	case stageGID:
		return fmt.Sprintf("gid %d: %v; %s was not started", e.id, e.err, e.file)
	case stageUID:
		return fmt.Sprintf("uid %d: %v; %s was not started", e.id, e.err, e.file)
	case stageExec:
		return exit.SpawnFailure(errnoName(errno), fmt.Sprintf("exec %s: %v", e.file, e.err), e.file)
	case stageName:
		return fmt.Sprintf("%v; %s was not started", e.err, e.file)
	case stageEnded:
		return fmt.Sprintf("%v before %s was started", e.err, e.file)
	default:
		return fmt.Sprintf("no process for %s: %v", e.file, e.err)
	}
}

// temporary says whether the same start may well succeed later. What the
// record needs (disk space, a writable mount) is always hoped for: giving a
// process up because the disk was full for a minute helps nobody.
func (e *startError) temporary() bool {
	if e.stage == stageName || e.stage == stageEnded {
		// A held child ends by itself only when Go's runtime gets no thread or
		// no memory.
		return true
	}
	for _, errno := range append([]error{
		syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.ETXTBSY, // the executable is being replaced
	}, alsoTemporary...) {
		if errors.Is(e.err, errno) {
			return true
		}
	}
	return false
}
