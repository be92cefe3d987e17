// @ts-check
/**
 * The process table, read from /proc. The tests count here and nowhere else: a book that the product keeps about its
 * own processes is exactly what a lost claim or a second copy would leave intact.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

/**
 * @typedef {object} Process
 * @property {number} pid
 * @property {number} ppid
 * @property {number} pgid
 * @property {number} sid
 * @property {string} state one letter of /proc/<pid>/stat: R S D T Z X
 * @property {number} threads
 * @property {string} started clock ticks since boot, as text: pid and started together name one process
 * @property {string} comm
 * @property {string[]} argv empty for a zombie and for a kernel thread
 */

/**
 * One process, or null when there is none. Everything is read in one go, so a process that ends in the middle is
 * reported as absent and never as half of itself.
 * @param {number} pid
 * @returns {Process | null}
 */
export function processOf(pid) {
	let stat;
	let argv;
	try {
		stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
		argv = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
	} catch {
		return null;
	}
	// comm may hold spaces and brackets of its own: the fields start behind the last ')'.
	const close = stat.lastIndexOf(')');
	const fields = stat.slice(close + 2).split(' ');
	return {
		pid,
		ppid: Number(fields[1]),
		pgid: Number(fields[2]),
		sid: Number(fields[3]),
		state: fields[0],
		threads: Number(fields[17]),
		started: fields[19],
		comm: stat.slice(stat.indexOf('(') + 1, close),
		argv: argv === '' ? [] : argv.replace(/\0$/, '').split('\0'),
	};
}

/** @returns {Process[]} every process this one can see */
export function processes() {
	return readdirSync('/proc')
		.filter((name) => /^\d+$/.test(name))
		.flatMap((name) => processOf(Number(name)) ?? []);
}

/**
 * The living processes that carry a marker as one whole argument. Forked copies of a shell that have not executed yet
 * carry it too, which is right: they would run the same code.
 * @param {string} marker
 * @returns {Process[]}
 */
export function marked(marker) {
	return processes().filter((one) => one.argv.includes(marker) && !ended(one));
}

/**
 * @param {number} ppid
 * @returns {Process[]}
 */
export function childrenOf(ppid) {
	return processes().filter((one) => one.ppid === ppid);
}

/**
 * Children that ended and were never waited for.
 * @param {number} ppid
 * @returns {Process[]}
 */
export function zombiesOf(ppid) {
	return childrenOf(ppid).filter((one) => one.state === 'Z');
}

/**
 * A leader in state Z whose other threads run on is alive; a zombie with no other task is not.
 * @param {Process} one
 */
export function ended(one) {
	return one.state === 'X' || (one.state === 'Z' && one.threads <= 1);
}

/**
 * @param {number} pid
 * @param {string} [started] the start ticks the caller saw, so that a reused number is not taken for the same process
 */
export function alive(pid, started) {
	const one = processOf(pid);
	return one !== null && !ended(one) && (started === undefined || one.started === started);
}

/**
 * The environment of a process, or null when it cannot be read.
 * @param {number} pid
 * @returns {Record<string, string> | null}
 */
export function environmentOf(pid) {
	try {
		const entries = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').filter(Boolean);
		return Object.fromEntries(
			entries.map((entry) => [entry.slice(0, entry.indexOf('=')), entry.slice(entry.indexOf('=') + 1)])
		);
	} catch {
		return null;
	}
}

/**
 * Open descriptors with what they lead to.
 * @param {number} pid
 * @returns {Record<number, string>}
 */
export function descriptorsOf(pid) {
	/** @type {Record<number, string>} */
	const found = {};
	let names;
	try {
		names = readdirSync(`/proc/${pid}/fd`);
	} catch {
		return found;
	}
	for (const name of names) {
		try {
			found[Number(name)] = readlinkSync(`/proc/${pid}/fd/${name}`);
		} catch {
			// Closed between the listing and the look.
		}
	}
	return found;
}

/**
 * Voluntary and involuntary switches of every task of a process.
 * @param {number} pid
 */
export function contextSwitches(pid) {
	let count = 0;
	for (const task of readdirSync(`/proc/${pid}/task`)) {
		const status = readFileSync(`/proc/${pid}/task/${task}/status`, 'utf8');
		for (const [, number] of status.matchAll(/ctxt_switches:\s*(\d+)/g)) count += Number(number);
	}
	return count;
}

/**
 * Memory in KiB as the kernel accounts it.
 * @param {number} pid
 */
export function memoryOf(pid) {
	const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
	const field = (/** @type {string} */ name) => Number(new RegExp(`^${name}:\\s*(\\d+)`, 'm').exec(text)?.[1] ?? NaN);
	return { rss: field('Rss'), pss: field('Pss'), privateDirty: field('Private_Dirty') };
}

/**
 * The processes below some roots, drawn as a tree.
 * @param {(one: Process) => boolean} wanted which processes are drawn; their order is by pid
 * @param {(one: Process) => string} [label]
 * @returns {string}
 */
export function tree(wanted, label = (one) => one.argv.join(' ')) {
	const shown = processes().filter(wanted);
	const inside = new Set(shown.map((one) => one.pid));
	/** @type {string[]} */
	const lines = [];
	const draw = (/** @type {Process} */ one, /** @type {string} */ head, /** @type {string} */ tail) => {
		lines.push(`${head}${one.pid} ${label(one)}${one.state === 'Z' ? ' <zombie>' : ''}`);
		const below = shown.filter((child) => child.ppid === one.pid);
		below.forEach((child, index) => {
			const last = index === below.length - 1;
			draw(child, `${tail}${last ? '└─ ' : '├─ '}`, `${tail}${last ? '   ' : '│  '}`);
		});
	};
	for (const one of shown.filter((top) => !inside.has(top.ppid))) draw(one, '', '');
	return lines.join('\n');
}
