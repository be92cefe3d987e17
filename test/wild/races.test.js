// @ts-check
/** Failures in the wild: two who decide at once, and one who decides on what is no longer so. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { test } from 'node:test';
import { faultBuild } from '../support/fixtures.js';
import { nobodysPid, plant, recordText } from '../support/planted.js';
import { freePort, get } from '../support/ports.js';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {number} version
 * @param {Record<string, any>} [options]
 * @param {string[]} [more]
 */
const config = (box, version, options = {}, more = []) =>
	box.config([`starts=${box.file(`starts${version}`)}`, `signals=${box.file(`signals${version}`)}`, ...more], {
		version,
		restart: { baseMs: 10 },
		...options,
	});

// Most of the time goes into starting the threads: 64 of each host take 20 s on two busy cores.
const threads = rounds(20, 64);

test(`double start: ${threads} threads of each of 4 hosts at once start one`, { timeout: 600_000 }, async (t) => {
	const box = sandbox(t);
	const hosts = await Promise.all([1, 2, 3, 4].map(() => box.host({ threads })));
	await Promise.all(hosts.map((host) => host.load()));
	for (let round = 1; round <= rounds(2, 10); round++) {
		// On a stale lock, which everybody finds at once, and where there is none.
		if (round % 2 === 1) plant(box, recordText(nobodysPid, [box.proc, box.marker]));
		const at = Date.now() + 300;
		const options = config(box, 1, { claimTimeoutMs: 60_000 });
		const results = (await Promise.all(hosts.map((host) => host.guardAll(options, { at })))).flat();
		const one = box.only();
		assert.equal(results.length, 4 * threads);
		for (const { processes } of results)
			assert.deepEqual([processes[0].pid, processes[0].exited, processes[0].error], [one.pid, false, undefined]);
		assert.equal(results.filter(({ processes }) => !processes[0].adopted).length, 1, 'one says it started it');
		await box.startedTimes(round, 'starts1');
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 10_000, 'stopped');
	}
});

/**
 * A host that stops in the middle of a claim: it holds the gate, has read the record, and has written nothing.
 * @param {Sandbox} box
 */
async function stoppedClaimant(box) {
	plant(box, recordText(nobodysPid, [box.proc, box.marker]));
	const host = await box.host({ threads: 1, env: { PG_PACKAGE: faultBuild(), PG_STOP: 'claim-decided' } });
	const answer = host.guard(1, config(box, 1, { claimTimeoutMs: 15_000 }));
	answer.catch(() => {});
	await until(() => processOf(host.pid)?.state === 'T', 10_000, 'it stopped between its read and its write');
	return { host, answer };
}

test('stale takeover race: one claimant stopped between its read and its write, and one process', async (t) => {
	const box = sandbox(t);
	const [patient, hasty] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
	const { host, answer } = await stoppedClaimant(box);
	const waits = patient.guard(1, config(box, 1, { claimTimeoutMs: 15_000 }));
	const refused = (await hasty.guard(1, config(box, 1, { claimTimeoutMs: 500 }))).processes[0];
	assert.deepEqual([refused.started, refused.pid], [false, undefined]);
	assert.match(refused.error, new RegExp(`${host.pid}.*stopped|stopped.*${host.pid}`, 's'), 'the holder is named');
	assert.equal(box.running().length, 0, 'nobody has started anything');
	process.kill(host.pid, 'SIGCONT');
	const answers = [await answer, await waits].map(({ processes }) => processes[0]);
	const one = box.only();
	for (const state of answers) assert.deepEqual([state.pid, state.error], [one.pid, undefined]);
	assert.equal(answers.filter((state) => !state.adopted).length, 1);
	await box.startedTimes(1, 'starts1');
});

test('stale takeover race: a claimant that is killed there holds nobody up', async (t) => {
	const box = sandbox(t);
	const next = await (await box.host({ threads: 1 })).load();
	const { host } = await stoppedClaimant(box);
	const waits = next.guard(1, config(box, 1, { claimTimeoutMs: 15_000 }));
	await host.kill('SIGKILL');
	const { processes, tookMs } = await waits;
	assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
	assert.ok(tookMs < 5_000, `it waited ${tookMs} ms`);
	await box.startedTimes(1, 'starts1');
});

for (const how of /** @type {const} */ (['SIGTERM', 'SIGKILL'])) {
	test(`version replacement: v2's lock stays while v1's keeper has yet to see the end of v1 by ${how}`, async (t) => {
		const box = sandbox(t);
		const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
		const old = (await first.guard(1, config(box, 1))).processes[0];
		const [keeper] = box.keepers();
		await box.stopOutsideTheGate(keeper.pid);
		process.kill(old.pid, how);
		await until(() => !alive(old.pid), 5_000, 'v1 has died and nobody was told');
		const { processes } = await second.guard(1, config(box, 2));
		assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
		const { token } = box.record();
		process.kill(keeper.pid, 'SIGCONT');
		await until(() => !alive(keeper.pid, keeper.started), 10_000, "v1's keeper has seen it and has gone");
		await never(
			() => box.record()?.token !== token || box.running().length !== 1,
			300,
			"v2's lock or process is touched"
		);
		assert.deepEqual([box.record().version, box.record().pid, box.only().pid], [2, processes[0].pid, processes[0].pid]);
		await box.startedTimes(1, 'starts1');
	});

	test(`version replacement: v2's lock stays while the exit of v1 by ${how} waits in the host that started it`, async (t) => {
		const box = sandbox(t);
		const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
		// Without a keeper it is the host's own child, and only the host is told of its exit.
		const old = (await first.guard(1, config(box, 1, { spawn: { kind: 'no-launcher' } }))).processes[0];
		await box.stopOutsideTheGate(first.pid);
		process.kill(old.pid, how);
		await until(() => !alive(old.pid), 5_000, 'v1 has died and nobody was told');
		const { processes } = await second.guard(1, config(box, 2));
		assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
		const { token } = box.record();
		process.kill(first.pid, 'SIGCONT');
		await first.stateUntil(1, (state) => state.exited, 5_000, 'the thread sees the end of v1');
		await never(
			() => box.record()?.token !== token || box.running().length !== 1,
			400,
			"v2's lock or process is touched"
		);
		assert.deepEqual([box.record().version, box.only().pid], [2, processes[0].pid]);
		await box.startedTimes(1, 'starts1');
	});
}

test("version replacement: v2's lock stays when v1, whose keeper was killed, crashes behind it", async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host({ threads: 2 }), await box.host({ threads: 1 })];
	const old = (await first.guardAll(config(box, 1)))[0].processes[0];
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	const { processes } = await second.guard(1, config(box, 2));
	assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined]);
	const { token } = box.record();
	process.kill(old.pid, 'SIGKILL');
	for (const thread of [1, 2]) await first.stateUntil(thread, (state) => state.exited, 5_000, 'it sees the end of v1');
	await never(
		() => box.record()?.token !== token || box.running().length !== 1,
		400,
		"v2's lock or process is touched"
	);
	assert.match((await first.state(1)).log.map((/** @type {any} */ one) => one.line).join('\n'), /was replaced/);
	await box.startedTimes(1, 'starts1');
});

test('replacement too early: v1 keeps its port for 2 s after SIGTERM, v2 starts after its death', async (t) => {
	const box = sandbox(t);
	const port = await freePort();
	const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
	const old = (await first.guard(1, config(box, 1, {}, ['term=slow:2000', `http=${port}`]))).processes[0];
	await until(() => get(port), 5_000, 'v1 has the port');
	const called = performance.now();
	const replacing = second.guard(
		1,
		config(box, 2, { stopOrphans: true, replaceGraceMs: 10_000, restart: { max: 0 } }, [`http=${port}`])
	);
	await until(() => box.lines('signals1').length > 0, 5_000, 'v1 was told to end');
	await never(() => alive(old.pid) && existsSync(box.file('starts2')), 1_500, 'v2 runs beside v1');
	const { processes } = await replacing;
	assert.ok(performance.now() - called > 1_500);
	assert.deepEqual([alive(old.pid), processes[0].error, processes[0].exited], [false, undefined, false]);
	assert.equal(Number(await until(() => get(port), 5_000, 'v2 has the port')), processes[0].pid);
	await box.startedTimes(1, 'starts2');
	assert.equal(box.lines('signals1').length, 1);
});
