//go:build !(fault && linux)

package fault

// StopAt stops this process at a named step of a claim. A build that ships has
// no such steps.
func StopAt(string) {}
