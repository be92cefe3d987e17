package guard

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/record"
	"processguard/go/internal/watch"
)

// Whoever is stopped inside the gate keeps it. A call that had come as far as
// its second launcher, or as the name of what it had started itself, waited for
// that one without a limit and never returned.
func TestAStoppedGateHolderEndsACallWithinItsBudget(t *testing.T) {
	d, err := lock.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	g, err := d.Lock(context.Background(), "agent")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Unlock()
	const token = "1.1.1.0123456789abcdef"
	claimed := &record.Record{Version: 1, Token: token, Host: os.Getpid(), Argv: []string{"cat"}, UID: os.Geteuid()}
	if err := record.Write(d, g, "agent", claimed); err != nil {
		t.Fatal(err)
	}
	out, sent := recorder()
	e := NewEnv(out)
	defer e.Close()
	budget := int64(50)
	s := &session{e: e, c: &Call{env: e, id: 1, ctx: e.Context()}, dir: d, first: true}
	s.a.Name, s.a.Title, s.a.ClaimMs = "agent", "agent", &budget
	if s.hub, err = watch.For(d.Path()); err != nil {
		t.Fatal(err)
	}
	defer s.hub.Release()
	for what, call := range map[string]func(){
		"another token":             func() { s.renew(e.Context(), "1.1.1.0123456789abcdef") },
		"what became of a launcher": func() { s.awaitKeeper(e.Context(), "1.1.1.0123456789abcdef", nil) },
	} {
		done := make(chan struct{})
		go func() { defer close(done); call() }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: did not return", what)
		}
		told := false
		for len(sent) > 0 {
			line := (<-sent).payload
			told = told || strings.Contains(line, "another thread of this process")
		}
		if !told {
			t.Errorf("%s: no line names the holder", what)
		}
	}
}
