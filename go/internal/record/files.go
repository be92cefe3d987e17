package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
)

// maxRecord bounds what is read: a command line may have 2 MB, a planted file
// any size.
const maxRecord = 16 << 20

// ForeignError says that a file of ours belongs to somebody else. It is left
// alone and believed in nothing: a planted record must never steer a signal.
type ForeignError struct {
	Path string
	UID  int
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to uid %d, not to us or root; it was ignored: remove it or give pidDir to one user", e.Path, e.UID)
}

// Read reads the record of name. nil, nil: there is none, or its text is none.
func Read(d *lock.Dir, name string) (*Record, error) {
	text, err := readFile(d, name+lock.RecordSuffix)
	if text == nil || err != nil {
		return nil, err
	}
	return Decode(text), nil
}

// ReadReaping reads the record that a reaper has set aside to stop its process.
func ReadReaping(d *lock.Dir, name string) (*Record, error) {
	text, err := readFile(d, name+lock.ReapingSuffix)
	if text == nil || err != nil {
		return nil, err
	}
	return Decode(text), nil
}

// ReadExit reads the exit record of name; nil, nil when there is none.
func ReadExit(d *lock.Dir, name string) (*Exit, error) {
	text, err := readFile(d, name+lock.ExitSuffix)
	if text == nil || err != nil {
		return nil, err
	}
	return DecodeExit(text), nil
}

// OpenLife opens the life file of one generation for reading.
func OpenLife(d *lock.Dir, name, token string) (*os.File, error) {
	return openOwn(d, lock.LifeName(name, token))
}

// openOwn opens a file that must be ours or root's to be believed.
func openOwn(d *lock.Dir, file string) (*os.File, error) {
	f, err := d.Open(file, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	uid, err := lock.Owner(f)
	if err == nil && lock.Foreign(uid) {
		err = &ForeignError{Path: d.Join(file), UID: uid}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readFile reads a whole file of ours; nil, nil when it is not there.
func readFile(d *lock.Dir, file string) ([]byte, error) {
	f, err := openOwn(d, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := fault.Get("read", file, func() ([]byte, error) { return io.ReadAll(io.LimitReader(f, maxRecord)) })
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d.Join(file), err)
	}
	if text == nil {
		text = []byte{}
	}
	return text, nil
}

// Pending is a record that is complete on disk under a temporary name. What
// must not happen unless the record can be written (the signal to an orphan)
// is done between Prepare and Commit.
type Pending struct {
	d        *lock.Dir
	tmp, dst string
}

// Prepare writes the temporary file.
func Prepare(d *lock.Dir, name string, r *Record) (*Pending, error) {
	return prepare(d, name+lock.RecordSuffix, tmpName(name, r.Token), Encode(r))
}

const tmpSuffix = ".tmp"

func tmpName(name, token string) string { return name + lock.RecordSuffix + "." + token + tmpSuffix }

// Leftover says whether a file of the directory is a temporary one of name.
// Whoever holds the gate knows then that its writer was killed.
func Leftover(name, file string) bool {
	token, ok := strings.CutPrefix(file, name+lock.RecordSuffix+".")
	if !ok {
		return false
	}
	token, ok = strings.CutSuffix(token, tmpSuffix)
	// Beside "a" there may be one called "a.pid.b", whose gate is another.
	return ok && lock.GoodToken(token)
}

func prepare(d *lock.Dir, dst, tmp string, text []byte) (*Pending, error) {
	f, err := d.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		// Left by a writer of this very generation that was killed half-way.
		if err := d.Remove(tmp); err != nil {
			return nil, err
		}
		f, err = d.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, err
	}
	_, err = fault.Get("write", tmp, func() (int, error) { return f.Write(text) })
	if cerr := fault.Do("close", tmp, f.Close); err == nil {
		err = cerr
	}
	if err != nil {
		_ = d.Remove(tmp)
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // it names the file again
		}
		return nil, fmt.Errorf("write %s: %w", d.Join(tmp), err)
	}
	return &Pending{d: d, tmp: tmp, dst: dst}, nil
}

// Commit puts the file in its place, if the gate is still what it was.
func (p *Pending) Commit(g *lock.Gate) error {
	if err := g.Check(); err != nil {
		p.Abort()
		return fmt.Errorf("write %s: %w", p.d.Join(p.dst), err)
	}
	if err := replace(p.d, p.tmp, p.dst); err != nil {
		p.Abort()
		return err
	}
	return nil
}

// Abort takes the temporary file away.
func (p *Pending) Abort() { _ = p.d.Remove(p.tmp) }

// Write replaces the record of g's name.
func Write(d *lock.Dir, g *lock.Gate, name string, r *Record) error {
	p, err := Prepare(d, name, r)
	if err != nil {
		return err
	}
	return p.Commit(g)
}

// Remove takes the record away.
func Remove(d *lock.Dir, g *lock.Gate, name string) error {
	if err := g.Check(); err != nil {
		return fmt.Errorf("remove %s: %w", d.Join(name+lock.RecordSuffix), err)
	}
	return d.Remove(name + lock.RecordSuffix)
}

// WriteExit writes the exit record of name under the gate, unless that would
// take another generation's last record away: one with another token stays,
// except when ours is the record's own token, because then the other is over.
// (The original let a displaced keeper overwrite the current one's: a clean
// stop was then reported as a death nobody could read.)
func WriteExit(d *lock.Dir, g *lock.Gate, name string, e Exit) error {
	cur, err := Read(d, name)
	if err != nil {
		cur = nil
	}
	if cur.Ours() && cur.Token != e.Token {
		return nil
	}
	if !cur.Ours() {
		old, err := ReadExit(d, name)
		if err == nil && old != nil && old.Token != e.Token {
			return nil
		}
	}
	p, err := prepare(d, name+lock.ExitSuffix, name+lock.ExitSuffix+"."+e.Token+tmpSuffix, EncodeExit(e))
	if err != nil {
		return err
	}
	return p.Commit(g)
}

// RemoveExit takes the exit record away: whoever takes a record does it, so
// that no earlier generation's word is read as the new one's.
func RemoveExit(d *lock.Dir, name string) error {
	return d.Remove(name + lock.ExitSuffix)
}

// PutLife leaves a life file for a generation that has none, or none that says
// anything. It is complete or it is not there: one that was made and could not
// be filled (a full disk, a killed claimant) stood for a process that nobody
// found again. Who calls it has made sure that no keeper holds the old one.
func PutLife(d *lock.Dir, g *lock.Gate, name, token string, l Life) error {
	// Its temporary name is not a life file's: it would be taken for one.
	p, err := prepare(d, lock.LifeName(name, token), tmpName(name, token), EncodeLife(l))
	if err != nil {
		return err
	}
	return p.Commit(g)
}

// SetAside is a record that is being reaped: renamed to `<name>.pid.reaping`
// and locked for as long as its reaper lives, so that a claimant can tell
// "somebody is stopping it" from "a reaper died half-way".
type SetAside struct {
	d    *lock.Dir
	name string
	f    *os.File
}

// BeginReaping locks the record's file and renames it, in the caller's gate
// hold. The lock goes with the inode, through the rename.
func BeginReaping(d *lock.Dir, g *lock.Gate, name string) (*SetAside, error) {
	f, err := d.Open(name+lock.RecordSuffix, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := lock.LockFile(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := g.Check(); err != nil {
		f.Close()
		return nil, fmt.Errorf("set %s aside: %w", d.Join(name+lock.RecordSuffix), err)
	}
	if err := d.Rename(name+lock.RecordSuffix, name+lock.ReapingSuffix); err != nil {
		f.Close()
		return nil, err
	}
	return &SetAside{d: d, name: name, f: f}, nil
}

// ResumeReaping locks what a dead reaper left; ErrBusy when its reaper lives.
func ResumeReaping(d *lock.Dir, name string) (*SetAside, error) {
	f, err := d.Open(name+lock.ReapingSuffix, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := lock.LockFile(f); err != nil {
		f.Close()
		return nil, err
	}
	return &SetAside{d: d, name: name, f: f}, nil
}

// Done removes the file; its process is gone. Call it under the gate. A file
// that was put there since is another reaper's and stays: a claimant may see
// the process gone first, and what it starts may be set aside before this.
func (s *SetAside) Done() error {
	defer s.f.Close()
	ours, err := s.d.Leads(s.name+lock.ReapingSuffix, s.f)
	if err != nil || !ours {
		return err
	}
	// First, because under Wine a locked file keeps its name. Whoever asks for the
	// lock has the gate, which is ours.
	s.f.Close()
	return s.d.Remove(s.name + lock.ReapingSuffix)
}

// Leave gives the lock back and leaves the file for whoever comes next.
func (s *SetAside) Leave() { s.f.Close() }
