// @ts-check
/** The host that storm.mjs storms: all its threads call Go and spawn; one of them is replaced again and again. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { call, session, sync } from '../../lib/native.js';

/** Shared by all threads: children, bad, calls, syncs, running. */
const CHILDREN = 0;
const BAD = 1;
const CALLS = 2;
const SYNCS = 3;
const STOP = 4;
const counts = new Int32Array(isMainThread ? new SharedArrayBuffer(20) : workerData);
const stopped = () => Atomics.load(counts, STOP) === 1;

/** Children one after the other, each with an exit code that must come back. */
async function spawning() {
	for (let n = 1; !stopped(); n++) {
		const wanted = n % 200;
		const child = spawn('/bin/sh', ['-c', `exit ${wanted}`], { stdio: 'ignore' });
		const [code] = await once(child, 'exit');
		Atomics.add(counts, CHILDREN, 1);
		if (code !== wanted) Atomics.add(counts, BAD, 1);
		// Out of the exit event first: libuv reads its signal pipe until it is empty, and a spawn
		// in there takes longer than the next SIGCHLD. The loop then never came round (55 s seen).
		await new Promise((resolve) => setTimeout(resolve, 5));
	}
}

/** Small and large synchronous calls: the large ones grow the goroutine's stack and the heap. */
async function synchronous() {
	const large = JSON.stringify(Array.from({ length: 200 }, (_, n) => ({ n, deep: [[[[n]]]] })));
	while (!stopped()) {
		for (let i = 0; i < 50; i++) sync('ping');
		sync('echo', JSON.parse(large));
		Atomics.add(counts, SYNCS, 51);
		// A pause: on a machine of two cores, threads that never rest keep a new worker from starting.
		await new Promise((resolve) => setTimeout(resolve, 2));
	}
}

/** Calls, timers and sessions: fifty goroutines with small stacks at a time. */
async function asynchronous() {
	while (!stopped()) {
		const echo = session('echo', { session: true }, () => {});
		await Promise.all([
			...Array.from({ length: 50 }, (_, n) => (n % 5 ? call('echo', { n }) : call('sleep', { ms: 1 }))),
			echo.settled,
		]);
		for (let n = 0; n < 20; n++) echo.send(n);
		echo.drop();
		Atomics.add(counts, CALLS, 51);
		await new Promise((resolve) => setTimeout(resolve, 2));
	}
}

if (isMainThread) {
	const file = fileURLToPath(import.meta.url);
	/** @type {Record<string, number>} */
	const signals = {};
	// Before the listeners: Go mends the handlers that it finds when it is loaded, and
	// only the masks protect from the later ones.
	sync('ping');
	for (const name of ['SIGUSR2', 'SIGWINCH', 'SIGTERM', 'SIGURG', 'SIGHUP']) {
		signals[name] = 0;
		process.on(name, () => signals[name]++);
	}
	const work = Promise.all([spawning(), spawning(), synchronous(), asynchronous()]);
	const workers = Array.from(
		{ length: Number(process.argv[2]) },
		() => new Worker(file, { workerData: counts.buffer })
	);
	await Promise.all(workers.map((worker) => once(worker, 'message')));
	let replaced = 0;
	const churn = (async () => {
		while (!stopped()) {
			const worker = new Worker(file, { workerData: counts.buffer });
			await once(worker, 'message');
			await worker.terminate();
			replaced++;
		}
	})();
	console.log('ready');
	await once(createInterface({ input: process.stdin }), 'line');
	Atomics.store(counts, STOP, 1);
	await Promise.all([work, churn, ...workers.map((worker) => once(worker, 'exit'))]);
	console.log(
		JSON.stringify({
			version: process.version,
			children: counts[CHILDREN],
			bad: counts[BAD],
			calls: counts[CALLS],
			syncs: counts[SYNCS],
			workers: replaced,
			signals,
		})
	);
} else {
	sync('ping');
	parentPort?.postMessage('ready');
	parentPort?.unref();
	await Promise.all([spawning(), synchronous(), asynchronous()]);
}
