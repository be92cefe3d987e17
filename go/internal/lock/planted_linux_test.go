package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A hard link under the gate's name got the holder's text, and what it led to
// was cut to nothing when the gate was left.
func TestAGateThatIsAHardLinkIsNeverWrittenTo(t *testing.T) {
	d := dir(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(victim, d.Join("agent"+GateSuffix)); err != nil {
		t.Fatal(err)
	}
	g, err := d.Lock(context.Background(), "agent")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := d.TryLock("agent"); err != nil || other != nil {
		t.Errorf("it excludes nobody: %v, %v", other, err)
	}
	g.Unlock()
	text, err := os.ReadFile(victim)
	if info, serr := os.Stat(victim); err != nil || serr != nil || string(text) != "precious" || info.Mode().Perm() != 0o644 {
		t.Errorf("the victim says %q, %v %v", text, err, serr)
	}
}

func TestAGateOfAnotherUserIsRefusedByName(t *testing.T) {
	rootOnly(t)
	d := dir(t)
	path := d.Join("agent" + GateSuffix)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 60001, 60001); err != nil {
		t.Fatal(err)
	}
	_, err := d.Lock(context.Background(), "agent")
	if err == nil || !strings.Contains(err.Error(), path+" belongs to uid 60001") || !strings.Contains(err.Error(), "remove it") {
		t.Fatalf("got %v", err)
	}
	// Who owns the directory can take every file away anyway, and a node that
	// ran as that user left its gates there.
	if err := os.Chown(d.Path(), 60001, 60001); err != nil {
		t.Fatal(err)
	}
	theirs, err := OpenExisting(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	g, err := theirs.Lock(context.Background(), "agent")
	if err != nil {
		t.Fatal(err)
	}
	g.Unlock()
}

// Whoever can read a file can lock it for ever. The original made its files
// with mode 0644.
func TestAGateThatOthersCanReadIsClosedToThem(t *testing.T) {
	d := dir(t)
	path := d.Join("agent" + GateSuffix)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	g, err := d.Lock(context.Background(), "agent")
	if err != nil {
		t.Fatal(err)
	}
	g.Unlock()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// Somebody who holds the lock and wrote nothing into the file is named all the
// same, and not the one whose text is still there.
func TestAHolderThatWroteNothingIsNamedByTheKernel(t *testing.T) {
	d := dir(t)
	path := d.Join("agent" + GateSuffix)
	if err := os.WriteFile(path, []byte("1 0 0 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = d.Lock(ctx, "agent")
	var held *HeldError
	if !errors.As(err, &held) || held.Holder != os.Getpid() {
		t.Errorf("got %v", err)
	}
}

func TestExposed(t *testing.T) {
	rootOnly(t)
	const other = 60001
	for name, c := range map[string]struct {
		of    string // the entry that is changed
		mode  os.FileMode
		uid   int
		gid   int
		wants string // "" nothing is said
	}{
		"as we make it":                       {of: "a/run", mode: 0o700},
		"readable":                            {of: "a/run", mode: 0o755},
		"the user's own group":                {of: "a/run", mode: 0o775, gid: os.Getegid()},
		"another group":                       {of: "a/run", mode: 0o770, gid: other, wants: "a/run can be written by group 60001"},
		"everybody":                           {of: "a/run", mode: 0o777, wants: "a/run can be written by everybody"},
		"everybody, sticky":                   {of: "a/run", mode: 0o777 | os.ModeSticky, wants: "a/run can be written by everybody"},
		"another user's":                      {of: "a/run", mode: 0o700, uid: other, wants: "a/run belongs to uid 60001"},
		"the parent, everybody":               {of: "a", mode: 0o777, wants: "a can be written by everybody"},
		"the parent, everybody, sticky":       {of: "a", mode: 0o777 | os.ModeSticky},
		"the parent, a group that root chose": {of: "a", mode: 0o775, gid: other},
		"the parent is another user's":        {of: "a", mode: 0o755, uid: other, wants: "a belongs to uid 60001"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			if err := os.MkdirAll(filepath.Join(base, "a/run"), 0o700); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(base, c.of)
			if err := errors.Join(os.Chown(at, c.uid, c.gid), os.Chmod(at, c.mode)); err != nil {
				t.Fatal(err)
			}
			check(t, filepath.Join(base, "a/run"), base, c.wants)
		})
	}
	t.Run("a link of another user's", func(t *testing.T) {
		base := t.TempDir()
		link := filepath.Join(base, "link")
		err := errors.Join(os.Mkdir(filepath.Join(base, "run"), 0o700), os.Symlink("run", link), os.Lchown(link, other, other))
		if err != nil {
			t.Fatal(err)
		}
		check(t, link, base, fmt.Sprintf("link belongs to uid %d", other))
		check(t, filepath.Join(base, "run"), base, "")
	})
}

func check(t *testing.T, path, base, wants string) {
	t.Helper()
	d, err := OpenExisting(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if wants != "" {
		wants = base + "/" + wants
	}
	if got := d.Exposed(path); got != wants {
		t.Errorf("said %q, not %q", got, wants)
	}
}
