package keep

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"processguard/go/internal/fault"
	"processguard/go/internal/spec"
)

// relays stand between the process and the caller's pipes for as long as the
// keeper lives, across restarts. The process has a pipe to the keeper only, so
// the end of the thread that reads cannot end the process.
type relays struct {
	ends [3]int // what the process gets as 0, 1, 2; -1: the keeper's own
	outs sync.WaitGroup
	any  bool
}

// relayBuffer is half of what all relays may take together. It exists only
// once something is piped.
const relayBuffer = 32 << 10

func newRelays(s *spec.Spec) (*relays, error) {
	r := &relays{ends: [3]int{-1, -1, -1}}
	for _, slot := range s.Piped {
		if slot < 0 || slot > 2 || r.ends[slot] >= 0 || !isPipe(slot) {
			continue // a file or a terminal needs nobody in between
		}
		var p [2]int
		if err := fault.Do("pipe", "relay", func() error { return unix.Pipe2(p[:], unix.O_CLOEXEC) }); err != nil {
			return nil, fmt.Errorf("pipe for slot %d: %w", slot, err)
		}
		if slot == 0 {
			// Both ends stay open here and nothing is ever written: the process
			// reads end-of-file when this keeper is gone, and not before.
			r.ends[0] = p[0]
			continue
		}
		if err := unix.SetNonblock(p[0], true); err != nil {
			return nil, fmt.Errorf("pipe for slot %d: %w", slot, err)
		}
		r.ends[slot] = p[1]
		r.any = true
		r.outs.Add(1)
		go r.pass(os.NewFile(uintptr(p[0]), "relay"), slot)
	}
	return r, nil
}

// isPipe tells whether a slot is what a host's 'pipe' becomes; libuv makes
// socket pairs.
func isPipe(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return kind == unix.S_IFIFO || kind == unix.S_IFSOCK
}

// pass moves output on. A reader that is slow holds the process back through
// the full pipes, as it would without a keeper; a reader that is gone makes
// the write fail, and from then on output is dropped.
func (r *relays) pass(from *os.File, to int) {
	defer r.outs.Done()
	defer from.Close()
	buf := make([]byte, relayBuffer)
	listening := true
	for {
		n, err := from.Read(buf)
		if listening && n > 0 {
			listening = writeAll(to, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// writeAll goes past os.File, which ends the program by SIGPIPE when a write
// to descriptor 1 or 2 fails. It blocks its thread while the reader is slow.
func writeAll(fd int, b []byte) bool {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			// The caller made its end non-blocking.
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1); err != nil && err != unix.EINTR {
				return false
			}
		case err != nil:
			return false
		default:
			b = b[n:]
		}
	}
	return true
}

// drain calls done once everything that was written to the relays has gone
// through. Whoever inherited the process's ends and lives on holds that up,
// which is what the caller's timer is for.
func (r *relays) drain(done func()) {
	for slot := 1; slot <= 2; slot++ {
		if r.ends[slot] >= 0 {
			unix.Close(r.ends[slot])
			r.ends[slot] = -1
		}
	}
	go func() {
		r.outs.Wait()
		done()
	}()
}
