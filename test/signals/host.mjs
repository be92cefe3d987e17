// @ts-check
/**
 * The host of signals.test.js: it calls Go without a pause, and does one more thing.
 *
 *   node test/signals/host.mjs before|after|worker die|urgent|children|wasm|profile
 *
 * before: the addon is loaded before the first child. after: only then, when libuv has its handler for SIGCHLD already.
 * worker: only a worker loads it, while the main thread has children.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { call, sync } from '../../lib/native.js';

const [loads, task] = process.argv.slice(2);
let stopped = false;

/** @param {number} wanted exit code */
async function child(wanted) {
	const [code] = await once(spawn('/bin/sh', ['-c', `exit ${wanted}`], { stdio: 'ignore' }), 'exit');
	if (code !== wanted) throw new Error(`a child that ended with ${wanted} was told to have ended with ${code}`);
}

/** With every first one libuv installs its handler for SIGCHLD, with every last one it takes it away. */
async function childrenOneByOne() {
	while (!stopped) {
		await child(3);
		// Out of the exit event: libuv reads its signal pipe until it is empty, which in a storm it never is.
		await pause(5);
	}
}

/** A name to look for in a profile. */
function spinning() {
	for (const until = performance.now() + 20; performance.now() < until; );
}

/** Goroutines, large answers and short ones: what makes Go preempt, collect and grow stacks. */
async function busy() {
	const large = 'x'.repeat(20_000);
	// Tens of milliseconds in a goroutine: that is when Go asks it to give way.
	const huge = 'x'.repeat(4_000_000);
	for (let n = 0; n < 4; n++) call('sleep', { ms: 60_000 }).catch(() => {});
	while (!stopped) {
		for (let n = 0; n < 20; n++) sync('echo', large);
		await Promise.all([
			call('echo', huge),
			call('echo', huge),
			...Array.from({ length: 20 }, (_, n) => call('echo', n)),
		]);
		await pause(1);
	}
}

/** A load out of bounds is a SIGSEGV that V8's handler turns into an error: Go's handler has to pass it on. */
async function traps() {
	// (module (memory 1) (func (export "f") (result i32) (i32.load (i32.const 70000))))
	const bytes = Uint8Array.from(
		// biome-ignore format: bytes
		[0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 5, 3, 1, 0, 1, 7, 5, 1, 1, 102, 0, 0, 10, 11, 1, 9, 0, 65, 240, 162, 4, 40, 2, 0, 11]
	);
	const { instance } = await WebAssembly.instantiate(bytes);
	const f = /** @type {() => number} */ (instance.exports.f);
	let caught = 0;
	while (!stopped) {
		for (let n = 0; n < 200; n++) {
			try {
				f();
				throw new Error('a load out of bounds answered');
			} catch (error) {
				if (!(error instanceof WebAssembly.RuntimeError)) throw error;
				caught++;
			}
		}
		await pause(1);
	}
	return caught;
}

const say = (/** @type {unknown} */ what) => console.log(JSON.stringify(what));
const told = () => once(createInterface({ input: process.stdin }), 'line');

/** @type {Record<string, () => Promise<void>>} */
const tasks = {
	async die() {
		say('ready');
		await new Promise(() => {});
	},
	async urgent() {
		let seen = 0;
		process.on('SIGURG', () => say(++seen));
		say('ready');
		await told();
		await pause(500);
		say({ seen });
	},
	async children() {
		let seen = 0;
		let strays = 0;
		let registered = false;
		const listener = () => {
			if (registered) seen++;
			else strays++;
		};
		let rounds = 0;
		for (; rounds < 15; rounds++) {
			registered = true;
			process.on('SIGCHLD', listener);
			const before = seen;
			await Promise.all([child(rounds), child(rounds + 100)]);
			while (seen === before) await pause(1);
			process.off('SIGCHLD', listener);
			registered = false;
			await child(rounds + 50);
		}
		say({ rounds, strays });
	},
	async wasm() {
		for (const name of ['SIGUSR2', 'SIGWINCH', 'SIGTERM', 'SIGURG', 'SIGHUP']) process.on(name, () => {});
		say('ready');
		const caught = traps();
		const children = childrenOneByOne();
		await told();
		stopped = true;
		await children;
		say({ caught: await caught });
	},
	async profile() {
		for (let n = 0; n < 30; n++) {
			spinning();
			await child(3);
		}
		say('profiled');
	},
};

if (!isMainThread) {
	sync('ping');
	busy();
	if (task === 'wasm') traps();
	parentPort?.postMessage('busy');
} else if (loads === 'worker') {
	const worker = new Worker(fileURLToPath(import.meta.url), { argv: [loads, task] });
	await once(worker, 'message');
	await child(1);
	await tasks[task]();
	// The end of the last thread that loaded the addon, and the host goes on.
	await worker.terminate();
	await child(2);
	process.exit(0);
} else {
	if (loads === 'after') await child(1);
	sync('ping');
	if (loads === 'before') await child(1);
	const work = busy();
	await tasks[task]();
	stopped = true;
	await work;
	process.exit(0);
}
