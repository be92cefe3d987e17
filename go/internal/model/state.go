package model

import "processguard/go/internal/keep"

// Bounds of a state. A run that would need more slots is cut, and says so.
const (
	maxHosts   = 3
	maxSlots   = 6
	maxReapers = 2
)

// Where a host's call of guard() stands.
const (
	hClaim    int8 = iota // wants the gate to look
	hRemember             // in the gate: is to leave a life file for what it displaces
	hSignal               // in the gate: is to send the orphan SIGTERM
	hCommit               // in the gate: is to put its record in place
	hSweep                // in the gate, record written: an old `.reaping` is to go
	hSpawn                // has a claim, is to start a launcher
	hAwait                // waits for its keeper
	hRenew                // a launcher did not do: wants the gate for another token
	hDirect               // is to start the process itself
	hBorn                 // has started it and is to name it
	hSettle               // the same, with its thread gone
	hFinish               // has sent SIGTERM to what a dead reaper left, waits for its end
	hFinished             // that ended: wants the gate to take `.reaping` away
	hGiveBack             // wants the gate to give its claim back
	hLeave                // the same, with its thread gone
	hUp                   // done: runs or joined
	hDown                 // done: refused, or failed with a line
	hGone                 // done: its thread ended
	hDead                 // killed
)

// What became of one run of the process.
const (
	pNone     int8 = iota
	pHeld          // before its exec; runs no user code
	pRuns          // let go
	pTold          // runs and has SIGTERM on the way
	pCrashed       // over, not deliberately
	pEnded         // over as somebody wanted
	pNever         // over before its exec
	pStranger      // over, and its pid is somebody else's now
)

// What became of a keeper.
const (
	kNone int8 = iota
	kLives
	kOver
	kStranger // over, and its pid is somebody else's now
)

// Where a launcher stands.
const (
	lNone    int8 = iota
	lSpawned      // nothing done yet
	lLife         // has made and locked its life file
	lGate         // in the gate, the claim is its own
	lForked       // in the gate, the keeper exists and is not named yet
	lGiveUp       // wants the gate to say that it failed
)

// gen is one generation: a token and everything that was started under it.
type gen struct {
	Used, Config, Host int8
	Launch             int8
	Keeper             int8
	State              keep.State // of a keeper that lives
	From               keep.State // the state in which the event under way came
	Event              int8       // that event, +1; 0: waits for one
	PC, Sub            int8       // next of that event's actions
	Seek               int8       // it has asked for the gate
	Answer             int8       // an event that an action left, +1
	Ran                int8       // a process of it ran
	Crashes            int8
	Cur                int8 // the run it has as a child, +1
	Stop               int8 // a stop signal it has not looked at yet
	Failed             int8 // its outcome is `failed`, which stays
	Old, OldRun        int8 // the process that its grace waits for, +1
	Waited             int8 // that grace was spent
	Said               int8 // last words: 0 none, 1 nothing ran, 2 it ran
	Life               int8 // life file: 0 none, 1 names nothing, 1+n names run n
	Direct             int8 // 1: spawned by a host and not named yet, 2: named, 3: to be stopped
	P                  [3]int8
}

// rec is a record. T is its token's slot + 1, 0: no file.
type rec struct{ T, Run, Keeper, Starting int8 }

type host struct {
	St, T          int8 // T: its token's slot + 1
	Act            int8 // claim.Action under way
	Old            int8 // the older generation that is put back, or whose stop is finished, +1
	OldRun         int8
	Aside          int8 // holds the lock of `.reaping`
	Taken, Removed int8 // has lost a claim that way before
	Tries          int8
}

// Where a reaper stands in one look.
const (
	rLook   int8 = iota // wants the gate for `.reaping` or the record
	rBegin              // in the gate: is to set the record aside
	rSignal             // in the gate: has done so and is to signal
	rWait               // waits for the end
	rDone               // that came: wants the gate to take `.reaping` away
)

type reaper struct {
	St                int8 // reap.State
	Dead              int8
	At                int8
	Aside, Last, More int8 // which file, which pass, and whether another is due
	T, Run            int8 // whose stop is under way; run 0: the keeper's
	Lock              int8 // holds the lock of `.reaping`
}

type state struct {
	Gate    int8 // who is inside, see the ids below
	Frozen  int8 // who is stopped for ever
	R, RB   rec  // <name>.pid and <name>.pid.reaping
	H       [maxHosts]host
	G       [maxSlots]gen
	A       [maxReapers]reaper
	Kills   int8
	Crashes int8
	Freezes int8
	Faults  int8
	Reuses  int8
	Ends    int8
	Stops   int8
	Refused int8
	Hides   int8
}

// Ids of who can hold the gate or be stopped.
const (
	idHost     int8 = 1
	idKeeper   int8 = 20
	idLauncher int8 = 40
	idReaper   int8 = 60
)

func (g *gen) alive(run int8) bool { p := g.P[run]; return p == pHeld || p == pRuns || p == pTold }
func (g *gen) runs(run int8) bool  { return g.P[run] == pRuns || g.P[run] == pTold }

// held says whether somebody has the life file's lock.
func (g *gen) held() bool {
	return g.Life > 0 && (g.Keeper == kLives || g.Launch >= lLife)
}

// of is the generation and run that a record names; run -1: none.
func (s *state) of(r rec) (*gen, int8) {
	if r.T == 0 {
		return nil, -1
	}
	return &s.G[r.T-1], r.Run - 1
}

// final says whether a host has its answer.
func (h *host) final() bool { return h.St >= hUp }

// tidy makes states that differ in nothing that matters the same.
func (m *machine) tidy(s *state) {
	s.forget()
	m.order(s)
}

// forget takes away what is over and named by nobody.
func (s *state) forget() {
	var refs [maxSlots][3]bool // runs that something names
	var used [maxSlots]bool
	name := func(t, run int8) {
		if t > 0 {
			used[t-1] = true
			if run > 0 {
				refs[t-1][run-1] = true
			}
		}
	}
	name(s.R.T, s.R.Run)
	name(s.RB.T, s.RB.Run)
	var told [maxSlots]bool // somebody may still want its last words
	for i := range s.H {
		h := &s.H[i]
		if h.final() && (h.T == 0 || s.G[h.T-1].Direct == 0 || h.St != hUp) {
			if h.St != hDead {
				h.St = hDown
			}
			*h = host{St: h.St}
			continue
		}
		if h.T > 0 {
			told[h.T-1] = true
		}
		name(h.T, 0)
		name(h.Old, h.OldRun)
	}
	for i := range s.A {
		a := &s.A[i]
		if a.Dead == 1 {
			*a = reaper{Dead: 1}
			continue
		}
		name(a.T, a.Run)
	}
	for i := range s.G {
		g := &s.G[i]
		if g.Used == 1 && s.R.T != int8(i)+1 && (g.Launch == lSpawned || g.Launch == lLife) {
			// Nobody puts a claim back: it can only find that out and end.
			g.Launch = lNone
		}
		if g.Life > 0 && !g.held() && (g.Life == 1 || !g.alive(g.Life-2)) {
			g.Life = 0 // as good as none for everybody, and swept by whoever looks
		}
		if g.Keeper == kLives || g.Keeper == kNone && int8(i)+1 == s.R.T {
			name(g.Old, g.OldRun)
		} else {
			g.Old, g.OldRun = 0, 0
		}
		if g.Life > 1 {
			name(int8(i)+1, g.Life-1)
		}
	}
	for i := range s.G {
		g := &s.G[i]
		if g.Used == 0 {
			continue
		}
		if !told[i] {
			g.Said = 0
		}
		if g.Direct == 0 && !s.owes(int8(i)) {
			g.Host = 0
		}
		if g.Keeper != kLives {
			g.State, g.From, g.Event, g.PC, g.Sub, g.Seek, g.Answer, g.Stop, g.Cur, g.Crashes, g.Failed, g.Ran = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
		}
		if g.Keeper == kOver || g.Keeper == kStranger {
			g.Old, g.OldRun, g.Waited = 0, 0, 0
		}
		busy := g.Launch != lNone || g.Keeper == kLives || g.Life > 0 || used[i]
		for run := range g.P {
			p := &g.P[run]
			switch *p {
			case pHeld, pRuns, pTold:
				busy = true
				continue
			case pNone:
				continue
			}
			if g.Keeper == kLives && int(g.Cur) == run+1 || g.Direct != 0 {
				continue // how it ended still matters
			}
			if *p != pStranger {
				*p = pEnded
			}
			if !refs[i][run] {
				*p = pNone
			}
		}
		if !busy {
			*g = gen{}
		}
	}
}

// owes says whether the record is a claim of that generation, whose host has to
// be looked at.
func (s *state) owes(i int8) bool { return s.R.T == i+1 && s.R.Run == 0 }

// order gives slots and like hosts numbers that say nothing of the past.
func (m *machine) order(s *state) {
	// Hosts of one configuration are alike.
	for i := 1; i < len(m.run.Hosts); i++ {
		for j := i; j > 0; j-- {
			k := j - 1
			for k >= 0 && m.config[k] != m.config[j] {
				k--
			}
			if k < 0 || m.run.Watch && k == 0 || !s.hostAfter(k, j) {
				continue
			}
			m.swapHosts(s, int8(k), int8(j))
		}
	}
	var to [maxSlots]int8 // 0: not placed yet
	next := int8(1)
	place := func(t int8) {
		if t > 0 && to[t-1] == 0 {
			to[t-1] = next
			next++
		}
	}
	place(s.R.T)
	place(s.RB.T)
	for i := range s.H {
		place(s.H[i].T)
		place(s.H[i].Old)
	}
	for i := range s.A {
		place(s.A[i].T)
	}
	// The rest by what they are; those without a difference are alike.
	for {
		best := -1
		for i := range s.G {
			if to[i] == 0 && s.G[i].Used == 1 && (best < 0 || genAfter(&s.G[best], &s.G[i])) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		place(int8(best) + 1)
	}
	for i := range to {
		place(int8(i) + 1)
	}
	same := true
	for i := range to {
		same = same && int(to[i]) == i+1
	}
	if same {
		return
	}
	old := s.G
	for i := range old {
		s.G[to[i]-1] = old[i]
	}
	re := func(t *int8) {
		if *t > 0 {
			*t = to[*t-1]
		}
	}
	re(&s.R.T)
	re(&s.RB.T)
	for i := range s.H {
		re(&s.H[i].T)
		re(&s.H[i].Old)
	}
	for i := range s.A {
		re(&s.A[i].T)
	}
	for i := range s.G {
		re(&s.G[i].Old)
	}
	who := func(id *int8) {
		switch {
		case *id >= idLauncher && *id < idReaper:
			*id = idLauncher + to[*id-idLauncher] - 1
		case *id >= idKeeper && *id < idLauncher:
			*id = idKeeper + to[*id-idKeeper] - 1
		}
	}
	who(&s.Gate)
	who(&s.Frozen)
}

func (s *state) hostAfter(i, j int) bool {
	a, b := &s.H[i], &s.H[j]
	x := [...]int8{a.St, a.Act, a.Taken, a.Removed, a.Tries, a.Aside, a.OldRun}
	y := [...]int8{b.St, b.Act, b.Taken, b.Removed, b.Tries, b.Aside, b.OldRun}
	for i := range x {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	if a.T == b.T || a.T == 0 || b.T == 0 {
		return a.T > b.T
	}
	if a.T == s.R.T || b.T == s.R.T {
		return b.T == s.R.T
	}
	return genAfter(&s.G[a.T-1], &s.G[b.T-1])
}

func genAfter(a, b *gen) bool {
	x, y := a.bytes(), b.bytes()
	for i := range x {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return false
}

func (g *gen) bytes() [18]int8 {
	return [...]int8{g.Config, g.Direct, g.Launch, g.Keeper, int8(g.State), g.Event, g.PC, g.Life, g.P[0], g.P[1], g.Cur, g.Seek, g.Answer, g.Sub, g.Stop, g.Crashes, g.P[2], g.Said}
}

func (m *machine) swapHosts(s *state, a, b int8) {
	s.H[a], s.H[b] = s.H[b], s.H[a]
	swap := func(id *int8, first int8) {
		switch *id {
		case first + a:
			*id = first + b
		case first + b:
			*id = first + a
		}
	}
	swap(&s.Gate, idHost)
	swap(&s.Frozen, idHost)
	for i := range s.G {
		if g := &s.G[i]; g.Used == 1 && (g.Direct != 0 || s.owes(int8(i))) {
			swap(&g.Host, 0)
		}
	}
}
