package guard

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"

	"processguard/go/internal/proc"
	"processguard/go/internal/spec"
)

// shellOf is the shell that `shell: true` means.
func shellOf(env map[string]string) string {
	for name, value := range env {
		if strings.EqualFold(name, "ComSpec") && value != "" {
			return value
		}
	}
	return "cmd.exe"
}

// shellWords is the command line of a shell that runs line. cmd.exe is known by
// its name, as child_process does.
func shellWords(shell, line string, hostPath *string) (file string, argv []string) {
	file = lookUp(shell, hostPath)
	argv = []string{shell, "/d", "/s", "/c", `"` + line + `"`}
	if !spec.IsShell(argv) {
		argv = []string{shell, "-c", line}
	}
	return file, argv
}

// lookUp finds a shell that is named without a directory.
func lookUp(shell string, hostPath *string) string {
	if strings.ContainsAny(shell, `\/:`) {
		return shell
	}
	dirs := []string{}
	if dir, err := windows.GetSystemDirectory(); err == nil {
		dirs = append(dirs, dir)
	}
	if hostPath != nil {
		dirs = append(dirs, filepath.SplitList(*hostPath)...)
	}
	for _, dir := range dirs {
		for _, ext := range []string{"", ".com", ".exe"} {
			path := filepath.Join(dir, shell+ext)
			if st, err := os.Stat(path); err == nil && !st.IsDir() && filepath.IsAbs(path) {
				return path
			}
		}
	}
	return shell
}

// recordedArgv is what others will read of the process as its command line.
func recordedArgv(argv []string) []string {
	if !spec.IsShell(argv) {
		return argv
	}
	words, err := windows.DecomposeCommandLine(spec.CommandLine(argv))
	if err != nil {
		return argv
	}
	return words
}

// withoutKeeper is what the exit status of a process means whose keeper is gone.
// The kernel ends a keeper's job with exit code 0, so a 0 of a process that did
// not end before its keeper is the keeper's end and nobody's wish.
func withoutKeeper(f *following, x proc.Exit, known bool) (proc.Exit, bool) {
	if !known || f.rec.Keeper <= 0 || x.Signal != 0 || x.Code != 0 {
		return x, known
	}
	if f.keeper == nil {
		return x, false
	}
	keeper, kok := f.keeper.EndedAt()
	process, pok := f.handle.EndedAt()
	if !kok || !pok {
		return x, false
	}
	if process >= keeper {
		return proc.Exit{Signal: syscall.SIGKILL}, true
	}
	return x, true
}

// root is where the host is when its own directory is gone.
const root = `C:\`
