// @ts-check
/** The instruments are tested before anything is measured with them. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { proc } from './fixtures.js';
import { asPidOne } from './host.js';
import { alive, childrenOf, descriptorsOf, ended, environmentOf, processOf, tree, zombiesOf } from './processes.js';
import { Sandbox, sandbox } from './sandbox.js';
import { never, until } from './until.js';

test('the process table sees a process by its marker, once, and no longer after its end', async (t) => {
	const box = sandbox(t);
	const child = spawn(box.proc, [box.marker, `starts=${box.file('starts')}`], {
		stdio: 'ignore',
		env: { ONLY: 'this' },
	});
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	const one = box.only();
	assert.deepEqual([one.pid, one.ppid, one.argv[1]], [child.pid, process.pid, box.marker]);
	assert.deepEqual(environmentOf(one.pid), { ONLY: 'this' });
	assert.match(descriptorsOf(one.pid)[0], /null/);
	assert.ok(childrenOf(process.pid).some((each) => each.pid === child.pid));
	assert.match(box.tree(), new RegExp(`${child.pid} `));
	process.kill(one.pid, 'SIGKILL');
	await once(child, 'exit');
	assert.equal(alive(one.pid, one.started), false);
	assert.equal(box.running().length, 0);
});

test('a process that reuses nothing but the number is another process', () => {
	const self = /** @type {import('./processes.js').Process} */ (processOf(process.pid));
	assert.equal(alive(process.pid, self.started), true);
	assert.equal(alive(process.pid, '1'), false);
	assert.match(
		tree((one) => one.pid === process.pid),
		new RegExp(`^${process.pid} `)
	);
});

test('zombies are seen, and a leader in state Z with living threads is none', async (t) => {
	const box = sandbox(t);
	const parent = spawn(box.proc, [box.marker, `zombie=${box.file('zombie')}`], { stdio: 'ignore' });
	const pid = Number(await until(() => box.lines('zombie')[0], 5_000, 'the zombie is there'));
	assert.deepEqual(
		zombiesOf(/** @type {number} */ (parent.pid)).map((one) => one.pid),
		[pid]
	);
	assert.equal(alive(pid), false);
	const headless = spawn(box.proc, [box.marker, 'leader-exits'], { stdio: 'ignore' });
	await until(() => processOf(/** @type {number} */ (headless.pid))?.state === 'Z', 5_000, 'the leader has ended');
	const seen = /** @type {import('./processes.js').Process} */ (processOf(/** @type {number} */ (headless.pid)));
	assert.equal(ended(seen), false);
	for (const child of [parent, headless]) {
		child.kill('SIGTERM');
		await once(child, 'exit');
	}
});

test('the test program counts each stop signal with its sender and ends as told', async (t) => {
	const box = sandbox(t);
	const child = spawn(
		proc(),
		[
			box.marker,
			`signals=${box.file('signals')}`,
			'term=exit:7',
			`starts=${box.file('starts')}`,
			`dump=${box.file('dump')}`,
		],
		{ stdio: 'ignore' }
	);
	const dump = await box.dump('dump');
	assert.equal(dump.ppid, process.pid);
	assert.equal(dump.cwd, process.cwd());
	child.kill('SIGUSR1');
	await until(() => box.lines('signals').length === 1, 5_000, 'SIGUSR1 is counted');
	child.kill('SIGTERM');
	assert.deepEqual(await once(child, 'exit'), [7, null]);
	assert.deepEqual(box.lines('signals'), [`SIGUSR1 ${process.pid}`, `SIGTERM ${process.pid}`]);
});

test('the end of a sandbox finds what was left running, ends it and complains', async () => {
	const box = new Sandbox();
	const child = spawn(box.proc, [box.marker, 'term=ignore', `starts=${box.file('starts')}`], { stdio: 'ignore' });
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	await assert.rejects(box.finish(), /left running after SIGTERM/);
	assert.equal(alive(/** @type {number} */ (child.pid)), false);
});

test('waiting ends at its deadline and says what was missing', async () => {
	await assert.rejects(
		until(() => false, 20, 'pigs fly'),
		/not within \d+ ms: pigs fly/
	);
	assert.equal(await until(() => 42, 1_000, 'an answer'), 42);
	await never(() => false, 20, 'nothing');
	await assert.rejects(
		never(() => 'this', 20, 'that'),
		/must not: that \("this"\)/
	);
});

test('a host runs operations in its threads, reports their errors and shows worker ends', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	assert.equal(await host.call(0, 'threadId'), 0);
	assert.notEqual(await host.call(1, 'threadId'), await host.call(2, 'threadId'));
	await assert.rejects(host.call(1, 'no such operation'), /is not a function/);
	await host.terminate(1);
	await assert.rejects(host.call(1, 'now'), /does not run/);
	await host.startWorker(1);
	assert.ok(await host.call(1, 'now'));
	assert.deepEqual(await host.kill('SIGTERM'), { code: null, signal: 'SIGTERM' });
});

test('a host as pid 1 of a namespace is found by the pid that it has outside', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ under: asPidOne() });
	assert.notEqual(host.pid, host.child.pid);
	assert.match(readFileSync(`/proc/${host.pid}/status`, 'utf8'), /^NSpid:\t\d+\t1$/m);
});
