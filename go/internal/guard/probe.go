package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// The functions here do nothing of use to a host. They are how the tests and the
// benchmarks reach every path of the addon: short and long, with messages and
// without.
func init() {
	RegisterSync("ping", func(*Env, json.RawMessage) (any, error) { return "pong", nil })
	RegisterSync("echo", func(_ *Env, args json.RawMessage) (any, error) { return args, nil })

	RegisterCall("ping", func(context.Context, *Env, *Call, json.RawMessage) (any, error) { return "pong", nil })
	RegisterCall("echo", echo)
	RegisterCall("sleep", sleep)
}

// echo answers with its arguments. With {"session":true} it answers at once and
// then sends every message back until it is dropped.
func echo(ctx context.Context, _ *Env, c *Call, args json.RawMessage) (any, error) {
	var want struct {
		Session bool `json:"session"`
	}
	if json.Unmarshal(args, &want) != nil || !want.Session {
		return args, nil
	}
	c.Answer(args, nil)
	for msg := range c.Receive() {
		c.Message(msg)
	}
	return nil, nil
}

// sleep answers after {"ms":N}, or when its thread ended.
func sleep(ctx context.Context, _ *Env, _ *Call, args json.RawMessage) (any, error) {
	var want struct {
		Ms float64 `json:"ms"`
	}
	if err := json.Unmarshal(args, &want); err != nil {
		return nil, Errorf("PG_ARGUMENT", "sleep: %w", err)
	}
	timer := time.NewTimer(time.Duration(want.Ms * float64(time.Millisecond)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return want.Ms, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("sleep: %w", context.Cause(ctx))
	}
}
