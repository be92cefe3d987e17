// @ts-check
/** Failures in the wild: a pid in a record that is no longer, or no longer provably, the process that was meant. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, chownSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { nobody, whyNotNobody } from '../support/host.js';
import { anotherStart, bootId, nobodysPid, plant, recordText, startOf } from '../support/planted.js';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * A process that is none of the guard's, with the command line that the guard's own has or with another. It notes
 * every signal it gets.
 * @param {Sandbox} box
 * @param {string} [marker]
 */
async function stranger(box, marker = box.marker) {
	const argv = [marker, `signals=${box.file('stranger-signals')}`, `starts=${box.file('stranger')}`];
	const pid = Number(box.spawn(argv).pid);
	await until(() => box.lines('stranger').length > 0, 5_000, 'the stranger runs');
	return { pid, argv: [box.proc, ...argv], untouched: () => alive(pid) && box.lines('stranger-signals').length === 0 };
}

/**
 * @param {Sandbox} box
 * @param {any} result what guard() answered
 * @param {{ pid: number, untouched: () => boolean }} other
 */
async function assertTakenOver(box, { processes, report }, other) {
	const [state] = processes;
	assert.deepEqual([state.started, state.adopted, state.error], [true, false, undefined]);
	assert.notEqual(state.pid, other.pid);
	assert.match(report.join('\n'), new RegExp(`${other.pid}`), 'the report names the pid');
	assert.equal(box.record()?.pid, state.pid);
	await never(() => !other.untouched(), 200, 'the stranger is signalled');
}

test('stale pid, reused by another program: taken over, the other one untouched', async (t) => {
	const box = sandbox(t);
	const sleep = spawn('sleep', ['300'], { stdio: 'ignore' });
	box.children.push(sleep);
	const pid = Number(sleep.pid);
	await until(() => processOf(pid)?.argv[0] === 'sleep', 5_000, 'it sleeps');
	const other = { pid, untouched: () => alive(pid) };
	const host = await box.host({ threads: 1 });
	for (const started of [anotherStart(pid), undefined]) {
		plant(box, recordText(pid, [box.proc, box.marker], { version: 1, started }));
		const config = box.config([], { version: 2, stopOrphans: true });
		await assertTakenOver(box, await host.guard(1, config, String(started)), other);
		assert.equal(box.running().length, 1);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'stopped');
	}
});

test('stale pid, reused by the same program: taken over, nothing signalled', async (t) => {
	const box = sandbox(t);
	const other = await stranger(box);
	plant(box, recordText(other.pid, other.argv, { started: anotherStart(other.pid), version: 1 }));
	const host = await box.host({ threads: 1 });
	const words = other.argv.slice(2);
	await assertTakenOver(box, await host.guard(1, box.config(words, { version: 1, stopOrphans: true })), other);
	assert.equal(box.running().length, 2, 'ours beside the other one');
});

test('reused pid gets killed: a reaper whose record names a live stranger sends no signal at all', async (t) => {
	const box = sandbox(t);
	const other = await stranger(box);
	const host = await box.host({ threads: 1 });
	const signals = `signals=${box.file('signals')}`;
	const config = box.config([`starts=${box.file('starts')}`, signals], {
		reaper: { graceMs: 100, logFile: box.file('reaper.log') },
	});
	await host.guard(1, config);
	plant(box, recordText(other.pid, other.argv, { started: anotherStart(other.pid) }), 'same-words');
	plant(box, recordText(other.pid, [box.proc, 'something', 'else']), 'other-words');
	plant(box, `${other.pid}\n`, 'bare');
	await host.kill('SIGKILL');
	await until(
		() => box.reapers().length === 0 && box.keepers().length === 0,
		15_000,
		() => `the reaper has done its work\n${box.tree()}`
	);
	assert.deepEqual(box.lines('signals').length, 1, 'what was ours got its SIGTERM');
	await never(() => !other.untouched(), 300, 'the stranger is signalled');
});

test('EPERM read as ours: the start time decides about a process that may not be signalled', {
	skip: whyNotNobody(),
}, async (t) => {
	const box = sandbox(t);
	chmodSync(box.dir, 0o777);
	const other = await stranger(box);
	for (const name of ['stranger', 'stranger-signals']) chmodSync(box.file(name), 0o666);
	const host = await box.host({ threads: 1, ...nobody });
	const own = (/** @type {string} */ text) => {
		plant(box, text);
		for (const path of [box.pidDir, join(box.pidDir, 'proc.pid')]) chownSync(path, nobody.uid, nobody.gid);
	};
	const config = box.config(other.argv.slice(2), { version: 3 });
	// The very process, only not ours to signal: joined and not doubled.
	own(recordText(other.pid, other.argv, { version: 3, started: startOf(other.pid) }));
	const joined = await host.guard(1, config, 'same');
	assert.deepEqual([joined.processes[0].pid, joined.processes[0].adopted], [other.pid, true]);
	// Another start under that number: whatever runs there is not ours.
	own(recordText(other.pid, other.argv, { version: 3, started: anotherStart(other.pid) }));
	await assertTakenOver(box, await host.guard(1, config, 'other'), other);
});

test('after a reboot the pid is "alive": a record of another boot is taken over, nothing signalled', async (t) => {
	const box = sandbox(t);
	const other = await stranger(box);
	const ticks = processOf(other.pid)?.started;
	const host = await box.host({ threads: 1 });
	const config = box.config(other.argv.slice(2), { version: 1, stopOrphans: true });
	const before = bootId.replace(/^./, (digit) => (digit === '0' ? '1' : '0'));
	// The same ticks since boot, the same words: everything agrees but the boot.
	plant(
		box,
		recordText(other.pid, other.argv, {
			version: 1,
			started: `${before}:${ticks}`,
			boot: before,
			keeper: process.pid,
			keeperArgv: processOf(process.pid)?.argv,
		})
	);
	await assertTakenOver(box, await host.guard(1, config), other);
});

test('zombie counted alive: dead, taken over', async (t) => {
	const box = sandbox(t);
	box.spawn([box.file('parent'), `zombie=${box.file('zombie')}`]);
	const pid = Number(await until(() => box.lines('zombie')[0], 5_000, 'its parent never waits for it'));
	const host = await box.host({ threads: 1 });
	const started = startOf(pid);
	for (const more of [{ started }, { started, keeper: nobodysPid, keeperArgv: ['/gone/keeper', 'keep'] }]) {
		plant(box, recordText(pid, [box.proc, box.marker], more));
		const { processes, tookMs } = await host.guard(1, box.config(), String(Object.keys(more)));
		assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
		assert.ok(tookMs < 5_000, `it waited ${tookMs} ms`);
		assert.equal(box.only().pid, processes[0].pid);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'stopped');
	}
	assert.equal(processOf(pid)?.state, 'Z', 'it is still there, as its parent left it');
});
