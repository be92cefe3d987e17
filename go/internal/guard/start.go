package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"processguard/go/internal/claim"
	"processguard/go/internal/exit"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

// attempt starts the process or joins it. nil: neither, and the state says why.
func (s *session) attempt(ctx context.Context) *following {
	s.patch(pair{"restarts", s.restarts}, pair{"exited", false}, pair{"started", false}, pair{"pid", nil},
		pair{"keeper", nil}, pair{"error", nil}, pair{"code", nil}, pair{"signal", nil}, pair{"exitProof", nil})
	// Before the lock is touched: a node that could not start a replacement
	// must stop no orphan.
	if reason := s.preflight(); reason != "" {
		s.fail("%s cannot be started: %s", s.a.Title, reason)
		return nil
	}
	taken, removed := s.answering, false
	for {
		key := s.flightKey()
		leader, shared, refused, err := board(ctx, key)
		if err != nil {
			return nil
		}
		if refused != "" {
			s.fail("%s was not started: %s", s.a.Title, refused)
			return nil
		}
		if shared != nil {
			if f := s.join(shared, true); f != nil {
				return f
			}
			continue
		}
		f, again := func() (*following, loss) {
			defer leader.land(key, nil) // also when it panics: others wait for it
			return s.lead(ctx, leader, key, taken)
		}()
		switch {
		case f != nil:
			return f
		case again == lostToAnother && !taken:
			taken = true
		case again == lostToReaper && !removed:
			removed = true
		case again != nothingLost && ctx.Err() == nil:
			s.fail("%s was not started: its claim in %s was taken away twice while it was being started; the next guard() tries again", s.a.Title, s.dir.Path())
			return nil
		default:
			return nil
		}
	}
}

// loss says how a claim was lost while something was started under it.
type loss uint8

const (
	nothingLost loss = iota
	lostToAnother
	lostToReaper
)

// lead is an attempt that other threads of this host may be waiting for.
func (s *session) lead(ctx context.Context, fl *flight, key string, taken bool) (*following, loss) {
	res, err := claim.Run(ctx, claim.Request{
		Dir: s.dir, Hub: s.hub, Name: s.a.Name, Version: s.a.Version, Argv: s.want, Thread: s.a.Thread,
		StopOrphans: s.a.StopOrphans, GraceMs: s.a.GraceMs, GraceKill: s.a.GraceKill, Budget: s.budget(), AfterTaken: taken, Closed: s.e.Closed,
	})
	for _, n := range res.Notes {
		// Joining is the usual case of all threads but one, and says so by itself.
		if res.Joined == nil || n != claim.JoinNote(res.Joined.PID) {
			s.log("warn", "%s: %s", s.a.Title, n)
		}
		s.report(n)
	}
	var refused *claim.RefusedError
	switch {
	case ctx.Err() != nil:
		if res.Won != nil {
			s.giveBack(res.Won.Token)
		}
		return nil, nothingLost
	case errors.As(err, &refused):
		fl.refuse(key, err.Error())
		s.fail("%s was not started: %v", s.a.Title, err)
		return nil, nothingLost
	case err != nil:
		s.fail("the lock for %s could not be taken in %s: %v%s", s.a.Name, s.dir.Path(), err, remedy(err))
		return nil, nothingLost
	case res.Joined != nil:
		f := s.join(res.Joined, false)
		if f == nil && res.Joined.Keeper > 0 && s.keeperMayLive(res.Joined) {
			// It ended between the look and our opening it; its keeper answers.
			f = &following{rec: res.Joined, over: true}
			s.attachKeeper(f)
			s.nowRuns(res.Joined, true)
			return f, nothingLost
		}
		if f == nil {
			return nil, lostToReaper
		}
		fl.land(key, res.Joined)
		return f, nothingLost
	}
	f, lost := s.start(ctx, res.Won)
	if f != nil && f.rec != nil && !f.over {
		fl.land(key, f.rec)
	}
	return f, lost
}

// preflight says why the file cannot be executed, "" when it can.
func (s *session) preflight() string {
	if s.a.Spawn.Shell != nil && s.a.Spawn.Shell != false && s.a.Spawn.Shell != "" {
		return ""
	}
	if s.file == "" {
		return exit.SpawnFailure("ENOENT", "no path was given", s.file)
	}
	err := cannotExecute(s.file)
	if err == nil {
		if st, serr := os.Stat(s.file); serr == nil && st.IsDir() {
			err = syscall.EACCES
		}
	}
	if err != nil {
		return exit.SpawnFailure(errnoName(err), err.Error(), s.file)
	}
	return ""
}

// giveBack returns an unfinished claim whose thread will start nothing.
func (s *session) giveBack(token string) (*record.Record, error) {
	ctx, cancel := s.hurried(context.Background())
	defer cancel()
	return claim.GiveBack(ctx, s.dir, s.a.Name, token)
}

// join follows what runs already; nil when it cannot be identified any more.
func (s *session) join(rec *record.Record, say bool) *following {
	f := s.follower(rec)
	if f == nil {
		return nil
	}
	if say {
		s.report(claim.JoinNote(rec.PID))
	}
	s.nowRuns(rec, true)
	s.log("info", "%s already runs as pid %d; joined it", s.a.Title, rec.PID)
	return f
}

// nowRuns fills the state of a process that runs.
func (s *session) nowRuns(rec *record.Record, adopted bool) {
	s.restarts = rec.Restarts
	s.patch(pair{"restarts", rec.Restarts}, pair{"pid", rec.PID}, pair{"keeper", keeperPID(rec)}, pair{"adopted", adopted}, pair{"started", true})
}

// keeperPID is what a state says of the keeper: nothing when there is none.
func keeperPID(rec *record.Record) any {
	if rec.Keeper <= 0 {
		return nil
	}
	return rec.Keeper
}

// commands are the ways a Go program of ours is started, in the order they are
// tried: a host may allow only `node`, by that exact word.
func commands(exe, execPath, launch, which string, args ...string) [][]string {
	viaNode := append([]string{launch, which}, args...)
	out := [][]string{append([]string{exe}, args...)}
	if execPath != "" {
		out = append(out, append([]string{execPath}, viaNode...))
	}
	return append(out, append([]string{"node"}, viaNode...))
}

// start runs something under a claim that was won.
func (s *session) start(ctx context.Context, won *claim.Won) (*following, loss) {
	token := won.Token
	var refusals []string
	for i, cmd := range commands(s.a.Paths.Keeper, s.a.ExecPath, s.a.Paths.Launch, "keeper", "launch", "--lock", s.dir.Join(s.a.Name+lock.RecordSuffix), "--token", token) {
		if i > 0 {
			next, f, lost, ok := s.renew(ctx, token)
			if !ok {
				return f, lost
			}
			token = next
			cmd[len(cmd)-1] = token
		}
		f, lost, refusal := s.launch(ctx, won, token, cmd)
		if refusal == "" {
			return f, lost
		}
		refusals = append(refusals, fmt.Sprintf("%s: %s", cmd[0], refusal))
	}
	next, f, lost, ok := s.renew(ctx, token)
	if !ok {
		return f, lost
	}
	s.note("the keeper for the %s could not be started (%s), so this thread starts it itself: a crash is restarted only while this thread lives, and its output and its end are bound to it. Permit %s, %s or node in the host's spawn",
		s.a.Title, strings.Join(refusals, "; "), s.a.Paths.Keeper, s.a.ExecPath)
	return s.direct(ctx, next, won.Orphan)
}

// renew takes a new token for the next way to start. ok false: the claim is
// not ours any more, or an earlier launcher that counted as refused works on it.
func (s *session) renew(ctx context.Context, token string) (next string, f *following, lost loss, ok bool) {
	q := claim.Request{Dir: s.dir, Name: s.a.Name, Thread: s.a.Thread}
	rctx, cancel := s.hurried(ctx)
	next, cur, ok, err := claim.Renew(rctx, q, token)
	cancel()
	switch {
	case ok:
		return next, nil, nothingLost, true
	case ctx.Err() != nil:
		_, _ = s.giveBack(token)
	case err != nil:
		_, _ = s.giveBack(token)
		s.fail("the lock for %s could not be updated in %s: %v", s.a.Name, s.dir.Path(), err)
	case cur != nil && cur.Token == token:
		f, lost, refusal := s.awaitKeeper(ctx, token, nil)
		if refusal != "" {
			s.fail("%s failed to start: %s", s.a.Title, refusal)
		}
		return "", f, lost, false
	case cur == nil:
		return "", nil, lostToReaper, false
	default:
		return "", nil, lostToAnother, false
	}
	return "", nil, nothingLost, false
}

// hurried bounds a wait for the gate: while its holder was stopped, a call that
// had come as far as its second launcher never returned.
func (s *session) hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.budget())
}

// launch tries one command. refusal is why the next one is to be tried.
func (s *session) launch(ctx context.Context, won *claim.Won, token string, cmd []string) (f *following, lost loss, refusal string) {
	env := spec.Shield(s.a.Spawn.Env, s.a.Spawn.HostPath)
	for _, e := range s.task(won, token).Environ() {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	launched, refusal := s.spawn(ctx, token, cmd, map[string]any{"command": cmd[0], "args": cmd[1:], "env": env, "direct": false})
	if ctx.Err() != nil {
		s.abandon(launched)
		_, _ = s.giveBack(token)
		return nil, nothingLost, ""
	}
	if refusal != "" {
		return nil, nothingLost, refusal
	}
	return s.awaitKeeper(ctx, token, launched)
}

// task is what the keeper is told.
func (s *session) task(won *claim.Won, token string) spec.Spec {
	a := &s.a
	self := proc.Self()
	t := spec.Spec{
		Name: a.Name, Title: a.Title, Lock: s.dir.Join(a.Name + lock.RecordSuffix), Token: token, Version: a.Version,
		Host: self.PID, HostStarted: self.Started, File: s.file, Argv: s.argv, RecordArgv: s.want, Cwd: a.Spawn.Cwd,
		UID: -1, GID: -1, Detached: a.Spawn.Detached, Slots: max(3, len(a.Spawn.Stdio)), Restarts: s.restarts,
		Restart: s.restart(), Deliberate: a.Deliberate, GraceMs: a.GraceMs, GraceKill: a.GraceKill,
	}
	if a.Spawn.UID != nil {
		t.UID = *a.Spawn.UID
	}
	if a.Spawn.GID != nil {
		t.GID = *a.Spawn.GID
	}
	for i, kind := range a.Spawn.Stdio {
		if i < 3 && (kind == "pipe" || kind == "overlapped") {
			t.Piped = append(t.Piped, i)
		}
		if i >= 3 && kind == "ignore" {
			t.Ignored = append(t.Ignored, i)
		}
	}
	if o := won.Orphan; o != nil && a.GraceMs > 0 {
		t.Orphan = &spec.Orphan{PID: o.PID, Started: o.Started, Inode: o.Inode}
	}
	return t
}

// child is what JavaScript's spawn returned.
type child struct {
	pid     int
	own     bool         // Node's own child object
	handle  *proc.Handle // nil: it was gone before it could be opened
	answers <-chan spawnMessage
}

// abandon leaves a child that nobody waits for any more to its event loop or,
// when that is gone, to us.
func (s *session) abandon(k *child) {
	if k != nil && k.handle != nil {
		adopted(k.handle, s.e.Context().Done())
	}
}

// spawn asks JavaScript to start something and looks at what came back.
func (s *session) spawn(ctx context.Context, token string, argv []string, m map[string]any) (*child, string) {
	asked := proc.BootMillis()
	spawning.Add(1)
	answers := s.ask(s.c, m)
	answered := false
	defer func() {
		defer spawnEnded()
		if !answered {
			// The thread ended with the spawn under way: whatever it started has
			// no event loop any more.
			s.adoptStray(token, asked, argv[0])
		}
	}()
	var msg spawnMessage
	select {
	case msg = <-answers:
		answered = true
	case <-ctx.Done():
		// A thread that stops watching still answers; one that died does not.
		if s.e.Closed() {
			return nil, "the thread ended"
		}
		select {
		case msg = <-answers:
			answered = true
		case <-s.e.Context().Done():
			return nil, "the thread ended"
		}
	}
	if msg.T == "refused" {
		return nil, refusalText(msg)
	}
	if msg.PID == nil || *msg.PID <= 0 {
		if !msg.Events {
			return nil, "it returned no pid, and it reports no errors"
		}
		t := time.NewTimer(pidlessWait)
		defer t.Stop()
		for {
			select {
			case later := <-answers:
				if later.T == "refused" {
					return nil, refusalText(later)
				}
			case <-t.C:
				return nil, fmt.Sprintf("it returned no pid, and reported no error within %dms", pidlessWait.Milliseconds())
			case <-s.e.Context().Done():
				return nil, "the thread ended"
			}
		}
	}
	k := &child{pid: *msg.PID, own: msg.Own, answers: answers}
	own(k.pid)
	if m["direct"] != true {
		s.adoptLaunched(k.pid, asked)
	}
	h, err := proc.Open(k.pid)
	switch {
	case err == nil:
		k.handle = h
	case !k.own && errors.Is(err, proc.ErrGone) && isThread(k.pid):
		return nil, fmt.Sprintf("spawn handed back pid %d, which is the id of a thread and no process, rather than %s", k.pid, argv[0])
	}
	if !k.own {
		if why := s.handedBack(k, argv); why != "" {
			if k.handle != nil {
				k.handle.Close()
			}
			return nil, why
		}
	}
	return k, ""
}

func refusalText(m spawnMessage) string {
	if code, ok := m.Code.(string); ok && code != "" && !strings.Contains(m.Message, code) {
		return fmt.Sprintf("%s (%s)", m.Message, code)
	}
	return m.Message
}

func isThread(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

// handedBack judges a pid that came from a wrapper and not from Node itself: a
// host that keeps pid files of its own hands back whatever the file names.
func (s *session) handedBack(k *child, argv []string) string {
	if k.handle == nil {
		return ""
	}
	running, err := k.handle.Argv()
	if k.handle.Alive() == proc.No {
		if st, serr := k.handle.State(); serr == nil && st == proc.Zombie {
			return fmt.Sprintf("spawn handed back pid %d, which has exited and was never reaped, rather than %s", k.pid, argv[0])
		}
		return ""
	}
	if err != nil || proc.CompareArgv(running, argv) != proc.Differs {
		return ""
	}
	// A launcher's line with our token is ours even where the host resolved
	// the command to another path.
	if token := launcherToken(argv); token != "" && carries(running, token) {
		return ""
	}
	return fmt.Sprintf("spawn handed back pid %d, which is running `%s` rather than %s", k.pid, proc.Printable(strings.Join(running[:min(len(running), 1)], "")), argv[0])
}

// launcherToken is the token in a launcher's command line, "" for any other.
func launcherToken(argv []string) string {
	if !slices.Contains(argv, "launch") {
		return ""
	}
	if i := slices.Index(argv, "--token"); i >= 0 && i+1 < len(argv) && slices.Index(argv, "launch") < i {
		return argv[i+1]
	}
	return ""
}

// awaitKeeper waits until the keeper of token has named a process that runs,
// has failed, or cannot come any more (refusal).
func (s *session) awaitKeeper(ctx context.Context, token string, k *child) (f *following, lost loss, refusal string) {
	sub := s.hub.Subscribe(s.a.Name)
	defer sub.Close()
	limit := keeperStart + time.Duration(s.a.GraceMs)*time.Millisecond
	timer := time.NewTimer(limit)
	defer timer.Stop()
	wctx, cancel := context.WithCancel(s.e.Context())
	defer cancel()

	launcher := make(chan struct{})
	over := k == nil || k.handle == nil
	if !over {
		go closeWhenOver(wctx, k.handle, launcher)
		// From here on somebody reaps it, whatever becomes of this thread.
		defer adopted(k.handle, s.e.Context().Done())
	}
	var keeper *proc.Handle
	keeperOver := make(chan struct{})
	var life *os.File // the generation's last words, open before they can be removed
	defer func() {
		if keeper != nil {
			keeper.Close()
		}
		if life != nil {
			life.Close()
		}
	}()
	late := false
	for {
		var relook <-chan time.Time
		if life == nil {
			life, _ = record.OpenLife(s.dir, s.a.Name, token)
		}
		rec, err := record.Read(s.dir, s.a.Name)
		mine := err == nil && rec.Ours() && rec.Token == token
		switch {
		case mine && rec.PID > 0 && !rec.Starting:
			claim.Keep(token)
			return s.started(ctx, rec, k), nothingLost, ""
		case mine && rec.Keeper > 0 && keeper == nil:
			claim.Keep(token)
			v, h := proc.Identify(rec.Keeper, proc.Want{Argv: rec.KeeperArgv})
			if v == proc.Differs && h != nil {
				h.Close()
				h = nil
			}
			if h != nil {
				keeper = h
				go closeWhenOver(wctx, h, keeperOver)
			} else if v == proc.Differs {
				over = true
			}
		case err == nil && !mine:
			if x := s.lastWord(token, life); x != nil {
				return s.endedEarly(ctx, token, x, k)
			}
			if rec.Ours() {
				s.log("warn", "%s: the claim was taken over while its keeper was being started", s.a.Title)
				return nil, lostToAnother, ""
			}
			// A keeper that gives up removes the record before it leaves its exit
			// record: while it lives, its word is on the way.
			relook = time.After(lifeLook)
			if life == nil || lock.LockHeld(life) != proc.Yes || late {
				s.log("warn", "%s: the claim was removed while its keeper was being started", s.a.Title)
				return nil, lostToReaper, ""
			}
		}
		if over && keeper != nil && keeper.Alive() != proc.No {
			// The launcher did its work and ended; the keeper is the one to wait
			// for, and it must not find us in its gate.
			over = false
		}
		if over || late {
			actx, cancel := s.hurried(s.e.Context())
			rec, held, err := claim.AtWork(actx, s.dir, s.a.Name, token)
			cancel()
			switch {
			case err != nil:
				s.fail("%s failed to start: %v", s.a.Title, err)
				return nil, nothingLost, ""
			case !rec.Ours() || rec.Token != token:
				if held == proc.Yes {
					relook = time.After(lifeLook)
					break // its word is on the way
				}
				continue // it changed since we read it
			case held == proc.No && rec.PID > 0:
				// The keeper died between naming the process and confirming it. If
				// the process got away it runs; a child that is still held ends by
				// itself, and then the claim is entered once more.
				f := s.follower(rec)
				if f == nil {
					return nil, lostToReaper, ""
				}
				waits := claim.HeldChild(f.handle, rec)
				f.close()
				if !waits {
					return s.started(ctx, rec, k), nothingLost, ""
				}
				relook = time.After(lifeLook)
			case held == proc.No:
				if x := s.lastWord(token, life); x != nil {
					return s.endedEarly(ctx, token, x, k)
				}
				return nil, nothingLost, s.howItEnded(k)
			case late && rec.PID == 0:
				if rec.Keeper == 0 {
					_, _ = s.giveBack(token)
				}
				s.fail("%s failed to start: its launcher named no pid within %d ms; what it may still start will find the claim gone, or is named by pid %d", s.a.Title, limit.Milliseconds(), rec.Keeper)
				return nil, nothingLost, ""
			case late:
				s.fail("%s failed to start: pid %d did not confirm its start within %d ms; its keeper pid %d goes on with it", s.a.Title, rec.PID, limit.Milliseconds(), rec.Keeper)
				return nil, nothingLost, ""
			}
		}
		select {
		case <-sub.C():
		case <-relook:
		case <-launcher:
			over, launcher = true, nil
		case <-keeperOver:
			over, keeperOver = true, nil
		case <-timer.C:
			late = true
		case <-ctx.Done():
			_, _ = s.giveBack(token)
			return nil, nothingLost, ""
		}
	}
}

// lifeLook is how soon a life lock is looked at again while its holder is
// ending: no event tells of its release, and the holder's pid may not be known.
const lifeLook = 20 * time.Millisecond

// lastWord is what the keeper or launcher of token has said about its end: in
// the exit record or, before and without one, in its life file.
func (s *session) lastWord(token string, life *os.File) *record.Exit {
	if x, err := record.ReadExit(s.dir, s.a.Name); err == nil && x != nil && x.Token == token {
		return x
	}
	if life == nil {
		return nil
	}
	l, err := record.ReadLife(life)
	if err != nil || l.Words == nil {
		return nil
	}
	return wordsOf(l, token)
}

// wordsOf is a keeper's last words in the form of an exit record.
func wordsOf(l record.Life, token string) *record.Exit {
	w := l.Words
	return &record.Exit{
		Token: token, Keeper: l.Keeper, PID: w.PID, Code: w.Code, Signal: w.Signal, Outcome: w.Outcome,
		Restarts: w.Restarts, WaitMs: w.WaitMs, Error: w.Error, Released: true,
	}
}

func closeWhenOver(ctx context.Context, h *proc.Handle, ch chan<- struct{}) {
	if h.Wait(ctx) == nil {
		close(ch)
	}
}

// howItEnded is why a launcher counts as refused although it was spawned.
func (s *session) howItEnded(k *child) string {
	how := "its launcher ended and named no pid"
	if k == nil {
		return how
	}
	t := time.NewTimer(launcherWait)
	defer t.Stop()
	for {
		select {
		case m := <-k.answers:
			switch {
			case m.T == "refused":
				return refusalText(m)
			case m.T == "exit":
				return fmt.Sprintf("its launcher ended with %s and named no pid", m.how())
			}
		case <-t.C:
			return how
		case <-s.e.Context().Done():
			return how
		}
	}
}

// how is an exit message in words.
func (m spawnMessage) how() string {
	if m.Signal != nil && *m.Signal != "" {
		return "signal " + *m.Signal
	}
	if code, ok := m.Code.(float64); ok {
		return fmt.Sprintf("exit code %d", int(code))
	}
	return "no exit code"
}

// endedEarly answers a keeper's record that came before its commit was seen:
// it could not start the process, or the process has already ended.
func (s *session) endedEarly(ctx context.Context, token string, x *record.Exit, k *child) (*following, loss, string) {
	claim.Keep(token)
	s.awaitLauncher(ctx, k)
	if x.Outcome == record.Failed || x.PID == 0 {
		why := x.Error
		if why == "" {
			why = "its keeper ended as " + string(x.Outcome)
		}
		// Last words say nothing of the record: it may have been what their keeper
		// could not get at.
		if _, err := s.giveBack(token); err != nil {
			why += fmt.Sprintf("; and giving the claim back failed: %v", err)
		}
		s.fail("%s failed to start: %s", s.a.Title, why)
		return nil, nothingLost, ""
	}
	s.patch(pair{"pid", x.PID}, pair{"adopted", false}, pair{"started", true})
	s.log("info", "%s started as pid %d under keeper pid %d: %s", s.a.Title, x.PID, x.Keeper, s.file)
	lockPath := s.dir.Join(s.a.Name + lock.RecordSuffix)
	rec := &record.Record{PID: x.PID, Token: token, Keeper: x.Keeper, KeeperArgv: []string{s.a.Paths.Keeper, "keep", "--lock", lockPath, "--token", token}, Version: s.a.Version, Argv: s.want, Host: proc.Self().PID, HostStarted: proc.Self().Started, Restarts: s.restarts}
	f := &following{rec: rec, over: true, said: x}
	s.attachKeeper(f)
	return f, nothingLost, ""
}

// awaitLauncher lets the event loop reap the launcher, so that guard() leaves
// no zombie behind for as long as the loop is busy with something else.
func (s *session) awaitLauncher(ctx context.Context, k *child) {
	if k == nil || k.handle == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, launcherWait)
	defer cancel()
	_ = k.handle.Reaped(ctx)
}

// started fills the state of a process that this thread brought up.
func (s *session) started(ctx context.Context, rec *record.Record, k *child) *following {
	f := s.follower(rec)
	if f == nil {
		// Dead already; its keeper will say of what.
		f = &following{rec: rec, over: true}
		s.attachKeeper(f)
	}
	s.nowRuns(rec, false)
	s.log("info", "%s started as pid %d under keeper pid %d: %s", s.a.Title, rec.PID, rec.Keeper, s.file)
	s.awaitLauncher(ctx, k)
	return f
}

// direct lets JavaScript start the process itself.
func (s *session) direct(ctx context.Context, token string, orphan *record.Record) (*following, loss) {
	s.awaitOrphan(ctx, orphan)
	before := childrenNow()
	k, refusal := s.spawn(ctx, token, s.argv, map[string]any{"command": s.a.BinaryPath, "args": s.a.Args, "env": nil, "direct": true})
	if ctx.Err() != nil || s.e.Closed() {
		s.abandon(k)
		s.settleDirect(token, before, k)
		return nil, nothingLost
	}
	if refusal != "" {
		// A spawn that threw, or handed back something else, may have started it
		// all the same.
		h := s.strayChild(before)
		if h == nil {
			if _, err := s.giveBack(token); err != nil {
				refusal += fmt.Sprintf("; and giving the claim back failed: %v", err)
			}
			s.fail("%s failed to start: %s", s.a.Title, refusal)
			return nil, nothingLost
		}
		s.note("the spawn of %s was refused (%s) and started pid %d nevertheless; it is guarded", s.a.Title, refusal, h.PID())
		k = &child{pid: h.PID(), handle: h, answers: make(chan spawnMessage)}
	}
	if k.handle == nil {
		return s.overAlready(token, k), nothingLost
	}
	cctx, cancel := s.hurried(s.e.Context())
	rec, taken, err := claim.CommitDirect(cctx, s.dir, s.a.Name, token, k.handle, s.want)
	cancel()
	if taken {
		go stopStray(k.handle)
		if rec.Ours() {
			return nil, lostToAnother
		}
		return nil, lostToReaper
	}
	if err != nil {
		// Without a record the next claimant would start a second one.
		claim.Keep(token)
		go stopStray(k.handle)
		_, _ = s.giveBack(token)
		s.fail("the lock for %s could not be updated with pid %d: %v; the process was stopped again", s.a.Title, k.pid, err)
		return nil, nothingLost
	}
	if h, err := proc.Open(k.pid); err == nil {
		// When this thread ends before its child does, no event loop is left to
		// reap it.
		adopted(h, s.e.Context().Done())
	}
	s.startedDirect(k)
	return &following{rec: rec, direct: k, handle: k.handle}, nothingLost
}

func (s *session) startedDirect(k *child) {
	s.patch(pair{"restarts", s.restarts}, pair{"pid", k.pid}, pair{"adopted", false}, pair{"started", true})
	s.log("info", "%s started as pid %d: %s", s.a.Title, k.pid, s.file)
}

// overAlready follows a process that its event loop had collected before anybody
// could open it. It did start: its end is on the way, and the claim stays until
// that is answered.
func (s *session) overAlready(token string, k *child) *following {
	s.startedDirect(k)
	rec := &record.Record{PID: k.pid, Token: token, Version: s.a.Version, Argv: s.want, Host: proc.Self().PID, HostStarted: proc.Self().Started, Restarts: s.restarts}
	return &following{rec: rec, direct: k, over: true}
}

// childrenNow lists the host's own children, to tell later which are new.
func childrenNow() map[int]bool {
	out := map[int]bool{}
	kids, _ := proc.Children(os.Getpid())
	for _, pid := range kids {
		out[pid] = true
	}
	return out
}

// settleDirect ends a direct spawn whose thread died before it could report: a
// child of the host that came since with our command line is committed, so that
// the next caller joins it; without one the claim is given back. A host killed
// at this point leaves a process that no record names; that gap is documented.
func (s *session) settleDirect(token string, before map[int]bool, k *child) {
	var h *proc.Handle
	if k != nil {
		if v, mine := proc.Identify(k.pid, proc.Want{Argv: s.want}); v == proc.Match {
			h = mine
		} else if mine != nil {
			mine.Close()
		}
	} else {
		h = s.strayChild(before)
	}
	if h == nil {
		_, _ = s.giveBack(token)
		return
	}
	_, taken, err := claim.CommitDirect(context.Background(), s.dir, s.a.Name, token, h, s.want)
	if taken || err != nil {
		go stopStray(h)
	} else {
		adopted(h, s.e.Context().Done())
	}
}

// awaitOrphan gives a displaced process the time that replaceGraceMs says,
// where no keeper is there to do it.
func (s *session) awaitOrphan(ctx context.Context, orphan *record.Record) {
	if orphan == nil || s.a.GraceMs <= 0 {
		return
	}
	v, h := proc.Identify(orphan.PID, orphan.Want())
	if h == nil {
		return
	}
	defer h.Close()
	if v != proc.Match {
		return
	}
	wctx, cancel := context.WithTimeout(ctx, time.Duration(s.a.GraceMs)*time.Millisecond)
	defer cancel()
	if h.Wait(wctx) != nil && s.a.GraceKill && ctx.Err() == nil {
		_ = h.Signal(syscall.SIGKILL)
		_ = h.Wait(ctx)
	}
}

// strayChild is a child of the host that was not there before and runs what we
// wanted; nil if there is none.
func (s *session) strayChild(before map[int]bool) *proc.Handle {
	kids, _ := proc.Children(os.Getpid())
	for _, pid := range kids {
		if _, known := owned.Load(pid); known || before[pid] {
			continue
		}
		v, h := proc.Identify(pid, proc.Want{Argv: s.want})
		if v == proc.Match && h.Alive() != proc.No {
			return h
		}
		if h != nil {
			h.Close()
		}
	}
	return nil
}

// stopStray ends a process that was started under a claim somebody else has:
// SIGTERM, five seconds, SIGKILL, through the handle it was opened with.
func stopStray(h *proc.Handle) {
	_ = protect("stopping a process whose claim was taken", func() error {
		_ = h.Signal(syscall.SIGTERM)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := h.Wait(ctx)
		cancel()
		if err != nil {
			_ = h.Signal(syscall.SIGKILL)
		}
		adopted(h, nil)
		return nil
	})
}
