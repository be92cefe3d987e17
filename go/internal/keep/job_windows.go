package keep

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"

	"processguard/go/internal/proc"
)

var background = context.Background()

// attributeJobList is PROC_THREAD_ATTRIBUTE_JOB_LIST: the process is in the job
// before its first instruction.
const attributeJobList = 0x0002000d

const (
	sizeOfHandle  = unsafe.Sizeof(windows.Handle(0))
	sizeOfStartup = unsafe.Sizeof(windows.StartupInfoEx{})
)

func pointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// job is the job object of one run of the process. The kernel ends everything in
// it when its last handle is closed, and this keeper's is the only one.
type job struct {
	handle windows.Handle

	mu     sync.Mutex
	closed bool
}

func newJob() (*job, error) {
	h, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("job object: %w", err)
	}
	j := &job{handle: h}
	// What asks to leave the job may: it wants to be nobody's.
	if err := j.limit(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | windows.JOB_OBJECT_LIMIT_BREAKAWAY_OK); err != nil {
		j.close()
		return nil, fmt.Errorf("job object: %w", err)
	}
	return j, nil
}

func (j *job) limit(flags uint32) error {
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(j.handle, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err
}

// release lets what is still in the job live on.
func (j *job) release() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		_ = j.limit(windows.JOB_OBJECT_LIMIT_BREAKAWAY_OK)
	}
}

// end ends everything in the job, as if by a signal.
func (j *job) end(sig syscall.Signal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		_ = windows.TerminateJobObject(j.handle, proc.KilledBy(sig))
	}
}

func (j *job) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.closed = true
		windows.CloseHandle(j.handle)
	}
}
