package reap

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"processguard/go/internal/fault"
	"processguard/go/internal/logfile"
)

// Log is where a reaper tells what it does. The file is opened for each line:
// it may be rotated or its directory made later, and a reaper runs for months.
// What cannot be written is dropped, because a full disk must not keep a
// process from being stopped.
type Log struct {
	path string // "" for none
}

func (l Log) say(format string, args ...any) {
	if l.path == "" {
		return
	}
	f, err := fault.Get("open", "log", func() (*os.File, error) { return logfile.Open(l.path) })
	if err != nil {
		return
	}
	defer f.Close()
	// Names and errors come from outside; one of them must not end the line.
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) { // those of a terminal beyond ASCII too
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	// One write, so that lines of two reapers do not run into each other.
	line := fmt.Sprintf("%s [reaper %d] %s\n", now, os.Getpid(), text)
	_, _ = fault.Get("write", "log", func() (int, error) { return f.WriteString(line) })
}
