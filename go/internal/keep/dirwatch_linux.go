package keep

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
)

// dirWatch tells when pidDir stopped being where it was. A second guard()
// would make a new one and find no record in it: two processes.
type dirWatch struct {
	dir  *lock.Dir
	life *os.File
	name string
	fd   int
}

const (
	moved = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	// blindLook is how often it is looked at where the kernel has no inotify
	// instance left (128 per user by default).
	blindLook = time.Minute
)

// watchGone calls gone once, from a goroutine of its own, when the directory
// or one above it was moved or replaced, or when everything of ours in it was
// removed.
func watchGone(dir *lock.Dir, life *os.File, name string, gone func()) {
	w := &dirWatch{dir: dir, life: life, name: name, fd: -1}
	fd, err := fault.Get("inotify_init", "inotify", func() (int, error) {
		return unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	})
	if err == nil {
		w.fd = fd
	}
	if w.fd < 0 || !w.add(fmt.Sprintf("/proc/self/fd/%d", dir.FD()), moved) && !w.add(dir.Path(), moved) {
		go w.blind(blindLook, gone)
		return
	}
	// An open handle keeps a removed directory alive and IN_DELETE_SELF with
	// it, but the life file in it goes first, and losing a link is told.
	w.add(fmt.Sprintf("/proc/self/fd/%d", life.Fd()), unix.IN_ATTRIB|unix.IN_MOVE_SELF)
	for up := filepath.Dir(dir.Path()); ; up = filepath.Dir(up) {
		w.add(up, moved) // one that may not be read is not watched
		if up == filepath.Dir(up) {
			break
		}
	}
	go w.follow(os.NewFile(uintptr(w.fd), "inotify"), gone)
}

func (w *dirWatch) add(path string, mask uint32) bool {
	_, err := fault.Get("inotify_add", "inotify", func() (int, error) { return unix.InotifyAddWatch(w.fd, path, mask) })
	return err == nil
}

func (w *dirWatch) follow(f *os.File, gone func()) {
	defer f.Close()
	buf := make([]byte, 16*(unsafe.Sizeof(unix.InotifyEvent{})+unix.NAME_MAX+1))
	emptied := false
	for {
		if w.gone() {
			gone()
			return
		}
		if !emptied && w.lifeUnlinked() {
			// Somebody is removing our files. What goes next decides.
			emptied = true
			w.add(fmt.Sprintf("/proc/self/fd/%d", w.dir.FD()), moved|unix.IN_DELETE|unix.IN_MOVED_FROM)
			continue
		}
		if _, err := fault.Get("read", "inotify", func() (int, error) { return f.Read(buf) }); err != nil {
			return
		}
	}
}

// gone is asked only after a sign that something happened.
func (w *dirWatch) gone() bool {
	if w.dir.Moved() {
		return true
	}
	return w.lifeUnlinked() && !w.dir.Exists(w.name+lock.RecordSuffix)
}

func (w *dirWatch) lifeUnlinked() bool {
	var st unix.Stat_t
	err := fault.Do("fstat", w.life.Name(), func() error { return unix.Fstat(int(w.life.Fd()), &st) })
	return err == nil && st.Nlink == 0
}

func (w *dirWatch) blind(every time.Duration, gone func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range tick.C {
		if w.gone() {
			gone()
			return
		}
	}
}
