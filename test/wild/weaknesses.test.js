// @ts-check
/** Weaknesses of the JavaScript original that no other test is about; docs/failures.md lists all of them. */
import assert from 'node:assert/strict';
import { linkSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { refusing } from '../support/fixtures.js';
import { startOf } from '../support/planted.js';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** A clock that all processes of the machine share, as the hosts note it. */
const now = () => Number(process.hrtime.bigint()) / 1e6;

test('liveness by polling: ten deaths are each on the state of every thread long before a poll would have seen them', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 3 });
	await host.guardAll(box.config([`starts=${box.file('starts')}`], { restart: { max: 100, baseMs: 1, capMs: 1 } }));
	/** @type {number[]} */
	const took = [];
	for (let death = 1; death <= 10; death++) {
		await box.startedTimes(death);
		const { pid } = box.only();
		for (const thread of [1, 2, 3])
			await host.stateUntil(thread, (state) => state.pid === pid && !state.exited, 5_000, 'it shows the process');
		const at = now();
		process.kill(pid, 'SIGKILL');
		for (const thread of [1, 2, 3]) {
			await host.stateUntil(thread, (state) => state.restarts === death && !state.exited, 5_000, 'it runs again');
			const seen = (await host.call(thread, 'changes', 'main')).filter(
				(/** @type {any} */ one) => one.field === 'exited' && one.value === true
			);
			took.push(seen.at(-1).at - at);
		}
	}
	took.sort((a, b) => a - b);
	// The original looks every two seconds: a second in the middle. The machine may be slow, so not all are counted.
	assert.ok(took[15] < 250, `in the middle ${took[15]} ms: ${took.map(Math.round).join(' ')}`);
});

test('only keeper-written locks carry a start time: those of a direct start and of a reaper do too', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const direct = box.config([`starts=${box.file('starts')}`], { spawn: { kind: 'no-launcher' } });
	const { pid } = (await host.guard(1, direct)).processes[0];
	assert.deepEqual([box.record().keeper, box.record().started], [undefined, startOf(pid)]);
	const { reaper } = await host.guard(2, { ...direct, spawn: { kind: 'plain' }, reaper: { graceMs: 100 } });
	assert.equal(box.record('process-guard-reaper').started, startOf(reaper.pid));
});

test('needs hard links in pidDir: where the file system has none everything works', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2, under: refusing('link:EPERM') });
	const config = box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 1 }, reaper: { graceMs: 100 } });
	for (const { processes, reaper } of await host.guardAll(config))
		assert.deepEqual([processes[0].error, reaper.error], [undefined, undefined]);
	await box.startedTimes(1);
	process.kill(box.only().pid, 'SIGKILL');
	await box.startedTimes(2);
	for (const thread of [1, 2])
		await host.stateUntil(thread, (state) => state.restarts === 1 && !state.exited, 5_000, 'it runs again');
	const { stopped } = await host.call(1, 'stopProcess', 'main', 'proc', {});
	assert.equal(stopped, true);
	// The filter was really there: a link cannot be made under it.
	writeFileSync(box.file('a'), '');
	linkSync(box.file('a'), box.file('b'));
	assert.match(readFileSync(`/proc/${host.pid}/status`, 'utf8'), /^Seccomp:\t2$/m);
});

test('one exit record per name: the end of a replaced v1 says nothing about v2', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
	const config = (/** @type {number} */ version) =>
		box.config([`starts=${box.file(`starts${version}`)}`], { version, restart: { baseMs: 5 } });
	const v1 = (await first.guard(1, config(1))).processes[0];
	const v2 = (await second.guard(1, config(2))).processes[0];
	await box.startedTimes(1, 'starts1');
	await box.startedTimes(1, 'starts2');
	// The host of v2 looks when all of it is over, and the keeper of v1 was the last to say something.
	await box.stopOutsideTheGate(second.pid);
	for (const [pid, how] of /** @type {const} */ ([
		[v2.pid, 'SIGTERM'],
		[v1.pid, 'SIGKILL'],
	])) {
		const keepers = box.keepers().length;
		process.kill(pid, how);
		await until(() => box.keepers().length === keepers - 1, 5_000, 'its keeper has said it and has gone');
	}
	process.kill(second.pid, 'SIGCONT');
	const state = await second.stateUntil(1, (one) => one.exited, 5_000, 'it shows the end of v2');
	assert.deepEqual([state.pid, state.signal, state.exitProof, state.error], [v2.pid, 'SIGTERM', 'keeper', undefined]);
	const old = await first.stateUntil(1, (one) => one.exited, 5_000, 'the other shows the end of v1');
	assert.deepEqual([old.pid, old.signal], [v1.pid, 'SIGKILL']);
	assert.equal(box.exitRecord()?.pid, v2.pid, 'the slot is still of v2');
	await never(() => box.running().length > 0, 300, 'one of them is started again');
});

test('secrets in arguments: on no command line but that of the process itself, in no file that others may read', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const secret = 'note=/dev/null:hunter2-is-the-word';
	const { processes, reaper } = await host.guard(1, box.config([secret], { reaper: { graceMs: 100 } }));
	const bearers = box
		.all()
		.filter((one) => one.argv.some((word) => word.includes('hunter2')))
		.map((one) => one.pid);
	assert.deepEqual(bearers, [processes[0].pid]);
	assert.deepEqual([alive(processes[0].keeper), alive(reaper.pid)], [true, true]);
	assert.ok(readFileSync(join(box.pidDir, 'proc.pid'), 'utf8').includes('hunter2'));
});
