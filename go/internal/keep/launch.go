//go:build linux || windows

package keep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/record"
	"processguard/go/internal/spec"
)

// launch starts the keeper of one claim and ends. It holds the gate from the
// look at its claim to the record that names the keeper, so the keeper's own
// start overlaps with the write and neither waits for the other.
func launch(argv []string, s *spec.Spec) int {
	faultPoint("launch-begin")
	stdio := ownStdio(s)
	dir, err := lock.OpenExisting(filepath.Dir(s.Lock))
	if err != nil {
		return exitFailed // there is nowhere to write why
	}
	life, err := dir.CreateLife(s.Name, s.Token)
	if errors.Is(err, fs.ErrExist) {
		return exitFailed // this claim has a launcher already; what is there is that one's
	}
	if err != nil {
		if g, gerr := dir.Lock(context.Background(), s.Name); gerr == nil {
			giveUp(dir, g, s, nil, err)
		}
		return exitFailed
	}
	faultPoint("launch-life-made")
	exe, err := executable(argv)
	keepArgv := []string{exe, "keep", "--lock", s.Lock, "--token", s.Token}
	entry := lifeEntry(s)
	if err == nil {
		err = record.WriteLife(life, entry)
	}
	g, gerr := dir.Lock(context.Background(), s.Name)
	if gerr != nil {
		// Without the gate nobody may be told anything but by the last words.
		entry.Words = &record.Words{Outcome: record.Failed, Restarts: s.Restarts, Error: gerr.Error()}
		_ = record.WriteLife(life, entry)
		return exitFailed
	}
	defer g.Unlock()
	faultPoint("launch-gate")
	rec, rerr := record.Read(dir, s.Name)
	if rerr != nil || !rec.Ours() || rec.Token != s.Token || rec.PID != 0 {
		// The claim was given back or taken: nothing here is ours to start.
		_ = dir.Remove(lock.LifeName(s.Name, s.Token))
		return exitFailed
	}
	var pid int
	var handedOver func()
	if err == nil {
		pid, handedOver, err = startKeeper(exe, keepArgv, s, stdio, life)
	}
	if err != nil {
		giveUp(dir, g, s, life, err)
		return exitFailed
	}
	faultPoint("launch-forked")
	rec.Keeper, rec.KeeperArgv, rec.Launcher = pid, keepArgv, os.Getpid()
	if err := record.Write(dir, g, s.Name, rec); err != nil {
		// It waits for the gate we hold and has started nothing.
		if h, oerr := proc.Open(pid); oerr == nil {
			_ = h.Signal(syscall.SIGKILL)
			_ = h.Wait(context.Background())
			h.Reap()
		}
		giveUp(dir, g, s, life, err)
		return exitFailed
	}
	faultPoint("launch-named")
	g.Unlock()
	handedOver()
	faultPoint("launch-end")
	return exitOK
}

// giveUp says under the gate why no keeper could be started, and gives the
// claim back. The life file stays, with last words, if the exit record cannot
// be written.
func giveUp(dir *lock.Dir, g *lock.Gate, s *spec.Spec, life *os.File, why error) {
	x := record.Exit{
		Token: s.Token, Outcome: record.Failed, Restarts: s.Restarts, At: time.Now().UnixMilli(),
		Error: fmt.Sprintf("the keeper of %s could not be started: %v", s.Name, why),
	}
	if rec, err := record.Read(dir, s.Name); err == nil && rec.Ours() && rec.Token == s.Token && rec.PID == 0 {
		x.Released = record.Remove(dir, g, s.Name) == nil
	}
	if err := record.WriteExit(dir, g, s.Name, x); err != nil && life != nil {
		entry := lifeEntry(s)
		entry.Words = &record.Words{Outcome: x.Outcome, Restarts: x.Restarts, Error: x.Error}
		_ = record.WriteLife(life, entry)
		return
	}
	if life != nil {
		_ = dir.Remove(lock.LifeName(s.Name, s.Token))
	}
}

// lifeEntry is what is known of a generation before anything runs.
func lifeEntry(s *spec.Spec) record.Life {
	return record.Life{
		NS: proc.NS(), Version: s.Version, ArgvHash: record.HashArgv(s.RecordArgv), Argv: s.RecordArgv,
		Host: s.Host, HostStart: s.HostStarted, Restarts: s.Restarts,
	}
}

// executable is this program's path. argv[0] is what the host called it by,
// and what it will look for in command lines.
func executable(argv []string) (string, error) {
	if filepath.IsAbs(argv[0]) {
		return argv[0], nil
	}
	exe, err := fault.Get("readlink", "exe", os.Executable)
	if err != nil {
		return "", fmt.Errorf("path of the keeper: %w", err)
	}
	return exe, nil
}
