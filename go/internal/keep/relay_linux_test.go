package keep

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/record"
)

// socketPair is what libuv makes of a 'pipe'.
func socketPair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(p[0]), "ours"), os.NewFile(uintptr(p[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func piped(t *testing.T, script string) (c *claim, in, out, err *os.File) {
	t.Helper()
	c = sh(t, script)
	c.env = append(c.env, "PG_ENV_PATH=/usr/bin:/bin")
	var theirs [3]*os.File
	in, theirs[0] = socketPair(t)
	out, theirs[1] = socketPair(t)
	err, theirs[2] = socketPair(t)
	c.stdio = theirs[:]
	c.spec.Piped = []int{0, 1, 2}
	return c, in, out, err
}

// letGoOfTheirs closes the test's copies of the keeper's ends.
func (c *claim) letGoOfTheirs() {
	for _, f := range c.stdio {
		f.Close()
	}
}

func TestAMebibyteOnEachPipeArrives(t *testing.T) {
	c, _, out, errs := piped(t, "head -c 1048576 /dev/zero | tr '\\0' o; head -c 1048576 /dev/zero | tr '\\0' e >&2")
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	slow := func(f *os.File, into chan []byte) {
		var all []byte
		buf := make([]byte, 7000)
		for {
			n, err := f.Read(buf)
			all = append(all, buf[:n]...)
			if err != nil {
				into <- all
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
	a, b := make(chan []byte, 1), make(chan []byte, 1)
	go slow(out, a)
	go slow(errs, b)
	for want, ch := range map[string]chan []byte{"o": a, "e": b} {
		select {
		case got := <-ch:
			if len(got) != 1<<20 || bytes.Count(got, []byte(want)) != 1<<20 {
				t.Errorf("%d bytes, %d of them %q", len(got), bytes.Count(got, []byte(want)), want)
			}
		case <-time.After(patience):
			t.Fatal("the pipe did not end")
		}
	}
	c.until(func() bool { return c.exit() != nil }, "an exit record")
	if x := c.ended(c.exit().Keeper); x.Outcome != record.Released {
		t.Fatalf("exit %s", asJSON(x))
	}
}

// What the caller's small socket cannot take is still with the keeper when the
// process has ended; a pipe takes 64 KiB.
func TestAnEndingKeeperWaitsForAReaderThatIsLate(t *testing.T) {
	const size = 60_000
	c, _, out, _ := piped(t, fmt.Sprintf("exec head -c %d /dev/zero", size))
	if err := unix.SetsockoptInt(int(c.stdio[1].Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	c.until(func() bool { return c.exit() != nil }, "an exit record")
	time.Sleep(drainFor / 4)
	all, err := io.ReadAll(out)
	if err != nil || len(all) != size {
		t.Fatalf("%d bytes of %d, %v", len(all), size, err)
	}
	c.ended(c.exit().Keeper)
}

func TestARelayGoesOnAcrossRestarts(t *testing.T) {
	c, _, out, _ := piped(t, "echo run; exit 3")
	c.spec.Restart.Max = 2
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	all, err := io.ReadAll(out)
	if err != nil || string(all) != "run\nrun\nrun\n" {
		t.Fatalf("%q, %v", all, err)
	}
}

// The thread that read has ended: the process writes a mebibyte on, neither
// dies of it nor waits for ever.
func TestOutputIsDroppedOnceTheReaderIsGone(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	c, in, out, errs := piped(t, "set -e; head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2; echo through >"+done+"; exec sleep 300")
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	in.Close()
	out.Close()
	errs.Close()
	c.until(func() bool { return len(lines(done)) == 1 }, "the end of the output")
	r := c.running(0)
	if r.Restarts != 0 || !alive(r.PID) || !alive(r.Keeper) {
		t.Fatalf("record %+v", r)
	}
}

func TestASlowReaderHoldsTheProcessBack(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	c, _, out, _ := piped(t, "head -c 4194304 /dev/zero; echo through >"+done+"; exec sleep 300")
	c.start()
	c.letGoOfTheirs()
	time.Sleep(200 * time.Millisecond)
	if len(lines(done)) > 0 {
		t.Fatal("4 MiB went nowhere")
	}
	if n, err := io.CopyN(io.Discard, out, 4<<20); err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	c.until(func() bool { return len(lines(done)) == 1 }, "the end of the output")
}

func TestPipedStdinEndsWithTheKeeperOnly(t *testing.T) {
	told := filepath.Join(t.TempDir(), "told")
	c, in, _, _ := piped(t, "echo began >>"+told+"; cat >>"+told+"; echo eof >>"+told)
	r := c.start()
	c.letGoOfTheirs()
	c.until(func() bool { return len(lines(told)) == 1 }, "the process's first line")
	if _, err := in.WriteString("from the thread\n"); err != nil {
		t.Fatal(err)
	}
	in.Close()
	time.Sleep(150 * time.Millisecond)
	if got := strings.Join(lines(told), " "); got != "began" || !alive(r.PID) {
		t.Fatalf("the process read something: %q", got)
	}
	signalPID(t, r.Keeper, unix.SIGKILL)
	c.until(func() bool { return strings.Join(lines(told), " ") == "began eof" }, "end-of-file")
}

func TestAKilledKeepersProcessEndsOnItsNextWrite(t *testing.T) {
	c, _, _, _ := piped(t, "while :; do echo x; sleep 0.05; done")
	r := c.start()
	signalPID(t, r.Keeper, unix.SIGKILL)
	c.gone(r.PID, "the process")
}

// A background child of the process keeps the pipe: the keeper gives it a
// second and not its life.
func TestTheLastSecondOfARelay(t *testing.T) {
	c, _, out, _ := piped(t, "sleep 300 & echo $!; exit 0")
	r := make([]byte, 64)
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	n, err := out.Read(r)
	if err != nil || n < 2 {
		t.Fatalf("%q, %v", r[:n], err)
	}
	began := time.Now()
	c.until(func() bool { return c.exit() != nil }, "an exit record")
	if time.Since(began) > drainFor/2 {
		t.Error("the record waited for the relay")
	}
	c.ended(c.exit().Keeper)
	if took := time.Since(began); took < drainFor/2 || took > drainFor+2*time.Second {
		t.Errorf("the keeper ended after %v", took)
	}
}

func TestWhatIsNoPipeIsInherited(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c, _, _, _ := piped(t, "echo direct; exec sleep 300")
	c.stdio[1] = file
	c.start()
	c.until(func() bool { return len(lines(file.Name())) == 1 }, "the line in the file")
}

func TestTheKeeperItselfSaysNothing(t *testing.T) {
	c, _, out, errs := piped(t, "exit 3")
	c.spec.Restart.Max = 1
	c.spec.Piped = nil
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.letGoOfTheirs()
	for _, f := range []*os.File{out, errs} {
		if all, err := io.ReadAll(f); err != nil || len(all) > 0 {
			t.Errorf("%q, %v", all, err)
		}
	}
}
