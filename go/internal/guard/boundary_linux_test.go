package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What arrives from JavaScript. The seeds are what a caller's option could turn
// into; the files in testdata/fuzz are what a decoder trips over.
var boundarySeeds = []string{
	``, `null`, `{}`, `[]`, `"x"`, `1e999`, "\x00", `{"pid":`,
	`{"pid":1,"expected":["a",""]}`, `{"pid":-1,"expected":null}`, `{"pid":4294967297,"expected":["\u0000"]}`,
	`{"file":"a.pid"}`, `{"file":""}`, `{"dir":"d","file":"f","holder":"h","staleMs":1e300,"now":-1e300,"value":1e308}`,
	`{"text":"h 1\nboot 1","holder":"\n","staleMs":-1,"now":1e30}`, `{"root":"r","targets":[{"name":"n","argv":[""],"lock":"x"},{}]}`,
	`{"code":-2147483649,"signal":"SIGNOTHING"}`, `{"code":null,"signal":"` + strings.Repeat("S", 300) + `"}`,
	`{"state":{"pid":1,"verifiedPid":2,"verifiedAt":1e300},"now":1,"intervalMs":-1}`, `{"key":"k","note":true}`,
	`{"ms":1e300}`, `{"session":true}`, `{"session":true,"ms":-1e300}`,
	`{"pidDir":"p","name":"n"}`, `{"pidDir":"p","name":"n","timeoutMs":-9223372036854775808,"force":true,"version":1}`,
	`{"pidDir":"p","name":"n","title":"t","binaryPath":"b","args":["\ud800"],"claimTimeoutMs":9223372036854775807,"replaceGraceMs":9223372036854775807,"spawn":{"shell":"x"}}`,
	`{"pidDir":"p","name":"n","binaryPath":"b","spawn":{"shell":true,"env":{"":"=","PG_SPEC_0":"x"},"hostPath":"","uid":-1,"stdio":["pipe","overlapped","","ignore"]},"restart":{"max":-1,"baseMs":-1,"capMs":-1},"paths":{"keeper":"","reaper":"","launch":""}}`,
	`{"pidDir":"p","name":"n","graceMs":-1,"replacementPidFile":"r","logFile":"l","execPath":"e","spawn":{"shell":[]}}`,
	`{"pidDir":"p","pidDir":null,"PIDDIR":"q","name":"n"}`,
}

// confine makes a fresh directory the working directory and says whether args
// stay in it: no string in them is an absolute path or leads upwards. Strings
// are looked at one by one, since of a key that comes twice a decoder into a
// map forgets the first, and one into a struct may not.
func confine(t *testing.T, args []byte) {
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			if !errors.Is(err, io.EOF) && json.Valid(args) {
				t.Fatalf("%q: %v", args, err)
			}
			break
		}
		if s, ok := token.(string); ok && (strings.HasPrefix(s, "/") || strings.Contains(s, "..")) {
			t.Skip("it names something outside")
		}
	}
	parent := t.TempDir()
	work := filepath.Join(parent, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(work)
	t.Cleanup(func() {
		if names, _ := os.ReadDir(parent); len(names) != 1 {
			t.Errorf("%q touched something outside: %v", args, names)
		}
	})
}

// judge holds an answer against the contract: ok, or an error with a code and
// words, and never a panic.
func judge(t *testing.T, fn string, args, answer []byte) {
	t.Helper()
	var is struct {
		OK    json.RawMessage `json:"ok"`
		Error *failureText    `json:"error"`
	}
	if err := json.Unmarshal(answer, &is); err != nil {
		t.Fatalf("%s(%q) answered %q: %v", fn, args, answer, err)
	}
	switch e := is.Error; {
	case e == nil && is.OK == nil, e != nil && is.OK != nil:
		t.Fatalf("%s(%q) answered %q", fn, args, answer)
	case e != nil && (!strings.HasPrefix(e.Code, "PG_") || e.Code == "PG_PANIC" || e.Code == "PG_INTERNAL" || e.Message == ""):
		t.Fatalf("%s(%q) failed with %s: %s\n%s", fn, args, e.Code, e.Message, e.Stack)
	}
}

// names lists the registered functions that are no test's own.
func names[F any](m map[string]F) []string {
	own := func(fn string) bool { return strings.HasPrefix(fn, "test.") || strings.HasPrefix(fn, "fault.") }
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), own)
}

// FuzzSync hands the same bytes to every synchronous function.
func FuzzSync(f *testing.F) {
	for _, seed := range boundarySeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		confine(t, args)
		e := NewEnv(func(int, uint64, []byte) { t.Error("a synchronous function sent something") })
		defer e.Close()
		for _, fn := range names(registry.syncs) {
			judge(t, fn, args, e.Sync(fn, args))
		}
	})
}

// FuzzCall hands the same bytes to every asynchronous function and to its
// session. Whatever it wants started is refused.
func FuzzCall(f *testing.F) {
	for _, seed := range boundarySeeds {
		f.Add([]byte(seed), []byte(`{"t":"stop"}`))
	}
	f.Add([]byte(`{"pidDir":"p","name":"n","binaryPath":"b","spawn":{"shell":"sh"}}`), []byte(`{"t":"exit","n":1e9,"code":{},"signal":""}`))
	f.Add([]byte(`{"pidDir":"p","name":"n","binaryPath":"b","spawn":{"shell":"sh"}}`), []byte(`{"t":"spawned","n":1,"pid":-1,"own":true}`))
	f.Fuzz(func(t *testing.T, args, message []byte) {
		confine(t, args)
		before := descriptors(t)
		for _, fn := range names(registry.calls) {
			converse(t, fn, args, message)
		}
		// The watcher of a directory ends a moment after its last user.
		for deadline := time.Now().Add(10 * time.Second); descriptors(t) > before; {
			if time.Now().After(deadline) {
				t.Fatalf("%q left %d descriptors open", args, descriptors(t)-before)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// converse makes one call, says message to its session, and ends the thread
// when the call has ended or has had the time that a decoder takes.
func converse(t *testing.T, fn string, args, message []byte) {
	out, sent := recorder()
	e := NewEnv(out)
	e.Call(1, fn, args)
	e.Send(1, message)
	enough := time.After(5 * time.Millisecond)
	answers := 0
	for open := true; open; {
		select {
		case s := <-sent:
			switch s.kind {
			case KindAnswer:
				answers++
				judge(t, fn, args, []byte(s.payload))
				open = strings.HasSuffix(s.payload, `,"open":true}`)
			case KindMessage:
				var m struct {
					T string `json:"t"`
					N int    `json:"n"`
				}
				if err := json.Unmarshal([]byte(s.payload), &m); err != nil {
					t.Fatalf("%s(%q) sent %q: %v", fn, args, s.payload, err)
				}
				if m.T == "spawn" {
					e.Send(1, fmt.Appendf(nil, `{"t":"refused","n":%d,"message":"no"}`, m.N))
				}
			case KindEnd:
				open = false
			}
		case <-enough:
			open = false
		}
	}
	e.Close()
	e.Wait()
	if answers > 1 {
		t.Fatalf("%s(%q) was answered %d times", fn, args, answers)
	}
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// lib/options.js refuses such names first; a file that is written beside the
// directory is too much to leave to one check.
func TestNamesThatLeaveTheDirectory(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/x", "a\x00b"} {
		for _, fn := range []string{"process", "reaper", "stopProcess", "watchRecord"} {
			parent := t.TempDir()
			args, err := json.Marshal(map[string]any{"pidDir": filepath.Join(parent, "run"), "name": name, "binaryPath": "/bin/true"})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(parent, "run"), 0o700); err != nil {
				t.Fatal(err)
			}
			out, sent := recorder()
			e := NewEnv(out)
			e.Call(1, fn, args)
			if got := next(t, sent); got.kind != KindAnswer || !strings.Contains(got.payload, `"code":"PG_ARGUMENT"`) {
				t.Errorf("%s of %q: %s", fn, name, got.payload)
			}
			e.Close()
			e.Wait()
			if list, _ := os.ReadDir(parent); len(list) != 1 {
				t.Errorf("%s of %q left %v", fn, name, list)
			}
		}
	}
}
