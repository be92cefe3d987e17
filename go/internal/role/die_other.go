//go:build unix && !linux

package role

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
