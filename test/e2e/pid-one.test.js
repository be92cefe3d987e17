// @ts-check
/** A container whose only program is the host: nobody else waits for what ends there. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { asPidOne } from '../support/host.js';
import { processes, zombiesOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

/** @param {import('../support/sandbox.js').Sandbox} box */
const host = (box) => box.host({ threads: 2, under: asPidOne() });

test('a host that is pid 1 sees many crashes and restarts through without a zombie', {
	timeout: 600_000,
}, async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	await one.guardAll(box.config([`starts=${box.file('starts')}`], { restart: { max: 1000, baseMs: 1, capMs: 1 } }));
	const total = 200;
	for (let crash = 1; crash <= total; crash++) {
		await until(
			() => box.lines('starts').length === crash && box.running().length === 1,
			10_000,
			() => `start ${crash}\n${box.tree()}`
		);
		process.kill(box.only().pid, 'SIGKILL');
	}
	await until(() => box.lines('starts').length === total + 1, 10_000, 'the last start');
	for (const thread of [1, 2])
		await one.stateUntil(
			thread,
			(state) => state.restarts === total && !state.exited,
			10_000,
			'all restarts are counted'
		);
	await until(
		() => zombiesOf(one.pid).length === 0,
		5_000,
		() => `zombies: ${JSON.stringify(zombiesOf(one.pid))}`
	);
	assert.equal(box.running().length, 1);
});

test('launchers, keepers and reapers that end leave no zombie of a host that is pid 1', async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	for (let round = 0; round < 5; round++) {
		await one.guardAll(box.config([`starts=${box.file('starts')}`], { reaper: { graceMs: 100 } }), {
			key: `round${round}`,
		});
		await until(() => box.lines('starts').length === round + 1, 5_000, 'it runs');
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		for (const reaper of box.reapers()) process.kill(reaper.pid, 'SIGTERM');
		await until(
			() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
			10_000,
			() => `stopped\n${box.tree()}`
		);
	}
	await until(
		() => zombiesOf(one.pid).length === 0,
		5_000,
		() => `zombies: ${JSON.stringify(zombiesOf(one.pid))}`
	);
});

test('the process of a killed keeper is waited for too', async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	await one.guardAll(box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 20 } }));
	const old = box.only();
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	process.kill(old.pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 10_000, 'a replacement was started');
	await until(
		() => zombiesOf(one.pid).length === 0,
		5_000,
		() => `zombies: ${JSON.stringify(zombiesOf(one.pid))}`
	);
});

test("the host's own children are left to it: their exits still arrive", async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	await one.guardAll(box.config([`starts=${box.file('starts')}`], { restart: { max: 1000, baseMs: 1, capMs: 1 } }));
	const codes = one.call(0, 'children', box.proc, 40);
	for (let crash = 1; crash <= 10; crash++) {
		await until(() => box.lines('starts').length === crash, 10_000, `start ${crash}`);
		process.kill(box.only().pid, 'SIGKILL');
	}
	assert.deepEqual(
		await codes,
		Array.from({ length: 40 }, (_, index) => index)
	);
});

test('a restarted container: the claim of the last one, with the same host pid, holds nobody up', async (t) => {
	const box = sandbox(t);
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 30_000 });
	const first = await host(box);
	await first.guard(1, config);
	await first.kill();
	// A pid namespace dies with its pid 1, so the process went with it and the record names a pid of a dead namespace.
	await until(() => box.running().length === 0, 5_000, 'everything in the namespace has ended');
	const second = await host(box);
	const called = performance.now();
	const { processes: states } = await second.guard(1, config);
	assert.deepEqual([states[0].error, states[0].adopted], [undefined, false]);
	assert.ok(performance.now() - called < 5_000, `it waited ${performance.now() - called} ms`);
	assert.equal(processes().filter((each) => each.argv.includes(box.marker)).length, 1);
});
