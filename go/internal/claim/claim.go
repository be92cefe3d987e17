// Package claim decides who may start a process and who joins one.
//
// decide.go is the table and is pure; this file reads the facts under the gate
// and performs the answer in the same hold.
package claim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/watch"
)

// Request is one caller's wish to have a process running.
type Request struct {
	Dir         *lock.Dir
	Hub         *watch.Hub
	Name        string
	Version     int64
	Argv        []string
	Thread      int // of the caller, for the token
	StopOrphans bool
	GraceMs     int64         // how long the replacement waits for an orphan that was sent SIGTERM
	GraceKill   bool          // and kills it then
	Budget      time.Duration // how long a claim may stay unfinished, and how long we wait for what cannot be told
	AfterTaken  bool          // an earlier claim of this caller was taken from it
	Succeeds    bool          // displace another command line of the same version, as a new host's reaper does
	Closed      func() bool   // the caller's thread has ended; nil: never
}

// Result is how a claim ended: exactly one of Won and Joined is set.
type Result struct {
	Won    *Won
	Joined *record.Record
	Notes  []string // what was found on the way, for the report
}

// Won is a claim that is ours to start something under.
type Won struct {
	Token  string
	Orphan *record.Record // the live process of another configuration that was displaced, nil if none
}

// JoinNote is what the notes say of a claim that joined pid.
func JoinNote(pid int) string {
	return fmt.Sprintf("joined the running pid %d rather than starting a second one", pid)
}

// RefusedError says why a claim was not taken and what to do about it.
type RefusedError struct {
	Why  Why
	Text string
}

func (e *RefusedError) Error() string { return e.Text }

// Code is the stable name JavaScript sees.
func (e *RefusedError) Code() string { return "ERR_CLAIM_REFUSED" }

var serial atomic.Uint64

// newToken names a generation. Pids and serials repeat in containers, so the
// last part is random.
func newToken(thread int) string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%d.%d.%d.%s", os.Getpid(), thread, serial.Add(1), hex.EncodeToString(b[:]))
}

// live holds the tokens that a thread of this process still stands behind. A
// record of this process with another token is a claim nobody will finish,
// whatever kept it from being given back.
var live sync.Map

// relook is how often a claimant looks again at what sends no event: an
// identity that cannot be read, a life lock whose holder is not known by pid.
const relook = 250 * time.Millisecond

// Run claims. It returns when the process is ours to start, is joined, or the
// claim is refused (*RefusedError); other errors come from the file system.
func Run(ctx context.Context, q Request) (Result, error) {
	c := &claimer{q: q, began: time.Now(), notes: &notes{}, seen: map[string]time.Time{}}
	sub := q.Hub.Subscribe(q.Name)
	defer sub.Close()
	for {
		res, wait, err := c.pass(ctx)
		res.Notes = c.notes.lines
		if err != nil || wait == nil {
			return res, err
		}
		err = wait.forChange(ctx, sub, c.untilSpent())
		wait.close()
		if err != nil {
			return res, err
		}
	}
}

type claimer struct {
	q      Request
	began  time.Time
	notes  *notes
	seen   map[string]time.Time // when a claim without a stamp of ours was first looked at
	waited string               // the generation that was waited for last
}

// notes keeps each line once, in the order they came.
type notes struct{ lines []string }

func (n *notes) add(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	for _, l := range n.lines {
		if l == line {
			return
		}
	}
	n.lines = append(n.lines, line)
}

func (c *claimer) spent() bool     { return time.Since(c.began) >= c.q.Budget }
func (c *claimer) longSpent() bool { return time.Since(c.began) >= 2*c.q.Budget }

func (c *claimer) untilSpent() time.Duration {
	left := c.q.Budget - time.Since(c.began)
	if left <= 0 {
		left = 2*c.q.Budget - time.Since(c.began)
	}
	return max(left, time.Millisecond)
}

// pass is one look under the gate. wait is nil when the claim is over.
func (c *claimer) pass(ctx context.Context) (Result, *waiting, error) {
	g, err := c.gate(ctx)
	if err != nil {
		return Result{}, nil, err
	}
	defer g.Unlock()
	s, err := c.look()
	defer s.close()
	if err != nil {
		return Result{}, nil, err
	}
	d := Decide(s.facts)
	fault.StopAt("claim-decided")
	switch d.Action {
	case Wait:
		c.remember(d, s)
		return Result{}, s.waiting(d, c), nil
	case Refuse:
		return Result{}, nil, c.refusal(d, s)
	case Join:
		c.notes.add("%s", JoinNote(s.rec.PID))
		return Result{Joined: s.rec}, nil, nil
	case PutBack:
		rec, err := c.putBack(g, s)
		if err != nil {
			return Result{}, nil, err
		}
		c.notes.add("%s", JoinNote(rec.PID))
		return Result{Joined: rec}, nil, nil
	case FinishReaping:
		w, err := c.finishReaping(s)
		return Result{}, w, err
	default:
		won, err := c.take(g, s, d)
		if err != nil {
			return Result{}, nil, err
		}
		if c.closed(ctx) {
			// The thread ended while we wrote: nobody will start anything.
			live.Delete(won.Token)
			return Result{}, nil, errors.Join(context.Canceled, removeClaim(c.q.Dir, g, c.q.Name, won.Token))
		}
		return Result{Won: won}, nil, nil
	}
}

// remember keeps whose start or restart this call waits for.
func (c *claimer) remember(d Decision, s *scene) {
	switch d.Why {
	case WhyClaimInFlight, WhyStarting, WhyRestartOwed:
		c.waited = s.rec.Token
	}
}

// gaveUp is the last word of the generation that this call waited for, if its
// keeper gave up. A shutdown is no such end: a process that is over and whose
// keeper has yet to say so looks as if a restart were owed, too.
func (c *claimer) gaveUp() *record.Exit {
	if c.waited == "" {
		return nil
	}
	x, err := record.ReadExit(c.q.Dir, c.q.Name)
	if err != nil || x == nil || x.Token != c.waited || x.Outcome != record.GaveUp {
		return nil
	}
	return x
}

// gate takes the gate within the budget. A look that comes right when the
// budget is spent has a second more: holders stay for less than a millisecond,
// and the refusal has to name what was waited for and not one of them.
func (c *claimer) gate(ctx context.Context) (*lock.Gate, error) {
	deadline := c.began.Add(c.q.Budget)
	if last := time.Now().Add(time.Second); deadline.Before(last) {
		deadline = last
	}
	gctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	g, err := c.q.Dir.Lock(gctx, c.q.Name)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return g, err
}

func (c *claimer) closed(ctx context.Context) bool {
	return ctx.Err() != nil || c.q.Closed != nil && c.q.Closed()
}

// scene is what one look found, with the handles the proof was read from.
type scene struct {
	facts   Facts
	rec     *record.Record
	foreign *record.ForeignError
	process *proc.Handle
	keeper  *proc.Handle
	host    *proc.Handle
	ageLeft time.Duration
	reaping *record.Record
	reaped  *proc.Handle
	older   *generation
	gaveUp  *record.Exit
}

func (s *scene) close() {
	for _, h := range []*proc.Handle{s.process, s.keeper, s.host, s.reaped} {
		if h != nil {
			h.Close()
		}
	}
	if s.older != nil {
		s.older.handle.Close()
	}
}

// look reads the facts. The scene is never nil.
func (c *claimer) look() (*scene, error) {
	s := &scene{facts: Facts{StopOrphans: c.q.StopOrphans, AfterTaken: c.q.AfterTaken, Succeeds: c.q.Succeeds, Spent: c.spent(), LongSpent: c.longSpent()}}
	rec, err := record.Read(c.q.Dir, c.q.Name)
	if errors.As(err, &s.foreign) {
		s.facts.Found = Foreign
		c.notes.add("%v", s.foreign)
		c.lookForOlder(s, "")
		return s, c.lookAtReaping(s)
	}
	if err != nil {
		return s, err
	}
	s.rec = rec
	if rec == nil {
		s.facts.Found = Absent
		s.gaveUp = c.gaveUp()
		s.facts.GaveUp = s.gaveUp != nil
		c.lookForOlder(s, "")
		return s, c.lookAtReaping(s)
	}
	if !rec.Ours() {
		s.facts.Found = Bare
		if rec.PID > 0 {
			s.process, s.facts.Process = openProcess(rec)
			if s.facts.Process != Dead {
				s.facts.Process = Hidden
			}
		}
		c.lookForOlder(s, "")
		return s, c.lookAtReaping(s)
	}
	s.facts.OtherNS = rec.OtherNS()
	s.facts.Life = c.q.Dir.LifeHeld(c.q.Name, rec.Token)
	s.facts.SameVersion = rec.Version == c.q.Version
	s.facts.SameConfig = s.facts.SameVersion && record.SameArgv(rec.Argv, c.q.Argv)
	if rec.PID == 0 {
		s.facts.Found = Claimed
		c.lookAtClaim(s)
	} else {
		s.facts.Found = Named
		if !s.facts.OtherNS {
			s.process, s.facts.Process = openProcess(rec)
			s.keeper, s.facts.Keeper = keeperOf(rec, s.facts.Life)
			s.facts.Starting = rec.Starting && (s.facts.Keeper != proc.No || HeldChild(s.process, rec))
		}
	}
	if s.facts.Found != Named || s.facts.Process != Ours || !s.facts.SameConfig {
		c.lookForOlder(s, rec.Token)
	}
	return s, nil
}

// openProcess opens the recorded process and says what it is. The caller
// closes the handle, nil when there is none.
func openProcess(rec *record.Record) (*proc.Handle, Process) {
	if rec.OtherBoot() {
		return nil, Dead
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	switch {
	case v == proc.Match:
		return h, Ours
	case v == proc.Differs && h == nil:
		return nil, Dead
	case v == proc.Differs && h.Alive() == proc.No:
		return h, Dead
	case v == proc.Differs:
		return h, Stranger
	}
	return h, Hidden
}

// keeperOf says whether the record's keeper lives. Its life lock proves it;
// without one (removed by hand, or a record of the original's) its command
// line does.
func keeperOf(rec *record.Record, life proc.Answer) (*proc.Handle, proc.Answer) {
	if rec.Keeper <= 0 || rec.OtherBoot() {
		return nil, proc.No
	}
	v, h := proc.Identify(rec.Keeper, proc.Want{Argv: rec.KeeperArgv})
	switch {
	case v == proc.Match:
		return h, proc.Yes
	case life == proc.Yes:
		return h, proc.Yes
	case v == proc.Differs:
		return h, proc.No
	}
	return h, proc.Unknown
}

// HeldChild says whether the process is still the keeper's child that waits to
// be let go. Its keeper is gone, so it ends without ever becoming ours; joined,
// its exit was somebody's clean stop.
func HeldChild(h *proc.Handle, rec *record.Record) bool {
	if h == nil || len(rec.KeeperArgv) == 0 {
		return false
	}
	argv, err := h.Argv()
	return err == nil && record.SameArgv(argv, []string{rec.KeeperArgv[0], "hold"})
}

func (c *claimer) lookAtClaim(s *scene) {
	rec := s.rec
	s.keeper, _ = keeperOf(rec, s.facts.Life)
	var age time.Duration
	switch {
	case rec.OtherBoot():
		s.facts.Host, s.facts.Life = proc.No, proc.No
		return
	case rec.ClaimedAt > 0 && rec.ClaimedAt <= proc.BootMillis():
		age = time.Duration(proc.BootMillis()-rec.ClaimedAt) * time.Millisecond
	default:
		// No stamp, or one from the future, which would stay young until then.
		first, ok := c.seen[rec.Token]
		if !ok {
			first = time.Now()
			c.seen[rec.Token] = first
		}
		age = time.Since(first)
	}
	s.ageLeft = c.q.Budget - age
	s.facts.Young = s.ageLeft > 0
	self := proc.Self()
	if rec.Host == self.PID && rec.HostStarted != "" && rec.HostStarted == self.Started {
		s.facts.Host = proc.No
		if _, ok := live.Load(rec.Token); ok {
			s.facts.Host = proc.Yes
		}
		return
	}
	v, h := proc.Identify(rec.Host, proc.Want{Started: rec.HostStarted})
	s.host = h
	switch {
	case v == proc.Match:
		s.facts.Host = proc.Yes
	case v == proc.Differs:
		s.facts.Host = proc.No
	}
}

// lookAtReaping reads what a reaper set aside. It is asked for whenever the
// record is nobody's: a process that is being stopped still runs.
func (c *claimer) lookAtReaping(s *scene) error {
	rec, err := record.ReadReaping(c.q.Dir, c.q.Name)
	var foreign *record.ForeignError
	if errors.As(err, &foreign) {
		c.notes.add("%v", foreign)
		return nil
	}
	if err != nil {
		return err
	}
	if !rec.Ours() {
		return nil
	}
	s.reaping = rec
	reaper := c.q.Dir.ReapingHeld(c.q.Name)
	if rec.OtherNS() {
		// Its pid means nothing here; the lock does.
		if reaper != proc.No {
			s.facts.Reaping = ReaperAtWork
		}
		return nil
	}
	h, p := openProcess(rec)
	s.reaped = h
	switch {
	case p == Dead || p == Stranger:
	case p == Hidden:
		s.facts.Reaping = ReapingHidden
	case reaper == proc.No:
		s.facts.Reaping = ReaperDied
	default:
		s.facts.Reaping = ReaperAtWork
	}
	return nil
}

// generation is a process found through its life file rather than its record.
type generation struct {
	token  string
	life   record.Life
	handle *proc.Handle
}

// lookForOlder goes through the life files of every generation but the
// record's own. One of our version and argv that still runs must be put back,
// not joined by a second. What is over is swept.
func (c *claimer) lookForOlder(s *scene, own string) {
	files, err := c.q.Dir.Names(c.q.Name + lock.RecordSuffix + ".")
	if err != nil {
		s.facts.Older = OlderUnknown
		return
	}
	for _, file := range files {
		if record.Leftover(c.q.Name, file) {
			_ = c.q.Dir.Remove(file)
		}
		token := lock.LifeToken(c.q.Name, file)
		if token == "" || token == own || s.facts.Older == OlderLives {
			continue
		}
		switch older, g := c.lookAtLife(file, token); {
		case older == OlderLives:
			s.facts.Older, s.older = older, g
		case older == OlderUnknown:
			s.facts.Older = older
		}
	}
}

// openLife is a variable because no test can make a file that root may not read.
var openLife = record.OpenLife

// lookAtLife says whether a life file is of a generation of our configuration
// that runs.
func (c *claimer) lookAtLife(file, token string) (Older, *generation) {
	f, err := openLife(c.q.Dir, c.q.Name, token)
	if errors.Is(err, fs.ErrNotExist) {
		return NoOlder, nil
	}
	if err != nil {
		// Too many open files, a broken disk: it may be ours. What is no file,
		// or another user's, is not.
		if uid, regular, err := c.q.Dir.Stat(file); err == nil && (!regular || lock.Foreign(uid)) {
			return NoOlder, nil
		}
		return OlderUnknown, nil
	}
	defer f.Close()
	held := lock.LockHeld(f)
	l, err := record.ReadLife(f)
	switch {
	case err != nil && !errors.Is(err, record.ErrEmpty) && held != proc.No:
		return OlderUnknown, nil // its keeper is writing
	case err != nil || l.PID <= 0:
		// Nothing ran under it yet. Held: a launcher whose claim was taken; it
		// finds that out by itself. Free: left by a launcher that died, or what
		// a crash of the machine made of a file.
		if held == proc.No {
			_ = c.q.Dir.Remove(file)
		}
		return NoOlder, nil
	}
	v, h := identifyLife(l, held)
	ours := l.Version == c.q.Version && l.ArgvHash == record.HashArgv(c.q.Argv)
	if v == proc.Match && ours && HeldChild(h, l.Record()) {
		// Named in the life file and not yet in the record when its keeper was
		// killed: put back, somebody joined a child that ended before its exec.
		h.Close()
		return OlderUnknown, nil
	}
	if v == proc.Match && ours {
		return OlderLives, &generation{token: token, life: l, handle: h}
	}
	if h != nil {
		h.Close()
	}
	switch {
	case v == proc.Unknown && ours:
		return OlderUnknown, nil
	case v == proc.Differs && held == proc.No:
		_ = c.q.Dir.Remove(file)
	}
	return NoOlder, nil
}

func identifyLife(l record.Life, held proc.Answer) (proc.Verdict, *proc.Handle) {
	rec := l.Record()
	switch {
	case rec.OtherBoot():
		return proc.Differs, nil
	case rec.OtherNS() && held == proc.No:
		// As with a record of another namespace, only its keeper could be
		// seen. A container that was killed and started again once too
		// often found what the last but one had left and never started.
		return proc.Differs, nil
	case rec.OtherNS():
		return proc.Unknown, nil
	}
	return proc.Identify(rec.PID, rec.Want())
}

// take writes our claim over what was found.
func (c *claimer) take(g *lock.Gate, s *scene, d Decision) (*Won, error) {
	won := &Won{Token: newToken(c.q.Thread)}
	alive := s.facts.Found == Named && s.facts.Process == Ours
	if alive {
		if err := rememberDisplaced(c.q.Dir, g, c.q.Name, s.rec); err != nil {
			return nil, err
		}
		won.Orphan = s.rec
	}
	p, err := record.Prepare(c.q.Dir, c.q.Name, c.claimRecord(won.Token))
	if err != nil {
		return nil, err
	}
	if d.Action == StopOrphan {
		if err := c.stopOrphan(g, p, s); err != nil {
			return nil, err
		}
	}
	c.noteTaking(s, d)
	if err := p.Commit(g); err != nil {
		return nil, err
	}
	live.Store(won.Token, true)
	// Nobody reads an earlier generation's last word as ours.
	_ = record.RemoveExit(c.q.Dir, c.q.Name)
	if s.reaping != nil {
		_ = c.q.Dir.Remove(c.q.Name + lock.ReapingSuffix)
	}
	return won, nil
}

// stopOrphan signals the process whose record p is about to replace, unless p
// cannot be put in its place any more.
func (c *claimer) stopOrphan(g *lock.Gate, p *record.Pending, s *scene) error {
	if err := g.Check(); err != nil {
		p.Abort()
		return fmt.Errorf("stop pid %d: %w; it was not signalled", s.rec.PID, err)
	}
	err := s.process.Signal(syscall.SIGTERM)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		c.notes.add("%v", err)
	}
	return nil
}

func (c *claimer) claimRecord(token string) *record.Record {
	self := proc.Self()
	return &record.Record{
		Version: c.q.Version, Token: token, Host: self.PID, HostStarted: self.Started, Argv: c.q.Argv,
		ClaimedAt: proc.BootMillis(), Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(),
	}
}

// rememberDisplaced leaves a life file for a live process whose record is
// about to be written over, if its generation has none (started directly, or
// by the original): the next start of its configuration must find it. One that
// says nothing of it is as good as none: a claimant that was killed or had no
// disk space left an empty one.
func rememberDisplaced(d *lock.Dir, g *lock.Gate, name string, rec *record.Record) error {
	if f, err := record.OpenLife(d, name, rec.Token); err == nil {
		held := lock.LockHeld(f)
		l, lerr := record.ReadLife(f)
		f.Close()
		if held != proc.No || lerr == nil && l.PID == rec.PID {
			return nil
		}
	}
	return record.PutLife(d, g, name, rec.Token, record.Life{
		PID: rec.PID, Started: rec.Started, Inode: rec.Inode, NS: rec.NS, Version: rec.Version, ArgvHash: record.HashArgv(rec.Argv),
		Argv: rec.Argv, Host: rec.Host, HostStart: rec.HostStarted, Keeper: rec.Keeper, KeeperArgv: rec.KeeperArgv, Restarts: rec.Restarts,
	})
}

func (c *claimer) putBack(g *lock.Gate, s *scene) (*record.Record, error) {
	l := s.older.life
	rec := &record.Record{
		PID: l.PID, Version: l.Version, Token: s.older.token, Host: l.Host, HostStarted: l.HostStart, Argv: c.q.Argv,
		Keeper: l.Keeper, KeeperArgv: l.KeeperArgv, Started: l.Started, Inode: l.Inode,
		Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(), Restarts: l.Restarts,
	}
	orphan := s.facts.Found == Named && s.facts.Process == Ours
	if orphan {
		if err := rememberDisplaced(c.q.Dir, g, c.q.Name, s.rec); err != nil {
			return nil, err
		}
	}
	p, err := record.Prepare(c.q.Dir, c.q.Name, rec)
	if err != nil {
		return nil, err
	}
	if orphan {
		if c.q.StopOrphans {
			if err := c.stopOrphan(g, p, s); err != nil {
				return nil, err
			}
		}
		c.noteOrphan(s, c.q.StopOrphans)
	}
	if err := p.Commit(g); err != nil {
		return nil, err
	}
	_ = record.RemoveExit(c.q.Dir, c.q.Name)
	return rec, nil
}

// stopPatience is how long a process may take over SIGTERM before SIGKILL,
// where a stop was begun by a reaper that died.
const stopPatience = 5 * time.Second

func (c *claimer) finishReaping(s *scene) (*waiting, error) {
	aside, err := record.ResumeReaping(c.q.Dir, c.q.Name)
	if errors.Is(err, lock.ErrBusy) || errors.Is(err, fs.ErrNotExist) {
		return &waiting{timer: relook}, nil
	}
	if err != nil {
		return nil, err
	}
	h := s.reaped
	switch err := h.Signal(syscall.SIGTERM); {
	case errors.Is(err, proc.ErrGone):
		return &waiting{timer: time.Millisecond}, aside.Done()
	case err != nil:
		// It lives and is not ours to stop.
		aside.Leave()
		return nil, fmt.Errorf("finish the stop of %s: %w", c.q.Dir.Join(c.q.Name+lock.ReapingSuffix), err)
	}
	s.reaped = nil
	c.notes.add("finished stopping pid %d, which a reaper that died had begun to stop", h.PID())
	return &waiting{timer: time.Hour, stop: h, aside: aside, claimer: c}, nil
}

func removeClaim(d *lock.Dir, g *lock.Gate, name, token string) error {
	rec, err := record.Read(d, name)
	if err != nil {
		return err
	}
	if rec == nil || rec.Token != token || rec.PID != 0 {
		return nil
	}
	if rec.Keeper != 0 {
		life := d.LifeHeld(name, token)
		h, keeper := keeperOf(rec, life)
		if h != nil {
			h.Close()
		}
		if keeper != proc.No || life != proc.No {
			return nil
		}
	}
	return record.Remove(d, g, name)
}

// GiveBack takes an unfinished claim away, only while it is still ours and
// names neither a pid nor a keeper that lives: from then on it is the keeper's.
// One whose keeper could not get at it any more (EIO, no descriptors) stayed as a
// claim in flight, for which other hosts waited until it was old. It says what the
// record is afterwards; nil when there is none.
func GiveBack(ctx context.Context, d *lock.Dir, name, token string) (*record.Record, error) {
	live.Delete(token)
	g, err := d.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer g.Unlock()
	if err := removeClaim(d, g, name, token); err != nil {
		return nil, err
	}
	return record.Read(d, name)
}

// Keep says that a thread no longer has to stand behind a token: what was
// started under it does.
func Keep(token string) { live.Delete(token) }

// Renew gives a claim a new token before another attempt: a launcher that was
// counted as refused may still have started, and must find that the claim is
// not its own. ok is false when the claim is no longer ours, names a process,
// or has a launcher or keeper at work; the record says whose it is.
func Renew(ctx context.Context, q Request, old string) (token string, cur *record.Record, ok bool, err error) {
	g, err := q.Dir.Lock(ctx, q.Name)
	if err != nil {
		return "", nil, false, err
	}
	defer g.Unlock()
	rec, err := record.Read(q.Dir, q.Name)
	if err != nil || rec == nil || rec.Token != old || rec.PID != 0 || q.Dir.LifeHeld(q.Name, old) != proc.No {
		return "", rec, false, err
	}
	next := newToken(q.Thread)
	fresh := *rec
	fresh.Token = next
	fresh.ClaimedAt = proc.BootMillis()
	fresh.Keeper, fresh.KeeperArgv, fresh.Launcher = 0, nil, 0
	if err := record.Write(q.Dir, g, q.Name, &fresh); err != nil {
		return "", rec, false, err
	}
	live.Store(next, true)
	live.Delete(old)
	_ = q.Dir.Remove(lock.LifeName(q.Name, old))
	return next, &fresh, true, nil
}

// AtWork says under the gate what has become of a claim whose launcher ended:
// the record, and whether a launcher or keeper of the token still lives.
func AtWork(ctx context.Context, d *lock.Dir, name, token string) (rec *record.Record, life proc.Answer, err error) {
	g, err := d.Lock(ctx, name)
	if err != nil {
		return nil, proc.Unknown, err
	}
	defer g.Unlock()
	rec, err = record.Read(d, name)
	return rec, d.LifeHeld(name, token), err
}

// CommitDirect names a process that a thread started itself. taken is set when
// the record is no longer this claim's: the process must be stopped.
func CommitDirect(ctx context.Context, d *lock.Dir, name, token string, h *proc.Handle, argv []string) (rec *record.Record, taken bool, err error) {
	g, err := d.Lock(ctx, name)
	if err != nil {
		return nil, false, err
	}
	defer g.Unlock()
	rec, err = record.Read(d, name)
	if err != nil {
		return nil, false, err
	}
	if rec == nil || rec.Token != token || rec.PID != 0 {
		return rec, true, nil
	}
	fresh := *rec
	fresh.PID = h.PID()
	fresh.Argv = argv
	if id, err := h.ID(); err == nil {
		fresh.Started, fresh.Inode = id.Started, id.Inode
	}
	if err := record.Write(d, g, name, &fresh); err != nil {
		return rec, false, err
	}
	live.Delete(token)
	return &fresh, false, nil
}

// Release removes a record of ours after a direct start's process ended.
func Release(ctx context.Context, d *lock.Dir, name, token string) (*record.Record, error) {
	g, err := d.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer g.Unlock()
	rec, err := record.Read(d, name)
	if err != nil || rec == nil || rec.Token != token {
		return rec, err
	}
	if err := record.Remove(d, g, name); err != nil {
		return nil, err
	}
	live.Delete(token)
	return nil, nil
}
