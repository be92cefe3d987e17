//go:build !linux && !windows

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"processguard/go/internal/proc"
)

// errPlatform: kernel locks of this platform are not wired up yet, and nothing
// may be decided without one.
var errPlatform = fmt.Errorf("kernel locks on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// ErrBusy says that a lock is somebody else's.
var ErrBusy = errors.New("held by another process")

// Dir is one open directory.
type Dir struct{ path string }

// OpenExisting opens a directory and never makes one.
func OpenExisting(path string) (*Dir, error) {
	return nil, fmt.Errorf("pidDir %s: %w", path, errPlatform)
}

// Path is the directory's real path at the time it was opened.
func (d *Dir) Path() string { return d.path }

// Inode identifies the directory itself, whatever its path.
func (d *Dir) Inode() (dev, ino uint64) { return 0, 0 }

// Close gives the handle back.
func (d *Dir) Close() error { return nil }

// Moved says whether the path no longer leads to this directory.
func (d *Dir) Moved() bool { return false }

// Join is the path of a file in the directory, for messages and command lines.
func (d *Dir) Join(name string) string { return filepath.Join(d.path, name) }

// Open opens a regular file of this directory.
func (d *Dir) Open(string, int, os.FileMode) (*os.File, error) { return nil, errPlatform }

// Owner is the uid that owns f.
func Owner(*os.File) (int, error) { return -1, errPlatform }

// Stat says who owns an entry, and whether it is a file.
func (d *Dir) Stat(string) (uid int, regular bool, err error) { return -1, false, errPlatform }

// Leads says whether name still leads to the open file f.
func (d *Dir) Leads(string, *os.File) (bool, error) { return false, errPlatform }

// Rename replaces one name of the directory by another, atomically.
func (d *Dir) Rename(string, string) error { return errPlatform }

// Remove unlinks a file; one that is not there is no error.
func (d *Dir) Remove(string) error { return errPlatform }

// Exists says whether the directory has an entry of that name, of any kind.
func (d *Dir) Exists(string) bool { return false }

// Names lists the entries that begin with prefix, sorted.
func (d *Dir) Names(string) ([]string, error) { return nil, errPlatform }

// Gate is the exclusive right to decide about one record.
type Gate struct {
	dir  *Dir
	name string
}

// Lock takes the gate of name.
func (d *Dir) Lock(context.Context, string) (*Gate, error) { return nil, errPlatform }

// TryLock takes the gate only if it is free now.
func (d *Dir) TryLock(string) (*Gate, error) { return nil, errPlatform }

// Check is nil as long as the path leads to the gate that is locked.
func (g *Gate) Check() error { return errPlatform }

// Dir is the directory the gate belongs to.
func (g *Gate) Dir() *Dir { return g.dir }

// Name is the record's name.
func (g *Gate) Name() string { return g.name }

// Unlock leaves the gate.
func (g *Gate) Unlock() {}

// CreateLife makes and locks the life file of a generation.
func (d *Dir) CreateLife(string, string) (*os.File, error) { return nil, errPlatform }

// LockFile puts a write lock that belongs to the open file on f.
func LockFile(*os.File) error { return errPlatform }

// LockHeld says whether an open file other than f has the lock.
func LockHeld(*os.File) proc.Answer { return proc.Unknown }

// LifeHeld says whether a launcher or keeper of that generation lives.
func (d *Dir) LifeHeld(string, string) proc.Answer { return proc.Unknown }

// ReapingHeld says whether the reaper that set a record aside still lives.
func (d *Dir) ReapingHeld(string) proc.Answer { return proc.Unknown }
