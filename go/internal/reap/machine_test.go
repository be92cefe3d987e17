package reap

import (
	"os"
	"path/filepath"
	"testing"

	"processguard/go/internal/proc"
)

func TestEveryCellOfALife(t *testing.T) {
	type answer struct {
		next State
		step Step
	}
	// What changes something; every cell that is not here must stay put.
	want := map[State]map[Event]answer{
		Watching: {HostGone: {Grace, AwaitHost}, StopSignal: {Done, End}},
		Grace:    {Replacement: {Done, LeaveAll}, GraceOver: {Reaping, StopAll}, StopSignal: {Done, End}},
		Reaping:  {AllStopped: {Done, Finish}, DirGone: {Done, Finish}, StopSignal: {Done, KillAndEnd}},
		Done:     {},
	}
	for s := range nStates {
		for e := range nEvents {
			w, ok := want[s][e]
			if !ok {
				w = answer{s, Stay}
			}
			if next, step := Next(s, e); next != w.next || step != w.step {
				t.Errorf("%s, %s: %s, %q; want %s, %q", s, e, next, step, w.next, w.step)
			}
		}
	}
}

func TestEveryCellOfARecord(t *testing.T) {
	want := map[Target]map[Keeper]Action{
		Unproven:  {NoKeeper: Later, KeeperUnproven: Later, KeeperSame: Later, KeeperOver: Later},
		Same:      {NoKeeper: StopProcess, KeeperUnproven: StopProcess, KeeperSame: StopProcess, KeeperOver: StopProcess},
		Over:      {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
		Stranger:  {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
		Unstarted: {NoKeeper: Drop, KeeperUnproven: Drop, KeeperSame: StopKeeper, KeeperOver: Drop},
	}
	for target := range nTargets {
		for keeper := range nKeepers {
			for _, aside := range []bool{false, true} {
				f := Facts{Found: Record, Target: target, Keeper: keeper, Claim: proc.No, SetAside: aside, AtWork: proc.No}
				w := want[target][keeper]
				if got := Decide(f); got != w {
					t.Errorf("%s, keeper %s, set aside %v: %s; want %s", target, keeper, aside, got, w)
				}
				f.Last = true
				if w == Later {
					w = Leave
				}
				if got := Decide(f); got != w {
					t.Errorf("%s, keeper %s, set aside %v, last: %s; want %s", target, keeper, aside, got, w)
				}
			}
		}
	}
}

func TestNothingIsSignalledWithoutAProof(t *testing.T) {
	each(func(f Facts) {
		got := Decide(f)
		if got == StopProcess && f.Target != Same {
			t.Errorf("%+v: %s", f, got)
		}
		if got == StopKeeper && f.Keeper != KeeperSame {
			t.Errorf("%+v: %s", f, got)
		}
		if (f.GateHeld || f.Found != Record) && got != Pass && got != Later && got != Leave {
			t.Errorf("%+v: %s", f, got)
		}
		if f.Last && got == Later {
			t.Errorf("%+v: comes back after the last look", f)
		}
		if f.Target == Unproven && (got == Drop || got == StopProcess || got == StopKeeper) {
			t.Errorf("%+v: %s", f, got)
		}
	})
}

func each(visit func(Facts)) {
	bools := []bool{false, true}
	answers := []proc.Answer{proc.Unknown, proc.Yes, proc.No}
	for _, held := range bools {
		for _, last := range bools {
			for _, aside := range bools {
				for _, work := range answers {
					for found := range nFound {
						for target := range nTargets {
							for keeper := range nKeepers {
								for _, claim := range answers {
									visit(Facts{
										GateHeld: held, Last: last, SetAside: aside, AtWork: work,
										Found: found, Target: target, Keeper: keeper, Claim: claim,
									})
								}
							}
						}
					}
				}
			}
		}
	}
}

func TestWhatComesBeforeTheProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Facts
		want Action
	}{
		{"gate held", Facts{GateHeld: true, Found: Record, Target: Same}, Later},
		{"gate held, last look", Facts{GateHeld: true, Last: true}, Leave},
		{"nothing", Facts{Found: Nothing}, Pass},
		{"foreign", Facts{Found: Foreign, Target: Same}, Leave},
		{"bare pid", Facts{Found: Plain, Target: Same}, Pass},
		{"other namespace", Facts{Found: Elsewhere, Target: Over}, Leave},
		{"living reaper", Facts{Found: Watchman, Target: Same}, Leave},
		{"unreadable", Facts{Found: Unreadable, Target: Same}, Later},
		{"unreadable, last look", Facts{Found: Unreadable, Target: Same, Last: true}, Leave},
		{"set aside by a living reaper", Facts{Found: Record, SetAside: true, AtWork: proc.Yes, Target: Same}, Leave},
		{"set aside, reaper unknown", Facts{Found: Record, SetAside: true, Target: Same}, Later},
		{"set aside, reaper unknown, last look", Facts{Found: Record, SetAside: true, Target: Same, Last: true}, Leave},
		{"claim of a living host", Facts{Found: Record, Target: Unstarted, Claim: proc.Yes, Keeper: KeeperSame}, Leave},
		{"claim of a host that cannot be told", Facts{Found: Record, Target: Unstarted}, Later},
		{"claim of a dead host", Facts{Found: Record, Target: Unstarted, Claim: proc.No}, Drop},
	} {
		if got := Decide(c.f); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestEveryValueHasAName(t *testing.T) {
	var names []string
	names = append(names, stateNames[:]...)
	names = append(names, eventNames[:]...)
	names = append(names, stepNames[1:]...)
	names = append(names, foundNames[:]...)
	names = append(names, targetNames[:]...)
	names = append(names, keeperNames[:]...)
	names = append(names, actionNames[:]...)
	for _, n := range names {
		if n == "" {
			t.Errorf("a value without a name in %q", names)
		}
	}
}

func TestTablesInTheDocsAreTheOnesHere(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "reaper-states.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Table() {
		t.Errorf("%s is old: go run ./go/internal/reap/tabledoc > docs/reaper-states.md", path)
	}
}
