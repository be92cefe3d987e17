//go:build !fault || !linux

package fault

// Do makes one system call, of the given kind on the given file. A fault build
// can make it fail or keep it waiting, see call_linux.go; here it is the call
// and nothing else.
func Do(_, _ string, call func() error) error { return call() }

// Get is Do for a call that returns something.
func Get[T any](_, _ string, call func() (T, error)) (T, error) { return call() }
