//go:build linux || windows

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"processguard/go/internal/fault"
	"processguard/go/internal/proc"
)

// Gate is the exclusive right to decide about one record. Nobody waits for
// anything but system calls while holding it.
type Gate struct {
	dir  *Dir
	name string
	f    *os.File
	ino  uint64
	slot *slot
	mute bool // nothing is written into the file
}

// foreignGate is how long text in a gate that names another living process
// counts although the kernel lock is free. The JavaScript original makes its
// gates by hard link and takes no kernel lock; it breaks one after 7 s itself.
const foreignGate = 7 * time.Second

// markText is what a gate says while somebody is inside.
func markText(thread int) string {
	return fmt.Sprintf("%d %d %d %d", os.Getpid(), thread, serial.Add(1), time.Now().UnixMilli())
}

type gateKey struct {
	dev, ino uint64
	name     string
}

// inside queues the goroutines of one process on a channel each gate, so that
// a waiting goroutine costs no thread and no system call.
var inside = struct {
	sync.Mutex
	slots map[gateKey]*slot
}{slots: map[gateKey]*slot{}}

type slot struct {
	ch    chan struct{}
	users int
}

func acquireSlot(ctx context.Context, k gateKey) (*slot, error) {
	inside.Lock()
	s := inside.slots[k]
	if s == nil {
		s = &slot{ch: make(chan struct{}, 1)}
		inside.slots[k] = s
	}
	s.users++
	inside.Unlock()
	// First without ctx: of two ready cases a select takes one by chance, and
	// a context that has ended asks whether the gate is free right now.
	select {
	case s.ch <- struct{}{}:
		return s, nil
	default:
	}
	select {
	case s.ch <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		dropSlot(k, s)
		return nil, ctx.Err()
	}
}

func releaseSlot(k gateKey, s *slot) {
	<-s.ch
	dropSlot(k, s)
}

func dropSlot(k gateKey, s *slot) {
	inside.Lock()
	defer inside.Unlock()
	if s.users--; s.users == 0 {
		delete(inside.slots, k)
	}
}

func (d *Dir) gateKey(name string) gateKey { return gateKey{d.dev, d.ino, folded(name)} }

var serial atomic.Uint64

// Lock takes the gate of name. It waits until ctx ends; then the error is a
// *HeldError that names the holder, unless the kernel refused for another
// reason, which is returned at once.
func (d *Dir) Lock(ctx context.Context, name string) (*Gate, error) {
	k := d.gateKey(name)
	s, err := acquireSlot(ctx, k)
	if err != nil {
		return nil, d.heldError(name, err)
	}
	g := &Gate{dir: d, name: name, slot: s}
	if err := g.take(ctx); err != nil {
		releaseSlot(k, s)
		return nil, err
	}
	return g, nil
}

// TryLock takes the gate only if it is free now; nil, nil when it is not.
func (d *Dir) TryLock(name string) (*Gate, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	g, err := d.Lock(ctx, name)
	var held *HeldError
	if errors.As(err, &held) {
		return nil, nil
	}
	return g, err
}

// take is the one place that asks again instead of waiting for an event: a
// blocking flock would hold an OS thread for each waiter and could not be
// ended by a deadline. Holders are inside for well under a millisecond.
func (g *Gate) take(ctx context.Context) error {
	pause := 500 * time.Microsecond
	for {
		ok, err := g.try()
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		if ctx.Err() != nil {
			return g.dir.heldError(g.name, ctx.Err())
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		if pause *= 2; pause > 20*time.Millisecond {
			pause = 20 * time.Millisecond
		}
	}
}

// Dir is the directory the gate belongs to.
func (g *Gate) Dir() *Dir { return g.dir }

// Name is the record's name.
func (g *Gate) Name() string { return g.name }

// Unlock leaves the gate. The lock is released explicitly before the close: a
// host that forks holds a copy of the descriptor until its child execs, and
// the lock with it (seen after 30 % of the releases under a spawning host).
func (g *Gate) Unlock() {
	if g == nil || g.f == nil {
		return
	}
	if !g.mute {
		_ = fault.Do("truncate", g.f.Name(), func() error { return g.f.Truncate(0) })
	}
	unlock(g.f)
	g.f = nil
	releaseSlot(g.dir.gateKey(g.name), g.slot)
}

type mark struct{ pid int }

func gateText(f *os.File) mark {
	var buf [64]byte
	n, _ := fault.Get("read", f.Name(), func() (int, error) { return f.ReadAt(buf[:], 0) })
	word, _, _ := strings.Cut(string(buf[:n]), " ")
	pid, err := strconv.Atoi(word)
	if err != nil || pid <= 0 {
		return mark{}
	}
	return mark{pid: pid}
}

func processExists(pid int) bool {
	h, err := proc.Open(pid)
	if err != nil {
		return !errors.Is(err, proc.ErrGone)
	}
	defer h.Close()
	return h.Alive() != proc.No
}

func (d *Dir) heldError(name string, why error) error {
	e := &HeldError{Path: d.Join(name + GateSuffix), Err: why}
	f, err := d.Open(name+GateSuffix, os.O_RDONLY, 0)
	if err != nil {
		return e
	}
	defer f.Close()
	if e.Holder = lockedBy(f); e.Holder == 0 {
		e.Holder = gateText(f).pid
	}
	if e.Holder > 0 {
		if h, err := proc.Open(e.Holder); err == nil {
			defer h.Close()
			if s, err := h.State(); err == nil {
				e.State = s.String()
			}
		}
	}
	return e
}
