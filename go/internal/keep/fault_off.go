//go:build !fault || !linux

package keep

// faultPoint is where a test can kill, stop or end this process; see
// fault_on.go. It costs nothing in a build that ships.
func faultPoint(string) {}

// FaultPoints lists the points of this build: none.
func FaultPoints() []string { return nil }

func withoutFaults(environ []string) []string { return environ }
