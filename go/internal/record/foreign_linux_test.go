package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
)

// A life file of another user stands for no keeper, whatever lock is on it, and
// its last words are nobody's.
func TestAnotherUsersLifeFileSaysNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make what another user would")
	}
	const name, token = "agent", "1.0.1.0123456789abcdef"
	d, err := lock.OpenDir(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.CreateLife(name, token) // held by this test
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteLife(f, Life{PID: os.Getpid(), Words: &Words{PID: os.Getpid(), Outcome: Released}}); err != nil {
		t.Fatal(err)
	}
	if held := d.LifeHeld(name, token); held != proc.Yes {
		t.Fatalf("ours is held: %s", held)
	}
	if err := f.Chown(60001, 60001); err != nil {
		t.Fatal(err)
	}
	if held := d.LifeHeld(name, token); held != proc.No {
		t.Errorf("theirs is held: %s", held)
	}
	var foreign *ForeignError
	if _, err := OpenLife(d, name, token); !errors.As(err, &foreign) || foreign.UID != 60001 {
		t.Errorf("opened: %v", err)
	}
}
