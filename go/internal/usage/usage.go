// Package usage says what a process costs. It decides nothing: gopsutil reports
// a hidden process as dead, a zombie as running, and takes start times from a
// clock that jumps, so only figures for people come from it, and no other
// package imports it.
package usage

import (
	"runtime"

	"github.com/shirou/gopsutil/v4/process"

	"processguard/go/internal/proc"
)

// Cost is what one process uses.
type Cost struct {
	RSSBytes uint64  `json:"rssBytes"`
	Threads  int32   `json:"threads"` // 0 where the platform does not tell
	CPUMs    float64 `json:"cpuMs"`   // user and system time since its start
	Children int     `json:"children"`
}

// Read measures a process; false when there is none or it cannot be read.
func Read(pid int) (Cost, bool) {
	if pid <= 0 || pid > 1<<31-1 {
		return Cost{}, false
	}
	p := &process.Process{Pid: int32(pid)}
	mem, err := p.MemoryInfo()
	if err != nil || mem == nil || mem.RSS == 0 {
		// A zombie and a kernel thread have no memory: nothing to report.
		return Cost{}, false
	}
	c := Cost{RSSBytes: mem.RSS}
	if n, err := p.NumThreads(); err == nil {
		c.Threads = n
	}
	if t, err := p.Times(); err == nil && t != nil {
		c.CPUMs = (t.User + t.System) * 1000
	}
	c.Children = children(p)
	return c, true
}

// children counts direct children. On Linux the kernel lists them; gopsutil
// would read the status of every process of the machine on the caller's thread.
func children(p *process.Process) int {
	if runtime.GOOS == "linux" {
		kids, err := proc.Children(int(p.Pid))
		if err != nil {
			return 0
		}
		return len(kids)
	}
	kids, err := p.Children()
	if err != nil {
		return 0
	}
	return len(kids)
}
