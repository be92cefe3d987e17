//go:build fault

package guard

import (
	"context"
	"encoding/json"
	"runtime"
)

// What must never happen, on purpose: the tests see that the host survives it.
func init() {
	RegisterSync("fault.nil", func(*Env, json.RawMessage) (any, error) { return dereference(nil), nil })
	RegisterSync("fault.panic", func(*Env, json.RawMessage) (any, error) { panic("on purpose") })
	RegisterCall("fault.nil", func(context.Context, *Env, *Call, json.RawMessage) (any, error) {
		return dereference(nil), nil
	})
	RegisterSync("fault.stack", func(_ *Env, args json.RawMessage) (any, error) { return recurse(200), nil })
	RegisterSync("fault.threads", func(*Env, json.RawMessage) (any, error) {
		return map[string]int{"goroutines": runtime.NumGoroutine(), "maxprocs": runtime.GOMAXPROCS(0)}, nil
	})
}

//go:noinline
func dereference(p *int) int { return *p }

// recurse grows the goroutine's stack through every size up to a few hundred
// kilobytes: a signal frame pushed on it lands in a neighbour's stack.
//
//go:noinline
func recurse(depth int) int {
	var pad [1024]byte
	if depth == 0 {
		return int(pad[0])
	}
	pad[depth%len(pad)] = 1
	return recurse(depth-1) + int(pad[depth%len(pad)])
}
