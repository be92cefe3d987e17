package keep

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

// patience is the deadline on facts. Nothing waits for it that goes well.
const patience = 20 * time.Second

// built holds the executables of this test run: the one that ships, the one
// with fault points, and the process that tells about itself.
var built struct{ dir, keeper, fault, teller string }

func TestMain(m *testing.M) {
	if os.Getenv("PG_TELLER") != "" {
		tell()
		return
	}
	dir, err := os.MkdirTemp("", "keep-test-")
	if err != nil {
		panic(err)
	}
	built.dir = dir
	built.keeper, built.fault = filepath.Join(dir, "keeper"), filepath.Join(dir, "keeper-fault")
	var wg sync.WaitGroup
	var outs [2][]byte
	for i, args := range [][]string{{"-o", built.keeper}, {"-tags", "fault", "-o", built.fault}} {
		wg.Go(func() {
			cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-ldflags=-s -w"}, args...), "processguard/go/cmd/keeper")...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				outs[i] = append(out, err.Error()...)
			}
		})
	}
	wg.Wait()
	// Pages that were not written to disk yet would count as the keeper's.
	for _, exe := range []string{built.keeper, built.fault} {
		if f, err := os.OpenFile(exe, os.O_RDONLY, 0); err == nil {
			_ = f.Sync()
			f.Close()
		}
	}
	code := 1
	if len(outs[0])+len(outs[1]) > 0 {
		fmt.Fprintf(os.Stderr, "%s%s\n", outs[0], outs[1])
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// tell is the process of some tests: this test binary, doing as PG_TELLER says.
func tell() {
	how, file, _ := strings.Cut(os.Getenv("PG_TELLER"), ":")
	say := func(line string) {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(9)
		}
		_, _ = f.WriteString(line + "\n")
		f.Close()
	}
	sigs := make(chan os.Signal, 64)
	signal.Notify(sigs, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	say("ready")
	for sig := range sigs {
		say(unix.SignalName(sig.(syscall.Signal)))
		switch {
		case sig == unix.SIGUSR1:
			os.Exit(7)
		case sig == unix.SIGINT && how == "count":
			os.Exit(3)
		}
	}
}

// claim is one claim that a test stands behind, as a host would.
type claim struct {
	t       *testing.T
	dir     *lock.Dir
	spec    spec.Spec
	exe     string
	env     []string // of the process
	mark    string   // in the environment of every process of this claim
	fault   string
	stdio   []*os.File // nil: /dev/null three times
	before  string     // shell commands that the launcher is started after
	through []string   // a command that runs the launcher
	cred    *syscall.Credential
}

func newClaim(t *testing.T, argv ...string) *claim {
	t.Helper()
	return newClaimIn(t, filepath.Join(t.TempDir(), "pids"), argv...)
}

func newClaimIn(t *testing.T, pids string, argv ...string) *claim {
	t.Helper()
	dir, err := lock.OpenDir(pids)
	if err != nil {
		t.Fatal(err)
	}
	c := &claim{t: t, dir: dir, exe: built.keeper, spec: spec.Spec{
		Name: "agent", Title: "agent", Token: strconv.Itoa(os.Getpid()) + ".0.1." + t.Name()[4:6] + strconv.FormatInt(time.Now().UnixNano(), 36),
		Lock: filepath.Join(dir.Path(), "agent.pid"), Version: 7, Host: os.Getpid(),
		File: argv[0], Argv: argv, RecordArgv: argv, Cwd: dir.Path(), UID: -1, GID: -1, Slots: 3,
		Restart: spec.Restart{Max: 5, BaseMs: 5, CapMs: 40},
	}}
	c.mark = c.spec.Token
	c.env = []string{"CLAIM=" + c.mark}
	t.Cleanup(func() { c.sweep(); dir.Close() })
	return c
}

// sh is a claim on a shell script.
func sh(t *testing.T, script string) *claim { return newClaim(t, "/bin/sh", "-c", script) }

// write claims the record.
func (c *claim) write() {
	c.t.Helper()
	g := c.gate()
	defer g.Unlock()
	err := record.Write(c.dir, g, c.spec.Name, &record.Record{
		Version: c.spec.Version, Token: c.spec.Token, Host: os.Getpid(), Argv: c.spec.RecordArgv, UID: os.Geteuid(),
		NS: proc.NS(), Boot: proc.BootID(), ClaimedAt: proc.BootMillis(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *claim) gate() *lock.Gate {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := c.dir.Lock(ctx, c.spec.Name)
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

func (c *claim) command() *exec.Cmd {
	cmd := exec.Command(c.exe, "launch", "--lock", c.spec.Lock, "--token", c.spec.Token)
	cmd.Env = append(append([]string{"PATH=/host"}, c.env...), c.spec.Environ()...)
	if c.fault != "" {
		cmd.Env = append(cmd.Env, "PG_FAULT="+c.fault)
		cmd.Path = built.fault
		cmd.Args[0] = built.fault
	}
	if c.through != nil {
		cmd.Args = append(slices.Clone(c.through), cmd.Args...)
		cmd.Path = c.through[0]
	}
	if c.before != "" {
		cmd.Args = append([]string{"/bin/sh", "-c", c.before + `; exec "$0" "$@"`}, cmd.Args...)
		cmd.Path = "/bin/sh"
	}
	if c.cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	}
	if c.stdio != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdio[0], c.stdio[1], c.stdio[2]
		cmd.ExtraFiles = append(cmd.ExtraFiles, c.stdio[3:]...)
	}
	return cmd
}

// launch claims and runs the launcher to its end.
func (c *claim) launch() error {
	c.t.Helper()
	c.write()
	return c.command().Run()
}

func (c *claim) start() *record.Record {
	c.t.Helper()
	if err := c.launch(); err != nil {
		c.t.Fatalf("launcher: %v; exit record: %+v", err, c.exit())
	}
	return c.running(0)
}

// running waits for a record that names a process other than not, whose start
// is confirmed.
func (c *claim) running(not int) *record.Record {
	c.t.Helper()
	var r *record.Record
	c.until(func() bool {
		r = c.record()
		return r != nil && r.PID > 0 && r.PID != not && !r.Starting
	}, "a running process")
	return r
}

func (c *claim) record() *record.Record {
	c.t.Helper()
	text, _ := os.ReadFile(c.spec.Lock) // record.Read refuses another user's
	return record.Decode(text)
}

func (c *claim) exit() *record.Exit {
	c.t.Helper()
	text, _ := os.ReadFile(c.dir.Join(c.spec.Name + lock.ExitSuffix))
	return record.DecodeExit(text)
}

// ended waits until the keeper has gone and returns what it said.
func (c *claim) ended(keeper int) *record.Exit {
	c.t.Helper()
	c.gone(keeper, "the keeper")
	if names := c.files(); len(names) > 1 || len(names) == 1 && names[0] != "agent.pid.claiming" {
		for _, n := range names {
			if n != "agent.pid.claiming" && n != "agent.pid.exit" {
				c.t.Errorf("left behind: %s", n)
			}
		}
	}
	x := c.exit()
	if x == nil {
		c.t.Fatal("no exit record")
	}
	if x.Token != c.spec.Token {
		c.t.Fatalf("exit record of %s, not %s", x.Token, c.spec.Token)
	}
	return x
}

func (c *claim) files() []string {
	names, err := c.dir.Names("")
	if err != nil {
		c.t.Fatal(err)
	}
	return names
}

// gone waits until pid was reaped. Our parent may not reap, so a zombie whose
// parent is not a keeper counts.
func (c *claim) gone(pid int, what string) {
	c.t.Helper()
	c.until(func() bool {
		h, err := proc.Open(pid)
		if err != nil {
			return true
		}
		defer h.Close()
		return h.Alive() == proc.No
	}, "the end of "+what)
}

func (c *claim) until(fact func() bool, what string) {
	c.t.Helper()
	for end := time.Now().Add(patience); ; {
		if fact() {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s did not come about; record %+v, exit %+v, files %v", what, c.record(), c.exit(), c.files())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// mine are the live processes of this claim, told apart by the token on their
// command line or the mark in their environment. Held children are neither.
func (c *claim) mine() (keepers, processes []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(cmdline, []byte(c.spec.Token)) {
			keepers = append(keepers, pid)
			continue
		}
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if bytes.Contains(environ, []byte("CLAIM="+c.mark)) && !bytes.HasSuffix(cmdline, []byte("\x00hold\x00")) && len(cmdline) > 0 {
			processes = append(processes, pid)
		}
	}
	return keepers, processes
}

// sweep ends what a test has left, by exact token only.
func (c *claim) sweep() {
	keepers, processes := c.mine()
	for _, pid := range append(keepers, processes...) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func signalPID(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

func asJSON(v any) string { b, _ := json.Marshal(v); return string(b) }

// teller makes a claim on this test binary in the role of the process; the
// file tells what happened to it.
func teller(t *testing.T, how string) (*claim, func() []string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newClaim(t, exe)
	file := filepath.Join(t.TempDir(), "told")
	c.env = append(c.env, "PG_TELLER="+how+":"+file)
	return c, func() []string { return lines(file) }
}

func lines(file string) []string {
	text, _ := os.ReadFile(file)
	return strings.Fields(string(text))
}

// status is one line of /proc/<pid>/status.
func status(t *testing.T, pid int, key string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	t.Fatalf("no %s in the status of %d", key, pid)
	return ""
}

// descriptors are the open files of pid.
func descriptors(t *testing.T, pid int) map[int]string {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		out[fd], _ = os.Readlink(dir + "/" + e.Name())
	}
	return out
}

var syscallCredential = syscall.Credential{Uid: 65534, Gid: 65534}
