// Command runner runs another program behind pipes of its own:
//
//	runner.exe PROGRAM [ARGUMENT...]
//
// Under Wine node.exe cannot use a unix pipe as its standard output ("open
// EBADF"), and that is what a program started from Linux usually gets.
package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
)

func main() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	// Not os.Stdout itself, which would be handed on.
	cmd.Stdout = struct{ io.Writer }{os.Stdout}
	cmd.Stderr = struct{ io.Writer }{os.Stderr}
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(ended.ExitCode())
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(127)
	}
}
