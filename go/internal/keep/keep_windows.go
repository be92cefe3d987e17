package keep

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/windows"

	"processguard/go/internal/lock"
	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
	"processguard/go/internal/watch"
)

// stopPatience is how long a process has after CTRL_BREAK. There is no telling
// one that takes its time from one that never looks, and stopProcess waits for
// ten seconds by default.
const stopPatience = 8 * time.Second

// catchStops hears requests to stop this keeper, and what Windows says when its
// user logs off or the machine is shut down (SIGTERM in Go's words).
func catchStops() chan os.Signal {
	stops := make(chan os.Signal, 16)
	signal.Notify(stops, os.Interrupt, syscall.SIGTERM)
	// Without it a stop ends this keeper and, with its job, the process.
	_, _ = proc.CatchStop(proc.Self(), func() { ask(stops) })
	return stops
}

// ask never waits: more than one stop at a time says no more than one.
func ask(stops chan os.Signal) {
	select {
	case stops <- syscall.SIGTERM:
	default:
	}
}

func stopUnderWay() bool { return false }

func flushStops() {}

// platform is what a keeper knows on this system only.
type platform struct{}

// open takes over what the launcher handed on.
func (k *keeper) open() error {
	text := os.Getenv(spec.LifeFD)
	ready, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s=%q is no inherited handle", spec.LifeFD, text)
	}
	defer windows.CloseHandle(windows.Handle(ready))
	k.env = os.Environ()
	if k.dir, err = lock.OpenExisting(filepath.Dir(k.spec.Lock)); err != nil {
		return err
	}
	if k.life, err = k.dir.KeepLife(k.spec.Name, k.spec.Token); err != nil {
		return err
	}
	// The launcher holds its own lock until now.
	if err := windows.SetEvent(windows.Handle(ready)); err != nil {
		return fmt.Errorf("%s=%q: %w", spec.LifeFD, text, err)
	}
	k.entry.Keeper, k.entry.KeeperArgv = os.Getpid(), k.argv
	k.relays, err = newRelays(k.spec)
	return err
}

// hold makes the process, which does not run yet: its only thread is suspended,
// and it was born in a job of its own that ends with this keeper.
func (k *keeper) hold() (*child, error) {
	file, err := executableOf(k.spec.File)
	if err != nil {
		return nil, &startError{stage: stageExec, err: err, file: k.spec.File}
	}
	if k.spec.UID >= 0 || k.spec.GID >= 0 {
		return nil, &startError{stage: stageUID, err: windows.ERROR_NOT_SUPPORTED, file: k.spec.File, id: k.spec.UID}
	}
	j, err := newJob()
	if err != nil {
		return nil, err
	}
	info, err := k.create(file, j)
	if err != nil {
		j.close()
		e := &startError{stage: stageExec, err: err, file: k.spec.File, cwd: k.spec.Cwd}
		if errors.Is(err, windows.ERROR_DIRECTORY) {
			e.stage = stageChdir
		}
		return nil, e
	}
	defer windows.CloseHandle(info.Process)
	h, err := proc.FromHandle(uintptr(info.Process), int(info.ProcessId))
	if err != nil {
		j.end(syscall.SIGKILL)
		j.close()
		windows.CloseHandle(info.Thread)
		return nil, err
	}
	id, err := h.ID()
	if err != nil {
		id = proc.ID{PID: int(info.ProcessId)}
	}
	c := &child{handle: h, id: id, held: held{job: j, thread: info.Thread, alone: k.spec.Detached}}
	// Whoever asks the process to stop asks its keeper. Without the event it is
	// ended by whoever asks, with the same meaning.
	c.forget, _ = proc.CatchStop(id, func() { ask(k.stops) })
	return c, nil
}

// executableOf is the file itself. Windows adds .exe to a name without an
// extension only where it also searches for it.
func executableOf(file string) (string, error) {
	st, err := os.Stat(file)
	if err == nil && !st.IsDir() {
		return file, nil
	}
	if filepath.Ext(file) == "" {
		for _, ext := range []string{".com", ".exe"} {
			if st, err := os.Stat(file + ext); err == nil && !st.IsDir() {
				return file + ext, nil
			}
		}
	}
	if err == nil {
		err = windows.ERROR_ACCESS_DENIED
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return "", errno
	}
	return "", err
}

func (k *keeper) create(file string, j *job) (*windows.ProcessInformation, error) {
	app, err := windows.UTF16PtrFromString(file)
	if err != nil {
		return nil, err
	}
	line, err := windows.UTF16PtrFromString(spec.CommandLine(k.spec.Argv))
	if err != nil {
		return nil, err
	}
	env, err := environBlock(spec.Restore(withoutFaults(k.env)))
	if err != nil {
		return nil, err
	}
	var cwd *uint16
	if k.spec.Cwd != "" {
		if cwd, err = windows.UTF16PtrFromString(k.spec.Cwd); err != nil {
			return nil, err
		}
	}
	var stdio [3]windows.Handle
	var unique []windows.Handle
	for slot := range stdio {
		h, err := inheritable(k.relays.end(slot))
		if err != nil {
			return nil, fmt.Errorf("stdio %d: %w", slot, err)
		}
		defer windows.CloseHandle(h)
		stdio[slot] = h
		unique = append(unique, h)
	}
	list, err := windows.NewProcThreadAttributeList(2)
	if err != nil {
		return nil, err
	}
	defer list.Delete()
	if err := list.Update(windows.PROC_THREAD_ATTRIBUTE_HANDLE_LIST, pointer(&unique[0]), uintptr(len(unique))*sizeOfHandle); err != nil {
		return nil, err
	}
	if err := list.Update(attributeJobList, pointer(&j.handle), sizeOfHandle); err != nil {
		return nil, err
	}
	start := windows.StartupInfoEx{ProcThreadAttributeList: list.List()}
	start.Cb = uint32(sizeOfStartup)
	start.Flags = windows.STARTF_USESTDHANDLES
	start.StdInput, start.StdOutput, start.StdErr = stdio[0], stdio[1], stdio[2]
	flags := uint32(windows.CREATE_SUSPENDED | windows.CREATE_UNICODE_ENVIRONMENT | windows.EXTENDED_STARTUPINFO_PRESENT | windows.CREATE_NEW_PROCESS_GROUP)
	if k.spec.Detached {
		flags |= windows.DETACHED_PROCESS
	}
	info := &windows.ProcessInformation{}
	if err := windows.CreateProcess(app, line, nil, nil, true, flags, env, cwd, &start.StartupInfo, info); err != nil {
		return nil, err
	}
	return info, nil
}

// environBlock is name=value NUL … NUL in UTF-16.
func environBlock(environ []string) (*uint16, error) {
	var block []uint16
	for _, e := range environ {
		text, err := windows.UTF16FromString(e)
		if err != nil {
			return nil, fmt.Errorf("environment: %w", err)
		}
		block = append(block, text...)
	}
	if len(block) == 0 {
		block = append(block, 0)
	}
	return &append(block, 0)[0], nil
}

// inheritable copies a handle for one child.
func inheritable(h windows.Handle) (windows.Handle, error) {
	self := windows.CurrentProcess()
	var own windows.Handle
	err := windows.DuplicateHandle(self, h, self, &own, 0, true, windows.DUPLICATE_SAME_ACCESS)
	return own, err
}

// held is what a suspended process is held by, and its tree later.
type held struct {
	job    *job
	thread windows.Handle
	forget func() // nobody is asked any more
	alone  bool   // it has no console, so no CTRL_BREAK reaches it
	told   bool   // it was asked to end; what it leaves behind ends with it
}

func (c *child) letGo() {
	_, _ = windows.ResumeThread(c.thread)
	windows.CloseHandle(c.thread)
	c.thread = 0
}

// follow has nothing to wait for but the end: whether the program can be loaded
// was found out when the process was made.
func (k *keeper) follow(c *child) {
	k.inbox <- func() (Event, bool) {
		if k.child != c {
			return 0, false
		}
		c.ready, c.since = true, time.Now()
		k.first, k.ran, k.count.tries, k.retry = false, true, 0, 0
		return Ran, true
	}
	_ = c.handle.Wait(background)
	k.inbox <- func() (Event, bool) { return k.died(c) }
}

// tell asks the process to end: CTRL_BREAK to its own group, and when that was
// not enough, or cannot reach it, the end of its job.
func (c *child) tell(syscall.Signal) {
	if c.told {
		return
	}
	c.told = true
	j, patience := c.job, stopPatience
	if c.alone || !ctrlBreak(c.id.PID) {
		j.end(syscall.SIGTERM)
		// Once more, for what was only just being started: under Wine one stop in
		// some hundred left its process running.
		patience = time.Second
	}
	time.AfterFunc(patience, func() { j.end(syscall.SIGKILL) })
}

// ctrlBreak is false when the event cannot be sent. Under Wine 10 it is sent and
// reaches nobody's handler.
func ctrlBreak(group int) bool {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		return false
	}
	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(group)) == nil
}

func (c *child) kill() {
	c.told = true
	c.job.end(syscall.SIGKILL)
}

func (c *child) abandon() {
	if c.thread != 0 {
		windows.CloseHandle(c.thread)
		c.thread = 0
	}
}

// close lets go of what the process started and did not end, as on every other
// system, unless it was told to end itself.
func (c *child) close() {
	if c.forget != nil {
		c.forget()
	}
	if c.told {
		c.job.end(syscall.SIGKILL)
	} else {
		c.job.release()
	}
	c.job.close()
	c.handle.Close()
}

// settle gives back what only the start needed.
func (k *keeper) settle() {
	debug.FreeOSMemory()
	_ = windows.SetProcessWorkingSetSizeEx(windows.CurrentProcess(), ^uintptr(0), ^uintptr(0), 0)
}

func spareThreads(int) {}

// watchGone calls gone once, from a goroutine of its own, when the directory was
// removed or replaced, or when everything of ours in it was removed.
func watchGone(dir *lock.Dir, _ *os.File, name string, gone func()) {
	hub, err := watch.For(dir.Path())
	if err != nil {
		go gone() // it is not there
		return
	}
	sub := hub.Subscribe(name)
	go func() {
		defer hub.Release()
		defer sub.Close()
		for {
			select {
			case <-hub.Gone():
				gone()
				return
			case <-sub.C():
				files, err := dir.Names(name + ".pid")
				if dir.Moved() || err == nil && !ours(files, name) {
					gone()
					return
				}
			}
		}
	}()
}

// ours says whether a record or a life file is left.
func ours(files []string, name string) bool {
	for _, f := range files {
		if f == name+lock.RecordSuffix || strings.HasPrefix(f, lock.LifePrefix(name)) {
			return true
		}
	}
	return false
}

// hold is no mode of its own here: the process itself is made, suspended.
func hold() int { return sayUsage(errors.New("hold is not needed on Windows")) }

// alsoTemporary are this system's words for what may be had later.
var alsoTemporary = []error{
	windows.ERROR_NO_SYSTEM_RESOURCES, windows.ERROR_NOT_ENOUGH_MEMORY, windows.ERROR_COMMITMENT_LIMIT,
	windows.ERROR_NOT_ENOUGH_QUOTA, windows.ERROR_PAGEFILE_QUOTA,
	windows.ERROR_SHARING_VIOLATION, // the executable is being replaced
}

func errnoName(e syscall.Errno) string {
	switch {
	case errors.Is(e, os.ErrNotExist):
		return "ENOENT"
	case e == windows.ERROR_ACCESS_DENIED:
		return "EACCES"
	case e == windows.ERROR_BAD_EXE_FORMAT, e == windows.ERROR_EXE_MACHINE_TYPE_MISMATCH:
		return "ENOEXEC"
	}
	return ""
}
