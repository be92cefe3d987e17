package role

import "syscall"

// dieWithParent also ends a child that is stopped and cannot notice the end of
// its input. The thread that started it must live on, which Go's threads do.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
