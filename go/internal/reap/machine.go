package reap

import "processguard/go/internal/proc"

// State is where a reaper's life has got to.
type State uint8

// The states, in the order they are gone through.
const (
	Watching State = iota // the host lives
	Grace                 // it is gone; another one may be starting
	Reaping               // its processes are being stopped
	Done
	nStates
)

var stateNames = [nStates]string{"watching", "grace", "reaping", "done"}

func (s State) String() string { return stateNames[s] }

// Event is what a reaper can be told.
type Event uint8

// The events.
const (
	HostGone    Event = iota // the handle says that the watched host ended
	Replacement              // the replacement pid file names a host that counts
	GraceOver                // nobody came
	AllStopped               // every record was answered
	DirGone                  // pidDir does not exist any more
	StopSignal               // SIGTERM or SIGINT
	nEvents
)

var eventNames = [nEvents]string{"host gone", "replacement", "grace over", "all stopped", "pidDir gone", "SIGTERM or SIGINT"}

func (e Event) String() string { return eventNames[e] }

// Step is what is done on an event.
type Step uint8

// The steps.
const (
	Stay       Step = iota // nothing: the event says nothing here
	AwaitHost              // wait out the grace for another host
	LeaveAll               // release our own lock, touch nothing else
	StopAll                // stop every record
	Finish                 // release our own lock
	End                    // end at once, without a write into pidDir
	KillAndEnd             // the same after SIGKILL to everything that was sent SIGTERM
	nSteps
)

var stepNames = [nSteps]string{
	"", "wait for a replacement", "leave everything, release own lock", "stop every record",
	"release own lock", "end at once", "SIGKILL what was sent SIGTERM, end at once",
}

func (s Step) String() string { return stepNames[s] }

type cell struct {
	next State
	step Step
}

// transitions is the whole life of a reaper.
//
// A replacement counts in the grace only: while the host lives its own file is
// none of our business, and once a process was sent SIGTERM nobody is helped by
// half a set of them.
var transitions = [nStates][nEvents]cell{
	Watching: {
		HostGone:    {Grace, AwaitHost},
		Replacement: {Watching, Stay},
		GraceOver:   {Watching, Stay},
		AllStopped:  {Watching, Stay},
		DirGone:     {Watching, Stay},
		StopSignal:  {Done, End},
	},
	Grace: {
		HostGone:    {Grace, Stay},
		Replacement: {Done, LeaveAll},
		GraceOver:   {Reaping, StopAll},
		AllStopped:  {Grace, Stay},
		DirGone:     {Grace, Stay},
		StopSignal:  {Done, End},
	},
	Reaping: {
		HostGone:    {Reaping, Stay},
		Replacement: {Reaping, Stay},
		GraceOver:   {Reaping, Stay},
		AllStopped:  {Done, Finish},
		DirGone:     {Done, Finish},
		StopSignal:  {Done, KillAndEnd},
	},
	Done: {
		HostGone:    {Done, Stay},
		Replacement: {Done, Stay},
		GraceOver:   {Done, Stay},
		AllStopped:  {Done, Stay},
		DirGone:     {Done, Stay},
		StopSignal:  {Done, Stay},
	},
}

// Next is the table's answer.
func Next(s State, e Event) (State, Step) {
	c := transitions[s][e]
	return c.next, c.step
}

// Found is what lies under a record's name.
type Found uint8

// The kinds of file.
const (
	Nothing    Found = iota // no file, or no text that is a record
	Unreadable              // the file system refused
	Foreign                 // the file belongs to another user
	Plain                   // a pid without line 3: not written by a guard
	Elsewhere               // a guard's, of another pid namespace: its pids mean nothing here
	Watchman                // a reaper's own lock, and that reaper lives
	Record                  // a guard's
	nFound
)

var foundNames = [nFound]string{"nothing", "a file that cannot be read", "another user's file", "a bare pid", "another pid namespace", "a living reaper's lock", "a record"}

func (f Found) String() string { return foundNames[f] }

// Target is what is known of the process a record names.
type Target uint8

// The kinds of target.
const (
	Unproven  Target = iota // it cannot be told now
	Same                    // identified
	Over                    // no such process
	Stranger                // the pid runs something else
	Unstarted               // pid 0: a claim that nothing runs under yet
	nTargets
)

var targetNames = [nTargets]string{"cannot be told", "identified", "gone", "another process", "none yet (pid 0)"}

func (t Target) String() string { return targetNames[t] }

// Keeper is what is known of the keeper a record names.
type Keeper uint8

// The kinds of keeper.
const (
	NoKeeper Keeper = iota
	KeeperUnproven
	KeeperSame
	KeeperOver
	nKeepers
)

var keeperNames = [nKeepers]string{"none", "cannot be told", "identified", "gone"}

func (k Keeper) String() string { return keeperNames[k] }

// Facts are everything the answer to one record depends on, read in one hold
// of its gate.
type Facts struct {
	GateHeld bool // the gate could not be had in time; nothing else is known
	Last     bool // this is the last look

	SetAside bool        // the record is a `.reaping` file, left by an earlier reaper
	AtWork   proc.Answer // SetAside: that reaper still works on it

	Found  Found
	Target Target
	Keeper Keeper
	Claim  proc.Answer // Unstarted: the claimant's host lives, and is not the one that went
}

// Action is the answer to one record.
type Action uint8

// The actions.
const (
	Pass        Action = iota // nothing of a guard's
	Later                     // come back when the others are answered
	Leave                     // nothing, and a line that says why
	StopProcess               // set the record aside, SIGTERM to the process
	StopKeeper                // set the record aside, SIGTERM to the keeper
	Drop                      // the record goes, nothing is signalled
	nActions
)

var actionNames = [nActions]string{
	"pass over", "come back last", "leave, with a line", "set aside, SIGTERM to the process",
	"set aside, SIGTERM to the keeper", "remove the record",
}

func (a Action) String() string { return actionNames[a] }

// answers says what is done about a record of ours. Down the side the process,
// across the top its keeper.
//
// A process that cannot be identified keeps its record, where the original
// removed it: the next host would start a second copy beside the first. A
// keeper whose process is over waits to start it again, so it is stopped in its
// place; one that cannot be identified ends by itself when it wakes up and
// finds its record gone.
var answers = [nTargets][nKeepers]Action{
	Unproven:  {NoKeeper: Later, KeeperUnproven: Later, KeeperSame: Later, KeeperOver: Later},
	Same:      {NoKeeper: StopProcess, KeeperUnproven: StopProcess, KeeperSame: StopProcess, KeeperOver: StopProcess},
	Over:      {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
	Stranger:  {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
	Unstarted: {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
}

// kinds says what is done about a file that is no record of ours.
var kinds = [nFound]Action{
	Nothing:    Pass,
	Unreadable: Later,
	Foreign:    Leave, // a planted file must never steer a signal
	Plain:      Pass,
	Elsewhere:  Leave,
	Watchman:   Leave, // two reapers that stop each other leave everything running
}

// Decide is the answer to one record.
func Decide(f Facts) Action {
	a := decide(f)
	if a == Later && f.Last {
		return Leave
	}
	return a
}

func decide(f Facts) Action {
	switch {
	case f.GateHeld:
		return Later
	case f.Found != Record:
		return kinds[f.Found]
	case f.SetAside && f.AtWork == proc.Yes:
		return Leave
	case f.SetAside && f.AtWork == proc.Unknown:
		return Later
	case f.Target == Unstarted && f.Claim == proc.Yes:
		// Another host is starting this; it names nothing to stop.
		return Leave
	case f.Target == Unstarted && f.Claim == proc.Unknown:
		return Later
	}
	return answers[f.Target][f.Keeper]
}
