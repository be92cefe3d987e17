// @ts-check
/** Hosts that permit little, refuse everything, or hand back something that is not what was asked for. */
import assert from 'node:assert/strict';
import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { processOf, zombiesOf } from '../support/processes.js';
import { sandbox, signal } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {import('../support/spawns.js').Policy} spawnPolicy
 * @param {Record<string, any>} [more]
 */
const config = (box, spawnPolicy, more = {}) =>
	box.config([`starts=${box.file('starts')}`, `signals=${box.file('signals')}`], {
		spawn: spawnPolicy,
		restart: { baseMs: 20 },
		...more,
	});

test("the plain spawn gets the Go launcher first, with the process's lock name and no argument of the process", async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, { kind: 'plain' }));
	const calls = await host.call(1, 'spawned', 'main');
	assert.equal(calls.length, 1);
	assert.equal(calls[0].options.name, 'proc');
	assert.ok(calls[0].args.includes('launch'));
	assert.ok(!calls[0].args.some((/** @type {string} */ word) => word.includes('starts=')));
	assert.deepEqual(calls[0].exit, { code: 0, signal: null }, 'the launcher was waited for before the call resolved');
	assert.deepEqual(zombiesOf(host.pid), []);
	const [keeper] = box.keepers();
	assert.deepEqual(box.record().keeperArgv, keeper.argv);
	assert.doesNotMatch(keeper.argv.join(' '), /starts=/);
});

for (const kind of ['bare-node', 'harper']) {
	test(`only bare node, by name (${kind}): the Go keeper and the reaper still run`, async (t) => {
		const box = sandbox(t);
		const host = await (await box.host({ threads: 4 })).load();
		for (const result of await host.guardAll(config(box, { kind, root: box.dir }, { reaper: { graceMs: 200 } }))) {
			assert.equal(result.processes[0].error, undefined);
			assert.equal(result.reaper.error, undefined);
		}
		const [keeper] = box.keepers();
		assert.doesNotMatch(keeper.argv[0], /node$/, 'what stays is the Go program, not a Node');
		assert.equal(box.only().ppid, keeper.pid);
		const calls = (
			await Promise.all(host.threadNumbers().map((thread) => host.call(thread, 'spawned', 'main')))
		).flat();
		const ran = calls.filter((/** @type {any} */ call) => call.pid);
		assert.ok(ran.length > 0 && ran.every((/** @type {any} */ call) => call.command === 'node'));
		process.kill(box.only().pid, 'SIGKILL');
		await until(() => box.lines('starts').length === 2, 10_000, 'the keeper starts it again');
		await host.kill();
		await until(
			() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
			10_000,
			() => `the reaper cleaned up\n${box.tree()}`
		);
	});
}

test('everything but the process refused: it runs, and the report says what is missing and what to permit', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const { processes, report, reaper } = await host.guard(1, config(box, { kind: 'no-launcher' }, { reaper: {} }));
	assert.deepEqual([processes[0].started, processes[0].error], [true, undefined]);
	assert.match(
		report.join('\n'),
		/the keeper for the proc could not be started \(.*launchers are not allowed.*\), so this thread starts it itself/s
	);
	assert.match(report.join('\n'), /will keep running after this host stops/);
	assert.deepEqual([reaper.started, typeof reaper.error], [false, 'string']);
	const one = box.only();
	assert.equal(one.ppid, host.pid);
	assert.equal(box.record().pid, one.pid);
	assert.equal(box.keepers().length, 0);
	// It is watched, and its crash is answered by the threads themselves.
	const second = await host.guard(2, config(box, { kind: 'no-launcher' }));
	assert.deepEqual([second.processes[0].pid, second.processes[0].adopted], [one.pid, true]);
	process.kill(one.pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 10_000, 'it was started again');
	for (const thread of [1, 2])
		await host.stateUntil(
			thread,
			(state) => state.pid === box.running()[0]?.pid && !state.exited,
			10_000,
			'shows the new one'
		);
	await never(() => box.lines('starts').length > 2, 300, 'a third start');
	process.kill(box.only().pid, 'SIGTERM');
	for (const thread of [1, 2]) await host.stateUntil(thread, (state) => state.exited, 10_000, 'shows the stop');
	await never(() => box.running().length > 0, 300, 'it is started after a stop');
	assert.equal(box.record(), null);
});

test('everything refused: the state says so, nothing runs, the next call with a better spawn works at once', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes } = await host.guard(1, config(box, { kind: 'nothing' }));
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, /is not allowed/);
	assert.equal(box.running().length, 0);
	assert.equal(box.record(), null);
	const next = await host.guard(1, config(box, { kind: 'plain' }), 'next');
	assert.ok(next.tookMs < 3_000);
	assert.equal(box.only().pid, next.processes[0].pid);
});

test('what is handed back is refused by name: a stranger, a zombie, a thread id', async (t) => {
	for (const kind of ['stranger', 'zombie', 'thread']) {
		await t.test(kind, async (tt) => {
			const box = sandbox(tt);
			const other = box.spawn(['other', `zombie=${box.file('zombie')}`]);
			const zombie = Number(await until(() => box.lines('zombie')[0], 5_000, 'the zombie is there'));
			const host = await box.host({ threads: 1 });
			const task = Number(readdirSync(`/proc/${host.pid}/task`).find((name) => Number(name) !== host.pid));
			const pid = { stranger: Number(other.pid), zombie, thread: task }[kind];
			const { processes } = await host.guard(1, config(box, { kind: 'hands-back', pid }));
			assert.equal(processes[0].started, false);
			assert.match(processes[0].error, new RegExp(`handed back pid ${pid}`));
			assert.equal(box.running().length, 0);
			assert.ok(processOf(Number(other.pid)), 'the stranger was not touched');
			const next = await host.guard(1, config(box, { kind: 'plain' }), 'next');
			assert.ok(next.tookMs < 5_000, `nothing is wedged, but it took ${next.tookMs} ms`);
			assert.equal(box.only().pid, next.processes[0].pid);
			await box.startedTimes(1);
		});
	}
});

for (const kind of ['undefined', 'null', 'silent', 'late-error']) {
	test(`spawn gives ${kind}: an error on the state, no rejection, nothing wedged`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 2 });
		const { processes, report } = await host.guard(1, config(box, { kind }));
		assert.equal(processes[0].started, false);
		assert.equal(typeof processes[0].error, 'string');
		assert.ok(report.length > 0);
		assert.equal(box.record(), null);
		const next = await host.guard(2, config(box, { kind: 'plain' }));
		assert.ok(next.tookMs < 3_000, `took ${next.tookMs} ms`);
		assert.equal(box.only().pid, next.processes[0].pid);
	});
}

test('a wrapper around the real launcher is recognised by its command line: one process, one keeper', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes } = await host.guard(1, config(box, { kind: 'wraps' }));
	assert.equal(processes[0].error, undefined);
	assert.equal(box.only().pid, processes[0].pid);
	await until(() => box.keepers().length === 1, 5_000, 'one keeper');
	await box.startedTimes(1);
});

test('a launcher that ran although it counted as refused does not lead to a second process', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	for (let round = 0; round < 10; round++) {
		const { processes } = await host.guard(1, config(box, { kind: 'starts-and-refuses' }), `round${round}`);
		await until(() => zombiesOf(host.pid).length === 0, 5_000, 'no zombies');
		await never(() => box.running().length > 1, 200, 'two processes run');
		assert.ok(box.lines('starts').length <= 1, box.lines('starts').join('\n'));
		const next = await host.guard(1, config(box, { kind: 'plain' }), `next${round}`);
		assert.equal(next.processes[0].error, undefined, `${next.processes[0].error}, after ${processes[0].error}`);
		assert.equal(box.only().pid, next.processes[0].pid);
		for (const one of [...box.keepers(), ...box.running()]) signal(one, 'SIGTERM');
		await until(
			() => box.running().length === 0 && box.keepers().length === 0 && box.record() === null,
			10_000,
			() => `stopped\n${box.tree()}`
		);
		rmSync(box.file('starts'));
	}
});

test('a first command that is refused is followed by the next one', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes, report } = await host.guard(1, config(box, { kind: 'refuse-first', refuse: 1 }));
	assert.deepEqual([processes[0].started, processes[0].error], [true, undefined]);
	assert.equal(box.keepers().length, 1);
	assert.doesNotMatch(report.join('\n'), /so this thread starts it itself/);
});

test('a binary that is not there or not executable is refused before any lock is touched', async (t) => {
	const box = sandbox(t);
	const notExecutable = box.file('data');
	writeFileSync(notExecutable, 'data\n', { mode: 0o644 });
	const host = await box.host({ threads: 1 });
	for (const [binaryPath, why] of [
		['/nonexistent/program', /does not exist \(ENOENT\)/],
		[notExecutable, /EACCES/],
	]) {
		const { processes } = await host.guard(
			1,
			box.config([], { stopOrphans: true, process: { binaryPath } }),
			String(binaryPath)
		);
		assert.equal(processes[0].started, false);
		assert.match(processes[0].error, /** @type {RegExp} */ (why));
		assert.deepEqual(box.files(), []);
	}
});

test('a replacement that cannot start stops no orphan', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, { kind: 'plain' }, { version: 1 }));
	const one = box.only();
	const { processes } = await host.guard(
		1,
		box.config([], { version: 2, stopOrphans: true, process: { binaryPath: '/nonexistent/program' } }),
		'second'
	);
	assert.equal(processes[0].started, false);
	assert.equal(box.only().pid, one.pid);
	assert.equal(box.record().version, 1);
});
