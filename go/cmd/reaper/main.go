//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command reaper outlives a host and stops what the host left behind.
//
//	reaper run    --host-pid H --host-started S --pid-dir D --grace-ms G --self-lock L [--replacement-pid-file F] [--log F]
//	reaper launch --token T --version V <the same flags>
//
// It sleeps on one thread; the container's CPU quota, which Go would read for
// it and keep open, changes nothing about that.
package main

import (
	"os"

	"processguard/go/internal/reap"
)

func main() { os.Exit(reap.Main(os.Args[1:])) }
