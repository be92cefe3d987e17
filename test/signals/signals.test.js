// @ts-check
/**
 * What a host had of signals before the addon was loaded it still has: the default deaths, its listeners, the ends of
 * its children, wasm traps, the profiler. Each with the addon loaded before the first child of the host, after it, and
 * by a worker alone, since libuv's and Go's handlers are installed in a different order each time.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { storm } from '../support/fixtures.js';
import { rounds } from '../support/scale.js';
import { patience } from '../support/until.js';

const program = fileURLToPath(new URL('host.mjs', import.meta.url));

/** @type {string} */
let scratch;
before(() => {
	scratch = mkdtempSync(join(tmpdir(), 'pg-signals-'));
});
/** @type {import('node:child_process').ChildProcess[]} */
const started = [];
after(async () => {
	// A host that a failed test left: it ignores the gentler signals, or lost them.
	for (const child of started) {
		if (child.exitCode !== null || child.signalCode !== null) continue;
		const exited = once(child, 'exit');
		child.kill('SIGKILL');
		await exited;
	}
	rmSync(scratch, { recursive: true, force: true });
});

/**
 * @param {string[]} args
 * @param {string[]} [execArgv]
 */
function start(args, execArgv = []) {
	const child = spawn(process.execPath, [...execArgv, program, ...args], {
		stdio: ['pipe', 'pipe', 'pipe'],
		// A core file, where the machine writes one, is left here.
		cwd: scratch,
		env: { ...process.env, NODE_TEST_CONTEXT: undefined },
	});
	started.push(child);
	let words = '';
	child.stderr.on('data', (data) => (words += data));
	/** @type {Promise<[number | null, NodeJS.Signals | null]>} */
	const exited = /** @type {any} */ (once(child, 'close'));
	const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
	return {
		child,
		exited,
		/** Its next word. */
		async next() {
			const { value, done } = await lines.next();
			if (done) assert.fail(`the host ended with ${await exited}\n${words}`);
			return JSON.parse(value);
		},
		async endsWell() {
			assert.deepEqual(await exited, [0, null], words);
		},
	};
}

const timeout = 30_000 * patience;

// Three hosts at a time: most of it is waiting.
describe('signals', { concurrency: 3 }, () => {
	for (const [loads, when] of /** @type {const} */ ([
		['before', 'before the first child'],
		['after', 'after the first child'],
		['worker', 'by a worker alone'],
	])) {
		describe(`a host whose addon was loaded ${when}`, () => {
			test('dies of a signal as any process does', { timeout }, async () => {
				const deaths = /** @type {const} */ (['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR2', 'SIGABRT']);
				await Promise.all(
					deaths.map(async (name) => {
						const { child, next, exited } = start([loads, 'die']);
						assert.equal(await next(), 'ready');
						child.kill(name);
						assert.deepEqual(await exited, [null, name]);
					})
				);
			});

			test('hears of SIGURG as often as it was sent: Go sends none of its own', { timeout }, async () => {
				const { child, next, endsWell } = start([loads, 'urgent']);
				assert.equal(await next(), 'ready');
				// One more than was sent would come before the one that is waited for.
				for (let sent = 1; sent <= 40; sent++) {
					child.kill('SIGURG');
					assert.equal(await next(), sent);
					await pause(2);
				}
				child.stdin.end('stop\n');
				assert.deepEqual(await next(), { seen: 40 });
				await endsWell();
			});

			test('keeps the ends of its children, whatever comes and goes of SIGCHLD listeners', { timeout }, async () => {
				const { next, endsWell } = start([loads, 'children']);
				assert.deepEqual(await next(), { rounds: 15, strays: 0 });
				await endsWell();
			});

			test('catches wasm traps in a storm of signals', { timeout }, async () => {
				const { child, next, endsWell } = start([loads, 'wasm']);
				assert.equal(await next(), 'ready');
				const { SIGCHLD, SIGUSR2, SIGWINCH, SIGTERM, SIGURG, SIGHUP } = constants.signals;
				const numbers = [SIGCHLD, SIGUSR2, SIGWINCH, SIGTERM, SIGURG, SIGHUP].map(String);
				const sender = spawn(storm(), [String(child.pid), 'both', String(rounds(2, 10)), '50', ...numbers], {
					stdio: 'ignore',
				});
				assert.deepEqual(await once(sender, 'exit'), [0, null]);
				child.stdin.end('stop\n');
				const { caught } = await next();
				assert.ok(caught >= 200, `only ${caught} traps`);
				await endsWell();
			});

			test('is profiled by --cpu-prof', { timeout }, async () => {
				const dir = mkdtempSync(join(scratch, 'profile-'));
				const { next, endsWell } = start(
					[loads, 'profile'],
					['--cpu-prof', '--cpu-prof-interval=200', `--cpu-prof-dir=${dir}`]
				);
				assert.equal(await next(), 'profiled');
				await endsWell();
				const profiles = readdirSync(dir).map((name) => JSON.parse(readFileSync(join(dir, name), 'utf8')));
				assert.ok(profiles.length >= 1, 'no profile was written');
				// What ran after the addon was loaded, too: V8 samples by SIGPROF, which the mask of a call holds back.
				const hits = profiles
					.flatMap(({ nodes }) => nodes)
					.filter(({ callFrame }) => callFrame.functionName === 'spinning')
					.reduce((sum, { hitCount }) => sum + hitCount, 0);
				assert.ok(hits > 2, `${hits} samples of 600 ms`);
				for (const { samples, startTime, endTime } of profiles) assert.ok(samples.length > 0 && endTime > startTime);
			});
		});
	}
});
