package model

var (
	v1  = Config{Version: 1}
	v2  = Config{Version: 2}
	v1b = Config{Version: 1, Argv: 1}
)

// Runs are the explorations that docs/model.md tells of: first those of
// `go test`, then (Long) those that are too large for it.
var Runs = []Run{
	{Name: "A1", Title: "v1 v1: 3 kills, 2 crashes", Hosts: []Config{v1, v1}, Kills: 3, Crashes: 2},
	{Name: "A2", Title: "v1 v1: budgets end, claims grow old, a thread ends, 1 kill, 1 crash", Hosts: []Config{v1, v1}, Late: true, Kills: 1, Crashes: 1, Ends: 1},
	{Name: "A3", Title: "v1 v1 v1: 2 kills, 1 crash, a thread ends", Hosts: []Config{v1, v1, v1}, Kills: 2, Crashes: 1, Ends: 1},
	{Name: "A4", Title: "v1 v1: 1 stopped for ever, 1 crash", Hosts: []Config{v1, v1}, Freezes: 1, Crashes: 1},
	{Name: "A5", Title: "v1 v1: 1 failing write, fork or exec, 1 kill, 1 crash", Hosts: []Config{v1, v1}, Faults: 1, Kills: 1, Crashes: 1},
	{Name: "A6", Title: "v1 v1: 1 pid reused, reaper, 1 kill, 1 crash", Hosts: []Config{v1, v1}, Reuses: 1, Kills: 1, Crashes: 1, Reapers: 1},
	{Name: "A7", Title: "v1 v1: a refused spawn that may have started something, then the direct one; 1 kill, 1 crash", Hosts: []Config{v1, v1}, Refused: 1, Direct: true, Kills: 1, Crashes: 1},
	{Name: "C1", Title: "v1 v2 v1: 1 kill, 1 crash", Hosts: []Config{v1, v2, v1}, Kills: 1, Crashes: 1},
	{Name: "C3", Title: "v1 v2 v1: stopOrphans, grace, SIGTERM ignored, 1 kill, 1 crash", Hosts: []Config{v1, v2, v1}, StopOrphans: true, Grace: true, Ignores: true, Kills: 1, Crashes: 1},
	{Name: "C4", Title: "v1 v2 v1: the same with SIGKILL after the grace, 1 crash", Hosts: []Config{v1, v2, v1}, StopOrphans: true, Grace: true, GraceKill: true, Ignores: true, Crashes: 1},
	{Name: "C5", Title: "v1 v1' v1: two command lines of one version, stopOrphans, 1 kill", Hosts: []Config{v1, v1b, v1}, StopOrphans: true, Kills: 1},
	{Name: "C6", Title: "v1 v2: 2 looks that cannot tell, stopOrphans, 1 pid reused, 1 crash", Hosts: []Config{v1, v2}, Hidden: 2, StopOrphans: true, Reuses: 1, Crashes: 1},
	{Name: "C7", Title: "v1 v1: 1 look that cannot tell, reaper", Hosts: []Config{v1, v1}, Hidden: 1, Reapers: 1},
	{Name: "R1", Title: "v1: two reapers, SIGTERM ignored, 2 kills", Hosts: []Config{v1}, Reapers: 2, Kills: 2, Ignores: true},
	{Name: "R2", Title: "v1 v1: reaper of the first host, 2 kills, 1 crash", Hosts: []Config{v1, v1}, Reapers: 1, Watch: true, Kills: 2, Crashes: 1},
	{Name: "R3", Title: "v1 v1: two reapers, SIGTERM ignored, 1 kill", Hosts: []Config{v1, v1}, Reapers: 2, Kills: 1, Ignores: true},
	{Name: "R4", Title: "v1: reaper, 1 stopped for ever, 1 kill, 1 crash", Hosts: []Config{v1}, Reapers: 1, Freezes: 1, Kills: 1, Crashes: 1},
	{Name: "A8", Title: "v1 v1: budgets end, claims grow old, a thread ends, 2 kills, 1 crash", Hosts: []Config{v1, v1}, Late: true, Kills: 2, Crashes: 1, Ends: 1},

	{Name: "A9", Long: true, Title: "v1 v1: 2 failing writes, budgets end, 1 kill, 1 crash", Hosts: []Config{v1, v1}, Faults: 2, Kills: 1, Crashes: 1, Late: true},
	{Name: "A10", Long: true, Title: "v1 v1: 2 pids reused, reaper, 2 kills, 2 crashes", Hosts: []Config{v1, v1}, Reuses: 2, Kills: 2, Crashes: 2, Reapers: 1},
	{Name: "C2", Long: true, Title: "v1 v2 v1: 1 failing write, 1 kill, 1 crash", Hosts: []Config{v1, v2, v1}, Faults: 1, Kills: 1, Crashes: 1},
	{Name: "B1", Long: true, Title: "v1 v2 v1: a thread ends, reaper, 1 kill", Hosts: []Config{v1, v2, v1}, Ends: 1, Reapers: 1, Kills: 1},
	{Name: "B2a", Long: true, Title: "v1 v2: stopOrphans, 1 stopped for ever, 1 crash", Hosts: []Config{v1, v2}, StopOrphans: true, Freezes: 1, Crashes: 1},
	{Name: "B2b", Long: true, Title: "v1 v2: stopOrphans, reaper, 1 kill", Hosts: []Config{v1, v2}, StopOrphans: true, Reapers: 1, Kills: 1},
	{Name: "B2c", Long: true, Title: "v1 v2 v1: stopOrphans, a thread ends, 1 kill", Hosts: []Config{v1, v2, v1}, StopOrphans: true, Ends: 1, Kills: 1},
}
