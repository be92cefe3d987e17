// @ts-check
/**
 * Watches the process table for all walks at once. A process that a fault stopped is told to go on a while later; whoever
 * registered hears of it first.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';

/**
 * @typedef {object} Seen
 * @property {number} pid
 * @property {number} ppid
 * @property {string} state
 * @property {string} started
 * @property {string[]} argv
 */

/**
 * @typedef {object} Ours
 * @property {string} dir what the command lines of a walk name
 * @property {() => number[]} hosts
 * @property {Promise<void>} [goOn] before that nothing that is stopped is told to go on
 * @property {number} most how many guarded processes were seen at once
 * @property {(argv: string[], pid: number) => boolean} guarded
 */

const stoppedFor = 120;

/** @type {Map<string, string[]>} command lines do not change but by an exec, which changes the name */
let known = new Map();

/** @returns {Seen[]} */
function table() {
	/** @type {typeof known} */
	const next = new Map();
	/** @type {Seen[]} */
	const seen = [];
	for (const name of readdirSync('/proc')) {
		const pid = Number(name);
		if (!pid) continue;
		try {
			const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
			const close = stat.lastIndexOf(')');
			const fields = stat.slice(close + 2).split(' ');
			const key = `${pid} ${fields[19]} ${stat.slice(0, close)}`;
			const argv = known.get(key) ?? readFileSync(`/proc/${pid}/cmdline`, 'utf8').replace(/\0$/, '').split('\0');
			next.set(key, argv);
			seen.push({ pid, ppid: Number(fields[1]), state: fields[0], started: fields[19], argv });
		} catch {
			// It ended meanwhile.
		}
	}
	known = next;
	return seen;
}

export class Watcher {
	/** @type {Set<Ours>} */
	#walks = new Set();
	/** @type {Set<string>} */
	#waiting = new Set();
	#running = false;

	/** @param {Ours} walk */
	add(walk) {
		this.#walks.add(walk);
		if (!this.#running) void this.#run();
	}

	/** @param {Ours} walk */
	remove(walk) {
		this.#walks.delete(walk);
	}

	async #run() {
		this.#running = true;
		while (this.#walks.size > 0) {
			const seen = table();
			for (const walk of this.#walks) this.#look(walk, seen);
			await pause(20);
		}
		this.#running = false;
	}

	/**
	 * @param {Ours} walk
	 * @param {Seen[]} seen
	 */
	#look(walk, seen) {
		const live = seen.filter((one) => one.state !== 'Z' && one.state !== 'X');
		const named = new Set(
			live.filter(({ argv }) => argv.some((word) => word.includes(walk.dir))).map(({ pid }) => pid)
		);
		walk.most = Math.max(walk.most, live.filter(({ argv, pid }) => walk.guarded(argv, pid)).length);
		for (const one of live) {
			if (one.state !== 'T' || !(named.has(one.pid) || named.has(one.ppid) || walk.hosts().includes(one.pid))) continue;
			const key = `${one.pid} ${one.started}`;
			if (this.#waiting.has(key)) continue;
			this.#waiting.add(key);
			void Promise.all([pause(stoppedFor), walk.goOn]).then(() => {
				this.#waiting.delete(key);
				try {
					process.kill(one.pid, 'SIGCONT');
				} catch {
					// It ended meanwhile.
				}
			});
		}
	}
}
