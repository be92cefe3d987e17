package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

type sent struct {
	kind    int
	id      uint64
	payload string
}

// recorder is an Out that keeps what it was given and hands it over in order.
func recorder() (Out, <-chan sent) {
	ch := make(chan sent, 1024)
	return func(kind int, id uint64, payload []byte) { ch <- sent{kind, id, string(payload)} }, ch
}

func next(t *testing.T, ch <-chan sent) sent {
	t.Helper()
	select {
	case s := <-ch:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was sent within 10 s")
		return sent{}
	}
}

var testFuncs = sync.OnceFunc(func() {
	RegisterSync("test.fail", func(*Env, json.RawMessage) (any, error) {
		return nil, fmt.Errorf("outer: %w", Errorf("PG_TEST", "inner: %w", errors.ErrUnsupported))
	})
	RegisterSync("test.panic", func(*Env, json.RawMessage) (any, error) {
		var p *int
		return *p, nil
	})
	RegisterSync("test.unencodable", func(*Env, json.RawMessage) (any, error) { return func() {}, nil })
	RegisterCall("test.panic", func(context.Context, *Env, *Call, json.RawMessage) (any, error) { panic("boom") })
	RegisterCall("test.plain", func(context.Context, *Env, *Call, json.RawMessage) (any, error) {
		return nil, errors.New("plain")
	})
	RegisterCall("test.open", func(_ context.Context, _ *Env, c *Call, _ json.RawMessage) (any, error) {
		c.Message("before")
		c.Answer("first", nil)
		c.Answer("second", nil)
		c.Message("after")
		return "third", nil
	})
})

func TestSyncAnswersOkOrError(t *testing.T) {
	testFuncs()
	out, _ := recorder()
	e := NewEnv(out)
	defer e.Close()
	for _, c := range []struct{ fn, args, want string }{
		{"ping", ``, `{"ok":"pong"}`},
		{"echo", `{"a":[1,2]}`, `{"ok":{"a":[1,2]}}`},
		{"echo", ``, `{"ok":null}`},
		{"nothing", ``, `"code":"PG_UNKNOWN_FUNCTION"`},
		{"test.fail", ``, `{"error":{"code":"PG_TEST","message":"outer: inner: unsupported operation"}}`},
		{"test.panic", ``, `"code":"PG_PANIC","message":"test.panic panicked: runtime error: invalid memory address`},
		{"test.unencodable", ``, `"code":"PG_FAILED","message":"json: unsupported type: func()"`},
	} {
		var args []byte
		if c.args != "" {
			args = []byte(c.args)
		}
		if got := string(e.Sync(c.fn, args)); !strings.Contains(got, c.want) {
			t.Errorf("Sync(%s, %s) = %s, want %s in it", c.fn, c.args, got, c.want)
		}
	}
}

func TestCallIsAnsweredOnce(t *testing.T) {
	testFuncs()
	out, ch := recorder()
	e := NewEnv(out)
	for i, c := range []struct{ fn, want string }{
		{"ping", `{"ok":"pong"}`},
		{"nothing", `"PG_UNKNOWN_FUNCTION"`},
		{"test.panic", `"code":"PG_PANIC","message":"test.panic panicked: boom`},
		{"test.plain", `{"error":{"code":"PG_FAILED","message":"plain"}}`},
	} {
		e.Call(uint64(i), c.fn, nil)
		got := next(t, ch)
		if got.kind != KindAnswer || got.id != uint64(i) || !strings.Contains(got.payload, c.want) {
			t.Errorf("Call(%s) sent %+v, want an answer with %s", c.fn, got, c.want)
		}
	}
	e.Close()
	e.Wait()
	if len(ch) != 0 {
		t.Errorf("sent more than the answers: %+v", <-ch)
	}
}

func TestEarlyAnswerKeepsSessionOpen(t *testing.T) {
	testFuncs()
	out, ch := recorder()
	e := NewEnv(out)
	defer e.Close()
	e.Call(7, "test.open", nil)
	for _, want := range []sent{
		{KindMessage, 7, `"before"`},
		{KindAnswer, 7, `{"ok":"first","open":true}`},
		{KindMessage, 7, `"after"`},
		{KindEnd, 7, ""},
	} {
		if got := next(t, ch); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestSessionEchoesInOrderUntilDropped(t *testing.T) {
	out, ch := recorder()
	e := NewEnv(out)
	e.Call(1, "echo", []byte(`{"session":true}`))
	if got := next(t, ch); got.payload != `{"ok":{"session":true},"open":true}` {
		t.Fatalf("answer %+v", got)
	}
	const n = 500
	for i := range n {
		e.Send(1, fmt.Append(nil, i))
	}
	for i := range n {
		if got := next(t, ch); got.payload != fmt.Sprint(i) {
			t.Fatalf("message %d came back as %+v", i, got)
		}
	}
	e.Drop(1)
	if got := next(t, ch); got.kind != KindEnd {
		t.Fatalf("after the drop %+v, want the end", got)
	}
	e.Send(1, []byte(`"late"`))
	e.Close()
	e.Wait()
}

func TestSendNeverWaitsForAReader(t *testing.T) {
	out, ch := recorder()
	e := NewEnv(out)
	e.Call(1, "sleep", []byte(`{"ms":60000}`))
	for range 10000 {
		e.Send(1, []byte(`"unread"`))
	}
	e.Close()
	e.Wait()
	if len(ch) != 0 {
		t.Errorf("a closed thread was sent %+v", <-ch)
	}
}

func TestCloseCancelsAndSilences(t *testing.T) {
	out, ch := recorder()
	e := NewEnv(out)
	for i := range 20 {
		e.Call(uint64(i), "sleep", []byte(`{"ms":60000}`))
	}
	order := ""
	e.OnClose(func() { order += "a" })
	e.OnClose(func() { panic("hook") })
	e.OnClose(func() { order += "b" })
	if e.Closed() {
		t.Fatal("closed before Close")
	}
	e.Close()
	e.Close()
	e.Wait()
	e.OnClose(func() { order += "c" })
	if !e.Closed() || order != "abc" {
		t.Errorf("closed %v, hooks ran %q, want abc", e.Closed(), order)
	}
	e.Call(99, "ping", nil)
	if len(ch) != 0 {
		t.Errorf("a closed thread was sent %+v", <-ch)
	}
	if got := string(e.Sync("ping", nil)); !strings.Contains(got, "PG_CLOSED") {
		t.Errorf("Sync after Close = %s", got)
	}
}

// A thread may end at any moment of a call: Out must not run after Close returned.
func TestNoOutAfterCloseReturned(t *testing.T) {
	for range 200 {
		var mu sync.Mutex
		freed := false
		bad := false
		e := NewEnv(func(int, uint64, []byte) {
			mu.Lock()
			bad = bad || freed
			mu.Unlock()
		})
		for i := range 50 {
			e.Call(uint64(i), "ping", nil)
		}
		e.Close()
		mu.Lock()
		freed = true
		mu.Unlock()
		e.Wait()
		if bad {
			t.Fatal("Out was called after Close had returned")
		}
	}
}

func TestDuplicateNamesPanic(t *testing.T) {
	for what, f := range map[string]func(){
		"sync": func() { RegisterSync("ping", nil) },
		"call": func() { RegisterCall("ping", nil) },
	} {
		if protect(what, func() error { f(); return nil }) == nil {
			t.Errorf("a second %s function named ping was taken", what)
		}
	}
}
