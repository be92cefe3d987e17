package guard

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"processguard/go/internal/proc"
)

// Children of the host are reaped by the event loop that spawned them. Two
// kinds have none: launchers whose thread ended before they did, and, where
// the host is pid 1 (or a subreaper), keepers and reapers that were handed to
// it. They would stay zombies for as long as the host lives.

// adopted reaps h's process once it is over, if it is ours by then. It takes
// the handle over. loopDone is closed when no event loop will reap it; nil:
// there never was one.
func adopted(h *proc.Handle, loopDone <-chan struct{}) {
	go func() {
		_ = protect("reaping a child", func() error {
			defer h.Close()
			if err := h.Wait(context.Background()); err != nil {
				return err
			}
			if loopDone != nil {
				ctx, cancel := context.WithCancel(context.Background())
				reaped := make(chan struct{})
				go func() {
					if h.Reaped(ctx) == nil {
						close(reaped)
					}
				}()
				select {
				case <-reaped:
					cancel()
					return nil
				case <-loopDone:
					cancel()
				}
			}
			reap(h)
			return nil
		})
	}()
}

// reap collects h if it is our child; elsewhere the kernel answers ECHILD and
// nothing happens. How it ended is kept for those who follow it: before Linux
// 6.15 nobody can read it any more.
func reap(h *proc.Handle) bool {
	id, err := h.ID()
	x, ok := h.Reap()
	if ok && err == nil {
		endings.Store(id, x)
		time.AfterFunc(endingKept, func() { endings.Delete(id) })
	}
	return ok
}

// endings are the statuses this host collected itself, by process identity.
var endings sync.Map

const endingKept = time.Minute

// owned are the pids that a session of this host has been told of by a spawn:
// nobody else's stray child.
var owned sync.Map

func own(pid int) {
	h, err := proc.Open(pid)
	if err != nil {
		return
	}
	owned.Store(pid, true)
	go func() {
		_ = protect("forgetting a child", func() error {
			defer h.Close()
			defer owned.Delete(pid)
			// Until its event loop has collected it: a zombie is still its own.
			return h.Reaped(context.Background())
		})
	}()
}

// spawning counts the spawns that JavaScript was asked for and has not
// answered. While it is 0, no event loop owns a child that we do not know.
var spawning atomic.Int64

// strays are zombies that look like a launcher of ours while another spawn is
// under way that may turn out to be their owner.
var strays struct {
	sync.Mutex
	list []*proc.Handle
}

// spawnEnded counts a spawn off and looks after the strays once none is left.
func spawnEnded() {
	if spawning.Add(-1) == 0 {
		sweepStrays()
	}
}

// sweepStrays reaps them while no spawn is under way that may own one.
func sweepStrays() {
	if spawning.Load() != 0 {
		return
	}
	strays.Lock()
	defer strays.Unlock()
	for _, h := range strays.list {
		if _, known := owned.Load(h.PID()); !known {
			h.Reap()
		}
		h.Close()
	}
	strays.list = nil
}

// adoptWhenOver makes an ending process a stray once it is over.
func adoptWhenOver(h *proc.Handle) {
	_ = protect("waiting for a stray", func() error {
		if err := h.Wait(context.Background()); err != nil {
			h.Close()
			return err
		}
		strays.Lock()
		strays.list = append(strays.list, h)
		strays.Unlock()
		sweepStrays()
		return nil
	})
}

// adoptStray finds the launcher of a spawn that a thread was asked for and did
// not live to report. Its command line carries the token.
func (s *session) adoptStray(token string, asked int64, exe string) {
	launchers := strayChildren(asked, func(argv []string) bool { return carries(argv, token) }, exe)
	for _, h := range launchers {
		s.adoptLaunched(h.PID(), asked)
		adopted(h, nil)
	}
	if len(launchers) == 0 && inheritsOrphans() {
		s.adoptInherited(asked)
	}
}

// adoptLaunched looks, once a launcher has ended, for the keeper or reaper that
// it left to this host. Whoever follows that one reaps it too, but a thread that
// ends in the middle of its start leaves nobody who does: under a node that is
// pid 1 it stayed a zombie.
func (s *session) adoptLaunched(launcher int, asked int64) {
	if !inheritsOrphans() {
		return
	}
	h, err := proc.Open(launcher)
	go func() {
		_ = protect("looking for what a launcher left", func() error {
			if err == nil {
				defer h.Close()
				if err := h.Wait(context.Background()); err != nil {
					return err
				}
			}
			s.adoptInherited(asked)
			return nil
		})
	}()
}

// adoptInherited finds the keepers and reapers that became children of this
// host. No event loop spawns those: launchers do.
func (s *session) adoptInherited(asked int64) {
	p := s.a.Paths
	for _, h := range strayChildren(asked, func(argv []string) bool {
		return len(argv) > 1 && (argv[0] == p.Keeper && argv[1] == "keep" || argv[0] == p.Reaper && argv[1] == "run")
	}, p.Keeper, p.Reaper) {
		reapAfter(h.PID(), 0)
		h.Close()
	}
}

// strayChildren are those children of this host whose command line is ours. A
// zombie has none left: one is reaped only if it bears the name of a program of
// our own and came after we asked, since a status taken from another's child is
// an exit event that its event loop never sees. One called node stays as it is.
func strayChildren(asked int64, ours func(argv []string) bool, exes ...string) (found []*proc.Handle) {
	kids, err := proc.Children(os.Getpid())
	if err != nil {
		return nil
	}
	for _, pid := range kids {
		h, err := proc.Open(pid)
		if err != nil {
			continue
		}
		argv, err := h.Argv()
		named := func(exe string) bool { return bearsName(pid, exe) }
		switch {
		case err == nil && ours(argv):
			found = append(found, h)
			continue
		case err != nil && slices.ContainsFunc(exes, named) && cameAfter(h, asked):
			// In the middle of its exit it has lost its command line and is not
			// over yet; closed here, it stayed a zombie in two of five loaded runs.
			go adoptWhenOver(h)
			continue
		}
		h.Close()
	}
	return found
}

func carries(argv []string, token string) bool {
	for i, a := range argv {
		if a == "--token" && i+1 < len(argv) && argv[i+1] == token {
			return true
		}
	}
	return false
}

// bearsName compares the name that the kernel keeps of a zombie.
func bearsName(pid int, exe string) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil || exe == "" {
		return false
	}
	base := exe[strings.LastIndexByte(exe, '/')+1:]
	if len(base) > 15 {
		base = base[:15]
	}
	return base == strings.TrimSuffix(string(text), "\n")
}

// cameAfter says whether a process started after a moment of the boot clock.
func cameAfter(h *proc.Handle, bootMs int64) bool {
	id, err := h.ID()
	if err != nil {
		return false
	}
	_, ticks, ok := strings.Cut(id.Started, ":")
	n, err := strconv.ParseInt(ticks, 10, 64)
	// Start times are kept in hundredths of a second, rounded down.
	return ok && err == nil && n*10 >= bootMs-10
}

// inheritsOrphans says whether processes whose parent died become children of
// this one: as pid 1 of its namespace, or as a subreaper.
var inheritsOrphans = sync.OnceValue(func() bool {
	if os.Getpid() == 1 {
		return true
	}
	var on int
	return subreaper(&on) && on != 0
})
