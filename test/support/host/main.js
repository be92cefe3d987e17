// @ts-check
/**
 * A stand-in for Harper: a process whose worker threads load a component and call it, with everything around it that a
 * guard has to live with. It is written from facts about the real one, and is not it.
 *
 *   node --experimental-vm-modules main.js ROOT
 *
 * What it is asked for arrives as lines of JSON on the socket `operations` in its root.
 */
import { fork } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { leaveRoot, rootPath, settingsIn, takeRoot } from './settings.js';
import { Thread } from './thread.js';

const { env } = process;
const generation = /** @type {import('./child-process.js').Generation} */ (env.STANDIN_GENERATION ?? 'main');
const serialised = env.STANDIN_SERIALISED === '1';
const forceExitMs = Number(env.STANDIN_FORCE_EXIT_MS ?? 5000);
const root = rootPath();
const options = {
	root,
	generation,
	dependencies: /** @type {'auto' | 'app'} */ (env.STANDIN_DEPENDENCIES ?? 'auto'),
	forceExitMs,
};

/** A test that died leaves no host behind, not even one that a host has started. */
const [ownerPid, ownerStarted] = (env.STANDIN_OWNER ?? '').split(':');
setInterval(() => {
	let stat = '';
	try {
		stat = readFileSync(`/proc/${ownerPid}/stat`, 'latin1');
	} catch {
		// It has ended.
	}
	if (stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] !== ownerStarted) process.exit(9);
}, 500).unref();

/**
 * @typedef {object} Running
 * @property {Worker} worker
 * @property {number} id
 * @property {Promise<void>} ready
 * @property {Promise<void>} ended
 */

/** @type {Set<Running>} */
const threads = new Set();
/** @type {Running[]} */
const current = [];
/** @type {Map<number, (answer: any) => void>} */
const pending = new Map();
let requests = 0;
/** The most threads there were at once. */
let most = 0;
/** One component at a time, over all threads, where the host serialises. */
let turn = Promise.resolve();
/** @type {Thread | null} */
let own = null;

/** @returns {Running} */
function startThread() {
	const worker = new Worker(new URL('./thread.js', import.meta.url), {
		workerData: { standIn: options },
		execArgv: ['--expose-internals', '--enable-source-maps', '--experimental-vm-modules', '--no-warnings'],
		resourceLimits: { maxOldGenerationSizeMb: 256 },
	});
	/** @type {() => void} */
	let over = () => {};
	/** @type {Running} */
	const running = {
		worker,
		id: worker.threadId,
		ready: new Promise((resolve, reject) => {
			worker.on('error', reject);
			worker.on('exit', (code) => {
				over();
				threads.delete(running);
				reject(new Error(`thread ${running.id} ended (${code}) before it was ready`));
			});
			worker.on('message', (message) => {
				if (message.t === 'ready') resolve();
				else if (message.t === 'answer') {
					pending.get(message.id)?.(message.answer);
					pending.delete(message.id);
				} else if (message.t === 'turn?') {
					const before = serialised ? turn : Promise.resolve();
					const mine = new Promise((done) => {
						over = () => done(undefined);
					});
					if (serialised) turn = before.then(() => mine);
					before.then(() => worker.postMessage({ t: 'turn' }));
				} else if (message.t === 'turn over') over();
			});
		}),
		ended: new Promise((resolve) => worker.on('exit', () => resolve())),
	};
	running.ready.catch((error) => console.error(error));
	threads.add(running);
	most = Math.max(most, threads.size);
	return running;
}

/**
 * @param {{ path: string, headers?: Record<string, string>, thread?: number }} request `thread`: which, in the order of
 *   their start; any by default.
 */
function ask({ path, headers, thread = requests % Math.max(1, current.length) }) {
	const id = ++requests;
	if (own) return own.answer({ path, headers });
	const running = current[thread];
	return new Promise((resolve) => {
		pending.set(id, resolve);
		running.worker.on('exit', () => resolve({ status: 503, headers: {}, body: 'the thread ended' }));
		running.worker.postMessage({ t: 'request', id, path, headers });
	});
}

/** One thread after the other: the old one is told to end and the new one started at once, so both are there for a while. */
async function restartThreads() {
	await evaluateOnMain();
	/** @type {Promise<void>[]} */
	const old = [];
	for (const [i, running] of current.entries()) {
		running.worker.postMessage({ t: 'shutdown' });
		const patience = setTimeout(() => running.worker.terminate(), Math.max(20_000, forceExitMs * 2));
		old.push(running.ended.then(() => clearTimeout(patience)));
		current[i] = startThread();
		await current[i].ready;
	}
	return old;
}

/** A new main process; the old one is gone before the new one has written its pid. */
async function restart(/** @type {any} */ request) {
	await pause(50);
	await Promise.all([...threads].map(({ worker }) => worker.terminate()));
	leaveRoot(root);
	const child = fork(fileURLToPath(import.meta.url), [root], {
		detached: true,
		stdio: 'ignore',
		execArgv: process.execArgv,
		env: {
			...env,
			STANDIN_ABSENT_MS: String(request.absentMs ?? 0),
			...(generation === '51' ? {} : { HARPER_PARENT_PROCESS_PID: String(process.pid) }),
		},
	});
	child.unref();
	process.exit(0);
}

/** Some generations evaluate a component on the main thread too, and then do not call it. */
async function evaluateOnMain() {
	if (generation !== 'main') await new Thread(options).load(false);
}

async function predecessorGone() {
	const pid = Number(env.HARPER_PARENT_PROCESS_PID);
	for (let waited = 0; pid > 0 && waited < 15_000; waited += 20) {
		try {
			process.kill(pid, 0);
		} catch {
			return;
		}
		await pause(20);
	}
}

for (const signal of /** @type {NodeJS.Signals[]} */ (['SIGINT', 'SIGQUIT', 'SIGTERM'])) {
	process.on(signal, () => {
		leaveRoot(root);
		process.exit(0);
	});
}

await predecessorGone();
await pause(Number(env.STANDIN_ABSENT_MS ?? 0));
const other = takeRoot(root);
if (other) {
	console.error(`a host runs here already, pid ${other}`);
	process.exit(4);
}
process.chdir(root);
const { threads: count, http: listen } = settingsIn(root);
if (count.count === 0) {
	own = new Thread(options);
	await own.load(true);
} else {
	await evaluateOnMain();
	for (let i = 0; i < count.count; i++) current.push(startThread());
	await Promise.all(current.map(({ ready }) => ready));
}

const front = http.createServer(async (request, response) => {
	const headers = /** @type {Record<string, string>} */ (request.headers);
	const answer = /** @type {any} */ (await ask({ path: request.url ?? '/', headers }));
	response.writeHead(answer.status, answer.headers).end(answer.body);
});
await new Promise((resolve) => front.listen(listen?.port ?? 0, '127.0.0.1', () => resolve(undefined)));

/** @type {Record<string, (request: any) => any>} */
const operations = {
	status: () => ({
		pid: process.pid,
		port: /** @type {net.AddressInfo} */ (front.address()).port,
		threads: [...threads].map(({ id }) => id),
		current: current.map(({ id }) => id),
		most,
	}),
	get: ask,
	restart_service: async ({ wait }) => {
		const old = await restartThreads();
		if (wait) await Promise.all(old);
	},
	/** A thread that ends for no reason of the host's, as one does that runs out of memory. */
	end_thread: async ({ thread }) => {
		await current[thread].worker.terminate();
		current[thread] = startThread();
		await current[thread].ready;
	},
	restart: (request) => void restart(request),
};

const path = join(root, 'operations');
rmSync(path, { force: true });
net
	.createServer((socket) => {
		let text = '';
		socket.setEncoding('utf8').on('error', () => {});
		socket.on('data', async (data) => {
			text += data;
			if (!text.endsWith('\n')) return;
			const { operation, ...request } = JSON.parse(text);
			text = '';
			try {
				socket.end(JSON.stringify({ value: (await operations[operation](request)) ?? null }));
			} catch (error) {
				socket.end(JSON.stringify({ error: String(/** @type {any} */ (error)?.stack ?? error) }));
			}
		});
	})
	.listen(path);
