package hostpid

import "testing"

func TestStale(t *testing.T) {
	argv := Target{Name: "a", Argv: []string{"/bin/agent", "run"}}
	kept := Target{Name: "a", Argv: []string{"/bin/agent", "run"}, Lock: "/p/a.pid"}
	reaper := Target{Name: "r", Script: "/reaper.js", Lock: "/p/r.pid"}
	for name, c := range map[string]struct {
		f    Facts
		t    Target
		want bool
	}{
		"dead":                        {Facts{Found: Dead}, argv, false},
		"hidden":                      {Facts{Found: Hidden}, argv, false},
		"zombie":                      {Facts{Found: Zombie}, argv, true},
		"thread":                      {Facts{Found: Thread}, argv, true},
		"the process":                 {Facts{Running, []string{"/bin/agent", "run", "--more"}}, argv, false},
		"a stranger":                  {Facts{Running, []string{"/bin/sleep", "9"}}, argv, true},
		"its keeper":                  {Facts{Running, []string{"/x/keeper", "keep", "--lock", "/p/a.pid", "--token", "t"}}, kept, false},
		"its launcher":                {Facts{Running, []string{"node", "/x/launch.js", "keeper", "launch", "--lock", "/p/a.pid", "--token", "t"}}, kept, false},
		"another name's keeper":       {Facts{Running, []string{"/x/keeper", "keep", "--lock", "/p/a.pid.b.pid", "--token", "t"}}, kept, true},
		"the original's keeper":       {Facts{Running, []string{"node", "/x/keeper.js", "--keep", "--lock", "/p/a.pid"}}, kept, false},
		"the reaper":                  {Facts{Running, []string{"/x/reaper", "run", "--self-lock", "/p/r.pid"}}, reaper, false},
		"the reaper's launcher":       {Facts{Running, []string{"node", "/x/launch.js", "reaper", "launch", "--token", "t", "--self-lock", "/p/r.pid"}}, reaper, false},
		"another directory's reaper":  {Facts{Running, []string{"/x/reaper", "run", "--self-lock", "/q/r.pid"}}, reaper, true},
		"a reaper in one string":      {Facts{Running, []string{`C:\x\reaper.exe run --self-lock C:\p\r.pid --log z`}}, Target{Script: "/reaper.js", Lock: `C:\p\r.pid`}, false},
		"nothing known of the target": {Facts{Running, []string{"/bin/sleep"}}, Target{Name: "a"}, true},
	} {
		if got := Stale(c.f, c.t); got != c.want {
			t.Errorf("%s: stale %v", name, got)
		}
	}
}
