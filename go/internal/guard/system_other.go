//go:build !windows

package guard

import "processguard/go/internal/proc"

// shellOf is the shell that `shell: true` means.
func shellOf(map[string]string) string { return "/bin/sh" }

// shellWords is the command line of a shell that runs line.
func shellWords(shell, line string, _ *string) (file string, argv []string) {
	return shell, []string{shell, "-c", line}
}

// recordedArgv is what others will read of the process as its command line.
func recordedArgv(argv []string) []string { return argv }

// withoutKeeper is what the exit status of a process means whose keeper is gone.
func withoutKeeper(_ *following, x proc.Exit, known bool) (proc.Exit, bool) { return x, known }

// root is where the host is when its own directory is gone.
const root = "/"
