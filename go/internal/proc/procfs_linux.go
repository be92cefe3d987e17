package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
)

// Nobody's command line is longer: the kernel stops at a quarter of the
// stack limit, and at 6 MiB whatever the limit.
const maxProcFile = 16 << 20

var errForeignProc = errors.New("/proc belongs to another pid namespace")

// readFile does without *os.File, whose registration with the poller fails
// for every file in /proc and costs a system call each time.
func readFile(path string) ([]byte, error) {
	fd, err := retry("open", path, func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// One read serves nearly every file, and what one read returns is
	// consistent in itself.
	text := make([]byte, 0, 2048)
	for {
		if len(text) == cap(text) {
			if len(text) >= maxProcFile {
				return nil, unix.EFBIG
			}
			text = slices.Grow(text, cap(text))
		}
		n, err := retry("read", path, func() (int, error) { return unix.Read(fd, text[len(text):cap(text)]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return text, nil
		}
		text = text[:len(text)+n]
	}
}

func retry(op, file string, call func() (int, error)) (int, error) {
	for {
		n, err := fault.Get(op, file, call)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// field is the rest of the line that starts with key.
func field(text []byte, key string) (string, bool) {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return string(bytes.TrimSpace(rest)), true
		}
	}
	return "", false
}

// tgidOf is the pid of the process that the number belongs to: itself, or for
// a thread its leader's.
func tgidOf(pid int) (int, error) {
	if !procIsOurs() {
		return 0, errForeignProc
	}
	text, err := readFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	tgid, ok := field(text, "Tgid:")
	if !ok {
		return 0, fmt.Errorf("status of process %d: no Tgid line", pid)
	}
	return strconv.Atoi(tgid)
}

// procIsOurs tells whether the numbers in /proc are ours. After a plain
// `unshare --pid` it still is the outer namespace's, and /proc/<pid> another
// process than our pid.
func procIsOurs() bool {
	return ownProc.get(func() (bool, bool) {
		target, err := fault.Get("readlink", "/proc/self", func() (string, error) { return os.Readlink("/proc/self") })
		return err == nil && target == strconv.Itoa(os.Getpid()), !passing(err)
	})
}

var ownProc once[bool]

type boot struct {
	id  string
	err error
}

var thisBoot once[boot]

// BootID is the kernel's random name for this boot, "" when it hides it.
func BootID() string { return bootNow().id }

func bootNow() boot {
	return thisBoot.get(func() (boot, bool) {
		text, err := readFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return boot{err: err}, false
		}
		id := string(bytes.TrimSpace(text))
		if strings.ContainsAny(id, ": \n") {
			return boot{}, false // it is written before a colon
		}
		return boot{id: id}, id != ""
	})
}

// NS is the inode of our pid namespace, 0 when unknown.
func NS() uint64 {
	return pidNS.get(func() (uint64, bool) {
		var st unix.Stat_t
		err := fault.Do("stat", "/proc/self/ns/pid", func() error { return unix.Stat("/proc/self/ns/pid", &st) })
		return st.Ino, !passing(err)
	})
}

var pidNS once[uint64]

type offset struct {
	time.Duration
	ok  bool
	err error // why it is not known
}

var timeNS once[offset]

// bootOffset is what our time namespace adds to the time since boot. Start
// times and ages cross namespaces in records, so it is taken out of both.
// false means that the offset is not known.
func bootOffset() (time.Duration, bool) {
	o := bootOffsetNow()
	return o.Duration, o.ok
}

func bootOffsetNow() offset {
	return timeNS.get(func() (offset, bool) {
		o := readBootOffset()
		return o, o.ok
	})
}

func readBootOffset() offset {
	text, err := readFile("/proc/self/timens_offsets")
	if errors.Is(err, unix.ENOENT) {
		// No time namespaces before Linux 5.6. A missing /proc is no proof
		// of that, but nothing is read from it then either.
		return offset{ok: true}
	}
	if err != nil {
		return offset{err: err}
	}
	// The file shows the namespace of our *future* children. The two differ
	// only in a process that called unshare and did not fork or exec since.
	var mine, children unix.Stat_t
	err = errors.Join(unix.Stat("/proc/self/ns/time", &mine), unix.Stat("/proc/self/ns/time_for_children", &children))
	if err != nil || mine.Ino != children.Ino {
		return offset{err: err}
	}
	d, ok := parseBootOffset(text)
	return offset{Duration: d, ok: ok}
}

// parseBootOffset reads "boottime <seconds> <nanoseconds>".
func parseBootOffset(text []byte) (time.Duration, bool) {
	line, ok := field(text, "boottime")
	if !ok {
		return 0, false
	}
	words := strings.Fields(line)
	if len(words) != 2 {
		return 0, false
	}
	sec, err := strconv.ParseInt(words[0], 10, 64)
	nsec, nerr := strconv.ParseInt(words[1], 10, 64)
	const limit = 1 << 33 // seconds; the kernel's own limit is far below
	if err != nil || nerr != nil || sec > limit || sec < -limit {
		return 0, false
	}
	return time.Duration(sec)*time.Second + time.Duration(nsec), true
}

// tick is the unit of the times in /proc/<pid>/stat: USER_HZ is 100 on every
// architecture Go runs on, whatever the kernel's own HZ.
const tick = 10 * time.Millisecond

// startedAt is "" when the offset of our time namespace is no whole number of
// ticks: the kernel rounds after it adds the offset, and a start time that is
// one tick off would make the same process another one.
func startedAt(boot string, ticks uint64, offset time.Duration) string {
	if boot == "" || offset%tick != 0 {
		return ""
	}
	return boot + ":" + strconv.FormatInt(int64(ticks)-int64(offset/tick), 10)
}

// startedHere is "" where nobody here ever knows start times that cross namespaces
// or boots; an error is why it is not known right now.
func startedHere(ticks uint64) (string, error) {
	offset, boot := bootOffsetNow(), bootNow()
	if err := errors.Join(offset.err, boot.err); passing(err) {
		return "", err
	}
	if !offset.ok {
		return "", nil
	}
	return startedAt(boot.id, ticks, offset.Duration), nil
}

// BootMillis is the time since boot, suspend included, without the offset of
// our time namespace. 0 when it cannot be had.
func BootMillis() int64 {
	offset, ok := bootOffset()
	var now unix.Timespec
	if !ok || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return (time.Duration(now.Nano()) - offset).Milliseconds()
}

var pidfs atomic.Int32 // 0 not asked yet, 1 yes, 2 no

// onPidfs tells whether a pidfd lives on pidfs (Linux 6.9). It has an inode
// of its own per process then, never used again within a boot; before that
// all pidfds share one anonymous inode. It also reports the reaping.
func onPidfs(fd int) bool {
	if known := pidfs.Load(); known != 0 {
		return known == 1
	}
	var st unix.Statfs_t
	if fault.Do("fstatfs", "pidfd", func() error { return unix.Fstatfs(fd, &st) }) != nil {
		return false
	}
	if int64(st.Type) != unix.PID_FS_MAGIC {
		pidfs.Store(2)
		return false
	}
	pidfs.Store(1)
	return true
}

// inodeOf is the pidfs inode. On 32-bit systems the kernel cuts it down to 32
// bits, and it may come again.
func inodeOf(fd int) uint64 {
	if strconv.IntSize < 64 || !onPidfs(fd) {
		return 0
	}
	var st unix.Stat_t
	if fault.Do("fstat", "pidfd", func() error { return unix.Fstat(fd, &st) }) != nil {
		return 0
	}
	return st.Ino
}

// reapedNow tells whether the process left the zombies too, which is when its
// pid may be given to another.
func reapedNow(fd int) (bool, error) {
	if onPidfs(fd) {
		events, err := pollNow(fd)
		return events&unix.POLLHUP != 0, err
	}
	return reapedBySignal(fd)
}

// reapedBySignal serves kernels before 6.9, where a poll reads the same
// before and after the reaping: a signal reaches a zombie, and finds nobody
// once it was reaped. EPERM means that somebody is there.
func reapedBySignal(fd int) (bool, error) {
	switch err := fault.Do("probe", "pidfd", func() error { return unix.PidfdSendSignal(fd, 0, nil, 0) }); err {
	case nil, unix.EPERM:
		return false, nil
	case unix.ESRCH:
		return true, nil
	default:
		return false, err
	}
}

// mayReadExit tells an exit code of 0 from one that the kernel hides. It asks
// the same question the kernel asks for the exit code (may we look into this
// process: same user, or CAP_SYS_PTRACE, and what a security module adds),
// through a link of the same process that answers with EACCES.
func (h *Handle) mayReadExit() bool {
	link := "/proc/" + strconv.Itoa(h.pid) + "/ns/pid"
	_, err := fault.Get("readlink", link, func() (string, error) { return os.Readlink(link) })
	// A zombie has no namespaces any more, so being allowed reads ENOENT.
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false
	}
	// ENOENT is also what a reaped process reads.
	gone, err := h.isReaped()
	return err == nil && !gone
}

// Children are the direct children of pid, zombies included, in order.
//
// The kernel's own list leaves a child out when its elder sibling ends
// while it is read, and is not built into every kernel; the parent named by
// each process finds every child that lives through the scan, but not one
// that hidepid hides. So it is both.
func Children(pid int) ([]int, error) {
	if pid <= 0 {
		return nil, ErrGone
	}
	if !procIsOurs() {
		return nil, fmt.Errorf("list the children of process %d: %w", pid, errForeignProc)
	}
	dir := "/proc/" + strconv.Itoa(pid)
	var children []int
	tasks, _ := os.ReadDir(dir + "/task") // gone or hidden: the scan decides
	for _, task := range tasks {
		text, err := readFile(dir + "/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for _, word := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(word)); err == nil {
				children = append(children, child)
			}
		}
	}
	names, err := readNames("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the children of process %d: %w", pid, err)
	}
	for _, name := range names {
		child, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := readFile("/proc/" + name + "/stat")
		if err != nil {
			continue // ended meanwhile, or hidden
		}
		if s, err := parseStat(text); err == nil && s.ppid == pid {
			children = append(children, child)
		}
	}
	slices.Sort(children)
	return slices.Compact(children), nil
}

func readNames(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}
