package spec

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"
)

// CommandLine is the one string that Windows keeps. What goes to cmd.exe after
// /d /s /c goes as it is, quotes around it: cmd does not know the quoting of
// everybody else.
func CommandLine(argv []string) string {
	if IsShell(argv) {
		return windows.EscapeArg(argv[0]) + " /d /s /c " + argv[4]
	}
	return windows.ComposeCommandLine(argv)
}

// IsShell says whether argv is cmd.exe with a line of its own.
func IsShell(argv []string) bool {
	if len(argv) != 5 || argv[1] != "/d" || argv[2] != "/s" || argv[3] != "/c" {
		return false
	}
	name := strings.ToLower(filepath.Base(argv[0]))
	return name == "cmd" || name == "cmd.exe"
}
