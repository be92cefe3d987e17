package guard

import (
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// Error is an error with the stable code that JavaScript sees as error.code.
type Error struct {
	code string
	text string
	err  error
}

func (e *Error) Error() string { return e.text }

// Code is the stable machine-readable name of what went wrong.
func (e *Error) Code() string { return e.code }

func (e *Error) Unwrap() error { return e.err }

// Errorf makes an Error; %w works as in fmt.Errorf.
func Errorf(code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{code: code, text: err.Error(), err: err}
}

func coded(code, text string) error { return &Error{code: code, text: text} }

// checkName refuses a name whose files would lie beside the directory.
func checkName(fn, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) || filepath.Base(name) != name {
		return Errorf("PG_ARGUMENT", "%s: %q is no plain file name", fn, name)
	}
	return nil
}

func unknown(fn string) error {
	return coded("PG_UNKNOWN_FUNCTION", "libguard has no function "+fn+": the addon and the JavaScript are of different versions; reinstall the package")
}

// PanicError is a panic that was caught. An uncaught one in any goroutine ends
// the whole host, with every thread and every guarded process's owner in it.
type PanicError struct {
	What  string
	Value any
	Stack string
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("%s panicked: %v; the host goes on, and this is a bug of process guard", e.What, e.Value)
}

// Code makes it a coded error.
func (e *PanicError) Code() string { return "PG_PANIC" }

// protect runs f and returns its panic as an error. Every goroutine of this
// package begins with it.
func protect(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{What: what, Value: r, Stack: string(debug.Stack())}
		}
	}()
	return f()
}
