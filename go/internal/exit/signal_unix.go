//go:build unix

package exit

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func name(sig syscall.Signal) string { return unix.SignalName(sig) }

func numberOf(signal string) syscall.Signal { return unix.SignalNum(signal) }
