// Package keep is the keeper: the parent of one guarded process.
//
// It runs in three modes, each one process. launch is what the host spawns: it
// makes the life file, starts the keeper in a session of its own and ends. keep
// stays: it starts the process, restarts its crashes and writes down how it
// ended. hold becomes the process: it waits until the record names it, then
// execs.
//
// machine.go is the state table and is pure; keep.go performs its actions.
package keep
