// @ts-check
/** Which errors the kernel can give to which call, and what else can happen around it. */

/** What an operator must find in a report, a log line or state.error after a call failed with this. */
export const words = /** @type {Record<string, RegExp>} */ ({
	EACCES: /permission denied|EACCES/i,
	EAGAIN: /resource temporarily unavailable|EAGAIN/i,
	EINTR: /interrupted system call|EINTR/i,
	EIO: /input\/output error|EIO/i,
	EMFILE: /too many open files|EMFILE/i,
	ENFILE: /too many open files|ENFILE/i,
	ENOLCK: /no locks available|ENOLCK/i,
	ENOMEM: /cannot allocate memory|ENOMEM/i,
	ENOSPC: /no space left|ENOSPC/i,
	EPERM: /operation not permitted|EPERM/i,
	EROFS: /read-only file system|EROFS/i,
});

/** What nothing may fail of: the call comes about, only later, or is asked for once more. */
export const harmless = ['EINTR', 'delay', 'stop', 'stop-after'];

const around = ['delay', 'stop', 'stop-after'];
const opened = ['EACCES', 'EMFILE', 'ENFILE', 'ENOMEM', 'EIO', 'EINTR'];
const made = ['ENOSPC', 'EROFS'];

/**
 * EINTR is left out where Go's own library asks again before anybody sees it.
 * @type {Record<string, (kind: string, role: string) => string[]>}
 */
const errors = {
	open: (kind) => {
		if (kind === 'log') return ['EACCES', 'EMFILE', 'ENFILE', 'ENOMEM', 'EIO', ...made];
		if (kind === 'hostfile') return ['EACCES', 'EMFILE', 'ENFILE', 'ENOMEM', 'EIO'];
		// Where a policy hides these, it does so for good, and nobody there has a start time in any record.
		if (kind === 'proc-boot_id' || kind === 'proc-timens_offsets') return opened.filter((errno) => errno !== 'EACCES');
		return ['tmp', 'claiming', 'life'].includes(kind) ? [...opened, ...made] : opened;
	},
	mkdir: () => ['EACCES', 'EIO', 'ENOMEM', ...made],
	realpath: () => ['EACCES', 'EIO', 'ENOMEM'],
	readlink: () => ['EACCES', 'ENOMEM'],
	lstat: () => ['EACCES', 'EIO', 'ENOMEM', 'EINTR'],
	stat: (kind) => (kind === 'pid' ? ['ENOMEM'] : ['EACCES', 'EIO', 'ENOMEM', 'EINTR']),
	fstat: (kind) => (kind === 'pidfd' ? ['ENOMEM'] : kind === 'hostfile' ? ['EIO'] : ['EIO', 'ENOMEM', 'EINTR']),
	fstatfs: () => ['ENOMEM'],
	read: (kind, role) => {
		if (kind === 'inotify') return [];
		if (kind === 'socket') return role === 'hold' ? ['EINTR'] : [];
		return kind.startsWith('proc-') ? ['EIO', 'ENOMEM', 'EINTR'] : ['EIO', 'ENOMEM'];
	},
	write: (kind) => (kind === 'socket' ? ['ENOMEM'] : ['ENOSPC', 'EIO']),
	close: () => ['ENOSPC', 'EIO'],
	truncate: () => ['EIO'],
	fallocate: () => ['ENOSPC', 'EIO', 'EROFS', 'EINTR'],
	rename: () => ['ENOSPC', 'EROFS', 'EACCES', 'EIO', 'ENOMEM', 'EINTR'],
	unlink: () => ['EROFS', 'EACCES', 'EIO', 'ENOMEM', 'EINTR'],
	flock: () => ['ENOLCK', 'ENOMEM', 'EIO', 'EINTR'],
	unlock: () => ['EIO', 'EINTR'],
	setlk: () => ['ENOLCK', 'ENOMEM', 'EIO', 'EINTR'],
	getlk: () => ['ENOLCK', 'ENOMEM', 'EIO', 'EINTR'],
	pidfd_open: () => ['EMFILE', 'ENFILE', 'ENOMEM', 'EPERM'],
	dup: () => ['EMFILE'],
	// One descriptor needs no memory of the kernel's.
	poll: () => ['EINTR'],
	// Go's poller takes it up.
	wait: () => ['ENOSPC', 'ENOMEM'],
	probe: () => ['EPERM'],
	// A keeper that may not signal its process has nobody to tell; who asked is told that it still runs.
	signal: (_, role) => (role === 'keep' ? [] : ['EPERM']),
	info: () => ['EPERM', 'ENOMEM'],
	waitid: () => ['EINTR'],
	fork: () => ['EAGAIN', 'ENOMEM', 'EMFILE', 'ENFILE', 'EACCES'],
	socketpair: () => ['EMFILE', 'ENFILE', 'ENOMEM'],
	pipe: () => ['EMFILE', 'ENFILE'],
	inotify_init: () => ['EMFILE', 'ENFILE', 'ENOMEM'],
	inotify_add: () => ['ENOSPC', 'ENOMEM', 'EACCES'],
	chdir: () => ['EACCES', 'EIO', 'ENOMEM', 'EINTR'],
	exec: () => ['EACCES', 'EIO', 'ENOMEM', 'EMFILE', 'EAGAIN'],
	getfd: () => [],
};

/**
 * What can go wrong with a call.
 * @param {{ role: string, op: string, kind: string }} point
 */
export function applicable({ role, op, kind }) {
	const list = errors[op];
	if (!list) throw new Error(`test/faults/calls.js says nothing of ${op}`);
	return [...list(kind, role), ...around];
}
