//go:build linux || windows

package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"processguard/go/internal/exit"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

const (
	// killAfter is how long a process whose directory is gone has to end.
	killAfter = 5 * time.Second
	// drainFor is the last moment of relayed output.
	drainFor = time.Second
)

// keeper performs the actions of the table. One goroutine owns it; the others
// only wait for something and put what is to be done about it into the inbox.
type keeper struct {
	spec   *spec.Spec
	exe    string
	argv   []string // our own command line, for the record
	env    []string
	dir    *lock.Dir
	life   *os.File
	entry  record.Life
	relays *relays

	stops chan os.Signal
	inbox chan func() (Event, bool)
	queue []Event // answers of actions that did not wait
	timer *time.Timer

	state   State
	outcome record.Outcome
	signal  syscall.Signal // the stop signal being handled

	seeking bool
	unseek  context.CancelFunc
	gate    *lock.Gate
	rec     *record.Record // read in this gate hold

	orphan *proc.Handle
	child  *child
	last   *death // of the last run
	lastID proc.ID
	first  bool // no process was started yet
	ran    bool // the last child got to its exec
	failed error
	count  count
	due    time.Time // when the back-off is over
	wait   time.Duration
	retry  time.Duration
	dirSet bool

	platform
}

// child is one held child, which becomes one run of the process.
type child struct {
	handle  *proc.Handle
	id      proc.ID
	ready   bool // its exec was the next thing
	since   time.Time
	unheard error // why it could not be told to go

	held // what the system holds it by
}

func keep(argv []string, s *spec.Spec, stops chan os.Signal) (code int) {
	// Only hold needs the main thread; here every event would wake two.
	runtime.UnlockOSThread()
	// A stack trace on the process's stderr helps nobody. What runs stays
	// running and is found by its record, as if this keeper had been killed.
	defer func() {
		if recover() != nil {
			code = exitFailed
		}
	}()
	k := &keeper{
		spec: s, exe: argv[0], argv: argv, stops: stops,
		inbox: make(chan func() (Event, bool), 8),
		timer: time.NewTimer(time.Hour), first: true,
		count: count{used: s.Restarts}, entry: lifeEntry(s),
	}
	k.timer.Stop()
	if err := k.open(); err != nil {
		return sayUsage(err)
	}
	faultPoint("keep-begin")
	k.begin()
	for k.state != Done {
		k.step(k.next())
	}
	faultPoint("keep-end")
	if k.outcome == record.Failed {
		return exitFailed
	}
	return exitOK
}

func (k *keeper) begin() {
	if o := k.spec.Orphan; o != nil && k.spec.GraceMs > 0 {
		faultPoint("keep-grace")
		verdict, h := proc.Identify(o.PID, proc.Want{Started: o.Started, Inode: o.Inode})
		switch {
		case verdict == proc.Differs:
			if h != nil {
				h.Close()
			}
		default:
			// Unknown is waited for and never killed.
			k.orphan = h
			k.spec.GraceKill = k.spec.GraceKill && verdict == proc.Match && h != nil
			k.step(BeginGrace)
			return
		}
	}
	k.step(Begin)
}

// next waits for the next event. What actions answered comes first: the gate
// is held while such an answer is due.
func (k *keeper) next() Event {
	for {
		if len(k.queue) > 0 {
			e := k.queue[0]
			k.queue = k.queue[1:]
			return e
		}
		select {
		case sig := <-k.stops:
			k.signal, _ = sig.(syscall.Signal)
			return Stop
		case tell := <-k.inbox:
			if e, ok := tell(); ok {
				return e
			}
		case <-k.timer.C:
			switch {
			case k.state == Grace && k.spec.GraceKill:
				return GraceSpent
			case k.state == Backoff:
				faultPoint("keep-backoff-over")
			}
			return Timer
		}
	}
}

func (k *keeper) step(e Event) {
	s, ok := next(k.state, e)
	if !ok {
		return
	}
	k.state = s.Next
	if s.Outcome != "" && k.outcome != record.Failed {
		k.outcome = s.Outcome
	}
	for _, a := range s.Do {
		k.do(a)
	}
}

func (k *keeper) answer(e Event) { k.queue = append(k.queue, e) }

func (k *keeper) do(a Action) {
	switch a {
	case watchOrphan:
		k.watchOrphan()
	case killOrphan:
		_ = k.orphan.Signal(syscall.SIGKILL)
	case watchDir:
		k.watchDir()
	case armGrace:
		k.timer.Reset(ms(k.spec.GraceMs))
	case armKill:
		k.timer.Reset(killAfter)
	case armBackoff:
		faultPoint("keep-backoff")
		k.timer.Reset(max(time.Until(k.due), 0))
	case armRetry:
		k.retry = min(max(2*k.retry, time.Second), time.Minute)
		k.timer.Reset(k.retry)
	case disarm:
		k.timer.Stop()
	case seek:
		k.seek()
	case unseek:
		if k.seeking {
			k.seeking = false
			k.unseek()
		}
	case leave:
		k.gate.Unlock()
		k.gate, k.rec = nil, nil
		if k.state == Execing {
			faultPoint("keep-left")
		}
	case fork:
		k.answer(k.fork())
	case name:
		k.answer(k.name())
	case letGo:
		k.answer(k.letGo())
	case drop:
		k.drop()
	case confirm:
		k.confirm()
	case settle:
		k.settle()
	case forward:
		if k.child != nil {
			k.child.tell(k.signal)
		}
	case evict:
		if k.child != nil {
			k.child.tell(syscall.SIGTERM)
		}
	case kill:
		if k.child != nil {
			k.child.kill()
		}
	case words:
		k.words()
	case recordCrash:
		k.recordCrash()
	case recordBusy:
		_ = record.WriteExit(k.dir, k.gate, k.spec.Name, k.exitRecord())
	case finish:
		k.finish()
	case drain:
		k.drain()
	}
}

// seek asks for the gate without a limit: a keeper that gave up waiting would
// leave a process nobody answers for.
func (k *keeper) seek() {
	if k.seeking {
		return
	}
	k.seeking = true
	ctx, cancel := context.WithCancel(context.Background())
	k.unseek = cancel
	go func() {
		g, err := k.dir.Lock(ctx, k.spec.Name)
		k.inbox <- func() (Event, bool) {
			if ctx.Err() != nil {
				g.Unlock()
				return 0, false
			}
			k.seeking = false
			return k.gateAnswer(g, err), true
		}
	}()
}

// gateAnswer reads the record in the new gate hold.
func (k *keeper) gateAnswer(g *lock.Gate, err error) Event {
	var rec *record.Record
	if err == nil {
		rec, err = record.Read(k.dir, k.spec.Name)
	}
	var foreign *record.ForeignError
	switch {
	case errors.As(err, &foreign):
		k.gate = g
		return GateTaken
	case err != nil:
		g.Unlock()
		if k.state != Claiming {
			return GateFailed
		}
		if k.dir.Moved() {
			return DirGone
		}
		return k.startFailed(&startError{stage: stageName, err: err, file: k.spec.File})
	}
	k.gate = g
	switch {
	case rec == nil:
		return GateGone
	case rec.Token != k.spec.Token:
		return GateTaken
	}
	k.rec = rec
	switch k.state {
	case Claiming:
		faultPoint("keep-gate")
	case Recording:
		faultPoint("keep-crash-gate")
	case Ending:
		faultPoint("keep-end-gate")
	}
	return GateMine
}

// fork makes a child that is held before its exec.
func (k *keeper) fork() Event {
	c, err := k.hold()
	var failed *startError
	if errors.As(err, &failed) {
		return k.startFailed(failed)
	}
	if err != nil {
		return k.startFailed(&startError{stage: stageFork, err: err, file: k.spec.File})
	}
	k.child, k.ran = c, false
	faultPoint("keep-forked")
	return Forked
}

// name puts the child into the life file and the record. Until both say so it
// is held.
func (k *keeper) name() Event {
	c := k.child
	k.entry.PID, k.entry.Started, k.entry.Inode = c.id.PID, c.id.Started, c.id.Inode
	k.entry.Restarts, k.entry.Words = k.count.used, nil
	err := record.WriteLife(k.life, k.entry)
	faultPoint("keep-life-written")
	if err == nil {
		r := k.rec
		r.PID, r.Started, r.Inode, r.NS = c.id.PID, c.id.Started, c.id.Inode, c.id.NS
		r.Keeper, r.KeeperArgv = os.Getpid(), k.argv
		r.Starting, r.Restarts, r.Launcher = true, k.count.used, 0
		err = record.Write(k.dir, k.gate, k.spec.Name, r)
	}
	if err != nil {
		if k.dir.Moved() {
			return DirGone
		}
		return k.startFailed(&startError{stage: stageName, err: err, file: k.spec.File})
	}
	faultPoint("keep-named")
	return Written
}

// letGo lets the child exec, unless somebody wants it stopped by now.
func (k *keeper) letGo() Event {
	if k.first {
		spareThreads(3) // the child's own start takes longer
	}
	if stopUnderWay() {
		k.signal, _ = (<-k.stops).(syscall.Signal)
		return Stop
	}
	flushStops()
	select {
	case sig := <-k.stops:
		k.signal, _ = sig.(syscall.Signal)
		return Stop
	default:
	}
	if k.dir.Moved() {
		return DirGone
	}
	c := k.child
	c.since = time.Now()
	c.letGo()
	faultPoint("keep-went")
	go k.follow(c)
	return Went
}

// died collects the child. It was not collected before this, so its pid and
// its group were its own until now.
func (k *keeper) died(c *child) (Event, bool) {
	if k.child != c {
		return 0, false
	}
	faultPoint("keep-died")
	now := time.Now()
	d := death{ran: now.Sub(c.since)}
	if d.exit, d.known = c.handle.Reap(); !d.known {
		d.exit, d.known = c.handle.Exit()
	}
	faultPoint("keep-reaped")
	c.close()
	k.child, k.last, k.lastID = nil, &d, c.id
	if !c.ready && d.exit.Signal == 0 {
		// Not the process's exit code: ours, from before it was the process.
		k.last = nil
		if c.unheard != nil {
			return k.startFailed(&startError{stage: stageFork, err: fmt.Errorf("the held child could not be told to go: %w", c.unheard), file: k.spec.File}), true
		}
		return k.startFailed(&startError{stage: stageEnded, err: fmt.Errorf("the held child ended (%s)", cause(d)), file: k.spec.File}), true
	}
	k.first = false
	e, c2 := judge(d, k.count, k.spec)
	if k.state == Execing || k.state == Running {
		// Anywhere else somebody wanted this end and no restart is used up.
		k.count = c2
		k.backOff(now)
	}
	return e, true
}

func cause(d death) string {
	code, sig := exit.Status(d.exit)
	return exit.Cause(code, sig)
}

func (k *keeper) backOff(from time.Time) {
	k.wait = pause(k.count, k.spec.Restart)
	k.due = from.Add(k.wait)
}

// startFailed says what a failed start leads to. A first one fails at once,
// since somebody waits for the answer; a restart is tried again if it may work
// later.
func (k *keeper) startFailed(e *startError) Event {
	k.failed = e
	if k.first || !e.temporary() {
		return Refused
	}
	k.count.tries++
	k.backOff(time.Now())
	return Busy
}

// drop ends a child that must not become the process.
func (k *keeper) drop() {
	c := k.child
	if c == nil {
		return
	}
	k.child = nil
	c.abandon()
	c.kill()
	_ = c.handle.Wait(context.Background())
	c.handle.Reap()
	c.close()
}

// confirm tells everybody that the start is over.
func (k *keeper) confirm() {
	if !k.rec.Starting {
		return
	}
	k.rec.Starting = false
	if err := record.Write(k.dir, k.gate, k.spec.Name, k.rec); err != nil {
		k.answer(Unwritten)
		return
	}
	faultPoint("keep-confirmed")
}

// words are written before the gate is asked for: they need no lock and no
// disk space, and they are what is left if this keeper is killed next.
func (k *keeper) words() {
	x := k.exitRecord()
	k.entry.Restarts = x.Restarts
	k.entry.Words = &record.Words{
		PID: x.PID, Code: x.Code, Signal: x.Signal, Outcome: x.Outcome,
		Restarts: x.Restarts, WaitMs: x.WaitMs, Error: x.Error,
	}
	_ = record.WriteLife(k.life, k.entry)
	faultPoint("keep-words")
}

func (k *keeper) exitRecord() record.Exit {
	x := record.Exit{
		Token: k.spec.Token, Keeper: os.Getpid(), PID: k.lastID.PID, Outcome: k.outcome,
		Restarts: k.count.used, At: time.Now().UnixMilli(),
	}
	if k.last != nil && k.last.known {
		code, sig := exit.Status(k.last.exit)
		x.Code = code
		if sig != "" {
			x.Signal = &sig
		}
	}
	if x.Outcome == record.Restarting {
		x.WaitMs = k.wait.Milliseconds()
	}
	if k.failed != nil && (x.Outcome == record.Failed || x.Outcome == record.Restarting && k.count.tries > 0) {
		x.Error = k.failed.Error()
	}
	return x
}

// recordCrash keeps the record, which goes on naming the dead process, so that
// claimants see that a restart is owed. One that never got to its exec stays
// `starting`: confirmed here, its threads said that it ran again, and was gone.
func (k *keeper) recordCrash() {
	k.rec.Starting, k.rec.Restarts = k.rec.Starting && !k.ran, k.count.used
	// What cannot be written here changes nothing: the old record still names
	// the dead process and this keeper.
	_ = record.Write(k.dir, k.gate, k.spec.Name, k.rec)
	faultPoint("keep-crash-recorded")
	_ = record.WriteExit(k.dir, k.gate, k.spec.Name, k.exitRecord())
	faultPoint("keep-crash-exit")
}

// finish takes everything of this generation away and leaves its exit record.
func (k *keeper) finish() {
	x := k.exitRecord()
	x.Released = true
	var errs []string
	if x.Error != "" {
		errs = append(errs, x.Error)
	}
	if k.rec != nil { // read in this hold, and ours
		if err := record.Remove(k.dir, k.gate, k.spec.Name); err != nil {
			x.Released = false
			errs = append(errs, err.Error())
		}
	}
	faultPoint("keep-removed")
	x.Error = strings.Join(errs, "; ")
	if err := record.WriteExit(k.dir, k.gate, k.spec.Name, x); err != nil {
		return // the life file is all that tells it, so it stays
	}
	faultPoint("keep-exit-written")
	_ = k.dir.Remove(lock.LifeName(k.spec.Name, k.spec.Token))
	faultPoint("keep-life-removed")
}

func (k *keeper) drain() {
	if !k.relays.any {
		k.answer(Drained)
		return
	}
	k.timer.Reset(drainFor)
	k.relays.drain(func() { k.inbox <- func() (Event, bool) { return Drained, true } })
}

func (k *keeper) watchOrphan() {
	if k.orphan == nil {
		return // cannot be opened: its time has to be waited for
	}
	h := k.orphan
	go func() {
		_ = h.Wait(context.Background())
		k.inbox <- func() (Event, bool) { return OrphanGone, k.state == Grace || k.state == Killing }
	}()
}

func (k *keeper) watchDir() {
	if k.dirSet {
		return
	}
	k.dirSet = true
	watchGone(k.dir, k.life, k.spec.Name, func() {
		k.inbox <- func() (Event, bool) { return DirGone, true }
	})
}
