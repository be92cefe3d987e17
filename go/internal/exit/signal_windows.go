package exit

import "syscall"

// names are the signals libuv invents on Windows.
var names = map[syscall.Signal]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 8: "SIGFPE", 9: "SIGKILL",
	11: "SIGSEGV", 15: "SIGTERM", 21: "SIGBREAK", 22: "SIGABRT", 28: "SIGWINCH",
}

func name(sig syscall.Signal) string { return names[sig] }

func numberOf(signal string) syscall.Signal {
	for sig, name := range names {
		if name == signal {
			return sig
		}
	}
	return 0
}
