//go:build !fault

package fault

// Planted says whether a bug was put in on purpose. A build that ships has none.
func Planted(string) bool { return false }
