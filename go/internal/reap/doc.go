// Package reap is the reaper: it sleeps until its host is gone and then stops
// what the host left behind, unless another host takes it over in time.
//
// machine.go holds the two tables and is pure. run.go performs them: it sleeps
// on a kernel handle of the host, waits for a replacement on a directory's
// events, and stops every record at the same time. launch_linux.go is the
// short-lived parent that puts the reaper out of the host's session.
//
// Only processes are signalled, never their groups. A group outlives its
// leader, its number comes back, and a keeper whose process moved into a group
// of its own making cannot be told from a stranger's; the children of a guarded
// process end with it as they do on any other stop.
package reap
