package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"processguard/go/internal/lock"
)

const (
	token = "41.0.1.0123456789abcdef"
	other = "42.0.1.fedcba9876543210"
)

func whole() *Record {
	return &Record{
		PID: 4242, Version: 7, Token: token, Host: 41, Argv: []string{"/bin/db", "", "-x", "<&>\u2028é"}, Keeper: 43,
		KeeperArgv: []string{"/k", "keep", "--lock", "/p/agent.pid", "--token", token}, Started: "b0:12", Inode: 99,
		HostStarted: "b0:11", ClaimedAt: 123456, Boot: "b0", NS: 4026531836, UID: 1000, Starting: true, Restarts: 2, Launcher: 44, Stopping: true,
		Extra: map[string]json.RawMessage{"zone": json.RawMessage(`{"a":[1,null,"<"]}`), "Token": json.RawMessage(`"not ours"`)},
	}
}

func TestRoundTrip(t *testing.T) {
	// A field that is written and not read would come back as one we do not know.
	for v, i := reflect.ValueOf(*whole()), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not tried", v.Type().Field(i).Name)
		}
	}
	for what, r := range map[string]*Record{
		"everything":   whole(),
		"only a claim": {Version: 1, Token: token, Argv: []string{"x"}, UID: -1},
		"bare":         {PID: 9, UID: -1},
	} {
		text := Encode(r)
		if n := bytes.Count(text, []byte{'\n'}); n != 3 || text[len(text)-1] != '\n' {
			t.Errorf("%s: %d lines in %q", what, n, text)
		}
		if got := Decode(text); !reflect.DeepEqual(got, r) {
			t.Errorf("%s:\n%+v, not\n%+v", what, got, r)
		}
	}
}

// The layout that the original reads.
func TestLayout(t *testing.T) {
	r := whole()
	r.Extra = nil
	lines := strings.Split(string(Encode(r)), "\n")
	if lines[0] != "4242" || lines[1] != "7" || !strings.HasPrefix(lines[2], `{"token":"`+token+`","host":41,"argv":["/bin/db","","-x","<&>`) || !strings.Contains(lines[2], `],"keeper":43,"keeperArgv":[`) || !strings.Contains(lines[2], `],"started":"b0:12",`) {
		t.Errorf("%q", lines)
	}
	r.Keeper = 0
	if text := string(Encode(r)); strings.Contains(text, "keeper") {
		t.Errorf("a keeper's line without a keeper: %s", text)
	}
}

func TestRecordsOfTheOriginal(t *testing.T) {
	r := Decode([]byte("4242\n3\n{\"token\":\"77.2.9.m3f9a8b2\",\"host\":77,\"argv\":[\"/opt/agent\",\"--port=1\"],\"keeper\":80,\"keeperArgv\":[\"/usr/bin/node\",\"/x/keeper.js\",\"--keep\",\"--lock\",\"/p/agent.pid\",\"--token\",\"77.2.9.m3f9a8b2\"],\"started\":\"0b9f:123\"}\n"))
	want := &Record{
		PID: 4242, Version: 3, Token: "77.2.9.m3f9a8b2", Host: 77, Argv: []string{"/opt/agent", "--port=1"}, Keeper: 80,
		KeeperArgv: []string{"/usr/bin/node", "/x/keeper.js", "--keep", "--lock", "/p/agent.pid", "--token", "77.2.9.m3f9a8b2"},
		Started:    "0b9f:123", UID: -1,
	}
	if !reflect.DeepEqual(r, want) || !r.Ours() {
		t.Errorf("%+v", r)
	}
	if r := Decode([]byte("0\n3\n{\"token\":\"77.2.9.m3f9a8b2\",\"host\":77,\"argv\":[\"a\"]}\n")); !r.Ours() || r.PID != 0 || r.Host != 77 {
		t.Errorf("a claim: %+v", r)
	}
}

// What is missing or of another type is left out by itself; the rest stays.
func TestFieldByField(t *testing.T) {
	good := string(Encode(whole()))
	third := strings.Split(good, "\n")[2]
	var f map[string]json.RawMessage
	if err := json.Unmarshal([]byte(third), &f); err != nil {
		t.Fatal(err)
	}
	wrong := map[string][]string{
		"text":    {`7`, `true`, `["x"]`, `{}`, `null`},
		"number":  {`"7"`, `true`, `[7]`, `{}`, `null`, `1.5`, `1e400`, `99999999999999999999999`},
		"pid":     {`"7"`, `true`, `[7]`, `{}`, `null`, `-1`, `0`, `2147483648`, `4294967297`, `1.5`},
		"words":   {`"x"`, `7`, `{}`, `null`, `[1,"a"]`, `["a",null]`, `["a",["b"]]`, `["a",{}]`},
		"boolean": {`"true"`, `1`, `null`, `[]`},
	}
	for key, kind := range map[string]string{
		"token": "text", "host": "pid", "argv": "words", "keeper": "pid", "keeperArgv": "words", "started": "text", "inode": "number",
		"hostStarted": "text", "claimedAt": "number", "boot": "text", "ns": "number", "uid": "number", "starting": "boolean",
		"restarts": "number", "launcher": "pid", "stopping": "boolean",
	} {
		field := func(r *Record) reflect.Value {
			return reflect.ValueOf(r).Elem().FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, key) })
		}
		zero := reflect.Zero(field(whole()).Type()).Interface()
		if key == "uid" {
			zero = -1
		}
		for _, value := range append(wrong[kind], "") {
			changed := map[string]json.RawMessage{}
			for k, v := range f {
				changed[k] = v
			}
			if changed[key] = json.RawMessage(value); value == "" {
				delete(changed, key)
			}
			var line []string
			for k, v := range changed {
				line = append(line, fmt.Sprintf("%q:%s", k, v))
			}
			r := Decode([]byte("4242\n7\n{" + strings.Join(line, ",") + "}\n"))
			if r == nil {
				t.Errorf("%s is %s: no record", key, value)
				continue
			}
			if got := field(r).Interface(); !reflect.DeepEqual(got, zero) {
				t.Errorf("%s is %s: %v", key, value, got)
			}
			want := whole()
			field(want).Set(reflect.ValueOf(zero))
			if key == "keeper" {
				want.KeeperArgv = nil
			}
			if !reflect.DeepEqual(r, want) {
				t.Errorf("%s is %s:\n%+v, not\n%+v", key, value, r, want)
			}
		}
	}
}

func TestIdentitiesHaveALimit(t *testing.T) {
	r := whole()
	r.Started, r.HostStarted, r.Boot = strings.Repeat("s", 129), strings.Repeat("h", 4000), strings.Repeat("b", 128)
	got := Decode(Encode(r))
	if got.Started != "" || got.HostStarted != "" || got.Boot != r.Boot {
		t.Errorf("%+v", got)
	}
}

// json leaves behind what it had read before it met a wrong type: [1,"a"] was
// the command line "" "a", so a live process ran something else and was taken
// over.
func TestWrongElementsMakeNoCommandLine(t *testing.T) {
	for _, argv := range []string{`[1,"a"]`, `["a",null]`, `["a",["b"]]`} {
		r := Decode([]byte(`1` + "\n1\n" + `{"token":"` + token + `","argv":` + argv + "}\n"))
		if r.Argv != nil || r.Ours() {
			t.Errorf("%s: %q", argv, r.Argv)
		}
	}
}

func TestWhatIsNoRecord(t *testing.T) {
	mega := bytes.Repeat([]byte{'x'}, 1<<20)
	for what, text := range map[string][]byte{
		"empty": {}, "a line": []byte("\n"), "no number": []byte("hello\n1\n{}\n"), "negative": []byte("-4\n1\n"), "NULs": make([]byte, 4096),
		"too large": []byte("2147483648\n1\n"), "overflow": []byte("99999999999999999999\n1\n"), "sign alone": []byte("-\n"), "1 MB": mega,
	} {
		if r := Decode(text); r != nil {
			t.Errorf("%s: %+v", what, r)
		}
	}
	for what, c := range map[string]struct {
		text    string
		pid     int
		version int64
	}{
		"bare pid":                {"4242\n", 4242, 0},
		"bare pid, no end":        {"4242", 4242, 0},
		"CRLF":                    {"4242\r\n5\r\n", 4242, 5},
		"blanks":                  {"  42 \n 5 \n", 42, 5},
		"a number and more":       {"42abc\n5.9\n", 42, 5},
		"two lines":               {"42\n5\n", 42, 5},
		"no version":              {"42\nfive\n{}\n", 42, 0},
		"version too large":       {"42\n99999999999999999999\n{}\n", 42, 0},
		"torn JSON":               {"42\n5\n{\"token\":\"a\",\"ar", 42, 5},
		"an array":                {"42\n5\n[1]\n", 42, 5},
		"null":                    {"42\n5\nnull\n", 42, 5},
		"NULs behind":             {"42\n5\n\x00\x00\x00", 42, 5},
		"1 MB behind":             {"42\n5\n" + string(mega), 42, 5},
		"JSON over two lines":     {"42\n5\n{\"token\":\"a\",\n\"argv\":[\"b\"]}\n", 42, 5},
		"a token that leaves":     {"42\n5\n{\"token\":\"../a\",\"argv\":[\"b\"]}\n", 42, 5},
		"a token of another name": {"42\n5\n{\"token\":\"b.pid\",\"argv\":[\"b\"]}\n", 42, 5},
		"a token without end":     {"42\n5\n{\"token\":\"" + strings.Repeat("a", 300) + "\",\"argv\":[\"b\"]}\n", 42, 5},
		"no command line":         {"42\n5\n{\"token\":\"a\",\"argv\":[]}\n", 42, 5},
	} {
		r := Decode([]byte(c.text))
		if r == nil || r.PID != c.pid || r.Version != c.version || r.Ours() {
			t.Errorf("%s: %+v", what, r)
		}
	}
	if r := Decode([]byte("42\n5\n{\"token\":\"a\",\"argv\":[\"" + string(mega) + "\"]}\n")); !r.Ours() || len(r.Argv[0]) != 1<<20 {
		t.Error("1 MB of arguments")
	}
	if (*Record)(nil).Ours() {
		t.Error("no record is ours")
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range [][]byte{
		Encode(whole()), []byte("4242\n"), []byte("0\n3\n{\"token\":\"77.2.9.m3f9a8b2\",\"host\":77,\"argv\":[\"a\"]}\n"),
		{},
		[]byte("-1\n-1\n{}"), []byte("1\n1\n{\"argv\":[1,\"a\"],\"token\":7,\"x\":{\"y\":[\"\\ud800\"]}}"), []byte("1\r\n1\r\nnull"),
		[]byte("1\n1\n{\"a\":1e999,\"keeper\":2147483648,\"keeperArgv\":[\"k\"]}\n"), []byte("+1\n\n{\"uid\":-7,\"claimedAt\":-1}\n"),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := Decode(text)
		if r == nil {
			return
		}
		once := Encode(r)
		if bytes.Count(once, []byte{'\n'}) != 3 {
			t.Fatalf("%q", once)
		}
		again := Decode(once)
		if again == nil || again.Ours() != r.Ours() || again.PID != r.PID || again.Version != r.Version || !SameArgv(again.Argv, r.Argv) || len(again.Extra) != len(r.Extra) {
			t.Fatalf("%+v\n%+v", r, again)
		}
		if twice := Encode(again); !bytes.Equal(once, twice) {
			t.Fatalf("%q\n%q", once, twice)
		}
		if r.Ours() && !lock.GoodToken(r.Token) {
			t.Fatalf("token %q", r.Token)
		}
		// What can be recorded fits into a life file.
		l, err := DecodeLife(EncodeLife(lifeOf(r)))
		if err != nil || l.PID != r.PID || l.Started != r.Started || l.ArgvHash != HashArgv(r.Argv) {
			t.Fatalf("%v %+v", err, l)
		}
	})
}

func lifeOf(r *Record) Life {
	return Life{
		PID: r.PID, Started: r.Started, Inode: r.Inode, NS: r.NS, Version: r.Version, ArgvHash: HashArgv(r.Argv), Argv: r.Argv,
		Host: r.Host, HostStart: r.HostStarted, Keeper: r.Keeper, KeeperArgv: r.KeeperArgv, Restarts: r.Restarts,
	}
}

func TestExitRoundTrip(t *testing.T) {
	code, signal := 3, "SIGKILL"
	for _, e := range []Exit{
		{Token: token, Keeper: 4, PID: 5, Code: &code, Outcome: Released, Restarts: 1, WaitMs: 2, At: 3, Released: true},
		{Token: token, Keeper: 4, PID: 5, Signal: &signal, Outcome: Restarting},
		{Token: token, Outcome: Failed, Error: "no <such> file"},
	} {
		if got := DecodeExit(EncodeExit(e)); got == nil || !reflect.DeepEqual(*got, e) {
			t.Errorf("%+v, not %+v", got, e)
		}
	}
	if text := string(EncodeExit(Exit{Token: token, Outcome: Failed})); !strings.Contains(text, `"code":null,"signal":null`) || strings.Contains(text, "error") {
		t.Errorf("%s", text)
	}
	for _, text := range []string{
		"", "{}", "null", "[]", "x", `{"token":"a"}`, `{"token":"a","outcome":"eaten"}`, `{"token":"","outcome":"gone"}`, `{"token":7,"outcome":"gone"}`,
		`{"token":"a","outcome":"gone","pid":-1}`, `{"token":"a","outcome":"gone","pid":"7"}`, `{"token":"a","outcome":"gone","code":"0"}`,
		`{"token":"a","outcome":"gone"`, strings.Repeat("\x00", 100),
	} {
		if e := DecodeExit([]byte(text)); e != nil {
			t.Errorf("%s: %+v", text, e)
		}
	}
}

func FuzzDecodeExit(f *testing.F) {
	code := 3
	f.Add(EncodeExit(Exit{Token: token, Keeper: 4, PID: 5, Code: &code, Outcome: Released}))
	f.Add([]byte(`{"token":"a","outcome":"gone","signal":"SIGTERM"}`))
	f.Add([]byte(`{"token":"a","outcome":"gone","pid":-1}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e := DecodeExit(text)
		if e == nil {
			return
		}
		if again := DecodeExit(EncodeExit(*e)); !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v\n%+v", e, again)
		}
	})
}

func life() Life {
	code := 0
	return Life{
		PID: 4242, Started: "b0:12", Inode: 99, NS: 4026531836, Version: 7, ArgvHash: HashArgv([]string{"/bin/db", "x"}), Argv: []string{"/bin/db", "x"},
		Host: 41, HostStart: "b0:11", Keeper: 43, KeeperArgv: []string{"/k", "keep"}, Restarts: 2,
		Words: &Words{PID: 4242, Code: &code, Outcome: Released, Error: "e"},
	}
}

func TestLifeSlot(t *testing.T) {
	slot := EncodeLife(life())
	if len(slot) != lock.LifeSize {
		t.Fatalf("%d bytes", len(slot))
	}
	got, err := DecodeLife(slot)
	if err != nil || !reflect.DeepEqual(got, life()) {
		t.Errorf("%v\n%+v, not\n%+v", err, got, life())
	}
}

func TestTornLifeSlot(t *testing.T) {
	slot := EncodeLife(life())
	used := len(bytes.TrimRight(slot, "\x00"))
	for i := range used {
		broken := bytes.Clone(slot)
		broken[i] ^= 1
		if l, err := DecodeLife(broken); !errors.Is(err, ErrTorn) && !reflect.DeepEqual(l, life()) {
			t.Errorf("byte %d changed: %v %+v", i, err, l)
		}
	}
	// The first half is the new entry's, the second still the old one's.
	next := life()
	next.PID++
	next.Started = "b0:13"
	fresh := EncodeLife(next)
	for i := 1; i < used; i++ {
		mix := append(bytes.Clone(fresh[:i]), slot[i:]...)
		l, err := DecodeLife(mix)
		if err == nil && !reflect.DeepEqual(l, life()) && !reflect.DeepEqual(l, next) {
			t.Errorf("%d bytes of the new one: %+v", i, l)
		}
	}
	for what, slot := range map[string][]byte{
		"short": slot[:used-1], "no line": bytes.Repeat([]byte{'x'}, lock.LifeSize), "no sum": []byte(lifeMagic + "\n{}"),
		"negative": []byte(lifeMagic + " 00000000 -1\n{}"), "too long": []byte(lifeMagic + " 00000000 99999\n{}"),
		"not JSON": withSum("x"), "a list": withSum("[]"), "pid -1": withSum(`{"pid":-1}`), "pid 2^31": withSum(`{"pid":2147483648}`), "keeper 2^32+1": withSum(`{"pid":5,"keeper":4294967297}`),
	} {
		if l, err := DecodeLife(slot); !errors.Is(err, ErrTorn) || errors.Is(err, ErrEmpty) {
			t.Errorf("%s: %v %+v", what, err, l)
		}
	}
	for _, slot := range [][]byte{nil, {}, make([]byte, lock.LifeSize)} {
		if _, err := DecodeLife(slot); !errors.Is(err, ErrEmpty) || !errors.Is(err, ErrTorn) {
			t.Errorf("%d NULs: %v", len(slot), err)
		}
	}
}

func withSum(body string) []byte {
	return fmt.Appendf(nil, "%s %08x %d\n%s", lifeMagic, crc32.ChecksumIEEE([]byte(body)), len(body), body)
}

// What does not fit is left out in the order of its worth: the command line
// has its hash, the keeper its pid.
func TestLifeSlotTooSmall(t *testing.T) {
	l := life()
	l.Argv = []string{"/bin/db", strings.Repeat("x", 5000)}
	l.ArgvHash = HashArgv(l.Argv)
	got, err := DecodeLife(EncodeLife(l))
	if err != nil {
		t.Fatal(err)
	}
	want := l
	want.Argv = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	l.Words.Error = strings.Repeat("\x01", 5000)
	got, err = DecodeLife(EncodeLife(l))
	if err != nil || got.Argv != nil || got.ArgvHash != l.ArgvHash || got.Words == nil || len(got.Words.Error) != 512 || len(l.Words.Error) != 5000 {
		t.Errorf("%v %+v", err, got)
	}
	l.KeeperArgv = []string{"/k", "keep", "--lock", "/" + strings.Repeat("d", 4090), "--token", token}
	got, err = DecodeLife(EncodeLife(l))
	if err != nil || got.KeeperArgv != nil || got.Keeper != l.Keeper || got.PID != l.PID || got.Started != l.Started || got.Words == nil || *got.Words.Code != 0 {
		t.Errorf("%v %+v", err, got)
	}
}

func TestHashArgvTellsWordsApart(t *testing.T) {
	seen := map[string][]string{}
	for _, argv := range [][]string{nil, {""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"a\x00b"}, {"a", "b", ""}} {
		h := HashArgv(argv)
		// A NUL cannot be in an argument, so that one pair may be equal.
		if old, ok := seen[h]; ok && !strings.Contains(strings.Join(argv, ""), "\x00") {
			t.Errorf("%q and %q", old, argv)
		}
		seen[h] = argv
	}
}

func FuzzDecodeLife(f *testing.F) {
	f.Add(EncodeLife(life()))
	f.Add(EncodeLife(Life{}))
	f.Add(make([]byte, lock.LifeSize))
	f.Add([]byte(lifeMagic + " 00000000 0\n"))
	f.Add(withSum(`{"pid":1,"words":{"outcome":"gone"},"argv":[1]}`))
	f.Add(withSum(`{"pid":1,"words":null,"argv":null}`))
	f.Fuzz(func(t *testing.T, slot []byte) {
		// A checksum is hard to guess: most inputs are tried as a body too.
		for _, s := range [][]byte{slot, withSum(string(slot))} {
			l, err := DecodeLife(s)
			if err != nil {
				if !errors.Is(err, ErrTorn) {
					t.Fatal(err)
				}
				continue
			}
			if l.PID < 0 || l.PID > maxPID || l.Keeper < 0 || l.Keeper > maxPID {
				t.Fatalf("%+v", l)
			}
			if len(marshal(l)) > 3500 {
				continue
			}
			again, err := DecodeLife(EncodeLife(l))
			if err != nil || !bytes.Equal(EncodeLife(l), EncodeLife(again)) {
				t.Fatalf("%v\n%+v\n%+v", err, l, again)
			}
		}
	})
}

func TestSameArgv(t *testing.T) {
	for _, c := range []struct {
		a, b []string
		same bool
	}{
		{nil, nil, true},
		{nil, []string{}, true},
		{[]string{"a"}, []string{"a"}, true},
		{[]string{"a"}, []string{"a", ""}, false},
		{[]string{"a", "b"}, []string{"a"}, false},
		{[]string{"a", "b"}, []string{"a", "c"}, false},
	} {
		if SameArgv(c.a, c.b) != c.same || SameArgv(c.b, c.a) != c.same {
			t.Errorf("%q %q", c.a, c.b)
		}
	}
}
