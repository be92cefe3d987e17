// @ts-check
/**
 * The thread that starts a process is terminated while it does. Wherever that hits, the next caller starts or joins one
 * process at once, and the host is left without a zombie.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { zombiesOf } from '../support/processes.js';
import { sandbox, signal } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';
import { until } from '../support/until.js';

test('a starting thread terminated 0 to 50 ms after its call leaves no stuck claim, no second process, no zombie', {
	timeout: 900_000,
}, async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 2 })).load();
	const total = rounds(100, 300);
	let slowest = 0;
	for (let round = 0; round < total; round++) {
		const config = box.config([`starts=${box.file(`starts${round}`)}`]);
		await host.call(0, 'guardThenTerminate', 1, 'main', config, (round * 51) / total);
		const called = performance.now();
		const { processes } = await host.guard(2, config, `round${round}`);
		slowest = Math.max(slowest, performance.now() - called);
		assert.equal(processes[0].error, undefined, `round ${round}: ${processes[0].error}`);
		assert.ok(
			performance.now() - called < 10_000,
			`round ${round}: the next caller waited ${performance.now() - called} ms`
		);
		assert.equal(box.only().pid, processes[0].pid, `round ${round}`);
		await until(() => box.lines(`starts${round}`).length > 0, 5_000, 'it runs');
		assert.equal(
			box.lines(`starts${round}`).length,
			1,
			`round ${round}: started ${box.lines(`starts${round}`).length} times`
		);
		// All of them: one that was started under a claim given up may be about to find that out.
		for (const keeper of box.keepers()) signal(keeper, 'SIGTERM');
		await until(
			() => box.running().length === 0 && box.keepers().length === 0 && box.record() === null,
			10_000,
			() => `round ${round}: stopped\n${box.tree()}`
		);
		assert.equal(box.lines(`starts${round}`).length, 1, `round ${round}: one more was started late`);
		await host.startWorker(1);
		await host.call(1, 'load');
	}
	await until(
		() => zombiesOf(host.pid).length === 0,
		5_000,
		() => `no zombies: ${JSON.stringify(zombiesOf(host.pid))}`
	);
	t.diagnostic(`the slowest next caller waited ${slowest.toFixed(0)} ms`);
});

test('a worker terminated 50 ms after guard() resolved leaves no zombie and no lost exit', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 10 } });
	await host.guard(1, config);
	await host.guard(2, config);
	await host.terminate(1);
	assert.deepEqual(zombiesOf(host.pid), []);
	const old = box.only();
	process.kill(old.pid, 'SIGKILL');
	await host.stateUntil(
		2,
		(state) => state.restarts === 1 && !state.exited && state.pid !== old.pid,
		5_000,
		'the other thread sees the restart'
	);
});

test('all waiting threads but one are terminated: the last one gets its answer', async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 6 })).load();
	const config = box.config([`starts=${box.file('starts')}`]);
	const at = Date.now() + 50;
	const last = host.guard(6, { ...config, at });
	const others = [1, 2, 3, 4, 5].map((thread) =>
		host.call(0, 'guardThenTerminate', thread, 'main', { ...config, at }, 45 + thread * 3)
	);
	const { processes } = await last;
	await Promise.all(others);
	assert.equal(processes[0].error, undefined);
	assert.equal(box.only().pid, processes[0].pid);
	await box.startedTimes(1);
	await until(() => zombiesOf(host.pid).length === 0, 5_000, 'no zombies');
});

test('the whole host killed while it starts: the next host starts or joins one process at once', {
	timeout: 300_000,
}, async (t) => {
	const box = sandbox(t);
	const total = rounds(15, 60);
	for (let round = 0; round < total; round++) {
		const config = box.config([`starts=${box.file(`starts${round}`)}`]);
		const host = await (await box.host({ threads: 1 })).load();
		host.guard(1, config).catch(() => {});
		await new Promise((resolve) => setTimeout(resolve, (round * 40) / total));
		await host.kill('SIGKILL');
		const next = await (await box.host({ threads: 1 })).load();
		const called = performance.now();
		const { processes } = await next.guard(1, config);
		assert.equal(processes[0].error, undefined, `round ${round}: ${processes[0].error}`);
		assert.ok(performance.now() - called < 10_000, `round ${round}: waited ${performance.now() - called} ms`);
		assert.equal(box.only().pid, processes[0].pid);
		// Before the stop: a process that is ended right after its exec has written nothing yet.
		await until(() => box.lines(`starts${round}`).length > 0, 10_000, `round ${round}: its first line`);
		// All of them: one that was started under a claim given up may be about to find that out.
		for (const keeper of box.keepers()) signal(keeper, 'SIGTERM');
		await until(
			() => box.running().length === 0 && box.keepers().length === 0,
			10_000,
			() => `round ${round}: stopped\n${box.tree()}`
		);
		assert.equal(box.lines(`starts${round}`).length, 1, `round ${round}`);
		await next.kill();
	}
});
