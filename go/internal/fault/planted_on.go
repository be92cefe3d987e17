//go:build fault

package fault

import "os"

// plantEnv names the bug that this process is to have.
const plantEnv = "PG_PLANT"

// Planted says whether a bug was put in on purpose: what looks for violations
// is worth nothing until it has found one.
//
//   - no-gate: the gate of a name lets everybody in at once
func Planted(bug string) bool { return os.Getenv(plantEnv) == bug }
