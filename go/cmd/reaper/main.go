// Command reaper outlives a host and stops what the host left behind.
//
//	reaper run    --host-pid H --host-started S --pid-dir D --grace-ms G --self-lock L [--replacement-pid-file F] [--log F]
//	reaper launch --token T --version V <the same flags>
//
// A container's CPU limit decides nothing here, and looking it up would keep
// two descriptors open for as long as the reaper sleeps, hence the settings.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"processguard/go/internal/reap"
)

func main() { os.Exit(reap.Main(os.Args[1:])) }
