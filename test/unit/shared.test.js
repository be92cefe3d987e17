// @ts-check
/**
 * What the threads of a node share: who does the periodic work, and numbers that nobody's change is lost from. With real
 * threads and real processes, since the original's defect here was a race: more than one of eight threads won in 126 of
 * 200 rounds.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { chmodSync, linkSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { after, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { claimSingleton, claimStaleMs, readProcess, selfProcess, sharedMarks } from 'harper-process-guard';
import { proc } from '../support/fixtures.js';
import { until } from '../support/until.js';

const root = mkdtempSync(join(tmpdir(), 'pg-shared-'));
after(() => rmSync(root, { recursive: true, force: true }));
const fresh = () => mkdtempSync(join(root, 'dir-'));

/**
 * Runs the same code in eight threads that meet before each round, and returns what each wrote into its cell.
 *
 * @param {number} rounds
 * @param {string} body What one thread does in one round, from `guard` (the package), `dir`, `index` and `round` to a
 *   number.
 * @param {string} dir
 * @returns {Promise<Int32Array[]>} One array per round.
 */
async function inEightThreads(rounds, body, dir) {
	const threads = 8;
	const gate = new Int32Array(new SharedArrayBuffer(4 * 2));
	const cells = new Int32Array(new SharedArrayBuffer(4 * threads * rounds));
	const source = `
		const { workerData: { dir, index, rounds, threads, gate, cells } } = require('node:worker_threads');
		import('harper-process-guard').then((guard) => {
			guard.describeExit(0, null); // loads the native part, which is not to be raced with
			for (let round = 0; round < rounds; round++) {
				const turn = Atomics.load(gate, 1);
				if (Atomics.add(gate, 0, 1) === threads - 1) {
					Atomics.store(gate, 0, 0);
					Atomics.add(gate, 1, 1);
					Atomics.notify(gate, 1);
				} else while (Atomics.load(gate, 1) === turn) Atomics.wait(gate, 1, turn, 1000);
				cells[round * threads + index] = (() => { ${body} })();
			}
		});`;
	await Promise.all(
		Array.from(
			{ length: threads },
			(_, index) =>
				new Promise((resolve, reject) => {
					const workerData = { dir, index, rounds, threads, gate, cells };
					new Worker(source, { eval: true, workerData }).on('error', reject).on('exit', resolve);
				})
		)
	);
	return Array.from({ length: rounds }, (_, round) => cells.slice(round * threads, (round + 1) * threads));
}

test('of eight threads on a fresh file exactly one wins, in each of 200 rounds', async () => {
	const body = `return guard.claimSingleton({
		dir, file: 'claim.' + round, holder: process.pid + '.' + index, staleMs: 60000 }) ? 1 : 0;`;
	const dir = fresh();
	for (const [round, cells] of (await inEightThreads(200, body, dir)).entries()) {
		assert.equal(
			cells.reduce((sum, won) => sum + won, 0),
			1,
			`round ${round}: ${cells}`
		);
		assert.ok(readFileSync(join(dir, `claim.${round}`), 'utf8').startsWith(`${process.pid}.${cells.indexOf(1)} `));
	}
});

test('the winner stays it, and only when it has been away for its time another takes over', async () => {
	const body = `return guard.claimSingleton({
		dir, file: 'claim', holder: String(index), staleMs: 100, now: 1e12 + round * 10 }) ? 1 : 0;`;
	const winners = (await inEightThreads(50, body, fresh())).map((cells) => [...cells.keys()].filter((i) => cells[i]));
	assert.equal(winners[0].length, 1);
	for (const each of winners) assert.deepEqual(each, winners[0]);
});

/** @param {Record<string, any>} more */
const claim = (more) => claimSingleton({ dir: root, file: 'claim', holder: 'a', staleMs: 100, ...more });

test("with the caller's own clock a claim is stale by that clock, and one from the future is live", () => {
	const dir = fresh();
	assert.equal(claim({ dir, now: 1000 }), true);
	assert.equal(readFileSync(join(dir, 'claim'), 'utf8'), 'a 1000\n');
	for (const [holder, now, won] of /** @type {[string, number, boolean][]} */ ([
		['b', 1099, false],
		['b', 0, false],
		['a', 0, true],
		['b', 99, false],
		['b', 100, true],
		['a', 150, false],
		['a', 200, true],
	])) {
		assert.equal(claim({ dir, holder, now }), won, `${holder} at ${now}`);
	}
});

test('a step of the wall clock, either way, takes nothing over and keeps nothing for ever', async () => {
	for (const step of [-3_600_000, 3_600_000]) {
		const dir = fresh();
		const file = join(dir, 'claim');
		assert.equal(claim({ dir, staleMs: 400 }), true);
		const claimed = performance.now();
		const [first, second] = readFileSync(file, 'utf8').split('\n');
		// Seen from after the step, the stamp is that far off; the boot clock has not moved.
		writeFileSync(file, `a ${Number(first.split(' ')[1]) - step}\n${second}\n`);
		assert.equal(claim({ dir, holder: 'b', staleMs: 400 }), false, `stepped by ${step}`);
		await until(() => claim({ dir, holder: 'b', staleMs: 400 }), 5000, `b takes over after a step of ${step}`);
		assert.ok(performance.now() - claimed >= 395, `${performance.now() - claimed} ms`);
		assert.equal(claim({ dir, staleMs: 400 }), false);
	}
});

test('a holder that was killed is followed after its time, and not before', async () => {
	const dir = fresh();
	const source = `import('harper-process-guard').then(({ claimSingleton }) => {
		process.stdout.write(String(claimSingleton({ dir: ${JSON.stringify(dir)}, file: 'claim', holder: 'dead', staleMs: 700 })));
		setInterval(() => {}, 1000);
	});`;
	const child = spawn(process.execPath, ['-e', source], {
		cwd: import.meta.dirname,
		stdio: ['ignore', 'pipe', 'inherit'],
	});
	const said = String(await new Promise((resolve) => child.stdout.once('data', resolve)));
	const claimed = performance.now();
	assert.equal(said, 'true');
	const ended = new Promise((resolve) => child.once('exit', resolve));
	child.kill('SIGKILL');
	await ended;
	assert.equal(claim({ dir, holder: 'next', staleMs: 700 }), false);
	await until(() => claim({ dir, holder: 'next', staleMs: 700 }), 5000, 'the next takes over');
	const took = performance.now() - claimed;
	assert.ok(took > 500 && took < 3000, `${took} ms`); // the pipe told of the claim some time after it
});

test('where nothing can be written nobody is elected', () => {
	const file = join(root, 'plain');
	writeFileSync(file, '');
	assert.equal(claim({ dir: file }), false);
	assert.equal(claim({ dir: root, file: '.' }), false);
	assert.equal(claim({ holder: '' }), false);
	assert.equal(claim({ holder: 'a\nb' }), false);
	assert.equal(claim({ dir: /** @type {any} */ (null) }), false);
	if (process.getuid?.() !== 0) {
		const closed = fresh();
		chmodSync(closed, 0o500);
		assert.equal(claim({ dir: closed }), false);
	}
});

test('a caller may keep the file itself, and a failure of its own elects nobody', () => {
	const files = /** @type {Map<string, string>} */ (new Map());
	const read = (/** @type {string} */ path) => {
		const text = files.get(path);
		if (text === undefined) throw new Error('no such file');
		return text;
	};
	const write = (/** @type {string} */ path, /** @type {string} */ text) => void files.set(path, text);
	assert.equal(claim({ dir: '/d', read, write, now: 5 }), true);
	assert.deepEqual([...files], [[join('/d', 'claim'), 'a 5\n']]);
	assert.equal(claim({ dir: '/d', holder: 'b', read, write, now: 6 }), false);
	const full = () => {
		throw new Error('no space');
	};
	assert.equal(claim({ dir: '/d', holder: 'b', read, write: full, now: 1000 }), false);
	assert.equal(claimStaleMs(10), 30_000);
});

test('no addition of eight threads is lost, and no reader meets a number that was never there', async () => {
	const dir = fresh();
	const body = `
		const marks = guard.sharedMarks(dir, 'count');
		if (index === 7) { // a reader and writer of something else: 9 and 1000 have different lengths
			marks.set('other', round % 2 ? 9 : 1000);
			for (let i = 0; i < 40; i++) if (![9, 1000].includes(marks.get('other'))) return -1;
			return 1;
		}
		let last = 0;
		for (let i = 0; i < 20; i++) {
			const now = marks.add('key', 1);
			if (!(now > last)) return -1; // undefined, or somebody's addition was taken back
			last = now;
		}
		return 1;`;
	const rounds = await inEightThreads(25, body, dir);
	assert.ok(rounds.every((cells) => cells.every((cell) => cell === 1)));
	assert.equal(sharedMarks(dir, 'count').get('key'), 7 * 20 * 25);
});

test('a mark is a positive number, seen by everybody who names it so', () => {
	const dir = join(fresh(), 'made');
	const [one, two] = [sharedMarks(dir, 'a kind'), sharedMarks(dir, 'a kind')];
	assert.equal(one.get('k'), undefined);
	one.set('k', 1.5);
	assert.equal(two.get('k'), 1.5);
	assert.equal(sharedMarks(dir, 'other').get('k'), undefined);
	assert.deepEqual(readdirSync(dir), ['a_kind-k.mark']);
	assert.equal(readFileSync(join(dir, 'a_kind-k.mark'), 'utf8').trim(), '1.5');
	one.set('../../x  y', 7);
	assert.equal(two.get('../../x  y'), 7);
	assert.deepEqual(readdirSync(dir).sort(), ['a_kind-.._.._x_y.mark', 'a_kind-k.mark']);
	for (const none of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
		one.set('k', none);
		assert.equal(one.get('k'), undefined, `${none}`);
	}
	assert.equal(one.add('k', 2), 2);
	writeFileSync(join(dir, 'a_kind-text.mark'), 'no number');
	assert.equal(one.get('text'), undefined);
});

test("without a directory marks are the caller's own, and where none can be kept there are none", () => {
	const [one, two] = [sharedMarks(undefined, 'kind'), sharedMarks(null, 'kind')];
	one.set('k', 3);
	assert.equal(one.add('k', 2), 5);
	assert.equal(one.get('k'), 5);
	assert.equal(two.get('k'), undefined);
	one.set('k', -1);
	assert.equal(one.get('k'), undefined);
	const file = join(root, 'a file');
	writeFileSync(file, '');
	const none = sharedMarks(file, 'kind');
	none.set('k', 1);
	assert.equal(none.get('k'), undefined);
	assert.equal(none.add('k', 1), undefined);
});

test('a FIFO under the name of a mark or a claim holds nobody up', { skip: process.platform === 'win32' }, () => {
	const dir = fresh();
	execFileSync('mkfifo', [join(dir, 'claim'), join(dir, 'kind-k.mark')]);
	assert.equal(claim({ dir }), false);
	const marks = sharedMarks(dir, 'kind');
	marks.set('k', 1);
	assert.equal(marks.get('k'), undefined);
});

test('a hard link under the name of a mark or a claim is not written through', {
	skip: process.platform === 'win32',
}, () => {
	const dir = fresh();
	const victim = join(dir, 'victim');
	writeFileSync(victim, 'precious\n');
	linkSync(victim, join(dir, 'kind-key.mark'));
	linkSync(victim, join(dir, 'claim'));
	assert.equal(sharedMarks(dir, 'kind').add('key', 1), undefined);
	sharedMarks(dir, 'kind').set('key', 7);
	assert.equal(claimSingleton({ dir, file: 'claim', holder: 'me', staleMs: 1000 }), false);
	assert.equal(readFileSync(victim, 'utf8'), 'precious\n');
});

test('what a process costs is read: memory, threads, CPU time, children', async () => {
	const self = readProcess(process.pid, 'sunos');
	assert.ok(self && self.rssBytes > 10e6 && self.threads > 1 && self.cpuMs > 0, JSON.stringify(self));
	const parent = spawn(proc(), ['marker', `zombie=${join(root, 'zombie')}`], { stdio: 'ignore' });
	const zombie = Number(
		await until(
			() => {
				try {
					return readFileSync(join(root, 'zombie'), 'utf8').trim();
				} catch {
					return '';
				}
			},
			5000,
			'the zombie is there'
		)
	);
	const cost = readProcess(parent.pid);
	assert.ok(cost && cost.rssBytes > 0 && cost.rssBytes < 50e6, JSON.stringify(cost));
	assert.equal(cost.children, 1);
	assert.equal(readProcess(zombie), null, 'a zombie costs nothing');
	const ended = new Promise((resolve) => parent.once('exit', resolve));
	parent.kill('SIGTERM');
	await ended;
	assert.equal(readProcess(parent.pid), null);
	for (const none of [0, -1, 1.5, 2 ** 40, undefined, null, /** @type {any} */ ('1')])
		assert.equal(readProcess(none), null);
	const { rssBytes, threads } = selfProcess();
	assert.ok(rssBytes > 10e6);
	assert.equal(threads, 0);
	assert.deepEqual(selfProcess({ memoryUsage: () => ({ rss: 5 }) }), { rssBytes: 5, threads: 0 });
});
