package claim

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/watch"
)

// waiting is what a claimant sleeps on between two looks.
type waiting struct {
	handles []*proc.Handle
	timer   time.Duration

	stop    *proc.Handle // a process whose stop is being finished
	aside   *record.SetAside
	claimer *claimer
}

func (w *waiting) close() {
	for _, h := range w.handles {
		h.Close()
	}
}

// waiting keeps the handles whose death would change the decision.
func (s *scene) waiting(d Decision, c *claimer) *waiting {
	w := &waiting{timer: time.Hour}
	// keep is true if the death is still to come: a host or keeper that is
	// dead and not collected has a handle too, and announces nothing more.
	keep := func(h **proc.Handle) bool {
		if *h == nil || (*h).Alive() == proc.No {
			return false
		}
		w.handles = append(w.handles, *h)
		*h = nil
		return true
	}
	switch d.Why {
	case WhyClaimInFlight:
		host, keeper := keep(&s.host), keep(&s.keeper)
		if !host && !keeper {
			w.timer = relook // the life lock alone says that somebody is on the way
		}
		if s.facts.Young && s.ageLeft < w.timer {
			w.timer = s.ageLeft + time.Millisecond
		}
	case WhyRestartOwed, WhyStarting:
		keep(&s.process)
		if !keep(&s.keeper) {
			w.timer = relook
		}
	case WhyReaperAtWork, WhyReapingHidden:
		keep(&s.reaped)
		w.timer = relook // a reaper's lock is released without an event
	case WhyHidden, WhyOlderUnknown:
		keep(&s.process)
		w.timer = relook // what cannot be read announces nothing
	}
	return w
}

// forChange sleeps until something may have changed.
func (w *waiting) forChange(ctx context.Context, sub *watch.Sub, atMost time.Duration) error {
	if w.stop != nil {
		return w.finish(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{}, len(w.handles))
	for _, h := range w.handles {
		go func() {
			if h.Wait(ctx) == nil {
				ended <- struct{}{}
			}
		}()
	}
	t := time.NewTimer(min(w.timer, atMost))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-sub.C():
	case <-ended:
	case <-t.C:
	}
	return nil
}

// finish waits for a process that was told to stop, kills it when it does not,
// and takes the `.reaping` file away. If it does not come to that, the file's
// lock goes back: kept, it would say that a reaper is at work for as long as
// this host lives.
func (w *waiting) finish(ctx context.Context) error {
	defer w.stop.Close()
	err := w.over(ctx)
	if err != nil {
		w.aside.Leave()
		return err
	}
	g, err := w.claimer.gate(ctx)
	if err != nil {
		w.aside.Leave()
		return err
	}
	defer g.Unlock()
	return w.aside.Done()
}

func (w *waiting) over(ctx context.Context) error {
	for _, last := range []bool{false, true} {
		patient, cancel := context.WithTimeout(ctx, stopPatience)
		err := w.stop.Wait(patient)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !last {
			_ = w.stop.Signal(syscall.SIGKILL)
		}
	}
	return &RefusedError{Why: WhyReaperDied, Text: fmt.Sprintf("pid %d, which a reaper that died had begun to stop, was sent SIGTERM and SIGKILL and is still there%s; not started: end that process", w.stop.PID(), state(w.stop))}
}

func (c *claimer) noteTaking(s *scene, d Decision) {
	switch d.Why {
	case WhyDead:
		c.notes.add("reclaimed the lock from pid %d, which is not running any more", s.rec.PID)
	case WhyBareDead:
		c.notes.add("replaced a pid file that is not ours; pid %d, which it named, is not running", s.rec.PID)
	case WhyClaimOver:
		c.notes.add("took over an unfinished claim of host pid %d", s.rec.Host)
	case WhyStranger:
		c.notes.add("reclaimed the lock from pid %d, which is running something else; it was left alone", s.rec.PID)
	case WhyOtherNS:
		c.notes.add("took over a lock written in another pid namespace (pid %d there); no keeper of it is alive, and a process without one cannot be seen from here", s.rec.PID)
	case WhyOrphan:
		c.noteOrphan(s, d.Action == StopOrphan)
	}
}

func (c *claimer) noteOrphan(s *scene, stopped bool) {
	drift := fmt.Sprintf("version %d, not %d", s.rec.Version, c.q.Version)
	if s.rec.Version == c.q.Version {
		drift = "started as " + otherwise(s.rec.Argv, c.q.Argv)
	}
	if stopped && c.q.GraceMs > 0 {
		then := "starts beside it then"
		if c.q.GraceKill {
			then = "sends it SIGKILL then"
		}
		c.notes.add("pid %d is an orphan of an earlier configuration (%s). It was sent SIGTERM; the replacement waits up to %d ms for its end, and %s", s.rec.PID, drift, c.q.GraceMs, then)
		return
	}
	if stopped {
		c.notes.add("pid %d is an orphan of an earlier configuration (%s). It was sent SIGTERM; nothing chases it if it ignores the signal", s.rec.PID, drift)
		return
	}
	c.notes.add("pid %d is an orphan of an earlier configuration (%s). It was left running, and nothing supervises it under this lock", s.rec.PID, drift)
}

// otherwise says how a command line differs from ours and quotes no argument:
// those may be secrets, and what is said here ends up in logs.
func otherwise(is, ours []string) string {
	n := 0
	for n < len(is) && n < len(ours) && is[n] == ours[n] {
		n++
	}
	if n == 0 {
		return fmt.Sprintf("%q, not %q", is[0], ours[0])
	}
	return fmt.Sprintf("%q with other arguments, from number %d on", is[0], n)
}

func state(h *proc.Handle) string {
	if h == nil {
		return ""
	}
	st, err := h.State()
	if err != nil {
		return ""
	}
	return " (" + st.String() + ")"
}

func (c *claimer) refusal(d Decision, s *scene) error {
	path := c.q.Dir.Join(c.q.Name + ".pid")
	var text string
	switch d.Why {
	case WhyReaperAtWork:
		text = fmt.Sprintf("a reaper is still stopping pid %d of %s; not started: wait for it or end that process", s.reaping.PID, path)
	case WhyReapingHidden:
		text = fmt.Sprintf("pid %d, which a reaper had begun to stop, could not be identified inside the claim budget of %d ms; not started and not signalled: give this process the right to read /proc/%d, or end that process and remove %s", s.reaping.PID, c.q.Budget.Milliseconds(), s.reaping.PID, c.q.Dir.Join(c.q.Name+lock.ReapingSuffix))
	case WhyHidden:
		text = fmt.Sprintf("pid %d in %s could not be identified inside the claim budget of %d ms; not started and not signalled: give this process the right to read /proc/%d, or end that process and remove the file", s.rec.PID, path, c.q.Budget.Milliseconds(), s.rec.PID)
	case WhyOlderUnknown:
		text = fmt.Sprintf("an earlier generation of %s may still run and could not be identified inside the claim budget of %d ms; not started: look into the files %s*", path, c.q.Budget.Milliseconds(), c.q.Dir.Join(c.q.Name+".pid.keeper."))
	case WhyOtherNSHeld:
		text = fmt.Sprintf("%s belongs to another pid namespace (another container) whose keeper is alive; not started: give each container a pidDir of its own, or stop the process there", path)
	case WhyBareAlive:
		text = fmt.Sprintf("%s is not ours and names pid %d, which is alive; not started and not signalled: use another pidDir or name, or remove the file", path, s.rec.PID)
	case WhyClaimInFlight:
		text = fmt.Sprintf("claim in %s by host pid %d%s stays unfinished; not started: end that host or remove the file", path, s.rec.Host, state(s.host))
	case WhyRestartOwed:
		text = fmt.Sprintf("pid %d in %s is dead and its keeper pid %d%s has not started it again inside the claim budget of %d ms; not started: let the keeper go on (kill -CONT %d) or end it", s.rec.PID, path, s.rec.Keeper, state(s.keeper), c.q.Budget.Milliseconds(), s.rec.Keeper)
	case WhyStarting:
		text = fmt.Sprintf("pid %d in %s is being started by keeper pid %d%s and has not confirmed it inside the claim budget of %d ms; not started: let the keeper go on (kill -CONT %d) or end it", s.rec.PID, path, s.rec.Keeper, state(s.keeper), c.q.Budget.Milliseconds(), s.rec.Keeper)
	case WhyGaveUp:
		text = fmt.Sprintf("its keeper gave up after %d restarts while this call waited; not started: the next guard() begins anew", s.gaveUp.Restarts)
	case WhyNameInUse:
		text = fmt.Sprintf("the name %s is in use in %s: pid %d of the same version runs %s under it; not started and not signalled: give one of the two another name or pidDir, or pass stopOrphans to replace it", c.q.Name, c.q.Dir.Path(), s.rec.PID, otherwise(s.rec.Argv, c.q.Argv))
	case WhyTurns:
		text = fmt.Sprintf("our claim on %s was taken, and pid %d of another configuration (version %d, not %d) runs under it now; not started, so that two configurations do not take turns", path, s.rec.PID, s.rec.Version, c.q.Version)
	default:
		text = fmt.Sprintf("%s: %s; not started", path, d.Why)
	}
	return &RefusedError{Why: d.Why, Text: text}
}
