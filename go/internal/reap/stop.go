package reap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

// stopAll answers every record of the directory.
func (r *Runner) stopAll() Event {
	d, names := r.open()
	if d == nil {
		return DirGone
	}
	defer d.Close()
	later := r.together(names, func(name string) bool { return r.answer(d, name, false) })
	// A gate that was held is most likely free now, and a process that could
	// not be looked at may have got its /proc entry. What is no better is left.
	r.together(later, func(name string) bool { return r.answer(d, name, true) })
	return AllStopped
}

// open opens pidDir and lists its records, nil when the directory is gone. A
// directory that cannot be read for a moment (EMFILE, EIO, a mode that somebody
// is changing) is tried again for as long as it takes: the original took it for
// an empty one and left everything running.
func (r *Runner) open() (*lock.Dir, []string) {
	pause := pauses{first: 50 * time.Millisecond, most: 30 * time.Second}
	for said := false; ; said = true {
		d, err := lock.OpenExisting(r.o.PidDir)
		if err == nil {
			var names []string
			if names, err = r.names(d); err == nil {
				return d, names
			}
			gone := d.Moved()
			d.Close()
			if gone {
				continue
			}
		}
		var unfit *lock.UnfitError
		if missing(err) {
			return nil, nil
		}
		if errors.As(err, &unfit) {
			r.log.say("nothing is stopped: %v", err)
			return nil, nil
		}
		if !said {
			r.log.say("cannot read %s yet, trying again: %v", r.o.PidDir, err)
		}
		pause.wait(context.Background())
	}
}

// names lists what has a record or a `.reaping` file, except our own lock.
func (r *Runner) names(d *lock.Dir) ([]string, error) {
	files, err := d.Names("")
	if err != nil {
		return nil, err
	}
	own := ""
	if dir, name, ok := splitLock(r.o.SelfLock); ok {
		if real, err := filepath.EvalSymlinks(dir); err == nil && real == d.Path() {
			own = name
		}
	}
	var names []string
	for _, file := range files {
		name, ok := strings.CutSuffix(file, lock.RecordSuffix)
		if !ok {
			name, ok = strings.CutSuffix(file, lock.ReapingSuffix)
		}
		if ok && name != "" && name != own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// together answers all names at the same time and returns those whose answer
// is to come back: one stubborn process must not cost every other one its five
// seconds (twenty took the original a hundred).
func (r *Runner) together(names []string, answer func(name string) bool) []string {
	var mu sync.Mutex
	var later []string
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if answer(name) {
				mu.Lock()
				later = append(later, name)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return later
}

// answer deals with one name: first with what an earlier reaper left half done,
// then with the record. It is true when the name is to be looked at again.
func (r *Runner) answer(d *lock.Dir, name string, last bool) bool {
	later := d.Exists(name+lock.ReapingSuffix) && r.one(d, name, true, last)
	return r.one(d, name, false, last) || later
}

// scene is what one look at a record found, with the handles the proof was
// read from.
type scene struct {
	facts   Facts
	rec     *record.Record
	err     error // why the gate or the record could not be had
	process *proc.Handle
	keeper  *proc.Handle
}

func (s *scene) close() {
	for _, h := range []*proc.Handle{s.process, s.keeper} {
		if h != nil {
			h.Close()
		}
	}
}

func (r *Runner) one(d *lock.Dir, name string, aside, last bool) (later bool) {
	limit := r.limits.Gate
	if last {
		limit = r.limits.LastGate
	}
	s := &scene{}
	defer s.close()
	g, err := r.gate(d, name, limit)
	if err != nil {
		s.facts.GateHeld, s.err = true, err
	} else {
		r.look(d, name, aside, s)
	}
	s.facts.Last = last
	faultPoint("decided")
	var aim *target
	switch Decide(s.facts) {
	case Later:
		later = true
	case Leave:
		r.log.say("%s: %s", name, reason(s))
	case Drop:
		r.drop(d, g, name, s)
	case StopProcess:
		aim = r.begin(d, g, name, s, s.process)
	case StopKeeper:
		aim = r.begin(d, g, name, s, s.keeper)
	case Pass:
		if s.facts.Found == Nothing && !aside && !d.Exists(name+lock.RecordSuffix) {
			r.log.say("%s: its lock is already gone", name)
		}
	}
	g.Unlock()
	if aim != nil {
		r.finish(d, aim)
	}
	return later
}

// look reads the facts, under the gate.
func (r *Runner) look(d *lock.Dir, name string, aside bool, s *scene) {
	f := &s.facts
	read := record.Read
	if aside {
		read = record.ReadReaping
		f.SetAside = true
		f.AtWork = d.ReapingHeld(name)
	}
	var foreign *record.ForeignError
	s.rec, s.err = read(d, name)
	switch {
	case errors.As(s.err, &foreign):
		f.Found = Foreign
		return
	case s.err != nil:
		f.Found = Unreadable
		return
	case s.rec == nil:
		return
	case !s.rec.Ours():
		f.Found = Plain
		return
	}
	f.Found = Record
	rec := s.rec
	if rec.OtherBoot() {
		// Nothing it names can be alive.
		f.Target, f.Claim = Over, proc.No
		if rec.Keeper > 0 {
			f.Keeper = KeeperOver
		}
		return
	}
	if rec.OtherNS() {
		f.Found = Elsewhere
		return
	}
	s.keeper, f.Keeper = keeperOf(rec)
	if rec.PID == 0 {
		f.Target, f.Claim = Unstarted, r.claimant(rec)
		return
	}
	s.process, f.Target = targetOf(rec)
	if f.Target == Same && isReaper(rec, name) {
		f.Found = Watchman
	}
}

func targetOf(rec *record.Record) (*proc.Handle, Target) {
	if rec.PID == os.Getpid() {
		return nil, Stranger // whatever it says, it is not about us
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	switch {
	case v == proc.Match:
		return h, Same
	case v == proc.Unknown:
		return h, Unproven
	case h == nil || h.Alive() == proc.No:
		return h, Over
	}
	return h, Stranger
}

// keeperOf goes by the command line, which carries the token: no other process
// has it. The life lock proves no more, and not which process holds it.
func keeperOf(rec *record.Record) (*proc.Handle, Keeper) {
	if rec.Keeper <= 0 || rec.Keeper == os.Getpid() {
		return nil, NoKeeper
	}
	v, h := proc.Identify(rec.Keeper, proc.Want{Argv: rec.KeeperArgv})
	switch v {
	case proc.Match:
		return h, KeeperSame
	case proc.Differs:
		return h, KeeperOver
	}
	return h, KeeperUnproven
}

// claimant says whether the host of a claim lives and is not the one that went.
func (r *Runner) claimant(rec *record.Record) proc.Answer {
	if rec.Host == r.o.HostPID && (rec.HostStarted == "" || r.o.HostStarted == "" || rec.HostStarted == r.o.HostStarted) {
		return proc.No
	}
	v, h := proc.Identify(rec.Host, proc.Want{Started: rec.HostStarted})
	if h != nil {
		defer h.Close()
	}
	switch v {
	case proc.Match:
		return proc.Yes
	case proc.Differs:
		return proc.No
	}
	return proc.Unknown
}

// isReaper tells a reaper's own lock by the command line in it. Another reaper
// of the same host (guarded under two reaper names) would stop us while we stop
// it, and whatever neither had reached yet would stay for ever.
func isReaper(rec *record.Record, name string) bool {
	for i, word := range rec.Argv[:len(rec.Argv)-1] {
		if word == "--self-lock" && filepath.Base(rec.Argv[i+1]) == name+lock.RecordSuffix {
			return slices.Contains(rec.Argv, "--host-pid")
		}
	}
	return false
}

// reason says why a record is left.
func reason(s *scene) string {
	f := s.facts
	switch {
	case f.GateHeld, f.Found == Unreadable, f.Found == Foreign:
		return "left alone: " + s.err.Error()
	case f.Found == Elsewhere:
		return "left alone: it was written in another pid namespace"
	case f.Found == Watchman:
		return fmt.Sprintf("left alone: pid %d is another reaper", s.rec.PID)
	case f.SetAside && f.AtWork != proc.No:
		return fmt.Sprintf("left alone: another reaper is stopping pid %d", s.rec.PID)
	case f.Target == Unstarted:
		return fmt.Sprintf("left alone: host pid %d is starting it", s.rec.Host)
	}
	return fmt.Sprintf("pid %d could not be identified (unknown), left alone with its lock", s.rec.PID)
}

// drop removes a record and signals nothing.
func (r *Runner) drop(d *lock.Dir, g *lock.Gate, name string, s *scene) {
	r.act.RLock()
	defer r.act.RUnlock()
	var err error
	if s.facts.SetAside {
		var set *record.SetAside
		if set, err = record.ResumeReaping(d, name); err == nil {
			err = set.Done()
		}
	} else {
		err = record.Remove(d, g, name)
	}
	switch {
	case err != nil:
		r.log.say("%s: its lock could not be removed: %v", name, err)
	case s.facts.Target == Unstarted:
		r.log.say("%s: nothing had been started; lock removed", name)
	case s.facts.Target == Stranger:
		r.log.say("%s: pid %d is not that process (differs), left alone; lock removed", name, s.rec.PID)
	default:
		r.log.say("%s: pid %d is already gone; lock removed", name, s.rec.PID)
	}
	if err == nil {
		sweep(d, name)
	}
}

// sweep removes the life files of generations that are over, under the gate: a
// keeper that was killed left its own behind, and whoever displaced a process
// without a keeper (a reaper of an older version) wrote one for it. What lives
// is left as it is found.
func sweep(d *lock.Dir, name string) {
	rec, err := record.Read(d, name)
	files, ferr := d.Names(lock.LifePrefix(name))
	if err != nil || ferr != nil {
		return
	}
	for _, file := range files {
		token := lock.LifeToken(name, file)
		// A claim may have come in since: its launcher is making that file.
		if token != "" && (rec == nil || rec.Token != token) && over(d, name, token) {
			_ = d.Remove(file)
		}
	}
}

// over says whether nothing of a generation lives.
func over(d *lock.Dir, name, token string) bool {
	f, err := record.OpenLife(d, name, token)
	if err != nil {
		return false
	}
	defer f.Close()
	if lock.LockHeld(f) != proc.No {
		return false
	}
	l, err := record.ReadLife(f)
	if err != nil || l.PID <= 0 {
		return errors.Is(err, record.ErrTorn) || err == nil // nothing ran under it
	}
	rec := l.Record()
	if rec.OtherBoot() {
		return true
	}
	if rec.OtherNS() {
		return false
	}
	h, target := targetOf(rec) // a stranger too when it is this reaper, which ends
	if h != nil {
		h.Close()
	}
	return target == Over || target == Stranger
}

// target is a process that was told to end.
type target struct {
	name   string
	token  string
	handle *proc.Handle
	set    *record.SetAside
	keeper bool
}

func (t *target) String() string {
	if t.keeper {
		return fmt.Sprintf("its keeper pid %d", t.handle.PID())
	}
	return fmt.Sprintf("pid %d", t.handle.PID())
}

// begin sets the record aside and sends SIGTERM, in one hold of the gate. A
// record that was removed first and signalled after let a new host start a
// second process beside the first.
func (r *Runner) begin(d *lock.Dir, g *lock.Gate, name string, s *scene, h *proc.Handle) *target {
	t := &target{name: name, token: s.rec.Token, handle: h, keeper: s.facts.Target != Same}
	r.act.RLock()
	defer r.act.RUnlock()
	var err error
	faultPoint("before-rename")
	if s.facts.SetAside {
		t.set, err = record.ResumeReaping(d, name)
	} else {
		t.set, err = record.BeginReaping(d, g, name)
	}
	if err != nil {
		r.log.say("%s: could not SIGTERM %s, left alone: its lock could not be set aside: %v", name, t, err)
		return nil
	}
	faultPoint("renamed")
	if err := h.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, proc.ErrGone) {
		r.log.say("%s: could not SIGTERM %s, left alone: %v", name, t, err)
		if !s.facts.SetAside {
			// It runs on, so it keeps its record.
			if err := d.Rename(name+lock.ReapingSuffix, name+lock.RecordSuffix); err != nil {
				r.log.say("%s: its lock could not be put back: %v", name, err)
			}
		}
		t.set.Leave()
		return nil
	}
	if !t.keeper {
		r.mu.Lock()
		r.told[h] = true
		r.mu.Unlock()
	}
	faultPoint("signalled")
	r.log.say("%s: sent SIGTERM to %s (%s)", name, t, what(s, t.keeper))
	return t
}

// what is the program that is signalled, for the log.
func what(s *scene, keeper bool) string {
	if keeper {
		return "waiting to start " + s.rec.Argv[0] + " again"
	}
	return s.rec.Argv[0]
}

// finish waits for the end and takes the record away.
func (r *Runner) finish(d *lock.Dir, t *target) {
	dead := r.ended(t.handle, r.limits.Term)
	if !dead {
		// A keeper that is killed here has no process: it could only start one
		// under a record with its own token, and that is set aside.
		if err := t.handle.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, proc.ErrGone) {
			r.log.say("%s: could not SIGKILL %s: %v", t.name, t, err)
		} else {
			r.log.say("%s: %s ignored SIGTERM for %d ms, sent SIGKILL", t.name, t, r.limits.Term.Milliseconds())
		}
		faultPoint("killed")
		dead = r.ended(t.handle, r.limits.Kill)
	}
	r.mu.Lock()
	delete(r.told, t.handle)
	r.mu.Unlock()
	faultPoint("over")
	if !dead {
		r.log.say("%s: %s is still there %d ms after SIGKILL; its lock stays as %s", t.name, t, r.limits.Kill.Milliseconds(), t.name+lock.ReapingSuffix)
		t.set.Leave()
		return
	}
	g, err := r.gate(d, t.name, r.limits.LastGate)
	if err != nil {
		// The process is gone, which is all that the file could keep anybody
		// from finding out.
		t.set.Leave()
		return
	}
	defer g.Unlock()
	r.act.RLock()
	defer r.act.RUnlock()
	rec, err := record.ReadReaping(d, t.name)
	if err != nil || rec == nil || rec.Token != t.token {
		// A claimant saw the process gone before we did, and another reaper may
		// have set aside what it started.
		t.set.Leave()
		return
	}
	if err := t.set.Done(); err != nil {
		r.log.say("%s: %v", t.name, err)
	}
	sweep(d, t.name)
}

// ended waits for a death, for limit at most.
func (r *Runner) ended(h *proc.Handle, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if h.Wait(ctx) == nil {
		return true
	}
	// A wait that could not be had must not cut the patience short.
	<-ctx.Done()
	return h.Alive() == proc.No
}
