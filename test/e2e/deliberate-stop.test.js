// @ts-check
/** What somebody stopped on purpose stays stopped: no restart, no lock, a record that says so, one SIGTERM. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/** @param {Sandbox} box */
const words = (box) => [`signals=${box.file('signals')}`, `starts=${box.file('starts')}`];

/**
 * @param {Sandbox} box
 * @param {string[]} [more]
 * @param {Record<string, any>} [options]
 */
async function started(box, more = [], options = {}) {
	const host = await box.host({ threads: 2 });
	const config = box.config([...words(box), ...more], options);
	await host.guard(1, config);
	await host.guard(2, config);
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	return host;
}

/**
 * @param {Sandbox} box
 * @param {import('../support/host.js').Host} host
 * @param {{ code?: number | null, signal?: string | null }} cause
 */
async function assertStopped(box, host, { code = null, signal = null }) {
	await until(
		() => box.running().length === 0 && box.keepers().length === 0,
		10_000,
		() => `process and keeper have ended\n${box.tree()}`
	);
	for (const thread of [1, 2]) {
		const state = await host.stateUntil(thread, (one) => one.exited, 5_000, 'it shows the end');
		assert.deepEqual(
			[state.code ?? null, state.signal ?? null, state.error, state.restarts],
			[code, signal, undefined, 0]
		);
		const { log } = await host.state(thread);
		assert.ok(
			log.some((/** @type {any} */ entry) => /was shut down \(.+\); not restarting it/.test(entry.line)),
			JSON.stringify(log)
		);
	}
	assert.deepEqual(
		box.files().filter((name) => name === 'proc.pid' || name.includes('.keeper.') || name.endsWith('.tmp')),
		[]
	);
	const exit = box.exitRecord();
	assert.deepEqual([exit.outcome, exit.code, exit.signal, exit.released], ['released', code, signal, true]);
	await never(() => box.lines('starts').length > 1, 300, 'it is started again');
}

for (const name of /** @type {const} */ (['SIGTERM', 'SIGINT', 'SIGHUP'])) {
	test(`${name} to the process: not started again, and counted once`, async (t) => {
		const box = sandbox(t);
		const host = await started(box, ['term=slow:150'], { restart: { baseMs: 10 } });
		process.kill(box.only().pid, name);
		await assertStopped(box, host, { signal: name });
		assert.deepEqual(box.lines('signals'), [`${name} ${process.pid}`]);
	});

	test(`${name} to the keeper: passed on exactly once, not started again`, async (t) => {
		const box = sandbox(t);
		const host = await started(box, ['term=slow:150'], { restart: { baseMs: 10 } });
		const [keeper] = box.keepers();
		process.kill(keeper.pid, name);
		await assertStopped(box, host, { signal: name });
		assert.deepEqual(box.lines('signals'), [`${name} ${keeper.pid}`]);
	});
}

test('two signals to the keeper while the process takes its time are both passed on, each once', async (t) => {
	const box = sandbox(t);
	const host = await started(box, ['term=ignore'], { restart: { baseMs: 10 } });
	const [keeper] = box.keepers();
	process.kill(keeper.pid, 'SIGINT');
	await until(() => box.lines('signals').length === 1, 5_000, 'the first has arrived');
	process.kill(keeper.pid, 'SIGTERM');
	await until(() => box.lines('signals').length === 2, 5_000, 'the second has arrived');
	assert.deepEqual(box.lines('signals'), [`SIGINT ${keeper.pid}`, `SIGTERM ${keeper.pid}`]);
	// Stopped after all, by force: the stop was asked for, so this is no crash.
	process.kill(box.only().pid, 'SIGKILL');
	await assertStopped(box, host, { signal: 'SIGKILL' });
});

test('exit code 0 is a shutdown', async (t) => {
	const box = sandbox(t);
	const host = await started(box, ['term=exit:0'], { restart: { baseMs: 10 } });
	process.kill(box.only().pid, 'SIGTERM');
	await assertStopped(box, host, { code: 0 });
});

test('a code in deliberateExitCodes is a shutdown, and 0 is none unless listed', async (t) => {
	const box = sandbox(t);
	const host = await started(box, ['term=exit:143'], { restart: { baseMs: 10 }, deliberateExitCodes: [0, 143] });
	process.kill(box.only().pid, 'SIGTERM');
	await assertStopped(box, host, { code: 143 });
});

test('without that list a process that exits 143 on SIGTERM is started again', async (t) => {
	const box = sandbox(t);
	await started(box, ['term=exit:143'], { restart: { baseMs: 10 } });
	process.kill(box.only().pid, 'SIGTERM');
	await until(() => box.lines('starts').length === 2, 10_000, 'it was started again');
});

test('SIGTERM to the keeper in a back-off ends it at once, released', async (t) => {
	const box = sandbox(t);
	const host = await started(box, [], { restart: { baseMs: 60_000 } });
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.exitRecord()?.outcome === 'restarting', 5_000, 'the keeper waits');
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 2_000, 'the keeper has ended');
	assert.equal(box.record(), null);
	assert.equal(box.exitRecord().outcome, 'released');
	for (const thread of [1, 2]) await host.stateUntil(thread, (one) => one.exited, 5_000, 'it shows the end');
	await box.startedTimes(1);
});

test("SIGTERM to the host's process group reaches neither keeper nor process", async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1, detached: true });
	await host.guard(1, box.config([...words(box), 'term=slow:150'], { restart: { baseMs: 10 } }));
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	const [one, keeper] = [box.only(), box.keepers()[0]];
	process.kill(-host.pid, 'SIGTERM');
	await host.exited;
	await never(() => box.lines('signals').length > 0, 400, 'a signal to the group arrives');
	assert.equal(box.only().pid, one.pid);
	process.kill(keeper.pid, 'SIGTERM');
	await until(() => box.running().length === 0, 5_000, 'the process has ended');
	assert.deepEqual(box.lines('signals'), [`SIGTERM ${keeper.pid}`]);
	await box.startedTimes(1);
});

test("SIGTERM to the host's process group and then the reaper: one SIGTERM in all", async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1, detached: true });
	await host.guard(
		1,
		box.config([...words(box), 'term=slow:150'], { restart: { baseMs: 10 }, reaper: { graceMs: 200 } })
	);
	await until(() => box.lines('starts').length === 1, 5_000, 'it started');
	const [reaper] = box.reapers();
	process.kill(-host.pid, 'SIGTERM');
	await host.exited;
	await until(
		() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
		10_000,
		() => `everything has ended\n${box.tree()}`
	);
	assert.deepEqual(box.lines('signals'), [`SIGTERM ${reaper.pid}`]);
	await box.startedTimes(1);
	assert.deepEqual(
		box.files().filter((name) => name.endsWith('.pid') || name.endsWith('.reaping')),
		[]
	);
});

test('a keeper has a session of its own, the process a group of its own', async (t) => {
	const box = sandbox(t);
	const host = await started(box);
	const [one, [keeper]] = [box.only(), box.keepers()];
	assert.equal(one.ppid, keeper.pid);
	assert.equal(keeper.sid, keeper.pid);
	assert.equal(one.pgid, one.pid);
	assert.equal(one.sid, keeper.sid);
	assert.notEqual(keeper.ppid, host.pid);
});
