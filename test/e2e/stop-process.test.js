// @ts-check
/** status.stopProcess(): through the keeper, with a deadline, by force only when asked. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {string[]} [more]
 * @param {Record<string, any>} [options]
 */
const config = (box, more = [], options = {}) =>
	box.config([`starts=${box.file('starts')}`, `signals=${box.file('signals')}`, ...more], {
		restart: { baseMs: 20 },
		...options,
	});

test('it stops the process with one SIGTERM by the keeper, and tells how it ended', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const kept = config(box, ['term=slow:150']);
	await host.guard(1, kept);
	await host.guard(2, kept);
	await box.startedTimes(1);
	const [one, [keeper]] = [box.only(), box.keepers()];
	// From a thread that only joined.
	const answer = await host.call(2, 'stopProcess', 'main', 'proc');
	assert.deepEqual([answer.stopped, answer.pid, answer.code ?? null, answer.signal], [true, one.pid, null, 'SIGTERM']);
	assert.equal(typeof answer.detail, 'string');
	assert.equal(box.running().length, 0);
	assert.deepEqual(box.lines('signals'), [`SIGTERM ${keeper.pid}`]);
	for (const thread of [1, 2])
		await host.stateUntil(thread, (state) => state.exited && state.signal === 'SIGTERM', 5_000, 'shows the stop');
	await never(() => box.lines('starts').length > 1, 300, 'it is started again');
	assert.equal(box.record(), null);
	const next = await host.guard(1, kept, 'next');
	assert.equal(box.only().pid, next.processes[0].pid, 'the next guard() starts it again');
});

test('with an exit code', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, ['term=exit:4']));
	await box.startedTimes(1);
	const answer = await host.call(1, 'stopProcess', 'main', 'proc', {});
	assert.deepEqual([answer.stopped, answer.code, answer.signal ?? null], [true, 4, null]);
	await never(() => box.lines('starts').length > 1, 300, 'a stop that was asked for counts as a crash');
});

test('a process that does not listen: not stopped without force, killed with it', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, ['term=ignore']));
	await box.startedTimes(1);
	const one = box.only();
	const first = await host.call(1, 'stopProcess', 'main', 'proc', { timeoutMs: 300 });
	assert.deepEqual([first.stopped, first.pid], [false, one.pid]);
	assert.equal(box.only().pid, one.pid);
	const second = await host.call(1, 'stopProcess', 'main', 'proc', { timeoutMs: 300, force: true });
	assert.deepEqual([second.stopped, second.signal], [true, 'SIGKILL']);
	await never(() => box.lines('starts').length > 1, 300, 'it is started again');
	await until(() => box.record() === null, 5_000, 'the lock is gone');
});

test('in a back-off it ends the keeper, and nothing is started', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, [], { restart: { baseMs: 60_000 } }));
	await box.startedTimes(1);
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.exitRecord()?.outcome === 'restarting', 5_000, 'the keeper waits');
	const answer = await host.call(1, 'stopProcess', 'main', 'proc');
	assert.equal(answer.stopped, true);
	await until(() => box.keepers().length === 0 && box.record() === null, 5_000, 'the keeper has ended');
	await box.startedTimes(1);
});

test('without a keeper, and for what does not run or was not declared', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	// With this code its end would be a crash, had nobody asked for it.
	await host.guard(1, config(box, ['term=exit:4'], { spawn: { kind: 'no-launcher' } }));
	await box.startedTimes(1);
	const one = box.only();
	const answer = await host.call(1, 'stopProcess', 'main', 'proc');
	assert.deepEqual([answer.stopped, answer.pid, answer.code], [true, one.pid, 4]);
	await never(() => box.lines('starts').length > 1, 300, 'it is started again');
	const again = await host.call(1, 'stopProcess', 'main', 'proc');
	assert.equal(typeof again.stopped, 'boolean');
	assert.match(again.detail, /\S/);
	await assert.rejects(host.call(1, 'stopProcess', 'main', 'other'), /other/);
	await assert.rejects(host.call(1, 'stopProcess', 'main', 'proc', { timeoutMs: -1 }), /timeoutMs/);
});

test('many threads stop it at once: one SIGTERM, the same answer for all', async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 4 })).load();
	await host.guardAll(config(box, ['term=slow:300']));
	await box.startedTimes(1);
	const one = box.only();
	const answers = await Promise.all(
		host.threadNumbers().map((thread) => host.call(thread, 'stopProcess', 'main', 'proc'))
	);
	for (const answer of answers) assert.deepEqual([answer.stopped, answer.pid], [true, one.pid]);
	assert.ok(box.lines('signals').length >= 1);
	await never(() => box.lines('starts').length > 1, 300, 'it is started again');
});

test('a process of another version under the name is not stopped', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
	await first.guard(1, config(box, ['note=/dev/null:1'], { version: 1 }));
	const { processes } = await second.guard(1, config(box, ['note=/dev/null:2'], { version: 2 }));
	const answer = await first.call(1, 'stopProcess', 'main', 'proc');
	assert.equal(answer.stopped, false);
	assert.match(answer.detail, /another configuration .*version 2, not 1/);
	await never(() => box.running().length !== 2, 300, 'one of them ends');
	assert.equal((await second.state(1)).processes[0].pid, processes[0].pid);
});
