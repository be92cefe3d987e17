// Package lock holds what the kernel holds for us: the directory everything is
// opened relative to, the gate that every decision about a record is taken
// under, and the life file of one generation.
//
// A lock here dies with its holder, because the kernel drops it. Nothing is
// ever broken by age: the design this replaces took a gate away from a holder
// that had merely been stopped for seven seconds, and two writers were inside.
//
// On Linux the gate is flock(2) and life files carry an open-file-description
// lock, which can be asked about without being tried for: a probe that tries
// makes the owner's own attempt fail.
package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"processguard/go/internal/fault"
)

// Names of the files beside a record.
const (
	RecordSuffix  = ".pid"
	GateSuffix    = ".pid.claiming"
	ExitSuffix    = ".pid.exit"
	ReapingSuffix = ".pid.reaping"
	lifeInfix     = ".pid.keeper."
)

// LifeSize is the fixed size of a life file. It is allocated when the file is
// made, so that a disk that fills up later cannot take the last words away.
const LifeSize = 4096

// LifeName is the life file of one generation of name.
func LifeName(name, token string) string { return name + lifeInfix + token }

// LifePrefix is what the life files of every generation of name begin with.
func LifePrefix(name string) string { return name + lifeInfix }

// LifeToken is the token in a life file's name, "" when file is none of name's.
// What another name's files begin with is none: beside "a" a process may be
// called "a.pid.keeper.b", and its record was once swept as an old life file.
func LifeToken(name, file string) string {
	token, ok := strings.CutPrefix(file, LifePrefix(name))
	if !ok || !GoodToken(token) {
		return ""
	}
	return token
}

// GoodToken says whether a token can be part of a file's name beside the
// record: not empty, in the directory, short, and not to be taken for the name
// of another record.
func GoodToken(token string) bool {
	return token != "" && len(token) <= maxToken && !strings.ContainsAny(token, "/\x00\n") &&
		!strings.Contains(token+".", RecordSuffix+".")
}

// maxToken bounds what a planted record can make us ask the file system for.
// Ours have about 40 bytes, so a name of 200 still fits into the 255 of a file.
const maxToken = 128

// ErrMoved says that the directory behind an open handle is no longer the one
// its path names: it was removed, renamed or replaced.
var ErrMoved = errors.New("the directory was removed or replaced")

// Foreign says whether a file's owner is neither us nor root: it is believed in
// nothing, because a planted file must never steer a signal.
func Foreign(uid int) bool { return uid != 0 && uid != os.Geteuid() }

// ErrGateLost says that somebody unlinked the gate or moved the directory
// while a decision was taken; nothing was written.
var ErrGateLost = errors.New("the gate was taken away")

// UnfitError says that a directory lies where kernel locks cannot be trusted.
type UnfitError struct {
	Path  string // the directory
	Mount string // what kind of file system it is on
	Err   error  // the errno, if one told
}

func (e *UnfitError) Error() string {
	why := e.Mount
	if e.Err != nil {
		why = fmt.Sprintf("%s: %v", e.Mount, e.Err)
	}
	return fmt.Sprintf("%s is on a file system without dependable kernel locks (%s); nothing was started: put pidDir on a local disk or tmpfs", e.Path, why)
}

func (e *UnfitError) Unwrap() error { return e.Err }

// HeldError says who kept the gate for longer than the caller could wait.
type HeldError struct {
	Path   string // the gate
	Holder int    // pid that its text names, 0 when it names none
	State  string // what that process is doing, "" when it cannot be told
	Err    error  // why waiting ended
}

func (e *HeldError) Error() string {
	who := "a process that left no name"
	remedy := "end its holder"
	switch {
	case e.Holder == os.Getpid():
		who, remedy = "another thread of this process", "try again"
	case e.Holder > 0:
		who = fmt.Sprintf("pid %d", e.Holder)
		remedy = fmt.Sprintf("end pid %d", e.Holder)
		if e.State != "" {
			who += " (" + e.State + ")"
		}
		switch {
		case e.State == "stopped":
			remedy = fmt.Sprintf("let it go on with kill -CONT %d", e.Holder)
		case strings.HasPrefix(e.State, "stopped"):
			remedy = "detach the debugger" // which SIGCONT does not impress
		}
	}
	return fmt.Sprintf("gate %s is held by %s; nothing was started: %s", e.Path, who, remedy)
}

func (e *HeldError) Unwrap() error { return e.Err }

// realPath makes path absolute and resolves every link in it, so that two
// spellings of one directory share one gate.
func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("pidDir %s: %w", path, err)
	}
	real, err := fault.Get("realpath", "dir", func() (string, error) { return filepath.EvalSymlinks(abs) })
	if err != nil {
		return "", fmt.Errorf("pidDir %s: %w", abs, err)
	}
	return real, nil
}

// OpenDir makes the directory if it is missing (mode 0700) and opens it. Every
// later call works relative to the handle, so a directory that is swapped for
// another one is noticed instead of followed.
func OpenDir(path string) (*Dir, error) {
	if err := fault.Do("mkdir", "dir", func() error { return os.MkdirAll(path, 0o700) }); err != nil {
		return nil, fmt.Errorf("pidDir %s could not be made: %w", path, err)
	}
	return OpenExisting(path)
}
