package keep

import "strings"

// Next is the table's answer to an event; false: it cannot come in that state.
func Next(s State, e Event) (Step, bool) { return next(s, e) }

// Table is the state table as Markdown, for docs/.
func Table() string {
	var b strings.Builder
	b.WriteString("# The keeper's state table\n\n" +
		"Generated from `go/internal/keep/machine.go` by `go run ./go/internal/keep/tabledoc`.\n" +
		"What is not listed cannot happen in that state. *says* is what the end will be called\n" +
		"unless something later says otherwise; `failed` stays.\n")
	for s := range State(numStates) {
		if s == Done {
			continue
		}
		b.WriteString("\n## " + s.String() + "\n\n| event | next | does | says |\n| --- | --- | --- | --- |\n")
		for e := range Event(numEvents) {
			step, ok := next(s, e)
			if !ok {
				continue
			}
			b.WriteString("| " + e.String() + " | " + step.Next.String() + " | " + actions(step) + " | " + string(step.Outcome) + " |\n")
		}
	}
	return b.String()
}

func actions(s Step) string {
	names := make([]string, len(s.Do))
	for i, a := range s.Do {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}
