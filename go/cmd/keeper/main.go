// Command keeper starts, keeps and restarts one process for process guard.
//
// The cgroup's CPU limit decides nothing here, and looking it up costs every
// start file descriptors and system calls, hence the two settings.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"runtime"

	"processguard/go/internal/keep"
)

// The process's exec must come from the main thread: an exec from another one
// makes the pid look like a thread's for a moment.
func init() { runtime.LockOSThread() }

func main() { os.Exit(keep.Main(os.Args)) }
