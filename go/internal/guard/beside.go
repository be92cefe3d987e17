package guard

import (
	"context"
	"encoding/json"
	"sync"

	"processguard/go/internal/hostpid"
	"processguard/go/internal/lock"
	"processguard/go/internal/once"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/usage"
	"processguard/go/internal/verdict"
	"processguard/go/internal/watch"
)

// What stands beside the guard itself: host pid files, verdicts, figures, and
// the small shared files of periodic work.
func init() {
	registerSync("clearStaleHostPidFiles", func(a struct {
		Root    string           `json:"root"`
		Targets []hostpid.Target `json:"targets"`
	},
	) (any, error) {
		return hostpid.Clear(a.Root, a.Targets), nil
	})
	registerSync("readProcess", func(a struct {
		PID int `json:"pid"`
	},
	) (any, error) {
		if c, ok := usage.Read(a.PID); ok {
			return c, nil
		}
		return nil, nil
	})
	registerSync("verdict", func(a struct {
		State      verdict.State `json:"state"`
		Now        float64       `json:"now"`
		IntervalMs float64       `json:"intervalMs"`
	},
	) (any, error) {
		out := map[string]any{"stale": verdict.Stale(a.State), "retake": verdict.Retake(a.State, a.Now, a.IntervalMs)}
		if verdict.Stale(a.State) {
			out["detail"] = verdict.StaleDetail(a.State)
		}
		return out, nil
	})
	registerSync("claimSingleton", func(a struct {
		Dir     string   `json:"dir"`
		File    string   `json:"file"`
		Holder  string   `json:"holder"`
		StaleMs float64  `json:"staleMs"`
		Now     *float64 `json:"now"`
	},
	) (any, error) {
		return once.Claim(a.Dir, a.File, a.Holder, a.StaleMs, a.Now), nil
	})
	// For a caller who brings the file's text and writes it: nothing is locked.
	registerSync("decideSingleton", func(a struct {
		Text    string  `json:"text"`
		Holder  string  `json:"holder"`
		StaleMs float64 `json:"staleMs"`
		Now     float64 `json:"now"`
	},
	) (any, error) {
		text, won := once.Would(a.Text, a.Holder, a.StaleMs, a.Now)
		return map[string]any{"won": won, "text": text}, nil
	})
	type markArgs struct {
		Dir   string  `json:"dir"`
		File  string  `json:"file"`
		Value float64 `json:"value"`
	}
	registerSync("getMark", func(a markArgs) (any, error) {
		if n, ok := once.Get(a.Dir, a.File); ok {
			return n, nil
		}
		return nil, nil
	})
	registerSync("setMark", func(a markArgs) (any, error) { return nil, once.Set(a.Dir, a.File, a.Value) })
	registerSync("addMark", func(a markArgs) (any, error) { return once.Add(a.Dir, a.File, a.Value) })
	// What one thread of the host has seen, for the others: JavaScript has no
	// word that reaches a thread it did not start.
	registerSync("seen", func(a struct {
		Key  string `json:"key"`
		Note bool   `json:"note"`
	},
	) (any, error) {
		if a.Note {
			seen.Store(a.Key, true)
		}
		_, ok := seen.Load(a.Key)
		return ok, nil
	})
	registerSync("recordState", recordState)
	RegisterCall("watchRecord", watchRecord)
}

var seen sync.Map

// registerSync is RegisterSync with the arguments decoded.
func registerSync[A any](fn string, f func(A) (any, error)) {
	RegisterSync(fn, func(_ *Env, raw json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, Errorf("PG_ARGUMENT", "%s: %w", fn, err)
		}
		return f(a)
	})
}

// recordState answers what {file} records and whether that process runs: the
// held process of heldProcess, the verdict by the whole record (start identity
// and keeper included), and the one by its command line alone.
func recordState(a struct {
	File string `json:"file"`
},
) (any, error) {
	rec := readRecordAt(a.File, true)
	if rec == nil {
		return nil, nil
	}
	out := map[string]any{"pid": rec.PID, "version": rec.Version, "restarts": rec.Restarts, "ours": rec.Ours(), "verdict": "differs", "running": nil}
	if rec.PID <= 0 {
		return out, nil
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	if h != nil {
		defer h.Close()
		if h.Alive() == proc.No {
			v = proc.Differs
		} else if argv, err := h.Argv(); err == nil && len(argv) > 0 {
			out["running"] = proc.Printable(argv[0])
		}
	}
	out["verdict"] = v.String()
	return out, nil
}

// watchRecord tells of each change of one record until JavaScript drops the
// session: {"t":"record","running":bool,"pid":n}. The death of the recorded
// process is a kernel event and not a look every minute. {"t":"gone"} is the
// last message when the directory was removed or replaced: what lies at its
// path from then on needs a new session.
func watchRecord(ctx context.Context, _ *Env, c *Call, raw json.RawMessage) (any, error) {
	var a struct {
		PidDir string `json:"pidDir"`
		Name   string `json:"name"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "watchRecord: %w", err)
	}
	if err := checkName("watchRecord", a.Name); err != nil {
		return nil, err
	}
	dir, err := lock.OpenExisting(a.PidDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	hub, err := watch.For(dir.Path())
	if err != nil {
		return nil, err
	}
	defer hub.Release()
	sub := hub.Subscribe(a.Name)
	defer sub.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = protect("listening", func() error {
			for range c.Receive() { // JavaScript says nothing; the end of it is the drop
			}
			return nil
		})
		cancel()
	}()
	c.Answer(true, nil)
	var last *told
	for ctx.Err() == nil {
		h, pid := recorded(dir, a.Name)
		// A record that was rewritten with the same process in it is no news.
		if now := (told{running: h != nil, pid: pid}); last == nil || *last != now {
			last = &now
			c.Message(map[string]any{"t": "record", "running": now.running, "pid": now.pid})
		}
		wait, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		if h != nil {
			go closeWhenOver(wait, h, ended)
		}
		gone := false
		select {
		case <-sub.C():
		case <-ended:
		case <-hub.Gone():
			gone = true
		case <-ctx.Done():
		}
		stop()
		if h != nil {
			h.Close()
		}
		if gone {
			c.Message(map[string]any{"t": "gone"})
			return nil, nil
		}
	}
	return nil, nil
}

// told is what JavaScript knows of a watched record.
type told struct {
	running bool
	pid     int
}

// recorded opens the process that a record names, nil when it does not run.
func recorded(dir *lock.Dir, name string) (*proc.Handle, int) {
	rec, err := record.Read(dir, name)
	if err != nil || !rec.Ours() || rec.PID <= 0 {
		return nil, 0
	}
	v, h := proc.Identify(rec.PID, rec.Want())
	if h != nil && (v == proc.Differs || h.Alive() == proc.No) {
		h.Close()
		h = nil
	}
	return h, rec.PID
}
