package proc

import (
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A request to stop is an event in the kernel whose name is the identity of the
// process that is to stop: whoever has proven who that process is can ask, and
// nobody asks its successor. Only the same user (and the system) may.

// stopName is global because a keeper that a service started and the person who
// asks it to stop are in different sessions.
func stopName(id ID) (*uint16, error) {
	boot, ticks, ok := splitStarted(id.Started)
	if !ok {
		return nil, fmt.Errorf("process %d has no start identity: %w", id.PID, windows.ERROR_INVALID_NAME)
	}
	return windows.UTF16PtrFromString(fmt.Sprintf(`Global\process-guard.stop.%d.%s.%s`, id.PID, boot, ticks))
}

// askToStop is false when nobody listens.
func askToStop(id ID) bool {
	name, err := stopName(id)
	if err != nil {
		return false
	}
	h, err := windows.OpenEvent(windows.EVENT_MODIFY_STATE, false, name)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h)
	return windows.SetEvent(h) == nil
}

// CatchStop makes requests to stop the process id call stop, each one once, from
// a goroutine of its own, until the returned function was called. From then on
// Signal ends the process itself.
func CatchStop(id ID, stop func()) (forget func(), err error) {
	name, err := stopName(id)
	if err != nil {
		return nil, err
	}
	access, err := ownersOnly()
	if err != nil {
		return nil, fmt.Errorf("listen for a stop of process %d: %w", id.PID, err)
	}
	h, err := windows.CreateEvent(access, 0, 0, name)
	if err != nil {
		if h != 0 {
			windows.CloseHandle(h) // it exists: somebody else listens, or waits for us to
		}
		return nil, fmt.Errorf("listen for a stop of process %d: %w", id.PID, err)
	}
	e, err := waiters.add(h)
	if err != nil {
		windows.CloseHandle(h)
		return nil, fmt.Errorf("listen for a stop of process %d: %w", id.PID, err)
	}
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer windows.CloseHandle(h)
		for {
			select {
			case <-over:
				waiters.forget(e)
				<-e.gone // or the name would still be there
				return
			case <-e.done:
			}
			if e.err != nil {
				return
			}
			stop()
			if e, err = waiters.add(h); err != nil {
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}, nil
}

// ownersOnly is an access list with this user and the system in it.
func ownersOnly() (*windows.SecurityAttributes, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	var list strings.Builder
	list.WriteString("D:P")
	for _, who := range []string{user.User.Sid.String(), "SY"} {
		list.WriteString("(A;;GA;;;" + who + ")")
	}
	descriptor, err := windows.SecurityDescriptorFromString(list.String())
	if err != nil {
		return nil, err
	}
	a := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	a.Length = uint32(sizeOfAttributes)
	return a, nil
}

const sizeOfAttributes = unsafe.Sizeof(windows.SecurityAttributes{})
