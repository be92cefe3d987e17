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
}

// board returns leader true when the caller is to do the work itself and call
// land, and otherwise what another caller brought up.
func board(ctx context.Context, key string) (leader *flight, shared *record.Record, err error) {
	for {
		flights.Lock()
		f := flights.m[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			flights.m[key] = f
			flights.Unlock()
			return f, nil, nil
		}
		flights.Unlock()
		select {
		case <-f.done:
			if f.rec != nil {
				return nil, f.rec, nil
			}
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// land ends a flight. It is safe to call twice; the first call counts.
func (f *flight) land(key string, rec *record.Record) {
	flights.Lock()
	defer flights.Unlock()
	select {
	case <-f.done:
		return
	default:
	}
	f.rec = rec
	if flights.m[key] == f {
		delete(flights.m, key)
	}
	close(f.done)
}
