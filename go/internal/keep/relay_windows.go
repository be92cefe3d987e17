package keep

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/windows"

	"processguard/go/internal/spec"
)

// relays stand between the process and the caller's pipes for as long as the
// keeper lives, across restarts. The process has a pipe to the keeper only, so
// the end of the thread that reads cannot end the process.
type relays struct {
	own  [3]windows.Handle // this keeper's stdio
	ends [3]windows.Handle // what the process gets instead, 0 where it gets ours
	keep windows.Handle    // our end of its stdin
	outs sync.WaitGroup
	any  bool
}

// relayBuffer is half of what all relays may take together. It exists only
// once something is piped.
const relayBuffer = 32 << 10

func newRelays(s *spec.Spec) (*relays, error) {
	r := &relays{own: stdioHandles()}
	for _, slot := range s.Piped {
		if slot < 0 || slot > 2 || r.ends[slot] != 0 {
			continue
		}
		if kind, err := windows.GetFileType(r.own[slot]); err != nil || kind != windows.FILE_TYPE_PIPE {
			continue // a file or a console needs nobody in between
		}
		var from, to windows.Handle
		if err := windows.CreatePipe(&from, &to, nil, 0); err != nil {
			return nil, fmt.Errorf("pipe for slot %d: %w", slot, err)
		}
		if slot == 0 {
			// Both ends stay open here and nothing is ever written: the process
			// reads end-of-file when this keeper is gone, and not before.
			r.ends[0], r.keep = from, to
			continue
		}
		r.ends[slot] = to
		r.any = true
		r.outs.Add(1)
		go r.pass(os.NewFile(uintptr(from), "relay"), os.NewFile(uintptr(r.own[slot]), "stdio"))
	}
	return r, nil
}

// stdioHandles are ours; what there is none of is NUL.
func stdioHandles() [3]windows.Handle {
	var all [3]windows.Handle
	for slot, which := range []uint32{windows.STD_INPUT_HANDLE, windows.STD_OUTPUT_HANDLE, windows.STD_ERROR_HANDLE} {
		h, err := windows.GetStdHandle(which)
		if _, terr := windows.GetFileType(h); err != nil || h == 0 || h == windows.InvalidHandle || terr != nil {
			name, _ := windows.UTF16PtrFromString("NUL")
			h, err = windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil, windows.OPEN_EXISTING, 0, 0)
			if err != nil {
				h = windows.InvalidHandle
			}
		}
		all[slot] = h
	}
	return all
}

// end is what the process gets as this slot.
func (r *relays) end(slot int) windows.Handle {
	if r.ends[slot] != 0 {
		return r.ends[slot]
	}
	return r.own[slot]
}

// pass moves output on. A reader that is slow holds the process back through
// the full pipes, as it would without a keeper; a reader that is gone makes
// the write fail, and from then on output is dropped.
func (r *relays) pass(from, to *os.File) {
	defer r.outs.Done()
	defer from.Close()
	buf := make([]byte, relayBuffer)
	listening := true
	for {
		n, err := from.Read(buf)
		if listening && n > 0 {
			_, werr := to.Write(buf[:n])
			listening = werr == nil
		}
		if err != nil {
			return
		}
	}
}

// drain calls done once everything that was written to the relays has gone
// through. Whoever inherited the process's ends and lives on holds that up,
// which is what the caller's timer is for.
func (r *relays) drain(done func()) {
	for slot := 1; slot <= 2; slot++ {
		if r.ends[slot] != 0 {
			windows.CloseHandle(r.ends[slot])
			r.ends[slot] = 0
		}
	}
	go func() {
		r.outs.Wait()
		done()
	}()
}
