// @ts-check
/**
 * The `child_process` that the host puts in the place of Node's for a component's own code, in three generations. Each is
 * written from what is known of its behaviour, defects included: a guard has to live with them.
 *
 *   51    the file holds the pid; whatever answers under it is handed back
 *   52    the file holds pid and version; another version is sent SIGTERM and replaced at once
 *   main  the file holds an identity too, and only that very process is handed back
 */
import * as real from 'node:child_process';
import { EventEmitter } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

/** @typedef {'51' | '52' | 'main'} Generation */

export const generations = /** @type {const} */ (['51', '52', 'main']);

/** How often a handed-back process is looked at. */
const POLL_MS = 1000;

/** @param {number} pid */
function answers(pid) {
	try {
		process.kill(pid, 0); // a zombie answers, and so does the id of a thread
		return true;
	} catch {
		return false;
	}
}

/**
 * What is handed back for a process that runs already: a pid, a way to signal it, an end noticed by looking, and nothing
 * else; no stdio, no spawnargs, no events but `exit`.
 */
class ExistingProcess extends EventEmitter {
	/** @param {number} pid */
	constructor(pid) {
		super();
		this.pid = pid;
		this.timer = setInterval(() => {
			if (answers(pid)) return;
			clearInterval(this.timer);
			this.emit('exit', null, null);
		}, POLL_MS);
	}

	/** @param {NodeJS.Signals | number} [signal] */
	kill(signal) {
		try {
			return process.kill(this.pid, signal);
		} catch {
			return false;
		}
	}

	/** It is the looking that holds the thread, so this ends it, and with it `exit`. */
	unref() {
		clearInterval(this.timer);
		return this;
	}
}

/** @param {number} pid */
function identityOf(pid) {
	try {
		const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
		const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
		return `linux:${boot}:${pid}:${stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]}`;
	} catch {
		return '';
	}
}

/**
 * @param {{ generation: Generation, root: string, allowed: readonly string[] }} host
 */
export function constrainedChildProcess({ generation, root, allowed }) {
	const directory = join(root, 'pids');

	/**
	 * @param {string} command
	 * @param {any} options
	 * @param {boolean} free
	 */
	function check(command, options, free) {
		if (!free && !allowed.includes(String(command).split(' ')[0])) {
			throw new Error(`Command ${command} is not allowed; allowed are: ${allowed.join(', ')}`);
		}
		if (typeof options?.name !== 'string' || options.name === '') throw new Error('A process needs options.name');
	}

	/**
	 * @param {string} file
	 * @param {number | undefined} version
	 * @returns {number} The pid of what holds the name; 0: nobody, and the file is gone or may be overwritten.
	 */
	function holder(file, version) {
		let text = '';
		try {
			text = readFileSync(file, 'utf8');
		} catch {
			return 0;
		}
		const [first, second, third] = text.split('\n');
		const pid = Number.parseInt(first, 10);
		if (!pid) return 0; // being started, or so the newcomer thinks
		const same = generation !== 'main' || third === identityOf(pid);
		if (!answers(pid) || !same) {
			rmSync(file, { force: true });
			return 0;
		}
		if (generation !== '51' && version !== undefined && Number.parseInt(second, 10) !== version) {
			process.kill(pid, 'SIGTERM'); // and nobody waits for its end
			rmSync(file, { force: true });
			return 0;
		}
		return pid;
	}

	/**
	 * @param {(command: any, args: any, options: any, callback?: any) => any} start
	 * @param {boolean} free Whether any command goes.
	 */
	const constrained =
		(start, free = false) =>
		(
			/** @type {string} */ command,
			/** @type {any} */ args,
			/** @type {any} */ options,
			/** @type {any} */ callback = undefined
		) => {
			check(command, options, free);
			mkdirSync(directory, { recursive: true });
			const { name, version } = options;
			const file = join(directory, `${name}.pid`);
			const held = holder(file, version);
			if (held) return new ExistingProcess(held);
			try {
				closeSync(openSync(file, 'wx'));
			} catch {
				// A file without a pid in it counts as ours.
			}
			/** @type {any} */
			let child;
			try {
				child = start(command, args, options, callback);
			} finally {
				if (!child?.pid) rmSync(file, { force: true });
			}
			if (!child.pid) return child;
			const lines = { 51: [child.pid], 52: [child.pid, version], main: [child.pid, version, identityOf(child.pid)] }[
				generation
			];
			writeFileSync(file, lines.map((line) => line ?? '').join('\n'));
			// By its path, whoever's it is by then; and never, once the thread that spawned it has ended.
			child.on('exit', () => rmSync(file, { force: true }));
			return child;
		};

	return {
		spawn: constrained(real.spawn),
		execFile: constrained(real.execFile),
		fork: constrained(real.fork, true),
		exec: constrained(/** @type {any} */ (real.exec)),
		execSync() {
			throw new Error('execSync is not allowed');
		},
	};
}
