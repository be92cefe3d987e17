package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"processguard/go/internal/claim"
	"processguard/go/internal/lock"
	"processguard/go/internal/logfile"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
	"processguard/go/internal/watch"
)

func init() { RegisterCall("reaper", runReaper) }

// reaperArgs is the call "reaper": the reaper of one guard() call.
type reaperArgs struct {
	PidDir          string `json:"pidDir"`
	Name            string `json:"name"`
	Version         int64  `json:"version"`
	GraceMs         int64  `json:"graceMs"`
	ReplacementFile string `json:"replacementPidFile"`
	LogFile         string `json:"logFile"`
	ClaimMs         *int64 `json:"claimTimeoutMs"`
	Thread          int    `json:"thread"`
	ExecPath        string `json:"execPath"`
	Spawn           Spawn  `json:"spawn"`
	Paths           Paths  `json:"paths"`
}

func runReaper(ctx context.Context, e *Env, c *Call, raw json.RawMessage) (any, error) {
	var a reaperArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "reaper: %w", err)
	}
	if err := checkName("reaper", a.Name); err != nil {
		return nil, err
	}
	s := &session{e: e, c: c, first: true}
	s.a = processArgs{PidDir: a.PidDir, Name: a.Name, Title: "reaper " + a.Name, Version: a.Version, ClaimMs: a.ClaimMs, Thread: a.Thread, ExecPath: a.ExecPath, Spawn: a.Spawn, Paths: a.Paths}
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	s.spawns = map[int]chan spawnMessage{}
	go s.listen(c.Receive())
	s.reaper(ctx, &a)
	s.settle()
	return nil, nil
}

// reaper starts or joins the reaper. Whatever goes wrong is told and never
// stops the guarding itself.
func (s *session) reaper(ctx context.Context, a *reaperArgs) {
	dir, err := lock.OpenDir(a.PidDir)
	if err != nil {
		s.reaperFails("its lock could not be taken in %s: %v", a.PidDir, err)
		return
	}
	s.dir = dir
	defer dir.Close()
	hub, err := watch.For(dir.Path())
	if err != nil {
		s.reaperFails("its lock could not be taken in %s: %v", dir.Path(), err)
		return
	}
	s.hub = hub
	defer hub.Release()

	self := proc.Self()
	flags := []string{
		"--host-pid", strconv.Itoa(self.PID), "--host-started", self.Started, "--pid-dir", dir.Path(),
		"--grace-ms", strconv.FormatInt(a.GraceMs, 10), "--self-lock", dir.Join(a.Name + lock.RecordSuffix),
	}
	if a.ReplacementFile != "" {
		flags = append(flags, "--replacement-pid-file", s.absolute(a.ReplacementFile))
	}
	if a.LogFile != "" {
		flags = append(flags, "--log", s.absolute(a.LogFile))
	}
	s.want = append([]string{a.Paths.Reaper, "run"}, flags...)
	// One that another copy of this package started does the same job.
	if rec, err := record.Read(dir, a.Name); err == nil && rec.Ours() && len(rec.Argv) > 1 && slices.Equal(rec.Argv[1:], s.want[1:]) {
		s.want = rec.Argv
	}
	s.argv = s.want
	taken := false
	for {
		key := s.flightKey()
		leader, shared, refused, err := board(ctx, key)
		if err != nil {
			return
		}
		if refused != "" {
			s.reaperFails("%s", refused)
			return
		}
		if shared != nil {
			if s.joinReaper(shared) {
				return
			}
			continue
		}
		again := func() bool {
			defer leader.land(key, nil)
			return s.leadReaper(ctx, a, leader, key, flags, taken)
		}()
		if !again || ctx.Err() != nil {
			return
		}
		if taken {
			s.reaperFails("its claim in %s was taken away twice while it was being started; the next guard() tries again", dir.Path())
			return
		}
		taken = true
	}
}

func (s *session) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.a.Spawn.HostCwd, path)
}

func (s *session) reaperFails(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.patch(pair{"error", line})
	s.log("error", "the reaper %s was not started: %s", s.a.Name, line)
}

func (s *session) joinReaper(rec *record.Record) bool {
	v, h := proc.Identify(rec.PID, rec.Want())
	if h != nil {
		h.Close()
	}
	if v != proc.Match {
		return false
	}
	reapAfter(rec.PID, 0)
	s.patch(pair{"pid", rec.PID}, pair{"adopted", true}, pair{"started", true})
	return true
}

func (s *session) leadReaper(ctx context.Context, a *reaperArgs, fl *flight, key string, flags []string, taken bool) (again bool) {
	res, err := claim.Run(ctx, claim.Request{
		Dir: s.dir, Hub: s.hub, Name: a.Name, Version: a.Version, Argv: s.want, Thread: a.Thread,
		Budget: s.budget(), Succeeds: true, Closed: s.e.Closed,
	})
	for _, n := range res.Notes {
		s.report(fmt.Sprintf("%s: %s", a.Name, n))
	}
	var refused *claim.RefusedError
	switch {
	case ctx.Err() != nil:
		if res.Won != nil {
			_, _ = s.giveBack(res.Won.Token)
		}
		return false
	case errors.As(err, &refused):
		fl.refuse(key, err.Error())
		s.reaperFails("%v", err)
		return false
	case err != nil:
		s.reaperFails("its lock could not be taken in %s: %v", s.dir.Path(), err)
		return false
	case res.Joined != nil:
		if !s.joinReaper(res.Joined) {
			return true
		}
		fl.land(key, res.Joined)
		return false
	}
	if a.LogFile != "" {
		if f, err := logfile.Open(s.absolute(a.LogFile)); err != nil {
			s.note("the log of the reaper %s cannot be written: %v; it works without one: remove what lies there or name another file", a.Name, err)
		} else {
			f.Close()
		}
	}
	token := res.Won.Token
	launchFlags := append([]string{"launch", "--token", token, "--version", strconv.FormatInt(a.Version, 10)}, flags...)
	var refusals []string
	for i, cmd := range commands(a.Paths.Reaper, a.ExecPath, a.Paths.Launch, "reaper", launchFlags...) {
		if i > 0 {
			next, cur, ok, err := claim.Renew(ctx, claim.Request{Dir: s.dir, Name: a.Name, Thread: a.Thread}, token)
			if !ok {
				if err != nil {
					s.reaperFails("its lock could not be updated: %v", err)
				} else if cur != nil && cur.PID > 0 && s.joinReaper(cur) {
					fl.land(key, cur)
				}
				return err == nil && (cur == nil || cur.PID == 0)
			}
			cmd[slices.Index(cmd, "--token")+1] = next
			token = next
		}
		rec, refusal, lost := s.launchReaper(ctx, token, cmd)
		switch {
		case rec != nil:
			reapAfter(rec.PID, 0)
			s.patch(pair{"command", cmd[0]}, pair{"pid", rec.PID}, pair{"adopted", false}, pair{"started", true})
			fl.land(key, rec)
			return false
		case lost:
			return true
		case refusal == "":
			return false
		}
		refusals = append(refusals, fmt.Sprintf("%s: %s", cmd[0], refusal))
	}
	why := strings.Join(refusals, "; ")
	if _, err := s.giveBack(token); err != nil {
		why += fmt.Sprintf("; and giving its claim back failed: %v", err)
	}
	s.patch(pair{"error", why})
	s.note("the reaper %s could not be started (%s), so every guarded process will keep running after this host stops. Permit %s, %s or node in the host's spawn", a.Name, why, a.Paths.Reaper, a.ExecPath)
	return false
}

// launchReaper tries one command and waits for its launcher to name the reaper.
func (s *session) launchReaper(ctx context.Context, token string, cmd []string) (rec *record.Record, refusal string, lost bool) {
	env := spec.Shield(s.a.Spawn.Env, s.a.Spawn.HostPath)
	k, refusal := s.spawn(ctx, token, cmd, map[string]any{"command": cmd[0], "args": cmd[1:], "env": env, "direct": false})
	if ctx.Err() != nil {
		s.abandon(k)
		_, _ = s.giveBack(token)
		return nil, "", false
	}
	if refusal != "" {
		return nil, refusal, false
	}
	sub := s.hub.Subscribe(s.a.Name)
	defer sub.Close()
	wctx, cancel := context.WithCancel(s.e.Context())
	defer cancel()
	launcher := make(chan struct{})
	ended := k.handle == nil
	if !ended {
		go closeWhenOver(wctx, k.handle, launcher)
		defer adopted(k.handle, s.e.Context().Done())
	}
	timer := time.NewTimer(keeperStart)
	defer timer.Stop()
	for {
		cur, err := record.Read(s.dir, s.a.Name)
		if err == nil {
			switch {
			case !cur.Ours() || cur.Token != token:
				return nil, "", true
			case cur.PID > 0:
				s.awaitLauncher(ctx, k)
				return cur, "", false
			}
		}
		if ended {
			// The look above came after its end: it has named none.
			if x := s.lastWord(token, nil); x != nil && x.Error != "" {
				return nil, x.Error, false
			}
			return nil, s.howItEnded(k), false
		}
		select {
		case <-sub.C():
		case <-launcher:
			ended = true
		case <-timer.C:
			return nil, fmt.Sprintf("it named no pid within %d ms", keeperStart.Milliseconds()), false
		case <-ctx.Done():
			_, _ = s.giveBack(token)
			return nil, "", false
		}
	}
}
