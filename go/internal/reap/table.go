package reap

import "strings"

// Table is both state tables as Markdown, for docs/.
func Table() string {
	var b strings.Builder
	b.WriteString("# Reaper: state tables\n\nGenerated from `go/internal/reap/machine.go` by `go run ./go/internal/reap/tabledoc`.\n\n")
	b.WriteString("## Life of a reaper\n\nEach cell: what is done, and the state after it. An empty cell changes nothing.\n\n")
	row(&b, "", eventNames[:])
	rule(&b, len(eventNames)+1)
	for s := range nStates {
		cells := make([]string, nEvents)
		for e := range nEvents {
			next, step := Next(s, e)
			if next != s || step != Stay {
				cells[e] = step.String() + " → **" + next.String() + "**"
			}
		}
		row(&b, "**"+s.String()+"**", cells)
	}
	b.WriteString("\n## One record\n\nDown the side the process that the record names, across the top its keeper, both read in one hold of the record's gate.\n\n")
	row(&b, "", keeperNames[:])
	rule(&b, len(keeperNames)+1)
	for t := range nTargets {
		cells := make([]string, nKeepers)
		for k := range nKeepers {
			cells[k] = Decide(Facts{Found: Record, Target: t, Keeper: k, Claim: 2}).String()
		}
		row(&b, "**"+t.String()+"**", cells)
	}
	b.WriteString("\nWhat comes back last and is no better then is left, with a line in the log.\n\n")
	b.WriteString("## Before that\n\nThe first row that fits answers.\n\n")
	row(&b, "found", []string{"answer"})
	rule(&b, 2)
	for _, r := range []struct {
		found string
		facts Facts
	}{
		{"the gate is held by somebody", Facts{GateHeld: true}},
		{Nothing.String(), Facts{Found: Nothing}},
		{Foreign.String(), Facts{Found: Foreign}},
		{Plain.String(), Facts{Found: Plain}},
		{Elsewhere.String(), Facts{Found: Elsewhere}},
		{Unreadable.String(), Facts{Found: Unreadable}},
		{Watchman.String(), Facts{Found: Watchman}},
		{"a `.reaping` file whose reaper works on it", Facts{Found: Record, SetAside: true, AtWork: 1}},
		{"a `.reaping` file whose reaper cannot be told", Facts{Found: Record, SetAside: true}},
		{"a `.reaping` file whose reaper is dead", Facts{Found: Record, SetAside: true, AtWork: 2, Target: nTargets}},
		{"pid 0, its claimant's host lives and is another one", Facts{Found: Record, Target: Unstarted, Claim: 1}},
		{"pid 0, its claimant's host cannot be told", Facts{Found: Record, Target: Unstarted}},
	} {
		answer := "as the table says, without setting it aside again"
		if r.facts.Target < nTargets {
			answer = Decide(r.facts).String()
		}
		row(&b, r.found, []string{answer})
	}
	return b.String()
}

func row(b *strings.Builder, head string, cells []string) {
	b.WriteString("| " + head + " | " + strings.Join(cells, " | ") + " |\n")
}

func rule(b *strings.Builder, columns int) {
	b.WriteString("|" + strings.Repeat(" --- |", columns) + "\n")
}
