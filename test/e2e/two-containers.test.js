// @ts-check
/**
 * Two containers in miniature that share a pidDir: hosts in pid namespaces of their own, both pid 1. No pid of the one
 * means anything in the other, so only what the kernel says about a lock decides. Counted is from outside, where both
 * are seen.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { asPidOne } from '../support/host.js';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {string[]} [more] further namespaces
 * @param {string} [name] a host name of its own
 */
const container = (box, more = [], name = '') =>
	box.host({
		threads: 2,
		under: [...asPidOne(), ...more, ...(name ? ['--uts', 'sh', '-c', 'hostname "$0" && exec "$@"', name] : [])],
	});

/** @param {string[]} more */
function cannot(more) {
	const [command, ...args] = [...asPidOne(), ...more, 'true'];
	const { status, stderr, error } = spawnSync(command, args, { encoding: 'utf8' });
	return status === 0 ? false : `${command} ${args.join(' ')}: ${error?.message ?? stderr.trim()}`;
}

/** @param {Sandbox} box */
const words = (box) => [`starts=${box.file('starts')}`, `signals=${box.file('signals')}`];

/**
 * @param {Sandbox} box
 * @param {Record<string, any>} [more]
 */
const config = (box, more = {}) => box.config(words(box), { restart: { baseMs: 20 }, ...more });

const refusal =
	/proc\.pid belongs to another pid namespace \(another container\) whose keeper is alive; not started: give each container a pidDir of its own, or stop the process there/;

/** @param {any} result */
function assertRefused(result) {
	const [state] = result.processes;
	assert.equal(state.started, false);
	assert.match(state.error, refusal);
	assert.match(result.report.join('\n'), refusal);
	// The lock's holder is known at once; nothing would be gained by waiting for it.
	assert.ok(result.tookMs < 5_000, `it took ${result.tookMs} ms`);
}

/**
 * @param {Sandbox} box
 * @param {any} result
 */
function assertRuns(box, result) {
	const [state] = result.processes;
	assert.deepEqual([state.started, state.exited, state.error], [true, false, undefined], result.report.join('\n'));
	assert.equal(box.running().length, 1, box.tree());
	assert.equal(box.record().pid, state.pid, 'the record has the pid that holds in the container');
}

/**
 * A claim is protected from the other container only once its launcher has the lock. Those of both may go back and forth
 * before that; a caller who lost two is told so, while whoever wrote the last one goes on.
 * @param {Sandbox} box
 * @param {any} result
 */
function assertRunsOrRefused(box, result) {
	const [state] = result.processes;
	if (state.started) assertRuns(box, result);
	else if (!/its claim in .* was taken away twice .*; the next guard\(\) tries again/.test(state.error))
		assertRefused(result);
}

for (const [network, more] of /** @type {const} */ ([
	['a network namespace each', ['--net']],
	['one network', []],
])) {
	test(`two containers, one pidDir, ${network}: one process, a clear refusal, and a takeover once the first is gone`, {
		skip: cannot([...more]),
	}, async (t) => {
		const box = sandbox(t);
		const [first, second] = [await container(box, [...more]), await container(box, [...more])];
		for (const result of await first.guardAll(config(box))) assertRuns(box, result);
		await box.startedTimes(1);
		const one = box.only();
		for (const result of await second.guardAll(config(box))) assertRefused(result);
		// Nor is it an orphan to be stopped, whatever the second one wants.
		assertRefused(await second.guard(1, config(box, { version: 2, stopOrphans: true }), 'newer'));
		assert.deepEqual([box.only().pid, box.lines('signals')], [one.pid, []]);
		// A crash is answered by its own keeper, with the lock held all the time.
		process.kill(one.pid, 'SIGKILL');
		await box.startedTimes(2);
		assertRefused(await second.guard(1, config(box), 'after the crash'));
		const again = box.only();

		await first.kill();
		await until(() => !alive(again.pid, again.started), 5_000, 'a pid namespace ends with its pid 1');
		for (const result of await second.guardAll(config(box), { key: 'next' })) assertRuns(box, result);
		await box.startedTimes(3);
		assert.deepEqual(box.lines('signals'), []);
		// And the other way round, for a container that comes back.
		const back = await container(box, [...more]);
		for (const result of await back.guardAll(config(box))) assertRefused(result);
		await second.kill();
		await until(() => box.running().length === 0, 5_000, 'the second one has ended too');
		for (const result of await back.guardAll(config(box), { key: 'next' })) assertRuns(box, result);
		await box.startedTimes(4);
	});
}

test('two containers that call at one instant: one of them has the process, never both', {
	skip: cannot([]),
}, async (t) => {
	const box = sandbox(t);
	const hosts = [await (await container(box)).load(), await (await container(box)).load()];
	let starts = 0;
	for (let round = 0; round < rounds(8, 60); round++) {
		const at = Date.now() + 40;
		const results = await Promise.all(hosts.map((host) => host.guardAll(config(box), { at, key: `round${round}` })));
		const winners = results.filter((each) => each.some(({ processes }) => processes[0].started));
		assert.equal(winners.length, 1, `round ${round}: ${JSON.stringify(results, null, 1)}`);
		for (const result of results.flat()) assertRunsOrRefused(box, result);
		await box.startedTimes(++starts);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 10_000, 'the round is over');
	}
});

test('a holder that is no process here, and is stopped: not taken over while its lock is held, at once afterwards', {
	skip: cannot([]),
}, async (t) => {
	const box = sandbox(t);
	const [first, second] = [await container(box), await container(box)];
	assertRuns(box, await first.guard(1, config(box)));
	await box.startedTimes(1);
	const one = box.only();
	const record = box.record();
	const here = await second.call(1, 'invoke', 'identify', record.pid, record.argv);
	assert.notEqual(here, 'match', 'its pid is nobody, or somebody else, in the second container');
	const [keeper] = box.keepers();
	process.kill(keeper.pid, 'SIGSTOP');
	t.after(() => alive(keeper.pid, keeper.started) && process.kill(keeper.pid, 'SIGCONT'));
	for (const claimTimeoutMs of [1_000, 47_000])
		assertRefused(
			await second.guard(1, config(box, { claimTimeoutMs, stopOrphans: true }), `stopped ${claimTimeoutMs}`)
		);
	// Its process dies: the record names a dead pid, of a namespace that cannot be looked into, and the lock still holds.
	process.kill(one.pid, 'SIGKILL');
	assertRefused(await second.guard(1, config(box), 'dead'));
	await until(() => box.running().length === 0, 5_000, 'the process has ended');
	process.kill(keeper.pid, 'SIGKILL');
	await until(() => !alive(keeper.pid, keeper.started), 5_000, 'the keeper has ended');
	// The first container answers a proven crash by itself: whoever comes first has it, and there is one.
	const result = await second.guard(1, config(box), 'free');
	assertRunsOrRefused(box, result);
	await box.startedTimes(2);
	await never(() => box.running().length !== 1 || box.lines('starts').length > 2, 500, 'there are two, or none');
});

test('a process whose keeper was killed is not seen from the other container: taken over, said so, not signalled', {
	skip: cannot([]),
}, async (t) => {
	const box = sandbox(t);
	const [first, second] = [await container(box), await container(box)];
	assertRuns(box, await first.guard(1, config(box)));
	await box.startedTimes(1);
	const one = box.only();
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
	const { processes, report } = await second.guard(1, config(box, { stopOrphans: true }));
	assert.deepEqual([processes[0].started, processes[0].error], [true, undefined]);
	assert.match(
		report.join('\n'),
		/took over a lock written in another pid namespace \(pid \d+ there\); no keeper of it is alive, and a process without one cannot be seen from here/
	);
	// The known limit: both run now.
	assert.equal(box.running().length, 2);
	assert.ok(alive(one.pid, one.started));
	assert.deepEqual(box.lines('signals'), []);
	// The first container's threads do not answer with a third one when theirs ends.
	process.kill(one.pid, 'SIGKILL');
	await first.stateUntil(1, (state) => state.exited, 10_000, 'shows the end');
	await never(() => box.running().length !== 1 || box.lines('starts').length > 2, 500, 'there is a third one');
});

test('the record of a dead container with another host name is taken over at once', {
	skip: cannot(['--uts']),
}, async (t) => {
	const box = sandbox(t);
	for (const [index, name] of ['first', 'second', 'first'].entries()) {
		const host = await container(box, [], name);
		const result = await host.guard(1, config(box, { claimTimeoutMs: 30_000 }));
		assertRuns(box, result);
		assert.ok(result.tookMs < 5_000, `container ${index} waited ${result.tookMs} ms`);
		// The kernel gives the number of a dead namespace away again, so the record may seem to be of this one. Then the pid
		// is looked at, and its start tells that it is over.
		if (index > 0)
			assert.match(
				result.report.join('\n'),
				/took over a lock written in another pid namespace|reclaimed the lock from pid \d+/
			);
		await box.startedTimes(index + 1);
		await host.kill();
		await until(() => box.running().length === 0, 5_000, 'everything in the container has ended');
		assert.equal(box.record().pid, result.processes[0].pid, 'the record is left');
	}
	assert.deepEqual(box.lines('signals'), []);
});
