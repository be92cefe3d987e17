package proc

import (
	"fmt"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Argv is the command line, split the way CommandLineToArgvW splits it: Windows
// keeps one string and leaves the splitting to each program.
func (h *Handle) Argv() ([]string, error) {
	line, err := h.commandLine()
	if err != nil {
		if h.Alive() == No {
			return nil, ErrGone
		}
		return nil, fmt.Errorf("command line of process %d: %w", h.pid, err)
	}
	if line == "" {
		return nil, fmt.Errorf("process %d shows no command line", h.pid)
	}
	argv, err := windows.DecomposeCommandLine(line)
	if err != nil {
		return nil, fmt.Errorf("command line of process %d: %w", h.pid, err)
	}
	return argv, nil
}

func (h *Handle) commandLine() (string, error) {
	line, err := h.commandLineTold()
	if err == nil {
		return line, nil
	}
	if line, perr := h.commandLineOfPEB(); perr == nil {
		return line, nil
	}
	return "", err
}

// commandLineTold asks the kernel, which needs no more than the right to ask
// for a process's times (Windows 8.1; not in Wine 10).
func (h *Handle) commandLineTold() (string, error) {
	// A pointer-aligned buffer: it begins with a UNICODE_STRING into itself.
	buffer := make([]uintptr, 512)
	for {
		size := uint32(len(buffer)) * uint32(unsafe.Sizeof(buffer[0]))
		var need uint32
		err := h.with(func(raw windows.Handle) error {
			return windows.NtQueryInformationProcess(raw, windows.ProcessCommandLineInformation, unsafe.Pointer(&buffer[0]), size, &need)
		})
		if err == nil {
			return stringIn(buffer), nil
		}
		tooSmall := err == windows.STATUS_INFO_LENGTH_MISMATCH || err == windows.STATUS_BUFFER_TOO_SMALL || err == windows.STATUS_BUFFER_OVERFLOW
		if !tooSmall || need <= size || need > 1<<20 {
			return "", err
		}
		buffer = make([]uintptr, need/uint32(unsafe.Sizeof(buffer[0]))+1)
	}
}

// stringIn reads the UNICODE_STRING at the start of a buffer that holds it whole.
func stringIn(buffer []uintptr) string {
	s := (*windows.NTUnicodeString)(unsafe.Pointer(&buffer[0]))
	first := uintptr(unsafe.Pointer(&buffer[0]))
	from := uintptr(unsafe.Pointer(s.Buffer)) - first
	size := uintptr(len(buffer)) * unsafe.Sizeof(buffer[0])
	if s.Length == 0 || from > size || uintptr(s.Length) > size-from {
		return ""
	}
	return string(utf16.Decode(unsafe.Slice(s.Buffer, s.Length/2)))
}

// commandLineOfPEB reads the process's own memory. It needs more rights than
// the kernel's answer and works where that does not exist.
func (h *Handle) commandLineOfPEB() (string, error) {
	line := ""
	err := h.with(func(windows.Handle) error {
		// By pid, which is this process's as long as our handle is open.
		raw, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, uint32(h.pid))
		if err != nil {
			return err
		}
		defer windows.CloseHandle(raw)
		var info windows.PROCESS_BASIC_INFORMATION
		if err := windows.NtQueryInformationProcess(raw, windows.ProcessBasicInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)), nil); err != nil {
			return err
		}
		var peb windows.PEB
		if err := readMemory(raw, unsafe.Pointer(info.PebBaseAddress), unsafe.Pointer(&peb), unsafe.Offsetof(peb.ProcessParameters)+unsafe.Sizeof(peb.ProcessParameters)); err != nil {
			return err
		}
		var params windows.RTL_USER_PROCESS_PARAMETERS
		if err := readMemory(raw, unsafe.Pointer(peb.ProcessParameters), unsafe.Pointer(&params), unsafe.Offsetof(params.CommandLine)+unsafe.Sizeof(params.CommandLine)); err != nil {
			return err
		}
		if params.CommandLine.Length == 0 {
			return nil
		}
		text := make([]uint16, params.CommandLine.Length/2)
		if err := readMemory(raw, unsafe.Pointer(params.CommandLine.Buffer), unsafe.Pointer(&text[0]), uintptr(len(text))*2); err != nil {
			return err
		}
		line = string(utf16.Decode(text))
		return nil
	})
	return line, err
}

func readMemory(raw windows.Handle, from, to unsafe.Pointer, size uintptr) error {
	var n uintptr
	if err := windows.ReadProcessMemory(raw, uintptr(from), (*byte)(to), size, &n); err != nil {
		return err
	}
	if n != size {
		return windows.ERROR_PARTIAL_COPY
	}
	return nil
}
