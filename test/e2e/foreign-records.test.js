// @ts-check
/** Lock files that somebody else wrote: the original package, an older one, a stranger, an attacker. */
import assert from 'node:assert/strict';
import { chownSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * @param {Sandbox} box
 * @param {string} text
 */
function plant(box, text) {
	mkdirSync(box.pidDir, { recursive: true, mode: 0o700 });
	writeFileSync(join(box.pidDir, 'proc.pid'), text);
}

/**
 * A process the test starts itself, as an earlier guard would have left it or as a stranger.
 * @param {Sandbox} box
 * @param {string[]} argv
 */
async function running(box, argv) {
	const child = box.spawn(argv);
	await until(() => alive(Number(child.pid)) && box.running(argv[0]).length > 0, 5_000, 'it runs');
	return Number(child.pid);
}

const words = (/** @type {Sandbox} */ box) => [`signals=${box.file('signals')}`, `starts=${box.file('starts')}`];

test('a record of the original, without keeper and start time, is joined and its death answered', async (t) => {
	const box = sandbox(t);
	const pid = await running(box, [box.marker, ...words(box)]);
	plant(
		box,
		`${pid}\n0\n${JSON.stringify({ token: '1.0.1.abc', host: 1, argv: [box.proc, box.marker, ...words(box)] })}\n`
	);
	const host = await box.host({ threads: 2 });
	for (const { processes } of await host.guardAll(box.config(words(box), { restart: { baseMs: 10 } })))
		assert.deepEqual([processes[0].pid, processes[0].adopted, processes[0].error], [pid, true, undefined]);
	await box.startedTimes(1);
});

test('a record of the original under another version is an orphan and gets one SIGTERM', async (t) => {
	const box = sandbox(t);
	const pid = await running(box, [box.marker, ...words(box)]);
	await until(() => box.lines('starts').length === 1, 5_000, 'it runs');
	plant(
		box,
		`${pid}\n1\n${JSON.stringify({ token: '1.0.1.abc', host: 1, argv: [box.proc, box.marker, ...words(box)] })}\n`
	);
	const host = await box.host();
	const { processes } = await host.guard(0, box.config([], { version: 2, stopOrphans: true }));
	await until(() => !alive(pid), 5_000, 'the orphan has ended');
	assert.deepEqual(box.lines('signals'), [`SIGTERM ${host.pid}`]);
	assert.equal(box.only().pid, processes[0].pid);
});

test('a pid that runs something else is never signalled, whatever the record says', async (t) => {
	const box = sandbox(t);
	const pid = await running(box, [`other-${box.marker}`, ...words(box)]);
	const host = await box.host({ threads: 1 });
	const records = [
		// The pid was reused by another program.
		{ token: '1.0.1.abc', host: 1, argv: [box.proc, box.marker] },
		// The right command line, but not that start.
		{ token: '1.0.1.abc', host: 1, argv: [box.proc, `other-${box.marker}`, ...words(box)], started: 'another boot:1' },
	];
	for (const [number, record] of records.entries()) {
		plant(box, `${pid}\n1\n${JSON.stringify(record)}\n`);
		const { processes, report } = await host.guard(1, box.config([], { version: 2, stopOrphans: true }), `${number}`);
		assert.equal(processes[0].error, undefined);
		assert.match(report.join('\n'), new RegExp(`${pid}`));
		assert.equal(alive(pid), true);
		assert.deepEqual(box.lines('signals'), []);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'stopped');
	}
});

test('a bare pid is not ours: alive it is refused and left alone, dead it is taken', async (t) => {
	const box = sandbox(t);
	const pid = await running(box, [`other-${box.marker}`, ...words(box)]);
	plant(box, `${pid}\n`);
	const host = await box.host();
	const { processes } = await host.guard(0, box.config([], { stopOrphans: true, claimTimeoutMs: 1_000 }));
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, new RegExp(`${pid}`));
	assert.equal(alive(pid), true);
	assert.deepEqual(box.lines('signals'), []);
	plant(box, '4194305\n');
	const next = await host.guard(0, box.config([]), 'next');
	assert.equal(next.processes[0].error, undefined);
});

test("another user's record steers no signal and no start time is believed from it", {
	skip: process.getuid?.() !== 0 && 'needs root to plant it',
}, async (t) => {
	const box = sandbox(t);
	const pid = await running(box, [`victim-${box.marker}`, ...words(box)]);
	plant(
		box,
		`${pid}\n1\n${JSON.stringify({ token: '1.0.1.abc', host: 1, argv: [box.proc, `victim-${box.marker}`, ...words(box)] })}\n`
	);
	chownSync(join(box.pidDir, 'proc.pid'), 65534, 65534);
	const host = await box.host();
	const { processes, report } = await host.guard(
		0,
		box.config([], { version: 2, stopOrphans: true, claimTimeoutMs: 2_000 })
	);
	await never(() => !alive(pid) || box.lines('signals').length > 0, 300, 'the victim is signalled');
	assert.match(`${report.join('\n')}\n${processes[0].error}`, /user|owner|uid/i);
});

test('a lock that is a symlink is refused and its target untouched', async (t) => {
	const box = sandbox(t);
	mkdirSync(box.pidDir, { recursive: true });
	writeFileSync(box.file('target'), 'precious\n');
	symlinkSync(box.file('target'), join(box.pidDir, 'proc.pid'));
	const host = await box.host();
	await host.guard(0, box.config([], { claimTimeoutMs: 1_000 }));
	assert.deepEqual(box.lines('target'), ['precious']);
});

test('files and directory are private, and fields that we do not know survive a restart', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	await host.guard(
		0,
		box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 10 }, reaper: { graceMs: 100 } })
	);
	assert.equal(statSync(box.pidDir).mode & 0o777, 0o700);
	for (const name of readdirSync(box.pidDir)) assert.equal(statSync(join(box.pidDir, name)).mode & 0o777, 0o600, name);
	const record = box.record();
	for (const field of [
		'token',
		'host',
		'argv',
		'keeper',
		'keeperArgv',
		'started',
		'hostStarted',
		'claimedAt',
		'boot',
		'ns',
		'uid',
	])
		assert.ok(field in record, field);
	assert.ok(!('starting' in record));
});

test('the pid of a live leader in state Z is alive: joined, not replaced', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([`starts=${box.file('starts')}`, 'leader-exits']);
	const first = await host.guard(1, config);
	await until(() => box.lines('starts').length === 1, 5_000, 'it runs');
	await never(async () => (await host.state(1)).processes[0].exited, 300, 'it counts as dead');
	const second = await host.guard(2, config);
	assert.deepEqual(
		[second.processes[0].pid, second.processes[0].adopted, second.processes[0].error],
		[first.processes[0].pid, true, undefined]
	);
	await box.startedTimes(1);
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 5_000, 'stopped');
});

test('the directory removed under a running process: it is stopped, a second guard() finds one', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, box.config([`starts=${box.file('starts')}`, `signals=${box.file('signals')}`]));
	const one = box.only();
	rmSync(box.pidDir, { recursive: true });
	await until(() => box.running().length === 0 && box.keepers().length === 0, 10_000, 'it was stopped');
	assert.equal(box.lines('signals').length, 1);
	const { processes } = await host.guard(
		1,
		box.config([`starts=${box.file('starts')}`, `signals=${box.file('signals')}`]),
		'again'
	);
	assert.equal(processes[0].error, undefined);
	assert.notEqual(processes[0].pid, one.pid);
	assert.equal(box.running().length, 1);
});
