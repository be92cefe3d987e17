// @ts-check
/**
 * A host: one Node process whose main thread and worker threads each call guard() when the test tells them to. The main
 * thread only passes messages on; every thread, itself included, runs the same small set of operations.
 */
import { spawn as nodeSpawn } from 'node:child_process';
import { openSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { isMainThread, parentPort, threadId, Worker } from 'node:worker_threads';
import { spawnFor } from './spawns.js';

const specifier = process.env.PG_PACKAGE ?? 'harper-process-guard';

/** @typedef {{ id: number, thread: number, op: string, args: any[] }} Request */

/** @type {Map<string, any>} what guard() returned, by the key the test chose */
const results = new Map();
/** @type {Map<string, any[]>} */
const logs = new Map();
/** @type {Map<string, any[]>} */
const spawned = new Map();
/** @type {Map<string, any[]>} every change of a watched state field, in order, with a monotonic time that all processes share */
const changes = new Map();
const controllers = new Map();

let letGo = false;

const now = () => Number(process.hrtime.bigint()) / 1e6;

/** @param {any} state */
function copyOf(state) {
	return state && Object.fromEntries(Object.entries(state).filter(([, value]) => typeof value !== 'function'));
}

/** @param {string} key */
function snapshot(key) {
	const result = results.get(key);
	if (!result) return null;
	return {
		report: [...result.report],
		version: result.version,
		processes: result.processes.map(copyOf),
		reaper: copyOf(result.reaper),
		hasReaper: 'reaper' in result,
		log: logs.get(key),
	};
}

/**
 * Notes every write to the fields a consumer looks at, together with what the state says at that instant: the only way
 * to see that `code` and `signal` were there before `exited` turned true.
 * @param {string} key
 * @param {any} state
 */
function observe(key, state) {
	const list = /** @type {any[]} */ (changes.get(key));
	for (const field of ['pid', 'exited', 'restarts']) {
		let value = state[field];
		Object.defineProperty(state, field, {
			configurable: true,
			enumerable: true,
			get: () => value,
			set(next) {
				if (next !== value)
					list.push({ at: now(), name: state.name, field, value: next, code: state.code, signal: state.signal });
				value = next;
			},
		});
	}
}

/**
 * Counts what arrives on a child's pipes, at the speed the test asked for.
 * @param {any} entry
 * @param {any} child
 * @param {string} reading
 */
function read(entry, child, reading) {
	entry.bytes = { 1: 0, 2: 0 };
	entry.ended = { 1: false, 2: false };
	entry.text = '';
	for (const fd of /** @type {(1 | 2)[]} */ ([1, 2])) {
		const stream = child.stdio?.[fd];
		if (!stream) continue;
		if (reading === 'destroy') {
			stream.destroy();
			continue;
		}
		stream.on('end', () => (entry.ended[fd] = true));
		stream.on('data', (/** @type {Buffer} */ data) => {
			// Node resumes a stream that nobody reads once the child it spawned, here the launcher, has ended. Taking one
			// piece and no more is the only way not to read.
			if (reading === 'none') return stream.pause();
			entry.bytes[fd] += data.length;
			if (entry.text.length < 4096) entry.text += data.toString('latin1');
			if (reading === 'slow') {
				stream.pause();
				setTimeout(() => stream.resume(), 5);
			}
		});
	}
}

/** @type {Record<string, (...args: any[]) => any>} */
const operations = {
	/** Loads the package without calling anything, so that a later race is not one of module loading. */
	load: async () => Object.keys(await import(specifier)),

	/**
	 * @param {string} key
	 * @param {any} config guard()'s options, with `spawn` as a policy and `at` as the wall-clock instant of the call
	 */
	async guard(key, config) {
		const { guard } = await import(specifier);
		const { spawn: policy, at, reading, verify, observed = true, abort, logger, ...options } = config;
		const log = (/** @type {string} */ level) => (/** @type {string} */ line) => {
			if (logger === 'throws') throw new Error('the logger is broken');
			logs.get(key)?.push({ level, line: String(line), at: now() });
		};
		logs.set(key, []);
		spawned.set(key, []);
		changes.set(key, []);
		const inner = spawnFor(policy);
		options.spawn = (/** @type {string} */ command, /** @type {string[]} */ args, /** @type {any} */ spawnOptions) => {
			const entry = /** @type {any} */ ({
				command,
				args,
				options: { ...spawnOptions, env: spawnOptions?.env && { ...spawnOptions.env } },
				at: now(),
			});
			spawned.get(key)?.push(entry);
			const child = inner(command, args, spawnOptions);
			entry.pid = child?.pid;
			child?.on?.('exit', (/** @type {any} */ code, /** @type {any} */ signal) => (entry.exit = { code, signal }));
			if (reading && child) read(entry, child, reading);
			return child;
		};
		if (logger !== 'none') options.log = { info: log('info'), warn: log('warn'), error: log('error') };
		for (const one of Array.isArray(options.processes) ? options.processes : []) {
			// A descriptor cannot travel in a message: the test names the file and this host opens it.
			const stdio = one?.spawnOptions?.stdio;
			if (Array.isArray(stdio))
				one.spawnOptions.stdio = stdio.map((slot) => (slot?.open ? openSync(slot.open, 'a') : slot));
		}
		if (verify) for (const one of options.processes) one.verify = async () => verify;
		if (abort !== undefined) {
			const controller = new AbortController();
			controllers.set(key, controller);
			options.signal = controller.signal;
			if (abort === 'already') controller.abort(new Error('the caller changed its mind'));
			else if (typeof abort === 'number')
				setTimeout(() => controller.abort(new Error('the caller changed its mind')), abort);
		}
		if (at) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Math.max(0, at - Date.now()));
		const called = now();
		const result = await guard(options);
		const resolved = now();
		results.set(key, result);
		if (observed) for (const state of result.processes) observe(key, state);
		return { ...snapshot(key), tookMs: resolved - called, called, resolved };
	},

	/** Starts a guard() call and answers once it was called, not once it has resolved. */
	guardLater(key, config) {
		operations.guard(key, config).catch(() => {});
		return true;
	},
	state: snapshot,
	changes: (key) => changes.get(key),
	spawned: (key) => spawned.get(key),
	stop: (key) => results.get(key)?.stop(),
	stopProcess: (key, name, options) => results.get(key).stopProcess(name, options),
	abort: (key) => controllers.get(key)?.abort(new Error('the caller changed its mind')),
	/** Any other export, for what is plain data in and out. */
	async invoke(name, ...args) {
		return (await import(specifier))[name](...args);
	},
	/** Only of a fault build: which system call of this process goes wrong from here on, and where those passed are noted. */
	async fault(call, trace) {
		const { sync } = await import(new URL('native.js', pathToFileURL(specifier)).href);
		sync('fault.set', { call, trace });
	},
	now,
	threadId: () => threadId,
	/** With --expose-gc: what this thread does not need is given back, so that its memory can be compared. */
	gc: () => /** @type {any} */ (globalThis).gc?.(),
	/** From here on only the package itself can keep this thread alive. */
	letGo() {
		letGo = true;
		if (isMainThread) setImmediate(() => process.disconnect());
		else parentPort?.unref();
		return true;
	},
	exit: (code) => process.exit(code),
	/** The host's own children, each with a code of its own: their exits must reach the event loop whatever the guard does. */
	children: (program, count) =>
		Promise.all(
			Array.from(
				{ length: count },
				(_, code) =>
					new Promise((resolve, reject) =>
						nodeSpawn(program, ['child', `end=${code}:exit:${code}`], { stdio: 'ignore' })
							.on('exit', resolve)
							.on('error', reject)
					)
			)
		),
	/** A busy thread sees nothing until it is done. */
	block(milliseconds) {
		Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
	},
};

/** @param {Request} request */
async function perform({ id, op, args }) {
	try {
		return { id, value: await operations[op](...args) };
	} catch (error) {
		const { name, message, code, stack } = /** @type {any} */ (error ?? {});
		return { id, error: { name, message: message ?? String(error), code, stack, type: error?.constructor?.name } };
	}
}

if (isMainThread) {
	/** @type {Map<number, Worker>} */
	const workers = new Map();
	const send = (/** @type {any} */ message) => process.connected && process.send?.(message);
	const startWorker = (/** @type {number} */ thread) =>
		new Promise((resolve, reject) => {
			const worker = new Worker(new URL(import.meta.url));
			workers.set(thread, worker);
			worker.on('message', (message) => (message === 'ready' ? resolve(worker.threadId) : send(message)));
			worker.on('error', (error) => {
				reject(error);
				send({ event: 'error', thread, message: error.message, stack: error.stack });
			});
			worker.on('exit', (code) => {
				if (workers.get(thread) === worker) workers.delete(thread);
				send({ event: 'worker-exit', thread, code });
			});
		});
	/** @type {Record<string, (...args: any[]) => any>} */
	const mainOperations = {
		startWorker,
		terminate: (thread) => workers.get(thread)?.terminate(),
		/**
		 * The thread calls guard() and is terminated so many milliseconds later, whatever it is doing then.
		 */
		async guardThenTerminate(thread, key, config, afterMs) {
			const worker = /** @type {Worker} */ (workers.get(thread));
			const called = new Promise((resolve) =>
				worker.on('message', (message) => message?.id === -1 && resolve(undefined))
			);
			worker.postMessage({ id: -1, op: 'guardLater', args: [key, config] });
			await called;
			if (afterMs > 0) await new Promise((resolve) => setTimeout(resolve, afterMs));
			await worker.terminate();
		},
	};
	process.on('message', async (/** @type {Request} */ request) => {
		if (mainOperations[request.op]) {
			try {
				send({ id: request.id, value: await mainOperations[request.op](...request.args) });
			} catch (error) {
				send({ id: request.id, error: { message: String(error) } });
			}
		} else if (request.thread === 0) send(await perform(request));
		else if (workers.has(request.thread)) workers.get(request.thread)?.postMessage(request);
		else send({ id: request.id, error: { message: `thread ${request.thread} does not run` } });
	});
	// A test that died must not leave its hosts behind.
	process.on('disconnect', () => letGo || process.exit(0));
	// Nor must one that died while this was being loaded.
	if (!process.connected) process.exit(0);
	for (const thread of Array.from({ length: Number(process.env.PG_TEST_THREADS ?? 0) }, (_, index) => index + 1))
		await startWorker(thread);
	send({ event: 'ready' });
} else {
	parentPort?.on('message', async (/** @type {Request} */ request) => parentPort?.postMessage(await perform(request)));
	parentPort?.postMessage('ready');
}
