// @ts-check
/** However many threads and hosts find one stale lock at one instant, exactly one of them starts one process. */
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

/** Above the largest pid the kernel gives out: nothing can carry it. */
const nobody = 4_194_305;

/**
 * Every kind of lock that nothing living stands behind, in turn.
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {number} round
 */
function leaveStale(box, round) {
	const argv = [box.proc, box.marker, `starts=${box.file('starts')}`];
	const record = (/** @type {number} */ pid, /** @type {number} */ version, /** @type {any} */ more) =>
		`${pid}\n${version}\n${JSON.stringify({ token: `${nobody}.0.${round}.left`, host: nobody, argv, ...more })}\n`;
	const kinds = [
		record(nobody, 0, {}),
		record(nobody, 3, { started: 'never:1' }),
		record(0, 0, {}),
		record(nobody, 0, {
			keeper: nobody,
			keeperArgv: ['/gone/keeper', 'keep', '--lock', join(box.pidDir, 'proc.pid'), '--token', 'x'],
		}),
		`${nobody}\n`,
		'',
		'not a record\n',
	];
	mkdirSync(box.pidDir, { recursive: true });
	writeFileSync(join(box.pidDir, 'proc.pid'), kinds[round % kinds.length]);
}

/**
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {any[]} results
 * @param {number} round
 */
async function assertOne(box, results, round) {
	const one = box.only();
	for (const { processes, report } of results) {
		const [state] = processes;
		assert.equal(state.error, undefined, `round ${round}: ${state.error}\n${report.join('\n')}`);
		assert.deepEqual([state.started, state.exited, state.pid], [true, false, one.pid], `round ${round}`);
	}
	assert.equal(
		results.filter(({ processes }) => !processes[0].adopted).length,
		1,
		`round ${round}: threads that say they started it`
	);
	assert.equal(box.record()?.pid, one.pid);
	await until(() => box.lines('starts').length > round, 5_000, `round ${round}: it runs`);
	process.kill(one.pid, 'SIGTERM');
	await until(
		() => box.running().length === 0 && !box.files().includes('proc.pid') && box.keepers().length === 0,
		10_000,
		() => `round ${round}: stopped\n${box.tree()}\n${box.files()}`
	);
	// The table shows who runs now; the file shows who ever ran.
	assert.equal(
		box.lines('starts').length,
		round + 1,
		`round ${round}: processes ever started\n${box.lines('starts').join('\n')}`
	);
}

test('8 threads that claim one stale lock start one process', { timeout: 600_000 }, async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 8 })).load();
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 20_000 });
	for (let round = 0; round < 300; round++) {
		leaveStale(box, round);
		await assertOne(box, await host.guardAll(config, { at: Date.now() + 20 }), round);
	}
});

test('4 hosts with 16 threads each that claim one stale lock start one process', { timeout: 900_000 }, async (t) => {
	const box = sandbox(t);
	const hosts = [];
	for (let number = 0; number < 4; number++) hosts.push(await (await box.host({ threads: 16 })).load());
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 30_000 });
	for (let round = 0; round < 50; round++) {
		leaveStale(box, round);
		const at = Date.now() + 50;
		await assertOne(box, (await Promise.all(hosts.map((host) => host.guardAll(config, { at })))).flat(), round);
	}
});

test('8 threads that start for the first time start one process, in an empty and in a missing directory', async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 8 })).load();
	await assertOne(box, await host.guardAll(box.config([`starts=${box.file('starts')}`])), 0);
	await assertOne(box, await host.guardAll(box.config([`starts=${box.file('starts')}`])), 1);
});
