package model

import (
	"fmt"
	"hash/maphash"
	"slices"

	"processguard/go/internal/claim"
	"processguard/go/internal/keep"
	"processguard/go/internal/reap"
)

// Config is what a host wants to have running.
type Config struct{ Version, Argv int8 }

// Run is one bounded exploration. The numbers say how often something may
// happen in all.
type Run struct {
	Name  string
	Title string
	Long  bool // too large for `go test`
	Hosts []Config

	Kills   int8 // SIGKILL to a host, launcher, keeper or reaper; SIGTERM to a reaper
	Crashes int8 // ends of the process that nobody asked for, of either kind
	Freezes int8 // SIGSTOP for ever
	Faults  int8 // a fork, write, rename or exec that fails
	Reuses  int8 // a dead pid is given to a stranger
	Ends    int8 // a thread ends during its call
	Stops   int8 // SIGTERM to a keeper
	Refused int8 // the host's spawn says no, having started a launcher or not

	Reapers     int
	Watch       bool // the reapers watch host 0, which has to be killed first; else a host outside the model
	StopOrphans bool
	Grace       bool // replaceGraceMs
	GraceKill   bool
	Ignores     bool // the process ignores SIGTERM
	Late        bool // budgets end and claims grow old; on when somebody can be stopped
	Hidden      int8 // something that is looked at is unreadable at that moment
	Launchers   int8 // ways to start a launcher; default 1
	Direct      bool // and then the process itself
	Restarts    int8 // default 1

	// Gateless leaves the gate between a claimant's look and its write: the
	// bug that the explorer is there to find.
	Gateless bool
}

// Tables are what is asked what to do.
type Tables struct {
	Claim func(claim.Facts) claim.Decision
	Keep  func(keep.State, keep.Event) (keep.Step, bool)
	Life  func(reap.State, reap.Event) (reap.State, reap.Step)
	Reap  func(reap.Facts) reap.Action
}

// Product are the tables that the product uses.
var Product = Tables{Claim: claim.Decide, Keep: keep.Next, Life: reap.Next, Reap: reap.Decide}

// The ways in which a state or step can be wrong.
const (
	Two        = "two processes of one configuration run"
	Unproven   = "a signal went to what was not proven to be the recorded process"
	Unrecorded = "a process runs that nothing names"
	Joined     = "a host joined a process that will never run"
	Early      = "a process was let go although the one it replaces runs and its grace is not over"
	Stuck      = "a host can never finish"
	StuckStop  = "a host can never finish while somebody is stopped"
	Bound      = "the bound of this model was hit"
)

// Result is what a run found.
type Result struct {
	States int
	Steps  int
	Found  map[string]int      // how often each violation
	Traces map[string][]string // a shortest way to the first of each
	Cut    bool
}

type kind uint8

const (
	step kind = iota // somebody goes on
	late             // somebody's patience is over
	env              // a fault
)

type succ struct {
	s     state
	kind  kind
	wrong string
	label string
}

type machine struct {
	run     Run
	t       Tables
	config  []int8 // of each host: equal numbers want the same
	version []int8 // of each configuration
	tracing bool
	out     []succ
	wrong   string // of the step being made
}

type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(s *state) key {
	return key{maphash.Comparable(seeds[0], *s), maphash.Comparable(seeds[1], *s)}
}

// table numbers keys in the order they come. A map of them takes three times the
// memory.
type table struct {
	slots []uint32 // number + 1
	keys  []key
}

func (t *table) add(k key) (n uint32, fresh bool) {
	if 2*len(t.keys) >= len(t.slots) {
		t.slots = make([]uint32, max(1<<12, 2*len(t.slots)))
		for i, k := range t.keys {
			t.slots[t.place(k)] = uint32(i) + 1
		}
	}
	p := t.place(k)
	if t.slots[p] == 0 {
		t.keys = append(t.keys, k)
		t.slots[p] = uint32(len(t.keys))
		fresh = true
	}
	return t.slots[p] - 1, fresh
}

// place is where a key is, or would be put.
func (t *table) place(k key) uint64 {
	last := uint64(len(t.slots) - 1)
	p := k[0] & last
	for t.slots[p] != 0 && t.keys[t.slots[p]-1] != k {
		p = (p + 1) & last
	}
	return p
}

func newMachine(r Run, t Tables) *machine {
	m := &machine{run: r, t: t}
	if m.run.Launchers == 0 {
		m.run.Launchers = 1
	}
	m.run.Late = m.run.Late || m.run.Freezes > 0
	if m.run.Restarts == 0 {
		m.run.Restarts = 1
	}
	var seen []Config
	for _, c := range r.Hosts {
		i := slices.Index(seen, c)
		if i < 0 {
			i = len(seen)
			seen = append(seen, c)
			m.version = append(m.version, c.Version)
		}
		m.config = append(m.config, int8(i))
	}
	return m
}

func (m *machine) start() state {
	var s state
	for i := range s.H {
		if i >= len(m.run.Hosts) {
			s.H[i].St = hDead
		}
	}
	for i := range s.A {
		if i >= m.run.Reapers {
			s.A[i].Dead = 1
		}
	}
	m.tidy(&s)
	return s
}

// noted is what is kept of a state that was visited.
const (
	isGoal uint8 = 1 << iota
	isFrozen
)

// Explore visits every state of a run, at most limit of them, by breadth, so
// that traces are shortest. A state is known by 128 bits of hash.
func Explore(r Run, t Tables, limit int) Result {
	m := newMachine(r, t)
	res := Result{Found: map[string]int{}, Traces: map[string][]string{}}
	start := m.start()
	var index table
	index.add(keyOf(&start))
	from := []uint32{0}
	notes := []uint8{m.note(&start)}
	offsets := []uint32{0}
	var ahead []uint32           // successors through steps, of all states one after the other
	first := map[string][2]int{} // violation: state, 1 when it is in the step to it
	level := []state{start}
	done := 0
	wrong := func(what string, at int, inStep int) {
		if what == "" {
			return
		}
		res.Found[what]++
		if _, ok := first[what]; !ok {
			first[what] = [2]int{at, inStep}
		}
	}
	stepOf := map[string]key{}
	for len(level) > 0 && !res.Cut {
		var nextLevel []state
		for i := range level {
			at := done
			done++
			m.out = m.out[:0]
			m.next(&level[i])
			for j := range m.out {
				e := &m.out[j]
				res.Steps++
				k := keyOf(&e.s)
				n, fresh := index.add(k)
				if fresh {
					from = append(from, uint32(at))
					notes = append(notes, m.note(&e.s))
					nextLevel = append(nextLevel, e.s)
					wrong(m.check(&e.s), int(n), 0)
				}
				if e.wrong != "" {
					if _, ok := first[e.wrong]; !ok {
						stepOf[e.wrong] = k
					}
					wrong(e.wrong, at, 1)
				}
				if e.kind != env {
					ahead = append(ahead, n)
				}
			}
			offsets = append(offsets, uint32(len(ahead)))
			if len(index.keys) > limit {
				res.Cut = true
				break
			}
		}
		level = nextLevel
	}
	res.States = len(index.keys)
	if !res.Cut {
		for what, at := range stuck(notes, offsets, ahead) {
			res.Found[what] = at[1]
			first[what] = [2]int{at[0], 0}
		}
	}
	for what, at := range first {
		var path []key
		for i := at[0]; ; i = int(from[i]) {
			path = append(path, index.keys[i])
			if i == 0 {
				break
			}
		}
		slices.Reverse(path)
		if at[1] == 1 {
			path = append(path, stepOf[what])
		}
		res.Traces[what] = m.trace(start, path)
	}
	return res
}

func (m *machine) note(s *state) (n uint8) {
	goal := true
	for i := range s.H {
		if !s.H[i].final() && s.H[i].St != hSettle && s.H[i].St != hLeave && s.Frozen != idHost+int8(i) {
			goal = false
		}
	}
	if goal {
		n |= isGoal
	}
	if s.Frozen != 0 {
		n |= isFrozen
	}
	return n
}

// stuck finds the states from which some host never finishes, whatever the
// others do.
func stuck(notes []uint8, offsets, ahead []uint32) map[string][2]int {
	count := make([]uint32, len(notes)+1)
	for i := range notes {
		for e := offsets[i]; e < offsets[i+1]; e++ {
			count[ahead[e]+1]++
		}
	}
	for i := range notes {
		count[i+1] += count[i]
	}
	back := make([]uint32, count[len(notes)])
	fill := slices.Clone(count)
	for i := range notes {
		for e := offsets[i]; e < offsets[i+1]; e++ {
			back[fill[ahead[e]]] = uint32(i)
			fill[ahead[e]]++
		}
	}
	good := make([]bool, len(notes))
	var queue []uint32
	for i, n := range notes {
		if n&isGoal != 0 {
			good[i] = true
			queue = append(queue, uint32(i))
		}
	}
	for len(queue) > 0 {
		x := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, y := range back[count[x]:count[x+1]] {
			if !good[y] {
				good[y] = true
				queue = append(queue, y)
			}
		}
	}
	out := map[string][2]int{}
	for i, ok := range good {
		if ok {
			continue
		}
		what := Stuck
		if notes[i]&isFrozen != 0 {
			what = StuckStop
		}
		at, seen := out[what]
		if !seen {
			at[0] = i
		}
		at[1]++
		out[what] = at
	}
	return out
}

// trace goes a path again without putting hosts and slots in order, so that a
// name means the same thing all along.
func (m *machine) trace(s state, path []key) []string {
	t := &machine{run: m.run, t: m.t, config: m.config, version: m.version, tracing: true}
	var lines []string
	for _, k := range path[1:] {
		t.out = t.out[:0]
		t.next(&s)
		i := slices.IndexFunc(t.out, func(e succ) bool {
			n := e.s
			m.tidy(&n)
			return keyOf(&n) == k
		})
		if i < 0 {
			return append(lines, "(the rest cannot be shown: two like hosts changed places)")
		}
		lines = append(lines, t.out[i].label)
		s = t.out[i].s
	}
	return lines
}

// emit adds a successor of the state being expanded.
func (m *machine) emit(n state, k kind, format string, args ...any) {
	e := succ{kind: k, wrong: m.wrong}
	m.wrong = ""
	if m.tracing {
		e.label = fmt.Sprintf(format, args...)
		if e.wrong != "" {
			e.label += "  <-- " + e.wrong
		}
		n.forget()
	} else {
		m.tidy(&n)
	}
	e.s = n
	m.out = append(m.out, e)
}

// check says what is wrong with a state, "" nothing.
func (m *machine) check(s *state) string {
	var running [maxHosts]int8
	lost := ""
	for i := range s.G {
		g := &s.G[i]
		if g.Used == 0 {
			continue
		}
		for run := range g.P {
			if !g.runs(int8(run)) {
				continue
			}
			// Documented: until its record is written, or it is stopped again, a
			// direct spawn is known to its host alone.
			if g.Direct == 1 || g.Direct == 3 {
				continue
			}
			running[g.Config]++
			if !m.named(s, i, run) {
				lost = Unrecorded
			}
		}
	}
	for _, n := range running {
		if n > 1 {
			return Two
		}
	}
	return lost
}

func (m *machine) named(s *state, i, run int) bool {
	g := &s.G[i]
	t, r := int8(i)+1, int8(run)+1
	return s.R.T == t && s.R.Run == r || s.RB.T == t && s.RB.Run == r || g.Life == r+1 || g.Keeper == kLives && g.Cur == r
}
