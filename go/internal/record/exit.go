package record

import (
	"encoding/json"
)

// Outcome is what a keeper did about a death.
type Outcome string

// The outcomes of an exit record.
const (
	Released   Outcome = "released"   // an intended end; the record is gone
	Restarting Outcome = "restarting" // a crash; the keeper starts it again after WaitMs
	GaveUp     Outcome = "gave-up"    // a crash after the last restart; the record is gone
	Gone       Outcome = "gone"       // the record or its directory had vanished
	Taken      Outcome = "taken"      // another generation has the record
	Failed     Outcome = "failed"     // it could not be started
)

func (o Outcome) known() bool {
	switch o {
	case Released, Restarting, GaveUp, Gone, Taken, Failed:
		return true
	}
	return false
}

// Exit is one `<name>.pid.exit`: the last thing a keeper had to say.
type Exit struct {
	Token    string  `json:"token"`
	Keeper   int     `json:"keeper"` // 0: the launcher could not start one
	PID      int     `json:"pid"`    // 0: nothing had started
	Code     *int    `json:"code"`
	Signal   *string `json:"signal"`
	Outcome  Outcome `json:"outcome"`
	Restarts int     `json:"restarts"` // including one that is announced
	WaitMs   int64   `json:"waitMs"`
	At       int64   `json:"at"` // wall clock, ms since the epoch; for people
	Released bool    `json:"released"`
	Error    string  `json:"error,omitempty"`
}

// EncodeExit is the file's text.
func EncodeExit(e Exit) []byte { return append(marshal(e), '\n') }

// DecodeExit reads an exit record; nil when the text is none.
func DecodeExit(text []byte) *Exit {
	var e Exit
	if json.Unmarshal(text, &e) != nil || e.Token == "" || !e.Outcome.known() || e.PID < 0 {
		return nil
	}
	return &e
}
