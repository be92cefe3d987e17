// @ts-check
/** After the end of a host its reaper stops what it left, unless a replacement host comes within the grace. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/** @param {Sandbox} box */
const words = (box) => [`starts=${box.file('starts')}`, `signals=${box.file('signals')}`, 'term=slow:100'];

/**
 * @param {Sandbox} box
 * @param {Record<string, any>} [reaper]
 * @param {Record<string, any>} [more]
 */
const config = (box, reaper = {}, more = {}) =>
	box.config(words(box), {
		restart: { baseMs: 10 },
		reaper: { graceMs: 300, logFile: box.file('reaper.log'), ...reaper },
		...more,
	});

/** @param {Sandbox} box */
const locks = (box) =>
	box.files().filter((name) => name.endsWith('.pid') || name.endsWith('.reaping') || name.includes('.keeper.'));

/** @param {Sandbox} box */
async function allGone(box, deadlineMs = 15_000) {
	await until(
		() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
		deadlineMs,
		() => `everything has ended\n${box.tree()}\n${reaperLog(box)}`
	);
}

/** @param {Sandbox} box */
const reaperLog = (box) => (existsSync(box.file('reaper.log')) ? readFileSync(box.file('reaper.log'), 'utf8') : '');

test('SIGKILL of the host: process, keepers (one in back-off too) and locks are gone', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const crashing = box.process([`starts=${box.file('crashing')}`], {
		name: 'crashing',
		restart: { baseMs: 60_000 },
	});
	const base = config(box);
	const result = (await host.guardAll({ ...base, processes: [...base.processes, crashing] }))[0];
	assert.deepEqual([result.reaper.started, result.reaper.error], [true, undefined]);
	await box.startedTimes(1, 'crashing');
	process.kill(Number(box.lines('crashing')[0].split(' ')[0]), 'SIGKILL');
	await until(() => box.exitRecord('crashing')?.outcome === 'restarting', 10_000, 'the other keeper waits');
	assert.deepEqual([box.running().length, box.keepers().length, box.reapers().length], [1, 2, 1]);
	await host.kill('SIGKILL');
	await allGone(box);
	assert.deepEqual(locks(box), []);
	assert.equal(box.lines('signals').length, 1, 'one SIGTERM');
	assert.deepEqual([box.lines('starts').length, box.lines('crashing').length], [1, 1]);
	for (const line of [/watching pid \d+/, /host .*gone|gone/, /sent SIGTERM/, /done\./])
		assert.match(reaperLog(box), line);
});

test('the reaper is no child of the host, has a session of its own and is shared by all threads', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 8 });
	const results = await host.guardAll(config(box));
	const [reaper, ...others] = box.reapers();
	assert.equal(others.length, 0);
	for (const result of results)
		assert.deepEqual([result.reaper.pid, result.reaper.started, result.reaper.error], [reaper.pid, true, undefined]);
	assert.equal(results.filter((result) => !result.reaper.adopted).length, 1);
	assert.equal(reaper.sid, reaper.pid);
	assert.notEqual(reaper.ppid, host.pid);
});

test('a host that exits by itself is followed by the reaper too', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box));
	host.call(0, 'exit', 0).catch(() => {});
	await host.exited;
	await allGone(box);
	assert.deepEqual(locks(box), []);
});

test('a replacement host inside the grace keeps the process and adopts it, same pid', async (t) => {
	const box = sandbox(t);
	const replacementPidFile = box.file('host.pid');
	const options = config(box, { graceMs: 8_000, replacementPidFile });
	const host = await box.host({ threads: 2 });
	writeFileSync(replacementPidFile, `${host.pid}`);
	await host.guardAll(options);
	const [one, [reaper]] = [box.only(), box.reapers()];
	await host.kill('SIGKILL');
	const next = await box.host({ threads: 2 });
	writeFileSync(replacementPidFile, `${next.pid}`);
	await until(() => !alive(reaper.pid, reaper.started), 12_000, 'the first reaper has left');
	assert.match(reaperLog(box), /took over inside the grace window/);
	assert.equal(box.only().pid, one.pid);
	for (const { processes, reaper: second } of await next.guardAll(options)) {
		assert.deepEqual([processes[0].pid, processes[0].adopted], [one.pid, true]);
		assert.deepEqual([second.started, second.error], [true, undefined]);
		assert.notEqual(second.pid, reaper.pid);
	}
	assert.deepEqual([box.lines('starts').length, box.lines('signals').length], [1, 0]);
	// And the second reaper does its work.
	await next.kill('SIGKILL');
	writeFileSync(replacementPidFile, '');
	await allGone(box, 20_000);
	assert.equal(box.lines('signals').length, 1);
});

test('a replacement that calls guard() before the old reaper looks is not disturbed by it', async (t) => {
	const box = sandbox(t);
	const options = config(box, { graceMs: 1_500, replacementPidFile: box.file('host.pid') });
	const [host, next] = [await box.host({ threads: 1 }), await (await box.host({ threads: 1 })).load()];
	await host.guard(1, options);
	const one = box.only();
	await host.kill('SIGKILL');
	writeFileSync(box.file('host.pid'), `${next.pid}`);
	const { processes, reaper } = await next.guard(1, options);
	assert.deepEqual([processes[0].pid, processes[0].adopted], [one.pid, true]);
	assert.deepEqual([reaper.started, reaper.error], [true, undefined]);
	await until(
		() => box.reapers().length === 1 && box.reapers()[0].pid === reaper.pid,
		10_000,
		() => `only reaper ${reaper.pid} is left\n${box.tree()}\n${reaperLog(box)}`
	);
	await never(() => box.lines('signals').length > 0 || box.running().length !== 1, 1_000, 'the process is touched');
});

test('a stale replacement file keeps nothing running: dead pid, recycled pid, thread id, garbage, the host itself', async (t) => {
	for (const kind of ['absent', 'dead', 'recycled', 'thread', 'zombie', 'garbage', 'host']) {
		await t.test(kind, async (tt) => {
			const box = sandbox(tt);
			const file = box.file('host.pid');
			const host = await box.host({ threads: 2 });
			const stranger = box.spawn(['stranger', `zombie=${box.file('zombie')}`]);
			const zombie = Number(await until(() => box.lines('zombie')[0], 5_000, 'the zombie is there'));
			const tasks = readdirSync(`/proc/${process.pid}/task`).map(Number);
			/** @type {Record<string, string>} */
			const contents = {
				dead: '4194305',
				recycled: `${stranger.pid}`,
				thread: `${tasks.find((task) => task !== process.pid)}`,
				zombie: `${zombie}`,
				garbage: 'no pid',
				host: `${host.pid}`,
			};
			if (kind !== 'absent') {
				writeFileSync(file, contents[kind]);
				// Written long before the process that now has the number: it named another one.
				if (kind === 'recycled') utimesSync(file, new Date(Date.now() - 3_600_000), new Date(Date.now() - 3_600_000));
			}
			await host.guard(1, config(box, { replacementPidFile: file }));
			await host.kill('SIGKILL');
			await allGone(box);
			assert.equal(box.lines('signals').length, 1);
		});
	}
});

test('a process that ignores SIGTERM gets SIGKILL after five seconds, and others do not wait for it', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const stubborn = ['a', 'b', 'c'].map((name) =>
		box.process(['term=ignore', `starts=${box.file(name)}`, `signals=${box.file(`signals-${name}`)}`], { name })
	);
	const base = config(box);
	await host.guard(1, { ...base, processes: [...stubborn, ...base.processes] });
	await host.kill('SIGKILL');
	const killed = performance.now();
	await until(() => box.running().length === 3, 5_000, 'the obedient one has ended first');
	await allGone(box, 12_000);
	const took = performance.now() - killed;
	assert.ok(took >= 5_000, `SIGKILL came after ${took} ms`);
	assert.ok(took < 9_500, `three stubborn processes took ${took} ms, one after the other`);
	assert.deepEqual(locks(box), []);
	for (const name of ['a', 'b', 'c']) assert.equal(box.lines(`signals-${name}`).length, 1);
});

test('SIGTERM to the reaper ends it at once and touches nothing; the next guard() starts another', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const options = config(box);
	await host.guard(1, options);
	const one = box.only();
	await until(() => /watching pid/.test(reaperLog(box)), 5_000, 'the reaper watches');
	const before = box.files();
	process.kill(box.reapers()[0].pid, 'SIGTERM');
	await until(() => box.reapers().length === 0, 3_000, 'the reaper has ended');
	assert.match(reaperLog(box), /received SIGTERM/);
	assert.deepEqual(box.files(), before);
	assert.equal(box.only().pid, one.pid);
	const { reaper } = await host.guard(1, options, 'again');
	assert.deepEqual([reaper.started, reaper.adopted, reaper.error], [true, false, undefined]);
	assert.equal(box.reapers()[0].pid, reaper.pid);
});

test('a reaper killed while it stops a process: the next host finishes the stop and starts one', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const options = box.config([...words(box), 'term=ignore'], {
		reaper: { graceMs: 100, logFile: box.file('reaper.log') },
		claimTimeoutMs: 20_000,
	});
	await host.guard(1, options);
	const one = box.only();
	await host.kill('SIGKILL');
	await until(() => box.lines('signals').length === 1, 10_000, 'the process was sent SIGTERM');
	const [reaper] = box.reapers();
	process.kill(reaper.pid, 'SIGKILL');
	const next = await box.host({ threads: 1 });
	const { processes } = await next.guard(1, options);
	assert.equal(processes[0].error, undefined);
	assert.notEqual(processes[0].pid, one.pid);
	assert.equal(box.only().pid, processes[0].pid);
	await box.startedTimes(2);
	process.kill(box.only().pid, 'SIGKILL');
	process.kill(box.keepers()[0].pid, 'SIGTERM');
});

test('without a reaper the process outlives the host and the next host adopts it', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const options = box.config(words(box));
	const { processes, hasReaper } = await host.guard(1, options);
	assert.equal(hasReaper, false);
	await host.kill('SIGKILL');
	await never(() => box.running().length !== 1, 400, 'the process ends');
	const next = await box.host({ threads: 1 });
	const { processes: joined } = await next.guard(1, options);
	assert.deepEqual([joined[0].pid, joined[0].adopted], [processes[0].pid, true]);
});

test('a process that ended before the host did is "gone" and costs nothing', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box));
	process.kill(box.only().pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
	await host.kill('SIGKILL');
	await allGone(box, 5_000);
	assert.deepEqual(locks(box), []);
});

test('a host that guards again under another version keeps exactly one working reaper', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, config(box, {}, { version: 1 }));
	await until(() => box.lines('starts').length === 1, 5_000, 'v1 runs');
	await host.guard(1, config(box, {}, { version: 2, stopOrphans: true }), 'second');
	await until(() => box.running().length === 1 && box.lines('starts').length === 2, 5_000, 'v2 runs alone');
	assert.ok(box.reapers().length >= 1);
	const pid = box.only().pid;
	assert.ok(processOf(pid));
	await host.kill('SIGKILL');
	await allGone(box);
	assert.deepEqual(locks(box), []);
});
