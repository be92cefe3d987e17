package verdict

import "testing"

func p[T any](v T) *T { return &v }

func TestRetake(t *testing.T) {
	for name, c := range map[string]struct {
		s    State
		now  float64
		want Reason
	}{
		"never started":                       {State{Started: p(false)}, 0, None},
		"exited":                              {State{Started: p(true), Exited: p(true), PID: p[int64](2), VerifiedPID: p[int64](1)}, 0, None},
		"another pid":                         {State{Started: p(true), PID: p[int64](2), VerifiedPID: p[int64](1), HasVerified: true, Verified: p(true)}, 0, Restarted},
		"no pid any more":                     {State{Started: p(true), VerifiedPID: p[int64](1), HasVerified: true, Verified: p(true)}, 0, Restarted},
		"never asked":                         {State{Started: p(true), PID: p[int64](2)}, 0, Untaken},
		"asked, no answer":                    {State{Started: p(true), PID: p[int64](2), HasVerified: true}, 0, None},
		"verified":                            {State{Started: p(true), PID: p[int64](2), HasVerified: true, Verified: p(true)}, 0, None},
		"refuted, never dated":                {State{Started: p(true), PID: p[int64](2), HasVerified: true, Verified: p(false)}, 0, Refuted},
		"refuted just now":                    {State{Started: p(true), PID: p[int64](2), HasVerified: true, Verified: p(false), VerifiedAt: p(100.0)}, 109, None},
		"refuted long enough":                 {State{Started: p(true), PID: p[int64](2), HasVerified: true, Verified: p(false), VerifiedAt: p(100.0)}, 110, Refuted},
		"refuted, and the clock was set back": {State{Started: p(true), PID: p[int64](2), HasVerified: true, Verified: p(false), VerifiedAt: p(100.0)}, 99, Refuted},
	} {
		if got := Retake(c.s, c.now, 10); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func TestStaleDetailNamesBothPids(t *testing.T) {
	s := State{PID: p[int64](22), VerifiedPID: p[int64](11), Restarts: p[int64](3), Detail: "it answered"}
	want := "the verdict was taken against pid 11, and it has restarted 3 time(s) as pid 22; what the dead one proved was: it answered"
	if got := StaleDetail(s); got != want {
		t.Errorf("it says %q", got)
	}
	if Stale(State{PID: p[int64](11), VerifiedPID: p[int64](11)}) || Stale(State{PID: p[int64](11)}) {
		t.Error("a verdict about the current pid, or none, is not stale")
	}
}
