package spec

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSpecSurvivesTheEnvironment(t *testing.T) {
	want := Spec{Name: "agent", Token: "1.2.3.x", UID: -1, GID: 7, Slots: 5, Argv: []string{"a", strings.Repeat("é\n\"", 200_000)}, Piped: []int{1}}
	env := append([]string{"HOME=/x"}, want.Environ()...)
	for _, e := range env {
		if !utf8.ValidString(e) {
			t.Fatal("a chunk cuts a character in two: JavaScript would hand on another argument")
		}
		if len(e) >= 128<<10 {
			t.Fatalf("a string of %d bytes: the kernel refuses more than 128 KiB", len(e))
		}
	}
	if len(env) < 4 {
		t.Fatalf("%d strings: the long argument was to need several chunks", len(env))
	}
	slices.Reverse(env)
	got, err := FromEnviron(env)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != want.Name || got.Argv[1] != want.Argv[1] || got.GID != 7 || got.UID != -1 {
		t.Fatalf("came back as %+v", got)
	}
	if _, err := FromEnviron([]string{"HOME=/x"}); err == nil {
		t.Fatal("an environment without a task was accepted")
	}
}

func TestOnlyTheProcessSeesWhatActsOnLaunchers(t *testing.T) {
	path := "/host/bin"
	own := map[string]string{"NODE_OPTIONS": "--import x", "LD_PRELOAD": "y.so", "PATH": "/own", "GOGC": "1", "HOME": "/h", "PG_ENV_X": "kept", "PG_SPEC_0": "mine", "DYLD_A": "b", "PG_LIFE_FD": "9"}
	shielded := Shield(own, &path)
	for name := range shielded {
		if name != "PATH" && acts(name) && !strings.HasPrefix(name, KeepPrefix) {
			t.Errorf("%s reaches the launcher", name)
		}
	}
	if shielded["PATH"] != path {
		t.Errorf("the launcher's PATH is %q", shielded["PATH"])
	}
	var env []string
	for name, value := range shielded {
		env = append(env, name+"="+value)
	}
	env = append(env, Spec{Name: "n"}.Environ()...)
	env = append(env, LifeFD+"=5")
	restored := map[string]string{}
	for _, e := range Restore(env) {
		name, value, _ := strings.Cut(e, "=")
		if old, twice := restored[name]; twice {
			t.Errorf("%s twice: %q and %q", name, old, value)
		}
		restored[name] = value
	}
	if len(restored) != len(own) {
		t.Errorf("%d variables, not %d: %v", len(restored), len(own), restored)
	}
	for name, value := range own {
		if restored[name] != value {
			t.Errorf("%s is %q, not %q", name, restored[name], value)
		}
	}
}

func TestAProcessWithoutPathGetsNone(t *testing.T) {
	path := "/host/bin"
	var env []string
	for name, value := range Shield(map[string]string{"A": "b"}, &path) {
		env = append(env, name+"="+value)
	}
	if got := Restore(env); !slices.Equal(got, []string{"A=b"}) {
		t.Fatalf("restored %q", got)
	}
}

func TestBackOff(t *testing.T) {
	r := DefaultRestart
	for used, want := range []int64{1000, 2000, 4000, 8000, 16000, 16000} {
		if got := r.WaitMs(used); got != want {
			t.Errorf("after %d restarts it waits %d ms, not %d", used, got, want)
		}
	}
	if got := (Restart{BaseMs: 1, CapMs: 16000}).WaitMs(1_000_000); got != 16000 {
		t.Errorf("after a million restarts it waits %d ms", got)
	}
}

// FuzzFromEnviron reads an environment, one variable a line; what it makes of
// it travels on unchanged.
func FuzzFromEnviron(f *testing.F) {
	f.Add(strings.Join(Spec{Name: "n", Argv: []string{"é\n"}, UID: -1, Orphan: &Orphan{PID: 1}}.Environ(), "\n"))
	f.Add("HOME=/x")
	f.Add("PG_SPEC_0={}\nPG_SPEC_0=null")
	f.Add("PG_SPEC_1=}\nPG_SPEC_0={\nPG_SPEC_+2=\nPG_SPEC_99999999999999999999=x")
	f.Add("PG_SPEC_0={\"slots\":1e999,\"piped\":[-1],\"restart\":{\"max\":9223372036854775807}}")
	f.Add("PG_ENV_PATH=/a\nPG_ENV_PG_ENV_X=1\nPG_ENV_\n=\nPATH")
	f.Fuzz(func(t *testing.T, text string) {
		environ := strings.Split(text, "\n")
		for _, e := range Restore(environ) {
			if name, _, _ := strings.Cut(e, "="); acts(name) && !slices.Contains(environ, KeepPrefix+e) {
				t.Errorf("%q acts on the launchers and was handed to the process", e)
			}
		}
		s, err := FromEnviron(environ)
		if err != nil {
			return
		}
		once := s.Environ()
		again, err := FromEnviron(once)
		if err != nil || !slices.Equal(once, again.Environ()) {
			t.Fatalf("%q came back as %q, %v", once, again.Environ(), err)
		}
	})
}
