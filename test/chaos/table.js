// @ts-check
/** The process table, looked at over and over while everything happens: what is there, what came and went. */
import { readdirSync, readFileSync } from 'node:fs';
import { ended, processOf } from '../support/processes.js';

/** @typedef {import('../support/processes.js').Process} Process */

/**
 * @typedef {'guarded' | 'keeper' | 'held' | 'launcher' | 'reaper' | 'host' | 'stranger' | 'other'} Role
 * @typedef {Process & { role: Role, key: string, direct: number }} Seen `key` is name and version of a guarded process,
 *   `direct` the host that started it itself, without a keeper, or 0
 */

/** Marks a guarded process on its command line; `proc` takes the word and writes nothing. */
export const versionWord = 'note=/dev/null:';

/** How long a process of somebody else is looked at before it is passed over: until then it may become one of ours. */
const foreignAfterMs = 5_000;

export class Table {
	/** @type {Map<number, number>} pids of others, and pids not yet known to be theirs with the time they were first seen */
	#foreign = new Map();
	/** @type {Map<number, Seen>} what belongs to this run, as last seen */
	seen = new Map();
	/** @type {Map<string, number>} zombies of hosts by pid and start, with when they were first seen */
	#zombies = new Map();
	scans = 0;
	/** Generations of guarded processes seen, by key. */
	generations = 0;

	/**
	 * @param {object} options
	 * @param {string} options.dir everything of this run names it on its command line, or is a child of what does
	 * @param {string} options.program
	 * @param {string} options.marker
	 * @param {(line: string) => void} options.log
	 */
	constructor({ dir, program, marker, log }) {
		this.dir = dir;
		this.program = program;
		this.marker = marker;
		this.log = log;
		/** @type {Set<number>} */
		this.strangers = new Set();
		/** @type {Set<number>} */
		this.hosts = new Set();
	}

	/**
	 * @param {Process} one
	 * @returns {Role | null} null: not of this run
	 */
	#role(one) {
		const { argv } = one;
		if (this.strangers.has(one.pid)) return 'stranger';
		if (this.hosts.has(one.pid)) return 'host';
		if (argv[0] === this.program && argv[1] === this.marker) return 'guarded';
		const named = argv.some((word) => word.includes(this.dir));
		if (named && argv[1] === 'keep') return 'keeper';
		if (named && argv[1] === 'run') return 'reaper';
		if (named && argv.includes('launch')) return 'launcher';
		const parent = this.seen.get(one.ppid);
		if (parent?.role === 'keeper' || parent?.role === 'held') return 'held';
		if (named || parent?.role === 'launcher') return 'launcher';
		return parent ? 'other' : null;
	}

	/** @param {number} now */
	scan(now) {
		this.scans++;
		/** @type {Map<number, Seen>} */
		const found = new Map();
		const names = readdirSync('/proc');
		const present = new Set();
		for (const name of names) {
			const pid = Number(name);
			if (!(pid > 0)) continue;
			present.add(pid);
			const since = this.#foreign.get(pid);
			if (since !== undefined && now - since > foreignAfterMs) continue;
			const one = processOf(pid);
			if (!one || pid === process.pid) continue;
			// An ended one has no command line any more; what it was is known from before.
			const before = this.seen.get(pid);
			const role = ended(one) && before?.started === one.started ? before.role : this.#role(one);
			if (!role) {
				// What a keeper holds has no word of its own that says whose it is, until it is the guarded process.
				if (since === undefined && !one.argv[0]?.endsWith('/keeper')) this.#foreign.set(pid, now);
				continue;
			}
			this.#foreign.delete(pid);
			const word = role === 'guarded' ? one.argv.find((each) => each.startsWith(versionWord)) : undefined;
			const same = before?.started === one.started ? before : undefined;
			found.set(pid, {
				...one,
				role,
				key: word?.slice(versionWord.length) ?? same?.key ?? '',
				direct: same?.direct || (this.hosts.has(one.ppid) ? one.ppid : 0),
			});
		}
		for (const pid of this.#foreign.keys()) if (!present.has(pid)) this.#foreign.delete(pid);
		for (const [pid, was] of this.seen) {
			const is = found.get(pid);
			if (is?.started !== was.started) this.log(`- ${was.role} ${pid} ${was.key}`);
		}
		for (const [pid, is] of found) {
			const was = this.seen.get(pid);
			if (was?.started === is.started && was.role === is.role) {
				if (was.state !== is.state && (was.state === 'T' || is.state === 'T' || is.state === 'Z'))
					this.log(`= ${is.role} ${pid} ${is.key} state ${was.state} -> ${is.state}`);
				continue;
			}
			this.log(
				`+ ${is.role} ${pid} ${is.key} ppid ${is.ppid}${is.role === 'host' ? '' : ` ${is.argv.slice(1, 6).join(' ').slice(0, 200)}`}`
			);
			if (is.role === 'guarded') this.generations++;
		}
		this.seen = found;
	}

	/**
	 * @param {Role} role
	 * @returns {Seen[]} those that live, by pid
	 */
	of(role) {
		return [...this.seen.values()].filter((one) => one.role === role && !ended(one)).sort((a, b) => a.pid - b.pid);
	}

	/**
	 * Two of one version at one instant. The table is not read at one instant: whoever is still there on a second look was
	 * there at the first look of every other.
	 * @returns {Seen[]}
	 */
	doubles() {
		/** @type {Map<string, Seen[]>} */
		const groups = new Map();
		for (const one of this.of('guarded')) groups.set(one.key, [...(groups.get(one.key) ?? []), one]);
		for (const group of groups.values()) {
			if (group.length < 2) continue;
			const still = group.filter((one) => {
				const again = processOf(one.pid);
				return again && again.started === one.started && !ended(again) && again.argv[0] === this.program;
			});
			if (still.length > 1) return still;
		}
		return [];
	}

	/**
	 * Ended children that a living host has not waited for, with the time since when.
	 * @param {number} now
	 */
	zombies(now) {
		const found = [...this.seen.values()].filter(
			(one) => one.state === 'Z' && this.seen.get(one.ppid)?.role === 'host' && ended(one)
		);
		const names = new Set(found.map((one) => `${one.pid}:${one.started}`));
		for (const name of this.#zombies.keys()) if (!names.has(name)) this.#zombies.delete(name);
		return found.map((one) => {
			const name = `${one.pid}:${one.started}`;
			const since = this.#zombies.get(name) ?? now;
			this.#zombies.set(name, since);
			return { ...one, since };
		});
	}

	/** Everything of this run in one line each. */
	text() {
		return [...this.seen.values()]
			.sort((a, b) => a.pid - b.pid)
			.map(
				(one) =>
					`${one.pid} (of ${one.ppid}) ${one.state} ${one.role} ${one.key} ${one.argv.slice(1).join(' ').slice(0, 240)}`
			)
			.join('\n');
	}
}

/** @param {string} file */
export function textOf(file) {
	try {
		return readFileSync(file, 'utf8');
	} catch {
		return '';
	}
}
