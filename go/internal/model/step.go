package model

import (
	"processguard/go/internal/claim"
	"processguard/go/internal/keep"
	"processguard/go/internal/proc"
	"processguard/go/internal/reap"
)

// next emits every successor of s.
func (m *machine) next(s *state) {
	for i := range int8(len(m.run.Hosts)) {
		if s.Frozen != idHost+i {
			m.host(s, i)
		}
	}
	for i := range int8(maxSlots) {
		if s.G[i].Used == 0 {
			continue
		}
		if s.G[i].Launch != lNone && s.Frozen != idLauncher+i {
			m.launcher(s, i)
		}
		if s.G[i].Keeper == kLives && s.Frozen != idKeeper+i {
			m.keeper(s, i)
		}
		m.processes(s, i)
	}
	for i := range int8(m.run.Reapers) {
		if s.A[i].Dead == 0 && s.Frozen != idReaper+i {
			m.reaper(s, i)
		}
	}
	m.faults(s)
}

// answer is a yes or no of the model.
func answer(yes bool) proc.Answer {
	if yes {
		return proc.Yes
	}
	return proc.No
}

// processOf is what a look at the process of a record tells.
func (s *state) processOf(r rec) claim.Process {
	g, run := s.of(r)
	switch {
	case g == nil || run < 0:
		return claim.Dead
	case g.alive(run):
		return claim.Ours
	case g.P[run] == pStranger:
		return claim.Stranger
	}
	return claim.Dead
}

// sigterm is SIGTERM through a handle. Whether it was opened on what was proven
// is looked at where that was decided; later the pid may be anybody's.
func (m *machine) sigterm(n *state, t, run int8) {
	g := &n.G[t-1]
	switch g.P[run-1] {
	case pHeld:
		g.P[run-1] = pNever
	case pRuns:
		if !m.run.Ignores {
			g.P[run-1] = pTold
		}
	}
}

// sigkill is SIGKILL through such a handle, opened when the process was proven.
func (n *state) sigkill(t, run int8) {
	g := &n.G[t-1]
	switch g.P[run-1] {
	case pHeld:
		g.P[run-1] = pNever
	case pRuns, pTold:
		g.P[run-1] = pCrashed
	}
}

// A scene is one look of a claimant.
type scene struct {
	f     claim.Facts
	older int8 // slot + 1; -1: one that is still held
}

// look is claim.go's look, in the gate; it sweeps like that one.
func (m *machine) look(n *state, h int8) scene {
	me := &n.H[h]
	f := claim.Facts{StopOrphans: m.run.StopOrphans, AfterTaken: me.Taken == 1}
	config := m.config[h]
	sc := scene{}
	if n.R.T == 0 {
		f.Found = claim.Absent
		sc.older = m.lookForOlder(n, config, 0)
		if n.RB.T > 0 && n.RB.Run > 0 && n.processOf(n.RB) == claim.Ours {
			f.Reaping = claim.ReaperDied
			if n.asideHeld() {
				f.Reaping = claim.ReaperAtWork
			}
		}
	} else {
		g := &n.G[n.R.T-1]
		f.Life = answer(g.held())
		f.SameConfig = g.Config == config
		f.SameVersion = m.version[g.Config] == m.version[config]
		if n.R.Run == 0 {
			f.Found = claim.Claimed
			f.Young = true
			// Another thread of the same process would know more; a host here is
			// a process with one thread.
			f.Host = answer(n.H[g.Host].St != hDead)
		} else {
			f.Found = claim.Named
			f.Process = n.processOf(n.R)
			f.Keeper = answer(n.R.Keeper == 1 && g.Keeper == kLives)
			f.Starting = n.R.Starting == 1 && (f.Keeper != proc.No || g.P[n.R.Run-1] == pHeld)
		}
		if f.Found != claim.Named || f.Process != claim.Ours || !f.SameConfig {
			sc.older = m.lookForOlder(n, config, n.R.T)
		}
	}
	switch {
	case sc.older > 0:
		f.Older = claim.OlderLives
	case sc.older < 0:
		f.Older = claim.OlderUnknown
	}
	sc.f = f
	return sc
}

func (s *state) asideHeld() bool {
	for i := range s.H {
		if s.H[i].Aside == 1 && s.H[i].St != hDead {
			return true
		}
	}
	for i := range s.A {
		if s.A[i].Lock == 1 && s.A[i].Dead == 0 {
			return true
		}
	}
	return false
}

func (m *machine) lookForOlder(n *state, config, own int8) (older int8) {
	for i := range n.G {
		g := &n.G[i]
		if g.Life == 0 || int8(i)+1 == own || older > 0 {
			continue
		}
		if g.Life == 1 {
			if !g.held() {
				g.Life = 0
			}
			continue
		}
		if g.alive(g.Life - 2) {
			if g.Config == config {
				older = int8(i) + 1
				if g.P[g.Life-2] == pHeld {
					older = -1
				}
			}
			continue
		}
		if !g.held() {
			g.Life = 0
		}
	}
	return older
}

// claim lets a host that has the gate look, decide, and begin to act.
func (m *machine) claim(s *state, h int8) {
	n := *s
	sc := m.look(&n, h)
	type variant struct {
		f claim.Facts
		k kind
	}
	variants := []variant{{sc.f, step}}
	spent := sc.f
	spent.Spent, spent.LongSpent = true, true
	variants = append(variants, variant{spent, late})
	if sc.f.Found == claim.Claimed {
		old := sc.f
		old.Young = false
		k := late
		if n.abandoned() {
			k = step
		}
		variants = append(variants, variant{old, k})
	}
	if s.Hides < m.run.Hidden {
		n.Hides++ // in the variants only, see below
		hide := func(change func(*claim.Facts)) {
			for _, v := range variants[:2] {
				change(&v.f)
				variants = append(variants, variant{v.f, env})
			}
		}
		switch {
		case sc.f.Found == claim.Named:
			hide(func(f *claim.Facts) { f.Process = claim.Hidden })
			hide(func(f *claim.Facts) { f.Keeper = proc.Unknown })
		case sc.f.Found == claim.Claimed:
			hide(func(f *claim.Facts) { f.Host = proc.Unknown })
			hide(func(f *claim.Facts) { f.Life = proc.Unknown })
		case sc.f.Reaping != claim.NotReaping:
			hide(func(f *claim.Facts) { f.Reaping = claim.ReapingHidden })
		}
		if sc.f.Older == claim.OlderLives {
			hide(func(f *claim.Facts) { f.Older = claim.OlderUnknown })
		}
	}
	var done [8]bool
	for _, v := range variants {
		if v.k == late && !m.run.Late {
			continue
		}
		d := m.t.Claim(v.f)
		if v.k != env && done[d.Action] {
			continue
		}
		done[d.Action] = true
		from := n
		if v.k != env {
			from.Hides = s.Hides
		}
		m.act(&from, h, sc, v.f, d, v.k)
	}
}

// abandoned says whether the record is a claim that nobody goes on with although
// its host lives: it grows old.
func (s *state) abandoned() bool {
	g := &s.G[s.R.T-1]
	if g.Launch != lNone || g.Keeper == kLives {
		return false
	}
	for i := range s.H {
		if s.H[i].T == s.R.T && !s.H[i].final() {
			return false
		}
	}
	return true
}

func (m *machine) act(s *state, h int8, sc scene, f claim.Facts, d claim.Decision, k kind) {
	n := *s
	me := &n.H[h]
	id := idHost + h
	alive := n.R.Run > 0 && f.Found == claim.Named && f.Process == claim.Ours
	signals := d.Action == claim.StopOrphan || d.Action == claim.PutBack && m.run.StopOrphans && alive
	if signals && f.Process != claim.Ours || d.Action == claim.FinishReaping && f.Reaping != claim.ReaperDied {
		m.wrong = Unproven
	}
	switch d.Action {
	case claim.Wait:
		m.wrong = ""
		return // nothing was changed but what was swept, which the next look does again
	case claim.Refuse:
		me.St = hDown
	case claim.Join:
		if g, run := n.of(n.R); g.P[run] == pHeld && g.Keeper != kLives {
			m.wrong = Joined
		}
		me.St = hUp
	case claim.FinishReaping:
		me.Aside = 1
		me.Old, me.OldRun = n.RB.T, n.RB.Run
		me.St = hFinish
		m.sigterm(&n, n.RB.T, n.RB.Run)
	default:
		n.Gate = id
		me.Act = int8(d.Action)
		if d.Action == claim.PutBack {
			me.Old, me.OldRun = sc.older, n.G[sc.older-1].Life-1
		}
		switch {
		case alive:
			me.St = hRemember
		case signals:
			me.St = hSignal
		default:
			me.St = hCommit
		}
		if m.run.Gateless {
			n.Gate = 0
		} else if me.St == hCommit && m.run.Freezes == 0 {
			// Killed before it writes it leaves nothing, as if it had not looked.
			m.commit(&n, h, k, d.Why)
			return
		}
	}
	m.emit(n, k, "H%d (v%d) looks: %s -> %s", h, m.run.Hosts[h].Version, d.Why, d.Action)
}

// newGen takes a slot.
func (m *machine) newGen(n *state, h int8) int8 {
	for i := range n.G {
		if n.G[i].Used == 0 {
			n.G[i] = gen{Used: 1, Config: m.config[h], Host: h}
			return int8(i) + 1
		}
	}
	m.wrong = Bound
	return 0
}

func (m *machine) fault(s *state) bool { return s.Faults < m.run.Faults }

// lost is a claim that went while something was started under it.
func lost(me *host, taken bool) {
	again := &me.Removed
	if taken {
		again = &me.Taken
	}
	me.T, me.Tries = 0, 0
	if *again == 1 {
		me.St = hDown
		return
	}
	*again = 1
	me.St = hClaim
}

func (m *machine) host(s *state, h int8) {
	me := &s.H[h]
	id := idHost + h
	free := s.Gate == 0
	wait := func() bool { // for the gate
		return !free
	}
	switch me.St {
	case hClaim:
		if free {
			m.claim(s, h)
		} else if m.run.Late {
			n := *s
			n.H[h].St = hDown
			m.emit(n, late, "H%d has no budget left and did not get the gate", h)
		}
	case hRemember:
		n := *s
		g, run := n.of(n.R)
		next := hCommit
		if me.Act == int8(claim.StopOrphan) || me.Act == int8(claim.PutBack) && m.run.StopOrphans {
			next = hSignal
		}
		if g == nil || run < 0 {
			// Only without a gate.
			n.H[h].St = hCommit
			m.emit(n, step, "H%d finds its orphan gone", h)
			return
		}
		n.H[h].St = next
		if !g.held() && g.Life != run+2 {
			if m.fault(s) {
				m.failed(s, h, "H%d cannot write a life file for what it displaces")
			}
			g.Life = run + 2
			m.emit(n, step, "H%d writes a life file for what it displaces", h)
			return
		}
		m.emit(n, step, "H%d finds a life file of what it displaces", h)
	case hSignal:
		if m.fault(s) {
			m.failed(s, h, "H%d cannot write its temporary file")
		}
		n := *s
		n.H[h].St = hCommit
		if n.R.Run > 0 {
			m.sigterm(&n, n.R.T, n.R.Run)
		}
		m.emit(n, step, "H%d sends the orphan SIGTERM", h)
	case hCommit:
		m.commit(s, h, step, "its decision stands")
	case hSweep:
		n := *s
		n.RB = rec{}
		n.H[h].St = hSpawn
		n.leave(id)
		m.emit(n, step, "H%d takes the old .reaping away and leaves the gate", h)
	case hSpawn:
		g := me.T - 1
		n := *s
		n.G[g].Launch = lSpawned
		n.H[h].St = hAwait
		m.emit(n, step, "H%d starts the launcher of G%d", h, g)
		if s.Refused < m.run.Refused {
			n.Refused++
			n.H[h].St = hRenew
			m.emit(n, env, "H%d starts the launcher of G%d and is told that it did not", h, g)
			n.G[g].Launch = lNone
			m.emit(n, env, "H%d is not allowed to start a launcher", h)
		}
	case hAwait:
		m.await(s, h)
	case hRenew:
		if wait() {
			m.hurry(s, h)
			return
		}
		if m.fault(s) {
			n := *s
			n.Faults++
			n.H[h].St = hGiveBack
			m.emit(n, env, "H%d cannot write another token", h)
		}
		n := *s
		g := &n.G[me.T-1]
		he := &n.H[h]
		switch {
		case n.R.T != me.T:
			lost(he, n.R.T > 0)
			m.emit(n, step, "H%d finds its claim gone", h)
		case n.R.Run > 0 || g.held():
			he.St = hAwait
			m.emit(n, step, "H%d finds a launcher or keeper of G%d at work", h, me.T-1)
		default:
			old := me.T
			t := m.newGen(&n, h)
			if t == 0 {
				m.emit(*s, env, "no slot")
				return
			}
			n.G[t-1].Old, n.G[t-1].OldRun = g.Old, g.OldRun
			n.R = rec{T: t}
			n.G[old-1].Life = 0
			he.T = t
			he.Tries++
			he.St = hSpawn
			switch {
			case he.Tries < m.run.Launchers:
			case m.run.Direct:
				he.St = hDirect
			default:
				he.St = hGiveBack // as if the direct spawn were refused
			}
			m.emit(n, step, "H%d takes another token G%d for G%d", h, t-1, old-1)
		}
	case hDirect:
		n := *s
		g := &n.G[me.T-1]
		g.Direct, g.P[0] = 1, pRuns
		n.H[h].St = hBorn
		m.emit(n, step, "H%d starts the process of G%d itself", h, me.T-1)
	case hBorn, hSettle:
		if wait() {
			m.hurry(s, h)
			return
		}
		name := func(n state, k kind, ok bool) {
			g := &n.G[me.T-1]
			he := &n.H[h]
			if n.R.T == me.T && n.R.Run == 0 && ok {
				n.R.Run, g.Direct = 1, 2
				he.St = hUp
				m.emit(n, k, "H%d names the process of G%d", h, me.T-1)
				return
			}
			g.Direct = 3
			m.sigterm(&n, me.T, 1)
			switch {
			case me.St == hSettle:
				he.St, he.T = hGone, 0
			case !ok:
				he.St = hGiveBack
			default:
				lost(he, n.R.T > 0)
			}
			m.emit(n, k, "H%d cannot name the process of G%d and stops it", h, me.T-1)
		}
		name(*s, step, true)
		if m.fault(s) {
			n := *s
			n.Faults++
			name(n, env, false)
		}
	case hUp:
		if me.T > 0 && free {
			g := &s.G[me.T-1]
			if g.Direct == 2 && !g.alive(0) {
				n := *s
				if n.R.T == me.T {
					n.R = rec{}
				}
				n.G[me.T-1].Direct = 0
				n.H[h].T = 0
				m.emit(n, step, "H%d sees its process G%d ended and gives the record back", h, me.T-1)
			}
		}
	case hFinish:
		g := &s.G[me.Old-1]
		if g.alive(me.OldRun - 1) {
			n := *s
			n.sigkill(me.Old, me.OldRun)
			m.emit(n, step, "H%d sends what it stops SIGKILL after 5 s", h)
			return
		}
		n := *s
		n.H[h].St = hFinished
		m.emit(n, step, "H%d sees the end of what it stopped", h)
	case hFinished:
		if wait() {
			if !m.run.Late {
				return
			}
			n := *s
			n.H[h] = host{St: hDown, Taken: me.Taken, Removed: me.Removed}
			m.emit(n, late, "H%d did not get the gate to take .reaping away", h)
			return
		}
		n := *s
		if n.RB.T > 0 && n.RB.T == me.Old {
			n.RB = rec{}
		}
		n.H[h] = host{St: hClaim, Taken: me.Taken, Removed: me.Removed}
		m.emit(n, step, "H%d takes .reaping away", h)
	case hGiveBack, hLeave:
		end := hDown
		if me.St == hLeave {
			end = hGone
		}
		n := *s
		if free {
			if n.R.T == me.T && n.R.Run == 0 && (n.R.Keeper == 0 || n.G[me.T-1].Life == 0) {
				n.R = rec{}
			}
			n.H[h] = host{St: end}
			m.emit(n, step, "H%d gives its claim G%d back", h, me.T-1)
		} else if m.run.Late {
			n.H[h] = host{St: end}
			m.emit(n, late, "H%d did not get the gate to give its claim back", h)
		}
	}
}

// commit puts a record in its place.
func (m *machine) commit(s *state, h int8, k kind, why claim.Why) {
	me := &s.H[h]
	id := idHost + h
	if m.fault(s) {
		m.failed(s, h, "H%d cannot write its record")
	}
	n := *s
	he := &n.H[h]
	old := n.R
	if me.Act == int8(claim.PutBack) {
		g := &n.G[me.Old-1]
		n.R = rec{T: me.Old, Run: me.OldRun, Keeper: b2i(g.Keeper != kNone)}
		if g.P[me.OldRun-1] == pHeld && g.Keeper != kLives {
			m.wrong = Joined
		}
		*he = host{St: hUp}
		n.leave(id)
		m.emit(n, k, "H%d (v%d): %s; it puts the record of G%d back and joins it", h, m.run.Hosts[h].Version, why, me.Old-1)
		return
	}
	t := m.newGen(&n, h)
	if t == 0 {
		m.emit(*s, env, "no slot")
		return
	}
	if m.run.Grace && old.Run > 0 && n.processOf(old) == claim.Ours {
		n.G[t-1].Old, n.G[t-1].OldRun = old.T, old.Run
	}
	n.R = rec{T: t}
	he.T, he.St, he.Tries = t, hSpawn, 0
	if n.RB.T > 0 && old.T == 0 {
		he.St = hSweep
	} else {
		n.leave(id)
	}
	m.emit(n, k, "H%d (v%d): %s; it writes its claim G%d", h, m.run.Hosts[h].Version, why, t-1)
}

// hurry is a call that waits for a gate for longer than it wants to. The
// product gives these the claim budget too.
func (m *machine) hurry(s *state, h int8) {
	if !m.run.Late {
		return
	}
	n := *s
	if n.H[h].St == hSettle {
		return // nobody waits for it; it goes on asking
	}
	if n.H[h].St == hBorn {
		n.G[n.H[h].T-1].Direct = 3
		m.sigterm(&n, n.H[h].T, 1)
	}
	n.H[h].St = hDown
	m.emit(n, late, "H%d did not get the gate and gives up", h)
}

func b2i(b bool) int8 {
	if b {
		return 1
	}
	return 0
}

func (s *state) leave(id int8) {
	if s.Gate == id {
		s.Gate = 0
	}
}

// failed ends a claim whose write failed.
func (m *machine) failed(s *state, h int8, format string) {
	n := *s
	n.Faults++
	n.H[h] = host{St: hDown}
	n.leave(idHost + h)
	m.emit(n, env, format, h)
}

// await is what a host sees while its keeper is on the way.
func (m *machine) await(s *state, h int8) {
	me := &s.H[h]
	t := me.T
	g := &s.G[t-1]
	to := func(k kind, st int8, what string) {
		n := *s
		n.H[h].St = st
		m.emit(n, k, "H%d %s", h, what)
	}
	if s.R.T != t {
		switch {
		case g.Said == 1:
			to(step, hDown, "reads that nothing could be started")
		case g.Said == 2:
			to(step, hUp, "reads that it has already ended")
		default:
			n := *s
			lost(&n.H[h], s.R.T > 0)
			if s.R.T == 0 && g.held() {
				if !m.run.Late && (g.Cur == 0 || !g.runs(g.Cur-1)) {
					return // its word is on the way
				}
				m.emit(n, late, "H%d waits no longer for a word of G%d", h, t-1)
			} else {
				m.emit(n, step, "H%d sees its claim gone", h)
			}
		}
		return
	}
	if s.R.Run > 0 && s.R.Starting == 0 {
		to(step, hUp, "sees its process named")
		return
	}
	if g.Launch == lNone && g.Keeper != kLives && s.Gate == 0 {
		switch {
		case s.R.Run > 0 && g.P[s.R.Run-1] == pHeld:
			// ends by itself
		case s.R.Run > 0 && g.alive(s.R.Run-1):
			to(step, hUp, "finds the keeper dead and the process running")
		case s.R.Run > 0:
			n := *s
			lost(&n.H[h], false)
			m.emit(n, step, "H%d finds the keeper and the process dead", h)
		case g.Said > 0:
			n := *s
			n.H[h].St = hGiveBack
			m.emit(n, step, "H%d reads why nothing was started", h)
		default:
			to(step, hRenew, "finds its launcher and keeper dead")
		}
	}
	if !m.run.Late {
		return
	}
	if s.R.Run == 0 && s.R.Keeper == 0 {
		to(late, hGiveBack, "waits no longer for its launcher")
	} else {
		to(late, hDown, "waits no longer for its keeper")
	}
}

// launcher is launch.go.
func (m *machine) launcher(s *state, i int8) {
	g := &s.G[i]
	id := idLauncher + i
	go1 := func(k kind, change func(n *state, g *gen), what string) {
		n := *s
		if k == env {
			n.Faults++
		}
		change(&n, &n.G[i])
		m.emit(n, k, "launcher of G%d %s", i, what)
	}
	mine := s.R.T == i+1 && s.R.Run == 0
	switch g.Launch {
	case lSpawned:
		go1(step, func(_ *state, g *gen) { g.Launch, g.Life = lLife, 1 }, "makes its life file")
		if m.fault(s) {
			go1(env, func(_ *state, g *gen) { g.Launch = lGiveUp }, "cannot make its life file")
		}
	case lLife:
		if s.Gate != 0 {
			return
		}
		if !mine {
			go1(step, func(_ *state, g *gen) { g.Launch, g.Life = lNone, 0 }, "finds that the claim is not its own")
			return
		}
		go1(step, func(n *state, g *gen) { n.Gate, g.Launch = id, lGate }, "takes the gate, the claim is its own")
	case lGate:
		go1(step, func(_ *state, g *gen) { g.Launch, g.Keeper, g.State = lForked, kLives, keep.New }, "starts the keeper")
		if m.fault(s) {
			go1(env, func(_ *state, g *gen) { g.Launch = lGiveUp }, "cannot start the keeper")
		}
	case lForked:
		go1(step, func(n *state, g *gen) { n.R.Keeper, g.Launch = 1, lNone; n.leave(id) }, "names the keeper and ends")
		if m.fault(s) {
			go1(env, func(_ *state, g *gen) { g.Launch, g.Keeper = lGiveUp, kOver }, "cannot name the keeper and ends it")
		}
	case lGiveUp:
		if s.Gate != 0 && s.Gate != id {
			return
		}
		go1(step, func(n *state, g *gen) {
			if mine {
				n.R = rec{}
			}
			g.Said, g.Life, g.Launch = 1, 0, lNone
			n.leave(id)
		}, "says that it failed and gives the claim back")
	}
}

// processes are the ends that processes come to by themselves.
func (m *machine) processes(s *state, i int8) {
	g := &s.G[i]
	for run := range g.P {
		switch g.P[run] {
		case pHeld:
			if g.Keeper != kLives {
				n := *s
				n.G[i].P[run] = pNever
				m.emit(n, step, "held child %d of G%d sees end-of-file and ends", run, i)
			}
		case pTold:
			n := *s
			n.G[i].P[run] = pEnded
			m.emit(n, step, "process %d of G%d ends of SIGTERM", run, i)
		}
		if g.Direct == 3 && g.runs(int8(run)) && s.H[g.Host].St != hDead && s.Frozen != idHost+g.Host {
			n := *s
			n.G[i].P[run] = pCrashed
			m.emit(n, step, "H%d sends process %d of G%d SIGKILL after 5 s", g.Host, run, i)
		}
	}
}

// reaper is stop.go.
func (m *machine) reaper(s *state, i int8) {
	a := &s.A[i]
	id := idReaper + i
	watched := !m.run.Watch || s.H[0].St == hDead
	event := func(n *state, e reap.Event) reap.Step {
		st, step := m.t.Life(reap.State(n.A[i].St), e)
		n.A[i].St = int8(st)
		if st == reap.Done {
			n.A[i] = reaper{Dead: 1}
		}
		return step
	}
	switch reap.State(a.St) {
	case reap.Watching:
		if watched {
			n := *s
			event(&n, reap.HostGone)
			if event(&n, reap.GraceOver) == reap.StopAll {
				n.A[i].Aside = 1
			}
			m.emit(n, step, "reaper %d: its host is gone, the grace is over", i)
		}
		return
	case reap.Reaping:
	default:
		return
	}
	switch a.At {
	case rLook:
		n := *s
		if s.Gate != 0 {
			if !m.run.Late {
				return
			}
			f := reap.Facts{GateHeld: true, Last: a.Last == 1}
			if m.t.Reap(f) == reap.Later {
				n.A[i].More = 1
			}
			m.done(&n, i, event)
			m.emit(n, late, "reaper %d does not get the gate", i)
			return
		}
		m.reap(s, i, event)
	case rBegin:
		if m.fault(s) {
			n := *s
			n.Faults++
			n.leave(id)
			n.A[i].At, n.A[i].T, n.A[i].Run = rLook, 0, 0
			m.done(&n, i, event)
			m.emit(n, env, "reaper %d cannot set the record aside", i)
		}
		n := *s
		if a.Aside == 0 {
			n.RB, n.R = n.R, rec{}
		}
		n.A[i].Lock, n.A[i].At = 1, rSignal
		m.emit(n, step, "reaper %d sets G%d aside", i, a.T-1)
	case rSignal:
		n := *s
		n.A[i].At = rWait
		if a.Run > 0 {
			m.sigterm(&n, a.T, a.Run)
		} else if g := &n.G[a.T-1]; g.Keeper == kLives {
			g.Stop = 1
		}
		n.leave(id)
		m.emit(n, step, "reaper %d sends SIGTERM for G%d and leaves the gate", i, a.T-1)
	case rWait:
		g := &s.G[a.T-1]
		n := *s
		switch {
		case a.Run > 0 && g.alive(a.Run-1):
			n.sigkill(a.T, a.Run)
			m.emit(n, step, "reaper %d sends SIGKILL after 5 s", i)
		case a.Run == 0 && g.Keeper == kLives:
			m.endKeeper(&n, a.T-1)
			m.emit(n, step, "reaper %d sends the keeper of G%d SIGKILL after 5 s", i, a.T-1)
		default:
			n.A[i].At = rDone
			m.emit(n, step, "reaper %d sees the end of G%d", i, a.T-1)
		}
	case rDone:
		n := *s
		k := step
		if s.Gate != 0 {
			if !m.run.Late {
				return
			}
			k = late
		} else if n.RB.T == a.T {
			n.RB = rec{}
			m.sweep(&n)
		}
		n.A[i].Lock, n.A[i].At, n.A[i].T, n.A[i].Run = 0, rLook, 0, 0
		m.done(&n, i, event)
		m.emit(n, k, "reaper %d takes .reaping away", i)
	}
}

// done goes on to the next file, the next pass or the end.
func (m *machine) done(n *state, i int8, event func(*state, reap.Event) reap.Step) {
	a := &n.A[i]
	switch {
	case a.Aside == 1:
		a.Aside = 0
	case a.Last == 0 && a.More == 1:
		a.Aside, a.Last, a.More = 1, 1, 0
	default:
		event(n, reap.AllStopped)
	}
}

func (m *machine) reap(s *state, i int8, event func(*state, reap.Event) reap.Step) {
	a := &s.A[i]
	r := s.R
	f := reap.Facts{Last: a.Last == 1, SetAside: a.Aside == 1}
	if a.Aside == 1 {
		r = s.RB
		f.AtWork = answer(s.asideHeld())
	}
	if r.T > 0 {
		g := &s.G[r.T-1]
		f.Found = reap.Record
		switch {
		case r.Keeper == 0:
		case g.Keeper == kLives:
			f.Keeper = reap.KeeperSame
		default:
			f.Keeper = reap.KeeperOver
		}
		switch p := s.processOf(r); {
		case r.Run == 0:
			f.Target = reap.Unstarted
			f.Claim = answer(s.H[g.Host].St != hDead && (!m.run.Watch || g.Host != 0))
		case p == claim.Ours:
			f.Target = reap.Same
		case p == claim.Stranger:
			f.Target = reap.Stranger
		default:
			f.Target = reap.Over
		}
	}
	facts := []reap.Facts{f}
	if s.Hides < m.run.Hidden && r.T > 0 {
		hidden := f
		if r.Run == 0 {
			hidden.Claim = proc.Unknown
		} else {
			hidden.Target = reap.Unproven
		}
		facts = append(facts, hidden)
		if f.Keeper != reap.NoKeeper {
			hidden = f
			hidden.Keeper = reap.KeeperUnproven
			facts = append(facts, hidden)
		}
	}
	for j, f := range facts {
		n := *s
		me := &n.A[i]
		k := step
		if j > 0 {
			k = env
			n.Hides++
		}
		act := m.t.Reap(f)
		switch act {
		case reap.StopProcess, reap.StopKeeper:
			n.Gate, me.At = idReaper+i, rBegin
			me.T, me.Run = r.T, r.Run
			if act == reap.StopKeeper {
				me.Run = 0
				if f.Keeper != reap.KeeperSame {
					m.wrong = Unproven
				}
			} else if f.Target != reap.Same {
				m.wrong = Unproven
			}
		case reap.Drop:
			if a.Aside == 1 {
				n.RB = rec{}
			} else {
				n.R = rec{}
			}
			m.sweep(&n)
			m.done(&n, i, event)
		case reap.Later:
			me.More = 1
			m.done(&n, i, event)
		default:
			m.done(&n, i, event)
		}
		m.emit(n, k, "reaper %d looks at %s: %s", i, [2]string{"the record", ".reaping"}[a.Aside], act)
	}
}

// sweep takes away the life files of what is over, as a reaper does.
func (m *machine) sweep(n *state) {
	for i := range n.G {
		g := &n.G[i]
		if g.Life == 0 || n.R.T == int8(i)+1 || g.held() || g.Life > 1 && g.alive(g.Life-2) {
			continue
		}
		g.Life = 0
	}
}

// endKeeper is the end of a keeper, by itself or not.
func (m *machine) endKeeper(n *state, i int8) {
	n.G[i].Keeper = kOver
	n.leave(idKeeper + i)
}

// faults are what the world does to everybody.
func (m *machine) faults(s *state) {
	r := &m.run
	kill := s.Kills < r.Kills
	freeze := s.Freezes < r.Freezes && s.Frozen == 0
	stop := func(id int8, who string, i int8) {
		if freeze {
			n := *s
			n.Freezes++
			n.Frozen = id
			m.emit(n, env, "SIGSTOP for ever: %s %d", who, i)
		}
	}
	for i := range int8(len(r.Hosts)) {
		h := &s.H[i]
		if h.St == hDead {
			continue
		}
		busy := !h.final()
		started := h.St != hClaim || h.Taken+h.Removed > 0
		if h.St == hDown && !(s.R.T > 0 && s.owes(s.R.T-1) && s.G[s.R.T-1].Host == i) {
			started = false // its life or death means nothing to anybody
		}
		if kill && (started || r.Watch && i == 0) && s.Frozen != idHost+i {
			n := *s
			n.Kills++
			n.H[i] = host{St: hDead}
			n.leave(idHost + i)
			m.emit(n, env, "SIGKILL H%d", i)
		}
		if busy && started {
			stop(idHost+i, "H", i)
		}
		if s.Ends < r.Ends && s.Frozen != idHost+i {
			n := *s
			n.Ends++
			switch h.St {
			case hSpawn, hAwait, hRenew, hDirect, hGiveBack:
				n.H[i].St = hLeave
			case hBorn:
				n.H[i].St = hSettle
			case hCommit, hRemember, hSignal, hSweep:
				// Looked at again after the write: the claim goes in the same hold.
				continue
			default:
				continue
			}
			m.emit(n, env, "the thread of H%d ends", i)
		}
	}
	for i := range int8(maxSlots) {
		g := &s.G[i]
		if g.Used == 0 {
			continue
		}
		if g.Launch != lNone {
			if kill && s.Frozen != idLauncher+i {
				n := *s
				n.Kills++
				n.G[i].Launch = lNone
				n.leave(idLauncher + i)
				m.emit(n, env, "SIGKILL launcher of G%d", i)
			}
			stop(idLauncher+i, "launcher of G", i)
		}
		if g.Keeper == kLives {
			if kill && s.Frozen != idKeeper+i {
				n := *s
				n.Kills++
				m.endKeeper(&n, i)
				m.emit(n, env, "SIGKILL keeper of G%d", i)
			}
			if s.Stops < r.Stops {
				n := *s
				n.Stops++
				n.G[i].Stop = 1
				m.emit(n, env, "SIGTERM to the keeper of G%d", i)
			}
			stop(idKeeper+i, "keeper of G", i)
		}
		named := s.R.T == i+1 || s.RB.T == i+1
		if s.Reuses < r.Reuses && g.Keeper == kOver && named {
			n := *s
			n.Reuses++
			n.G[i].Keeper = kStranger
			m.emit(n, env, "a stranger gets the pid of the keeper of G%d", i)
		}
		for run := range g.P {
			switch p := g.P[run]; {
			case p == pRuns || p == pTold:
				if s.Crashes < r.Crashes {
					n := *s
					n.Crashes++
					n.G[i].P[run] = pCrashed
					m.emit(n, env, "process %d of G%d crashes", run, i)
					n.G[i].P[run] = pEnded
					m.emit(n, env, "process %d of G%d ends with 0", run, i)
				}
			case p >= pCrashed && p < pStranger && s.Reuses < r.Reuses && (g.Keeper != kLives || int(g.Cur) != run+1) && g.Direct != 2:
				n := *s
				n.Reuses++
				n.G[i].P[run] = pStranger
				m.emit(n, env, "a stranger gets the pid of process %d of G%d", run, i)
			}
		}
	}
	for i := range int8(r.Reapers) {
		a := &s.A[i]
		if a.Dead == 1 || a.St == int8(reap.Watching) {
			continue
		}
		if kill && s.Frozen != idReaper+i {
			n := *s
			n.Kills++
			n.A[i] = reaper{Dead: 1}
			n.leave(idReaper + i)
			m.emit(n, env, "SIGKILL reaper %d", i)
			if a.At != rSignal && s.Frozen != idReaper+i {
				n := *s
				n.Kills++
				st, what := m.t.Life(reap.State(a.St), reap.StopSignal)
				if what == reap.KillAndEnd && a.At == rWait && a.Run > 0 {
					n.sigkill(a.T, a.Run)
				}
				if st == reap.Done {
					n.A[i] = reaper{Dead: 1}
					n.leave(idReaper + i)
				}
				m.emit(n, env, "SIGTERM to reaper %d", i)
			}
		}
		stop(idReaper+i, "reaper ", i)
	}
}
