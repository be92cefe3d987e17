package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

const (
	// inDir leaves IN_MODIFY out: a record is renamed into place, and the
	// original's in-place writes end with a close. IN_CREATE is for files
	// that appear by link(2), which is all the kernel says about them.
	inDir = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// above is all that is asked of the directories above: that one of them
	// is moved, which no file tells. Anything more would wake an idle keeper
	// for every file somebody deletes in /tmp.
	above = unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// emptied is asked of the parent as long as the directory is empty. A
	// removed directory that somebody still has open (every keeper has) sends
	// no event of its own; only its parent tells. It can be removed only when
	// it is empty, and an emptied one said so by the last deletion.
	emptied = above | unix.IN_DELETE | unix.IN_MOVED_TO
)

// kernel is one inotify instance. Only the hub's goroutine changes its fields.
type kernel struct {
	file *os.File
	own  int32   // watch of the directory
	up   []int32 // watches of the directories above, as far as we may watch them
	wide bool    // the parent is asked for emptied

	mu sync.Mutex // around every use of fd, which close makes invalid
	fd int
}

func openKernel(h *Hub) (*kernel, error) {
	fd, err := fault.Get("inotify_init", "inotify", func() (int, error) {
		return unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	})
	if err != nil {
		return nil, refused(h, err)
	}
	k := &kernel{file: os.NewFile(uintptr(fd), "inotify"), fd: fd}
	if err := k.arm(h); err != nil {
		k.close()
		return nil, refused(h, err)
	}
	return k, nil
}

// close ends follow, from any goroutine.
func (k *kernel) close() {
	k.mu.Lock()
	k.fd = -1
	k.mu.Unlock()
	_ = k.file.Close() // a second time is an error and nothing else
}

func (k *kernel) add(path string, mask uint32) (int32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd < 0 {
		return -1, os.ErrClosed
	}
	wd, err := fault.Get("inotify_add", "inotify", func() (int, error) { return unix.InotifyAddWatch(k.fd, path, mask) })
	return int32(wd), err
}

func (k *kernel) remove(wd int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd >= 0 {
		_, _ = unix.InotifyRmWatch(k.fd, uint32(wd)) // its directory may be gone
	}
}

func refused(h *Hub, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EMFILE):
		hint = " (fs.inotify.max_user_instances or the open files limit is used up)"
	case errors.Is(err, unix.ENOSPC):
		hint = " (fs.inotify.max_user_watches is used up)"
	}
	return fmt.Errorf("watch %s: %w%s; looking every %s instead", h.path, err, hint, lookEvery)
}

// arm sets the watches, the directory's own on exactly the directory the hub
// is about: a path may lead elsewhere between a look and a watch.
func (k *kernel) arm(h *Hub) error {
	var err error
	if k.own, err = k.addOwn(h.path); err != nil {
		return err
	}
	k.climb(h)
	k.narrow(h)
	if !h.check() {
		return unix.ENOENT
	}
	return nil
}

func (k *kernel) addOwn(path string) (int32, error) {
	// By descriptor first: add_watch asks for the right to read the whole
	// path again, and a symlink put there meanwhile would be followed.
	dir, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	wd, err := k.add("/proc/self/fd/"+strconv.Itoa(dir), inDir)
	if errors.Is(err, unix.ENOENT) {
		return k.add(path, inDir) // no /proc
	}
	return wd, err
}

// watches tells whether the directory at the path is the very one that is
// being watched. The inode number alone does not: ext4 gives a directory made
// right after another was removed the same number, and For would hand out a
// hub that is about to say Gone. The kernel gives the same watch number only
// for the same directory.
func (k *kernel) watches(h *Hub) bool {
	wd, err := k.addOwn(h.path)
	if err != nil || wd == k.own {
		return true
	}
	k.remove(wd)
	return false
}

// climb watches the directories above. One that we may pass but not read
// cannot be watched; its move then is noticed with the next event inside.
func (k *kernel) climb(h *Hub) {
	old := k.up
	k.up, k.wide = nil, false
	for _, dir := range ancestors(h.path) {
		// A second mask for one directory replaces the first, so the watched
		// directory itself ("/", or a mount of itself) is left alone.
		if info, err := os.Stat(dir); err != nil || os.SameFile(info, h.dir) {
			continue
		}
		if wd, err := k.add(dir, above); err == nil {
			k.up = append(k.up, wd)
		}
	}
	for _, wd := range old {
		if !slices.Contains(k.up, wd) {
			k.remove(wd)
		}
	}
}

// narrow asks the parent for as much as the directory's content makes
// necessary. It is asked first and looked at afterwards: nothing tells of a
// removal in between.
func (k *kernel) narrow(h *Hub) {
	isEmpty, err := empty(h.path)
	if err != nil {
		h.check() // the removal was faster than its last deletion's event
		return
	}
	if isEmpty == k.wide {
		return
	}
	parent := filepath.Dir(h.path)
	if info, err := os.Stat(parent); err != nil || os.SameFile(info, h.dir) {
		return
	}
	k.wide = !k.wide
	mask := uint32(above)
	if k.wide {
		mask = emptied
	}
	_, _ = k.add(parent, mask) // refused as in climb
	if k.wide {
		h.check()
	}
}

func empty(path string) (bool, error) {
	dir, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// follow hands events on until the hub is over or the instance fails.
func (k *kernel) follow(h *Hub) error {
	// Room for the longest name the kernel may send, and some fifty events.
	buffer := make([]byte, 4096)
	for !h.over() {
		n, err := fault.Get("read", "inotify", func() (int, error) { return k.file.Read(buffer) })
		if err != nil {
			return refused(h, err)
		}
		k.deliver(h, buffer[:n])
	}
	return nil
}

// deliver reads a run of struct inotify_event: watch, mask, cookie, length of
// the name, and the name padded with NULs.
func (k *kernel) deliver(h *Hub, events []byte) {
	var look, climb, narrow bool
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		size := int(binary.NativeEndian.Uint32(events[12:]))
		events = events[unix.SizeofInotifyEvent:]
		if size > len(events) {
			break
		}
		name := events[:size]
		events = events[size:]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			// Anything may have happened, to anybody.
			h.wakeAll()
			look, climb, narrow = true, true, true
		case wd != k.own:
			look = true
			climb = climb || mask&unix.IN_MOVE_SELF != 0
		case mask&(unix.IN_DELETE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
			// No look at the path: a new directory there may have been given
			// the very inode number that this one had.
			h.leave()
			return
		case mask&unix.IN_MOVE_SELF != 0:
			look = true
		default:
			h.wakeFile(name)
			narrow = narrow || mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 || k.wide
		}
	}
	if look && !h.check() {
		return
	}
	if climb {
		k.climb(h)
		narrow = true
		if !h.check() {
			return
		}
	}
	if narrow {
		k.narrow(h)
	}
}

func notDirectory(err error) bool { return errors.Is(err, unix.ENOTDIR) }

// wakeFile wakes the subscribers of the name that file belongs to, if any.
func (h *Hub) wakeFile(file []byte) {
	name, ok := nameOf(file)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs[string(name)] {
		s.notify()
	}
}

// ancestors are the directories above path, the nearest first.
func ancestors(path string) []string {
	var up []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		up = append(up, dir)
		if strings.HasSuffix(dir, string(filepath.Separator)) || dir == "." {
			return up // the root ends with its separator, everywhere
		}
	}
}
