package guard

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"processguard/go/internal/claim"
	"processguard/go/internal/exit"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/watch"
)

// following is one process that a thread watches.
type following struct {
	rec    *record.Record
	direct *child       // this thread spawned it itself; nil under a keeper
	handle *proc.Handle // nil when over
	keeper *proc.Handle // nil: none, or none that can be identified
	life   *os.File     // its keeper's last words; kept open so that they outlive the file
	over   bool         // it was dead when we came
	said   *record.Exit // what its keeper has said about that already
}

func (f *following) close() {
	for _, h := range []*proc.Handle{f.handle, f.keeper} {
		if h != nil {
			h.Close()
		}
	}
	if f.life != nil {
		f.life.Close()
	}
}

// follower opens what a record names; nil when that process is not there.
func (s *session) follower(rec *record.Record) *following {
	v, h := proc.Identify(rec.PID, rec.Want())
	if v != proc.Match {
		if h != nil {
			h.Close()
		}
		return nil
	}
	f := &following{rec: rec, handle: h}
	s.attachKeeper(f)
	return f
}

// attachKeeper opens what the keeper of f will speak through.
func (s *session) attachKeeper(f *following) {
	if f.life == nil {
		f.life, _ = record.OpenLife(s.dir, s.a.Name, f.rec.Token)
	}
	if f.rec.Keeper > 0 && f.keeper == nil {
		v, h := proc.Identify(f.rec.Keeper, proc.Want{Argv: f.rec.KeeperArgv})
		if v == proc.Differs && h != nil {
			h.Close()
			h = nil
		}
		f.keeper = h
		reapAfter(f.rec.Keeper, 0)
		reapAfter(f.rec.PID, f.rec.Keeper)
	}
}

// reaping remembers for which pids a goroutine of this host waits already.
var reaping sync.Map

// reapAfter makes sure that a keeper, or the process of a killed one, does not
// stay a zombie where they end up as children of this host. Anywhere else the
// attempt finds that it is not its child.
//
// A process that dies together with its keeper still has that one as its parent
// when it is over, and becomes ours only when the keeper has ended too.
func reapAfter(pid, parent int) {
	if !inheritsOrphans() {
		return
	}
	h, err := proc.Open(pid)
	if err != nil {
		return
	}
	id, err := h.ID()
	if err != nil {
		h.Close()
		return
	}
	if _, known := reaping.LoadOrStore(id, true); known {
		h.Close()
		return
	}
	var keeper *proc.Handle
	if parent > 0 {
		keeper, _ = proc.Open(parent)
	}
	go func() {
		_ = protect("reaping an orphan", func() error {
			defer reaping.Delete(id)
			defer h.Close()
			if err := h.Wait(context.Background()); err != nil {
				return err
			}
			done := reap(h)
			if keeper != nil {
				defer keeper.Close()
				if !done && keeper.Wait(context.Background()) == nil {
					reap(h)
				}
			}
			return nil
		})
	}()
}

// saying is a keeper's answer to a death, from the exit record or its last words.
type saying struct {
	pid      int // of the process it is about
	exit     proc.Exit
	known    bool // exit is a fact
	outcome  record.Outcome
	restarts int
	waitMs   int64
	err      string
}

// follow waits for the process to end, tells the thread, and answers. again
// means that the claim is to be entered once more.
func (s *session) follow(ctx context.Context, f *following) (again bool) {
	sub := s.hub.Subscribe(s.a.Name)
	defer sub.Close()
	for {
		if f.handle != nil && !f.over {
			kctx, cancel := context.WithCancel(ctx)
			go s.missKeeper(kctx, f)
			err := f.handle.Wait(ctx)
			cancel()
			if err != nil {
				return false
			}
		}
		if f.direct != nil {
			return s.answerDirect(ctx, f)
		}
		say, proof := s.hear(ctx, f, sub)
		if ctx.Err() != nil {
			return false
		}
		if say == nil {
			return s.answerWithoutKeeper(ctx, f)
		}
		changes := []pair{}
		if say.known {
			changes = append(changes, pair{"exitProof", proof}, pair{"code", codeOf(say.exit)}, pair{"signal", signalOf(say.exit)})
		}
		s.patch(append(changes, pair{"exited", true})...)
		next, again, done := s.answerKeeper(ctx, f, say, sub)
		if done {
			return again
		}
		f.close()
		*f = *next
	}
}

// missKeeper warns when a keeper ends and its process runs on: the operator
// would otherwise learn of it at the next crash.
func (s *session) missKeeper(ctx context.Context, f *following) {
	_ = protect("watching a keeper", func() error {
		keeper, process, pid := f.keeper, f.handle, f.rec.PID
		if keeper == nil || keeper.Wait(ctx) != nil {
			return nil
		}
		// A keeper that ends in order does it right after its process.
		t := time.NewTimer(slowKeeper)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if process.Alive() == proc.Yes {
			s.patch(pair{"keeper", nil})
			s.log("warn", "%s: its keeper (pid %d) is gone and pid %d runs on without one: only threads that watch it answer a crash, and its piped output is cut", s.a.Title, keeper.PID(), pid)
		}
		return nil
	})
}

// slowKeeper is how long a keeper may take to say what it reaped before the
// kernel's own answer is published. It is a deadline and no poll: the usual
// case is one event about a millisecond after the death, and only a keeper
// that is stopped or starved is slower.
const slowKeeper = 250 * time.Millisecond

// hear waits for the keeper's answer to the death of f's process. nil: the
// keeper is gone and left none.
func (s *session) hear(ctx context.Context, f *following, sub *watch.Sub) (*saying, string) {
	if f.said != nil {
		return fromExit(f.said), "keeper"
	}
	if f.life == nil {
		f.life, _ = record.OpenLife(s.dir, s.a.Name, f.rec.Token)
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keeperOver := make(chan struct{})
	s.watchKeeper(wctx, f, keeperOver)
	slow := time.NewTimer(slowKeeper)
	defer slow.Stop()
	kernel := make(chan proc.Exit, 1)
	last := false
	for {
		if say := s.said(f); say != nil {
			if say.pid == f.rec.PID {
				return say, "keeper"
			}
			// It has already answered a later death: how ours ended is the
			// kernel's word, what came of it is its own.
			say.exit, say.known = proc.Exit{}, false
			if f.handle != nil {
				say.exit, say.known = f.handle.Exit()
			}
			return say, "kernel"
		}
		if last {
			return nil, ""
		}
		select {
		case <-sub.C():
		case <-keeperOver:
			last = true // one more look: it may have spoken right before it ended
		case <-slow.C:
			if f.handle == nil {
				continue
			}
			go func() {
				if x, ok := f.handle.WaitExit(wctx); ok {
					kernel <- x
				}
			}()
		case x := <-kernel:
			s.patch(pair{"exitProof", "kernel"}, pair{"code", codeOf(x)}, pair{"signal", signalOf(x)}, pair{"exited", true})
		case <-ctx.Done():
			return nil, ""
		}
	}
}

// watchKeeper closes over when the keeper of f has ended. One that cannot be
// identified sends no event and is looked at again.
func (s *session) watchKeeper(ctx context.Context, f *following, over chan struct{}) {
	switch {
	case f.keeper != nil:
		go closeWhenOver(ctx, f.keeper, over)
	case f.rec.Keeper <= 0 || !s.keeperMayLive(f.rec):
		close(over)
	default:
		go func() {
			t := time.NewTicker(slowKeeper)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					if !s.keeperMayLive(f.rec) {
						close(over)
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
}

func (s *session) keeperMayLive(rec *record.Record) bool {
	v, h := proc.Identify(rec.Keeper, proc.Want{Argv: rec.KeeperArgv})
	if h != nil {
		h.Close()
	}
	return v != proc.Differs
}

// said is what the keeper has written since the process of f was named, nil if
// nothing. Last words come first: an exit record is one slot per name, and a
// later generation's must not be read as this one's.
//
// It may be about a later process: one that crashes every few milliseconds is
// restarted several times between two of our looks. (A thread that waited for
// the word about the very pid it knew waited for ever after 54 restarts.)
func (s *session) said(f *following) *saying {
	if f.life != nil {
		// Naming a process clears the words, so what is there came after it.
		if l, err := record.ReadLife(f.life); err == nil && l.Words != nil {
			return fromExit(wordsOf(l, f.rec.Token))
		}
	}
	x, err := record.ReadExit(s.dir, s.a.Name)
	if err == nil && x != nil && x.Token == f.rec.Token && (x.PID == f.rec.PID || x.Restarts > f.rec.Restarts) {
		return fromExit(x)
	}
	rec, err := record.Read(s.dir, s.a.Name)
	if err == nil && rec.Ours() && rec.Token == f.rec.Token && rec.PID > 0 && !sameProcess(rec, f.rec) {
		return &saying{pid: rec.PID, outcome: record.Restarting, restarts: rec.Restarts}
	}
	return nil
}

func fromExit(x *record.Exit) *saying {
	say := &saying{pid: x.PID, outcome: x.Outcome, restarts: x.Restarts, waitMs: x.WaitMs, err: x.Error}
	say.exit, say.known = toExit(x.Code, x.Signal)
	return say
}

func toExit(code *int, signal *string) (proc.Exit, bool) {
	switch {
	case signal != nil && *signal != "":
		return proc.Exit{Signal: exit.SignalNumber(*signal)}, true
	case code != nil:
		return proc.Exit{Code: *code}, true
	}
	return proc.Exit{}, false
}

func codeOf(x proc.Exit) any {
	if x.Signal != 0 {
		return nil
	}
	return x.Code
}

func signalOf(x proc.Exit) any {
	if x.Signal == 0 {
		return nil
	}
	return exit.SignalName(x.Signal)
}

// cause is an exit in words, with the caller's hint where it may help.
func (s *session) cause(x proc.Exit, known bool) string {
	switch {
	case !known:
		return "nobody could read how"
	case x.Signal != 0:
		return "signal " + exit.SignalName(x.Signal)
	}
	line := fmt.Sprintf("exit code %d", x.Code)
	if x.Code != 0 && s.a.ExitHint != "" {
		line += ": " + s.a.ExitHint
	}
	return line
}

func (s *session) deliberate(x proc.Exit) bool { return exit.Deliberate(x, s.codes()) }

func (s *session) codes() []int {
	if s.a.Deliberate == nil {
		return []int{0}
	}
	return s.a.Deliberate
}

// answerKeeper does what the keeper's decision asks of a watching thread. next
// is the process to follow now; done: there is none.
func (s *session) answerKeeper(ctx context.Context, f *following, say *saying, sub *watch.Sub) (next *following, again, done bool) {
	cause := s.cause(say.exit, say.known)
	if other := s.replacedBy(f); other != nil && (say.outcome == record.Restarting || say.outcome == record.Taken || say.outcome == record.Gone) {
		// Its keeper finds that out in its gate; a restart was never to come. It says
		// gone where the claim that took its record was given back before it looked.
		s.wasReplaced(other, cause)
		return nil, false, true
	}
	switch say.outcome {
	case record.Restarting:
		s.log("warn", "%s is gone (%s). Its keeper starts it again in %d ms, restart %d of %d", s.a.Title, cause, say.waitMs, say.restarts, s.restart().Max)
		return s.rejoin(ctx, f, say, sub)
	case record.Released:
		if say.err != "" {
			s.log("error", "%s: its lock could not be released: %s", s.a.Title, say.err)
		}
		s.patch(dropVerdict(nil)...)
		s.log("info", "%s was shut down (%s); not restarting it", s.a.Title, cause)
	case record.GaveUp:
		// A restart that ended before this thread looked counts all the same.
		s.patch(dropVerdict([]pair{{"restarts", say.restarts}})...)
		s.gaveUp(say.restarts+1, cause)
	case record.Failed:
		s.patch(dropVerdict(nil)...)
		why := say.err
		if why == "" {
			why = cause
		}
		s.fail("%s died (%s) and its keeper could not start it again: %s", s.a.Title, cause, why)
	case record.Taken:
		if say.known && !s.deliberate(say.exit) {
			return nil, s.byLock(ctx, f, say.exit, say.known, s.restarts), true
		}
		s.patch(dropVerdict(nil)...)
		s.log("warn", "%s was stopped (%s) by whatever now holds its lock", s.a.Title, cause)
	default: // gone
		return nil, s.byLock(ctx, f, say.exit, say.known, s.restarts), true
	}
	return nil, false, true
}

// wasReplaced tells the end of a process that another configuration replaced.
func (s *session) wasReplaced(other *record.Record, cause string) {
	s.patch(dropVerdict(nil)...)
	s.log("warn", "%s was replaced and has ended (%s): pid %d of another configuration (version %d, not %d) holds its lock; not restarting it", s.a.Title, cause, other.PID, other.Version, s.a.Version)
}

// replacedBy is the record that took the place of f's, if it is of another
// configuration and somebody stands behind it.
func (s *session) replacedBy(f *following) *record.Record {
	rec, err := record.Read(s.dir, s.a.Name)
	if err != nil || !rec.Ours() || rec.Token == f.rec.Token {
		return nil
	}
	if rec.Version == s.a.Version && record.SameArgv(rec.Argv, s.want) {
		return nil
	}
	if rec.PID == 0 {
		if hostAlive(rec.Host, rec.HostStarted) || rec.Keeper > 0 {
			return rec
		}
		return nil
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	if h != nil {
		defer h.Close()
	}
	if v == proc.Differs {
		return nil
	}
	return rec
}

// rejoin waits for the process that the keeper owes.
func (s *session) rejoin(ctx context.Context, f *following, say *saying, sub *watch.Sub) (next *following, again, done bool) {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keeperOver := make(chan struct{})
	s.watchKeeper(wctx, f, keeperOver)
	last := false
	for {
		rec, err := record.Read(s.dir, s.a.Name)
		mine := err == nil && rec.Ours() && rec.Token == f.rec.Token
		if mine && rec.PID > 0 && !sameProcess(rec, f.rec) && !rec.Starting {
			s.restarts = rec.Restarts
			next := s.follower(rec)
			if next == nil {
				next = &following{rec: rec, over: true}
				s.attachKeeper(next)
			}
			s.patch(pair{"code", nil}, pair{"signal", nil}, pair{"error", nil}, pair{"exitProof", nil}, pair{"restarts", rec.Restarts},
				pair{"keeper", keeperPID(rec)}, pair{"adopted", true}, pair{"started", true}, pair{"pid", rec.PID}, pair{"exited", false})
			s.log("info", "%s runs again under its keeper, as pid %d", s.a.Title, rec.PID)
			return next, false, false
		}
		// The keeper may decide once more without naming a process: a start
		// that failed, a stop during the pause, a record that was taken.
		if now := s.saidAfter(f, say); now != nil {
			return s.answerKeeper(ctx, f, now, sub)
		}
		if last || err == nil && !mine {
			if !mine && f.keeper != nil && !last {
				// Its word about that is on its way, or it ends without one.
				last = f.keeper.Alive() == proc.No
				if !last {
					goto wait
				}
				continue
			}
			return nil, s.byLock(ctx, f, say.exit, say.known, max(say.restarts-1, 0)), true
		}
	wait:
		select {
		case <-sub.C():
		case <-keeperOver:
			last, keeperOver = true, nil
		case <-ctx.Done():
			return nil, false, true
		}
	}
}

// sameProcess compares more than the pid: a restart may get the same one.
func sameProcess(a, b *record.Record) bool {
	return a.PID == b.PID && (a.Started == "" || b.Started == "" || a.Started == b.Started) && (a.Inode == 0 || b.Inode == 0 || a.Inode == b.Inode)
}

// saidAfter is a newer decision of the same keeper than say, nil if none.
func (s *session) saidAfter(f *following, say *saying) *saying {
	if f.life != nil {
		if l, err := record.ReadLife(f.life); err == nil && l.Words != nil && l.Words.Outcome != record.Restarting {
			return fromExit(wordsOf(l, f.rec.Token)).endingAs(say)
		}
	}
	x, err := record.ReadExit(s.dir, s.a.Name)
	if err != nil || x == nil || x.Token != f.rec.Token || x.Outcome == record.Restarting {
		return nil
	}
	return fromExit(x).endingAs(say)
}

// endingAs takes over how the process ended where a later word does not say.
func (now *saying) endingAs(earlier *saying) *saying {
	if !now.known {
		now.exit, now.known = earlier.exit, earlier.known
	}
	return now
}

// answerWithoutKeeper answers a death whose keeper is gone: by what the kernel
// can prove, and by nothing else.
func (s *session) answerWithoutKeeper(ctx context.Context, f *following) (again bool) {
	var x proc.Exit
	known := false
	if f.handle != nil {
		// Whoever inherited it reaps it now or soon; a parent that never does
		// leaves it readable as a zombie.
		id, _ := f.handle.ID()
		wctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		x, known = f.handle.WaitExit(wctx)
		cancel()
		if kept, ok := endings.Load(id); ok && !known {
			x, known = kept.(proc.Exit), true
		}
		x, known = withoutKeeper(f, x, known)
	}
	if ctx.Err() != nil {
		return false
	}
	if !known && f.rec.Keeper == 0 {
		// A host without keepers: the thread that spawned it heard its end or is
		// gone with it, and the record decides as it always did there.
		s.patch(pair{"exitProof", "none"}, pair{"exited", true})
		if s.stopAsked(f) {
			s.patch(dropVerdict(nil)...)
			s.log("info", "%s was stopped; not restarting it", s.a.Title)
			return false
		}
		return s.byLock(ctx, f, x, false, s.restarts)
	}
	if !known {
		s.patch(dropVerdict([]pair{{"exitProof", "none"}, {"exited", true}})...)
		s.fail("%s died with its keeper (pid %d) gone, so nobody could read how it ended; not restarting it. The next guard() starts it", s.a.Title, f.rec.Keeper)
		return false
	}
	s.patch(pair{"exitProof", "kernel"}, pair{"code", codeOf(x)}, pair{"signal", signalOf(x)}, pair{"exited", true})
	if s.deliberate(x) || s.stopAsked(f) {
		s.patch(dropVerdict(nil)...)
		if f.rec.Keeper == 0 {
			s.log("info", "%s was shut down (%s); not restarting it", s.a.Title, s.cause(x, true))
			return false
		}
		s.log("info", "%s was shut down (%s) after its keeper (pid %d) had gone; not restarting it", s.a.Title, s.cause(x, true), f.rec.Keeper)
		return false
	}
	return s.byLock(ctx, f, x, true, s.restarts)
}

// answerDirect answers the death of a process this thread spawned itself.
func (s *session) answerDirect(ctx context.Context, f *following) (again bool) {
	x, known := s.directExit(ctx, f)
	if ctx.Err() != nil {
		return false
	}
	changes := []pair{}
	if known {
		changes = append(changes, pair{"exitProof", "kernel"}, pair{"code", codeOf(x)}, pair{"signal", signalOf(x)})
	} else {
		changes = append(changes, pair{"exitProof", "none"})
	}
	s.patch(append(changes, pair{"exited", true})...)
	if !s.stopAsked(f) && (!known || !s.deliberate(x)) {
		if f.handle == nil {
			// No record names it, so nobody can see that it is dead.
			if _, err := s.giveBack(f.rec.Token); err != nil {
				s.log("warn", "the claim of %s could not be given back: %v", s.a.Title, err)
			}
		}
		return s.byLock(ctx, f, x, known, s.restarts)
	}
	cur, err := claim.Release(ctx, s.dir, s.a.Name, f.rec.Token)
	s.patch(dropVerdict(nil)...)
	switch {
	case err != nil:
		s.fail("the lock for %s could not be released after a deliberate stop: %v", s.a.Title, err)
	case cur != nil && cur.Token != f.rec.Token:
		s.log("warn", "%s was stopped (%s) by whatever now holds its lock", s.a.Title, s.cause(x, true))
		return false
	}
	s.log("info", "%s was shut down (%s); not restarting it", s.a.Title, s.cause(x, true))
	return false
}

// stopAsked says whether the process was stopped through stopProcess.
func (s *session) stopAsked(f *following) bool {
	rec, err := record.Read(s.dir, s.a.Name)
	return err == nil && rec.Ours() && rec.Token == f.rec.Token && rec.Stopping
}

// directExit is how a process ended that the event loop reaps: from the child
// object, or from the kernel where a wrapper hides it.
func (s *session) directExit(ctx context.Context, f *following) (proc.Exit, bool) {
	wctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	type result struct {
		x  proc.Exit
		ok bool
	}
	kernel := make(chan result, 1)
	if f.handle != nil {
		go func() {
			x, ok := f.handle.WaitExit(wctx)
			kernel <- result{x, ok}
		}()
	}
	for {
		select {
		case r := <-kernel:
			if r.ok || wctx.Err() != nil {
				return r.x, r.ok
			}
			kernel = nil
		case m := <-f.direct.answers:
			if m.T != "exit" {
				continue
			}
			if m.Signal != nil && *m.Signal != "" {
				return proc.Exit{Signal: exit.SignalNumber(*m.Signal)}, true
			}
			if code, ok := m.Code.(float64); ok {
				return proc.Exit{Code: int(code)}, true
			}
		case <-wctx.Done():
			return proc.Exit{}, false
		}
	}
}

// gaveUp says that no restart is left.
func (s *session) gaveUp(deaths int, cause string) {
	if deaths == 1 {
		s.fail("%s died 1 time (%s); not restarting it, since no restart is allowed", s.a.Title, cause)
		return
	}
	s.fail("%s died %d times (%s); not restarting it again", s.a.Title, deaths, cause)
}

// byLock goes back to the record after a crash that no keeper answers: the
// claim lets one of all the threads that saw it start the process again.
func (s *session) byLock(ctx context.Context, f *following, x proc.Exit, known bool, restarts int) (again bool) {
	cause := s.cause(x, known)
	if s.dir.Moved() {
		s.patch(dropVerdict(nil)...)
		s.fail("%s has ended (%s) because its pidDir %s was removed or replaced; not starting it. The next guard() makes the directory again", s.a.Title, cause, s.dir.Path())
		return false
	}
	if f.direct == nil {
		if rec, err := record.Read(s.dir, s.a.Name); err == nil && rec == nil && hostAlive(f.rec.Host, f.rec.HostStarted) {
			s.patch(dropVerdict(nil)...)
			s.log("info", "%s is gone (%s) and its lock with it, while host pid %d lives; not starting it", s.a.Title, cause, f.rec.Host)
			return false
		}
	}
	if other := s.replacedBy(f); other != nil {
		s.wasReplaced(other, cause)
		return false
	}
	r := s.restart()
	if restarts+1 > r.Max {
		s.patch(dropVerdict(nil)...)
		s.gaveUp(restarts+1, cause)
		return false
	}
	wait := time.Duration(r.WaitMs(restarts)) * time.Millisecond
	s.log("warn", "%s is gone (%s). Going back through the lock in %d ms, attempt %d of %d", s.a.Title, cause, wait.Milliseconds(), restarts+1, r.Max)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	s.restarts = restarts + 1
	// Whoever comes in the meantime with another configuration stays: a version
	// 2 that started while version 1 was dying was displaced by version 1 again.
	s.answering = true
	return true
}
