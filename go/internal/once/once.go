// Package once elects one holder for periodic work, by a stamped file, and keeps
// small numbers that several threads and processes change.
//
// Both read, decide and write under a kernel lock on the file itself. The
// original read and then wrote: of eight threads on a fresh file more than one
// won in 126 of 200 rounds. Who reads a number takes no lock: its
// line ends with a newline, so that the 9 that replaces 100 is not met as 900.
package once

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"processguard/go/internal/proc"
)

// Stamp is what a claim file says.
type Stamp struct {
	Holder string
	At     int64  // wall clock, ms since the epoch
	Boot   string // boot id, "" from a writer that does not say
	BootAt int64  // CLOCK_BOOTTIME in ms
}

// Parse reads a stamp; false when the text is none.
func Parse(text []byte) (Stamp, bool) {
	first, second, _ := bytes.Cut(text, []byte{'\n'})
	i := bytes.LastIndexByte(bytes.TrimRight(first, " \r"), ' ')
	if i <= 0 {
		return Stamp{}, false
	}
	at, err := strconv.ParseInt(strings.TrimSpace(string(first[i+1:])), 10, 64)
	if err != nil {
		return Stamp{}, false
	}
	s := Stamp{Holder: string(first[:i]), At: at}
	if boot, ms, ok := strings.Cut(strings.TrimSpace(string(second)), " "); ok {
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			s.Boot, s.BootAt = boot, n
		}
	}
	return s, true
}

// Text is the file's content. The first line is the original's.
func (s Stamp) Text() []byte {
	text := fmt.Sprintf("%s %d\n", s.Holder, s.At)
	if s.Boot != "" {
		text += fmt.Sprintf("%s %d\n", s.Boot, s.BootAt)
	}
	return []byte(text)
}

// Live says whether a stamp still counts. Within one boot the age comes from the
// boot clock, which no administrator and no NTP step moves; otherwise from the
// wall clock, where a stamp in the future counts as live.
func Live(s, now Stamp, staleMs float64) bool {
	if s.Boot != "" && s.Boot == now.Boot {
		return float64(now.BootAt-s.BootAt) < staleMs
	}
	return float64(now.At-s.At) < staleMs
}

// tries bounds the wait for another decider, who is inside for microseconds. A
// JavaScript thread waits for us, so a stopped process must not hold it up.
const (
	tries = 40
	pause = 500 * time.Microsecond
)

// Claim makes holder the one in charge, unless another live one is. fixedNow, if
// given, is the caller's own wall clock in ms and the only clock used.
func Claim(dir, file, holder string, staleMs float64, fixedNow *float64) bool {
	now := Stamp{Holder: holder, At: time.Now().UnixMilli(), Boot: proc.BootID(), BootAt: proc.BootMillis()}
	if fixedNow != nil {
		now = Stamp{Holder: holder, At: int64(*fixedNow)}
	}
	won := false
	err := locked(dir, file, func(text []byte) []byte {
		if won = now.takes(text, staleMs); !won {
			return nil
		}
		return now.Text()
	})
	return err == nil && won
}

// takes says whether a file that says text goes to s.
func (s Stamp) takes(text []byte, staleMs float64) bool {
	if s.Holder == "" || strings.ContainsAny(s.Holder, "\n\x00") {
		return false
	}
	is, ok := Parse(text)
	return !ok || is.Holder == s.Holder || !Live(is, s, staleMs)
}

// Would says what Claim would do with a file that says text, for a caller who
// keeps that file: the text to write, and whether holder wins.
func Would(text, holder string, staleMs, now float64) (string, bool) {
	s := Stamp{Holder: holder, At: int64(now)}
	if !s.takes([]byte(text), staleMs) {
		return "", false
	}
	return string(s.Text()), true
}

// Get reads a mark; false when it has none: a positive finite number.
func Get(dir, file string) (float64, bool) {
	f, err := openRead(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return 0, false
	}
	return number(text)
}

// Set writes a mark.
func Set(dir, file string, n float64) error {
	return locked(dir, file, func([]byte) []byte { return mark(n) })
}

// Add changes a mark by n and returns what it is then; no two callers lose each
// other's change.
func Add(dir, file string, n float64) (float64, error) {
	sum := 0.0
	err := locked(dir, file, func(text []byte) []byte {
		old, _ := number(text)
		sum = old + n
		return mark(sum)
	})
	return sum, err
}

// number reads the first line: before a writer's cut, and for good when it was
// killed before it, the end of an older, longer number follows.
func number(text []byte) (float64, bool) {
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	n, err := strconv.ParseFloat(strings.TrimSpace(string(line)), 64)
	return n, err == nil && n > 0 && !math.IsInf(n, 0)
}

func mark(n float64) []byte { return append(strconv.AppendFloat(nil, n, 'f', -1, 64), '\n') }

var errBusy = errors.New("another process has been deciding about it for too long")

// limit is more than any of these files holds.
const limit = 4096

// inside makes the threads of one process wait for each other for as long as it
// takes: one whose turn the scheduler interrupted goes on, and on a machine with
// more to do than cores that took longer than the tries for another process.
var inside [64]sync.Mutex

var seed = maphash.MakeSeed()

func queue(path string) *sync.Mutex {
	return &inside[maphash.String(seed, path)%uint64(len(inside))]
}

// locked runs decide on the file's text under its lock and writes what decide
// returns; nil writes nothing.
func locked(dir, file string, decide func([]byte) []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, file)
	m := queue(path)
	m.Lock()
	defer m.Unlock()
	f, err := openLocked(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer closeLocked(f)
	text, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	next := decide(text)
	if next == nil {
		return nil
	}
	// In place: the lock is on this very file. A longer old text is cut after
	// the write, so that whoever reads without the lock finds the new first
	// line complete.
	if _, err := f.WriteAt(next, 0); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Truncate(int64(len(next)))
}
