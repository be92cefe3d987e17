package proc

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// stat holds the four fields of /proc/<pid>/stat that decide anything.
type stat struct {
	state   State
	ppid    int
	started uint64 // clock ticks since boot, as the reader's time namespace shows them
	// exit is the wait status. It proves nothing unless it is not 0 or
	// mayReadExit said yes: the kernel writes 0 to whoever may not see it.
	exit int
}

var errStat = errors.New("not a /proc/<pid>/stat line")

// The numbers of the fields in proc_pid_stat(5), which counts from 1. Field 2
// is the command's name and the last ')' ends it.
const (
	fieldState   = 3
	fieldPPID    = 4
	fieldStarted = 22
	fieldExit    = 52
)

// parseStat reads a line such as
//
//	7541 (a) b) S 1 7541 7541 0 -1 4194304 102 … 26147 … 0
//
// by counting blanks behind the *last* ')': a process may call itself
// "x) Z 1 (", and a split of the whole line would believe it.
func parseStat(line []byte) (stat, error) {
	var s stat
	end := bytes.LastIndexByte(line, ')')
	if end < 0 || end+2 > len(line) || line[end+1] != ' ' {
		return s, errStat
	}
	rest := bytes.TrimRight(line[end+2:], "\n")
	for field := fieldState; ; field++ {
		word, after, more := bytes.Cut(rest, []byte{' '})
		if len(word) == 0 {
			return s, errStat
		}
		var err error
		switch field {
		case fieldState:
			if len(word) != 1 {
				return s, errStat
			}
			s.state = State(word[0])
		case fieldPPID:
			s.ppid, err = strconv.Atoi(string(word))
		case fieldStarted:
			s.started, err = strconv.ParseUint(string(word), 10, 64)
		case fieldExit:
			s.exit, err = strconv.Atoi(string(word))
			return s, err
		}
		if err != nil {
			return s, errStat
		}
		if !more {
			// Kernels before 3.5 end before the exit code.
			if field < fieldStarted {
				return s, errStat
			}
			return s, nil
		}
		rest = after
	}
}

// splitArgv takes /proc/<pid>/cmdline apart. Every word ends with a NUL, so
// the last one is dropped; further ones are empty arguments and stay. A
// process that rewrote its title may have left no NUL at all. Nothing at all
// is nil: a kernel thread, a zombie, or a process in the middle of its exec.
func splitArgv(cmdline []byte) []string {
	if len(cmdline) == 0 {
		return nil
	}
	if cmdline[len(cmdline)-1] == 0 {
		cmdline = cmdline[:len(cmdline)-1]
	}
	words := make([]string, 0, bytes.Count(cmdline, []byte{0})+1)
	// One copy for all words instead of one each.
	all := string(cmdline)
	for {
		i := strings.IndexByte(all, 0)
		if i < 0 {
			return append(words, all)
		}
		words = append(words, all[:i])
		all = all[i+1:]
	}
}
