package watch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Names tell of renames and removals, the last write of what is written in place.
const filter = windows.FILE_NOTIFY_CHANGE_FILE_NAME | windows.FILE_NOTIFY_CHANGE_LAST_WRITE | windows.FILE_NOTIFY_CHANGE_SIZE

// kernel is one directory handle that the kernel reports changes through. It
// holds one OS thread, since Go's poller knows no such request. A directory
// above cannot be moved away while the handle is open, so only the directory
// itself is watched.
type kernel struct {
	dir   windows.Handle
	event windows.Handle // the request is complete
	stop  windows.Handle // close was called
	req   *request

	mu     sync.Mutex
	closed bool
	inUse  bool // follow runs and closes the handles itself
}

func openKernel(h *Hub) (*kernel, error) {
	// Identity is looked up by path at the first comparison, and must be the
	// directory's as it is now.
	_ = os.SameFile(h.dir, h.dir)
	name, err := windows.UTF16PtrFromString(h.path)
	if err != nil {
		return nil, refused(h, err)
	}
	k := &kernel{req: &request{}}
	k.dir, err = windows.CreateFile(name, windows.FILE_LIST_DIRECTORY, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil,
		windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OVERLAPPED, 0)
	if err != nil {
		return nil, refused(h, err)
	}
	k.event, err = windows.CreateEvent(nil, 1, 0, nil)
	if err == nil {
		k.stop, err = windows.CreateEvent(nil, 1, 0, nil)
	}
	if err != nil {
		k.free()
		return nil, refused(h, err)
	}
	// The first request makes the kernel keep what happens from now on, also
	// between two requests.
	if err := k.req.begin(k); err != nil {
		k.free()
		return nil, refused(h, err)
	}
	if err := k.req.cancel(k); err != nil {
		k.free()
		return nil, refused(h, err)
	}
	if !h.check() {
		k.free()
		return nil, refused(h, windows.ERROR_FILE_NOT_FOUND)
	}
	return k, nil
}

func refused(h *Hub, err error) error {
	return fmt.Errorf("watch %s: %w; looking every %s instead", h.path, err, lookEvery)
}

// close ends follow, from any goroutine.
func (k *kernel) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	if k.inUse {
		_ = windows.SetEvent(k.stop)
		return
	}
	k.free()
}

func (k *kernel) free() {
	for _, h := range []windows.Handle{k.dir, k.event, k.stop} {
		if h != 0 {
			windows.CloseHandle(h)
		}
	}
}

// request is one ReadDirectoryChanges under way. The kernel writes into it until
// it is complete, so it must not lie on a goroutine's stack, which moves: as a
// local variable it lost changes, and it could have cost any other variable.
type request struct {
	overlapped windows.Overlapped
	buffer     [4096]uint32 // below the 64 KiB that a network drive takes
}

func (r *request) begin(k *kernel) error {
	r.overlapped = windows.Overlapped{HEvent: k.event}
	_ = windows.ResetEvent(k.event)
	return windows.ReadDirectoryChanges(k.dir, (*byte)(unsafe.Pointer(&r.buffer[0])), uint32(unsafe.Sizeof(r.buffer)), false, filter, nil, &r.overlapped, 0)
}

func (r *request) end(k *kernel) (uint32, error) {
	var n uint32
	err := windows.GetOverlappedResult(k.dir, &r.overlapped, &n, true)
	return n, err
}

func (r *request) cancel(k *kernel) error {
	_ = windows.CancelIoEx(k.dir, &r.overlapped)
	if _, err := r.end(k); err != nil && !errors.Is(err, windows.ERROR_OPERATION_ABORTED) {
		return err
	}
	return nil
}

// follow hands events on until the hub is over or the watch fails.
func (k *kernel) follow(h *Hub) error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return os.ErrClosed
	}
	k.inUse = true
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.inUse = false
		if k.closed {
			k.free()
		}
	}()
	r := k.req
	for !h.over() {
		if err := r.begin(k); err != nil {
			if !h.check() {
				return nil
			}
			return refused(h, err)
		}
		which, err := windows.WaitForMultipleObjects([]windows.Handle{k.stop, k.event}, false, windows.INFINITE)
		if err != nil || which == windows.WAIT_OBJECT_0 {
			_ = r.cancel(k)
			if err != nil {
				return refused(h, err)
			}
			return nil
		}
		n, err := r.end(k)
		switch {
		case err != nil && (errors.Is(err, windows.ERROR_ACCESS_DENIED) || !h.check()):
			// What a removed directory answers.
			h.leave()
			return nil
		case err != nil:
			return refused(h, err)
		case n == 0:
			// More happened than the buffer holds.
			h.wakeAll()
		default:
			r.deliver(h, n)
		}
		if !h.check() {
			return nil
		}
	}
	return nil
}

// deliver reads a run of FILE_NOTIFY_INFORMATION.
func (r *request) deliver(h *Hub, n uint32) {
	for at := uint32(0); ; {
		// Wine 10 does not align the entries after the first.
		info := (*windows.FileNotifyInformation)(unsafe.Add(unsafe.Pointer(&r.buffer[0]), at))
		if at+12 > n || at+12+info.FileNameLength > n {
			return
		}
		length := info.FileNameLength
		h.wakeFile(string(utf16.Decode(unsafe.Slice(&info.FileName, length/2))))
		if info.NextEntryOffset == 0 {
			return
		}
		at += info.NextEntryOffset
	}
}

// watches tells whether the directory at the path is the very one that is being
// watched: an open handle keeps its identity from being given to another one.
func (k *kernel) watches(*Hub) bool { return true }

func notDirectory(err error) bool { return errors.Is(err, windows.ERROR_DIRECTORY) }

// wakeFile wakes the subscribers of the name that file belongs to, if any.
func (h *Hub) wakeFile(file string) {
	name, ok := nameOf([]byte(file))
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs[string(name)] {
		s.notify()
	}
}
