// @ts-check
/**
 * Workers come and go in the middle of everything: asynchronous calls pending, inside
 * a synchronous call, flooding a session, process.exit with calls pending, and the
 * loop draining by itself. An addon without NODELETE crashes here when only workers
 * load it; one that calls a dying worker's function aborts; one that forgets a worker
 * grows.
 *
 *   node test/stress/churn.mjs [--workers 2000] [--at-once 6] [--main] [--control]
 *
 * --main loads the addon in the main thread too. --control leaves the addon out, to
 * see what Node itself costs.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Worker } from 'node:worker_threads';
import { nativeFrom } from '../../lib/native.js';

const { values } = parseArgs({
	options: {
		workers: { type: 'string', default: '2000' },
		'at-once': { type: 'string', default: '6' },
		main: { type: 'boolean', default: false },
		control: { type: 'boolean', default: false },
	},
});
const total = Number(values.workers);
const worker = fileURLToPath(new URL('./churn-worker.mjs', import.meta.url));

/** How a worker's life ends, in turn. `kill` says that the main thread ends it. */
const lives = [
	{ life: 'pending', kill: true },
	{ life: 'sync', kill: true },
	{ life: 'session', kill: true },
	{ life: 'exit', kill: false },
	{ life: 'drain', kill: false },
	{ life: 'immediate', kill: true },
];

const native = nativeFrom(process.env.PG_TEST_PREBUILDS);
if (values.main && !values.control) assert.equal(native.sync('ping'), 'pong');

/** @param {number} number */
async function live(number) {
	const { life, kill } = lives[number % lives.length];
	const thread = new Worker(worker, { workerData: { life, control: values.control, number } });
	/** @type {Promise<[number]>} */
	const exited = /** @type {any} */ (once(thread, 'exit'));
	if (kill) {
		if (life !== 'immediate') await once(thread, 'message');
		// Spread over the first milliseconds, so that every step of a call is hit.
		await new Promise((resolve) => setTimeout(resolve, number % 7));
		await thread.terminate();
	}
	const [code] = await exited;
	// terminate() makes it 1, or 0 when it came before the worker ran anything.
	if (kill) assert.ok(code === 0 || code === 1, `worker ${number} (${life}) ended with ${code}`);
	else assert.equal(code, life === 'exit' ? 7 : 0, `worker ${number} (${life})`);
}

/** What the process holds now. */
function holdings() {
	const status = readFileSync('/proc/self/status', 'utf8');
	return {
		rssMb: Math.round(Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) / 1024),
		threads: Number(/Threads:\s+(\d+)/.exec(status)?.[1]),
		fds: readdirSync('/proc/self/fd').length,
	};
}

let next = 0;
/** @type {Array<ReturnType<typeof holdings> & { after: number }>} */
const samples = [];
const began = process.hrtime.bigint();
for (const part of [0.125, 0.25, 0.5, 0.75, 1]) {
	const until = Math.round(total * part);
	await Promise.all(
		Array.from({ length: Number(values['at-once']) }, async () => {
			while (next < until) await live(next++);
		})
	);
	// A worker's stack is unmapped a moment after its exit event.
	await new Promise((resolve) => setTimeout(resolve, 100));
	const sample = { after: until, ...holdings() };
	samples.push(sample);
	console.log(JSON.stringify(sample));
}
const seconds = Number(process.hrtime.bigint() - began) / 1e9;

const [, early] = samples;
const late = samples[samples.length - 1];
assert.ok(late.fds <= early.fds + 2, `descriptors grew from ${early.fds} to ${late.fds}`);
assert.ok(late.threads <= early.threads + 3, `threads grew from ${early.threads} to ${late.threads}`);
assert.ok(late.rssMb <= early.rssMb * 1.2 + 10, `memory grew from ${early.rssMb} to ${late.rssMb} MB`);
if (!values.control) {
	// Loading it here is the first time in the main thread without --main. Give the last parcels a turn.
	const [threads, parcels] = native.addon().stats();
	assert.deepEqual({ threads, parcels }, { threads: 1, parcels: 0 }, 'ended workers left something in the addon');
	assert.equal(native.sync('ping'), 'pong');
}
console.log(
	`churn: ${total} workers in ${seconds.toFixed(1)} s on ${process.version}${values.main ? ', addon in main too' : ''}: ok`
);
