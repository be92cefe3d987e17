package model

import (
	"os"
	"testing"

	"processguard/go/internal/claim"
	"processguard/go/internal/keep"
	"processguard/go/internal/proc"
	"processguard/go/internal/reap"
)

// No run may grow beyond this unnoticed: the whole set has to stay below a
// minute on two slow cores.
const limit = 1_500_000

func TestEveryActionOfTheKeeperIsModelled(t *testing.T) {
	if err := covered(); err != nil {
		t.Error(err)
	}
}

func TestTheTablesHoldInEveryOrder(t *testing.T) {
	for _, r := range Runs {
		t.Run(r.Name, func(t *testing.T) {
			most := limit
			if r.Long {
				if os.Getenv("PG_FULL") == "" {
					t.Skip("too large for every day; PG_FULL=1 explores it")
				}
				most = 100_000_000
			}
			t.Parallel()
			res := Explore(r, Product, most)
			t.Logf("%s: %d states, %d steps", r.Title, res.States, res.Steps)
			if res.Cut {
				t.Errorf("cut at %d states: nothing is decided", res.States)
			}
			for what, n := range res.Found {
				t.Errorf("%s (%d times):", what, n)
				for i, line := range res.Traces[what] {
					t.Logf("%3d %s", i+1, line)
				}
			}
		})
	}
}

// An explorer that finds nothing may be blind. Each of these bugs is one word
// away in a table, and it has to see every one.
func TestPlantedBugsAreFound(t *testing.T) {
	claimTable := func(change func(*claim.Facts)) Tables {
		p := Product
		p.Claim = func(f claim.Facts) claim.Decision { change(&f); return claim.Decide(f) }
		return p
	}
	keepTable := func(change func(*keep.State, *keep.Event)) Tables {
		p := Product
		p.Keep = func(s keep.State, e keep.Event) (keep.Step, bool) { change(&s, &e); return keep.Next(s, e) }
		return p
	}
	two := []Config{v1, v1}
	three := []Config{v1, v2, v1}
	for _, c := range []struct {
		bug    string
		run    Run
		tables Tables
		want   string
	}{
		{"the gate around commit is dropped", Run{Hosts: two, Gateless: true}, Product, Two},
		{"the keeper does not ask whose token it is", Run{Hosts: two, Late: true}, keepTable(func(s *keep.State, e *keep.Event) {
			if *s == keep.Claiming && *e == keep.GateTaken {
				*e = keep.GateMine
			}
		}), Two},
		{"nobody looks for an older generation", Run{Hosts: three}, claimTable(func(f *claim.Facts) { f.Older = claim.NoOlder }), Two},
		{"a process that cannot be identified counts as dead", Run{Hosts: two, Hidden: 1}, claimTable(func(f *claim.Facts) {
			if f.Process == claim.Hidden {
				f.Process = claim.Dead
			}
			f.Keeper = proc.No
		}), Two},
		{"a stranger counts as ours", Run{Hosts: []Config{v1, v2}, StopOrphans: true, Kills: 1, Crashes: 1, Reuses: 1}, func() Tables {
			p := Product
			p.Claim = func(f claim.Facts) claim.Decision {
				d := claim.Decide(f)
				if d.Why == claim.WhyStranger {
					d.Action = claim.StopOrphan
				}
				return d
			}
			return p
		}(), Unproven},
		{"a reaper signals the stranger that has the pid", Run{Hosts: []Config{v1}, Reapers: 1, Kills: 1, Crashes: 1, Reuses: 1}, func() Tables {
			p := Product
			p.Reap = func(f reap.Facts) reap.Action {
				if f.Found == reap.Record && f.Target == reap.Stranger {
					return reap.StopProcess
				}
				return reap.Decide(f)
			}
			return p
		}(), Unproven},
		{"a reaper removes the record of a process that runs", Run{Hosts: []Config{v1}, Reapers: 1, Refused: 1, Direct: true}, func() Tables {
			p := Product
			p.Reap = func(f reap.Facts) reap.Action {
				if a := reap.Decide(f); a != reap.StopProcess {
					return a
				}
				return reap.Drop
			}
			return p
		}(), Unrecorded},
		{"a process that is being reaped is not looked for", Run{Hosts: two, Reapers: 1, Ignores: true, Refused: 1, Direct: true}, claimTable(func(f *claim.Facts) { f.Reaping = claim.NotReaping }), Two},
		{"the child is let go before the record names it", Run{Hosts: two, Kills: 1}, func() Tables {
			p := Product
			p.Keep = func(s keep.State, e keep.Event) (keep.Step, bool) {
				st, ok := keep.Next(s, e)
				if s == keep.Forking && e == keep.Forked {
					named, _ := keep.Next(keep.Held, keep.Written)
					st.Next, st.Do = named.Next, named.Do
				}
				return st, ok
			}
			return p
		}(), Two},
		{"the gate is left before the child is named", Run{Hosts: two, Late: true}, func() Tables {
			p := Product
			p.Keep = func(s keep.State, e keep.Event) (keep.Step, bool) {
				st, ok := keep.Next(s, e)
				if s == keep.Claiming && e == keep.GateMine {
					went, _ := keep.Next(keep.Named, keep.Went)
					st.Do = append(append([]keep.Action(nil), st.Do...), went.Do...)
				}
				return st, ok
			}
			return p
		}(), Two},
		{"a host waits for a dead claimant", Run{Hosts: two, Kills: 1}, claimTable(func(f *claim.Facts) { f.Host, f.Young = proc.Yes, true }), Stuck},
		{"a replacement does not wait for the grace", Run{Hosts: []Config{v1, v2}, StopOrphans: true, Grace: true, Ignores: true}, keepTable(func(s *keep.State, e *keep.Event) {
			if *e == keep.BeginGrace {
				*e = keep.Begin
			}
		}), Early},
	} {
		t.Run(c.bug, func(t *testing.T) {
			t.Parallel()
			res := Explore(c.run, c.tables, limit)
			trace, ok := res.Traces[c.want]
			t.Logf("%d states: %v", res.States, res.Found)
			if !ok {
				t.Fatalf("not found: %q", c.want)
			}
			for i, line := range trace {
				t.Logf("%3d %s", i+1, line)
			}
			// The same run with the product's own tables is clean.
			c.run.Gateless = false
			if clean := Explore(c.run, Product, limit); len(clean.Found) > 0 || clean.Cut {
				t.Errorf("without the bug: %v", clean.Found)
			}
		})
	}
}
