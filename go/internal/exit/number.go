package exit

import "syscall"

// SignalNumber is the signal of a name that SignalName made, 0 for any other.
func SignalNumber(name string) syscall.Signal { return number(name) }
