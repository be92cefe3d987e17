// Package verdict decides when what was proved about a process no longer
// describes the process that runs. It is pure: pids, counters and a clock in, a
// reason out.
package verdict

import "fmt"

// State is what a state object says about a process and about its proof. A nil
// pointer is a field that is not there.
type State struct {
	PID         *int64   `json:"pid"`
	Started     *bool    `json:"started"`
	Exited      *bool    `json:"exited"`
	Restarts    *int64   `json:"restarts"`
	Verified    *bool    `json:"verified"`
	HasVerified bool     `json:"hasVerified"` // verified is there, if only as null
	Detail      string   `json:"verifyDetail"`
	VerifiedPID *int64   `json:"verifiedPid"`
	VerifiedAt  *float64 `json:"verifiedAt"` // ms
}

// Stale says whether a verdict was taken against another pid than the current.
func Stale(s State) bool {
	return s.VerifiedPID != nil && (s.PID == nil || *s.PID != *s.VerifiedPID)
}

// StaleDetail says so in words, with what the dead process had proved.
func StaleDetail(s State) string {
	since := "this node runs no process now"
	if s.PID != nil {
		since = fmt.Sprintf("it runs as pid %d now", *s.PID)
		if s.Restarts != nil && *s.Restarts > 0 {
			since = fmt.Sprintf("it has restarted %d time(s) as pid %d", *s.Restarts, *s.PID)
		}
	}
	line := fmt.Sprintf("the verdict was taken against pid %d, and %s", *s.VerifiedPID, since)
	if s.Detail != "" {
		line += fmt.Sprintf("; what the dead one proved was: %s", s.Detail)
	}
	return line
}

// Reason is why a verdict is to be taken again; "" when it is not.
type Reason string

// The reasons.
const (
	None      Reason = ""
	Restarted Reason = "restarted" // it is about a process that is gone
	Untaken   Reason = "untaken"   // there is none yet
	Refuted   Reason = "refuted"   // the last one failed, and its time is over
)

// Retake decides. intervalMs is how long a failed verdict stands.
func Retake(s State, now, intervalMs float64) Reason {
	switch {
	case s.Started != nil && !*s.Started, s.Exited != nil && *s.Exited:
		return None
	case Stale(s):
		return Restarted
	case s.Started != nil && *s.Started && !s.HasVerified:
		return Untaken
	case s.Verified == nil || *s.Verified:
		return None
	case s.VerifiedAt == nil:
		return Refuted
	}
	// A clock that was set back must not keep a failed verdict for ever.
	if elapsed := now - *s.VerifiedAt; elapsed >= intervalMs || elapsed < 0 {
		return Refuted
	}
	return None
}
