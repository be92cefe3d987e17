package guard

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"processguard/go/internal/proc"
)

// Children of the host are reaped by the event loop that spawned them. Two
// kinds have none: launchers whose thread ended before they did, and, where
// the host is pid 1 (or a subreaper), keepers and reapers that were handed to
// it. They would stay zombies for as long as the host lives.

// adopted reaps h's process once it is over, if it is ours by then. It takes
// the handle over. loopDone is closed when no event loop will reap it; nil:
// there never was one.
func adopted(h *proc.Handle, loopDone <-chan struct{}) {
	go func() {
		_ = protect("reaping a child", func() error {
			defer h.Close()
			if err := h.Wait(context.Background()); err != nil {
				return err
			}
			if loopDone != nil {
				ctx, cancel := context.WithCancel(context.Background())
				reaped := make(chan struct{})
				go func() {
					if h.Reaped(ctx) == nil {
						close(reaped)
					}
				}()
				select {
				case <-reaped:
					cancel()
					return nil
				case <-loopDone:
					cancel()
				}
			}
			// Not our child: ECHILD, and nothing happens.
			h.Reap()
			return nil
		})
	}()
}

// spawning counts the spawns that JavaScript was asked for and has not
// answered. While it is 0, no event loop owns a child that we do not know.
var spawning atomic.Int64

// adoptStray finds the launcher of a spawn that a thread was asked for and did
// not live to report. Its command line carries the token; a zombie has none
// left, so one of ours that nobody else can own is reaped too.
func adoptStray(token string, exes ...string) {
	kids, err := proc.Children(os.Getpid())
	if err != nil {
		return
	}
	for _, pid := range kids {
		h, err := proc.Open(pid)
		if err != nil {
			continue
		}
		argv, err := h.Argv()
		switch {
		case err == nil && carries(argv, token):
			adopted(h, nil)
			continue
		case err != nil && spawning.Load() == 0 && h.Alive() == proc.No && isLauncher(pid, exes):
			h.Reap()
		}
		h.Close()
	}
}

func carries(argv []string, token string) bool {
	for i, a := range argv {
		if a == "--token" && i+1 < len(argv) && argv[i+1] == token {
			return true
		}
	}
	return false
}

// isLauncher compares the name the kernel keeps of a zombie.
func isLauncher(pid int, exes []string) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return false
	}
	name := strings.TrimSuffix(string(text), "\n")
	for _, exe := range exes {
		base := exe[strings.LastIndexByte(exe, '/')+1:]
		if len(base) > 15 {
			base = base[:15]
		}
		if base == name {
			return true
		}
	}
	return false
}
