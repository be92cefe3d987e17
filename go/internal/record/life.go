package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"processguard/go/internal/fault"
	"processguard/go/internal/lock"
)

// Life is what a life file says about one generation: which process it is, so
// that a generation whose record was displaced can be found again, and the
// last words of its keeper, which survive the record, a full disk and the next
// generation because watchers keep the file open.
type Life struct {
	PID        int      `json:"pid"` // 0: nothing started yet
	Started    string   `json:"started,omitempty"`
	Inode      uint64   `json:"inode,omitempty"`
	NS         uint64   `json:"ns,omitempty"`
	Version    int64    `json:"version"`
	ArgvHash   string   `json:"argvHash"` // HashArgv of the process's command line
	Host       int      `json:"host"`
	HostStart  string   `json:"hostStarted,omitempty"`
	Keeper     int      `json:"keeper,omitempty"`
	KeeperArgv []string `json:"keeperArgv,omitempty"`
	Restarts   int      `json:"restarts,omitempty"`
	Words      *Words   `json:"words,omitempty"`
	Argv       []string `json:"argv,omitempty"` // left out when it does not fit
}

// Words are a keeper's last ones about one process.
type Words struct {
	PID      int     `json:"pid"`
	Code     *int    `json:"code"`
	Signal   *string `json:"signal"`
	Outcome  Outcome `json:"outcome"`
	Restarts int     `json:"restarts"`
	WaitMs   int64   `json:"waitMs"`
	Error    string  `json:"error,omitempty"`
}

const lifeMagic = "process-guard-life-1"

// ErrTorn says that a life file's slot is empty or does not match its checksum.
var ErrTorn = errors.New("no complete entry")

// ErrEmpty is the ErrTorn of a slot that was never written: nothing has run yet.
var ErrEmpty = fmt.Errorf("nothing was written yet: %w", ErrTorn)

// HashArgv is what a slot says of a command line that may not fit into it.
func HashArgv(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		io.WriteString(h, a)
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// EncodeLife fills one slot.
func EncodeLife(l Life) []byte {
	body := marshal(l)
	room := lock.LifeSize - len(lifeMagic) - 32
	if len(body) > room {
		l.Argv = nil
		body = marshal(l)
	}
	if len(body) > room && l.Words != nil {
		w := *l.Words
		if len(w.Error) > 512 {
			w.Error = w.Error[:512]
		}
		l.Words = &w
		body = marshal(l)
	}
	if len(body) > room {
		l.KeeperArgv = nil // paths of thousands of bytes; the keeper is still named by pid
		body = marshal(l)
	}
	slot := make([]byte, lock.LifeSize)
	head := fmt.Sprintf("%s %08x %d\n", lifeMagic, crc32.ChecksumIEEE(body), len(body))
	copy(slot[copy(slot, head):], body)
	return slot
}

// DecodeLife reads a slot.
func DecodeLife(slot []byte) (Life, error) {
	if len(bytes.Trim(slot, "\x00")) == 0 {
		return Life{}, ErrEmpty
	}
	head, body, ok := bytes.Cut(slot, []byte{'\n'})
	if !ok {
		return Life{}, ErrTorn
	}
	var sum uint32
	var n int
	if _, err := fmt.Sscanf(string(head), lifeMagic+" %x %d", &sum, &n); err != nil || n < 0 || n > len(body) {
		return Life{}, ErrTorn
	}
	body = body[:n]
	if crc32.ChecksumIEEE(body) != sum {
		return Life{}, ErrTorn
	}
	var l Life
	if err := json.Unmarshal(body, &l); err != nil || l.PID < 0 || l.PID > maxPID || l.Keeper < 0 || l.Keeper > maxPID {
		return Life{}, ErrTorn
	}
	return l, nil
}

// WriteLife replaces the slot in one write, so that a reader finds the old
// entry, the new one, or a wrong checksum.
func WriteLife(f *os.File, l Life) error {
	slot := EncodeLife(l)
	if _, err := fault.Get("write", f.Name(), func() (int, error) { return f.WriteAt(slot, 0) }); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}

// ReadLife reads the slot of an open life file, removed or not.
func ReadLife(f *os.File) (Life, error) {
	slot := make([]byte, lock.LifeSize)
	n, err := fault.Get("read", f.Name(), func() (int, error) { return f.ReadAt(slot, 0) })
	if err != nil && !errors.Is(err, io.EOF) {
		return Life{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	l, err := DecodeLife(slot[:n])
	if err != nil {
		return Life{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return l, nil
}
