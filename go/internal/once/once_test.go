package once

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("ONCE_CLAIM_DIR"); dir != "" {
		// A process of its own: says whether it won.
		if Claim(dir, "claim", fmt.Sprintf("%d.0", os.Getpid()), 60_000, nil) {
			fmt.Print("won")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEightThreadsOneWinner(t *testing.T) {
	for round := range 200 {
		dir := t.TempDir()
		var winners atomic.Int32
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				<-start
				if Claim(dir, "claim", fmt.Sprintf("1.%d", i), 60_000, nil) {
					winners.Add(1)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("round %d: %d winners", round, n)
		}
	}
}

func TestEightProcessesOneWinner(t *testing.T) {
	for round := range 5 {
		dir := t.TempDir()
		var winners atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "ONCE_CLAIM_DIR="+dir)
				out, err := cmd.Output()
				if err != nil {
					t.Error(err)
				}
				if string(out) == "won" {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("round %d: %d winners", round, n)
		}
	}
}

func TestAHolderKeepsWhatItHasAndOthersWaitItsAge(t *testing.T) {
	dir := t.TempDir()
	at := func(ms float64) *float64 { return &ms }
	if !Claim(dir, "f", "a b", 100, at(1000)) {
		t.Fatal("a fresh file was not won")
	}
	if !Claim(dir, "f", "a b", 100, at(1050)) {
		t.Fatal("its own holder was turned away")
	}
	if Claim(dir, "f", "c", 100, at(1149)) {
		t.Fatal("taken over before it was stale")
	}
	if Claim(dir, "f", "c", 100, at(500)) {
		t.Fatal("taken over although its stamp is in the future")
	}
	if !Claim(dir, "f", "c", 100, at(1150)) {
		t.Fatal("not taken over when stale")
	}
	text, _ := os.ReadFile(filepath.Join(dir, "f"))
	if string(text) != "c 1150\n" {
		t.Fatalf("the file says %q", text)
	}
}

func TestAClockStepTakesNothingOver(t *testing.T) {
	was := Stamp{Holder: "a", At: 1000, Boot: "b1", BootAt: 5000}
	for name, c := range map[string]struct {
		now  Stamp
		live bool
	}{
		"an hour forward":      {Stamp{At: 3_601_000, Boot: "b1", BootAt: 5050}, true},
		"an hour back":         {Stamp{At: -3_599_000, Boot: "b1", BootAt: 5050}, true},
		"back and really old":  {Stamp{At: -3_599_000, Boot: "b1", BootAt: 5100}, false},
		"another boot, young":  {Stamp{At: 1050, Boot: "b2", BootAt: 1}, true},
		"another boot, old":    {Stamp{At: 1100, Boot: "b2", BootAt: 1}, false},
		"a writer without one": {Stamp{At: 1050}, true},
	} {
		if got := Live(was, c.now, 100); got != c.live {
			t.Errorf("%s: live %v", name, got)
		}
	}
}

func TestAStoppedDeciderDoesNotHoldTheThread(t *testing.T) {
	dir := t.TempDir()
	f, err := openLocked(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeLocked(f)
	began := time.Now()
	if Claim(dir, "f", "x", 100, nil) {
		t.Fatal("won although another decides")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Fatalf("a JavaScript thread would have stood still for %v", took)
	}
}

func TestNoAddIsLost(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if _, err := Add(dir, "m.mark", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, _ := Get(dir, "m.mark"); n != 4000 {
		t.Fatalf("4000 additions made %v", n)
	}
	if err := Set(dir, "m.mark", 7.5); err != nil {
		t.Fatal(err)
	}
	if n, ok := Get(dir, "m.mark"); !ok || n != 7.5 {
		t.Fatalf("read back %v", n)
	}
	if _, ok := Get(dir, "none"); ok {
		t.Fatal("a mark that is not there")
	}
}

func TestAThreadThatTheSchedulerTookIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	in := make(chan struct{})
	out := make(chan error)
	go func() {
		out <- locked(dir, "m", func([]byte) []byte {
			close(in)
			<-time.After(4 * tries * pause)
			return mark(1)
		})
	}()
	<-in
	if n, err := Add(dir, "m", 1); err != nil || n != 2 {
		t.Errorf("%v %v", n, err)
	}
	if err := <-out; err != nil {
		t.Error(err)
	}
}

func TestAShorterNumberIsNeverReadWithTheOldOnesEnd(t *testing.T) {
	dir := t.TempDir()
	if err := Set(dir, "m", 1000); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = Set(dir, "m", []float64{9, 1000}[i%2])
			}
		}
	})
	for range 5000 {
		if n, ok := Get(dir, "m"); !ok || n != 9 && n != 1000 {
			t.Errorf("read %v", n)
			break
		}
	}
	close(stop)
	wg.Wait()
	// A writer killed between its two steps, and a reader who is not locked out.
	if err := os.WriteFile(filepath.Join(dir, "m"), []byte("9\n00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, _ := Get(dir, "m"); n != 9 {
		t.Fatalf("read %v", n)
	}
}

func TestAFIFOHoldsNobodyUp(t *testing.T) {
	dir := t.TempDir()
	if err := exec.Command("mkfifo", filepath.Join(dir, "m")).Run(); err != nil {
		t.Skip(err)
	}
	if _, ok := Get(dir, "m"); ok {
		t.Fatal("a number out of a FIFO")
	}
	if err := Set(dir, "m", 1); err == nil {
		t.Fatal("wrote into a FIFO")
	}
}

func TestWhatACallerWhoKeepsTheFileIsTold(t *testing.T) {
	if text, won := Would("", "a", 100, 5); !won || text != "a 5\n" {
		t.Fatalf("%q %v", text, won)
	}
	if _, won := Would("b 5\n", "a", 100, 104); won {
		t.Fatal("taken before it was stale")
	}
	if _, won := Would("b 5\n", "a", 100, 105); !won {
		t.Fatal("not taken when stale")
	}
}

func TestWhereNothingCanBeWrittenNobodyGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Claim(file, "f", "x", 100, nil) {
		t.Fatal("won in a directory that is a file")
	}
	dir := t.TempDir()
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "f")); err != nil {
		t.Fatal(err)
	}
	if Claim(dir, "f", "x", 100, nil) {
		t.Fatal("followed a link")
	}
}
