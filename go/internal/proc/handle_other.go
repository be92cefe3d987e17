//go:build !linux && !windows

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("process handles on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Handle is not there yet on this system: Open refuses, and every answer is
// Unknown.
type Handle struct{}

// BootID is unknown on this system.
func BootID() string { return "" }

// NS is unknown on this system.
func NS() uint64 { return 0 }

// BootMillis is unknown on this system.
func BootMillis() int64 { return 0 }

// Open refuses on this system.
func Open(pid int) (*Handle, error) {
	if pid <= 0 {
		return nil, ErrGone
	}
	return nil, errUnsupported
}

// FromFile refuses on this system and closes f, as it would where it works.
func FromFile(f *os.File, _ int) (*Handle, error) {
	_ = f.Close()
	return nil, errUnsupported
}

// Children refuses on this system.
func Children(int) ([]int, error) { return nil, errUnsupported }

// PID is 0 on this system.
func (h *Handle) PID() int { return 0 }

func (h *Handle) identity() (ID, error) { return h.ID() }

// ID refuses on this system.
func (h *Handle) ID() (ID, error) { return ID{}, errUnsupported }

// File is nil on this system.
func (h *Handle) File() *os.File { return nil }

// Close does nothing on this system.
func (h *Handle) Close() error { return nil }

// Alive is Unknown on this system.
func (h *Handle) Alive() Answer { return Unknown }

// Wait refuses on this system.
func (h *Handle) Wait(context.Context) error { return errUnsupported }

// Reaped refuses on this system.
func (h *Handle) Reaped(context.Context) error { return errUnsupported }

// Signal refuses on this system.
func (h *Handle) Signal(syscall.Signal) error { return errUnsupported }

// Argv refuses on this system.
func (h *Handle) Argv() ([]string, error) { return nil, errUnsupported }

// Parent refuses on this system.
func (h *Handle) Parent() (int, error) { return 0, errUnsupported }

// UID refuses on this system.
func (h *Handle) UID() (uint32, error) { return 0, errUnsupported }

// State refuses on this system.
func (h *Handle) State() (State, error) { return 0, errUnsupported }

// Exit proves nothing on this system.
func (h *Handle) Exit() (Exit, bool) { return Exit{}, false }

// WaitExit proves nothing on this system.
func (h *Handle) WaitExit(context.Context) (Exit, bool) { return Exit{}, false }

// Reap proves nothing on this system.
func (h *Handle) Reap() (Exit, bool) { return Exit{}, false }
