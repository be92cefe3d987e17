// @ts-check
/** A keeper that was killed: what the kernel still proves about its process is answered, and nothing else is claimed. */
import assert from 'node:assert/strict';
import { chownSync, mkdirSync, rmSync } from 'node:fs';
import { test } from 'node:test';
import { withoutExitProof } from '../support/fixtures.js';
import { nobody, whyNotNobody } from '../support/host.js';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {number} threads
 * @param {Record<string, any>} [options]
 * @param {string[]} [words]
 */
async function started(box, threads, options = {}, words = []) {
	const host = await (await box.host({ threads })).load();
	const config = box.config([`starts=${box.file('starts')}`, ...words], { restart: { baseMs: 30 }, ...options });
	await host.guardAll(config);
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	return { host, config, one: box.only() };
}

/** @param {Sandbox} box */
async function killKeeper(box) {
	const [keeper] = box.keepers();
	process.kill(keeper.pid, 'SIGKILL');
	await until(() => !alive(keeper.pid, keeper.started), 5_000, 'the keeper is dead');
	return keeper;
}

test('the process outlives its keeper, and a new thread joins it', async (t) => {
	const box = sandbox(t);
	const { host, config, one } = await started(box, 1);
	await killKeeper(box);
	await never(() => box.running().length !== 1, 200, 'the process ends with its keeper');
	await until(
		async () =>
			(await host.state(1)).log.some((/** @type {{ line: string }} */ { line }) =>
				line.includes('runs on without one')
			),
		5_000,
		'the thread warns that the keeper is gone'
	);
	await host.stateUntil(1, (state) => state.keeper === undefined, 5_000, 'the state says so');
	const { processes } = await host.guard(0, config);
	assert.deepEqual([processes[0].pid, processes[0].adopted, processes[0].error], [one.pid, true, undefined]);
	await box.startedTimes(1);
});

for (const threads of [1, 8]) {
	test(`keeper killed, then a crash: ${threads} watching thread(s) know it from the kernel and start exactly one replacement`, async (t) => {
		const box = sandbox(t);
		const { host, one } = await started(box, threads);
		await killKeeper(box);
		process.kill(one.pid, 'SIGKILL');
		await until(() => box.lines('starts').length === 2, 10_000, 'a replacement was started');
		const [renewed] = box.lines('starts')[1].split(' ').map(Number);
		for (const thread of host.threadNumbers()) {
			await host.stateUntil(thread, (state) => state.pid === renewed && !state.exited, 10_000, `shows ${renewed}`);
			const death = (await host.call(thread, 'changes', 'main')).find(
				(/** @type {any} */ change) => change.field === 'exited' && change.value === true
			);
			assert.equal(death?.signal, 'SIGKILL', 'the signal is known before exited');
		}
		await never(() => box.lines('starts').length > 2 || box.running().length !== 1, 400, 'a second replacement');
		assert.equal(box.keepers().length, 1, 'the replacement has a keeper again');
		assert.equal(box.only().ppid, box.keepers()[0].pid);
	});
}

test('keeper killed, then an exit with a code: known, answered, replaced', async (t) => {
	const box = sandbox(t);
	const { host, one } = await started(box, 2, {}, ['term=exit:5']);
	await killKeeper(box);
	process.kill(one.pid, 'SIGTERM');
	await until(() => box.lines('starts').length === 2, 10_000, 'a replacement was started');
	for (const thread of [1, 2]) {
		await host.stateUntil(thread, (state) => state.pid !== one.pid && !state.exited, 10_000, 'shows the replacement');
		const death = (await host.call(thread, 'changes', 'main')).find(
			(/** @type {any} */ change) => change.field === 'exited' && change.value === true
		);
		assert.equal(death?.code, 5);
	}
});

for (const [how, end] of /** @type {const} */ ([
	['SIGTERM', { signal: 'SIGTERM' }],
	['exit 0', { code: 0 }],
])) {
	test(`keeper killed, then a stop by ${how}: known from the kernel, nothing started, and the lock holds nobody up`, async (t) => {
		const box = sandbox(t);
		const { host, config, one } = await started(box, 4, {}, 'code' in end ? ['term=exit:0'] : []);
		await killKeeper(box);
		process.kill(one.pid, 'SIGTERM');
		for (const thread of host.threadNumbers()) {
			const state = await host.stateUntil(thread, (seen) => seen.exited, 10_000, 'shows the end');
			assert.deepEqual(
				[state.code ?? undefined, state.signal ?? undefined],
				['code' in end ? end.code : undefined, 'signal' in end ? end.signal : undefined]
			);
			assert.equal(state.exitProof, 'kernel');
		}
		await never(() => box.lines('starts').length > 1 || box.running().length > 0, 500, 'something is started');
		// Only its own keeper or a reaper removes a record, so this one stays and the next caller takes it.
		const next = await host.guard(1, config, 'next');
		assert.deepEqual(
			[next.processes[0].started, next.processes[0].adopted, next.processes[0].error],
			[true, false, undefined]
		);
		assert.ok(next.tookMs < 3_000, `it took ${next.tookMs} ms`);
		assert.equal(box.only().pid, next.processes[0].pid);
	});
}

test('a clean death under a living keeper is proven by the keeper', async (t) => {
	const box = sandbox(t);
	const { host, one } = await started(box, 2);
	process.kill(one.pid, 'SIGTERM');
	for (const thread of [1, 2]) {
		const state = await host.stateUntil(thread, (seen) => seen.exited, 10_000, 'shows the end');
		assert.equal(state.exitProof, 'keeper');
	}
});

test('where nothing proves how it ended nothing is started and nothing is claimed', {
	skip: whyNotNobody(),
}, async (t) => {
	const box = sandbox(t);
	// An older kernel, in effect: the host may not ask a pidfd for the exit status, and the process hides it from others.
	for (const dir of [box.dir, box.pidDir]) {
		mkdirSync(dir, { recursive: true });
		chownSync(dir, nobody.uid, nobody.gid);
	}
	const host = await box.host({ threads: 2, under: [withoutExitProof()], ...nobody });
	const config = box.config([`starts=${box.file('starts')}`, 'undumpable'], { restart: { baseMs: 30 } });
	for (const { processes } of await host.guardAll(config)) assert.equal(processes[0].error, undefined);
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	const one = box.only();
	await killKeeper(box);
	process.kill(one.pid, 'SIGKILL');
	for (const thread of [1, 2]) {
		const state = await host.stateUntil(thread, (seen) => seen.exited, 10_000, 'shows the end');
		assert.deepEqual([state.code, state.signal, state.exitProof], [undefined, undefined, 'none']);
		assert.match(state.error, /died with its keeper \(pid \d+\) gone/);
	}
	await never(() => box.lines('starts').length > 1, 500, 'something is started');
	const { processes } = await host.guard(1, config, 'again');
	assert.deepEqual([processes[0].started, processes[0].adopted, processes[0].error], [true, false, undefined]);
	assert.equal(box.only().pid, processes[0].pid);
});

test('keeper and process killed together: one replacement', async (t) => {
	const box = sandbox(t);
	for (let round = 0; round < 10; round++) {
		// Long enough for the second kill to come before the keeper's own restart, however busy the machine is.
		const { host, one } = await started(box, 4, { restart: { baseMs: 500 } });
		const [keeper] = box.keepers();
		// Either may die first; both orders are tried.
		for (const pid of round % 2 ? [keeper.pid, one.pid] : [one.pid, keeper.pid]) process.kill(pid, 'SIGKILL');
		await until(() => box.lines('starts').length === 2, 10_000, `round ${round}: a replacement was started`);
		await until(() => box.running().length === 1 && box.running()[0].pid !== one.pid, 5_000, 'it runs');
		for (const thread of host.threadNumbers())
			await host.stateUntil(
				thread,
				(state) => !state.exited && state.pid !== one.pid && alive(state.pid),
				10_000,
				`round ${round}: shows it`
			);
		await box.startedTimes(2);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'stopped');
		await host.kill();
		rmSync(box.file('starts'));
	}
});

test('keeper killed in its back-off: the restart that it owed happens, once', async (t) => {
	const box = sandbox(t);
	const { host, one } = await started(box, 4, { restart: { baseMs: 1_500 } });
	process.kill(one.pid, 'SIGKILL');
	await until(() => box.exitRecord()?.outcome === 'restarting', 5_000, 'the keeper waits');
	await killKeeper(box);
	await until(() => box.lines('starts').length === 2, 15_000, 'it was started again');
	for (const thread of host.threadNumbers())
		await host.stateUntil(thread, (state) => !state.exited && state.pid === box.only().pid, 10_000, 'shows it');
	await never(() => box.lines('starts').length > 2, 500, 'it is started a third time');
});
