//go:build !fault || !unix

package reap

// faultPoint marks a step that the tests interrupt.
func faultPoint(string) {}
