//go:build fault && linux

package fault

import (
	"os"
	"sync"
	"syscall"
)

// stopEnv names the step at which this process is to stop.
const stopEnv = "PG_STOP"

var stopped sync.Once

// StopAt stops this process the first time it comes to a named step, until
// somebody continues it. The whole process stops, as by SIGSTOP from outside:
// what it holds then, it goes on holding.
//
//   - claim-decided: the record was read and the answer is known, nothing is
//     written yet
func StopAt(step string) {
	if os.Getenv(stopEnv) == step {
		stopped.Do(func() { Here(syscall.SIGSTOP) })
	}
}
