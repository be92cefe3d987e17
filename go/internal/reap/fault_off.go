//go:build !fault || !linux

package reap

// faultPoint marks a step that the tests interrupt.
func faultPoint(string) {}
