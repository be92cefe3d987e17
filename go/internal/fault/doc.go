// Package fault is what goes wrong on purpose in a build with the tag `fault`: a
// keeper or a reaper ends or stops itself at a named step, one of its system calls or
// a host's fails or has to wait, or it has a planted bug that a test has to find.
// Without that tag nothing does.
package fault
