// Package guard is what a host's JavaScript asks for: starting or joining a
// process, following it, answering its death. The C ABI in go/capi hands every
// call to an Env and knows nothing of what the functions do.
package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// What a payload given to Out is.
const (
	// KindAnswer settles call id: {"ok":…} or {"error":{"code","message"}}.
	// "open":true beside it says that the session goes on and a KindEnd follows.
	KindAnswer = 0
	// KindMessage is one message of session id.
	KindMessage = 1
	// KindEnd says that session id, answered before, has nothing more to say.
	KindEnd = 2
)

// Out delivers a payload to the thread that an Env belongs to. It must not wait
// and must not call back into the Env.
type Out func(kind int, id uint64, payload []byte)

// SyncFunc answers at once. A thread that is being terminated waits for it
// (measured: terminate() took 2,986 ms for a call of 3,000), so it never blocks
// on anything but a short mutex.
type SyncFunc func(e *Env, args json.RawMessage) (any, error)

// CallFunc runs in a goroutine of its own until ctx ends: the caller's thread
// died, or the function returned. What it returns settles the call unless
// Call.Answer did.
type CallFunc func(ctx context.Context, e *Env, c *Call, args json.RawMessage) (any, error)

var registry = struct {
	sync.RWMutex
	syncs map[string]SyncFunc
	calls map[string]CallFunc
}{syncs: map[string]SyncFunc{}, calls: map[string]CallFunc{}}

// RegisterSync makes fn reachable by Env.Sync. It is meant for package init
// functions and panics on a name taken before.
func RegisterSync(fn string, f func(*Env, json.RawMessage) (any, error)) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.syncs[fn]; taken {
		panic("guard: two synchronous functions named " + fn)
	}
	registry.syncs[fn] = f
}

// RegisterCall makes fn reachable by Env.Call; see RegisterSync.
func RegisterCall(fn string, f func(ctx context.Context, e *Env, c *Call, args json.RawMessage) (any, error)) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.calls[fn]; taken {
		panic("guard: two asynchronous functions named " + fn)
	}
	registry.calls[fn] = f
}

// Env is one JavaScript thread that loaded the addon.
type Env struct {
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	calls   map[uint64]*Call
	onClose []func()

	// speak is held while out runs and taken by Close: once Close returned, out
	// is never called again and whatever it points to may be freed.
	speak sync.Mutex
	mute  bool
	out   Out
}

// NewEnv makes the Env of a thread that just loaded the addon.
func NewEnv(out Out) *Env {
	ctx, cancel := context.WithCancel(context.Background())
	return &Env{ctx: ctx, cancel: cancel, calls: map[uint64]*Call{}, out: out}
}

// Context ends when the thread does.
func (e *Env) Context() context.Context { return e.ctx }

// Closed says whether the thread has ended.
func (e *Env) Closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// OnClose registers f to run inside Close, on the dying thread, in the order of
// registration. The process may end right after, so this is the last moment to
// give something back; f must be short and must not wait. On an Env closed
// before, f runs at once.
func (e *Env) OnClose(f func()) {
	e.mu.Lock()
	if !e.closed {
		e.onClose = append(e.onClose, f)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	_ = protect("close hook", func() error { f(); return nil })
}

// Close ends everything the thread asked for: contexts are cancelled, hooks of
// OnClose run, and Out is not called again. It does not wait for goroutines.
func (e *Env) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	hooks := e.onClose
	e.onClose = nil
	e.mu.Unlock()

	e.speak.Lock()
	e.mute = true
	e.speak.Unlock()

	e.cancel()
	for _, hook := range hooks {
		_ = protect("close hook", func() error { hook(); return nil })
	}
}

// Wait returns when every call of a closed Env has returned. Tests use it to see
// that nothing is left behind.
func (e *Env) Wait() { e.work.Wait() }

// Sync runs a registered synchronous function and returns its encoded result.
func (e *Env) Sync(fn string, args []byte) []byte {
	if e.Closed() {
		return encode(nil, coded("PG_CLOSED", "the thread that calls "+fn+" has ended"), false)
	}
	registry.RLock()
	f := registry.syncs[fn]
	registry.RUnlock()
	if f == nil {
		return encode(nil, unknown(fn), false)
	}
	var value any
	err := protect(fn, func() (err error) {
		value, err = f(e, args)
		return err
	})
	return encode(value, err, false)
}

// Call starts a registered asynchronous function under id, which the thread has
// not used before. It is answered exactly once, unless the thread ends first.
func (e *Env) Call(id uint64, fn string, args []byte) {
	registry.RLock()
	f := registry.calls[fn]
	registry.RUnlock()
	if f == nil {
		e.emit(KindAnswer, id, encode(nil, unknown(fn), false))
		return
	}

	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	if e.calls[id] != nil {
		e.mu.Unlock()
		e.emit(KindAnswer, id, encode(nil, coded("PG_INTERNAL", fmt.Sprintf("call id %d is in use", id)), false))
		return
	}
	ctx, cancel := context.WithCancel(e.ctx)
	c := &Call{env: e, id: id, ctx: ctx, wake: make(chan struct{}, 1)}
	e.calls[id] = c
	e.work.Add(1)
	e.mu.Unlock()

	go func() {
		defer e.work.Done()
		defer cancel()
		var value any
		err := protect(fn, func() (err error) {
			value, err = f(ctx, e, c, args)
			return err
		})
		e.mu.Lock()
		delete(e.calls, id)
		e.mu.Unlock()
		c.finish(value, err)
	}()
}

// Send queues a message of JavaScript for session id. It never blocks, and a
// session that is over loses it silently: the two sides end independently.
func (e *Env) Send(id uint64, msg []byte) {
	if c := e.call(id); c != nil {
		c.push(msg)
	}
}

// Drop tells session id that JavaScript no longer listens and sends nothing more.
func (e *Env) Drop(id uint64) {
	if c := e.call(id); c != nil {
		c.drop()
	}
}

func (e *Env) call(id uint64) *Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[id]
}

func (e *Env) emit(kind int, id uint64, payload []byte) {
	e.speak.Lock()
	defer e.speak.Unlock()
	if !e.mute {
		e.out(kind, id, payload)
	}
}

// Call is one asynchronous call, or the Go side of a session.
type Call struct {
	env *Env
	id  uint64
	ctx context.Context
	// wake holds one token when queue or dropped changed.
	wake chan struct{}

	mu       sync.Mutex
	answered bool
	dropped  bool
	queue    []json.RawMessage
	inbox    chan json.RawMessage
}

// ID is the id that the thread gave the call.
func (c *Call) ID() uint64 { return c.id }

// Answer settles the call before its function returns; the session goes on and
// what the function returns later is ignored. Only the first answer counts.
func (c *Call) Answer(value any, err error) {
	c.mu.Lock()
	first := !c.answered
	c.answered = true
	c.mu.Unlock()
	if first {
		c.env.emit(KindAnswer, c.id, encode(value, err, true))
	}
}

func (c *Call) finish(value any, err error) {
	c.mu.Lock()
	first := !c.answered
	c.answered = true
	c.mu.Unlock()
	if first {
		c.env.emit(KindAnswer, c.id, encode(value, err, false))
		return
	}
	c.env.emit(KindEnd, c.id, nil)
}

// Message sends v to the session's listener, in order with every other message
// and with the answer. After Drop or the thread's end it goes nowhere.
func (c *Call) Message(v any) {
	c.mu.Lock()
	dropped := c.dropped
	c.mu.Unlock()
	if dropped {
		return
	}
	payload, err := json.Marshal(v)
	if err != nil {
		payload, _ = json.Marshal(map[string]string{"t": "log", "level": "error", "line": "a message could not be encoded: " + err.Error()})
	}
	c.env.emit(KindMessage, c.id, payload)
}

// Receive returns the channel of messages that JavaScript sends to this session.
// It is closed when JavaScript dropped the session, when the thread ended and
// when the call's function returned. The queue behind it is unbounded, since the
// sender is a JavaScript thread that must never wait.
func (c *Call) Receive() <-chan json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox == nil {
		c.inbox = make(chan json.RawMessage)
		c.env.work.Add(1)
		go func() {
			defer c.env.work.Done()
			_ = protect("inbox", func() error { c.pump(c.inbox); return nil })
		}()
	}
	return c.inbox
}

func (c *Call) pump(inbox chan<- json.RawMessage) {
	defer close(inbox)
	for {
		c.mu.Lock()
		batch, dropped := c.queue, c.dropped
		c.queue = nil
		c.mu.Unlock()
		for _, msg := range batch {
			select {
			case inbox <- msg:
			case <-c.ctx.Done():
				return
			}
		}
		if dropped {
			return
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *Call) push(msg []byte) {
	c.mu.Lock()
	if !c.dropped {
		c.queue = append(c.queue, json.RawMessage(msg))
	}
	c.mu.Unlock()
	c.nudge()
}

func (c *Call) drop() {
	c.mu.Lock()
	c.dropped = true
	c.mu.Unlock()
	c.nudge()
}

func (c *Call) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

type answer struct {
	OK   any  `json:"ok"`
	Open bool `json:"open,omitempty"`
}

type failure struct {
	Error failureText `json:"error"`
	Open  bool        `json:"open,omitempty"`
}

type failureText struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Stack   string `json:"stack,omitempty"`
}

func encode(value any, err error, open bool) []byte {
	if err == nil {
		// Marshal runs methods of foreign types, so it is as suspect as the function.
		var data []byte
		if err = protect("encoding the result", func() (err error) {
			data, err = json.Marshal(answer{OK: value, Open: open})
			return err
		}); err == nil {
			return data
		}
	}
	text := failureText{Code: "PG_FAILED", Message: err.Error()}
	var withCode interface{ Code() string }
	if errors.As(err, &withCode) {
		text.Code = withCode.Code()
	}
	var panicked *PanicError
	if errors.As(err, &panicked) {
		text.Stack = panicked.Stack
	}
	data, encodeErr := json.Marshal(failure{Error: text, Open: open})
	if encodeErr != nil {
		return []byte(`{"error":{"code":"PG_INTERNAL","message":"an error could not be encoded"}}`)
	}
	return data
}
