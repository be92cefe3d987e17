package guard

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"processguard/go/internal/exit"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

func init() {
	RegisterSync("identify", syncIdentify)
	RegisterSync("argvOf", syncArgvOf)
	RegisterSync("heldProcess", syncHeldProcess)
	RegisterSync("describeExit", syncDescribeExit)
	RegisterSync("describeSpawnFailure", syncDescribeSpawnFailure)
}

// syncIdentify answers 'match', 'differs' or 'unknown' for {pid, expected}.
func syncIdentify(_ *Env, raw json.RawMessage) (any, error) {
	var a struct {
		PID      int      `json:"pid"`
		Expected []string `json:"expected"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "identify: %w", err)
	}
	v, h := proc.Identify(a.PID, proc.Want{Argv: a.Expected})
	if h != nil {
		// What has ended is nobody any more, also while it still can be read.
		if h.Alive() == proc.No {
			v = proc.Differs
		}
		h.Close()
	}
	return v.String(), nil
}

// syncArgvOf answers the command line of {pid}, null when it cannot be read.
func syncArgvOf(_ *Env, raw json.RawMessage) (any, error) {
	var a struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "argvOf: %w", err)
	}
	h, err := proc.Open(a.PID)
	if err != nil {
		return nil, nil
	}
	defer h.Close()
	argv, err := h.Argv()
	if err != nil || len(argv) == 0 {
		return nil, nil
	}
	return argv, nil
}

// held is what heldProcess answers, in the original's words.
type held struct {
	PID        int      `json:"pid"`
	Version    int64    `json:"version"`
	Token      string   `json:"token"`
	Host       int      `json:"host"`
	Argv       []string `json:"argv"`
	Keeper     int      `json:"keeper,omitempty"`
	KeeperArgv []string `json:"keeperArgv,omitempty"`
	Started    string   `json:"started,omitempty"`
}

func syncHeldProcess(_ *Env, raw json.RawMessage) (any, error) {
	var a struct {
		File string `json:"file"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "heldProcess: %w", err)
	}
	rec := readRecordAt(a.File)
	if rec == nil || rec.PID <= 0 {
		return nil, nil
	}
	if rec.Argv == nil {
		rec.Argv = []string{}
	}
	return held{PID: rec.PID, Version: rec.Version, Token: rec.Token, Host: rec.Host, Argv: rec.Argv, Keeper: rec.Keeper, KeeperArgv: rec.KeeperArgv, Started: rec.Started}, nil
}

// readRecordAt reads a record by path; nil when there is none. A FIFO under
// that name must not stop the thread that asks.
func readRecordAt(path string) *record.Record {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return nil
	}
	return record.Decode(text)
}

func syncDescribeExit(_ *Env, raw json.RawMessage) (any, error) {
	var a struct {
		Code   *int    `json:"code"`
		Signal *string `json:"signal"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "describeExit: %w", err)
	}
	sig := ""
	if a.Signal != nil {
		sig = *a.Signal
	}
	r := exit.Describe(a.Code, sig)
	return map[string]any{"killed": r.Killed, "deliberate": r.Deliberate, "detail": r.Detail, "exitCode": r.ExitCode}, nil
}

func syncDescribeSpawnFailure(_ *Env, raw json.RawMessage) (any, error) {
	var a struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Path    string `json:"path"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "describeSpawnFailure: %w", err)
	}
	return exit.SpawnFailure(a.Code, a.Message, a.Path), nil
}

// inheritsOrphans says whether processes whose parent died become children of
// this one: as pid 1 of its namespace, or as a subreaper.
var inheritsOrphans = sync.OnceValue(func() bool {
	if os.Getpid() == 1 {
		return true
	}
	var on int
	return subreaper(&on) && on != 0
})

// defaultStop is how long stopProcess waits when the caller does not say.
const defaultStop = 10 * time.Second
