// @ts-check
/** Failures in the wild: too many starts, too many signals, too many corpses. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { asPidOne } from '../support/host.js';
import { alive, zombiesOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';
import { never, until } from '../support/until.js';

test('restart storm: what dies at once and what dies after each healthy second are both started five times more', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const shapes = { 'at-once': ['end=0:exit:1'], 'each-second': ['end=1000:signal:11'] };
	const [atOnce, eachSecond] = Object.entries(shapes).map(([name, words]) =>
		box.process([`starts=${box.file(name)}`, ...words], { name })
	);
	const call = { pidDir: box.pidDir, restart: { baseMs: 5 } };
	// A second call may come after the first one's process was given up, and start it anew: one thread calls for that.
	await host.guard(1, { ...call, processes: [atOnce, eachSecond] });
	await host.guard(2, { ...call, processes: [eachSecond] });
	for (const [thread, index, name] of /** @type {const} */ ([
		[1, 0, 'at-once'],
		[1, 1, 'each-second'],
		[2, 0, 'each-second'],
	])) {
		const state = await host.stateUntil(thread, (one) => one.error, 20_000, `${name} was given up`, { index });
		assert.match(state.error, /died 6 times/);
		assert.deepEqual([state.exited, state.restarts], [true, 5]);
		assert.equal(box.lines(name).length, 6, `${name}: one start and five restarts`);
	}
	await until(() => box.keepers().length === 0, 5_000, 'the keepers have gone');
	await never(() => box.running().length > 0 || box.keepers().length > 0, 300, 'it goes on');
	for (const name of Object.keys(shapes)) await box.startedTimes(6, name);
});

test('restart storm: eight threads that call at once see one storm, and what was given up stays down', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 8 });
	const config = box.config([`starts=${box.file('starts')}`, 'end=0:exit:1'], { restart: { baseMs: 40 } });
	const results = await host.guardAll(config);
	for (const thread of host.threadNumbers()) {
		const state = await host.stateUntil(thread, (one) => one.error, 20_000, 'it was given up');
		// One that only waited for it was never told of a process of its own.
		assert.match(state.error, /died 6 times|gave up after 5 restarts while this call waited/);
	}
	assert.equal(results.length, 8);
	await never(() => box.running().length > 0 || box.keepers().length > 0, 300, 'it goes on');
	await box.startedTimes(6);
});

test('zombies under pid 1 node: none is left by workers that end, in the middle of a start too', {
	timeout: 900_000,
}, async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 4, under: asPidOne() })).load();
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 20_000 });
	const total = rounds(48, 1_000);
	let ended = 0;
	const life = async (/** @type {number} */ thread) => {
		while (ended < total) {
			const number = ended++;
			// Every fifth one finds nothing running and starts it; the others join, and end in the middle or after it.
			const [keeper] = number % 5 === 0 ? box.keepers() : [];
			if (keeper && alive(keeper.pid, keeper.started)) process.kill(keeper.pid, 'SIGTERM');
			await host.call(0, 'guardThenTerminate', thread, `${number}`, config, (number * 7) % 150);
			await host.startWorker(thread);
			await host.call(thread, 'load');
		}
	};
	await Promise.all([1, 2, 3, 4].map(life));
	await until(
		() => zombiesOf(host.pid).length === 0,
		10_000,
		() => `no zombies after ${ended} ends: ${JSON.stringify(zombiesOf(host.pid))}`
	);
	const { processes } = await host.guard(1, config, 'last');
	assert.equal(processes[0].error, undefined);
	const status = readFileSync(`/proc/${box.only().pid}/status`, 'utf8');
	assert.equal(Number(/^NSpid:.*\t(\d+)$/m.exec(status)?.[1]), processes[0].pid);
	assert.ok(box.lines('starts').length > 2, `${box.lines('starts').length} starts among them`);
});

test('signal twice: one SIGTERM to the whole group of a host reaches what it guards once', async (t) => {
	const box = sandbox(t);
	const counted = (/** @type {string} */ name) =>
		box.process([`starts=${box.file(`${name}-starts`)}`, `signals=${box.file(name)}`, 'term=slow:400'], { name });
	// As `tini -g` does it: its child's whole group is told, and everybody passes it on as well.
	const host = await box.host({ threads: 2, detached: true });
	await host.guardAll({
		pidDir: box.pidDir,
		processes: [counted('one'), counted('two')],
		reaper: { graceMs: 50 },
	});
	const keepers = box.keepers();
	assert.equal(keepers.length, 2);
	for (const one of [...keepers, ...box.running()]) assert.notEqual(one.pgid, host.pid, 'not in the group of the host');
	process.kill(-host.pid, 'SIGTERM');
	assert.deepEqual(await host.exited, { code: null, signal: 'SIGTERM' });
	await until(
		() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
		15_000,
		() => `everything has ended\n${box.tree()}`
	);
	for (const name of ['one', 'two']) {
		assert.deepEqual(
			box.lines(name).map((line) => line.split(' ')[0]),
			['SIGTERM'],
			name
		);
		await box.startedTimes(1, `${name}-starts`);
	}
});

test('signal twice: a group that is told, keeper and process alike, counts one from its keeper', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const words = [`starts=${box.file('starts')}`, `signals=${box.file('signals')}`, 'term=slow:400'];
	await host.guard(1, box.config(words));
	const [keeper] = box.keepers();
	assert.equal(keeper.pgid, keeper.pid, 'a group of its own');
	process.kill(-keeper.pgid, 'SIGTERM');
	await until(() => box.keepers().length === 0 && box.running().length === 0, 10_000, 'stopped');
	assert.deepEqual(box.lines('signals'), [`SIGTERM ${keeper.pid}`]);
});
