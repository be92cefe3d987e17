// Package watch wakes whoever waits for a name's files in a pid directory to
// change, and says when the directory itself is gone.
//
// There is one Hub per directory and OS process, however many threads of the
// host wait: the kernel gives a user 128 inotify instances, and a woken hub
// costs one context switch and not one for each thread. A wake says that
// something may have changed and nothing else; who is woken reads the files.
package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// suffixes are the files whose change wakes. Temporary files, the gate and
// life files are left out: a waiter that takes the gate to look would be
// woken by its own gate for ever.
var suffixes = [...]string{".pid", ".pid.exit", ".pid.reaping"}

// nameOf is the name that a file in the directory belongs to. It returns a
// part of file, so that looking it up in a map copies nothing.
func nameOf(file []byte) ([]byte, bool) {
	for _, suffix := range suffixes {
		if n := len(file) - len(suffix); n > 0 && string(file[n:]) == suffix {
			return file[:n], true
		}
	}
	return nil, false
}

// Hub watches one directory for everybody in this OS process.
type Hub struct {
	path string
	dir  fs.FileInfo // identity: the path may lead to another directory later

	closed chan struct{} // the last Release
	gone   chan struct{} // the directory is no longer what path leads to
	once   sync.Once     // closes gone

	mu       sync.Mutex
	refs     int
	subs     map[string]map[*Sub]struct{}
	degraded error
	kernel   *kernel // nil while the timer does its work
}

// Sub is one waiter for one name.
type Sub struct {
	hub  *Hub
	name string
	wake chan struct{}
	seen [len(suffixes)]fs.FileInfo // what the timer compares with
}

var (
	hubsMu sync.Mutex
	hubs   = map[string]*Hub{}
)

// For returns the hub of an existing directory, and starts it for the first
// caller. The watch is in place when For returns: what changes from then on
// wakes. Every For needs one Release.
func For(dir string) (*Hub, error) {
	path, err := filepath.Abs(dir)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	hubsMu.Lock()
	defer hubsMu.Unlock()
	if h := hubs[path]; h != nil {
		if h.current() {
			h.mu.Lock()
			h.refs++
			h.mu.Unlock()
			return h, nil
		}
		// Another directory is there by now. The old hub has said so to its
		// own subscribers and belongs to them alone.
		delete(hubs, path)
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	h := &Hub{
		path:   path,
		dir:    info,
		refs:   1,
		closed: make(chan struct{}),
		gone:   make(chan struct{}),
		subs:   map[string]map[*Sub]struct{}{},
	}
	k, err := openKernel(h)
	if err != nil && !h.check() {
		return nil, fmt.Errorf("watch %s: it was removed or replaced: %w", path, fs.ErrNotExist)
	}
	h.degraded, h.kernel = err, k
	hubs[path] = h
	go h.run(k)
	return h, nil
}

// current says whether the path still leads to the watched directory, and
// settles Gone if not.
func (h *Hub) current() bool {
	if !h.check() {
		return false
	}
	h.mu.Lock()
	k := h.kernel
	h.mu.Unlock()
	if k != nil && !k.watches(h) {
		h.leave()
	}
	// Asked last: the goroutine may have heard of the removal since the first
	// look, and given its kernel up.
	select {
	case <-h.gone:
		return false
	default:
		return true
	}
}

// Release gives one For back. The last one ends the watch.
func (h *Hub) Release() {
	hubsMu.Lock()
	defer hubsMu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs--
	if h.refs != 0 {
		return
	}
	if hubs[h.path] == h {
		delete(hubs, h.path)
	}
	close(h.closed)
	if h.kernel != nil {
		h.kernel.close()
	}
}

// Subscribe wakes on changes of name's record, exit record and .reaping file.
// Whoever reads the files after Subscribe misses nothing.
func (h *Hub) Subscribe(name string) *Sub {
	s := &Sub{hub: h, name: name, wake: make(chan struct{}, 1)}
	s.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[name] == nil {
		h.subs[name] = map[*Sub]struct{}{}
	}
	h.subs[name][s] = struct{}{}
	return s
}

// Gone is closed once the directory was removed, moved or replaced. Every
// subscriber is woken too.
func (h *Hub) Gone() <-chan struct{} { return h.gone }

// Degraded says why changes are looked for every 250 ms instead of being
// told by the kernel; nil when they are told.
func (h *Hub) Degraded() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.degraded
}

// C delivers wakes. Several changes make one wake while nobody reads it.
func (s *Sub) C() <-chan struct{} { return s.wake }

// Close ends the subscription. C stays open and silent.
func (s *Sub) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs[s.name], s)
	if len(s.hub.subs[s.name]) == 0 {
		delete(s.hub.subs, s.name)
	}
}

// notify never blocks: a wake that is still to be read covers this one.
func (s *Sub) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (h *Hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, subs := range h.subs {
		for s := range subs {
			s.notify()
		}
	}
}

// check compares the directory at the path with the one being watched, and
// settles Gone if they differ. A path that cannot be looked at right now
// (EACCES, EIO) is not gone.
func (h *Hub) check() bool {
	select {
	case <-h.gone:
		return false
	default:
	}
	info, err := os.Stat(h.path)
	if err == nil && os.SameFile(info, h.dir) || err != nil && !missing(err) {
		return true
	}
	h.leave()
	return false
}

func (h *Hub) leave() {
	h.once.Do(func() { close(h.gone) })
	h.wakeAll()
}

// over tells that nobody needs the goroutine any more.
func (h *Hub) over() bool {
	select {
	case <-h.closed:
		return true
	case <-h.gone:
		return true
	default:
		return false
	}
}

// lookEvery is how late a change may be noticed without the kernel.
const lookEvery = 250 * time.Millisecond

// askAgain is when the kernel is asked for a watch again: what it refused for
// were limits, and others may have given theirs back. A variable because no
// test waits a minute.
var askAgain = time.Minute

// run is the hub's one goroutine. k is nil where the kernel refused.
func (h *Hub) run(k *kernel) {
	for {
		if k != nil {
			err := k.follow(h)
			h.use(nil, err)
			k.close()
		} else {
			h.lookUntil(time.Now().Add(askAgain))
		}
		if h.over() {
			return
		}
		if k != nil {
			k = nil // what broke just now is not asked again at once
			h.look()
			continue
		}
		var err error
		if k, err = openKernel(h); !h.use(k, err) {
			return
		}
		if k != nil {
			h.wakeAll() // for what happened since the last look
		}
	}
}

// use makes k the hub's kernel unless the last Release was faster, which then
// could not close it.
func (h *Hub) use(k *kernel, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kernel, h.degraded = k, err
	if h.refs > 0 {
		return true
	}
	if k != nil {
		k.close()
	}
	return false
}

// lookUntil is the timer that stands in for the kernel. It is the exception
// to "no polling": without a watch nothing else tells.
func (h *Hub) lookUntil(end time.Time) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.closed:
			return
		case now := <-ticker.C:
			if !h.check() || now.After(end) {
				return
			}
			h.look()
		}
	}
}

// look wakes the subscribers whose files changed since the last look.
func (h *Hub) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, subs := range h.subs {
		for s := range subs {
			if s.look() {
				s.notify()
			}
		}
	}
}

// look says whether any of the files changed. A file that cannot be looked at
// counts as absent: the reader finds out why.
func (s *Sub) look() bool {
	changed := false
	base := filepath.Join(s.hub.path, s.name)
	for i, suffix := range suffixes {
		now, err := os.Lstat(base + suffix)
		if err != nil {
			now = nil
		}
		if !same(s.seen[i], now) {
			changed = true
		}
		s.seen[i] = now
	}
	return changed
}

func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// missing is true for the errors that prove that the path leads nowhere.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || notDirectory(err)
}
