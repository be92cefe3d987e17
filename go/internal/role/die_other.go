//go:build !linux

package role

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
