package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/role"
	"processguard/go/internal/watch"
)

func notifyTerm() <-chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGTERM)
	return c
}

func TestNoRecord(t *testing.T) {
	p := newPlace(t)
	must(t, os.WriteFile(p.Join(name+lock.ExitSuffix), record.EncodeExit(record.Exit{Token: "old", Outcome: record.Gone}), 0o600))
	res, err := p.run(p.want())
	w := p.won(res, err)
	if w.Orphan != nil || len(res.Notes) > 0 {
		t.Errorf("%+v %q", w, res.Notes)
	}
	rec := p.record()
	if rec.Version != 1 || !record.SameArgv(rec.Argv, []string{"cat"}) || !strings.HasPrefix(rec.Token, fmt.Sprintf("%d.3.", os.Getpid())) {
		t.Errorf("%+v", rec)
	}
}

func TestGarbageIsNoRecord(t *testing.T) {
	for _, text := range []string{"", "\n", "hello", "\x00\x00\x00", "-5\n1\n"} {
		p := newPlace(t)
		must(t, os.WriteFile(p.Join(name+lock.RecordSuffix), []byte(text), 0o600))
		p.won(p.run(p.want()))
	}
}

func TestSameProcessIsJoined(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	before, err := os.ReadFile(p.Join(name + lock.RecordSuffix))
	must(t, err)
	res, err := p.run(p.want())
	p.joined(res, err, k.PID())
	noted(t, res, fmt.Sprintf("joined the running pid %d", k.PID()))
	after, err := os.ReadFile(p.Join(name + lock.RecordSuffix))
	must(t, err)
	if string(before) != string(after) {
		t.Error("the record was changed")
	}
	alive(t, k, true)
}

// A record of the original has no start time; the command line tells.
func TestProcessOfTheOriginalIsJoined(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	full := named(t, k)
	p.write(&record.Record{PID: k.PID(), Version: 1, Token: "77.2.9.m3f9a8b2", Host: 77, Argv: full.Argv, UID: -1})
	res, err := p.run(p.want())
	p.joined(res, err, k.PID())
}

func TestDeadProcessIsReclaimed(t *testing.T) {
	p := newPlace(t)
	rec := p.write(dead(t))
	res, err := p.run(p.want())
	p.won(res, err)
	noted(t, res, fmt.Sprintf("reclaimed the lock from pid %d, which is not running any more", rec.PID))
}

// A zombie that nobody has collected is dead.
func TestZombieIsReclaimed(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	h, err := proc.Open(k.PID())
	must(t, err)
	defer h.Close()
	k.Signal(syscall.SIGKILL)
	must(t, h.Wait(context.Background()))
	res, err := p.run(p.want())
	p.won(res, err)
	noted(t, res, fmt.Sprintf("pid %d, which is not running any more", k.PID()))
}

func TestRebootEndsEverything(t *testing.T) {
	for what, change := range map[string]func(*record.Record){
		"named":             func(*record.Record) {},
		"kept":              func(r *record.Record) { r.Keeper, r.KeeperArgv = os.Getpid(), os.Args },
		"claimed":           func(r *record.Record) { r.PID = 0 },
		"another namespace": func(r *record.Record) { r.NS++ },
		"by its start alone": func(r *record.Record) {
			r.Boot = ""
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			k := cat(t)
			rec := named(t, k)
			rec.Boot = "00000000-0000-0000-0000-000000000000"
			rec.Started = rec.Boot + ":1"
			change(rec)
			p.write(rec)
			// Whoever has such a lock, it is not a keeper of that boot.
			f, err := p.CreateLife(name, rec.Token)
			must(t, err)
			defer f.Close()
			p.won(p.run(p.want(stopOrphans)))
			alive(t, k, true)
		})
	}
}

func TestStrangerIsLeftAlone(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := named(t, k)
	boot, _, _ := strings.Cut(rec.Started, ":")
	rec.Started, rec.Inode = boot+":1", 0
	p.write(rec)
	res, err := p.run(p.want(stopOrphans, version(2)))
	if w := p.won(res, err); w.Orphan != nil {
		t.Errorf("%+v", w.Orphan)
	}
	noted(t, res, fmt.Sprintf("reclaimed the lock from pid %d, which is running something else; it was left alone", rec.PID))
	alive(t, k, true)
}

// A kernel thread shows no command line: it cannot be told what it is.
func TestHiddenProcessIsWaitedForAndNeverTaken(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	rec.PID, rec.Started, rec.Inode = 2, "", 0
	if _, err := os.Readlink("/proc/2/exe"); err == nil || !hiddenPID(2) {
		t.Skip("pid 2 is no kernel thread here")
	}
	p.write(rec)
	r := p.start(p.want(budget(600 * time.Millisecond)))
	r.waits()
	res, err := r.result()
	p.refused(res, err, WhyHidden, "pid 2", "could not be identified", "600 ms", "not signalled", "/proc/2")
	if got := p.record(); got.Token != rec.Token {
		t.Errorf("the record was taken: %+v", got)
	}
	// It goes on as soon as it can tell.
	r = p.start(p.want())
	r.waits()
	p.write(dead(t))
	p.won(r.result())
}

func hiddenPID(pid int) bool {
	v, h := proc.Identify(pid, proc.Want{Argv: []string{"cat"}})
	if h != nil {
		h.Close()
	}
	return v == proc.Unknown
}

func TestOrphanIsLeftRunning(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Request)
		drift  string
	}{
		"version": {version(2), "version 1, not 2"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			k := cat(t)
			rec := p.write(named(t, k))
			res, err := p.run(p.want(c.change))
			w := p.won(res, err)
			if w.Orphan == nil || w.Orphan.PID != k.PID() || w.Orphan.Token != rec.Token {
				t.Errorf("%+v", w.Orphan)
			}
			noted(t, res, fmt.Sprintf("pid %d is an orphan of an earlier configuration (%s). It was left running", k.PID(), c.drift))
			alive(t, k, true)
			// Who comes back must find it.
			f, err := record.OpenLife(p.Dir, name, rec.Token)
			must(t, err)
			defer f.Close()
			l, err := record.ReadLife(f)
			if err != nil || l.PID != k.PID() || l.Started != rec.Started || l.Inode != rec.Inode || l.Version != 1 || l.ArgvHash != record.HashArgv(rec.Argv) {
				t.Errorf("%v %+v", err, l)
			}
		})
	}
}

func TestOrphanIsStopped(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	res, err := p.run(p.want(version(2), stopOrphans))
	if w := p.won(res, err); w.Orphan == nil || w.Orphan.PID != k.PID() {
		t.Errorf("%+v", w.Orphan)
	}
	noted(t, res, fmt.Sprintf("pid %d is an orphan of an earlier configuration (version 1, not 2). It was sent SIGTERM", k.PID()))
	if how := ended(t, k); how != "signal: terminated" {
		t.Error(how)
	}
}

// The same version with another command line is another process's name, unless
// the caller says that it is the old form of its own.
func TestNameInUse(t *testing.T) {
	other := func(q *Request) { q.Argv = []string{"cat", "-"} }
	p := newPlace(t)
	k := cat(t)
	rec := p.write(named(t, k))
	start := time.Now()
	res, err := p.run(p.want(other))
	p.refused(res, err, WhyNameInUse, "name agent", p.Path(), fmt.Sprintf("pid %d of the same version runs \"cat\"", k.PID()), "not signalled", "stopOrphans")
	if time.Since(start) > 5*time.Second {
		t.Error("it waited")
	}
	if got := p.record(); got.Token != rec.Token {
		t.Errorf("%+v", got)
	}
	alive(t, k, true)
	res, err = p.run(p.want(other, stopOrphans))
	if w := p.won(res, err); w.Orphan == nil || w.Orphan.PID != k.PID() {
		t.Errorf("%+v", w.Orphan)
	}
	noted(t, res, fmt.Sprintf(`pid %d is an orphan of an earlier configuration (started as "cat"`, k.PID()))
	if how := ended(t, k); how != "signal: terminated" {
		t.Error(how)
	}
}

// One SIGTERM, and nothing chases it.
func TestOrphanThatStays(t *testing.T) {
	p := newPlace(t)
	k := role.Start(t, "stubborn")
	k.Says("ready")
	p.write(named(t, k))
	p.won(p.run(p.want(version(2), stopOrphans)))
	k.Says("SIGTERM")
	p.won(p.run(p.want(version(3), budget(0), stopOrphans))) // over an old claim; nobody is signalled
	k.Signal(syscall.SIGTERM)
	k.Says("SIGTERM")
	alive(t, k, true)
	k.End()
	for line := range k.Lines() {
		t.Errorf("it also got %s", line)
	}
}

// After a claim of ours was taken, two configurations would take turns.
func TestNoTurns(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := p.write(named(t, k))
	res, err := p.run(p.want(version(2), stopOrphans, func(q *Request) { q.AfterTaken = true }))
	p.refused(res, err, WhyTurns, fmt.Sprintf("pid %d", k.PID()), "version 1, not 2", "take turns")
	alive(t, k, true)
	if got := p.record(); got.Token != rec.Token {
		t.Errorf("%+v", got)
	}
	// A dead or absent record may be taken, and the own configuration joined.
	res, err = p.run(p.want(func(q *Request) { q.AfterTaken = true }))
	p.joined(res, err, k.PID())
	k.Kill()
	p.won(p.run(p.want(version(2), func(q *Request) { q.AfterTaken = true })))
}

// v1, v2, v1 again: the third is the first one's process, not a second v1.
func TestRollBack(t *testing.T) {
	for _, c := range []string{"with keepers", "started directly", "with keepers that died"} {
		t.Run(c, func(t *testing.T) {
			p := newPlace(t)
			k1 := cat(t)
			v1 := named(t, k1)
			v1.Restarts = 4
			var keeper *role.Child
			if c != "started directly" {
				keeper = p.kept(v1)
			}
			p.write(v1)
			p.won(p.run(p.want(version(2))))
			if c == "with keepers that died" {
				keeper.Kill()
			}
			k2 := cat(t)
			v2 := named(t, k2)
			v2.Version = 2
			p.write(v2)
			must(t, os.WriteFile(p.Join(name+lock.ExitSuffix), record.EncodeExit(record.Exit{Token: v2.Token, Outcome: record.Gone}), 0o600))
			res, err := p.run(p.want())
			rec := p.joined(res, err, k1.PID())
			noted(t, res, fmt.Sprintf("pid %d is an orphan of an earlier configuration (version 2, not 1). It was left running", k2.PID()), fmt.Sprintf("joined the running pid %d", k1.PID()))
			got := p.record()
			if got.PID != k1.PID() || got.Token != v1.Token || got.Version != 1 || got.Started != v1.Started || got.Inode != v1.Inode || got.Keeper != v1.Keeper || !record.SameArgv(got.KeeperArgv, v1.KeeperArgv) || rec.Token != v1.Token {
				t.Errorf("put back: %+v", got)
			}
			p.has(name+lock.ExitSuffix, false)
			alive(t, k1, true)
			alive(t, k2, true)
			// And forward again, and back.
			res, err = p.run(p.want(version(2)))
			p.joined(res, err, k2.PID())
			if got := p.record(); got.Token != v2.Token || got.Version != 2 {
				t.Errorf("put back: %+v", got)
			}
			res, err = p.run(p.want(stopOrphans))
			p.joined(res, err, k1.PID())
			if how := ended(t, k2); how != "signal: terminated" {
				t.Error(how)
			}
			alive(t, k1, true)
		})
	}
}

// The same version with another command line is not the process we want.
func TestOtherCommandLineIsNotPutBack(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	p.won(p.run(p.want(version(2))))
	res, err := p.run(p.want(budget(0), func(q *Request) { q.Argv = []string{"cat", "-"} }))
	p.won(res, err)
	alive(t, k, true)
}

// Every row that takes looks for one that still runs.
func TestOlderGenerationIsFoundByEveryTakingRow(t *testing.T) {
	for what, under := range map[string]func(p *place){
		"no record":    func(p *place) { must(p.t, p.Remove(name+lock.RecordSuffix)) },
		"dead":         func(p *place) { r := dead(p.t); r.Version = 2; p.write(r) },
		"claim over":   func(p *place) { r := dead(p.t); r.PID, r.Version, r.Host = 0, 2, r.PID; p.write(r) },
		"another boot": func(p *place) { r := dead(p.t); r.Boot, r.Started = "x", "x:1"; p.write(r) },
		"other ns":     func(p *place) { r := dead(p.t); r.NS++; p.write(r) },
		"bare, dead": func(p *place) {
			must(p.t, os.WriteFile(p.Join(name+".pid"), []byte(strconv.Itoa(dead(p.t).PID)), 0o600))
		},
		"stranger": func(p *place) {
			r := named(p.t, cat(p.t))
			r.Started, r.Inode, r.Argv = "", 0, []string{"dog"}
			p.write(r)
		},
		"another user's": func(p *place) {
			rootOnly(p.t)
			must(p.t, os.Chown(p.Join(name+".pid"), 4242, -1))
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			p.t = t
			k := cat(t)
			v1 := p.write(named(t, k))
			p.won(p.run(p.want(version(2))))
			under(p)
			res, err := p.run(p.want())
			p.joined(res, err, k.PID())
			if got := p.record(); got.Token != v1.Token {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSpentLifeFilesAreSwept(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := p.write(named(t, k))
	p.won(p.run(p.want(version(2))))
	p.has(lock.LifeName(name, rec.Token), true)
	k.Kill()
	p.won(p.run(p.want(version(3), budget(0))))
	p.has(lock.LifeName(name, rec.Token), false)
	// A file without lock and without process is a dead launcher's.
	f, err := p.CreateLife(name, "1.0.1.0123456789abcdef")
	must(t, err)
	p.won(p.run(p.want(version(4), budget(0))))
	p.has(lock.LifeName(name, "1.0.1.0123456789abcdef"), true) // at work
	f.Close()
	p.won(p.run(p.want(version(5), budget(0))))
	p.has(lock.LifeName(name, "1.0.1.0123456789abcdef"), false)
}

func TestBarePidFile(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	write := func(pid int) {
		must(t, os.WriteFile(p.Join(name+lock.RecordSuffix), []byte(strconv.Itoa(pid)+"\n"), 0o600))
	}
	write(k.PID())
	start := time.Now()
	res, err := p.run(p.want(stopOrphans))
	p.refused(res, err, WhyBareAlive, fmt.Sprintf("pid %d", k.PID()), "not signalled", p.Join(name+".pid"))
	if time.Since(start) > 5*time.Second {
		t.Error("it waited")
	}
	alive(t, k, true)
	k.Kill()
	res, err = p.run(p.want())
	p.won(res, err)
	noted(t, res, fmt.Sprintf("replaced a pid file that is not ours; pid %d", k.PID()))
	write(0)
	p.won(p.run(p.want()))
}

func TestRecordOfAnotherUserIsIgnored(t *testing.T) {
	rootOnly(t)
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	must(t, os.Chown(p.Join(name+lock.RecordSuffix), 4242, -1))
	res, err := p.run(p.want(version(2), stopOrphans))
	if w := p.won(res, err); w.Orphan != nil {
		t.Errorf("%+v", w.Orphan)
	}
	noted(t, res, "uid 4242", "ignored")
	alive(t, k, true)
}

func TestLifeFileOfAnotherUserIsIgnored(t *testing.T) {
	rootOnly(t)
	p := newPlace(t)
	k := cat(t)
	v1 := p.write(named(t, k))
	p.won(p.run(p.want(version(2))))
	must(t, os.Chown(p.Join(lock.LifeName(name, v1.Token)), 4242, -1))
	p.won(p.run(p.want(budget(0))))
	alive(t, k, true)
}

// Unfinished claims.

func TestClaimInFlight(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := p.write(claimed(t, host))
	r := p.start(p.want())
	r.waits()
	// It names its process at last.
	k := cat(t)
	full := named(t, k)
	full.Token = rec.Token
	p.write(full)
	res, err := r.result()
	p.joined(res, err, k.PID())
}

func TestClaimOfADyingHost(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	p.write(claimed(t, host))
	r := p.start(p.want())
	r.waits()
	killed := time.Now()
	host.Signal(syscall.SIGKILL)
	res, err := r.result()
	p.won(res, err)
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	noted(t, res, fmt.Sprintf("took over an unfinished claim of host pid %d", host.PID()))
}

func TestClaimGivenBackWhileSomebodyWaits(t *testing.T) {
	p := newPlace(t)
	first := p.won(p.run(p.want()))
	r := p.start(p.want())
	r.waits()
	rec, err := GiveBack(context.Background(), p.Dir, name, first.Token)
	if rec != nil || err != nil {
		t.Errorf("%v %v", rec, err)
	}
	if w := p.won(r.result()); w.Token == first.Token {
		t.Error("two claims with one token")
	}
}

func TestClaimTooOld(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := claimed(t, host)
	const age = 10 * time.Second
	rec.ClaimedAt = proc.BootMillis() - age.Milliseconds() + 500
	p.write(rec)
	start := time.Now()
	p.won(p.run(p.want(budget(age))))
	if took := time.Since(start); took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("it had half a second to live and was taken after %s", took)
	}
	p.write(rec)
	start = time.Now()
	p.won(p.run(p.want(budget(age))))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it was old and taken after %s", took)
	}
}

// The original's claims carry no time: their age is what we watched of it.
func TestClaimOfTheOriginalAgesWhileWatched(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	p.write(&record.Record{Version: 1, Token: "77.2.9.m3f9a8b2", Host: host.PID(), Argv: []string{"cat"}, UID: -1})
	start := time.Now()
	p.won(p.run(p.want(budget(500 * time.Millisecond))))
	if took := time.Since(start); took < 500*time.Millisecond {
		t.Errorf("taken after %s", took)
	}
}

// A stamp from the future must not be waited for until then.
func TestClaimFromTheFuture(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := claimed(t, host)
	rec.ClaimedAt = proc.BootMillis() + time.Hour.Milliseconds()
	p.write(rec)
	p.won(p.run(p.want(budget(500 * time.Millisecond))))
}

// A claim that is renewed again and again does not keep anybody for ever.
func TestClaimThatStaysYoungIsRefused(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := p.write(claimed(t, host))
	stop := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				rec.ClaimedAt = proc.BootMillis()
				p.write(rec)
			}
		}
	})
	start := time.Now()
	res, err := p.run(p.want(budget(300 * time.Millisecond)))
	took := time.Since(start)
	close(stop)
	renewing.Wait()
	p.refused(res, err, WhyClaimInFlight, fmt.Sprintf("host pid %d", host.PID()))
	if took < 600*time.Millisecond || took > 10*time.Second {
		t.Errorf("after %s", took)
	}
}

func TestStoppedHostIsNamed(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	host.Signal(syscall.SIGSTOP)
	rec := claimed(t, host)
	rec.ClaimedAt = proc.BootMillis() + 5
	p.write(rec)
	c := &claimer{q: p.want(), began: time.Now(), notes: &notes{}, seen: map[string]time.Time{}}
	role.Within(t, role.Patience, "stopped", func() bool {
		g := p.gate()
		defer g.Unlock()
		s, err := c.look()
		must(t, err)
		defer s.close()
		return strings.Contains(c.refusal(Decision{Refuse, WhyClaimInFlight}, s).Error(), fmt.Sprintf("host pid %d (stopped)", host.PID()))
	})
}

// The host is gone and its launcher or keeper is on the way.
func TestClaimWhoseKeeperIsOnTheWay(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := claimed(t, host)
	keeper := p.kept(rec)
	rec.Keeper, rec.KeeperArgv = 0, nil // not named yet: the life lock alone tells
	p.write(rec)
	host.Kill()
	r := p.start(p.want())
	r.waits()
	keeper.Signal(syscall.SIGKILL)
	died := time.Now()
	p.won(r.result())
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A host that nobody collects is as gone as any other: the life lock, which
// announces nothing, must then be asked for again.
func TestClaimOfAZombieHostWhoseKeeperDies(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	rec := claimed(t, host)
	keeper := p.kept(rec)
	rec.Keeper, rec.KeeperArgv = 0, nil
	p.write(rec)
	host.Signal(syscall.SIGKILL)
	r := p.start(p.want())
	r.waits()
	keeper.Signal(syscall.SIGKILL)
	died := time.Now()
	p.won(r.result())
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// This process's own claims: a token that nobody stands behind is over at once.
func TestOwnClaimNobodyStandsBehind(t *testing.T) {
	p := newPlace(t)
	w := p.won(p.run(p.want()))
	r := p.start(p.want())
	r.waits()
	Keep(w.Token)
	r.cancel()
	if res, err := r.result(); !errors.Is(err, context.Canceled) || res.Won != nil {
		t.Errorf("%+v %v", res, err)
	}
	start := time.Now()
	p.won(p.run(p.want()))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// Dead process, live keeper.

// A keeper that cannot be told by its words (a record of another layout, a
// changed title) still holds its life lock.
func TestKeeperKnownByItsLifeLockAlone(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	keeper := p.kept(rec)
	rec.KeeperArgv = []string{"something", "else"}
	p.write(rec)
	r := p.start(p.want())
	r.waits()
	keeper.Signal(syscall.SIGKILL)
	died := time.Now()
	p.won(r.result())
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestRestartIsOwed(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	p.kept(rec)
	p.write(rec)
	r := p.start(p.want())
	r.waits()
	k := cat(t)
	next := named(t, k)
	next.Token, next.Keeper, next.KeeperArgv, next.Starting = rec.Token, rec.Keeper, rec.KeeperArgv, true
	p.write(next)
	r.waits() // its exec is not confirmed
	confirmed := *next
	confirmed.Starting = false
	p.write(&confirmed)
	res, err := r.result()
	p.joined(res, err, k.PID())
}

func TestKeeperThatOwesARestartDies(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	keeper := p.kept(rec)
	p.write(rec)
	r := p.start(p.want())
	r.waits()
	keeper.Signal(syscall.SIGKILL)
	died := time.Now()
	res, err := r.result()
	p.won(res, err)
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// What was given up stays down: a call that was waiting for it is no new one. One
// that waited for what was shut down has yet to be served.
func TestKeeperThatOwesARestartEndsForGood(t *testing.T) {
	for outcome, refused := range map[record.Outcome]bool{record.GaveUp: true, record.Released: false, record.Failed: false} {
		t.Run(string(outcome), func(t *testing.T) {
			p := newPlace(t)
			rec := dead(t)
			p.kept(rec)
			p.write(rec)
			r := p.start(p.want())
			r.waits()
			g := p.gate()
			must(t, record.Remove(p.Dir, g, name))
			must(t, record.WriteExit(p.Dir, g, name, record.Exit{Token: rec.Token, PID: rec.PID, Outcome: outcome, Restarts: 5, Released: true}))
			g.Unlock()
			res, err := r.result()
			if !refused {
				p.won(res, err)
				return
			}
			p.refused(res, err, WhyGaveUp, "gave up after 5 restarts")
			p.won(p.run(p.want())) // the next call
		})
	}
}

func TestKeeperThatOwesARestartForEver(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	keeper := p.kept(rec)
	p.write(rec)
	keeper.Signal(syscall.SIGSTOP)
	res, err := p.run(p.want(budget(400 * time.Millisecond)))
	p.refused(res, err, WhyRestartOwed, fmt.Sprintf("pid %d", rec.PID), fmt.Sprintf("keeper pid %d (stopped)", keeper.PID()), "400 ms", fmt.Sprintf("kill -CONT %d", keeper.PID()))
	if got := p.record(); got.Token != rec.Token {
		t.Errorf("%+v", got)
	}
}

// The pid of a dead process may be somebody else's before its keeper wakes.
func TestRestartIsOwedAndThePidIsReused(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := named(t, k)
	boot, _, _ := strings.Cut(rec.Started, ":")
	rec.Started, rec.Inode = boot+":1", 0
	p.kept(rec)
	p.write(rec)
	res, err := p.run(p.want(budget(300 * time.Millisecond)))
	p.refused(res, err, WhyRestartOwed)
	alive(t, k, true)
}

func TestDeadProcessOfAnotherConfigurationIsTakenFromItsKeeper(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	keeper := p.kept(rec)
	p.write(rec)
	p.won(p.run(p.want(version(2))))
	alive(t, keeper, true)
}

// The keeper was killed between naming its child and letting it go: what is
// named is no process of ours and ends by itself.
func TestHeldChildOfADeadKeeperIsNotJoined(t *testing.T) {
	p := newPlace(t)
	held := role.Start(t, "hold", "hold")
	held.Says("held")
	rec := named(t, held)
	rec.Argv = []string{"cat"}
	rec.Starting = true
	gone := dead(t)
	rec.Keeper, rec.KeeperArgv = gone.PID, []string{held.Args[0], "keep", "--lock", p.Join(name + ".pid"), "--token", rec.Token}
	p.write(rec)
	r := p.start(p.want())
	r.waits()
	held.End()
	p.won(r.result())
	// One that got away is joined.
	k := cat(t)
	rec = named(t, k)
	rec.Starting = true
	rec.Keeper, rec.KeeperArgv = gone.PID, []string{held.Args[0], "keep"}
	p.write(rec)
	res, err := p.run(p.want())
	p.joined(res, err, k.PID())
}

// A keeper that is killed between its life file and its record leaves a held
// child that only the life file names. It ends by itself and is no process to be
// put back.
func TestHeldChildThatOnlyALifeFileNamesIsNotPutBack(t *testing.T) {
	p := newPlace(t)
	held := role.Start(t, "hold", "hold")
	held.Says("held")
	rec := named(t, held)
	g := p.gate()
	must(t, record.PutLife(p.Dir, g, name, rec.Token, record.Life{
		PID: rec.PID, Started: rec.Started, Inode: rec.Inode, NS: rec.NS, Version: rec.Version,
		ArgvHash: record.HashArgv([]string{"cat"}), Argv: []string{"cat"},
		Keeper: dead(t).PID, KeeperArgv: []string{held.Args[0], "keep", "--lock", p.Join(name + ".pid"), "--token", rec.Token},
	}))
	g.Unlock()
	r := p.start(p.want())
	r.waits()
	held.End()
	p.won(r.result())
}

// Reaping.

func TestReaperAtWorkIsWaitedFor(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	reaper := p.aside(true)
	r := p.start(p.want())
	r.waits()
	alive(t, k, true)
	k.Kill()
	p.won(r.result())
	p.has(name+lock.ReapingSuffix, false)
	reaper.Tell("finish")
	reaper.Says("<nil>")
	p.has(name+lock.RecordSuffix, true)
}

func TestReaperAtWorkForTooLong(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	p.aside(true)
	res, err := p.run(p.want(budget(300 * time.Millisecond)))
	p.refused(res, err, WhyReaperAtWork, fmt.Sprintf("pid %d", k.PID()))
	alive(t, k, true)
	p.has(name+lock.ReapingSuffix, true)
}

func TestStopOfADeadReaperIsFinished(t *testing.T) {
	p := newPlace(t)
	k := role.Start(t, "stubborn")
	k.Says("ready")
	p.write(named(t, k))
	p.aside(false)
	r := p.start(p.want())
	k.Says("SIGTERM")
	r.waits()
	k.End()
	res, err := r.result()
	p.won(res, err)
	noted(t, res, fmt.Sprintf("finished stopping pid %d", k.PID()))
	p.has(name+lock.ReapingSuffix, false)
}

func TestStopOfADeadReaperWithSIGKILL(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := role.Start(t, "stubborn")
	k.Says("ready")
	p.write(named(t, k))
	p.aside(false)
	start := time.Now()
	// Longer than the budget: the stop was begun and is finished.
	res, err := p.run(p.want(budget(2 * time.Second)))
	p.won(res, err)
	if took := time.Since(start); took < 5*time.Second {
		t.Errorf("killed after %s", took)
	}
	if how := ended(t, k); how != "signal: killed" {
		t.Error(how)
	}
	p.has(name+lock.ReapingSuffix, false)
}

// The claimant's thread ends in the middle: the next one must be able to go on.
func TestFinishingAStopIsGivenUp(t *testing.T) {
	p := newPlace(t)
	k := role.Start(t, "stubborn")
	k.Says("ready")
	p.write(named(t, k))
	p.aside(false)
	r := p.start(p.want())
	k.Says("SIGTERM")
	if held := p.ReapingHeld(name); held != proc.Yes {
		t.Errorf("held: %s", held)
	}
	r.cancel()
	if _, err := r.result(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if held := p.ReapingHeld(name); held != proc.No {
		t.Errorf("still held by nobody: %s", held)
	}
	p.has(name+lock.ReapingSuffix, true)
	r = p.start(p.want())
	k.Says("SIGTERM")
	k.End()
	p.won(r.result())
}

// What cannot be identified is neither signalled nor started beside.
func TestReapingOfAHiddenProcess(t *testing.T) {
	if !hiddenPID(2) {
		t.Skip("pid 2 is no kernel thread here")
	}
	for _, reaperLives := range []bool{true, false} {
		p := newPlace(t)
		rec := dead(t)
		rec.PID, rec.Started, rec.Inode = 2, "", 0
		p.write(rec)
		p.aside(reaperLives)
		r := p.start(p.want(budget(400 * time.Millisecond)))
		r.waits()
		res, err := r.result()
		p.refused(res, err, WhyReapingHidden, "pid 2")
		p.has(name+lock.ReapingSuffix, true)
		p.has(name+lock.RecordSuffix, false)
	}
}

func TestReapingOfADeadProcessIsCleared(t *testing.T) {
	p := newPlace(t)
	p.write(dead(t))
	p.aside(false)
	p.won(p.run(p.want()))
	p.has(name+lock.ReapingSuffix, false)
}

// Another container's reaper is seen by its lock only.
func TestReapingInAnotherNamespace(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := named(t, k)
	rec.NS++
	p.write(rec)
	reaper := p.aside(true)
	r := p.start(p.want())
	r.waits()
	reaper.Kill()
	p.won(r.result())
	alive(t, k, true)
	p.has(name+lock.ReapingSuffix, false)
}

func TestReapingThatCannotBeReadIsNoPermission(t *testing.T) {
	p := newPlace(t)
	must(t, unix.Mkfifo(p.Join(name+lock.ReapingSuffix), 0o600))
	if res, err := p.run(p.want()); err == nil || !strings.Contains(err.Error(), p.Join(name+lock.ReapingSuffix)) {
		t.Errorf("%s %v", outcome(res), err)
	}
	p.has(name+lock.RecordSuffix, false)
}

func TestReapingOfAnotherUserIsIgnored(t *testing.T) {
	rootOnly(t)
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	p.aside(false)
	must(t, os.Chown(p.Join(name+lock.ReapingSuffix), 4242, -1))
	p.won(p.run(p.want()))
	alive(t, k, true)
}

// A record that is nobody's must not hide that a process is being stopped.
func TestReapingUnderARecordThatIsNotOurs(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	p.write(named(t, k))
	p.aside(true)
	must(t, os.WriteFile(p.Join(name+lock.RecordSuffix), []byte(strconv.Itoa(dead(t).PID)), 0o600))
	r := p.start(p.want())
	r.waits()
	k.Kill()
	p.won(r.result())
	p.has(name+lock.ReapingSuffix, false)
}

// Other namespaces.

func TestOtherNamespaceWhoseKeeperLives(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := named(t, k)
	p.kept(rec)
	rec.NS++
	p.write(rec)
	start := time.Now()
	res, err := p.run(p.want(stopOrphans))
	p.refused(res, err, WhyOtherNSHeld, p.Join(name+".pid"), "another container", "pidDir of its own")
	if time.Since(start) > 5*time.Second {
		t.Error("it waited")
	}
	alive(t, k, true)
}

func TestOtherNamespaceWithoutKeeper(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	rec := named(t, k)
	rec.NS++
	p.write(rec)
	res, err := p.run(p.want(stopOrphans, version(2)))
	if w := p.won(res, err); w.Orphan != nil {
		t.Errorf("%+v", w.Orphan)
	}
	noted(t, res, "another pid namespace", fmt.Sprintf("pid %d there", k.PID()))
	alive(t, k, true)
}

// A container is killed and started again, and again: each time it has another
// namespace, and what the former ones left must not keep it from starting.
func TestContainerStartedAgainAndAgain(t *testing.T) {
	p := newPlace(t)
	for i := range 3 {
		k := cat(t)
		rec := named(t, k)
		rec.NS += uint64(i) + 1
		keeper := role.Start(t, "keeper", p.Path(), rec.Token, strconv.Itoa(k.PID()), "1", "cat")
		keeper.Says("keeps")
		f, err := record.OpenLife(p.Dir, name, rec.Token)
		must(t, err)
		l, err := record.ReadLife(f)
		must(t, err)
		must(t, f.Close())
		l.NS = rec.NS
		f, err = p.Open(lock.LifeName(name, rec.Token), os.O_RDWR, 0)
		must(t, err)
		must(t, record.WriteLife(f, l))
		must(t, f.Close())
		rec.Keeper, rec.KeeperArgv = keeper.PID(), keeper.Args
		p.write(rec)
		keeper.Kill()
		k.Kill()
		p.won(p.run(p.want(budget(time.Second))))
	}
	lives, err := p.Names(lock.LifePrefix(name))
	must(t, err)
	if len(lives) > 1 {
		t.Errorf("%q are left", lives)
	}
}

// claimerRole claims once and says what came of it.
func claimerRole(s *role.Stage) {
	a := s.Args()
	d, err := lock.OpenExisting(a[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	hub, err := watch.For(d.Path())
	if err != nil {
		s.Say("%v", err)
		return
	}
	ms, _ := strconv.Atoi(a[1])
	for {
		if _, ok := s.Heard(); !ok {
			return
		}
		res, err := Run(context.Background(), Request{Dir: d, Hub: hub, Name: name, Version: 1, Argv: []string{"cat"}, Budget: time.Duration(ms) * time.Millisecond})
		var r *RefusedError
		switch {
		case errors.As(err, &r):
			s.Say("refused: %s", r.Why)
		case err != nil:
			s.Say("%v", err)
		default:
			s.Say("%s; %s", outcome(res), strings.Join(res.Notes, "; "))
		}
	}
}

// A real other namespace, as another container has it.
func TestFromInsideAnotherNamespace(t *testing.T) {
	rootOnly(t)
	p := newPlace(t)
	exe, err := os.Executable()
	must(t, err)
	unshare, err := exec.LookPath("unshare")
	if err == nil {
		err = exec.Command(unshare, "--pid", "--fork", "--mount-proc", "true").Run()
	}
	if err != nil {
		t.Skip("unshare: ", err)
	}
	c := role.Command("claimer", p.Path(), "500")
	// --kill-child: unshare is killed by us, and its child must not stay.
	c.Path, c.Args = unshare, append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", exe}, c.Args[1:]...)
	in := role.Run(t, c)

	k := cat(t)
	rec := named(t, k)
	keeper := p.kept(rec)
	p.write(rec)
	in.Tell("claim")
	in.Says("refused: " + string(WhyOtherNSHeld))
	keeper.Kill()
	in.Tell("claim")
	line := in.Line()
	if !strings.HasPrefix(line, "won; took over a lock written in another pid namespace") {
		t.Error(line)
	}
	alive(t, k, true)
	// And the other way round: its claim, seen from here.
	got := p.record()
	if got.NS == proc.NS() || got.NS == 0 {
		t.Fatalf("%+v", got)
	}
	res, err := p.run(p.want(version(2)))
	p.won(res, err)
	noted(t, res, "another pid namespace")
}

// The gate.

func TestGateThatIsHeldIsReported(t *testing.T) {
	p := newPlace(t)
	k := role.Start(t, "gate", p.Path())
	k.Says("in")
	res, err := p.run(p.want(budget(200 * time.Millisecond)))
	var held *lock.HeldError
	if !errors.As(err, &held) || held.Holder != k.PID() || res.Won != nil {
		t.Errorf("%s %v", outcome(res), err)
	}
}

// A look that comes when the budget is just spent still has to get in, however
// many others are at the gate: it was refused by a gate that nobody held for
// longer than a millisecond, and did not say whom it had waited for.
func TestLastLookIsNotRefusedByABusyGate(t *testing.T) {
	p := newPlace(t)
	rec := dead(t)
	p.kept(rec)
	p.write(rec)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					g := p.gate()
					time.Sleep(time.Millisecond)
					g.Unlock()
				}
			}
		})
	}
	defer busy.Wait()
	defer close(stop)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := Run(context.Background(), p.want(budget(1200*time.Millisecond)))
			var r *RefusedError
			if !errors.As(err, &r) || r.Why != WhyRestartOwed {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestReplacedDirectoryIsReported(t *testing.T) {
	p := newPlace(t)
	host := role.Start(t, "host")
	p.write(claimed(t, host))
	r := p.start(p.want())
	r.waits()
	must(t, os.Rename(p.Path(), p.Path()+".old"))
	must(t, os.Mkdir(p.Path(), 0o700))
	if res, err := r.result(); !errors.Is(err, lock.ErrMoved) {
		t.Errorf("%s %v", outcome(res), err)
	}
}

// The thread ends while its claim is being written.
func TestClosedThreadClaimsNothing(t *testing.T) {
	p := newPlace(t)
	res, err := p.run(p.want(func(q *Request) { q.Closed = func() bool { return true } }))
	if !errors.Is(err, context.Canceled) || res.Won != nil {
		t.Errorf("%s %v", outcome(res), err)
	}
	p.has(name+lock.RecordSuffix, false)
	n := 0
	live.Range(func(token, _ any) bool {
		if strings.HasPrefix(token.(string), "closed") {
			n++
		}
		return true
	})
	if n > 0 {
		t.Errorf("%d tokens", n)
	}
}

// The gate was unlinked while the decision was taken: another claimant may have
// decided otherwise by now, and nobody may be signalled for this one.
func TestLostGateStopsNobody(t *testing.T) {
	for _, older := range []bool{false, true} {
		p := newPlace(t)
		k := cat(t)
		rec := p.write(named(t, k))
		c := &claimer{q: p.want(version(2), stopOrphans), began: time.Now(), notes: &notes{}, seen: map[string]time.Time{}}
		g := p.gate()
		// It is remembered already, so nothing else asks before the signal.
		must(t, rememberDisplaced(p.Dir, g, name, rec))
		s, err := c.look()
		must(t, err)
		defer s.close()
		must(t, os.Remove(p.Join(name+lock.GateSuffix)))
		if older {
			s.older = &generation{token: "1.0.1.0123456789abcdef", life: record.Life{PID: 1}}
			_, err = c.putBack(g, s)
			s.older = nil
		} else {
			_, err = c.take(g, s, Decide(s.facts))
		}
		if !errors.Is(err, lock.ErrGateLost) {
			t.Error(err)
		}
		g.Unlock()
		if got := p.record(); got.Token != rec.Token {
			t.Errorf("%+v", got)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		if s.process.Wait(ctx) == nil {
			t.Error("it was signalled")
		}
		cancel()
		for _, file := range p.names() {
			if strings.HasSuffix(file, ".tmp") {
				t.Errorf("%s is left", file)
			}
		}
	}
}

// Full disk: what must be written first was not, so nobody is signalled.

func fullRole(s *role.Stage) {
	path, change := s.Args()[0], s.Args()[1]
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, "size=48k,mode=700")
	}
	if err != nil {
		s.Say("skip: %v", err)
		return
	}
	d, err := lock.OpenExisting(path)
	if err != nil {
		s.Say("%v", err)
		return
	}
	hub, err := watch.For(d.Path())
	if err != nil {
		s.Say("%v", err)
		return
	}
	k := exec.Command("cat")
	in, _ := k.StdinPipe()
	if err := k.Start(); err != nil {
		s.Say("%v", err)
		return
	}
	defer in.Close()
	h, err := proc.Open(k.Process.Pid)
	if err != nil {
		s.Say("%v", err)
		return
	}
	id, _ := h.ID()
	rec := &record.Record{PID: k.Process.Pid, Version: 1, Token: "1.0.1.0123456789abcdef", Argv: k.Args, Started: id.Started, Inode: id.Inode, Boot: proc.BootID(), NS: proc.NS()}
	g, err := d.Lock(context.Background(), name)
	if err == nil {
		err = record.Write(d, g, name, rec)
		g.Unlock()
	}
	if err != nil {
		s.Say("%v", err)
		return
	}
	fill := func() {
		f, _ := os.Create(filepath.Join(path, "filler"))
		for buf := make([]byte, 4096); ; {
			if _, err := f.Write(buf); err != nil {
				break
			}
		}
		f.Close()
	}
	if change == "life" {
		// It has its life file; the record is what finds no room.
		g, _ := d.Lock(context.Background(), name)
		if err := record.PutLife(d, g, name, rec.Token, record.Life{PID: rec.PID, Started: rec.Started, Inode: rec.Inode, Version: 1, ArgvHash: record.HashArgv(rec.Argv)}); err != nil {
			s.Say("%v", err)
		}
		g.Unlock()
	}
	fill()
	q := Request{Dir: d, Hub: hub, Name: name, Version: 2, Argv: k.Args, StopOrphans: true, Budget: time.Second}
	res, err := Run(context.Background(), q)
	s.Say("%s %t", outcome(res), errors.Is(err, unix.ENOSPC))
	// A signal that had been sent would have ended it by now or soon.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	s.Say("%v", h.Wait(ctx))
	cancel()
	now, err := record.Read(d, name)
	s.Say("%t %v", now != nil && now.Token == rec.Token, err)
	names, _ := d.Names(name + ".")
	s.Say("%q", names)
	// With room again, the one that runs must still be found by its own kind.
	os.Remove(filepath.Join(path, "filler"))
	q.StopOrphans = false
	res, err = Run(context.Background(), q)
	s.Say("%s %v", outcome(res), err)
	q.Version, q.Budget = 1, 0
	res, err = Run(context.Background(), q)
	s.Say("%t %v", res.Joined != nil && res.Joined.PID == rec.PID, err)
	in.Close()
	_ = k.Wait()
}

func TestFullDiskStopsNobody(t *testing.T) {
	rootOnly(t)
	for _, change := range []string{"nothing", "life"} {
		t.Run(change, func(t *testing.T) {
			c := role.Command("full", filepath.Join(t.TempDir(), "m"), change)
			c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			k := role.Run(t, c)
			files := `["agent.pid" "agent.pid.claiming"]`
			if change == "life" {
				files = `["agent.pid" "agent.pid.claiming" "agent.pid.keeper.1.0.1.0123456789abcdef"]`
			}
			for i, want := range []string{"neither true", "context deadline exceeded", "true <nil>", files, "won <nil>", "true <nil>"} {
				line := k.Line()
				if i == 0 && strings.HasPrefix(line, "skip") {
					t.Skip(line)
				}
				if line != want {
					t.Errorf("%d: %s, not %s", i, line, want)
				}
			}
		})
	}
}

// A claimant was killed between making the life file and filling it.
func TestHalfMadeLifeFileOfADisplacedProcess(t *testing.T) {
	p := newPlace(t)
	k := cat(t)
	v1 := p.write(named(t, k))
	must(t, os.WriteFile(p.Join(lock.LifeName(name, v1.Token)), nil, 0o600))
	p.won(p.run(p.want(version(2))))
	res, err := p.run(p.want(budget(0)))
	p.joined(res, err, k.PID())
}

// A slot that is being written while it is read may be anybody's.
func TestTornLifeFileOfALiveKeeper(t *testing.T) {
	p := newPlace(t)
	f, err := p.CreateLife(name, "1.0.1.0123456789abcdef")
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("process-guard-life-1 00000000 20\n{"), 0)
	must(t, err)
	r := p.start(p.want())
	r.waits()
	must(t, record.WriteLife(f, record.Life{}))
	p.won(r.result())
}

func TestLifeFileThatCannotBeRead(t *testing.T) {
	rootOnly(t)
	p := newPlace(t)
	k := cat(t)
	v1 := p.write(named(t, k))
	p.won(p.run(p.want(version(2))))
	// Root reads everything; too many open files refuse root as well.
	file := lock.LifeName(name, v1.Token)
	c := &claimer{q: p.want(), began: time.Now(), notes: &notes{}, seen: map[string]time.Time{}}
	openLife = func(d *lock.Dir, n, token string) (*os.File, error) {
		return nil, fmt.Errorf("open %s: %w", d.Join(lock.LifeName(n, token)), unix.EMFILE)
	}
	defer func() { openLife = record.OpenLife }()
	s := &scene{}
	c.lookForOlder(s, "")
	if s.facts.Older != OlderUnknown {
		t.Errorf("%d", s.facts.Older)
	}
	p.has(file, true)
	// What is no file of ours cannot be a generation of ours.
	must(t, os.Remove(p.Join(file)))
	must(t, os.Symlink("/etc/passwd", p.Join(file)))
	s = &scene{}
	c.lookForOlder(s, "")
	if s.facts.Older != NoOlder {
		t.Errorf("%d", s.facts.Older)
	}
	p.has(file, true)
}

// Beside "agent" a process is called "agent.pid.keeper.b".
func TestNeighbourWhoseNameLooksLikeALifeFile(t *testing.T) {
	p := newPlace(t)
	const neighbour = name + ".pid.keeper.b"
	ctx := context.Background()
	g, err := p.Lock(ctx, neighbour)
	must(t, err)
	must(t, record.Write(p.Dir, g, neighbour, named(t, cat(t))))
	g.Unlock()
	p.won(p.run(p.want()))
	p.has(neighbour+lock.RecordSuffix, true)
}

func TestTemporaryFilesOfKilledWritersAreSwept(t *testing.T) {
	p := newPlace(t)
	for _, file := range []string{name + ".pid.1.0.1.0123456789abcdef.tmp", name + ".pid.exit.1.0.1.0123456789abcdef.tmp"} {
		must(t, os.WriteFile(p.Join(file), []byte("half"), 0o600))
	}
	for _, file := range []string{name + ".pid.b.pid.1.0.1.0123456789abcdef.tmp", "other.pid.1.0.1.0123456789abcdef.tmp", name + ".tmp", name + ".pid.tmp"} {
		must(t, os.WriteFile(p.Join(file), []byte("another's"), 0o600))
	}
	res, err := p.run(p.want())
	if err != nil || res.Won == nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.names()); got != "["+name+".pid "+name+".pid.b.pid.1.0.1.0123456789abcdef.tmp "+name+".pid.claiming "+name+".pid.tmp "+name+".tmp other.pid.1.0.1.0123456789abcdef.tmp]" {
		t.Error(got)
	}
}

// What follows a claim.

func TestGiveBack(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*record.Record)
		gone   bool
	}{
		"still a claim":          {func(*record.Record) {}, true},
		"names a keeper":         {func(r *record.Record) { r.Keeper, r.KeeperArgv = os.Getpid(), os.Args }, false},
		"names one that is gone": {func(r *record.Record) { r.Keeper, r.KeeperArgv = 4_194_305, os.Args }, true},
		"names a pid":            {func(r *record.Record) { r.PID = os.Getpid() }, false},
		"another's":              {func(r *record.Record) { r.Token = "1.0.1.0123456789abcdef" }, false},
	} {
		p := newPlace(t)
		w := p.won(p.run(p.want()))
		rec := p.record()
		c.change(rec)
		p.write(rec)
		got, err := GiveBack(context.Background(), p.Dir, name, w.Token)
		if err != nil || (got == nil) != c.gone || got != nil && got.Token != rec.Token {
			t.Errorf("%s: %+v %v", what, got, err)
		}
		p.has(name+lock.RecordSuffix, !c.gone)
		if _, ok := live.Load(w.Token); ok {
			t.Errorf("%s: somebody still stands behind it", what)
		}
	}
	p := newPlace(t)
	if got, err := GiveBack(context.Background(), p.Dir, name, "1.0.1.0123456789abcdef"); got != nil || err != nil {
		t.Errorf("nothing there: %v %v", got, err)
	}
}

func TestRenew(t *testing.T) {
	p := newPlace(t)
	w := p.won(p.run(p.want()))
	rec := p.record()
	rec.ClaimedAt, rec.Keeper, rec.KeeperArgv, rec.Launcher = 1, 7, []string{"k"}, 8
	p.write(rec)
	f, err := p.CreateLife(name, w.Token)
	must(t, err)
	if _, cur, ok, err := Renew(context.Background(), p.want(), w.Token); ok || err != nil || cur == nil || cur.Token != w.Token {
		t.Errorf("its keeper is at work: %+v %t %v", cur, ok, err)
	}
	must(t, f.Close())
	next, cur, ok, err := Renew(context.Background(), p.want(), w.Token)
	if !ok || err != nil || next == w.Token || cur.Token != next {
		t.Fatalf("%s %+v %t %v", next, cur, ok, err)
	}
	got := p.record()
	if got.Token != next || got.PID != 0 || got.Keeper != 0 || got.KeeperArgv != nil || got.Launcher != 0 || got.ClaimedAt < 1000 || got.Version != 1 {
		t.Errorf("%+v", got)
	}
	p.has(lock.LifeName(name, w.Token), false)
	if _, ok := live.Load(w.Token); ok {
		t.Error("the old token")
	}
	r := p.start(p.want()) // somebody stands behind the new one
	r.waits()
	r.cancel()
	<-r.done
	other := *got
	other.Token = "1.0.1.0123456789abcdef"
	names := *got
	names.PID = os.Getpid()
	for what, rec := range map[string]*record.Record{"another's": &other, "names a pid": &names, "gone": nil} {
		if rec == nil {
			must(t, p.Remove(name+lock.RecordSuffix))
		} else {
			p.write(rec)
		}
		if _, _, ok, err := Renew(context.Background(), p.want(), next); ok || err != nil {
			t.Errorf("%s: %t %v", what, ok, err)
		}
		if after := p.record(); (after == nil) != (rec == nil) || after != nil && after.Token != rec.Token {
			t.Errorf("%s: %+v", what, after)
		}
	}
}

func TestAtWork(t *testing.T) {
	p := newPlace(t)
	if rec, life, err := AtWork(context.Background(), p.Dir, name, "1.0.1.0123456789abcdef"); rec != nil || life != proc.No || err != nil {
		t.Errorf("%v %s %v", rec, life, err)
	}
	w := p.won(p.run(p.want()))
	f, err := p.CreateLife(name, w.Token)
	must(t, err)
	if rec, life, err := AtWork(context.Background(), p.Dir, name, w.Token); rec == nil || rec.Token != w.Token || life != proc.Yes || err != nil {
		t.Errorf("%v %s %v", rec, life, err)
	}
	f.Close()
	if _, life, _ := AtWork(context.Background(), p.Dir, name, w.Token); life != proc.No {
		t.Error(life)
	}
}

func TestCommitDirect(t *testing.T) {
	p := newPlace(t)
	w := p.won(p.run(p.want()))
	k := cat(t)
	named(t, k)
	h, err := proc.Open(k.PID())
	must(t, err)
	defer h.Close()
	rec, taken, err := CommitDirect(context.Background(), p.Dir, name, w.Token, h, []string{"cat"})
	if err != nil || taken || rec.PID != k.PID() || rec.Started == "" {
		t.Fatalf("%+v %t %v", rec, taken, err)
	}
	res, err := p.run(p.want())
	p.joined(res, err, k.PID())
	if _, taken, err := CommitDirect(context.Background(), p.Dir, name, w.Token, h, []string{"cat"}); !taken || err != nil {
		t.Errorf("committed twice: %t %v", taken, err)
	}
	// Taken meanwhile, or gone.
	if rec, taken, err := CommitDirect(context.Background(), p.Dir, name, "1.0.1.0123456789abcdef", h, []string{"cat"}); !taken || err != nil || rec.Token != w.Token {
		t.Errorf("%+v %t %v", rec, taken, err)
	}
	// Release is for the owner only.
	if cur, err := Release(context.Background(), p.Dir, name, "1.0.1.0123456789abcdef"); err != nil || cur == nil {
		t.Errorf("%v %v", cur, err)
	}
	p.has(name+lock.RecordSuffix, true)
	if cur, err := Release(context.Background(), p.Dir, name, w.Token); err != nil || cur != nil {
		t.Errorf("%v %v", cur, err)
	}
	p.has(name+lock.RecordSuffix, false)
	if rec, taken, err := CommitDirect(context.Background(), p.Dir, name, w.Token, h, []string{"cat"}); !taken || err != nil || rec != nil {
		t.Errorf("%+v %t %v", rec, taken, err)
	}
}

// A direct start's process is found again without any life file of its own.
func TestDirectProcessIsRememberedWhenDisplaced(t *testing.T) {
	p := newPlace(t)
	w := p.won(p.run(p.want()))
	k := cat(t)
	named(t, k)
	h, err := proc.Open(k.PID())
	must(t, err)
	defer h.Close()
	_, _, err = CommitDirect(context.Background(), p.Dir, name, w.Token, h, []string{"cat"})
	must(t, err)
	p.has(lock.LifeName(name, w.Token), false)
	p.won(p.run(p.want(version(2))))
	p.has(lock.LifeName(name, w.Token), true)
}

// Races.

// One of eight takes a stale record, and seven join what it starts.
func TestOneWinner(t *testing.T) {
	rounds := 60
	if full() {
		rounds = 300
	}
	p := newPlace(t)
	k := cat(t)
	running := named(t, k)
	stale := dead(t)
	for range rounds {
		p.write(stale)
		var mu sync.Mutex
		var won, joined int
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				res, err := Run(context.Background(), p.want(func(q *Request) { q.Thread = i }))
				if err != nil {
					t.Error(err)
					return
				}
				if res.Won != nil {
					rec := *running
					rec.Token = res.Won.Token
					p.write(&rec)
					Keep(res.Won.Token)
				}
				mu.Lock()
				defer mu.Unlock()
				if res.Won != nil {
					won++
				}
				if res.Joined != nil && res.Joined.PID == k.PID() {
					joined++
				}
			})
		}
		all.Wait()
		if won != 1 || joined != 7 {
			t.Fatalf("%d won and %d joined", won, joined)
		}
	}
}

// racerRole claims with many goroutines each time it is told to, and names
// the given process where it wins.
func racerRole(s *role.Stage) {
	a := s.Args()
	d, err := lock.OpenExisting(a[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	hub, err := watch.For(d.Path())
	if err != nil {
		s.Say("%v", err)
		return
	}
	pid, _ := strconv.Atoi(a[1])
	workers, _ := strconv.Atoi(a[2])
	h, err := proc.Open(pid)
	if err != nil {
		s.Say("%v", err)
		return
	}
	s.Say("ready")
	for {
		if _, ok := s.Heard(); !ok {
			return
		}
		var mu sync.Mutex
		won, joined := 0, 0
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				res, err := Run(context.Background(), Request{Dir: d, Hub: hub, Name: name, Version: 1, Argv: []string{"cat"}, Thread: i, Budget: role.Patience})
				if err != nil {
					s.Say("%v", err)
					return
				}
				mu.Lock()
				if res.Won != nil {
					won++
				} else if res.Joined.PID == pid {
					joined++
				}
				mu.Unlock()
				if res.Won != nil {
					if _, taken, err := CommitDirect(context.Background(), d, name, res.Won.Token, h, []string{"cat"}); taken || err != nil {
						s.Say("commit: %t %v", taken, err)
					}
				}
			})
		}
		all.Wait()
		s.Say("%d %d", won, joined)
	}
}

func TestOneWinnerOfManyProcesses(t *testing.T) {
	rounds := 10
	if full() {
		rounds = 50
	}
	const processes, workers = 4, 16
	p := newPlace(t)
	k := cat(t)
	named(t, k)
	stale := dead(t)
	p.write(stale)
	racers := make([]*role.Child, processes)
	for i := range racers {
		racers[i] = role.Start(t, "racer", p.Path(), strconv.Itoa(k.PID()), strconv.Itoa(workers))
		racers[i].Says("ready")
	}
	for range rounds {
		p.write(stale)
		for _, r := range racers {
			r.Tell("go")
		}
		var won, joined int
		for _, r := range racers {
			var w, j int
			line := r.Line()
			if _, err := fmt.Sscan(line, &w, &j); err != nil {
				t.Fatal(line)
			}
			won, joined = won+w, joined+j
		}
		if won != 1 || joined != processes*workers-1 {
			t.Fatalf("%d won and %d joined", won, joined)
		}
	}
}

// waiterRole waits for a claim that does not end and says what that cost.
func waiterRole(s *role.Stage) {
	d, err := lock.OpenExisting(s.Args()[0])
	if err != nil {
		s.Say("%v", err)
		return
	}
	hub, err := watch.For(d.Path())
	if err != nil {
		s.Say("%v", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := Run(ctx, Request{Dir: d, Hub: hub, Name: name, Version: 1, Argv: []string{"cat"}, Budget: time.Hour})
		done <- err
	}()
	s.Say("waits")
	s.UntilTold()
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	select {
	case err := <-done:
		s.Say("it did not wait: %v", err)
		return
	case <-time.After(2 * time.Second):
	}
	cost := used() - before
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		s.Say("%v", err)
		return
	}
	s.Say("%d", cost.Microseconds())
}

// Waiting costs next to nothing, whatever is waited for.
func TestWaitingIsCheap(t *testing.T) {
	waiters := map[string]*role.Child{}
	for what, under := range map[string]func(p *place){
		"a claim in flight": func(p *place) { p.write(claimed(p.t, role.Start(p.t, "host"))) },
		"a zombie's claim": func(p *place) {
			host := role.Start(p.t, "host")
			rec := claimed(p.t, host)
			p.kept(rec)
			host.Signal(syscall.SIGKILL)
			p.write(rec)
		},
		"a restart": func(p *place) {
			rec := dead(p.t)
			p.kept(rec)
			p.write(rec)
		},
		"a restart after a zombie": func(p *place) {
			k := cat(p.t)
			rec := named(p.t, k)
			p.kept(rec)
			p.write(rec)
			k.Signal(syscall.SIGKILL)
		},
		"a reaper": func(p *place) {
			p.write(named(p.t, cat(p.t)))
			p.aside(true)
		},
	} {
		p := newPlace(t)
		under(p)
		k := role.Start(t, "waiter", p.Path())
		k.Says("waits")
		waiters[what] = k
	}
	for _, k := range waiters {
		k.Tell("measure")
	}
	for what, k := range waiters {
		line := k.Line()
		us, err := strconv.Atoi(line)
		if err != nil {
			t.Fatalf("%s: %s", what, line)
		}
		t.Logf("%s: 2 s cost %d us", what, us)
		if us > 20_000 {
			t.Errorf("%s: 2 s of waiting cost %d us", what, us)
		}
	}
}

// The waits end with their context, and leave neither goroutine nor descriptor.
func TestCancelledClaimsLeaveNothing(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what was forgotten
	p := newPlace(t)
	rec := dead(t)
	p.kept(rec)
	p.write(rec)
	before := usage(t)
	for range 20 {
		r := p.start(p.want())
		time.AfterFunc(10*time.Millisecond, r.cancel)
		if _, err := r.result(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	role.Within(t, role.Patience, "goroutines and descriptors as before", func() bool { return usage(t) <= before })
	p.write(claimed(t, role.Start(t, "host")))
	before = usage(t)
	for range 20 {
		r := p.start(p.want())
		time.AfterFunc(10*time.Millisecond, r.cancel)
		_, _ = r.result()
	}
	role.Within(t, role.Patience, "goroutines and descriptors as before", func() bool { return usage(t) <= before })
}
