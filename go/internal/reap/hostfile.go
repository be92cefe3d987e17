package reap

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"processguard/go/internal/fault"
	"processguard/go/internal/proc"
)

// clock holds what CLOCK_REALTIME was ahead of CLOCK_BOOTTIME whenever it was
// looked at. The two run at one rate, so the difference changes only when
// somebody sets the wall clock.
type clock struct {
	ahead []time.Duration
}

// look adds the difference as it is now.
func (c *clock) look() {
	boot := proc.BootMillis()
	if boot == 0 {
		return
	}
	c.add(time.Duration(time.Now().UnixMilli()-boot) * time.Millisecond)
}

func (c *clock) add(ahead time.Duration) {
	for _, known := range c.ahead {
		if d := known - ahead; d > -slack && d < slack {
			return
		}
	}
	c.ahead = append(c.ahead, ahead)
}

// slack is what the comparison below may be off by without anybody having set a
// clock: a file's time is that of the kernel's last tick (10 ms at HZ=100), and
// a start time is cut down to the tick it fell into.
const slack = 20 * time.Millisecond

// writtenAfter says whether a file with this modification time was written by
// a process that started then, or later.
//
// File systems keep wall-clock time and nothing else, so the start is moved
// onto that clock. Where the clock was set while we watched, every difference
// seen is tried and the file gets the benefit: believing a stale file leaves
// processes for the next host to find, doubting a real one stops the processes
// of a node that is up. The modification time is asked for, not the change
// time (a chown of the whole tree at a container's start would make a file of
// last week new) and not the birth time (the host may write into the old file).
func (c *clock) writtenAfter(modified time.Time, started time.Duration) proc.Answer {
	if len(c.ahead) == 0 {
		return proc.Unknown
	}
	at := time.Duration(modified.UnixNano())
	for _, ahead := range c.ahead {
		if at >= started+ahead-slack {
			return proc.Yes
		}
	}
	return proc.No
}

// hostFile is the pid file in which another host would announce itself.
type hostFile struct {
	path        string
	hostPID     int // the host that was watched
	hostStarted string
	clock       *clock
}

// replacement is the pid in the file, with Yes if it is a host that takes the
// place of the watched one.
func (f hostFile) replacement() (int, proc.Answer) {
	pid, modified, err := readPid(f.path)
	if errors.Is(err, os.ErrNotExist) || pid <= 0 && err == nil {
		return 0, proc.No
	}
	if err != nil {
		return 0, proc.Unknown
	}
	h, err := proc.Open(pid)
	if errors.Is(err, proc.ErrGone) {
		return pid, proc.No // no such process, or a thread's number
	}
	if err != nil {
		return pid, proc.Unknown
	}
	defer h.Close()
	if alive := h.Alive(); alive != proc.Yes {
		return pid, alive // a zombie is not alive
	}
	id, err := h.ID()
	if errors.Is(err, proc.ErrGone) {
		return pid, proc.No
	}
	if pid == f.hostPID && (err != nil || id.Started == "" || f.hostStarted == "" || id.Started == f.hostStarted) {
		return pid, proc.No
	}
	started, ok := startedAfterBoot(id.Started)
	if err != nil || !ok {
		return pid, proc.Unknown
	}
	f.clock.look()
	return pid, f.clock.writtenAfter(modified, started)
}

// readPid is the number a pid file begins with, 0 when it begins with none, and
// when it was last written. The time is read first: a write in between makes an
// old pid no newer, and sends an event of its own.
func readPid(path string) (int, time.Time, error) {
	f, err := fault.Get("open", "hostfile", func() (*os.File, error) { return openHostFile(path) })
	if err != nil {
		return 0, time.Time{}, err
	}
	defer f.Close()
	info, err := fault.Get("fstat", "hostfile", f.Stat)
	if err != nil {
		return 0, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return 0, time.Time{}, nil
	}
	var text [64]byte
	n, err := fault.Get("read", "hostfile", func() (int, error) { return io.ReadFull(f, text[:]) })
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return 0, time.Time{}, err
	}
	word := strings.TrimLeft(string(text[:n]), " \t\r\n")
	if end := strings.IndexFunc(word, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		word = word[:end]
	}
	pid, err := strconv.ParseInt(word, 10, 32)
	if err != nil {
		pid = 0
	}
	return int(pid), info.ModTime(), nil
}
