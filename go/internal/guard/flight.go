package guard

import (
	"context"
	"sync"

	"processguard/go/internal/record"
)

// flights lets the threads of one host share one start: the first caller of a
// configuration claims and starts, the others wait for it and join what it has
// instead of passing the gate one by one.
var flights = struct {
	sync.Mutex
	m map[string]*flight
}{m: map[string]*flight{}}

type flight struct {
	done chan struct{}
	rec  *record.Record // what runs; nil: the leader has nothing to share
	why  string         // why the claim was refused, "" if it was not
}

// board returns a leader when the caller is to do the work itself and call
// land, and otherwise what another caller brought up, or why its claim was
// refused: callers that waited for one decision share that too, or the last of
// 32 threads would hear of an unidentifiable pid after 32 budgets.
func board(ctx context.Context, key string) (leader *flight, shared *record.Record, refused string, err error) {
	for {
		flights.Lock()
		f := flights.m[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			flights.m[key] = f
			flights.Unlock()
			return f, nil, "", nil
		}
		flights.Unlock()
		select {
		case <-f.done:
			if f.rec != nil || f.why != "" {
				return nil, f.rec, f.why, nil
			}
		case <-ctx.Done():
			return nil, nil, "", ctx.Err()
		}
	}
}

// land ends a flight. It is safe to call twice; the first call counts.
func (f *flight) land(key string, rec *record.Record) { f.end(key, rec, "") }

// refuse ends a flight whose claim was refused.
func (f *flight) refuse(key, why string) { f.end(key, nil, why) }

func (f *flight) end(key string, rec *record.Record, why string) {
	flights.Lock()
	defer flights.Unlock()
	select {
	case <-f.done:
		return
	default:
	}
	f.rec, f.why = rec, why
	if flights.m[key] == f {
		delete(flights.m, key)
	}
	close(f.done)
}
