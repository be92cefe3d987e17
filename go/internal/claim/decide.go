package claim

import "processguard/go/internal/proc"

// Action is what a claimant does about what it found.
type Action uint8

// The actions. Every one but Wait ends the claim.
const (
	Wait          Action = iota
	Take                 // write a claim of our own
	TakeOrphan           // the same over a live process of another configuration, which is left running
	StopOrphan           // the same, and that process gets SIGTERM first
	Join                 // the process is the one we want
	PutBack              // an older generation of our configuration lives: its record is put back and joined
	FinishReaping        // a dead reaper left a live process: finish its stop by proof
	Refuse
)

var actionNames = [...]string{"wait", "take", "take, orphan left running", "take, orphan gets SIGTERM", "join", "put back and join", "finish the stop", "refuse"}

func (a Action) String() string { return actionNames[a] }

// Found is the kind of record that was found.
type Found uint8

// What can lie under the record's name.
const (
	Absent  Found = iota // no file, or no text that is a record
	Foreign              // the file is another user's
	Bare                 // a pid without line 3: somebody else's
	Claimed              // pid 0
	Named                // a record that names a process
)

var foundNames = [...]string{"absent", "foreign", "bare", "claimed", "named"}

func (f Found) String() string { return foundNames[f] }

// Reaping says what `<name>.pid.reaping` tells.
type Reaping uint8

// States of a reaping that was begun.
const (
	NotReaping    Reaping = iota // no file, or its process is over
	ReaperAtWork                 // its process is alive and so is its reaper
	ReaperDied                   // its process is alive and its reaper is not
	ReapingHidden                // its process cannot be identified
)

// Process is what became of the process a record names.
type Process uint8

// What is known of the recorded process.
const (
	Dead     Process = iota // no such process, or its boot is over
	Stranger                // the pid runs something else
	Hidden                  // it cannot be told
	Ours                    // identified
)

var processNames = [...]string{"dead", "stranger", "hidden", "ours"}

func (p Process) String() string { return processNames[p] }

// Older says whether another generation of our configuration is still running.
type Older uint8

// What the life files of other generations tell.
const (
	NoOlder      Older = iota
	OlderLives         // identified
	OlderUnknown       // one of ours may be alive and cannot be looked at
)

// Facts are everything a decision depends on, read under one gate hold.
type Facts struct {
	Found       Found
	Reaping     Reaping     // Absent, Foreign, Bare
	OtherNS     bool        // written in another pid namespace
	Life        proc.Answer // the record's generation has a launcher or keeper
	Host        proc.Answer // Claimed: the claimant's host is alive, by start identity
	Young       bool        // Claimed: younger than the claim timeout
	Process     Process     // Named, Bare
	Starting    bool        // Named: its exec is not confirmed and may still come, or never will
	Keeper      proc.Answer // Named: its keeper is alive
	SameConfig  bool        // Named: our version and our argv
	SameVersion bool        // Named: our version, whatever its argv
	Older       Older
	Spent       bool // our budget is spent
	LongSpent   bool // twice over
	StopOrphans bool
	AfterTaken  bool // this caller's claim was taken from it once
	GaveUp      bool // Absent: the keeper that this call has waited for gave up
	Succeeds    bool // a reaper: another host's, of the same version, is displaced and finishes by itself
}

// Why names the row that decided.
type Why string

// The rows.
const (
	WhyReaperAtWork  Why = "a reaper is stopping the process"
	WhyReaperDied    Why = "a reaper died while stopping the process"
	WhyReapingHidden Why = "the process that was to be stopped cannot be identified"
	WhyAbsent        Why = "no record"
	WhyGaveUp        Why = "it was given up while this call waited for it"
	WhyForeign       Why = "the record is another user's"
	WhyOtherNS       Why = "the record is of another pid namespace"
	WhyOtherNSHeld   Why = "the record is of another pid namespace and its keeper lives"
	WhyBareAlive     Why = "a pid file that is not ours names a live process"
	WhyBareDead      Why = "a pid file that is not ours names a dead process"
	WhyClaimInFlight Why = "a claim is in flight"
	WhyClaimOver     Why = "an unfinished claim is over"
	WhyRestartOwed   Why = "the process is dead and its keeper owes a restart"
	WhyDead          Why = "the recorded process is dead"
	WhyHidden        Why = "the recorded process cannot be identified"
	WhyStranger      Why = "the recorded pid runs something else"
	WhySame          Why = "the process runs"
	WhyStarting      Why = "the process is being started"
	WhyOrphan        Why = "an orphan of another configuration"
	WhyTurns         Why = "an orphan of another configuration, after our own claim was taken"
	WhyNameInUse     Why = "another command line of the same version runs under this name"
	WhyOlder         Why = "an older generation of this configuration lives"
	WhyOlderUnknown  Why = "an older generation of this configuration cannot be identified"
)

// Decision is one row's answer.
type Decision struct {
	Action Action
	Why    Why
}

// Decide is the claim table; the first row that fits answers. Each row that
// takes looks for an older generation of our own configuration first: after
// v1, v2, v1 the third start would otherwise be a second v1.
func Decide(f Facts) Decision {
	nobodys := f.Found == Absent || f.Found == Foreign || f.Found == Bare
	switch {
	case nobodys && f.Reaping == ReaperAtWork:
		return waitFor(f.Spent, WhyReaperAtWork)
	case nobodys && f.Reaping == ReaperDied:
		return Decision{FinishReaping, WhyReaperDied}
	case nobodys && f.Reaping == ReapingHidden:
		return waitFor(f.Spent, WhyReapingHidden)
	case f.Found == Absent && f.GaveUp && f.Older == NoOlder:
		// Eight threads called at once; each of those that waited while the first
		// one's keeper gave up would begin its six starts anew.
		return Decision{Refuse, WhyGaveUp}
	case f.Found == Absent:
		return taking(f, Take, WhyAbsent)
	case f.Found == Foreign:
		return taking(f, Take, WhyForeign)

	case f.OtherNS && f.Life == proc.No:
		return taking(f, Take, WhyOtherNS)
	case f.OtherNS && f.Life == proc.Yes:
		return Decision{Refuse, WhyOtherNSHeld}
	case f.OtherNS:
		return waitFor(f.Spent, WhyHidden)

	case f.Found == Bare && f.Process == Dead:
		return taking(f, Take, WhyBareDead)
	case f.Found == Bare:
		return Decision{Refuse, WhyBareAlive}

	case f.Found == Claimed && f.Young && (f.Host != proc.No || f.Life != proc.No):
		// Its age ends it; our own patience only when it was renewed under us.
		return waitFor(f.LongSpent, WhyClaimInFlight)
	case f.Found == Claimed:
		return taking(f, Take, WhyClaimOver)
	}

	over := f.Process == Dead || f.Process == Stranger
	switch {
	case over && f.Keeper != proc.No && f.SameConfig:
		return waitFor(f.Spent, WhyRestartOwed)
	case f.Process == Dead:
		return taking(f, Take, WhyDead)
	case f.Process == Hidden:
		return waitFor(f.Spent, WhyHidden)
	case f.Process == Stranger:
		return taking(f, Take, WhyStranger)
	case f.SameConfig && f.Starting:
		return waitFor(f.Spent, WhyStarting)
	case f.SameConfig:
		return Decision{Join, WhySame}
	case f.AfterTaken:
		return Decision{Refuse, WhyTurns}
	case f.SameVersion && !f.StopOrphans && !f.Succeeds && f.Older != OlderLives:
		return Decision{Refuse, WhyNameInUse}
	case f.StopOrphans:
		return taking(f, StopOrphan, WhyOrphan)
	default:
		return taking(f, TakeOrphan, WhyOrphan)
	}
}

func waitFor(spent bool, why Why) Decision {
	if spent {
		return Decision{Refuse, why}
	}
	return Decision{Wait, why}
}

func taking(f Facts, a Action, why Why) Decision {
	switch f.Older {
	case OlderLives:
		return Decision{PutBack, WhyOlder}
	case OlderUnknown:
		return waitFor(f.Spent, WhyOlderUnknown)
	}
	return Decision{a, why}
}
