package keep

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"processguard/go/internal/record"
)

// cells is the table a second time, written by hand from protocol sections 2,
// 5 and 7 and not printed from machine.go. Whatever is not here must be
// impossible.
const cells = `
New       Begin      > Claiming seek
New       BeginGrace > Grace    watchDir watchOrphan armGrace

Grace     OrphanGone > Claiming disarm seek
Grace     Timer      > Claiming seek
Grace     GraceSpent > Killing  killOrphan armKill
Grace     Stop       > Ending   disarm words seek =released
Grace     DirGone    > Draining disarm words drain =gone

Killing   OrphanGone > Claiming disarm seek
Killing   Timer      > Claiming seek
Killing   Stop       > Ending   disarm words seek =released
Killing   DirGone    > Draining disarm words drain =gone

Claiming  GateMine   > Forking  fork
Claiming  GateTaken  > Draining words finish leave drain =taken
Claiming  GateGone   > Draining words finish leave drain =gone
Claiming  Refused    > Draining words drain =failed
Claiming  Busy       > Backoff  armBackoff
Claiming  Stop       > Ending   words seek =released
Claiming  DirGone    > Draining unseek words drain =gone

Forking   Forked     > Held     name
Forking   Refused    > Draining words finish leave drain =failed
Forking   Busy       > Backoff  recordBusy leave armBackoff

Held      Written    > Named    letGo
Held      Refused    > Draining drop words finish leave drain =failed
Held      Busy       > Backoff  drop recordBusy leave armBackoff
Held      DirGone    > Draining drop leave words drain =gone

Named     Went       > Execing  leave
Named     Stop       > Draining drop words finish leave drain =released
Named     DirGone    > Draining drop leave words drain =gone

Execing   Ran        > Running   seek watchDir
Execing   Refused    > Ending    drop words seek =failed
Execing   Busy       > Recording drop words seek =restarting
Execing   Deliberate > Ending    words seek =released
Execing   Crash      > Recording words seek =restarting
Execing   LastCrash  > Ending    words seek =gave-up
Execing   Stop       > Stopping  forward
Execing   DirGone    > Evicting  evict armKill

Running   GateMine   > Running   confirm leave settle
Running   GateTaken  > Running   leave settle
Running   GateGone   > Running   leave settle
Running   GateFailed > Running   armRetry
Running   Unwritten  > Running   armRetry
Running   Timer      > Running   seek
Running   Deliberate > Ending    disarm words seek =released
Running   Crash      > Recording disarm words seek =restarting
Running   LastCrash  > Ending    disarm words seek =gave-up
Running   Stop       > Stopping  disarm forward
Running   DirGone    > Evicting  evict armKill

Stopping  GateMine   > Stopping  confirm leave
Stopping  GateTaken  > Stopping  leave
Stopping  GateGone   > Stopping  leave
Stopping  GateFailed > Stopping
Stopping  Unwritten  > Stopping
Stopping  Ran        > Stopping  seek watchDir
Stopping  Refused    > Ending    drop words seek =failed
Stopping  Busy       > Ending    drop words seek =released
Stopping  Deliberate > Ending    words seek =released
Stopping  Crash      > Ending    words seek =released
Stopping  LastCrash  > Ending    words seek =released
Stopping  Stop       > Stopping  forward
Stopping  DirGone    > Evicting  evict armKill

Evicting  GateMine   > Evicting  leave
Evicting  GateTaken  > Evicting  leave
Evicting  GateGone   > Evicting  leave
Evicting  GateFailed > Evicting
Evicting  Ran        > Evicting
Evicting  Refused    > Draining  disarm unseek drop words drain =gone
Evicting  Busy       > Draining  disarm unseek drop words drain =gone
Evicting  Timer      > Evicting  kill
Evicting  Deliberate > Draining  disarm unseek words drain =gone
Evicting  Crash      > Draining  disarm unseek words drain =gone
Evicting  LastCrash  > Draining  disarm unseek words drain =gone
Evicting  Stop       > Evicting  forward
Evicting  DirGone    > Evicting

Recording GateMine   > Backoff   recordCrash leave armBackoff
Recording GateTaken  > Draining  words finish leave drain =taken
Recording GateGone   > Draining  words finish leave drain =gone
Recording GateFailed > Backoff   armBackoff
Recording Stop       > Ending    words seek =released
Recording DirGone    > Draining unseek words drain =gone

Backoff   Timer      > Claiming  seek
Backoff   Stop       > Ending    disarm words seek =released
Backoff   DirGone    > Draining disarm words drain =gone

Ending    GateMine   > Draining  finish leave drain
Ending    GateTaken  > Draining  words finish leave drain =taken
Ending    GateGone   > Draining  words finish leave drain =gone
Ending    GateFailed > Draining  drain
Ending    Stop       > Ending
Ending    DirGone    > Draining  unseek drain

Draining  Drained    > Done      disarm
Draining  Timer      > Done
Draining  Stop       > Draining
Draining  DirGone    > Draining
`

func TestEveryCell(t *testing.T) {
	want := map[string]string{}
	for _, line := range strings.Split(cells, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			want[words[0]+" "+words[1]] = strings.Join(words[2:], " ")
		}
	}
	for s := range State(numStates) {
		for e := range Event(numEvents) {
			cell := s.String() + " " + e.String()
			step, ok := next(s, e)
			expected, listed := want[cell]
			delete(want, cell)
			if !listed {
				if ok {
					t.Errorf("%s: leads to %s, but cannot happen", cell, step.Next)
				} else if step.Next != s || len(step.Do) > 0 || step.Outcome != "" {
					t.Errorf("%s: cannot happen and yet does %v", cell, step)
				}
				continue
			}
			got := "> " + step.Next.String()
			if do := strings.ReplaceAll(actions(step), ",", ""); do != "" {
				got += " " + do
			}
			if step.Outcome != "" {
				got += " =" + string(step.Outcome)
			}
			if !ok || got != expected {
				t.Errorf("%s: %s, not %s", cell, got, expected)
			}
		}
	}
	for cell := range want {
		t.Errorf("%s: no such state or event", cell)
	}
}

// world is what the actions do to everything outside the table, coarse enough
// to be walked through completely.
type world struct {
	state    State
	gate     bool
	seeking  bool
	child    rune // ' ' none, 'h' held, 'g' let go, 'r' its exec happened
	named    bool // the record names the child
	stop     bool // a stop signal has come
	dir      bool // pidDir is gone
	orphan   bool // somebody waits for the orphan
	timer    bool
	worded   bool // the last words say what the end was called last
	outcome  record.Outcome
	pending  Event // the answer the last action owes, numEvents if none
	recorded bool  // this keeper has run or lost a process before
}

// TestNoWalkBreaksARule takes every way through the table that the loop can
// go and holds it against the rules of the protocol.
func TestNoWalkBreaksARule(t *testing.T) {
	start := world{state: New, child: ' ', pending: Event(numEvents)}
	from := map[world]string{start: ""}
	todo := []world{start}
	ends := map[record.Outcome]bool{}
	seen := map[string]bool{}
	for len(todo) > 0 && !t.Failed() {
		w := todo[0]
		todo = todo[1:]
		if w.state == Done {
			ends[w.outcome] = true
			if w.child != ' ' || w.gate {
				t.Fatalf("ends with child %q, gate %v:%s", w.child, w.gate, from[w])
			}
			continue
		}
		for _, e := range possible(w) {
			step, ok := next(w.state, e)
			path := from[w] + "\n\t" + w.state.String() + " " + e.String()
			if !ok {
				t.Fatalf("happened and is not in the table:%s", path)
			}
			seen[w.state.String()+" "+e.String()] = true
			for _, n := range apply(t, w, e, step, path) {
				if _, old := from[n]; !old {
					from[n] = path
					todo = append(todo, n)
				}
			}
		}
	}
	for _, o := range []record.Outcome{record.Released, record.GaveUp, record.Gone, record.Taken, record.Failed} {
		if !ends[o] {
			t.Errorf("no walk ends as %s", o)
		}
	}
	for s := range State(numStates) {
		for e := range Event(numEvents) {
			if _, ok := next(s, e); ok && !seen[s.String()+" "+e.String()] {
				t.Errorf("%s %s is in the table and never happens", s, e)
			}
		}
	}
	t.Logf("%d situations", len(from))
}

// possible is what can happen next. Answers of synchronous actions come before
// anything from outside, as in the loop.
func possible(w world) []Event {
	if int(w.pending) < numEvents {
		switch w.pending {
		case Forked:
			if w.recorded {
				return []Event{Forked, Busy, Refused}
			}
			return []Event{Forked, Refused}
		case Written:
			out := []Event{Written, Refused, DirGone}
			if w.recorded {
				out = append(out, Busy)
			}
			return out
		case Went:
			return []Event{Went, Stop, DirGone}
		}
		return []Event{w.pending}
	}
	if w.state == New {
		return []Event{Begin, BeginGrace}
	}
	out := []Event{Stop, DirGone}
	if w.orphan && (w.state == Grace || w.state == Killing) {
		out = append(out, OrphanGone)
	}
	if w.timer {
		out = append(out, Timer)
		if w.state == Grace {
			out = append(out, GraceSpent)
		}
	}
	if w.seeking {
		out = append(out, GateMine, GateTaken, GateGone)
		switch {
		case w.state == Claiming && w.recorded:
			out = append(out, Busy)
		case w.state == Claiming:
			out = append(out, Refused)
		default:
			out = append(out, GateFailed)
		}
	}
	switch w.child {
	case 'g':
		out = append(out, Ran, Refused, Deliberate, Crash, LastCrash)
		if w.recorded {
			out = append(out, Busy)
		}
	case 'r':
		out = append(out, Deliberate, Crash, LastCrash)
	}
	if w.state == Draining {
		out = append(out, Drained)
	}
	return out
}

func apply(t *testing.T, w world, e Event, step Step, path string) []world {
	t.Helper()
	fail := func(format string, args ...any) { t.Fatalf(fmt.Sprintf(format, args...)+":%s", path) }
	n := w
	n.pending = Event(numEvents)
	n.state = step.Next
	switch e {
	case GateMine, GateTaken, GateGone:
		n.seeking, n.gate = false, true
	case GateFailed:
		n.seeking = false
	case Stop:
		n.stop = true
	case DirGone:
		n.dir = true
	case OrphanGone:
		n.orphan = false
	case Timer, GraceSpent:
		n.timer = false
	case Ran:
		n.child, n.recorded = 'r', true
	case Deliberate, Crash, LastCrash:
		n.child, n.named, n.recorded = ' ', false, true
	case Refused, Busy:
		if w.state == Claiming {
			n.seeking = false
		}
	}
	if step.Outcome != "" && n.outcome != record.Failed && n.outcome != step.Outcome {
		n.outcome, n.worded = step.Outcome, false
	}
	out := []world{}
	for _, a := range step.Do {
		switch a {
		case fork:
			if !n.gate || e != GateMine || n.child != ' ' {
				fail("forks without a fresh look at its own record in this gate hold")
			}
			if n.stop || n.dir {
				fail("starts something after a stop or without its directory")
			}
			n.pending = Forked
		case name:
			if !n.gate {
				fail("writes the record outside the gate")
			}
			n.child, n.pending = 'h', Written
		case letGo:
			n.named = true
			if !n.gate || n.child != 'h' {
				fail("lets %q go, gate %v", n.child, n.gate)
			}
			n.pending = Went
		case drop:
			n.child, n.named = ' ', false
		case confirm:
			if !n.gate {
				fail("writes the record outside the gate")
			}
			m := n
			m.gate, m.pending = false, Unwritten
			out = append(out, m)
		case recordCrash, recordBusy, finish:
			if !n.gate {
				fail("%s outside the gate", a)
			}
			if n.child != ' ' {
				fail("%s while the child is %q", a, n.child)
			}
			if a == finish && !n.worded {
				fail("the files say the end and the last words do not")
			}
		case words:
			n.worded = true
		case seek:
			if n.gate {
				fail("waits for the gate it holds")
			}
			n.seeking = true
		case unseek:
			n.seeking = false
		case leave:
			if !n.gate {
				fail("leaves a gate it does not have")
			}
			n.gate = false
		case watchOrphan:
			n.orphan = true
		case armGrace, armKill, armBackoff, armRetry:
			n.timer = true
		case disarm:
			n.timer = false
		case forward, evict, kill:
			if n.child == ' ' {
				fail("%s without a process", a)
			}
		case drain:
			n.timer = true
		}
	}
	if e == Went {
		n.child = 'g'
	}
	if e == Went && !n.named {
		fail("user code runs and the record does not name it")
	}
	if n.gate && !slices.Contains([]State{Forking, Held, Named}, n.state) {
		fail("keeps the gate while it waits in %s", n.state)
	}
	if slices.Contains([]State{Claiming, Recording, Ending}, n.state) && !n.seeking {
		fail("waits in %s for a gate nobody asked for", n.state)
	}
	if slices.Contains([]State{Grace, Killing, Backoff, Draining}, n.state) && !n.timer {
		fail("waits in %s for a timer nobody set", n.state)
	}
	if slices.Contains([]State{Recording, Backoff, Ending, Draining, Done}, n.state) && n.child != ' ' {
		fail("is in %s with a child that is %q", n.state, n.child)
	}
	if n.state == Draining && !n.worded || n.outcome == record.Restarting && n.state == Draining {
		fail("ends and has not said how")
	}
	if n.state == Draining && n.seeking {
		fail("still wants the gate")
	}
	return append(out, n)
}

func TestTheTableInTheDocsIsThisOne(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "keeper-states.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Table() {
		t.Errorf("%s is old: go run ./go/internal/keep/tabledoc > docs/keeper-states.md", path)
	}
}
