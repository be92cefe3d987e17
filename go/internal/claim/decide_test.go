package claim

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"processguard/go/internal/proc"
)

var answers = []proc.Answer{proc.Unknown, proc.Yes, proc.No}

var (
	bools = []bool{false, true}
	lives = []Older{NoOlder, OlderLives, OlderUnknown}
)

// everything calls f with each combination of facts that one look can find:
// what is read only of one kind of record is not there with the others.
func everything(f func(Facts)) (n int) {
	visit := func(x Facts) {
		for _, older := range lives {
			for _, spent := range []int{0, 1, 2} {
				for _, stop := range bools {
					for _, taken := range bools {
						x.Older, x.Spent, x.LongSpent, x.StopOrphans, x.AfterTaken = older, spent > 0, spent > 1, stop, taken
						f(x)
						n++
					}
				}
			}
		}
	}
	for _, found := range []Found{Absent, Foreign, Bare} {
		for _, reaping := range []Reaping{NotReaping, ReaperAtWork, ReaperDied, ReapingHidden} {
			for _, process := range []Process{Dead, Hidden} {
				if found == Bare || process == Dead {
					visit(Facts{Found: found, Reaping: reaping, Process: process})
				}
				if found == Absent && process == Dead {
					visit(Facts{Found: found, Reaping: reaping, GaveUp: true})
				}
			}
		}
	}
	for _, life := range answers {
		for _, same := range []int{0, 1, 2} { // nothing, the version, the command line too
			base := Facts{Life: life, SameVersion: same > 0, SameConfig: same > 1}
			for _, found := range []Found{Claimed, Named} {
				x := base
				x.Found, x.OtherNS = found, true
				visit(x)
			}
			for _, host := range answers {
				for _, young := range bools {
					x := base
					x.Found, x.Host, x.Young = Claimed, host, young
					visit(x)
				}
			}
			for _, process := range []Process{Dead, Stranger, Hidden, Ours} {
				for _, keeper := range answers {
					for _, starting := range bools {
						x := base
						x.Found, x.Process, x.Keeper, x.Starting = Named, process, keeper, starting
						visit(x)
					}
				}
			}
		}
	}
	return n
}

func takes(a Action) bool { return a == Take || a == TakeOrphan || a == StopOrphan }

// protocol is the table of protocol.md, section 4, in its own words and order,
// not in the code's.
func protocol(f Facts) Action {
	refuse := func(spent bool) Action {
		if spent {
			return Refuse
		}
		return Wait
	}
	// Rule 2: every taking row looks for a live one of our own configuration.
	take := func(a Action) Action {
		switch f.Older {
		case OlderLives:
			return PutBack
		case OlderUnknown:
			return refuse(f.Spent) // identity unknown
		}
		return a
	}
	noRecordOfOurs := f.Found == Absent || f.Found == Foreign || f.Found == Bare
	if noRecordOfOurs && f.Reaping != NotReaping {
		switch f.Reaping {
		case ReaperDied: // finish its stop by proof, then take
			return FinishReaping
		default: // its reaper alive: wait; identity unknown: wait
			return refuse(f.Spent)
		}
	}
	// What was given up is left down by the calls that waited for it.
	if f.Found == Absent && f.GaveUp && f.Older == NoOlder {
		return Refuse
	}
	if f.Found == Absent || f.Found == Foreign {
		return take(Take)
	}
	// A bare-pid file is not ours: alive, refuse; dead, take.
	if f.Found == Bare {
		if f.Process == Dead {
			return take(Take)
		}
		return Refuse
	}
	// Record of another pid namespace. Life lock held: refuse; free: take.
	if f.OtherNS {
		switch f.Life {
		case proc.Yes:
			return Refuse
		case proc.No:
			return take(Take)
		}
		return refuse(f.Spent)
	}
	if f.Found == Claimed {
		// Its host alive, or a keeper on the way, and younger than the timeout:
		// wait. The age ends that; our patience only if it stays young.
		onTheWay := f.Host == proc.Yes || f.Host == proc.Unknown || f.Life == proc.Yes || f.Life == proc.Unknown
		if f.Young && onTheWay {
			return refuse(f.LongSpent)
		}
		return take(Take)
	}
	// A record that names a pid.
	switch f.Process {
	case Dead, Stranger:
		// Keeper alive, same version and argv: a restart is owed.
		if f.SameConfig && (f.Keeper == proc.Yes || f.Keeper == proc.Unknown) {
			return refuse(f.Spent)
		}
		return take(Take)
	case Hidden: // identity unknown: wait; budget spent: refuse, never take
		return refuse(f.Spent)
	}
	// Match.
	switch {
	case f.SameConfig && f.Starting: // no thread reports a start that failed
		return refuse(f.Spent)
	case f.SameConfig:
		return Join
	case f.AfterTaken: // join or take a dead or absent record, never an orphan
		return Refuse
	case f.SameVersion && !f.StopOrphans && f.Older != OlderLives: // the name is in use
		return Refuse
	case f.StopOrphans:
		return take(StopOrphan)
	}
	return take(TakeOrphan)
}

func TestDecideIsTheProtocol(t *testing.T) {
	n := everything(func(f Facts) {
		if got, want := Decide(f).Action, protocol(f); got != want {
			t.Errorf("%+v: %s, not %s", f, got, want)
		}
	})
	t.Logf("%d combinations", n)
}

// What must hold whatever the rows are.
func TestNeverTwo(t *testing.T) {
	everything(func(f Facts) {
		d := Decide(f)
		fail := func(why string) { t.Errorf("%+v: %s because %q: %s", f, d.Action, d.Why, why) }
		ours := f.Found == Named && f.Process == Ours
		if d.Why == "" || d.Action.String() == "" {
			fail("no reason")
		}
		if takes(d.Action) || d.Action == PutBack {
			if ours && f.SameConfig {
				fail("over a live process of our own configuration")
			}
			if f.Found == Named && !f.OtherNS && f.Process == Hidden || f.Found == Bare && f.Process != Dead || f.OtherNS && f.Life != proc.No {
				fail("over a process that may live")
			}
			if f.Reaping != NotReaping {
				fail("beside a process that is being stopped")
			}
			if f.Found == Named && !f.OtherNS && f.SameConfig && f.Keeper != proc.No {
				fail("over a keeper that may start ours again")
			}
			if f.Found == Claimed && !f.OtherNS && f.Young && (f.Host != proc.No || f.Life != proc.No) {
				fail("over a claim that may be at work")
			}
			if ours && d.Why != WhyOrphan && d.Why != WhyOlder {
				fail("a live process is displaced by another row than the orphan's")
			}
		}
		if takes(d.Action) && f.Older != NoOlder {
			fail("beside an older generation of ours")
		}
		if d.Action == PutBack && f.Older != OlderLives {
			fail("nothing to put back")
		}
		if (d.Action == TakeOrphan || d.Action == StopOrphan) != (d.Why == WhyOrphan) || (d.Action == TakeOrphan || d.Action == StopOrphan) && !ours {
			fail("no orphan")
		}
		if d.Action == StopOrphan && !f.StopOrphans || d.Action == TakeOrphan && f.StopOrphans {
			fail("not what the caller asked for")
		}
		if d.Action == Join && !(ours && f.SameConfig && !f.Starting) {
			fail("not ours")
		}
		if d.Action == FinishReaping && f.Reaping != ReaperDied {
			fail("nobody died")
		}
		if d.Action == Refuse && !f.Spent {
			switch d.Why {
			case WhyOtherNSHeld, WhyBareAlive, WhyTurns, WhyNameInUse, WhyGaveUp:
			default:
				fail("there is time left")
			}
		}
		if d.Action == Wait && f.Spent && d.Why != WhyClaimInFlight || d.Action == Wait && f.LongSpent {
			fail("for ever")
		}
		if f.AfterTaken && ours && !f.SameConfig && d.Action != Refuse {
			fail("two configurations take turns")
		}
	})
}

// Every row that takes puts an older one back, whatever else is known.
func TestEveryTakingRowLooksForOlder(t *testing.T) {
	everything(func(f Facts) {
		if f.Older != NoOlder || !takes(Decide(f).Action) {
			return
		}
		f.Older = OlderLives
		if d := Decide(f); d.Action != PutBack || d.Why != WhyOlder {
			t.Errorf("%+v: %s", f, d.Action)
		}
		f.Older = OlderUnknown
		if d := Decide(f); takes(d.Action) || d.Action == PutBack {
			t.Errorf("%+v: %s", f, d.Action)
		}
	})
}

// A fact that is unknown never leads to more than the same fact known.
func TestUnknownNeverTakes(t *testing.T) {
	everything(func(f Facts) {
		if !takes(Decide(f).Action) {
			return
		}
		for what, change := range map[string]func(*Facts){
			"process": func(f *Facts) { f.Process = Hidden },
			"keeper":  func(f *Facts) { f.Keeper = proc.Unknown },
			"life":    func(f *Facts) { f.Life = proc.Unknown },
			"host":    func(f *Facts) { f.Host = proc.Unknown },
			"older":   func(f *Facts) { f.Older = OlderUnknown },
			"reaping": func(f *Facts) { f.Reaping = ReapingHidden },
		} {
			u := f
			change(&u)
			matters := map[string]bool{
				"process": f.Found == Bare || f.Found == Named && !f.OtherNS,
				"keeper":  f.Found == Named && !f.OtherNS && f.SameConfig && f.Process != Ours,
				"life":    f.OtherNS || f.Found == Claimed && f.Young,
				"host":    f.Found == Claimed && !f.OtherNS && f.Young,
				"older":   true,
				"reaping": f.Found == Absent || f.Found == Foreign || f.Found == Bare,
			}[what]
			if d := Decide(u); matters && (takes(d.Action) || d.Action == PutBack) {
				t.Errorf("%s unknown: %+v: %s", what, u, d.Action)
			}
		}
	})
}

// The page shows each row that there is, once.
func TestTableHasEveryRow(t *testing.T) {
	reached, shown := map[Why]bool{}, map[Why]bool{}
	everything(func(f Facts) { reached[Decide(f).Why] = true })
	seen := map[string]bool{}
	for _, r := range rows() {
		shown[Decide(r.facts).Why] = true
		if seen[r.found] {
			t.Errorf("twice: %s", r.found)
		}
		seen[r.found] = true
	}
	for why := range reached {
		if !shown[why] && why != WhyOlder && why != WhyOlderUnknown {
			t.Errorf("not in the table: %s", why)
		}
	}
	for why := range shown {
		if !reached[why] {
			t.Errorf("cannot be found: %s", why)
		}
	}
}

func TestTableInDocs(t *testing.T) {
	const page = "../../../docs/claim-table.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Table() {
		t.Errorf("%s is stale: go run ./go/internal/claim/tabledoc > docs/claim-table.md", page)
	}
	if strings.Contains(Table(), "||") {
		t.Error("an empty cell has no room")
	}
}

func TestNames(t *testing.T) {
	for a := range Action(len(actionNames)) {
		if a.String() == "" {
			t.Errorf("action %d", a)
		}
	}
	if got := fmt.Sprint(Absent, Foreign, Bare, Claimed, Named, Dead, Stranger, Hidden, Ours); got != "absent foreign bare claimed named dead stranger hidden ours" {
		t.Error(got)
	}
}
