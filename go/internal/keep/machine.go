package keep

import "processguard/go/internal/record"

// State is where a keeper stands.
type State uint8

// The states of a keeper, in the order a start goes through them.
const (
	New       State = iota // nothing was looked at yet
	Grace                  // waits for the process of an older version to end
	Killing                // that process did not end in time and got SIGKILL
	Claiming               // waits for the gate of a start
	Forking                // has the gate, the record is ours; a child is being made
	Held                   // a child is held before its exec; the record is being written
	Named                  // the record names the child; it was not let go yet
	Execing                // the child was let go and has not told how its exec went
	Running                // the process runs
	Stopping               // a stop signal was passed on; waits for the end
	Evicting               // pidDir is gone; the process is being stopped
	Recording              // the process crashed; waits for the gate to write that down
	Backoff                // waits before the next start
	Ending                 // waits for the gate to write the end down
	Draining               // everything is written; relayed output gets its last second
	Done                   // the keeper exits
	numStates int   = iota
)

var stateNames = [numStates]string{
	"New", "Grace", "Killing", "Claiming", "Forking", "Held", "Named", "Execing", "Running",
	"Stopping", "Evicting", "Recording", "Backoff", "Ending", "Draining", "Done",
}

func (s State) String() string { return stateNames[s] }

// Event is what can happen to a keeper.
type Event uint8

// The events. Whether a failure is Refused or Busy, and a death Deliberate,
// Crash or LastCrash, is decided in policy.go.
const (
	Begin      Event = iota // there is nothing to wait for
	BeginGrace              // an older version's process gets time to end first
	OrphanGone              // that process has ended; the loop tells it only to who waits for it
	GraceSpent              // its time is over and it is to be killed
	Timer                   // the timer of the state rang
	GateMine                // the gate is ours and the record carries our token
	GateTaken               // the gate is ours, the record another token
	GateGone                // the gate is ours and there is no record
	GateFailed              // the gate or the record cannot be had at all
	Forked                  // a child is held
	Written                 // the record names it
	Went                    // it was let go
	Ran                     // its exec happened
	Refused                 // it cannot be started, and will not be
	Busy                    // it cannot be started now: no process slot, no memory, no disk space
	Unwritten               // the record could not be written; the process runs on
	Deliberate              // the process ended as somebody wanted
	Crash                   // the process crashed and a restart is left
	LastCrash               // the process crashed and none is left
	Stop                    // the keeper got SIGTERM, SIGINT or SIGHUP
	DirGone                 // pidDir was removed or replaced
	Drained                 // relayed output is through
	numEvents  int   = iota
)

var eventNames = [numEvents]string{
	"Begin", "BeginGrace", "OrphanGone", "GraceSpent", "Timer", "GateMine", "GateTaken", "GateGone",
	"GateFailed", "Forked", "Written", "Went", "Ran", "Refused", "Busy", "Unwritten", "Deliberate", "Crash",
	"LastCrash", "Stop", "DirGone", "Drained",
}

func (e Event) String() string { return eventNames[e] }

// Action is one thing the loop does.
type Action uint8

// The actions.
const (
	watchOrphan Action = iota // wait for the older process to end
	killOrphan                // SIGKILL it, through the handle that identified it
	watchDir                  // be told when pidDir goes away
	armGrace                  // ring when the older process's time is over
	armKill                   // ring when a SIGKILL has had time to work
	armBackoff                // ring when the back-off is over
	armRetry                  // ring when a write that failed may be tried again
	disarm                    // do not ring
	seek                      // ask for the gate, unless that is under way
	unseek                    // stop asking: the gate file would be made again in what somebody is removing
	leave                     // leave the gate
	fork                      // make a child that is held before its exec
	name                      // write the life file and the record that name it
	letGo                     // send go, unless a stop has come meanwhile
	drop                      // end the held child; it runs no user code
	confirm                   // clear `starting` in the record
	settle                    // give memory back that only the start needed
	forward                   // pass the stop signal on, once
	evict                     // SIGTERM the process
	kill                      // SIGKILL the process
	words                     // last words into the life file
	recordCrash               // record and exit record say that a restart is due
	recordBusy                // the exit record says that the start is tried again
	finish                    // record removed if ours, exit record, life file removed
	drain                     // let relayed output go through
	numActions  int    = iota
)

var actionNames = [numActions]string{
	"watchOrphan", "killOrphan", "watchDir", "armGrace", "armKill", "armBackoff", "armRetry", "disarm",
	"seek", "unseek", "leave", "fork", "name", "letGo", "drop", "confirm", "settle", "forward", "evict", "kill",
	"words", "recordCrash", "recordBusy", "finish", "drain",
}

func (a Action) String() string { return actionNames[a] }

// Step is one cell of the table: where the keeper goes, what it does on the
// way, and what it will say about the end from now on. An Outcome of ""
// leaves what was said before; `failed` stays, whatever follows it.
type Step struct {
	Next    State
	Outcome record.Outcome
	Do      []Action
}

func to(s State, do ...Action) *Step { return &Step{Next: s, Do: do} }

func (s Step) saying(o record.Outcome) *Step { s.Outcome = o; return &s }

// table has a cell for everything that can happen; nil is what cannot.
//
// A start is one gate hold from GateMine to leave. Whoever ends it early drops
// the child before the gate is left, so no user code runs that the record does
// not name.
var table = [numStates][numEvents]*Step{
	New: {
		Begin:      to(Claiming, seek),
		BeginGrace: to(Grace, watchDir, watchOrphan, armGrace),
	},
	Grace: {
		OrphanGone: to(Claiming, disarm, seek),
		Timer:      to(Claiming, seek),
		GraceSpent: to(Killing, killOrphan, armKill),
		Stop:       to(Ending, disarm, words, seek).saying(record.Released),
		DirGone:    to(Draining, disarm, words, drain).saying(record.Gone),
	},
	Killing: {
		OrphanGone: to(Claiming, disarm, seek),
		Timer:      to(Claiming, seek), // in an uninterruptible call: nothing stronger exists
		Stop:       to(Ending, disarm, words, seek).saying(record.Released),
		DirGone:    to(Draining, disarm, words, drain).saying(record.Gone),
	},
	Claiming: {
		GateMine:  to(Forking, fork),
		GateTaken: to(Draining, words, finish, leave, drain).saying(record.Taken),
		GateGone:  to(Draining, words, finish, leave, drain).saying(record.Gone),
		Refused:   to(Draining, words, drain).saying(record.Failed),
		Busy:      to(Backoff, armBackoff),
		Stop:      to(Ending, words, seek).saying(record.Released),
		DirGone:   to(Draining, unseek, words, drain).saying(record.Gone),
	},
	Forking: {
		Forked:  to(Held, name),
		Refused: to(Draining, words, finish, leave, drain).saying(record.Failed),
		Busy:    to(Backoff, recordBusy, leave, armBackoff),
	},
	Held: {
		Written: to(Named, letGo),
		Refused: to(Draining, drop, words, finish, leave, drain).saying(record.Failed),
		Busy:    to(Backoff, drop, recordBusy, leave, armBackoff),
		DirGone: to(Draining, drop, leave, words, drain).saying(record.Gone),
	},
	Named: {
		Went:    to(Execing, leave),
		Stop:    to(Draining, drop, words, finish, leave, drain).saying(record.Released),
		DirGone: to(Draining, drop, leave, words, drain).saying(record.Gone),
	},
	Execing: {
		Ran:        to(Running, seek, watchDir),
		Refused:    to(Ending, drop, words, seek).saying(record.Failed),
		Busy:       to(Recording, drop, words, seek).saying(record.Restarting),
		Deliberate: to(Ending, words, seek).saying(record.Released),
		Crash:      to(Recording, words, seek).saying(record.Restarting),
		LastCrash:  to(Ending, words, seek).saying(record.GaveUp),
		Stop:       to(Stopping, forward), // it has no handler that could swallow it
		DirGone:    to(Evicting, evict, armKill),
	},
	Running: {
		GateMine:   to(Running, confirm, leave, settle),
		GateTaken:  to(Running, leave, settle), // an orphan now; whoever displaced it decides about it
		GateGone:   to(Running, leave, settle), // a reaper has it in hand
		GateFailed: to(Running, armRetry),
		Unwritten:  to(Running, armRetry), // claimants wait for as long as the record says starting
		Timer:      to(Running, seek),
		Deliberate: to(Ending, disarm, words, seek).saying(record.Released),
		Crash:      to(Recording, disarm, words, seek).saying(record.Restarting),
		LastCrash:  to(Ending, disarm, words, seek).saying(record.GaveUp),
		Stop:       to(Stopping, disarm, forward),
		DirGone:    to(Evicting, evict, armKill),
	},
	Stopping: {
		GateMine:   to(Stopping, confirm, leave),
		GateTaken:  to(Stopping, leave),
		GateGone:   to(Stopping, leave),
		GateFailed: to(Stopping),
		Ran:        to(Stopping, seek, watchDir),
		Refused:    to(Ending, drop, words, seek).saying(record.Failed),
		Busy:       to(Ending, drop, words, seek).saying(record.Released),
		Unwritten:  to(Stopping),
		Deliberate: to(Ending, words, seek).saying(record.Released),
		Crash:      to(Ending, words, seek).saying(record.Released),
		LastCrash:  to(Ending, words, seek).saying(record.Released),
		Stop:       to(Stopping, forward),
		DirGone:    to(Evicting, evict, armKill),
	},
	Evicting: {
		GateMine:   to(Evicting, leave),
		GateTaken:  to(Evicting, leave),
		GateGone:   to(Evicting, leave),
		GateFailed: to(Evicting),
		Ran:        to(Evicting),
		Refused:    to(Draining, disarm, unseek, drop, words, drain).saying(record.Gone),
		Busy:       to(Draining, disarm, unseek, drop, words, drain).saying(record.Gone),
		Timer:      to(Evicting, kill),
		Deliberate: to(Draining, disarm, unseek, words, drain).saying(record.Gone),
		Crash:      to(Draining, disarm, unseek, words, drain).saying(record.Gone),
		LastCrash:  to(Draining, disarm, unseek, words, drain).saying(record.Gone),
		Stop:       to(Evicting, forward),
		DirGone:    to(Evicting),
	},
	Recording: {
		GateMine:   to(Backoff, recordCrash, leave, armBackoff),
		GateTaken:  to(Draining, words, finish, leave, drain).saying(record.Taken),
		GateGone:   to(Draining, words, finish, leave, drain).saying(record.Gone),
		GateFailed: to(Backoff, armBackoff),
		Stop:       to(Ending, words, seek).saying(record.Released),
		DirGone:    to(Draining, unseek, words, drain).saying(record.Gone),
	},
	Backoff: {
		Timer:   to(Claiming, seek),
		Stop:    to(Ending, disarm, words, seek).saying(record.Released),
		DirGone: to(Draining, disarm, words, drain).saying(record.Gone),
	},
	Ending: {
		GateMine:   to(Draining, finish, leave, drain),
		GateTaken:  to(Draining, words, finish, leave, drain).saying(record.Taken),
		GateGone:   to(Draining, words, finish, leave, drain).saying(record.Gone),
		GateFailed: to(Draining, drain),
		Stop:       to(Ending),
		DirGone:    to(Draining, unseek, drain),
	},
	Draining: {
		Drained: to(Done, disarm),
		Timer:   to(Done),
		Stop:    to(Draining),
		DirGone: to(Draining),
	},
	Done: {},
}

// next is the whole policy of a keeper: what to do about an event. false: the
// event cannot come in that state, and nothing is done.
func next(s State, e Event) (Step, bool) {
	if step := table[s][e]; step != nil {
		return *step, true
	}
	return Step{Next: s}, false
}
