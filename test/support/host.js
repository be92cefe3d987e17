// @ts-check
/** Starts and drives hosts: real Node processes with worker threads, as `host-process.js` describes. */
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { alive, childrenOf, processOf } from './processes.js';
import { patience, until } from './until.js';

const program = fileURLToPath(new URL('./host-process.js', import.meta.url));

/**
 * @typedef {object} HostOptions
 * @property {number} [threads] worker threads beside the main one; thread 0 is the main thread
 * @property {string} [node] the Node binary; the one that runs the test by default
 * @property {string[]} [under] a command that runs the host, e.g. unshare with its flags
 * @property {boolean} [detached] a process group and session of its own
 * @property {Record<string, string | undefined>} [env] beside the test's own environment
 * @property {string} [cwd]
 * @property {string[]} [execArgv]
 * @property {number} [uid]
 * @property {number} [gid]
 */

/**
 * Waits until the test program has written its line. It runs from the moment guard() answers, which is before its first
 * instruction: killed there it would be missing in the count of starts for good, and its handlers would not be there yet.
 * One that never comes to write is no failure here; the test says what it expects.
 * @param {string[]} args
 * @param {number} pid
 */
async function firstLine(args, pid) {
	const file = args.find((word) => word.startsWith('starts='))?.slice('starts='.length);
	if (!file) return;
	const written = () => {
		try {
			return readFileSync(file, 'utf8')
				.split('\n')
				.some((line) => line.split(' ')[0] === String(pid));
		} catch {
			return false;
		}
	};
	await until(written, 1_000, 'its first line').catch(() => {});
}

export class Host {
	#next = 1;
	/** @type {Map<number, { thread: number, resolve: (value: any) => void, reject: (error: Error) => void }>} */
	#pending = new Map();
	output = '';
	/** @type {{ code: number | null, signal: NodeJS.Signals | null } | null} */
	exit = null;
	/** The host's own pid, also when it runs under another command. */
	pid = 0;
	started = '';

	/** @param {HostOptions} options */
	constructor(options) {
		const {
			threads = 0,
			node = process.execPath,
			under = [],
			detached = false,
			env = {},
			cwd,
			execArgv = [],
			uid,
			gid,
		} = options;
		const [command, ...args] = [...under, node, ...execArgv, program];
		this.threads = threads;
		this.child = spawn(command, args, {
			cwd,
			detached,
			uid,
			gid,
			// NODE_TEST_CONTEXT would make a host report to the test runner instead of working.
			env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env, PG_TEST_THREADS: String(threads) },
			stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
			serialization: 'advanced',
		});
		for (const stream of [this.child.stdout, this.child.stderr])
			stream?.on('data', (data) => (this.output = (this.output + data).slice(-65536)));
		/** @type {Promise<{ code: number | null, signal: NodeJS.Signals | null }>} */
		this.exited = new Promise((resolve) => {
			this.child.once('exit', (code, signal) => {
				this.exit = { code, signal };
				for (const { reject } of this.#pending.values())
					reject(new Error(`the host ended (${code ?? signal}) before it answered\n${this.output}`));
				this.#pending.clear();
				resolve(this.exit);
			});
		});
		/** @type {Promise<void>} */
		this.ready = new Promise((resolve, reject) => {
			this.child.once('error', reject);
			this.exited.then(({ code, signal }) =>
				reject(new Error(`the host ended (${code ?? signal}) before it was ready\n${this.output}`))
			);
			this.child.on('message', (/** @type {any} */ message) => {
				if (message.event === 'ready') {
					const direct = /** @type {number} */ (this.child.pid);
					// A command that only prepares and then executes the host has become the host.
					this.pid =
						under.length > 0 && processOf(direct)?.argv[0] === under[0] ? (childrenOf(direct)[0]?.pid ?? 0) : direct;
					this.started = processOf(this.pid)?.started ?? '';
					resolve();
				} else if (message.event === 'worker-exit') this.#abandon(message.thread);
				else if (message.event === 'error') this.output += `thread ${message.thread}: ${message.stack}\n`;
				else this.#settle(message);
			});
		});
		this.ready.catch(() => {});
	}

	/**
	 * What an ended thread was asked stays without an answer.
	 * @param {number} thread
	 */
	#abandon(thread) {
		for (const [id, waiter] of this.#pending)
			if (waiter.thread === thread) this.#settle({ id, error: { message: `thread ${thread} does not run any more` } });
	}

	/** @param {any} message */
	#settle({ id, value, error }) {
		const waiter = this.#pending.get(id);
		this.#pending.delete(id);
		if (error)
			waiter?.reject(
				Object.assign(new Error(error.message), {
					name: error.name ?? 'Error',
					code: error.code,
					remoteStack: error.stack,
				})
			);
		else waiter?.resolve(value);
	}

	/**
	 * Runs one operation in one thread of the host.
	 * @param {number} thread
	 * @param {string} op
	 * @param {...any} args
	 * @returns {Promise<any>}
	 */
	call(thread, op, ...args) {
		if (this.exit)
			return Promise.reject(new Error(`the host has ended (${this.exit.code ?? this.exit.signal})\n${this.output}`));
		const id = this.#next++;
		return new Promise((resolve, reject) => {
			this.#pending.set(id, { thread, resolve, reject });
			this.child.send({ id, thread, op, args }, (error) => error && this.#settle({ id, error }));
		});
	}

	/**
	 * guard() in one thread. No test has a reason to wait for the 47 s after which a claim is given up, so an answer that
	 * took a good part of that is a failure of its own, however right it is.
	 * @param {number} thread
	 * @param {any} config
	 * @param {string} [key]
	 */
	async guard(thread, config, key = 'main') {
		const result = await this.call(thread, 'guard', key, config);
		if (result.tookMs > 20_000 * patience)
			throw new Error(`guard() in thread ${thread} took ${result.tookMs} ms: ${JSON.stringify(result, null, 1)}`);
		for (const [index, state] of (result.processes ?? []).entries())
			if (state.started && !state.exited) await firstLine(config.processes?.[index]?.args ?? [], state.pid);
		return result;
	}

	/**
	 * guard() in all worker threads at one instant; in the main thread when the host has no others.
	 * @param {any} config
	 * @param {{ at?: number, key?: string }} [options]
	 * @returns {Promise<any[]>}
	 */
	guardAll(config, { at = Date.now() + 30, key = 'main' } = {}) {
		return Promise.all(this.threadNumbers().map((thread) => this.guard(thread, { ...config, at }, key)));
	}

	threadNumbers() {
		return this.threads === 0 ? [0] : Array.from({ length: this.threads }, (_, index) => index + 1);
	}

	/** Loads the package in every thread. */
	async load() {
		await Promise.all([0, ...this.threadNumbers()].map((thread) => this.call(thread, 'load')));
		return this;
	}

	/**
	 * @param {number} thread
	 * @param {string} [key]
	 */
	state(thread, key = 'main') {
		return this.call(thread, 'state', key);
	}

	/**
	 * Waits until one process state of one thread fulfils something, and returns it.
	 * @param {number} thread
	 * @param {(state: any) => any} predicate
	 * @param {number} deadlineMs
	 * @param {string} description
	 * @param {{ key?: string, index?: number }} [which]
	 */
	async stateUntil(thread, predicate, deadlineMs, description, { key = 'main', index = 0 } = {}) {
		/** @type {any} */
		let last;
		return until(
			async () => {
				last = (await this.state(thread, key))?.processes[index];
				return last && predicate(last) ? last : null;
			},
			deadlineMs,
			() => `thread ${thread}: ${description}; its state is ${JSON.stringify(last)}`
		);
	}

	/** @param {number} thread */
	async terminate(thread) {
		await this.call(0, 'terminate', thread);
	}

	/** @param {number} thread */
	startWorker(thread) {
		return this.call(0, 'startWorker', thread);
	}

	/** @param {NodeJS.Signals} [signal] */
	async kill(signal = 'SIGKILL') {
		if (this.exit === null) {
			// Under another command the host is not our child; ending the command would not always end the host.
			if (this.pid && alive(this.pid, this.started)) process.kill(this.pid, signal);
			else this.child.kill(signal);
		}
		return this.exited;
	}
}

/**
 * @param {HostOptions} [options]
 * @returns {Promise<Host>}
 */
export async function startHost(options = {}) {
	const host = new Host(options);
	await host.ready;
	return host;
}

/**
 * Why a host cannot run as the user nobody here, or false when it can: only root can become somebody else, and nobody
 * must reach the checkout and the Node that runs the tests.
 * @returns {string | false}
 */
export function whyNotNobody() {
	if (process.getuid?.() !== 0) return 'needs root to become somebody else';
	const { status, error } = spawnSync(process.execPath, ['--check', program], { ...nobody, stdio: 'ignore' });
	return status === 0
		? false
		: `the user nobody cannot run ${process.execPath} on ${program}: ${error?.message ?? 'not readable'}`;
}

export const nobody = { uid: 65534, gid: 65534 };

/** A command that makes what it runs pid 1 of a pid namespace of its own, with a /proc to match. */
export const asPidOne = () => [
	'unshare',
	...(process.getuid?.() === 0 ? [] : ['--map-root-user']),
	'--fork',
	'--pid',
	'--mount-proc',
	'--kill-child',
];

/** Why no mount or namespace of the tests' own can be had here, or false when it can. */
export const whyNoMounts = () =>
	process.getuid?.() !== 0
		? 'needs root to mount'
		: spawnSync('unshare', ['--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt'], { stdio: 'ignore' }).status !== 0 &&
			'may not mount here';

/**
 * A command that runs a shell script in mounts of its own, and then what it is asked to run.
 * @param {string} script
 * @param {string[]} [more] further namespaces, as unshare's flags
 */
export const inMounts = (script, more = []) => [
	'unshare',
	'--mount',
	'--propagation=private',
	...more,
	'sh',
	'-ec',
	`${script}; exec "$@"`,
	'sh',
];
