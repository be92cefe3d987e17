package claim

import (
	"strings"

	"processguard/go/internal/proc"
)

// row is one line of the table that people read.
type row struct {
	found string
	facts Facts
}

// rows are what a claimant can find, in the order of the decision.
func rows() []row {
	const yes, no, unknown = proc.Yes, proc.No, proc.Answer(proc.Unknown)
	named := func(p Process, keeper proc.Answer, same bool) Facts {
		return Facts{Found: Named, Process: p, Keeper: keeper, Life: keeper, SameConfig: same, SameVersion: same}
	}
	with := func(f Facts, change func(*Facts)) Facts {
		change(&f)
		return f
	}
	other := named(Ours, yes, false)
	return []row{
		{"no record of ours, `.reaping` there, its process and its reaper alive", Facts{Reaping: ReaperAtWork}},
		{"no record of ours, `.reaping` there, its process alive, its reaper dead", Facts{Reaping: ReaperDied}},
		{"no record of ours, `.reaping` there, its process cannot be identified", Facts{Reaping: ReapingHidden}},
		{"no record, and the keeper that this call waited for gave up", Facts{GaveUp: true}},
		{"no record", Facts{}},
		{"another user's file", Facts{Found: Foreign}},
		{"another pid namespace, life lock free", Facts{Found: Named, OtherNS: true, Life: no}},
		{"another pid namespace, life lock held", Facts{Found: Named, OtherNS: true, Life: yes}},
		{"another pid namespace, life lock cannot be asked for", Facts{Found: Named, OtherNS: true}},
		{"a pid file that is not ours, its pid dead", Facts{Found: Bare}},
		{"a pid file that is not ours, its pid alive", Facts{Found: Bare, Process: Hidden}},
		{"pid 0, younger than the claim timeout, its host alive", Facts{Found: Claimed, Young: true, Host: yes, Life: no}},
		{"pid 0, younger than the claim timeout, its host unknown", Facts{Found: Claimed, Young: true, Host: unknown, Life: no}},
		{"pid 0, younger than the claim timeout, its host dead, a launcher or keeper on the way", Facts{Found: Claimed, Young: true, Host: no, Life: yes}},
		{"pid 0, younger than the claim timeout, nobody left", Facts{Found: Claimed, Young: true, Host: no, Life: no}},
		{"pid 0, older than the claim timeout", Facts{Found: Claimed, Host: yes, Life: yes}},
		{"pid dead or something else, keeper alive, same version and argv", named(Dead, yes, true)},
		{"pid dead or something else, keeper unknown, same version and argv", named(Stranger, unknown, true)},
		{"pid dead, otherwise", named(Dead, yes, false)},
		{"pid cannot be identified", named(Hidden, yes, true)},
		{"pid runs something else, otherwise", named(Stranger, no, false)},
		{"match, same version and argv, exec not confirmed", with(named(Ours, yes, true), func(f *Facts) { f.Starting = true })},
		{"match, same version and argv", named(Ours, yes, true)},
		{"match, other version or argv, after a claim of ours was taken", with(other, func(f *Facts) { f.AfterTaken = true })},
		{"match, same version, other argv, without `stopOrphans`", with(other, func(f *Facts) { f.SameVersion = true })},
		{"match, other version or argv, with `stopOrphans`", with(other, func(f *Facts) { f.StopOrphans = true })},
		{"match, other version, without `stopOrphans`", other},
	}
}

// Table is the claim table as Markdown, for docs/.
func Table() string {
	var b strings.Builder
	b.WriteString("# The claim table\n\nGenerated from `go/internal/claim/decide.go` by `go run ./go/internal/claim/tabledoc`.\n\n" +
		"What a caller finds under the gate, and what it does about it; the first row that fits answers. *Budget spent* is\n" +
		"what remains when waiting did not help. *An older one of ours lives* is the answer when a process of exactly our version and\n" +
		"command line runs without the record: another configuration displaced it and it is put back instead of being started twice.\n" +
		"*May live* is the answer when such a process cannot be ruled out. An empty cell is the answer again.\n\n" +
		"| found | answer | budget spent | an older one of ours lives | may live | because |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, r := range rows() {
		d := Decide(r.facts)
		cell := func(change func(*Facts)) string {
			f := r.facts
			change(&f)
			if a := Decide(f).Action; a != d.Action {
				return a.String()
			}
			return ""
		}
		b.WriteString("| " + strings.Join([]string{
			r.found, d.Action.String(),
			cell(func(f *Facts) { f.Spent, f.LongSpent = true, true }),
			cell(func(f *Facts) { f.Older = OlderLives }),
			cell(func(f *Facts) { f.Older = OlderUnknown }),
			string(d.Why),
		}, " | ") + " |\n")
	}
	return b.String()
}
