// Command process is what the Windows tests guard, and their look into the
// process table. Tests copy it under a name of their own, so that its copies can
// be counted.
//
//	process wait                 runs until it is ended
//	process exit CODE [AFTER_MS] ends by itself
//	process tree                 has a child that waits, too
//	process say TEXT             writes TEXT to both outputs, and what it reads to the first
//	process list NAME            the pids of all processes with this executable name
//	process alive PID            yes or no
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

func main() {
	args := append(os.Args[1:], "")
	switch args[0] {
	case "wait":
		forever()
	case "exit":
		code, _ := strconv.Atoi(args[1])
		if len(args) > 3 {
			ms, _ := strconv.Atoi(args[2])
			time.Sleep(time.Duration(ms) * time.Millisecond)
		}
		os.Exit(code)
	case "tree":
		child := exec.Command(os.Args[0], "wait")
		if err := child.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_ = child.Wait()
	case "say":
		fmt.Fprintf(os.Stdout, "out %s\n", args[1])
		fmt.Fprintf(os.Stderr, "err %s\n", args[1])
		_, _ = io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintln(os.Stdout, "end of input")
		forever()
	case "list":
		list(args[1])
	case "alive":
		pid, _ := strconv.Atoi(args[1])
		fmt.Println(alive(uint32(pid)))
	default:
		os.Exit(2)
	}
}

// forever is no select{}: with nothing else to do Go ends that as a deadlock.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func list(name string) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), name) && int(entry.ProcessID) != os.Getpid() && alive(entry.ProcessID) {
			fmt.Println(entry.ProcessID)
		}
	}
}

// alive tells a process that runs from one that somebody only has a handle of.
func alive(pid uint32) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, pid)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h)
	event, err := windows.WaitForSingleObject(h, 0)
	return err == nil && event == uint32(windows.WAIT_TIMEOUT)
}
