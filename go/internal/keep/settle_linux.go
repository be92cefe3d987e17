package keep

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// settle gives back what only the start needed: the heap's garbage, and
// the pages of the executable, most of which (JSON, formatting, the start
// itself) a waiting keeper never looks at again. What it does need comes back
// from the page cache. Together 3.5 MB of Pss become 2.
func (k *keeper) settle() {
	debug.FreeOSMemory()
	if k.clean == nil { // once: reading it makes garbage again
		smaps, err := os.Open("/proc/self/smaps")
		if err != nil {
			return
		}
		k.clean = cleanMappings(smaps)
		smaps.Close()
	}
	for _, m := range k.clean {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

// spareThreads makes Go keep n idle threads. A runtime that needs one more and
// gets none (a full pids cgroup, RLIMIT_NPROC) ends the program, and the moment
// at which a keeper needs one is a crash that it is there to answer. Before the
// process is let go such an end loses nothing.
func spareThreads(n int) {
	all := make(chan struct{})
	var locked sync.WaitGroup
	for range n {
		locked.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			<-all // blocked and bound to its thread: the next one needs another
		}()
	}
	locked.Wait()
	close(all)
}

type mapping struct{ from, to uintptr }

// cleanMappings are the mapped files of which every page can be read again.
// Read-only is not enough: a dynamically linked build has pages that the
// linker wrote to and then protected, and dropping them brought the whole
// keeper down.
func cleanMappings(smaps io.Reader) []mapping {
	var out []mapping
	var m mapping
	file := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		// 00400000-0051f000 r-xp 00000000 fe:00 393 /path/to/keeper
		// …
		// Anonymous:             0 kB
		f := bytes.Fields(lines.Bytes())
		switch {
		case len(f) >= 5 && bytes.IndexByte(f[0], '-') > 0:
			from, to, _ := bytes.Cut(f[0], []byte{'-'})
			a, err := strconv.ParseUint(string(from), 16, 64)
			b, err2 := strconv.ParseUint(string(to), 16, 64)
			m = mapping{uintptr(a), uintptr(b)}
			file = err == nil && err2 == nil && len(f) >= 6 && f[5][0] == '/' && len(f[1]) > 1 && f[1][1] == '-'
		case file && len(f) >= 2 && string(f[0]) == "Anonymous:":
			if string(f[1]) == "0" {
				out = append(out, m)
			}
			file = false
		}
	}
	return out
}
