package record

import "processguard/go/internal/lock"

// replace goes through the directory handle: a path would be looked up again
// and could by then lead into another directory.
func replace(d *lock.Dir, tmp, dst string) error { return d.Rename(tmp, dst) }
