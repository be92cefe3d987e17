package once

import (
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// The lock lies far past the end, so that readers of the text are not kept out.
const farOffset = 1 << 30

func openLocked(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for i := 0; ; i++ {
		o := windows.Overlapped{Offset: farOffset}
		err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
		if err == nil {
			return f, nil
		}
		if i == tries {
			f.Close()
			return nil, errBusy
		}
		<-time.After(pause)
	}
}

func closeLocked(f *os.File) {
	o := windows.Overlapped{Offset: farOffset}
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &o)
	f.Close()
}

func openRead(path string) (*os.File, error) { return os.Open(path) }
