package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

// Dir is one open directory. Everything in it is opened, renamed and removed
// relative to this handle.
type Dir struct {
	path     string
	f        *os.File
	dev, ino uint64
	uid      int
	shared   bool // others can put files into it
}

// statfs is a variable so that a test can stand in for a mount it cannot make.
var statfs = unix.Fstatfs

// remote names the file systems whose locks are somebody else's word: servers
// without a lock manager hang the caller for good, others ignore the lock.
var remote = map[int64]string{
	unix.NFS_SUPER_MAGIC:     "nfs",
	unix.SMB_SUPER_MAGIC:     "smb",
	unix.SMB2_SUPER_MAGIC:    "smb",
	unix.CIFS_SUPER_MAGIC:    "cifs",
	unix.AFS_SUPER_MAGIC:     "afs",
	unix.CODA_SUPER_MAGIC:    "coda",
	unix.NCP_SUPER_MAGIC:     "ncp",
	unix.CEPH_SUPER_MAGIC:    "ceph",
	unix.V9FS_MAGIC:          "9p",
	0x7461636f /* ocfs2 */ :  "ocfs2",
	0x0BD00BD0 /* lustre */ : "lustre",
	0x19830326 /* beegfs */ : "beegfs",
	0x47504653 /* gpfs */ :   "gpfs",
	0x6B414653 /* kafs */ :   "afs",
}

// OpenExisting opens a directory and never makes one.
func OpenExisting(path string) (*Dir, error) {
	real, err := realPath(path)
	if err != nil {
		return nil, err
	}
	fd, err := get("open", "dir", func() (int, error) {
		return unix.Open(real, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("pidDir %s: %w", real, err)
	}
	f := os.NewFile(uintptr(fd), real)
	st, err := fstat("dir", fd)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("pidDir %s: %w", real, err)
	}
	var fs unix.Statfs_t
	if err := statfs(fd, &fs); err == nil {
		if kind, bad := remote[int64(uint32(fs.Type))]; bad {
			f.Close()
			return nil, &UnfitError{Path: real, Mount: kind}
		}
	}
	return &Dir{path: real, f: f, dev: uint64(st.Dev), ino: st.Ino, uid: int(st.Uid), shared: exposes(&st, true) != ""}, nil
}

// Path is the directory's real path at the time it was opened.
func (d *Dir) Path() string { return d.path }

// Inode identifies the directory itself, whatever its path.
func (d *Dir) Inode() (dev, ino uint64) { return d.dev, d.ino }

// FD is the handle's descriptor, for calls relative to it.
func (d *Dir) FD() int { return int(d.f.Fd()) }

// Close gives the handle back.
func (d *Dir) Close() error { return d.f.Close() }

// Moved says whether the path no longer leads to this directory.
func (d *Dir) Moved() bool {
	var st unix.Stat_t
	err := do("lstat", "dir", func() error { return unix.Lstat(d.path, &st) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return true
	}
	return err == nil && (uint64(st.Dev) != d.dev || st.Ino != d.ino)
}

// Join is the path of a file in the directory, for messages and command lines.
func (d *Dir) Join(name string) string { return filepath.Join(d.path, name) }

// Open opens a regular file of this directory. Links are not followed, and a
// FIFO or a device under one of our names neither blocks nor is read.
func (d *Dir) Open(name string, flag int, perm os.FileMode) (*os.File, error) {
	fd, err := get("open", name, func() (int, error) {
		return unix.Openat(d.FD(), name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, uint32(perm.Perm()))
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("open %s: a symbolic link is not followed; remove it: %w", d.Join(name), err)
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR): // ENXIO: a socket, or a FIFO that nobody reads
		return nil, fmt.Errorf("open %s: not a regular file; remove it: %w", d.Join(name), err)
	case err != nil:
		if uid, _, serr := d.Stat(name); serr == nil && uid != os.Geteuid() && errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("open %s: it belongs to uid %d; remove it and give pidDir to one user: %w", d.Join(name), uid, err)
		}
		return nil, fmt.Errorf("open %s: %w", d.Join(name), err)
	}
	st, err := fstat(name, fd)
	if err != nil {
		unix.Close(fd)
		if flag&unix.O_EXCL != 0 {
			_ = d.Remove(name) // it was made by this very call
		}
		return nil, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: not a regular file; remove it: %w", d.Join(name), unix.EINVAL)
	}
	if d.shared && st.Nlink > 1 {
		// Ours by its owner, and put here by somebody else: a root's file whose
		// text somebody had a say in named a process to be signalled. Where
		// nobody else can do that a second name is a backup's.
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: it has a second name (a hard link), and others can write here; remove it: %w", d.Join(name), unix.EMLINK)
	}
	return os.NewFile(uintptr(fd), d.Join(name)), nil
}

// Owner is the uid that owns f.
func Owner(f *os.File) (int, error) {
	st, err := fstat(f.Name(), int(f.Fd()))
	if err != nil {
		return -1, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return int(st.Uid), nil
}

// Stat says who owns an entry that could not be opened, and whether it is a file.
func (d *Dir) Stat(name string) (uid int, regular bool, err error) {
	st, err := d.lstat(name)
	if err != nil {
		return -1, false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	return int(st.Uid), st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

// Leads says whether name still leads to the open file f.
func (d *Dir) Leads(name string, f *os.File) (bool, error) {
	named, err := d.lstat(name)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		return false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	open, err := fstat(f.Name(), int(f.Fd()))
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return named.Dev == open.Dev && named.Ino == open.Ino, nil
}

// Rename replaces one name of the directory by another, atomically.
func (d *Dir) Rename(from, to string) error {
	if err := do("rename", to, func() error { return unix.Renameat(d.FD(), from, d.FD(), to) }); err != nil {
		return fmt.Errorf("rename %s to %s: %w", d.Join(from), to, err)
	}
	return nil
}

// Remove unlinks a file; one that is not there is no error.
func (d *Dir) Remove(name string) error {
	err := do("unlink", name, func() error { return unix.Unlinkat(d.FD(), name, 0) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", d.Join(name), err)
	}
	return nil
}

// Exists says whether the directory has an entry of that name, of any kind.
func (d *Dir) Exists(name string) bool {
	_, err := d.lstat(name)
	return err == nil
}

// lstat is the entry itself, where it is a link too.
func (d *Dir) lstat(name string) (st unix.Stat_t, err error) {
	err = do("stat", name, func() error { return unix.Fstatat(d.FD(), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func fstat(name string, fd int) (st unix.Stat_t, err error) {
	err = do("fstat", name, func() error { return unix.Fstat(fd, &st) })
	return st, err
}

// do makes one system call, anew for as long as a signal interrupts it. Go asks for
// calls to go on by themselves, but a host's other handlers may not, and some
// file systems let themselves be interrupted all the same.
func do(op, file string, call func() error) error {
	for {
		if err := fault.Do(op, file, call); err != unix.EINTR {
			return err
		}
	}
}

// get is do for a call that returns something.
func get[T any](op, file string, call func() (T, error)) (T, error) {
	for {
		if v, err := fault.Get(op, file, call); err != unix.EINTR {
			return v, err
		}
	}
}

// Names lists the entries that begin with prefix, sorted.
func (d *Dir) Names(prefix string) ([]string, error) {
	// A handle of its own: the position in a directory belongs to the open file.
	fd, err := get("open", "list", func() (int, error) {
		return unix.Openat(d.FD(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	all, err := get("read", "list", func() ([]string, error) { return f.Readdirnames(-1) })
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	out := all[:0]
	for _, n := range all {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	sort.Strings(out)
	return out, nil
}
