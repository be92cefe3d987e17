package proc

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/windows"
)

// event is one kernel event with any number of waiters.
type event struct {
	raw  windows.Handle // a copy of our own: the Handle may be closed meanwhile
	done chan struct{}
	err  error         // read only after done was closed
	over bool          // under waiters.mu
	gone chan struct{} // closed with raw
	in   *crowd
}

// crowd is one thread that waits for up to 63 objects. Without it every watched
// process would hold an OS thread for as long as it lives.
type crowd struct {
	wake   windows.Handle // an event: the list has changed
	events []*event
}

// most leaves one of the kernel's 64 places (MAXIMUM_WAIT_OBJECTS) to wake.
const most = 64 - 1

type waitList struct {
	mu     sync.Mutex
	crowds []*crowd
}

var waiters waitList

// add begins to wait for an object.
func (w *waitList) add(object windows.Handle) (*event, error) {
	raw, err := duplicate(object)
	if err != nil {
		return nil, err
	}
	e := &event{raw: raw, done: make(chan struct{}), gone: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.crowds {
		if len(c.events) < most {
			e.in = c
			c.events = append(c.events, e)
			_ = windows.SetEvent(c.wake)
			return e, nil
		}
	}
	wake, err := windows.CreateEvent(nil, 0, 0, nil)
	if err != nil {
		windows.CloseHandle(raw)
		return nil, err
	}
	c := &crowd{wake: wake, events: []*event{e}}
	e.in = c
	w.crowds = append(w.crowds, c)
	go w.run(c)
	return e, nil
}

// forget ends the waiting for an object.
func (w *waitList) forget(e *event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !e.over {
		w.settle(e, os.ErrClosed)
		_ = windows.SetEvent(e.in.wake)
	}
}

// settle tells the waiters, under mu. The object is closed by the thread that
// may be waiting for it.
func (w *waitList) settle(e *event, err error) {
	e.over, e.err = true, err
	close(e.done)
}

// run ends with the last event of its crowd.
func (w *waitList) run(c *crowd) {
	for {
		w.mu.Lock()
		c.events = slices.DeleteFunc(c.events, func(e *event) bool {
			if e.over {
				windows.CloseHandle(e.raw)
				close(e.gone)
			}
			return e.over
		})
		if len(c.events) == 0 {
			w.crowds = slices.DeleteFunc(w.crowds, func(other *crowd) bool { return other == c })
			w.mu.Unlock()
			windows.CloseHandle(c.wake)
			return
		}
		objects := []windows.Handle{c.wake}
		for _, e := range c.events {
			objects = append(objects, e.raw)
		}
		w.mu.Unlock()
		which, err := windows.WaitForMultipleObjects(objects, false, windows.INFINITE)
		w.mu.Lock()
		switch n := int(which) - windows.WAIT_OBJECT_0; {
		case err != nil:
			// None of them can be told apart, so all waiters hear of it and look.
			for _, e := range c.events {
				if !e.over {
					w.settle(e, fmt.Errorf("wait for a process: %w", err))
				}
			}
		case n > 0 && n < len(objects):
			for _, e := range c.events {
				if e.raw == objects[n] && !e.over {
					w.settle(e, nil)
				}
			}
		}
		w.mu.Unlock()
	}
}
