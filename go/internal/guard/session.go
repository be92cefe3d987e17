package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
	"processguard/go/internal/watch"
)

func init() { RegisterCall("process", runProcess) }

// Paths are the package's own programs.
type Paths struct {
	Keeper string `json:"keeper"`
	Reaper string `json:"reaper"`
	Launch string `json:"launch"` // lib/launch.js
}

// Spawn is what the caller's spawnOptions say, without what only JavaScript
// can hold (streams, descriptors).
type Spawn struct {
	Env      map[string]string `json:"env"`
	HostPath *string           `json:"hostPath"`
	HostCwd  string            `json:"hostCwd"`
	Cwd      string            `json:"cwd"`
	UID      *int              `json:"uid"`
	GID      *int              `json:"gid"`
	Argv0    string            `json:"argv0"`
	Shell    any               `json:"shell"` // false, true or a path
	Detached bool              `json:"detached"`
	Stdio    []string          `json:"stdio"`
}

// processArgs is the call "process": one process of one guard() call.
type processArgs struct {
	PidDir      string        `json:"pidDir"`
	Name        string        `json:"name"`
	Title       string        `json:"title"`
	BinaryPath  string        `json:"binaryPath"`
	Args        []string      `json:"args"`
	Version     int64         `json:"version"`
	StopOrphans bool          `json:"stopOrphans"`
	ClaimMs     *int64        `json:"claimTimeoutMs"`
	ExitHint    string        `json:"exitHint"`
	Thread      int           `json:"thread"`
	ExecPath    string        `json:"execPath"`
	Spawn       Spawn         `json:"spawn"`
	Restart     *spec.Restart `json:"restart"`
	GraceMs     int64         `json:"replaceGraceMs"`
	GraceKill   bool          `json:"replaceKill"`
	Deliberate  []int         `json:"deliberateExitCodes"`
	Paths       Paths         `json:"paths"`
}

// Budgets, in the original's terms; see the constants of its documentation.
const (
	defaultClaim = 47 * time.Second
	keeperStart  = 16 * time.Second // for a keeper to name a pid
	pidlessWait  = time.Second      // for a spawn without a pid to say why
	launcherWait = time.Second      // for a launcher to be reaped once its keeper has reported
)

// session is the Go side of one process of one guard() call on one thread.
type session struct {
	e    *Env
	c    *Call
	a    processArgs
	dir  *lock.Dir
	hub  *watch.Hub
	file string   // what is executed
	argv []string // what the process sees
	want []string // what the record says

	talk
	first     bool // still the attempt that guard() waits for
	restarts  int
	answering bool // an attempt answers a death: it joins or takes what is dead, and displaces nobody
}

// talk is the conversation with JavaScript about spawns.
type talk struct {
	mu     sync.Mutex
	serial int
	spawns map[int]chan spawnMessage
	stop   context.CancelFunc
}

type spawnMessage struct {
	T       string  `json:"t"`
	N       int     `json:"n"`
	PID     *int    `json:"pid"`
	Own     bool    `json:"own"`
	Events  bool    `json:"events"`
	Message string  `json:"message"`
	Code    any     `json:"code"` // errno name, or an exit code
	Signal  *string `json:"signal"`
}

func runProcess(ctx context.Context, e *Env, c *Call, raw json.RawMessage) (any, error) {
	s := &session{e: e, c: c, first: true}
	if err := json.Unmarshal(raw, &s.a); err != nil {
		return nil, Errorf("PG_ARGUMENT", "process: %w", err)
	}
	if err := checkName("process", s.a.Name); err != nil {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	s.spawns = map[int]chan spawnMessage{}
	go s.listen(c.Receive())
	s.commandLine()
	s.run(ctx)
	s.settle()
	return nil, nil
}

// listen hands JavaScript's messages to whoever waits for them.
func (t *talk) listen(in <-chan json.RawMessage) {
	_ = protect("listening", func() error {
		for raw := range in {
			var m spawnMessage
			if json.Unmarshal(raw, &m) != nil {
				continue
			}
			if m.T == "stop" {
				t.stop()
				continue
			}
			t.mu.Lock()
			ch := t.spawns[m.N]
			t.mu.Unlock()
			if ch != nil {
				select {
				case ch <- m:
				default: // more than a spawn can have to say; the first ones count
				}
			}
		}
		return nil
	})
	t.stop()
}

// ask sends a spawn to JavaScript and returns where its answers arrive.
func (t *talk) ask(c *Call, m map[string]any) <-chan spawnMessage {
	t.mu.Lock()
	t.serial++
	n := t.serial
	ch := make(chan spawnMessage, 8)
	t.spawns[n] = ch
	t.mu.Unlock()
	m["t"], m["n"] = "spawn", n
	c.Message(m)
	return ch
}

// settle lets guard() go on; only the first call counts.
func (s *session) settle() {
	s.first = false
	s.c.Answer(true, nil)
}

// pair is one change of the state object. nil stands for undefined.
type pair = [2]any

func (s *session) patch(changes ...pair) {
	s.c.Message(map[string]any{"t": "state", "patch": changes})
}

func (s *session) log(level, format string, args ...any) {
	s.c.Message(map[string]any{"t": "log", "level": level, "line": "process guard: " + fmt.Sprintf(format, args...)})
}

// report adds a line to status.report, for the first attempt only.
func (s *session) report(line string) {
	if s.first {
		s.c.Message(map[string]any{"t": "report", "line": line})
	}
}

// note is a warning that the report repeats.
func (s *session) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.log("warn", "%s", line)
	s.report(line)
}

// fail ends an attempt.
func (s *session) fail(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.patch(pair{"error", line})
	s.log("error", "%s", line)
	s.report(line)
}

// dropVerdict forgets what was verified about a process that nothing replaces,
// and its keeper, which ends with it.
func dropVerdict(changes []pair) []pair {
	return append(changes, pair{"keeper", nil}, pair{"verified", nil}, pair{"verifyDetail", nil}, pair{"verifiedPid", nil}, pair{"verifiedAt", nil})
}

// commandLine works out what is executed and what the process sees, the way
// child_process does.
func (s *session) commandLine() {
	a := &s.a
	base := a.Spawn.HostCwd
	if base == "" {
		base = root // the host's directory is gone
	}
	s.file = a.BinaryPath
	if s.file != "" && !filepath.IsAbs(s.file) {
		s.file = filepath.Join(base, s.file)
	}
	if a.Spawn.Cwd == "" {
		a.Spawn.Cwd = base
	} else if !filepath.IsAbs(a.Spawn.Cwd) {
		a.Spawn.Cwd = filepath.Join(base, a.Spawn.Cwd)
	}
	shell := ""
	switch v := a.Spawn.Shell.(type) {
	case bool:
		if v {
			shell = shellOf(a.Spawn.Env)
		}
	case string:
		shell = v
	}
	if shell != "" {
		line := a.BinaryPath
		for _, arg := range a.Args {
			line += " " + arg
		}
		s.file, s.argv = shellWords(shell, line, a.Spawn.HostPath)
	} else {
		s.argv = append([]string{a.BinaryPath}, a.Args...)
	}
	if a.Spawn.Argv0 != "" {
		s.argv[0] = a.Spawn.Argv0
	}
	s.want = recordedArgv(s.argv)
	if a.Title == "" {
		a.Title = a.Name
	}
}

func (s *session) budget() time.Duration {
	b := defaultClaim
	if s.a.ClaimMs != nil {
		b = time.Duration(*s.a.ClaimMs) * time.Millisecond
	}
	return b + time.Duration(s.a.GraceMs)*time.Millisecond
}

func (s *session) restart() spec.Restart {
	if s.a.Restart == nil {
		return spec.DefaultRestart
	}
	return *s.a.Restart
}

func (s *session) flightKey() string {
	dev, ino := s.dir.Inode()
	key := fmt.Sprintf("%d:%d/%s/%d/%v/%d", dev, ino, s.a.Name, s.a.Version, s.a.StopOrphans, s.budget())
	for _, arg := range s.want {
		key += "\x00" + strconv.Itoa(len(arg)) + arg
	}
	return key
}

// run starts or joins, follows, and starts or joins again, until there is
// nothing left to follow.
func (s *session) run(ctx context.Context) {
	dir, err := lock.OpenDir(s.a.PidDir)
	if err != nil {
		s.fail("the lock for %s could not be taken in %s: %v%s", s.a.Name, s.a.PidDir, err, remedy(err))
		return
	}
	s.dir = dir
	defer dir.Close()
	hub, err := watch.For(dir.Path())
	if err != nil {
		s.fail("the lock for %s could not be taken in %s: %v", s.a.Name, s.a.PidDir, err)
		return
	}
	s.hub = hub
	defer hub.Release()
	if err := hub.Degraded(); err != nil {
		s.note("%s is watched by a timer, because the kernel refused a watch: %v", dir.Path(), err)
	}
	s.noteExposure()
	for ctx.Err() == nil {
		f := s.attempt(ctx)
		s.settle()
		if f == nil {
			return
		}
		again := s.follow(ctx, f)
		f.close()
		if !again {
			return
		}
	}
}

// exposures holds what this host was told of: each of its threads guards
// several processes in one directory, and once is enough for a log.
var exposures sync.Map

func (s *session) noteExposure() {
	who := s.dir.Exposed(s.a.PidDir)
	if who == "" {
		return
	}
	line := fmt.Sprintf("pidDir %s is not ours alone: %s, and whoever can remove files there undoes the locks: give it to this user and take the right to write from others (chown, chmod go-w), or choose another pidDir", s.dir.Path(), who)
	if _, told := exposures.LoadOrStore(line, true); told {
		s.report(line)
		return
	}
	s.note("%s", line)
}

// remedy is what an operator can do about an error of the file system.
func remedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "; nothing was started: free space there"
	case errors.Is(err, syscall.EROFS):
		return "; nothing was started: mount it writable or choose another pidDir"
	case errors.Is(err, fs.ErrPermission):
		return "; nothing was started: give this user the right to write there or choose another pidDir"
	}
	return ""
}

// hostAlive says whether the host that a record names still lives.
func hostAlive(host int, started string) bool {
	if host <= 0 {
		return false
	}
	self := proc.Self()
	if host == self.PID {
		return started == "" || started == self.Started
	}
	v, h := proc.Identify(host, proc.Want{Started: started})
	if h != nil {
		defer h.Close()
	}
	if started == "" {
		return h != nil && h.Alive() != proc.No
	}
	return v != proc.Differs
}
