package keep

import (
	"path/filepath"
	"strings"
	"testing"

	"processguard/go/internal/lock"
	"processguard/go/internal/spec"
)

// FuzzTask reads a keeper's command line and environment, one word a line. What
// it accepts is what the keeper relies on afterwards without another look.
func FuzzTask(f *testing.F) {
	good := spec.Spec{Name: "n", Lock: "/p/n.pid", Token: "t", File: "/bin/true", Argv: []string{"true"}, RecordArgv: []string{"true"}, Slots: 3}
	line := "keeper\nkeep\n--lock\n/p/n.pid\n--token\nt"
	f.Add(line, strings.Join(good.Environ(), "\n"))
	f.Add(line, "PG_SPEC_0={\"lock\":\"/p/n.pid\",\"token\":\"t\",\"name\":\"n\",\"slots\":-1}")
	f.Add(line, "PG_SPEC_1=}\nPG_SPEC_0={\nPG_SPEC_x=\nPG_SPEC_-1=\nPG_SPEC_")
	f.Add("keeper\nkeep\n--lock\n/p/../n.pid\n--token\n../t", "PG_SPEC_0={\"lock\":\"/p/../n.pid\",\"token\":\"../t\",\"name\":\"n\",\"file\":\"/f\",\"argv\":[\"\"],\"recordArgv\":[\"\"]}")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, words, environ string) {
		argv := strings.Split(words, "\n")
		s, err := task(argv, strings.Split(environ, "\n"))
		if (s == nil) == (err == nil) {
			t.Fatalf("%v and %v", s, err)
		}
		if err != nil {
			return
		}
		if s.Lock != argv[3] || s.Token != argv[5] || !filepath.IsAbs(s.Lock) || filepath.Base(s.Lock) != s.Name+lock.RecordSuffix ||
			!lock.GoodToken(s.Token) || s.File == "" || len(s.Argv) == 0 || len(s.RecordArgv) == 0 || s.Slots < 3 {
			t.Fatalf("%q and %q were accepted: %+v", words, environ, s)
		}
	})
}
