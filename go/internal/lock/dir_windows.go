package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Dir is one open directory. Everything in it is opened, renamed and removed
// relative to this handle.
type Dir struct {
	path     string
	f        *os.File
	dev, ino uint64
}

// share is how every file of ours is open: nobody's reading may keep anybody
// from writing, replacing or removing. Without FILE_SHARE_DELETE a reader makes
// the writer's rename fail.
const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE

// OpenExisting opens a directory and never makes one.
func OpenExisting(path string) (*Dir, error) {
	real, err := realPath(path)
	if err != nil {
		return nil, err
	}
	if kind := remote(real); kind != "" {
		return nil, &UnfitError{Path: real, Mount: kind}
	}
	h, id, err := openDir(real)
	if err != nil {
		return nil, fmt.Errorf("pidDir %s: %w", real, err)
	}
	return &Dir{path: real, f: os.NewFile(uintptr(h), real), dev: id.dev, ino: id.ino}, nil
}

// remote names a path whose locks are another machine's word.
func remote(path string) string {
	volume := filepath.VolumeName(path)
	root, err := windows.UTF16PtrFromString(volume + `\`)
	if err == nil && windows.GetDriveType(root) == windows.DRIVE_REMOTE {
		return "network drive"
	}
	return ""
}

type fileID struct {
	dev, ino uint64
	info     windows.ByHandleFileInformation
}

func identify(h windows.Handle) (fileID, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return fileID{}, err
	}
	return fileID{
		dev:  uint64(info.VolumeSerialNumber),
		ino:  uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow),
		info: info,
	}, nil
}

// openDir follows no link.
func openDir(path string) (windows.Handle, fileID, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, fileID{}, err
	}
	h, err := windows.CreateFile(name, windows.FILE_LIST_DIRECTORY|windows.FILE_TRAVERSE|windows.SYNCHRONIZE, share, nil,
		windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return 0, fileID{}, err
	}
	id, err := identify(h)
	switch {
	case err != nil:
	case id.info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0:
		err = fmt.Errorf("a link: %w", windows.ERROR_CANT_RESOLVE_FILENAME)
	case id.info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY == 0:
		err = windows.ERROR_DIRECTORY
	default:
		return h, id, nil
	}
	windows.CloseHandle(h)
	return 0, fileID{}, err
}

// Path is the directory's real path at the time it was opened.
func (d *Dir) Path() string { return d.path }

// Inode identifies the directory itself, whatever its path.
func (d *Dir) Inode() (dev, ino uint64) { return d.dev, d.ino }

func (d *Dir) handle() windows.Handle { return windows.Handle(d.f.Fd()) }

// Close gives the handle back.
func (d *Dir) Close() error { return d.f.Close() }

// Moved says whether the path no longer leads to this directory.
func (d *Dir) Moved() bool {
	h, id, err := openDir(d.path)
	if err == nil {
		windows.CloseHandle(h)
		return id.dev != d.dev || id.ino != d.ino
	}
	if errors.Is(err, windows.ERROR_DIRECTORY) || errors.Is(err, windows.ERROR_CANT_RESOLVE_FILENAME) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	// A directory that was removed while somebody has it open keeps its name and
	// denies everybody until the last of them is gone.
	return d.removed()
}

// removed says whether the directory itself is on its way out.
func (d *Dir) removed() bool {
	var info struct { // FILE_STANDARD_INFO
		allocation, end int64
		links           uint32
		deleting, dir   bool
	}
	err := windows.GetFileInformationByHandleEx(d.handle(), windows.FileStandardInfo, (*byte)(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err == nil && (info.deleting || info.links == 0)
}

// Join is the path of a file in the directory, for messages and command lines.
func (d *Dir) Join(name string) string { return filepath.Join(d.path, name) }

// Open opens a regular file of this directory. Links are not followed, and a
// device under one of our names is not read.
func (d *Dir) Open(name string, flag int, _ os.FileMode) (*os.File, error) {
	access := uint32(windows.SYNCHRONIZE | windows.FILE_READ_ATTRIBUTES | windows.READ_CONTROL)
	switch flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_WRONLY:
		access |= windows.FILE_GENERIC_WRITE
	case os.O_RDWR:
		access |= windows.FILE_GENERIC_READ | windows.FILE_GENERIC_WRITE
	default:
		access |= windows.FILE_GENERIC_READ
	}
	disposition := uint32(windows.FILE_OPEN)
	switch {
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		disposition = windows.FILE_CREATE
	case flag&os.O_CREATE != 0:
		disposition = windows.FILE_OPEN_IF
	}
	h, err := d.open(name, access, disposition, windows.FILE_NON_DIRECTORY_FILE)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", d.Join(name), err)
	}
	id, err := identify(h)
	switch {
	case err != nil:
		err = fmt.Errorf("stat %s: %w", d.Join(name), err)
	case id.info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0:
		err = fmt.Errorf("open %s: a symbolic link is not followed; remove it: %w", d.Join(name), windows.ERROR_CANT_RESOLVE_FILENAME)
	default:
		return os.NewFile(uintptr(h), d.Join(name)), nil
	}
	windows.CloseHandle(h)
	return nil, err
}

// How long somebody else's short business with a file is waited out: scanners
// and indexers open what was just written, some of them without sharing it, and
// no event tells that they are done. A replace has more patience, because not
// every system replaces a file that anybody reads (FAT, Wine 10).
const (
	openPatience    = time.Second
	replacePatience = 5 * time.Second
)

// open is openat. A path would be looked up again, and could by then lead into
// another directory.
func (d *Dir) open(name string, access, disposition, options uint32) (windows.Handle, error) {
	if strings.ContainsAny(name, `\/:`) || name == "" || name == "." || name == ".." {
		// A colon would open a stream of another file.
		return 0, windows.ERROR_INVALID_NAME
	}
	text, err := windows.NewNTUnicodeString(name)
	if err != nil {
		return 0, err
	}
	for wait := patience(openPatience); ; {
		var h windows.Handle
		var status windows.IO_STATUS_BLOCK
		attributes := windows.OBJECT_ATTRIBUTES{RootDirectory: d.handle(), ObjectName: text, Attributes: windows.OBJ_CASE_INSENSITIVE}
		attributes.Length = uint32(unsafe.Sizeof(attributes))
		err := windows.NtCreateFile(&h, access, &attributes, &status, nil, windows.FILE_ATTRIBUTE_NORMAL, share, disposition,
			options|windows.FILE_SYNCHRONOUS_IO_NONALERT|windows.FILE_OPEN_REPARSE_POINT, 0, 0)
		if err == nil {
			return h, nil
		}
		if !passing(err) || !wait.once() {
			return 0, errnoOf(err)
		}
	}
}

// passing are the answers that may be another one in a moment.
func passing(err error) bool {
	for _, status := range []windows.NTStatus{windows.STATUS_SHARING_VIOLATION, windows.STATUS_DELETE_PENDING, windows.STATUS_FILE_LOCK_CONFLICT} {
		if errors.Is(err, status) {
			return true
		}
	}
	return false
}

// errnoOf makes a kernel status what every other call fails with.
func errnoOf(err error) error {
	var status windows.NTStatus
	if errors.As(err, &status) {
		if status == windows.STATUS_OBJECT_NAME_COLLISION {
			return windows.ERROR_FILE_EXISTS
		}
		return status.Errno()
	}
	return err
}

// waiting are growing pauses until patience is over.
type waiting struct {
	end   time.Time
	pause time.Duration
}

func patience(d time.Duration) *waiting {
	return &waiting{end: time.Now().Add(d), pause: 200 * time.Microsecond}
}

// once waits, and is false when it was long enough.
func (w *waiting) once() bool {
	if time.Now().After(w.end) {
		return false
	}
	<-time.After(w.pause)
	w.pause = min(2*w.pause, 2*time.Millisecond)
	return true
}

// Owner is -1, which is what Geteuid answers here, for a file of this user, of
// the system or of the administrators; 1 for one of anybody else.
func Owner(f *os.File) (int, error) { return ownerOf(windows.Handle(f.Fd()), f.Name()) }

func ownerOf(h windows.Handle, name string) (int, error) {
	about, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return 1, fmt.Errorf("owner of %s: %w", name, err)
	}
	owner, _, err := about.Owner()
	if err != nil {
		return 1, fmt.Errorf("owner of %s: %w", name, err)
	}
	if owner.IsWellKnown(windows.WinLocalSystemSid) || owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) {
		return -1, nil
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return 1, fmt.Errorf("this process's user: %w", err)
	}
	if owner.Equals(user.User.Sid) {
		return -1, nil
	}
	return 1, nil
}

// Stat says whose an entry is and whether it is a regular file, without opening
// its content.
func (d *Dir) Stat(name string) (uid int, regular bool, err error) {
	h, err := d.open(name, windows.FILE_READ_ATTRIBUTES|windows.READ_CONTROL|windows.SYNCHRONIZE, windows.FILE_OPEN, 0)
	if err != nil {
		return 1, false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	defer windows.CloseHandle(h)
	id, err := identify(h)
	if err != nil {
		return 1, false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	const other = windows.FILE_ATTRIBUTE_DIRECTORY | windows.FILE_ATTRIBUTE_REPARSE_POINT | windows.FILE_ATTRIBUTE_DEVICE
	uid, err = ownerOf(h, d.Join(name))
	return uid, id.info.FileAttributes&other == 0, err
}

// Leads says whether name still leads to the open file f, which was opened in
// this directory and so is on its volume: Wine does not know the volume of an
// open file that was renamed, and os.SameFile compares that, too.
func (d *Dir) Leads(name string, f *os.File) (bool, error) {
	h, err := d.open(name, windows.FILE_READ_ATTRIBUTES|windows.SYNCHRONIZE, windows.FILE_OPEN, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	defer windows.CloseHandle(h)
	named, err := identify(h)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", d.Join(name), err)
	}
	open, err := identify(windows.Handle(f.Fd()))
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return named.ino == open.ino, nil
}

// Rename replaces one name of the directory by another, atomically and whoever
// has either open.
func (d *Dir) Rename(from, to string) error {
	err := d.rename(from, to)
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", d.Join(from), to, err)
	}
	return nil
}

// fileRenameInformationEx is FILE_INFORMATION_CLASS 65 (Windows 10 1709).
const fileRenameInformationEx = 65

func (d *Dir) rename(from, to string) error {
	if strings.ContainsAny(to, `\/:`) {
		return windows.ERROR_INVALID_NAME
	}
	h, err := d.open(from, windows.DELETE|windows.SYNCHRONIZE, windows.FILE_OPEN, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	name, err := windows.UTF16FromString(to)
	if err != nil {
		return err
	}
	name = name[:len(name)-1]
	// FILE_RENAME_INFORMATION, with room for the name behind it.
	type information struct {
		flags  uint32
		root   windows.Handle
		length uint32
		name   [1]uint16
	}
	buffer := make([]uintptr, (unsafe.Sizeof(information{})+uintptr(len(name))*2)/unsafe.Sizeof(uintptr(0))+1)
	info := (*information)(unsafe.Pointer(&buffer[0]))
	info.flags = windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS | windows.FILE_RENAME_IGNORE_READONLY_ATTRIBUTE
	info.root = d.handle()
	info.length = uint32(len(name) * 2)
	copy(unsafe.Slice(&info.name[0], len(name)), name)
	for wait := patience(replacePatience); ; {
		var status windows.IO_STATUS_BLOCK
		err := windows.NtSetInformationFile(h, &status, (*byte)(unsafe.Pointer(info)), uint32(len(buffer))*uint32(unsafe.Sizeof(uintptr(0))), fileRenameInformationEx)
		if err == nil {
			return nil
		}
		// ACCESS_DENIED is also what an open target gets that does not share its
		// deletion.
		if !passing(err) && !errors.Is(err, windows.STATUS_ACCESS_DENIED) || !wait.once() {
			return errnoOf(err)
		}
	}
}

// Remove unlinks a file; one that is not there is no error. The name is free at
// once, also while somebody has the file open.
func (d *Dir) Remove(name string) error {
	h, err := d.open(name, windows.DELETE|windows.SYNCHRONIZE, windows.FILE_OPEN, windows.FILE_NON_DIRECTORY_FILE)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = deletePosix(h)
		windows.CloseHandle(h)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", d.Join(name), err)
	}
	return nil
}

func deletePosix(h windows.Handle) error {
	var status windows.IO_STATUS_BLOCK
	flags := uint32(windows.FILE_DISPOSITION_DELETE | windows.FILE_DISPOSITION_POSIX_SEMANTICS | windows.FILE_DISPOSITION_IGNORE_READONLY_ATTRIBUTE)
	err := windows.NtSetInformationFile(h, &status, (*byte)(unsafe.Pointer(&flags)), 4, windows.FileDispositionInformationEx)
	if err == nil {
		return nil
	}
	// A file system without it (FAT): the name stays until the last handle is closed.
	deleting := true
	if windows.NtSetInformationFile(h, &status, (*byte)(unsafe.Pointer(&deleting)), 1, windows.FileDispositionInformation) == nil {
		return nil
	}
	return errnoOf(err)
}

// Exists says whether the directory has an entry of that name, of any kind.
func (d *Dir) Exists(name string) bool {
	h, err := d.open(name, windows.FILE_READ_ATTRIBUTES|windows.SYNCHRONIZE, windows.FILE_OPEN, 0)
	if err == nil {
		windows.CloseHandle(h)
	}
	return err == nil
}

// Names lists the entries that begin with prefix, sorted.
func (d *Dir) Names(prefix string) ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	defer f.Close()
	if id, err := identify(windows.Handle(f.Fd())); err != nil || id.dev != d.dev || id.ino != d.ino {
		return nil, fmt.Errorf("list %s: %w", d.path, errors.Join(ErrMoved, err))
	}
	all, err := f.Readdirnames(-1)
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
