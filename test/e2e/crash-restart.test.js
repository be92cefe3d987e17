// @ts-check
/** A crashed process is started again once, and every thread of every host that watches knows it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

const quick = { baseMs: 20 };

/**
 * The changes of one thread must tell the death before the new life, with its cause.
 * @param {any[]} changes
 * @param {{ code?: number, signal?: string }} cause
 * @param {number} pid
 */
function assertCauseFirst(changes, cause, pid) {
	const death = changes.findIndex(({ field, value }) => field === 'exited' && value === true);
	const life = changes.findLastIndex(({ field, value }) => field === 'pid' && value === pid);
	assert.ok(death >= 0, `exited never turned true: ${JSON.stringify(changes)}`);
	assert.ok(life > death, `the new pid came before the death: ${JSON.stringify(changes)}`);
	assert.equal(changes[death].code ?? undefined, cause.code);
	assert.equal(changes[death].signal ?? undefined, cause.signal);
}

for (const [words, cause, how, signal] of /** @type {const} */ ([
	[[], { signal: 'SIGKILL' }, 'SIGKILL', 'SIGKILL'],
	[['term=exit:3'], { code: 3 }, 'exit code 3', 'SIGTERM'],
	[[], { signal: 'SIGABRT' }, 'SIGABRT', 'SIGABRT'],
])) {
	test(`after ${how} the owner, a joined thread and a thread of another host show the cause, then the new pid, restarts 1`, async (t) => {
		const box = sandbox(t);
		const [first, second] = [await box.host({ threads: 2 }), await box.host({ threads: 1 })];
		const config = box.config([`starts=${box.file('starts')}`, ...words], { restart: quick });
		const owner = await first.guard(1, config);
		const joined = [await first.guard(2, config), await second.guard(1, config)];
		const [state] = owner.processes;
		assert.deepEqual([state.started, state.adopted, state.restarts], [true, false, 0]);
		for (const { processes } of joined) assert.deepEqual([processes[0].pid, processes[0].adopted], [state.pid, true]);
		await box.startedTimes(1);
		const old = box.only();
		assert.equal(old.pid, state.pid);
		process.kill(old.pid, signal);
		await box.startedTimes(2);
		const [renewed] = box.lines('starts')[1].split(' ').map(Number);
		for (const [host, thread] of /** @type {const} */ ([
			[first, 1],
			[first, 2],
			[second, 1],
		])) {
			const seen = await host.stateUntil(
				thread,
				(one) => one.pid === renewed && !one.exited,
				10_000,
				`shows ${renewed}`
			);
			assert.deepEqual([seen.restarts, seen.error], [1, undefined]);
			assert.deepEqual(
				[seen.code, seen.signal],
				[undefined, undefined],
				'the cause of a death does not stay on the living'
			);
			assertCauseFirst(await host.call(thread, 'changes', 'main'), cause, renewed);
		}
		assert.equal(box.only().pid, renewed);
		assert.equal(box.record().pid, renewed);
		const exit = box.exitRecord();
		assert.deepEqual(
			[exit.outcome, exit.code, exit.signal, exit.restarts, exit.released, exit.pid],
			['restarting', 'code' in cause ? cause.code : null, 'signal' in cause ? cause.signal : null, 1, false, old.pid]
		);
	});
}

test('the first restart waits the documented second, and what happened is in the log of every thread', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`]);
	await host.guard(1, config);
	await host.guard(2, config);
	const died = performance.now();
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 10_000, 'it was started again');
	assert.ok(performance.now() - died >= 990, `started again after ${performance.now() - died} ms`);
	for (const thread of [1, 2]) {
		await host.stateUntil(thread, (state) => state.restarts === 1 && !state.exited, 5_000, 'it shows the restart');
		const { log } = await host.state(thread);
		const warnings = log
			.filter((/** @type {any} */ entry) => entry.level === 'warn')
			.map((/** @type {any} */ entry) => entry.line);
		assert.ok(
			warnings.some(
				(/** @type {string} */ line) => /signal SIGKILL/.test(line) && /Its keeper starts it again/.test(line)
			),
			warnings.join('\n')
		);
		assert.ok(
			log.every((/** @type {any} */ entry) => entry.line.startsWith('process guard: ')),
			JSON.stringify(log)
		);
		assert.ok(
			log.some((/** @type {any} */ entry) => /runs again under its keeper/.test(entry.line)),
			JSON.stringify(log)
		);
	}
});

test('after restart.max crashes nothing is started again, every thread says so, and the lock is gone', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`, 'term=exit:9'], {
		restart: { max: 2, baseMs: 10 },
		process: { exitHint: 'see the manual' },
	});
	await host.guard(1, config);
	await host.guard(2, config);
	for (let life = 1; life <= 3; life++) {
		await box.startedTimes(life);
		process.kill(Number(box.lines('starts')[life - 1].split(' ')[0]), 'SIGTERM');
	}
	for (const thread of [1, 2]) {
		const state = await host.stateUntil(thread, (one) => one.exited && one.error, 15_000, 'it gave up');
		assert.match(state.error, /died 3 times \(exit code 9.*\); not restarting it again/);
		assert.deepEqual([state.code, state.started, state.restarts], [9, true, 2]);
		const { log } = await host.state(thread);
		assert.ok(
			log.some((/** @type {any} */ entry) => entry.level === 'error' && /see the manual/.test(entry.line)),
			JSON.stringify(log)
		);
	}
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
	await box.startedTimes(3);
	assert.equal(box.record(), null);
	const exit = box.exitRecord();
	assert.deepEqual([exit.outcome, exit.code, exit.restarts, exit.released], ['gave-up', 9, 2, true]);
});

test('restart.max 0 means no restart', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, box.config([`starts=${box.file('starts')}`], { process: { restart: { max: 0 } } }));
	process.kill(box.only().pid, 'SIGKILL');
	const state = await host.stateUntil(1, (one) => one.exited && one.error, 10_000, 'it gave up');
	assert.match(state.error, /died 1 times? \(signal SIGKILL\)/);
	await until(() => box.keepers().length === 0 && box.record() === null, 5_000, 'the keeper has ended');
	await box.startedTimes(1);
});

test('the waits double up to the cap', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(
		1,
		box.config([`starts=${box.file('starts')}`, 'end=5:exit:1'], { restart: { max: 5, baseMs: 40, capMs: 100 } })
	);
	const waits = new Map();
	await until(
		() => {
			const exit = box.exitRecord();
			if (exit?.outcome === 'restarting') waits.set(exit.restarts, exit.waitMs);
			return exit?.outcome === 'gave-up';
		},
		15_000,
		'it gave up'
	);
	for (const [restart, wait] of waits)
		assert.equal(wait, [40, 80, 100, 100, 100][restart - 1], `before restart ${restart}`);
	assert.ok(waits.size >= 2, `too few waits seen: ${[...waits]}`);
	await box.startedTimes(6);
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
});

test('with restart.resetAfterMs a process that ran long enough starts with a fresh count', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(
		1,
		box.config([`starts=${box.file('starts')}`, 'end=300:exit:1'], {
			restart: { max: 1, baseMs: 10, resetAfterMs: 100 },
		})
	);
	await until(() => box.lines('starts').length >= 5, 15_000, 'more restarts than max allows in a row');
	assert.equal((await host.state(1)).processes[0].error, undefined);
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
});

test('a crash is answered when every thread that called has ended, and even without the host', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, box.config([`starts=${box.file('starts')}`], { restart: quick }));
	await host.terminate(1);
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 10_000, 'it was started again without the thread');
	await host.kill('SIGKILL');
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 3, 10_000, 'it was started again without the host');
	const next = await box.host({ threads: 1 });
	const { processes, report } = await next.guard(1, box.config([`starts=${box.file('starts')}`], { restart: quick }));
	assert.deepEqual([processes[0].pid, processes[0].adopted], [box.only().pid, true]);
	assert.equal(report.length, 1);
	assert.match(report[0], new RegExp(`joined the running pid ${processes[0].pid} rather than starting a second one$`));
});

test('a thread that calls while a restart is owed joins it and starts nothing', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 700 } });
	await host.guard(1, config);
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.exitRecord()?.outcome === 'restarting', 5_000, 'the keeper waits');
	const { processes } = await host.guard(2, config);
	assert.deepEqual([processes[0].pid, processes[0].adopted, processes[0].error], [box.only().pid, true, undefined]);
	await box.startedTimes(2);
});

test('status.stop() ends the watching of that call and nothing else', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`], { restart: quick });
	await host.guard(1, config);
	await host.guard(2, config);
	await host.call(1, 'stop', 'main');
	const old = box.only();
	process.kill(old.pid, 'SIGKILL');
	await host.stateUntil(
		2,
		(state) => state.restarts === 1 && !state.exited && state.pid !== old.pid,
		10_000,
		'the other thread goes on watching'
	);
	await never(async () => (await host.state(1)).processes[0].pid !== old.pid, 200, 'a stopped watch changes its state');
	assert.equal(alive(box.keepers()[0].pid), true);
	assert.equal(box.only().pid, (await host.state(2)).processes[0].pid);
});

test('eight crashes in a row end with one process, and every thread agrees on it', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 4 });
	const config = box.config([`starts=${box.file('starts')}`], { restart: { max: 100, baseMs: 5, capMs: 5 } });
	await host.guardAll(config);
	for (let crash = 1; crash <= 8; crash++) {
		process.kill(box.only().pid, 'SIGKILL');
		await until(() => box.lines('starts').length === crash + 1, 10_000, `start ${crash + 1}`);
		await until(
			() => box.record()?.pid === Number(box.lines('starts')[crash].split(' ')[0]),
			10_000,
			'it is on record'
		);
	}
	const one = box.only();
	for (const thread of [1, 2, 3, 4])
		await host.stateUntil(
			thread,
			(state) => state.pid === one.pid && !state.exited && state.restarts === 8,
			10_000,
			`shows pid ${one.pid} after 8 restarts`
		);
});
