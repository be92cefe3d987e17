// Package record reads and writes what is on disk about a guarded process: the
// record `<name>.pid`, the exit record `<name>.pid.exit`, and the slot of a
// life file.
//
// A record is replaced only by rename and only under the gate, so a reader
// needs no lock and never sees half of one. Nothing is flushed to the disk: a
// record means nothing after a reboot, and the boot id in it says so.
package record

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"processguard/go/internal/lock"
)

// Record is one `<name>.pid`. The first six fields after Version are the
// JavaScript original's; the others are ours and are ignored by it.
type Record struct {
	PID     int // 0: a claim, nothing runs under it yet
	Version int64

	Token      string
	Host       int // pid of the host process that claimed
	Argv       []string
	Keeper     int // 0: none
	KeeperArgv []string
	Started    string // "<boot id>:<start ticks>" of the process

	Inode       uint64 // pidfs inode of the process
	HostStarted string // start identity of the host
	ClaimedAt   int64  // CLOCK_BOOTTIME in ms when the claim was written
	Boot        string // boot id of the writer
	NS          uint64 // pid namespace (inode) that the pids above belong to
	UID         int    // who wrote it, -1 unknown
	Starting    bool   // the process is held or has not confirmed its exec
	Restarts    int    // restarts so far, this generation's and those handed to it
	Launcher    int    // pid of the launcher, until the process is named
	Stopping    bool   // a stop was asked for; its end is no crash (no keeper knows it)

	Extra map[string]json.RawMessage // fields we do not know, kept as they are
}

// Ours says whether the record carries what identifies a generation. A bare
// pid file is somebody else's: its pid is never signalled.
func (r *Record) Ours() bool { return r != nil && r.Token != "" && len(r.Argv) > 0 }

// wire is line 3 in the order it is written.
type wire struct {
	Token       string   `json:"token"`
	Host        int      `json:"host"`
	Argv        []string `json:"argv"`
	Keeper      int      `json:"keeper,omitempty"`
	KeeperArgv  []string `json:"keeperArgv,omitempty"`
	Started     string   `json:"started,omitempty"`
	Inode       uint64   `json:"inode,omitempty"`
	HostStarted string   `json:"hostStarted,omitempty"`
	ClaimedAt   int64    `json:"claimedAt,omitempty"`
	Boot        string   `json:"boot,omitempty"`
	NS          uint64   `json:"ns,omitempty"`
	UID         *int     `json:"uid,omitempty"`
	Starting    bool     `json:"starting,omitempty"`
	Restarts    int      `json:"restarts,omitempty"`
	Launcher    int      `json:"launcher,omitempty"`
	Stopping    bool     `json:"stopping,omitempty"`
}

// Encode is the file's text: three lines, the third one JSON.
func Encode(r *Record) []byte {
	w := wire{
		Token: r.Token, Host: r.Host, Argv: r.Argv, Keeper: r.Keeper, Started: r.Started,
		Inode: r.Inode, HostStarted: r.HostStarted, ClaimedAt: r.ClaimedAt, Boot: r.Boot,
		NS: r.NS, Starting: r.Starting, Restarts: r.Restarts, Launcher: r.Launcher, Stopping: r.Stopping,
	}
	if r.Keeper > 0 {
		w.KeeperArgv = r.KeeperArgv
	}
	if r.UID >= 0 {
		uid := r.UID
		w.UID = &uid
	}
	var b bytes.Buffer
	b.WriteString(strconv.Itoa(r.PID))
	b.WriteByte('\n')
	b.WriteString(strconv.FormatInt(r.Version, 10))
	b.WriteByte('\n')
	line := marshal(w)
	if len(r.Extra) > 0 {
		// Keys of ours were taken out when it was read, so none is doubled.
		extra := marshal(r.Extra)
		line = append(append(line[:len(line)-1], ','), extra[1:]...)
	}
	b.Write(line)
	b.WriteByte('\n')
	return b.Bytes()
}

// marshal writes JSON in one line with characters as they are: command lines
// are compared byte for byte and read by people.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		// Only maps of raw messages read from a file could fail here.
		return []byte("{}")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// Decode reads a record. nil means that the text is none (empty, torn, no pid
// in line 1). Whatever is missing or of the wrong type in line 3 is left at its
// zero value, field by field, as older writers and the original's reader do.
func Decode(text []byte) *Record {
	first, rest, _ := bytes.Cut(text, []byte{'\n'})
	pid, ok := leadingInt(string(first))
	if !ok || pid < 0 || pid > maxPID {
		return nil
	}
	second, third, _ := bytes.Cut(rest, []byte{'\n'})
	version, ok := leadingInt(string(second))
	if !ok {
		version = 0
	}
	r := &Record{PID: int(pid), Version: version, UID: -1}
	line, _, _ := bytes.Cut(third, []byte{'\n'})
	var f fields
	if json.Unmarshal(line, &f) != nil {
		return r
	}
	take(f, "token", &r.Token)
	r.Host = f.pid("host")
	r.Argv = f.words("argv")
	r.Keeper = f.pid("keeper")
	r.KeeperArgv = f.words("keeperArgv")
	r.Started = f.identity("started")
	take(f, "inode", &r.Inode)
	r.HostStarted = f.identity("hostStarted")
	take(f, "claimedAt", &r.ClaimedAt)
	r.Boot = f.identity("boot")
	take(f, "ns", &r.NS)
	take(f, "uid", &r.UID)
	take(f, "starting", &r.Starting)
	take(f, "restarts", &r.Restarts)
	r.Launcher = f.pid("launcher")
	take(f, "stopping", &r.Stopping)
	if !lock.GoodToken(r.Token) {
		// A token becomes part of a file name; one that could leave the
		// directory, or be another record's name, is not ours.
		r.Token = ""
	}
	if r.Keeper == 0 {
		r.KeeperArgv = nil
	}
	if r.UID < 0 {
		r.UID = -1
	}
	if len(f) > 0 {
		r.Extra = f
	}
	return r
}

// fields are those of line 3 that nobody has taken yet.
type fields map[string]json.RawMessage

// take moves one field into its place. One of another type is as good as none:
// json leaves behind what it had read before it noticed, so [1,"a"] was the
// command line "" "a" of a process that then was somebody else's.
func take[T any](f fields, key string, into *T) {
	raw, ok := f[key]
	if !ok {
		return
	}
	delete(f, key)
	var v *T
	if json.Unmarshal(raw, &v) == nil && v != nil {
		*into = *v
	}
}

// pid is 0 for what no process has: the kernel cuts a larger number down to
// one that somebody else may have.
func (f fields) pid(key string) int {
	var n int64
	take(f, key, &n)
	if n <= 0 || n > maxPID {
		return 0
	}
	return int(n)
}

func (f fields) words(key string) []string {
	var maybe []*string
	take(f, key, &maybe)
	if maybe == nil {
		return nil
	}
	words := make([]string, len(maybe))
	for i, w := range maybe {
		if w == nil {
			return nil
		}
		words[i] = *w
	}
	return words
}

// identity is a start time or a boot id. Ours have 50 bytes; a longer one would
// not fit into a life file.
func (f fields) identity(key string) string {
	var s string
	take(f, key, &s)
	if len(s) > 128 {
		return ""
	}
	return s
}

const maxPID = 1<<31 - 1

// leadingInt reads the integer a line begins with, blanks before it allowed.
func leadingInt(s string) (int64, bool) {
	s = strings.TrimLeft(s, " \t\r")
	end := 0
	if end < len(s) && (s[end] == '-' || s[end] == '+') {
		end++
	}
	digits := end
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	if end == digits {
		return 0, false
	}
	n, err := strconv.ParseInt(s[:end], 10, 64)
	return n, err == nil
}

// SameArgv compares two command lines element by element.
func SameArgv(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
