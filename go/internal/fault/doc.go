// Package fault is how a keeper or a reaper built with the tag `fault` ends or
// stops itself at a named step. Without that tag it is empty.
package fault
