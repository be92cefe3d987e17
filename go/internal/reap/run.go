package reap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
	"processguard/go/internal/watch"
)

// Limits are how long a reaper is patient. Tests shorten them.
type Limits struct {
	Term     time.Duration // from SIGTERM to SIGKILL
	Kill     time.Duration // from SIGKILL to leaving what does not die of it
	Gate     time.Duration // for a gate at the first look
	LastGate time.Duration // for a gate at the last look, and where nothing is decided any more
	Look     time.Duration // between two looks at a replacement file that cannot be watched
}

// DefaultLimits are a reaper's own.
var DefaultLimits = Limits{
	Term:     5 * time.Second,
	Kill:     30 * time.Second,
	Gate:     time.Second,
	LastGate: 30 * time.Second,
	Look:     100 * time.Millisecond,
}

// Runner is one reaper at work.
type Runner struct {
	o      Options
	limits Limits
	log    Log
	clock  clock

	// act is held shared around everything that is written into pidDir, from
	// before a record is set aside until its signal is sent, and for good by
	// Stop: a record that is set aside is signalled.
	act   sync.RWMutex
	state State // under act held alone
	mu    sync.Mutex
	told  map[*proc.Handle]bool // processes that were sent SIGTERM and are not over yet, under mu
}

// New makes a runner. Relative paths mean what they mean now: a reaper leaves
// the directory it was started in, which would otherwise stay busy for months.
func New(o Options, limits Limits) *Runner {
	for _, path := range []*string{&o.PidDir, &o.SelfLock, &o.ReplacementPidFile, &o.Log} {
		if abs, err := filepath.Abs(*path); err == nil && *path != "" {
			*path = abs
		}
	}
	r := &Runner{o: o, limits: limits, log: Log{o.Log}, told: map[*proc.Handle]bool{}}
	r.clock.look()
	return r
}

// on takes one event through the table.
func (r *Runner) on(e Event) Step {
	next, step := Next(r.state, e)
	r.state = next
	return step
}

// Run sleeps until the host is gone and does what is to be done then. It
// returns when nothing is left to do, or after Stop.
func (r *Runner) Run() {
	host := r.openHost()
	r.log.say("watching pid %d; its locks are in %s", r.o.HostPID, r.o.PidDir)
	faultPoint("watching")
	if host != nil {
		r.outlive(host)
		host.Close()
	}
	event := HostGone
	for {
		r.act.Lock()
		step := r.on(event)
		r.act.Unlock()
		switch step {
		case AwaitHost:
			faultPoint("host-gone")
			r.clock.look()
			event = r.awaitReplacement()
		case StopAll:
			faultPoint("grace-over")
			event = r.stopAll()
		case LeaveAll:
			r.releaseOwn()
			return
		case Finish:
			r.releaseOwn()
			r.log.say("done.")
			return
		default:
			return
		}
	}
}

// Stop is the answer to SIGTERM and SIGINT, after which the process ends: one
// line, no write into pidDir. What was sent SIGTERM has no record any more and
// nobody else to finish it, so it gets SIGKILL through its handle.
func (r *Runner) Stop(signal string) {
	r.act.Lock() // for good: nothing is written or signalled any more
	r.mu.Lock()
	var killed []string
	if r.on(StopSignal) == KillAndEnd {
		for h := range r.told {
			if h.Alive() != proc.No && h.Signal(syscall.SIGKILL) == nil {
				killed = append(killed, strconv.Itoa(h.PID()))
			}
		}
	}
	if len(killed) == 0 {
		r.log.say("received %s, exiting", signal)
		return
	}
	r.log.say("received %s, exiting; sending SIGKILL to %s", signal, strings.Join(killed, ", "))
}

// openHost returns a handle of the host, nil when it is gone. The launcher's
// handle comes first: it was opened while the host was proven to be alive,
// and a pid may be somebody else's by the time a reaper has started.
func (r *Runner) openHost() *proc.Handle {
	if fd, err := strconv.Atoi(os.Getenv(spec.HostFD)); err == nil && fd > 2 {
		if h, err := proc.FromFile(os.NewFile(uintptr(fd), "host"), r.o.HostPID); err == nil {
			if h.Identify(proc.Want{Started: r.o.HostStarted}) != proc.Differs {
				return h
			}
			h.Close()
			return nil
		}
	}
	_ = os.Unsetenv(spec.HostFD)
	pause := pauses{first: 10 * time.Millisecond, most: time.Second}
	for said := false; ; said = true {
		v, h := proc.Identify(r.o.HostPID, proc.Want{Started: r.o.HostStarted})
		switch {
		case v == proc.Differs:
			if h != nil {
				h.Close()
			}
			return nil
		case h != nil:
			// Without a start time that both sides know, the pid has to do.
			return h
		}
		// No handle is to be had (descriptors, memory). There is no event for
		// the moment that this ends.
		if !said {
			r.log.say("cannot get hold of host pid %d yet; trying again", r.o.HostPID)
		}
		pause.wait(context.Background())
	}
}

// outlive returns when the host is dead. An error says nothing about the host.
func (r *Runner) outlive(host *proc.Handle) {
	pause := pauses{first: 10 * time.Millisecond, most: time.Second}
	for host.Wait(context.Background()) != nil && host.Alive() != proc.No {
		pause.wait(context.Background())
	}
}

// awaitReplacement waits out the grace for another host.
func (r *Runner) awaitReplacement() Event {
	file := hostFile{path: r.o.ReplacementPidFile, hostPID: r.o.HostPID, hostStarted: r.o.HostStarted, clock: &r.clock}
	if file.path == "" {
		r.log.say("host pid %d is gone; stopping its processes in %d ms", r.o.HostPID, r.o.Grace.Milliseconds())
	} else {
		r.log.say("host pid %d is gone; waiting %d ms for another one to write %s", r.o.HostPID, r.o.Grace.Milliseconds(), file.path)
	}
	deadline := time.NewTimer(r.o.Grace)
	defer deadline.Stop()
	changes := changesOf(file.path, r.limits.Look)
	defer changes.close()
	for over := false; ; {
		pid, counts := 0, proc.Answer(proc.No)
		if file.path != "" {
			pid, counts = file.replacement()
		}
		if counts == proc.Yes {
			r.log.say("host pid %d took over inside the grace window; everything is left to it", pid)
			return Replacement
		}
		if over {
			if counts == proc.Unknown {
				r.log.say("%s names pid %d, about which nothing can be told; it does not count", file.path, pid)
			}
			return GraceOver
		}
		select {
		case <-deadline.C:
			over = true // after a last look
		case <-changes.wake:
		case <-changes.gone:
			changes.gone = nil
			changes.lookEvery(r.limits.Look)
		case <-changes.timer():
		}
	}
}

// changes wakes when a file changed.
type changes struct {
	hub    *watch.Hub
	sub    *watch.Sub
	wake   <-chan struct{}
	gone   <-chan struct{}
	ticker *time.Ticker
}

// changesOf watches a pid file through its directory.
func changesOf(path string, every time.Duration) *changes {
	c := &changes{}
	if path == "" {
		return c
	}
	if name, ok := strings.CutSuffix(filepath.Base(path), lock.RecordSuffix); ok && name != "" {
		if hub, err := watch.For(filepath.Dir(path)); err == nil {
			c.hub, c.sub = hub, hub.Subscribe(name)
			c.wake, c.gone = c.sub.C(), hub.Gone()
			return c
		}
	}
	c.lookEvery(every)
	return c
}

// lookEvery looks by the clock, for a few seconds in all: the directory is not
// there yet, or its file is not called *.pid and so is not told of.
func (c *changes) lookEvery(d time.Duration) {
	if c.ticker == nil {
		c.ticker = time.NewTicker(d)
	}
}

func (c *changes) timer() <-chan time.Time {
	if c.ticker == nil {
		return nil
	}
	return c.ticker.C
}

func (c *changes) close() {
	if c.ticker != nil {
		c.ticker.Stop()
	}
	if c.hub != nil {
		c.sub.Close()
		c.hub.Release()
	}
}

// releaseOwn removes the reaper's own lock while it still names this reaper: a
// host that was guarded anew under another version has one of its own there.
func (r *Runner) releaseOwn() {
	faultPoint("own-lock")
	dir, name, ok := splitLock(r.o.SelfLock)
	if !ok {
		return
	}
	d, err := lock.OpenExisting(dir)
	if err != nil {
		if !missing(err) {
			r.log.say("could not release own lock: %v", err)
		}
		return
	}
	defer d.Close()
	if err := r.releaseIn(d, name); err != nil {
		r.log.say("could not release own lock: %v", err)
	}
}

func (r *Runner) releaseIn(d *lock.Dir, name string) error {
	g, err := r.gate(d, name, r.limits.LastGate)
	if err != nil {
		return err
	}
	defer g.Unlock()
	r.act.RLock()
	defer r.act.RUnlock()
	defer sweep(d, name)
	rec, err := record.Read(d, name)
	if err != nil || rec == nil {
		return err
	}
	self := proc.Self()
	if rec.PID != self.PID || rec.Started != "" && self.Started != "" && rec.Started != self.Started {
		r.log.say("own lock %s now names pid %d; left alone", d.Join(name+lock.RecordSuffix), rec.PID)
		return nil
	}
	return record.Remove(d, g, name)
}

// gate takes a gate. What the file system refuses for the moment is asked for
// again until the limit: the only reaper a node has must not give up because a
// directory could not be written for a second.
func (r *Runner) gate(d *lock.Dir, name string, limit time.Duration) (*lock.Gate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	pause := pauses{first: 10 * time.Millisecond, most: time.Second}
	for {
		g, err := d.Lock(ctx, name)
		var held *lock.HeldError
		var unfit *lock.UnfitError
		if err == nil || errors.As(err, &held) || errors.As(err, &unfit) || errors.Is(err, lock.ErrMoved) {
			return g, err
		}
		if !pause.wait(ctx) {
			return nil, fmt.Errorf("%w; given up after %d ms", err, limit.Milliseconds())
		}
	}
}

// pauses grow from first to most. They stand where nothing announces that it
// is worth trying again.
type pauses struct{ first, most time.Duration }

// wait is false when ctx ended first.
func (p *pauses) wait(ctx context.Context) bool {
	t := time.NewTimer(p.first)
	defer t.Stop()
	p.first = min(2*p.first, p.most)
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// missing is true for what proves that a directory is not there.
func missing(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
