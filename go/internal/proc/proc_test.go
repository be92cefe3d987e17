package proc

import (
	"slices"
	"strings"
	"testing"
)

func TestZeroValuesProveNothing(t *testing.T) {
	var a Answer
	var v Verdict
	if a != Unknown || v != Unknown || a.String() != "unknown" || v.String() != "unknown" {
		t.Errorf("the zero values are %v and %v", a, v)
	}
	if (&ID{}).Started != "" || State(0).String() != "unknown" {
		t.Error("an empty identity says something")
	}
	for word, s := range map[string]interface{ String() string }{"yes": Yes, "no": No, "match": Match, "differs": Differs, "zombie": Zombie, "P": State('P')} {
		if s.String() != word {
			t.Errorf("%q prints as %q", word, s)
		}
	}
}

func TestCompareArgv(t *testing.T) {
	for _, c := range []struct {
		actual, expected []string
		want             Verdict
	}{
		{nil, nil, Unknown},
		{nil, []string{"a"}, Unknown},
		{[]string{"a"}, nil, Unknown},
		{[]string{"a"}, []string{}, Unknown},
		{[]string{}, []string{"a"}, Differs},
		{[]string{"a"}, []string{"a"}, Match},
		{[]string{"a", "b"}, []string{"a"}, Match},
		{[]string{"a"}, []string{"a", "b"}, Differs},
		{[]string{"a", ""}, []string{"a", ""}, Match},
		{[]string{"a"}, []string{"a", ""}, Differs},
		{[]string{"ab"}, []string{"a"}, Differs},
		{[]string{"a b"}, []string{"a", "b"}, Differs},
		{[]string{""}, []string{""}, Match},
	} {
		if got := CompareArgv(c.actual, c.expected); got != c.want {
			t.Errorf("CompareArgv(%q, %q) = %v, want %v", c.actual, c.expected, got, c.want)
		}
	}
}

func FuzzCompareArgv(f *testing.F) {
	for _, seed := range [][2]string{{"", ""}, {"a\nb", "a"}, {"a", "a\nb"}, {"a\n", "a"}, {"node\n--x\n", "node\n--x"}, {"\n", "\n\n"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		actual, expected := strings.Split(a, "\n"), strings.Split(b, "\n")
		want := Differs
		if strings.HasPrefix(a+"\n", b+"\n") {
			want = Match
		}
		if got := CompareArgv(actual, expected); got != want {
			t.Errorf("CompareArgv(%q, %q) = %v, want %v", actual, expected, got, want)
		}
		if CompareArgv(actual, actual) != Match || CompareArgv(nil, expected) != Unknown || CompareArgv(actual, nil) != Unknown {
			t.Errorf("%q is not itself, or nothing was compared and said something", actual)
		}
	})
}

func TestParseStat(t *testing.T) {
	tail := " 1 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0 26147 10000 200 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 "
	for _, c := range []struct {
		line string
		want stat
		ok   bool
	}{
		{"10 (sleep) S" + tail + "0\n", stat{state: Sleeping, ppid: 1, started: 26147}, true},
		{"10 (sleep) Z" + tail + "768\n", stat{state: Zombie, ppid: 1, started: 26147, exit: 768}, true},
		{"10 (x) Z 1 (y) R" + tail + "11", stat{state: Running, ppid: 1, started: 26147, exit: 11}, true},
		{"10 (\n) ) t" + tail + "0\n", stat{state: Traced, ppid: 1, started: 26147}, true},
		{"10 () I" + tail + "0\n", stat{state: Idle, ppid: 1, started: 26147}, true},
		// Linux 6.30 may add a field behind the last.
		{"10 (sleep) S" + tail + "9 77\n", stat{state: Sleeping, ppid: 1, started: 26147, exit: 9}, true},
		// Kernels before 3.5 have no exit code.
		{"10 (sleep) S 1 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0 26147\n", stat{state: Sleeping, ppid: 1, started: 26147}, true},
		{"10 (sleep) S 1 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0\n", stat{}, false},
		{"10 (sleep) S x 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0 26147\n", stat{}, false},
		{"10 (sleep) SS" + tail + "0\n", stat{}, false},
		{"10 (sleep)  S" + tail + "0\n", stat{}, false},
		{"10 (sleep) S" + tail + "x\n", stat{}, false},
		{"10 (sleep)", stat{}, false},
		{"10 (sleep) ", stat{}, false},
		{"10 sleep S 1", stat{}, false},
		{"", stat{}, false},
	} {
		got, err := parseStat([]byte(c.line))
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("parseStat(%q) = %+v, %v", c.line, got, err)
		}
	}
}

// Whatever a process calls itself, the fields behind the name are the
// kernel's.
func FuzzParseStat(f *testing.F) {
	f.Add("sleep", "S 1 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0 26147 0")
	f.Add(") Z 1 (", "")
	f.Add("", " ")
	f.Add("a\nb", "Z -1")
	const rest = ") S 7 10 10 0 -1 4194304 102 0 0 0 1 2 0 0 20 0 1 0 26147 10000 200 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 768\n"
	f.Fuzz(func(t *testing.T, name, junk string) {
		got, err := parseStat([]byte("10 (" + name + rest))
		if want := (stat{Sleeping, 7, 26147, 768}); err != nil || got != want {
			t.Errorf("a process called %q reads %+v, %v", name, got, err)
		}
		_, _ = parseStat([]byte("10 (" + name + ") " + junk))
		_, _ = parseStat([]byte(junk))
	})
}

func TestSplitArgv(t *testing.T) {
	for text, want := range map[string][]string{
		"":                 nil,
		"\x00":             {""},
		"a\x00":            {"a"},
		"a":                {"a"},
		"a\x00b\x00":       {"a", "b"},
		"a\x00b":           {"a", "b"},
		"a\x00\x00\x00":    {"a", "", ""},
		"\x00a\x00":        {"", "a"},
		"worker: idle\x00": {"worker: idle"},
	} {
		if got := splitArgv([]byte(text)); !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("splitArgv(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzSplitArgv(f *testing.F) {
	for _, seed := range []string{"", "a", "a\x00", "a\x00\x00", "\x00\x00", "\xff\x00 \x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		argv := splitArgv(text)
		joined := strings.Join(argv, "\x00")
		if argv != nil && joined+"\x00" != string(text) && joined != string(text) || argv == nil && len(text) != 0 {
			t.Errorf("%q was taken apart as %q", text, argv)
		}
	})
}

func TestSplitStarted(t *testing.T) {
	for started, ok := range map[string]bool{
		"b:1": true, "f0-a:0012": true,
		"": false, ":": false, "b:": false, ":1": false, "b": false, "b:1:2": false, "b:-1": false, "b:1 ": false,
		"Mon Dec 1 10:00:00 2025": false, // the original's, on macOS
	} {
		if _, _, got := splitStarted(started); got != ok {
			t.Errorf("splitStarted(%q) = %v", started, got)
		}
	}
}
