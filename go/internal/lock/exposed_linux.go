package lock

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Exposed says who beside us could take the directory or the files in it away,
// and with them the exclusion; "" when nobody can. given is the path that the
// caller wrote: a link in it can be bent by whoever owns it.
//
// It is told and not refused. No file of another user is believed or written
// to, so nothing beyond the guard's own promise is at stake, and a node that
// ran in such a directory for years must come up after an upgrade.
func (d *Dir) Exposed(given string) string {
	if abs, err := filepath.Abs(given); err == nil && abs != d.path {
		if who := exposed(abs); who != "" {
			return who
		}
	}
	return exposed(d.path)
}

func exposed(path string) string {
	for at := path; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if unix.Lstat(at, &st) == nil {
			if who := exposes(&st, at == path); who != "" {
				return fmt.Sprintf("%s %s", at, who)
			}
		}
		if at == filepath.Dir(at) {
			return ""
		}
	}
}

// exposes says who can change what lies in a directory. In one with the sticky
// bit nobody removes what is ours; pidDir itself gets new files all the time,
// which somebody else may put there first.
func exposes(st *unix.Stat_t, itself bool) string {
	uid := int(st.Uid)
	writable := st.Mode&unix.S_IFMT == unix.S_IFDIR && (itself || st.Mode&unix.S_ISVTX == 0)
	switch {
	case Foreign(uid):
		return fmt.Sprintf("belongs to uid %d", uid)
	case writable && st.Mode&unix.S_IWOTH != 0:
		return "can be written by everybody"
	case writable && st.Mode&unix.S_IWGRP != 0 && int(st.Gid) != os.Getegid() && (itself || uid != 0):
		// With umask 002 a user's own group can write, which is that user; and
		// root knows to whom it gives a directory above.
		return fmt.Sprintf("can be written by group %d", st.Gid)
	}
	return ""
}
