package guard

import (
	"io"
	"os"

	"processguard/go/internal/exit"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
)

func init() {
	registerSync("identify", syncIdentify)
	registerSync("argvOf", syncArgvOf)
	registerSync("heldProcess", syncHeldProcess)
	registerSync("describeExit", syncDescribeExit)
	registerSync("describeSpawnFailure", syncDescribeSpawnFailure)
}

// syncIdentify answers 'match', 'differs' or 'unknown' for {pid, expected}.
func syncIdentify(a struct {
	PID      int      `json:"pid"`
	Expected []string `json:"expected"`
},
) (any, error) {
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
func syncArgvOf(a struct {
	PID int `json:"pid"`
},
) (any, error) {
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

func syncHeldProcess(a struct {
	File string `json:"file"`
},
) (any, error) {
	rec := readRecordAt(a.File, false)
	if rec == nil || rec.PID <= 0 {
		return nil, nil
	}
	if rec.Argv == nil {
		rec.Argv = []string{}
	}
	return held{PID: rec.PID, Version: rec.Version, Token: rec.Token, Host: rec.Host, Argv: rec.Argv, Keeper: rec.Keeper, KeeperArgv: rec.KeeperArgv, Started: rec.Started}, nil
}

// readRecordAt reads a record by path; nil when there is none. A FIFO under
// that name must not stop the thread that asks. Where something is decided by
// it, one that another user planted is none.
func readRecordAt(path string, decides bool) *record.Record {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if uid, err := lock.Owner(f); decides && (err != nil || lock.Foreign(uid)) {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return nil
	}
	return record.Decode(text)
}

func syncDescribeExit(a struct {
	Code   *int    `json:"code"`
	Signal *string `json:"signal"`
},
) (any, error) {
	sig := ""
	if a.Signal != nil {
		sig = *a.Signal
	}
	r := exit.Describe(a.Code, sig)
	return map[string]any{"killed": r.Killed, "deliberate": r.Deliberate, "detail": r.Detail, "exitCode": r.ExitCode}, nil
}

func syncDescribeSpawnFailure(a struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Path    string `json:"path"`
},
) (any, error) {
	return exit.SpawnFailure(a.Code, a.Message, a.Path), nil
}
