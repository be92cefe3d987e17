package keep

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

func TestJudge(t *testing.T) {
	s := &spec.Spec{Restart: spec.Restart{Max: 2, ResetAfterMs: 1000}}
	dead := func(code int, sig syscall.Signal, ran time.Duration) death {
		return death{exit: proc.Exit{Code: code, Signal: sig}, known: true, ran: ran}
	}
	for _, test := range []struct {
		name   string
		d      death
		c      count
		event  Event
		counts count
	}{
		{"clean exit", dead(0, 0, 0), count{used: 1}, Deliberate, count{used: 1}},
		{"SIGTERM", dead(0, syscall.SIGTERM, 0), count{used: 2}, Deliberate, count{used: 2}},
		{"crash", dead(1, 0, 0), count{}, Crash, count{used: 1}},
		{"SIGKILL", dead(0, syscall.SIGKILL, 0), count{used: 1}, Crash, count{used: 2}},
		{"crash too many", dead(1, 0, 0), count{used: 2}, LastCrash, count{used: 2}},
		{"crash too many, from an earlier generation", dead(1, 0, 0), count{used: 9}, LastCrash, count{used: 9}},
		{"crash after a long run", dead(1, 0, time.Second), count{used: 2, tries: 3}, Crash, count{used: 1}},
		{"crash after a run that is too short", dead(1, 0, 999*time.Millisecond), count{used: 2}, LastCrash, count{used: 2}},
		{"a 0 that nobody proved", death{}, count{}, Crash, count{used: 1}},
		{"tries end with a run", dead(1, 0, 0), count{used: 1, tries: 4}, Crash, count{used: 2}},
	} {
		if e, c := judge(test.d, test.c, s); e != test.event || c != test.counts {
			t.Errorf("%s: %s %+v, not %s %+v", test.name, e, c, test.event, test.counts)
		}
	}
	s.Restart.Max = 0
	if e, _ := judge(dead(1, 0, time.Hour), count{}, s); e != LastCrash {
		t.Errorf("with a maximum of 0: %s", e)
	}
}

func TestPause(t *testing.T) {
	r := spec.DefaultRestart
	for used, want := range []int{0: 1000, 1: 1000, 2: 2000, 3: 4000, 4: 8000, 5: 16000, 6: 16000} {
		if got := pause(count{used: used}, r); got != ms(int64(want)) {
			t.Errorf("restart %d waits %v, not %d ms", used, got, want)
		}
	}
	// A start that could not be made waits on in the same row.
	if got := pause(count{used: 1, tries: 2}, r); got != 4*time.Second {
		t.Errorf("the third try of the first restart waits %v", got)
	}
	fast := spec.Restart{Max: 1000, BaseMs: 1, CapMs: 1}
	if got := pause(count{used: 3}, fast); got != time.Millisecond {
		t.Errorf("a fast restart waits %v", got)
	}
	for tries, last := 1, time.Duration(0); tries < 100; tries++ {
		got := pause(count{used: 3, tries: tries}, fast)
		if got < 20*time.Millisecond || got < last || got > 16*time.Second {
			t.Fatalf("try %d waits %v after %v", tries, got, last)
		}
		last = got
	}
}

func TestWhatMayWorkLater(t *testing.T) {
	for _, test := range []struct {
		stage stage
		err   error
		later bool
	}{
		{stageFork, syscall.EAGAIN, true},
		{stageFork, fmt.Errorf("fork: %w", syscall.ENOMEM), true},
		{stageFork, syscall.EMFILE, true},
		{stageFork, syscall.EPERM, false},
		{stageName, syscall.ENOSPC, true},
		{stageName, syscall.EROFS, true},
		{stageExec, syscall.ENOENT, false},
		{stageExec, syscall.EACCES, false},
		{stageExec, syscall.ETXTBSY, true},
		{stageExec, syscall.EAGAIN, true},
		{stageEnded, fmt.Errorf("exit code 2"), true},
		{stageChdir, syscall.ENOENT, false},
		{stageUID, syscall.EPERM, false},
		{stageUID, syscall.EAGAIN, true},
	} {
		e := &startError{stage: test.stage, err: test.err, file: "/x", cwd: "/c"}
		if e.temporary() != test.later {
			t.Errorf("%v: tried again: %v", e, e.temporary())
		}
		if text := e.Error(); !strings.Contains(text, "/x") {
			t.Errorf("%q names no file", text)
		}
	}
}

func TestReadReport(t *testing.T) {
	for _, test := range []struct {
		said  string
		ready bool
		stage stage
		errno syscall.Errno
	}{
		{"", false, 0, 0},
		{"x", true, 0, 0},
		{"xX\x02\x00\x00\x00", false, stageExec, syscall.ENOENT},
		{"c\x0d\x00\x00\x00", false, stageChdir, syscall.EACCES},
		{"c\x0d", false, 0, 0}, // killed half-way
	} {
		ready, st, errno := readReport([]byte(test.said))
		if ready != test.ready || st != test.stage || errno != test.errno {
			t.Errorf("%q: %v %q %v", test.said, ready, st, errno)
		}
	}
}
