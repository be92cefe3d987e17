package model

import (
	"fmt"

	"processguard/go/internal/keep"
	"processguard/go/internal/record"
)

// op is what an action of the keeper's table does in the model.
type op struct {
	// silent: nobody else can see it, so nothing can come between it and
	// what is done next.
	silent bool
	do     func(m *machine, n *state, i int8)
}

var ops = map[string]op{
	"watchOrphan": {silent: true},
	"watchDir":    {silent: true},
	"armGrace":    {silent: true},
	"armKill":     {silent: true},
	"armBackoff":  {silent: true},
	"armRetry":    {silent: true},
	"disarm":      {silent: true},
	"settle":      {silent: true},
	"recordBusy":  {silent: true},
	"seek":        {silent: true, do: func(_ *machine, n *state, i int8) { n.G[i].Seek = 1 }},
	"unseek":      {silent: true, do: func(_ *machine, n *state, i int8) { n.G[i].Seek = 0 }},
	"leave":       {silent: true, do: func(_ *machine, n *state, i int8) { n.leave(idKeeper + i) }},
	"drain":       {silent: true, do: (*machine).drain},
	"killOrphan": {do: func(_ *machine, n *state, i int8) {
		if g := &n.G[i]; g.Old > 0 {
			n.sigkill(g.Old, g.OldRun)
		}
	}},
	"fork": {silent: true, do: func(m *machine, n *state, i int8) {
		g := &n.G[i]
		run := n.freeRun(i)
		if run < 0 {
			m.wrong = Bound
			return
		}
		g.Cur, g.P[run] = run+1, pHeld
		g.answer(keep.Forked)
	}},
	"name":  {do: (*machine).name},
	"letGo": {do: (*machine).letGo},
	"drop": {silent: true, do: func(_ *machine, n *state, i int8) {
		g := &n.G[i]
		if g.Cur > 0 {
			if g.alive(g.Cur - 1) {
				g.P[g.Cur-1] = pNever
			}
			g.Cur = 0
		}
	}},
	"confirm": {do: func(_ *machine, n *state, i int8) {
		if n.R.T == i+1 {
			n.R.Starting = 0
		}
	}},
	"forward": {do: func(m *machine, n *state, i int8) {
		if g := &n.G[i]; g.Cur > 0 {
			m.sigterm(n, i+1, g.Cur)
		}
	}},
	"evict": {do: func(m *machine, n *state, i int8) {
		if g := &n.G[i]; g.Cur > 0 {
			m.sigterm(n, i+1, g.Cur)
		}
	}},
	"kill": {do: func(_ *machine, n *state, i int8) {
		if g := &n.G[i]; g.Cur > 0 {
			n.sigkill(i+1, g.Cur)
		}
	}},
	"words": {silent: true, do: func(_ *machine, n *state, i int8) {
		g := &n.G[i]
		g.Said = 1
		if g.Ran == 1 && g.Failed == 0 {
			g.Said = 2
		}
	}},
	"recordCrash": {do: func(_ *machine, n *state, i int8) {
		if n.R.T == i+1 {
			n.R.Starting = 0
		}
	}},
	"finish": {do: func(_ *machine, n *state, i int8) {
		g := &n.G[i]
		if g.Sub == 0 {
			if n.R.T == i+1 {
				n.R = rec{}
			}
			g.Sub = 1 // the life file is next
			return
		}
		g.Sub, g.Life = 0, 0
	}},
}

// freeRun is a run that nothing names any more, since another fork has another
// pid; -1: none.
func (s *state) freeRun(i int8) int8 {
	g := &s.G[i]
	for run := range int8(len(g.P)) {
		named := s.R.T == i+1 && s.R.Run == run+1 || s.RB.T == i+1 && s.RB.Run == run+1 || g.Life == run+2
		if !g.alive(run) && !named {
			return run
		}
	}
	return -1
}

func (g *gen) answer(e keep.Event) { g.Answer = int8(e) + 1 }

// name writes the life file and then the record.
func (m *machine) name(n *state, i int8) {
	g := &n.G[i]
	if g.Sub == 0 {
		g.Life, g.Sub = g.Cur+1, 1
		return
	}
	g.Sub = 0
	n.R.Run, n.R.Keeper, n.R.Starting = g.Cur, 1, 1
	g.answer(keep.Written)
}

func (m *machine) letGo(n *state, i int8) {
	g := &n.G[i]
	if g.Stop == 1 {
		g.Stop = 0
		g.answer(keep.Stop)
		return
	}
	if g.P[g.Cur-1] == pHeld {
		g.P[g.Cur-1] = pRuns
		if g.Old > 0 && g.Waited == 0 && n.G[g.Old-1].alive(g.OldRun-1) {
			m.wrong = Early
		}
	}
	g.answer(keep.Went)
}

// drain is the last moment of a keeper.
func (m *machine) drain(n *state, i int8) {
	g := &n.G[i]
	g.State = m.step(g.State, keep.Drained).Next
	if g.State == keep.Done {
		m.endKeeper(n, i)
	}
}

func (m *machine) step(s keep.State, e keep.Event) keep.Step {
	st, ok := m.t.Keep(s, e)
	if !ok {
		return keep.Step{Next: s}
	}
	return st
}

// keeper is keep.go: one goroutine that performs the table's actions, and what
// it can be told.
func (m *machine) keeper(s *state, i int8) {
	g := &s.G[i]
	if g.Event > 0 {
		m.perform(s, i, step, "goes on")
		return
	}
	tell := func(k kind, e keep.Event, change func(*state, *gen)) {
		st, ok := m.t.Keep(g.State, e)
		if !ok {
			return
		}
		n := *s
		me := &n.G[i]
		if change != nil {
			change(&n, me)
		}
		if k == env {
			n.Faults++
		}
		me.From, me.Event, me.PC, me.Sub = g.State, int8(e)+1, 0, 0
		me.State = st.Next
		if st.Outcome == record.Failed {
			me.Failed = 1
		}
		m.perform(&n, i, k, e.String())
	}
	fault := m.fault(s)
	cur := g.Cur - 1
	failure := keep.Busy
	if g.Ran == 0 {
		failure = keep.Refused
	}
	if g.Answer > 0 {
		e := keep.Event(g.Answer - 1)
		tell(step, e, func(_ *state, g *gen) { g.Answer = 0 })
		return
	}
	if g.Stop == 1 {
		tell(step, keep.Stop, func(_ *state, g *gen) { g.Stop = 0 })
	}
	switch g.State {
	case keep.New:
		if m.run.Grace && g.Old > 0 && s.G[g.Old-1].alive(g.OldRun-1) {
			tell(step, keep.BeginGrace, nil)
		} else {
			tell(step, keep.Begin, nil)
		}
	case keep.Grace, keep.Killing:
		if g.Old == 0 || !s.G[g.Old-1].alive(g.OldRun-1) {
			tell(step, keep.OrphanGone, nil)
		}
		spent := func(_ *state, g *gen) { g.Waited = 1 }
		if g.State == keep.Grace && m.run.GraceKill {
			tell(step, keep.GraceSpent, spent)
		} else {
			tell(step, keep.Timer, spent)
		}
	case keep.Backoff:
		tell(step, keep.Timer, nil)
	case keep.Running:
		if s.Faults > 0 { // it rings only after a write that failed
			tell(step, keep.Timer, nil)
		}
	}
	if g.Seek == 1 && s.Gate == 0 {
		e := keep.GateMine
		switch s.R.T {
		case 0:
			e = keep.GateGone
		case i + 1:
		default:
			e = keep.GateTaken
		}
		tell(step, e, func(n *state, g *gen) { n.Gate, g.Seek = idKeeper+i, 0 })
		if fault {
			e := keep.GateFailed
			if g.State == keep.Claiming {
				e = failure
			}
			tell(env, e, func(_ *state, g *gen) { g.Seek = 0 })
		}
	}
	if cur < 0 {
		return
	}
	switch p := g.P[cur]; g.State {
	case keep.Execing, keep.Running, keep.Stopping, keep.Evicting:
		if g.State != keep.Running && g.Ran&2 == 0 && (p == pRuns || p == pTold) {
			tell(step, keep.Ran, func(_ *state, g *gen) { g.Ran = 3 })
			if fault && p == pRuns {
				// The exec fails: what was let go never was the process.
				tell(env, failure, func(_ *state, g *gen) { g.P[cur] = pNever })
			}
		}
		over := func(_ *state, g *gen) { g.Cur, g.Ran = 0, 1 }
		switch p {
		case pEnded, pNever:
			tell(step, keep.Deliberate, over)
		case pCrashed, pStranger:
			e := keep.Crash
			if g.Crashes >= m.run.Restarts {
				e = keep.LastCrash
			}
			tell(step, e, func(_ *state, g *gen) {
				g.Cur, g.Ran = 0, 1
				if e == keep.Crash {
					g.Crashes++
				}
			})
		}
	}
}

// perform does the next actions of the event under way, up to and with the
// first that others can see, and the silent ones behind it.
func (m *machine) perform(s *state, i int8, k kind, why string) {
	n := *s
	g := &n.G[i]
	from := g.From
	do := m.step(from, keep.Event(g.Event-1)).Do
	// What is silent is done in one with what follows: a keeper that is killed
	// in between leaves what it would leave a moment earlier.
	seen := false
	said := ""
	for int(g.PC) < len(do) && g.Keeper == kLives {
		o := ops[do[g.PC].String()]
		if !o.silent && seen {
			break
		}
		seen = seen || !o.silent
		if m.tracing {
			said += " " + do[g.PC].String()
		}
		m.trouble(&n, i, do[g.PC].String(), why)
		if o.do != nil {
			o.do(m, &n, i)
		}
		if g.Sub == 0 {
			g.PC++
		}
		if int(g.PC) >= len(do) && !seen && g.Answer > 0 {
			g.From, g.Event, g.PC, g.Answer = g.State, g.Answer, 0, 0
			st := m.step(g.From, keep.Event(g.Event-1))
			g.State, do = st.Next, st.Do
			if st.Outcome == record.Failed {
				g.Failed = 1
			}
		}
	}
	if g.Keeper == kLives && int(g.PC) >= len(do) {
		g.From, g.Event, g.PC = 0, 0, 0
	}
	m.emit(n, k, "K%d (%s) %s:%s -> %s", i, from, why, said, g.State)
}

// trouble is an action that fails.
func (m *machine) trouble(s *state, i int8, action, why string) {
	if !m.fault(s) {
		return
	}
	n := *s
	n.Faults++
	g := &n.G[i]
	failure := keep.Busy
	if g.Ran == 0 {
		failure = keep.Refused
	}
	switch action {
	case "fork", "name":
		g.answer(failure)
	case "confirm":
		g.answer(keep.Unwritten)
	case "finish":
		if g.Sub == 1 {
			return
		}
		// The record cannot be removed; the rest is done.
		g.Sub = 1
		m.emit(n, env, "K%d %s: the record cannot be removed", i, why)
		return
	case "recordCrash":
		// The old record stays and says as much.
	default:
		return
	}
	g.Sub = 0
	g.PC++
	if int(g.PC) >= len(m.step(g.From, keep.Event(g.Event-1)).Do) {
		g.From, g.Event, g.PC = 0, 0, 0
	}
	m.emit(n, env, "K%d %s: %s fails", i, why, action)
}

// numEvents is how many events the keeper's table has.
var numEvents = func() int {
	n := 0
	for e := keep.Event(0); ; e++ {
		if !known(e) {
			return n
		}
		n++
	}
}()

// known says whether an event has a name, which all of the table's have.
func known(e keep.Event) (ok bool) {
	defer func() { _ = recover() }()
	return e.String() != ""
}

// covered says which actions of the table the model does not know.
func covered() error {
	for s := keep.New; s <= keep.Done; s++ {
		for e := range keep.Event(numEvents) {
			st, ok := keep.Next(s, e)
			if !ok {
				continue
			}
			for _, a := range st.Do {
				if _, ok := ops[a.String()]; !ok {
					return fmt.Errorf("action %s of keeper state %s on %s is not modelled", a, s, e)
				}
			}
		}
	}
	return nil
}
