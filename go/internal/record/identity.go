package record

import (
	"strings"

	"processguard/go/internal/proc"
)

// Want is what identifies the process that the record names.
func (r *Record) Want() proc.Want {
	return proc.Want{Started: r.Started, Inode: r.Inode, Argv: r.Argv, Keeper: r.Keeper, KeeperArgv: r.KeeperArgv}
}

// OtherBoot says whether the machine was rebooted since the record was written:
// then nothing it names can be alive.
func (r *Record) OtherBoot() bool {
	boot := r.Boot
	if boot == "" {
		boot, _, _ = strings.Cut(r.Started, ":")
	}
	now := proc.BootID()
	return boot != "" && now != "" && boot != now
}

// OtherNS says whether the pids in the record are another namespace's.
func (r *Record) OtherNS() bool {
	return r.NS != 0 && proc.NS() != 0 && r.NS != proc.NS() && !r.OtherBoot()
}

// Record is the entry in the form of a record, as far as it tells.
func (l Life) Record() *Record {
	return &Record{
		PID: l.PID, Version: l.Version, Argv: l.Argv, Host: l.Host, HostStarted: l.HostStart, Keeper: l.Keeper, KeeperArgv: l.KeeperArgv,
		Started: l.Started, Inode: l.Inode, NS: l.NS, Restarts: l.Restarts, UID: -1,
	}
}
