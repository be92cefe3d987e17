package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/watch"
)

func init() { RegisterCall("stopProcess", stopProcess) }

// defaultStop is how long stopProcess waits when the caller does not say.
const defaultStop = 10 * time.Second

// stopped is the answer of status.stopProcess().
type stopped struct {
	Stopped bool   `json:"stopped"`
	PID     int    `json:"pid"`
	Code    any    `json:"code"`
	Signal  any    `json:"signal"`
	Detail  string `json:"detail"`
}

type stopArgs struct {
	PidDir    string `json:"pidDir"`
	Name      string `json:"name"`
	TimeoutMs *int64 `json:"timeoutMs"`
	Force     bool   `json:"force"`
	Version   *int64 `json:"version"` // of the caller's configuration
}

// stopProcess ends a guarded process through its keeper, which forwards the
// signal and restarts nothing after. Without a keeper the process itself gets
// it. SIGKILL comes only with force, and only when the time is over.
func stopProcess(ctx context.Context, _ *Env, _ *Call, raw json.RawMessage) (any, error) {
	var a stopArgs
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "stopProcess: %w", err)
	}
	if err := checkName("stopProcess", a.Name); err != nil {
		return nil, err
	}
	patience := defaultStop
	if a.TimeoutMs != nil {
		patience = time.Duration(*a.TimeoutMs) * time.Millisecond
	}
	dir, err := lock.OpenExisting(a.PidDir)
	if err != nil {
		return stopped{Detail: fmt.Sprintf("nothing to stop: %v", err)}, nil
	}
	defer dir.Close()
	hub, err := watch.For(dir.Path())
	if err != nil {
		return nil, Errorf("PG_FAILED", "stopProcess %s: %w", a.Name, err)
	}
	defer hub.Release()
	sub := hub.Subscribe(a.Name)
	defer sub.Close()
	wctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	rec, err := named(wctx, dir, a.Name, sub)
	if err != nil {
		return nil, Errorf("PG_FAILED", "stopProcess %s: %w", a.Name, err)
	}
	if rec == nil {
		return stopped{Detail: fmt.Sprintf("no process is recorded in %s", dir.Join(a.Name+lock.RecordSuffix))}, nil
	}
	if a.Version != nil && rec.Version != *a.Version {
		return stopped{PID: rec.PID, Detail: fmt.Sprintf("%s belongs to another configuration by now (pid %d, version %d, not %d); nothing was signalled: stop it through the guard() of that version", dir.Join(a.Name+lock.RecordSuffix), rec.PID, rec.Version, *a.Version)}, nil
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	if h != nil {
		defer h.Close()
	}
	kv, keeper := proc.Verdict(proc.Differs), (*proc.Handle)(nil)
	if rec.Keeper > 0 {
		kv, keeper = proc.Identify(rec.Keeper, proc.Want{Argv: rec.KeeperArgv})
		if keeper != nil {
			defer keeper.Close()
		}
	}
	ans := stopped{PID: rec.PID}
	life, _ := record.OpenLife(dir, a.Name, rec.Token)
	if life != nil {
		defer life.Close()
	}
	switch {
	case kv == proc.Match:
		err = keeper.Signal(syscall.SIGTERM)
	case v == proc.Match:
		err = stopUnkept(wctx, dir, a.Name, rec, h)
	case v == proc.Differs:
		ans.Stopped = true
		ans.Detail = fmt.Sprintf("pid %d was not running any more", rec.PID)
		return ans, nil
	default:
		ans.Detail = fmt.Sprintf("pid %d could not be identified and was not signalled", rec.PID)
		return ans, nil
	}
	if err != nil {
		ans.Detail = fmt.Sprintf("pid %d could not be signalled: %v", rec.PID, err)
		return ans, nil
	}
	if !over(wctx, h, keeper, kv == proc.Match) {
		if !a.Force {
			ans.Detail = fmt.Sprintf("pid %d was sent SIGTERM and still runs after %d ms; pass force to end it with SIGKILL", rec.PID, patience.Milliseconds())
			return ans, nil
		}
		if v == proc.Match {
			_ = h.Signal(syscall.SIGKILL)
		}
		kctx, cancel := context.WithTimeout(ctx, defaultStop)
		defer cancel()
		if v == proc.Match && h.Wait(kctx) == nil && !keeperEnds(ctx, keeper, kv == proc.Match) {
			// The process is gone; only its keeper does not move.
			ans.Stopped = true
			ans.Detail = fmt.Sprintf("pid %d was ended with SIGKILL; its keeper pid %d%s has not ended yet", rec.PID, rec.Keeper, stateOf(keeper))
			if x, ok := ending(dir, a.Name, rec, life, h); ok {
				ans.Code, ans.Signal = codeOf(x), signalOf(x)
			}
			return ans, nil
		}
		if v != proc.Match {
			ans.Detail = fmt.Sprintf("pid %d was asked to end through its keeper and still runs; it could not be identified, so it got no SIGKILL", rec.PID)
			return ans, nil
		}
		if h.Alive() != proc.No {
			ans.Detail = fmt.Sprintf("pid %d was sent SIGTERM and SIGKILL and is still there", rec.PID)
			return ans, nil
		}
		ans.Detail = fmt.Sprintf("pid %d ignored SIGTERM for %d ms and was ended with SIGKILL", rec.PID, patience.Milliseconds())
	}
	ans.Stopped = true
	if x, ok := ending(dir, a.Name, rec, life, h); ok {
		ans.Code, ans.Signal = codeOf(x), signalOf(x)
	}
	if ans.Detail == "" {
		ans.Detail = fmt.Sprintf("pid %d was sent SIGTERM and ended", rec.PID)
	}
	return ans, nil
}

// keeperEnds gives the keeper of a process that was killed a moment to end too.
func keeperEnds(ctx context.Context, keeper *proc.Handle, kept bool) bool {
	wctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return !kept || keeper.Wait(wctx) == nil
}

// stopUnkept signals a process that has no keeper. The threads that watch it
// read from its record that the end was asked for: a process that answers
// SIGTERM with exit code 143, or with SIGKILL, would be started again.
func stopUnkept(ctx context.Context, dir *lock.Dir, name string, rec *record.Record, h *proc.Handle) error {
	g, err := dir.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer g.Unlock()
	cur, err := record.Read(dir, name)
	if err != nil {
		return err
	}
	if !cur.Ours() || cur.Token != rec.Token || cur.PID != rec.PID {
		return errors.New("its record changed meanwhile")
	}
	cur.Stopping = true
	if err := record.Write(dir, g, name, cur); err != nil {
		return err
	}
	return h.Signal(syscall.SIGTERM)
}

// named waits until a record names a process; nil when there is none to wait for.
func named(ctx context.Context, dir *lock.Dir, name string, sub *watch.Sub) (*record.Record, error) {
	for {
		rec, err := record.Read(dir, name)
		if err != nil || !rec.Ours() {
			return nil, err
		}
		if rec.PID > 0 {
			return rec, nil
		}
		if !hostAlive(rec.Host, rec.HostStarted) && rec.Keeper == 0 {
			return nil, nil
		}
		wctx, cancel := context.WithCancel(ctx)
		hostOver := make(chan struct{})
		host, _ := proc.Open(rec.Host)
		if host != nil {
			go closeWhenOver(wctx, host, hostOver)
		}
		select {
		case <-sub.C():
		case <-hostOver:
		case <-ctx.Done():
			err = fmt.Errorf("it is still being started: %w", ctx.Err())
		}
		cancel()
		if host != nil {
			host.Close()
		}
		if err != nil {
			return nil, err
		}
	}
}

func stateOf(h *proc.Handle) string {
	st, err := h.State()
	if err != nil {
		return ""
	}
	return " (" + st.String() + ")"
}

// over waits for the process and for its keeper, which may be the only one left.
func over(ctx context.Context, h, keeper *proc.Handle, kept bool) bool {
	if h != nil && h.Wait(ctx) != nil {
		return false
	}
	return !kept || keeper.Wait(ctx) == nil
}

func ending(dir *lock.Dir, name string, rec *record.Record, life *os.File, h *proc.Handle) (proc.Exit, bool) {
	s := &session{dir: dir}
	s.a.Name = name
	f := &following{rec: rec, handle: h, life: life}
	if say := s.said(f); say != nil && say.known && say.pid == rec.PID {
		return say.exit, true
	}
	if h == nil {
		return proc.Exit{}, false
	}
	return h.Exit()
}
