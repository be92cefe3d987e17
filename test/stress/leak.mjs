// @ts-check
/**
 * What a host keeps of what it no longer needs: thousands of guard() calls that start, join, fail, are called off, see
 * a crash and end; synchronous calls; workers that join and go. Memory, descriptors and threads of the host must be as
 * flat at the end as they were in the first third, with no zombie, no process and no file more.
 *
 *   node test/stress/leak.mjs [--guards 10000] [--syncs 100000] [--workers 2000]
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import {
	argvOf,
	claimSingleton,
	describeExit,
	guard,
	heldProcess,
	identify,
	readProcess,
	sharedMarks,
} from '../../lib/index.js';
import { nativeFrom } from '../../lib/native.js';
import { zombiesOf } from '../support/processes.js';
import { Sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const { values } = parseArgs({
	options: {
		guards: { type: 'string', default: '10000' },
		syncs: { type: 'string', default: '100000' },
		workers: { type: 'string', default: '2000' },
	},
});
/** The work comes in equal parts with a sample after each; the first third warms up. */
const PARTS = 18;
/** guard() calls of one round. */
const ROUND = 25;
const rounds = Math.ceil(Number(values.guards) / ROUND / PARTS);
const syncs = Math.ceil(Number(values.syncs) / PARTS);
const workers = Math.ceil(Number(values.workers) / PARTS);

setFlagsFromString('--expose-gc');
const collect = /** @type {() => void} */ (runInNewContext('gc'));

const { addon } = nativeFrom();
const box = new Sandbox();
const worker = fileURLToPath(new URL('leak-worker.mjs', import.meta.url));
const counted = { guards: 0, starts: 0, joins: 0, refusals: 0, crashes: 0, stops: 0, syncs: 0, workers: 0 };

/**
 * @param {Record<string, any>} config
 * @returns {Promise<import('../../lib/guard.js').GuardStatus>}
 */
function guarded(config) {
	counted.guards++;
	return guard({ spawn, ...config });
}

/**
 * One name's life, as a host with many threads and reloads lives it.
 * @param {number} number
 */
async function round(number) {
	const name = `name-${number % 5}`;
	const config = box.config([], { restart: { baseMs: 1 }, process: { name } });
	const first = await guarded(config);
	const [state] = first.processes;
	assert.ok(state.started && !state.adopted && !state.error, JSON.stringify(state));
	counted.starts++;
	const watching = [first];
	while (watching.length < ROUND - 4) {
		const joined = await guarded(config);
		assert.ok(joined.processes[0].adopted && joined.processes[0].pid === state.pid, JSON.stringify(joined));
		counted.joins++;
		watching.push(joined);
	}
	for (const { stop } of watching.filter((_, n) => n % 2 === 1)) stop();
	// A file that is not there, a host that allows no spawn, a caller that changed its mind.
	const refused = () => {
		throw new Error('not permitted');
	};
	for (const failing of [
		box.config([], { process: { name: 'absent', binaryPath: box.file('absent') } }),
		{ ...box.config([], { process: { name: 'refused' } }), spawn: refused },
		{ ...box.config([], { process: { name: 'aborted' } }), signal: AbortSignal.abort() },
	]) {
		// A signal that was aborted before rejects, as everywhere in Node.
		const status = await guarded(failing).catch((error) => error);
		assert.ok(status instanceof Error || !status.processes[0].started, JSON.stringify(status));
		counted.refusals++;
	}
	if (number % 4 === 0) {
		const before = state.pid;
		process.kill(/** @type {number} */ (before), 'SIGKILL');
		await until(
			() => state.pid !== before && !state.exited && state.restarts === 1,
			20_000,
			() => `a restart: ${JSON.stringify(state)}`
		);
		counted.crashes++;
	}
	const answer = await first.stopProcess(name, { timeoutMs: 20_000, force: true });
	assert.ok(answer.stopped, JSON.stringify(answer));
	counted.stops++;
	// What still watches is told of the end, and ends with it.
	await until(
		() => watching.every(({ processes }, n) => n % 2 === 1 || processes[0].exited),
		20_000,
		() => `all see the end: ${JSON.stringify(watching.map(({ processes }) => processes[0]))}`
	);
	// A name that ended starts anew.
	const again = await guarded(config);
	assert.ok(again.processes[0].started && !again.processes[0].adopted, JSON.stringify(again));
	counted.starts++;
	assert.ok((await again.stopProcess(name, { timeoutMs: 20_000, force: true })).stopped);
	counted.stops++;
	again.stop();
}

const marks = sharedMarks(box.file('marks'), 'leak');

/**
 * @param {number} pid
 * @param {string} file
 */
function synchronous(pid, file) {
	/** @type {Array<() => unknown>} */
	const calls = [
		() => assert.equal(heldProcess(file)?.pid, pid),
		() => assert.equal(identify(pid, [box.proc]), 'match'),
		() => assert.ok(argvOf(pid)?.includes(box.marker)),
		() => assert.ok(readProcess(pid)),
		() => marks.add('count', 1),
		() => marks.get('count'),
		() => claimSingleton({ dir: box.file('once'), file: 'once', holder: 'leak', staleMs: 1000 }),
		() => describeExit(null, 'SIGKILL'),
		() => identify(2 ** 31, ['none']),
		() => heldProcess(box.file('none')),
	];
	for (let n = 0; n < syncs; n++) calls[n % calls.length]();
	counted.syncs += syncs;
}

/**
 * @param {Record<string, any>} config
 * @param {string} file
 */
async function threads(config, file) {
	let next = counted.workers;
	const end = next + workers;
	const one = async () => {
		while (next < end) {
			const number = next++;
			const thread = new Worker(worker, { workerData: { config, file, number } });
			const exited = once(thread, 'exit');
			if (number % 3 === 2) {
				await once(thread, 'message');
				await thread.terminate();
			}
			const [code] = await exited;
			assert.equal(code, [0, 7, 1][number % 3], `worker ${number}`);
		}
	};
	await Promise.all([one(), one(), one()]);
	counted.workers = end;
}

function holdings() {
	collect();
	const status = readFileSync('/proc/self/status', 'utf8');
	return {
		rssMb: Math.round(Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) / 102.4) / 10,
		heapMb: Math.round(process.memoryUsage().heapUsed / 1e5) / 10,
		threads: Number(/Threads:\s+(\d+)/.exec(status)?.[1]),
		fds: readdirSync('/proc/self/fd').length,
		files: box.files().length,
		processes: box.all().length,
		zombies: zombiesOf(process.pid).length,
	};
}

/** @typedef {ReturnType<typeof holdings>} Holdings */

/**
 * The middle of a value over some samples.
 * @param {Holdings[]} of
 * @param {keyof Holdings} key
 */
function median(of, key) {
	return of.map((one) => one[key]).sort((a, b) => a - b)[of.length >> 1];
}

/** @type {Holdings[]} */
const samples = [];
const began = performance.now();
try {
	const kept = box.config([], { process: { name: 'kept' } });
	const status = await guard({ spawn, ...kept });
	const pid = /** @type {number} */ (status.processes[0].pid);
	const file = join(box.pidDir, 'kept.pid');
	/** Process and keeper, and what that one holds. */
	const standing = box.all().length;
	let number = 0;
	for (let part = 0; part < PARTS; part++) {
		for (let n = 0; n < rounds; n++) await round(number++);
		synchronous(pid, file);
		await threads(kept, file);
		// What has ended is given back within moments; what is not is a leak.
		let seen = holdings();
		await until(
			() => {
				seen = holdings();
				return seen.zombies === 0 && seen.processes <= standing && addon().stats().join() === '1,0';
			},
			20_000,
			() => `nothing is left of part ${part}: ${JSON.stringify(seen)} ${addon().stats()}\n${box.tree()}`
		);
		samples.push(seen);
		console.log(JSON.stringify({ part, ...seen }));
	}
	const third = PARTS / 3;
	const early = samples.slice(third, 2 * third);
	const late = samples.slice(2 * third);
	console.log(JSON.stringify({ seconds: Math.round((performance.now() - began) / 1000), ...counted }));
	for (const [key, allowed] of /** @type {const} */ ([
		['rssMb', 0.05 * median(early, 'rssMb') + 4],
		// Node keeps 400 bytes of every worker that ended; an unsettled session of ours would be ten times that.
		['heapMb', 0.3 + (rounds * ROUND * third * 500 + workers * third * 1000) / 1e6],
		['fds', 1],
		['threads', 2],
		['files', 0],
	])) {
		const [before, after] = [median(early, key), median(late, key)];
		assert.ok(after <= before + allowed, `${key} grew from ${before} to ${after}, and may by ${allowed.toFixed(1)}`);
	}
	assert.ok((await status.stopProcess('kept')).stopped);
	status.stop();
	await until(
		() => box.all().length === 0,
		20_000,
		() => `nothing runs:\n${box.tree()}`
	);
} finally {
	await box.finish();
}
console.log(
	`leak: ${counted.guards} guard(), ${counted.syncs} sync, ${counted.workers} workers on ${process.version}: ok`
);
