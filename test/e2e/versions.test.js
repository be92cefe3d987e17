// @ts-check
/** Another version or another command line: who is left, who is stopped, and that two of one version never run. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * The versions differ by a word of the command line too, so that the table shows which of them runs.
 * @param {Sandbox} box
 * @param {number} version
 * @param {Record<string, any>} [options]
 * @param {string[]} [more]
 */
const config = (box, version, options = {}, more = []) =>
	box.config(
		[
			`starts=${box.file(`starts${version}`)}`,
			`signals=${box.file(`signals${version}`)}`,
			`note=${box.file('order')}:${version}`,
			...more,
		],
		{ version, restart: { baseMs: 10 }, ...options }
	);

/**
 * @param {Sandbox} box
 * @param {number} version
 */
const running = (box, version) =>
	box.running().filter((one) => one.argv.includes(`starts=${box.file(`starts${version}`)}`));

/** @param {Sandbox} box */
const host = (box) => box.host({ threads: 1 });

test('v1 to v2 with stopOrphans off: v1 is left running and reported, v2 holds the lock', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await host(box), await host(box)];
	const old = (await first.guard(1, config(box, 1))).processes[0];
	const { processes, report } = await second.guard(1, config(box, 2));
	assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
	assert.deepEqual([running(box, 1).length, running(box, 2).length], [1, 1]);
	assert.equal(running(box, 1)[0].pid, old.pid);
	assert.deepEqual([box.record().version, box.record().pid], [2, processes[0].pid]);
	assert.match(report.join('\n'), new RegExp(`pid ${old.pid}.*orphan`));
	assert.deepEqual(box.lines('signals1'), []);
	// The old one dies: its keeper lost the lock and starts nothing, and v2 is untouched by that record.
	process.kill(old.pid, 'SIGKILL');
	await first.stateUntil(1, (state) => state.exited, 5_000, 'the first host sees the end');
	await never(() => box.lines('starts1').length > 1 || running(box, 2).length !== 1, 400, 'the old version comes back');
	const state = (await second.state(1)).processes[0];
	assert.deepEqual([state.pid, state.exited, state.error], [processes[0].pid, false, undefined]);
});

test('v1 to v2 with stopOrphans on: v1 gets one SIGTERM, only v2 remains', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await host(box), await host(box)];
	await first.guard(1, config(box, 1, {}, ['term=slow:150']));
	await until(() => box.lines('starts1').length === 1, 5_000, 'v1 runs');
	const { processes, report } = await second.guard(1, config(box, 2, { stopOrphans: true }));
	await until(() => running(box, 1).length === 0, 5_000, 'v1 has ended');
	assert.deepEqual([running(box, 2).length, box.record().version, box.record().pid], [1, 2, processes[0].pid]);
	assert.equal(box.lines('signals1').length, 1, box.lines('signals1').join('\n'));
	assert.match(report.join('\n'), /is an orphan.*It was sent SIGTERM/s);
	const state = await first.stateUntil(1, (one) => one.exited, 5_000, 'the first host sees the end');
	assert.equal(state.signal, 'SIGTERM');
	await never(() => box.lines('starts1').length > 1 || box.running().length !== 1, 400, 'the old version comes back');
	await until(() => box.keepers().length === 1, 5_000, "the old version's keeper has ended");
});

test('v1, v2, back to v1, stopOrphans off: the v1 that still runs is joined and not doubled', async (t) => {
	const box = sandbox(t);
	const [first, second, third] = [await host(box), await host(box), await host(box)];
	const old = (await first.guard(1, config(box, 1))).processes[0];
	const middle = (await second.guard(1, config(box, 2))).processes[0];
	const back = (await third.guard(1, config(box, 1))).processes[0];
	assert.deepEqual([back.pid, back.adopted, back.error], [old.pid, true, undefined]);
	assert.deepEqual([running(box, 1).length, running(box, 2).length], [1, 1]);
	assert.deepEqual([box.record().version, box.record().pid], [1, old.pid]);
	await box.startedTimes(1, 'starts1');
	// And again forward: v2 still runs too.
	const forward = (await second.guard(1, config(box, 2), 'again')).processes[0];
	assert.deepEqual([forward.pid, forward.adopted], [middle.pid, true]);
	assert.deepEqual([box.lines('starts1').length, box.lines('starts2').length], [1, 1]);
});

test('the v1 that a roll-back joined is kept again: a crash of it is answered once', async (t) => {
	const box = sandbox(t);
	const [first, second, third] = [await host(box), await host(box), await host(box)];
	const old = (await first.guard(1, config(box, 1))).processes[0];
	await second.guard(1, config(box, 2));
	await third.guard(1, config(box, 1));
	process.kill(old.pid, 'SIGKILL');
	await until(() => box.lines('starts1').length === 2, 10_000, 'v1 was started again');
	await third.stateUntil(
		1,
		(state) => state.pid === running(box, 1)[0]?.pid && !state.exited,
		10_000,
		'the third host shows it'
	);
	await never(() => box.lines('starts1').length > 2 || running(box, 1).length !== 1, 400, 'it is doubled');
});

test('v1, v2, back to v1, stopOrphans on: one process at each step', async (t) => {
	const box = sandbox(t);
	for (const version of [1, 2, 1]) {
		const one = await host(box);
		const { processes } = await one.guard(1, config(box, version, { stopOrphans: true }));
		assert.equal(processes[0].error, undefined);
		await until(
			() => box.running().length === 1 && running(box, version).length === 1,
			5_000,
			() => `only v${version} runs\n${box.tree()}`
		);
		await until(() => box.lines(`starts${version}`).length >= 1, 5_000, 'it started');
	}
	await until(() => box.keepers().length === 1, 5_000, 'one keeper remains');
	assert.deepEqual(box.lines('order'), ['1', '2', '1']);
});

test('the same version with other arguments is an orphan too, reported without its arguments', async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	await one.guard(1, box.config(['note=/dev/null:a']));
	const { report, processes } = await one.guard(1, box.config(['note=/dev/null:b'], { stopOrphans: true }), 'changed');
	assert.match(report.join('\n'), /with other arguments, from number 2 on/);
	assert.doesNotMatch(report.join('\n'), /note=/, 'arguments may be secrets');
	await until(() => box.running().length === 1, 5_000, 'only the new one runs');
	assert.equal(box.only().pid, processes[0].pid);
});

test('the same version with other arguments is refused without stopOrphans, naming the first program and no argument', async (t) => {
	const box = sandbox(t);
	const one = await host(box);
	const first = (await one.guard(1, box.config(['note=/dev/null:a']))).processes[0];
	const { report, processes } = await one.guard(1, box.config(['note=/dev/null:b']), 'second');
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, new RegExp(`pid ${first.pid} .*proc" with other arguments, from number 2 on`));
	assert.doesNotMatch(processes[0].error, /note=/, 'arguments may be secrets');
	assert.match(report.join('\n'), /stopOrphans/, 'the remedy is named');
	await never(() => box.running().length !== 1 || box.only().pid !== first.pid, 300, 'they take turns');
});

test('a process that was replaced keeps its end on the state and is not called restarted', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await host(box), await host(box)];
	const old = (await first.guard(1, config(box, 1, {}, ['term=ignore']))).processes[0];
	await box.startedTimes(1, 'starts1');
	const { report } = await second.guard(
		1,
		config(box, 2, { stopOrphans: true, replaceGraceMs: 300, replaceKill: true })
	);
	assert.match(report.join('\n'), /SIGKILL/, 'what the grace ends with is said');
	const { log } = await first.stateUntil(1, (state) => state.exited, 5_000, 'the first host sees the end');
	const state = (await first.state(1)).processes[0];
	assert.deepEqual(
		[state.pid, state.started, state.signal, state.restarts, state.error],
		[old.pid, true, 'SIGKILL', 0, undefined]
	);
	const lines = (log ?? (await first.state(1)).log).map((/** @type {{ line: string }} */ { line }) => line).join('\n');
	assert.match(lines, /was replaced and has ended/);
	assert.doesNotMatch(lines, /Its keeper starts it again|Going back through the lock/);
});

test('with replaceGraceMs the new version starts after the old one has gone', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await host(box), await host(box)];
	await first.guard(1, config(box, 1, {}, ['term=slow:600']));
	await until(() => box.lines('starts1').length === 1, 5_000, 'v1 runs');
	const call = second.guard(1, config(box, 2, { stopOrphans: true, replaceGraceMs: 10_000 }));
	await never(() => running(box, 1).length > 0 && running(box, 2).length > 0, 500, 'both run');
	const { processes } = await call;
	assert.equal(processes[0].error, undefined);
	assert.deepEqual([running(box, 1).length, running(box, 2).length], [0, 1]);
});

test('an orphan that ignores SIGTERM: after replaceGraceMs the new one starts beside it; with replaceKill it is killed first', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await host(box), await host(box)];
	await first.guard(1, config(box, 1, {}, ['term=ignore']));
	await until(() => box.lines('starts1').length === 1, 5_000, 'v1 runs');
	const called = performance.now();
	await second.guard(1, config(box, 2, { stopOrphans: true, replaceGraceMs: 400 }, ['term=ignore']));
	assert.ok(performance.now() - called >= 390, 'the grace was waited for');
	assert.deepEqual([running(box, 1).length, running(box, 2).length], [1, 1]);
	await until(() => box.lines('starts2').length === 1, 5_000, 'v2 runs');
	const third = await host(box);
	await third.guard(1, config(box, 3, { stopOrphans: true, replaceGraceMs: 400, replaceKill: true }));
	await until(
		() => running(box, 2).length === 0 && running(box, 3).length === 1,
		5_000,
		() => `v2 was killed and v3 runs\n${box.tree()}`
	);
	for (const one of running(box, 1)) process.kill(one.pid, 'SIGKILL');
	await until(() => running(box, 1).length === 0, 5_000, 'v1 was ended by the test');
});

for (const stopOrphans of [false, true]) {
	test(`two hosts with different versions for a while, stopOrphans ${stopOrphans ? 'on' : 'off'}: no turns are taken`, {
		timeout: 180_000,
	}, async (t) => {
		const box = sandbox(t);
		const [first, second] = [await box.host({ threads: 4 }), await box.host({ threads: 4 })];
		await first.guardAll(config(box, 1, { stopOrphans }));
		await until(() => box.lines('starts1').length === 1, 5_000, 'v1 runs');
		await second.guardAll(config(box, 2, { stopOrphans }));
		await until(() => running(box, 1).length === (stopOrphans ? 0 : 1), 5_000, 'v1 is what the protocol says');
		// One that is killed before its first line would be missing in the count for good.
		await box.startedTimes(1, 'starts2');
		const end = performance.now() + rounds(6_000, 60_000);
		let crashes = 0;
		while (performance.now() < end) {
			// Crashes keep both hosts deciding all the time.
			process.kill(running(box, 2)[0].pid, 'SIGKILL');
			crashes++;
			await until(
				() => box.lines('starts2').length === crashes + 1 && running(box, 2).length === 1,
				60_000,
				() => `v2 is back after crash ${crashes}\n${box.tree()}`
			);
			assert.equal(running(box, 1).length, stopOrphans ? 0 : 1);
			await box.startedTimes(1, 'starts1');
			if (crashes === 4) break;
		}
		await never(
			() => running(box, 2).length !== 1 || running(box, 1).length !== (stopOrphans ? 0 : 1),
			Math.max(500, end - performance.now()),
			'one of them changes'
		);
		for (const thread of [1, 2, 3, 4]) {
			const mine = (await second.state(thread)).processes[0];
			assert.deepEqual([mine.pid, mine.exited], [running(box, 2)[0].pid, false]);
			const other = (await first.state(thread)).processes[0];
			assert.equal(other.exited, stopOrphans);
		}
	});
}

test('two versions called by many threads at once: one process each and never two', async (t) => {
	const box = sandbox(t);
	const [first, second] = [
		await (await box.host({ threads: 8 })).load(),
		await (await box.host({ threads: 8 })).load(),
	];
	for (let round = 0; round < rounds(5, 30); round++) {
		const at = Date.now() + 40;
		await Promise.all([first.guardAll(config(box, 1), { at }), second.guardAll(config(box, 2), { at })]);
		assert.deepEqual([running(box, 1).length, running(box, 2).length], [1, 1], `round ${round}\n${box.tree()}`);
		assert.deepEqual(
			[box.lines('starts1').length, box.lines('starts2').length],
			[round + 1, round + 1],
			`round ${round}`
		);
		for (const keeper of box.keepers()) process.kill(keeper.pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 10_000, 'all have ended');
	}
});
