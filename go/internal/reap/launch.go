//go:build linux || windows

package reap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

// launchGate is how long the launcher waits for the reaper's own gate. The
// thread that started it gives up after 16 s.
const launchGate = 14 * time.Second

// errLost says that the claim the reaper was started under is another's now.
var errLost = errors.New("the claim is no longer this launcher's")

// launchMain starts the reaper outside of the host's session, so that pid 1
// becomes its parent, and writes its pid into the claim.
func launchMain(args []string) int {
	l, err := ParseLaunch(args)
	if err != nil {
		complain("%v", err)
		return exitUsage
	}
	keepDescriptors()
	faultPoint("launch-begin")
	child, argv, err := startReaper(l)
	if err != nil {
		complain("reaper: could not be started: %v", err)
		leaveWord(l, fmt.Errorf("it could not be started: %w", err))
		return exitFailed
	}
	defer child.Close()
	faultPoint("launch-spawned")
	if err := commit(l, child, argv); err != nil {
		_ = child.Signal(syscall.SIGKILL)
		complain("reaper: pid %d was stopped again: %v", child.PID(), err)
		if !errors.Is(err, errLost) {
			leaveWord(l, fmt.Errorf("pid %d was stopped again: %w", child.PID(), err))
		}
		return exitLost
	}
	faultPoint("launch-committed")
	return exitFine
}

// leaveWord says in the exit record why there is no reaper, as a keeper's launcher
// does. What a launcher prints goes nowhere, and "it ended with exit code 3" was all
// that anybody got to read of a full disk.
func leaveWord(l Launch, why error) {
	dir, name, _ := splitLock(l.Options.SelfLock)
	d, err := lock.OpenExisting(dir)
	if err != nil {
		return
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), launchGate)
	defer cancel()
	g, err := d.Lock(ctx, name)
	if err != nil {
		return
	}
	defer g.Unlock()
	_ = record.WriteExit(d, g, name, record.Exit{
		Token: l.Token, Outcome: record.Failed, At: time.Now().UnixMilli(), Error: why.Error(),
	})
}

func startReaper(l Launch) (*proc.Handle, []string, error) {
	exe, err := executable()
	if err != nil {
		return nil, nil, err
	}
	host := provenHost(l.Options)
	if host != nil {
		defer host.Close()
	}
	argv := append([]string{exe, "run"}, l.Run...)
	child, err := startDetached(exe, argv, reaperEnviron(os.Environ()), host)
	return child, argv, err
}

// executable is the real path that the reaper is identified by.
func executable() (string, error) {
	exe, err := fault.Get("readlink", "exe", os.Executable)
	if err != nil {
		return "", err
	}
	// The kernel's link is real already, unless the file was replaced since.
	return fault.Get("realpath", "exe", func() (string, error) { return filepath.EvalSymlinks(exe) })
}

// provenHost is a handle of the host that was open while the host was proven:
// by its start time, or by being our parent before and after. nil when it is
// not; the reaper then finds out by itself what the pid is.
func provenHost(o Options) *proc.Handle {
	parent := os.Getppid()
	h, err := proc.Open(o.HostPID)
	if err != nil {
		return nil
	}
	proven := false
	if o.HostStarted != "" {
		proven = h.Identify(proc.Want{Started: o.HostStarted}) == proc.Match
	}
	if !proven && h.Identify(proc.Want{Started: o.HostStarted}) != proc.Differs {
		proven = parent == o.HostPID && os.Getppid() == o.HostPID
	}
	if !proven {
		h.Close()
		return nil
	}
	return h
}

// reaperEnviron leaves out what would act on a Go program and what was meant
// for somebody else.
func reaperEnviron(environ []string) []string {
	mine := environ[:0:0]
	for _, e := range environ {
		if !strings.HasPrefix(e, spec.KeepPrefix) {
			mine = append(mine, e)
		}
	}
	// One thread of Go code is plenty for a process that sleeps, and each more
	// brings caches of its own (680 kB dirty instead of up to 930).
	return append(spec.Restore(mine), "GOMAXPROCS=1")
}

// commit writes the reaper's pid into the claim while it is still ours.
func commit(l Launch, child *proc.Handle, argv []string) error {
	dir, name, _ := splitLock(l.Options.SelfLock)
	d, err := lock.OpenExisting(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), launchGate)
	defer cancel()
	g, err := d.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer g.Unlock()
	faultPoint("launch-gate")
	rec, err := record.Read(d, name)
	if err != nil {
		return err
	}
	if rec == nil || rec.Token != l.Token {
		return fmt.Errorf("%s: %w", l.Options.SelfLock, errLost)
	}
	id, err := child.ID()
	if err != nil {
		return fmt.Errorf("it ended at once: %w", err)
	}
	fresh := *rec
	fresh.PID, fresh.Version, fresh.Argv = child.PID(), l.Version, argv
	fresh.Started, fresh.Inode = id.Started, id.Inode
	fresh.Host = l.Options.HostPID
	if l.Options.HostStarted != "" {
		fresh.HostStarted = l.Options.HostStarted
	}
	fresh.Boot, fresh.NS, fresh.UID = proc.BootID(), proc.NS(), os.Geteuid()
	fresh.Keeper, fresh.KeeperArgv, fresh.Launcher, fresh.Starting = 0, nil, 0, false
	return record.Write(d, g, name, &fresh)
}
