package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/role"
	"processguard/go/internal/watch"
)

const name = "agent"

func TestMain(m *testing.M) {
	role.Main(m, map[string]func(*role.Stage){
		"host":     func(s *role.Stage) { s.UntilTestEnds() },
		"stubborn": stubbornRole,
		"keeper":   keeperRole,
		"hold":     func(s *role.Stage) { s.Say("held"); s.UntilTestEnds() },
		"reaper":   reaperRole,
		"racer":    racerRole,
		"waiter":   waiterRole,
		"claimer":  claimerRole,
		"full":     fullRole,
		"gate":     gateRole,
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func full() bool { return os.Getenv("PG_FULL") != "" }

func rootOnly(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// place is one pid directory of a test.
type place struct {
	*lock.Dir
	t   testing.TB
	hub *watch.Hub
}

func newPlace(t testing.TB) *place {
	t.Helper()
	d, err := lock.OpenDir(filepath.Join(t.TempDir(), "pids"))
	must(t, err)
	hub, err := watch.For(d.Path())
	must(t, err)
	t.Cleanup(func() {
		hub.Release()
		d.Close()
	})
	return &place{Dir: d, t: t, hub: hub}
}

// want is a request for the process `cat`, version 1.
func (p *place) want(change ...func(*Request)) Request {
	q := Request{Dir: p.Dir, Hub: p.hub, Name: name, Version: 1, Argv: []string{"cat"}, Thread: 3, Budget: role.Patience}
	for _, f := range change {
		f(&q)
	}
	return q
}

func budget(b time.Duration) func(*Request) { return func(q *Request) { q.Budget = b } }
func version(v int64) func(*Request)        { return func(q *Request) { q.Version = v } }
func stopOrphans(q *Request)                { q.StopOrphans = true }

// run claims and fails the test when that takes longer than anything may.
func (p *place) run(q Request) (Result, error) {
	p.t.Helper()
	return p.start(q).result()
}

// running is a claim under way.
type running struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	res    Result
	err    error
}

func (p *place) start(q Request) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: p.t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.res, r.err = Run(ctx, q)
	}()
	p.t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

func (r *running) result() (Result, error) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(role.Patience + 15*time.Second):
		r.t.Fatal("the claim does not end")
	}
	return r.res, r.err
}

// waits makes sure that the claim is waiting and goes on with it.
func (r *running) waits() {
	r.t.Helper()
	select {
	case <-r.done:
		r.t.Fatalf("it did not wait: %s, %v", outcome(r.res), r.err)
	case <-time.After(150 * time.Millisecond):
	}
}

func outcome(res Result) string {
	switch {
	case res.Won != nil:
		return "won"
	case res.Joined != nil:
		return fmt.Sprintf("joined pid %d", res.Joined.PID)
	}
	return "neither"
}

// won makes sure that the claim was taken, and that the record says so.
func (p *place) won(res Result, err error) *Won {
	p.t.Helper()
	if err != nil || res.Won == nil {
		p.t.Fatalf("not won: %s, %v", outcome(res), err)
	}
	rec := p.record()
	if rec == nil || rec.Token != res.Won.Token || rec.PID != 0 || rec.Host != os.Getpid() || rec.HostStarted != proc.Self().Started ||
		rec.NS != proc.NS() || rec.Boot != proc.BootID() || rec.UID != os.Geteuid() || rec.ClaimedAt <= 0 || rec.Keeper != 0 {
		p.t.Fatalf("the record is %+v", rec)
	}
	if x, err := record.ReadExit(p.Dir, name); x != nil || err != nil {
		p.t.Errorf("an exit record of an earlier generation: %+v %v", x, err)
	}
	for _, file := range p.names() {
		if strings.HasSuffix(file, ".tmp") {
			p.t.Errorf("%s is left", file)
		}
	}
	return res.Won
}

func (p *place) joined(res Result, err error, pid int) *record.Record {
	p.t.Helper()
	if err != nil || res.Joined == nil || res.Won != nil || res.Joined.PID != pid {
		p.t.Fatalf("not joined pid %d: %s, %v", pid, outcome(res), err)
	}
	return res.Joined
}

func (p *place) refused(res Result, err error, why Why, words ...string) {
	p.t.Helper()
	var r *RefusedError
	if !errors.As(err, &r) || r.Why != why || res.Won != nil || res.Joined != nil {
		p.t.Fatalf("not refused because %q: %s, %v", why, outcome(res), err)
	}
	for _, w := range append(words, "not started") {
		if why == WhyReaperDied {
			break
		}
		if !strings.Contains(r.Text, w) {
			p.t.Errorf("%q does not say %q", r.Text, w)
		}
	}
	if r.Code() != "ERR_CLAIM_REFUSED" {
		p.t.Error(r.Code())
	}
}

func noted(t testing.TB, res Result, words ...string) {
	t.Helper()
	all := strings.Join(res.Notes, "\n")
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("the notes do not say %q: %q", w, all)
		}
	}
}

func (p *place) gate() *lock.Gate {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), role.Patience)
	defer cancel()
	g, err := p.Lock(ctx, name)
	must(p.t, err)
	return g
}

func (p *place) write(rec *record.Record) *record.Record {
	p.t.Helper()
	g := p.gate()
	defer g.Unlock()
	must(p.t, record.Write(p.Dir, g, name, rec))
	return rec
}

func (p *place) record() *record.Record {
	p.t.Helper()
	rec, err := record.Read(p.Dir, name)
	must(p.t, err)
	return rec
}

func (p *place) names() []string {
	p.t.Helper()
	all, err := p.Names("")
	must(p.t, err)
	return all
}

func (p *place) has(file string, want bool) {
	p.t.Helper()
	if p.Exists(file) != want {
		p.t.Errorf("%s is there: %t; the directory has %q", file, !want, p.names())
	}
}

var tokens atomic.Uint64

// named is a whole record of version 1 that names a running process.
func named(t testing.TB, k *role.Child) *record.Record {
	t.Helper()
	h, err := proc.Open(k.PID())
	must(t, err)
	defer h.Close()
	id, err := h.ID()
	must(t, err)
	// It may still be between fork and exec.
	role.Within(t, role.Patience, "the exec", func() bool {
		argv, err := h.Argv()
		return err == nil && record.SameArgv(argv, k.Args)
	})
	return &record.Record{
		PID: k.PID(), Version: 1, Token: fmt.Sprintf("%d.0.%d.0123456789abcdef", os.Getpid(), tokens.Add(1)), Host: os.Getpid(), HostStarted: proc.Self().Started,
		Argv: k.Args, Started: id.Started, Inode: id.Inode, Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(), ClaimedAt: proc.BootMillis(),
	}
}

// dead is a record of version 1 whose process is over.
func dead(t testing.TB) *record.Record {
	t.Helper()
	k := role.Program(t, "cat")
	rec := named(t, k)
	k.Kill()
	return rec
}

// claimed is an unfinished claim of a host.
func claimed(t testing.TB, host *role.Child) *record.Record {
	t.Helper()
	h, err := proc.Open(host.PID())
	must(t, err)
	defer h.Close()
	id, err := h.ID()
	must(t, err)
	return &record.Record{
		Version: 1, Token: fmt.Sprintf("%d.0.%d.0123456789abcdef", host.PID(), tokens.Add(1)), Host: host.PID(), HostStarted: id.Started, Argv: []string{"cat"},
		Boot: proc.BootID(), NS: proc.NS(), UID: os.Geteuid(), ClaimedAt: proc.BootMillis(),
	}
}

func cat(t testing.TB) *role.Child { return role.Program(t, "cat") }

func alive(t testing.TB, k *role.Child, want bool) {
	t.Helper()
	h, err := proc.Open(k.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if got := h.Alive() == proc.Yes; got != want {
		t.Errorf("pid %d is alive: %t", k.PID(), got)
	}
}

// ended waits for a death and says by which signal.
func ended(t testing.TB, k *role.Child) string {
	t.Helper()
	k.Wait()
	return k.ProcessState.String()
}

// usage is goroutines and descriptors together.
func usage(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(files) + runtime.NumGoroutine()
}

// stubbornRole does not end of SIGTERM, and says so.
func stubbornRole(s *role.Stage) {
	c := notifyTerm()
	s.Say("ready")
	go func() {
		for range c {
			s.Say("SIGTERM")
		}
	}()
	s.UntilTestEnds()
}

// keeperRole holds the life file of a generation, like a keeper whose process
// is the given one. Its arguments: directory, token, pid, version, the
// process's command line.
func keeperRole(s *role.Stage) {
	a := s.Args()
	d, err := lock.OpenExisting(a[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	f, err := d.CreateLife(name, a[1])
	if err != nil {
		s.Say("%v", err)
		return
	}
	l := record.Life{NS: proc.NS(), ArgvHash: record.HashArgv(a[4:]), Argv: a[4:], Keeper: os.Getpid(), KeeperArgv: os.Args}
	l.PID, _ = strconv.Atoi(a[2])
	l.Version, _ = strconv.ParseInt(a[3], 10, 64)
	if l.PID > 0 {
		h, err := proc.Open(l.PID)
		if err != nil {
			s.Say("%v", err)
			return
		}
		id, _ := h.ID()
		l.Started, l.Inode = id.Started, id.Inode
		h.Close()
	}
	if err := record.WriteLife(f, l); err != nil {
		s.Say("%v", err)
		return
	}
	s.Say("keeps")
	s.UntilTestEnds()
	f.Close()
}

// kept gives a record a keeper that lives.
func (p *place) kept(rec *record.Record) *role.Child {
	p.t.Helper()
	pid := rec.PID
	if h, err := proc.Open(pid); err != nil {
		pid = 0 // dead: the slot is still an earlier process's
	} else {
		h.Close()
	}
	k := role.Start(p.t, "keeper", append([]string{p.Path(), rec.Token, strconv.Itoa(pid), strconv.FormatInt(rec.Version, 10)}, rec.Argv...)...)
	k.Says("keeps")
	rec.Keeper, rec.KeeperArgv = k.PID(), k.Args
	return k
}

// reaperRole sets the record aside, signals nothing and finishes when told.
func reaperRole(s *role.Stage) {
	d, err := lock.OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	g, err := d.Lock(context.Background(), name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	a, err := record.BeginReaping(d, g, name)
	g.Unlock()
	if err != nil {
		s.Say("%v", err)
		return
	}
	s.Say("aside")
	if _, ok := s.Heard(); !ok {
		return
	}
	if g, err = d.Lock(context.Background(), name); err != nil {
		s.Say("%v", err)
		return
	}
	err = a.Done()
	g.Unlock()
	s.Say("%v", err)
	s.UntilTestEnds()
}

func gateRole(s *role.Stage) {
	d, err := lock.OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	g, err := d.Lock(context.Background(), name)
	if err != nil {
		s.Say("%v", err)
		return
	}
	s.Say("in")
	s.UntilTold()
	g.Unlock()
	s.Say("out")
	s.UntilTestEnds()
}

// aside sets the place's record aside, by a reaper that lives or not.
func (p *place) aside(alive bool) *role.Child {
	p.t.Helper()
	k := role.Start(p.t, "reaper", p.Path())
	k.Says("aside")
	if !alive {
		k.Kill()
	}
	return k
}
