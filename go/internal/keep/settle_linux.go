package keep

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// settleDown gives back what only the start needed: the heap's garbage, and
// the pages of the executable, most of which (JSON, formatting, the start
// itself) a waiting keeper never looks at again. What it does need comes back
// from the page cache. Together 3.5 MB of Pss become 2.
func settleDown() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range bytes.Lines(maps) {
		// 00400000-0051f000 r-xp 00000000 fe:00 393 /path/to/keeper
		f := bytes.Fields(line)
		if len(f) < 6 || f[1][1] != '-' || f[5][0] != '/' {
			continue // written to, or nothing that could be read again
		}
		from, to, ok := bytes.Cut(f[0], []byte{'-'})
		a, err := strconv.ParseUint(string(from), 16, 64)
		b, err2 := strconv.ParseUint(string(to), 16, 64)
		if ok && err == nil && err2 == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(a), uintptr(b-a), unix.MADV_DONTNEED)
		}
	}
}
