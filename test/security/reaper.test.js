// @ts-check
/** A reaper among files, directories and arguments that somebody else chose. */
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import {
	chmodSync,
	chownSync,
	linkSync,
	mkdirSync,
	readFileSync,
	rmSync,
	statSync,
	symlinkSync,
	utimesSync,
	writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { root as packageRoot } from '../support/fixtures.js';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const root = process.getuid?.() === 0;
const reaper = join(packageRoot, `prebuilds/${process.platform}-${process.arch}/reaper`);
const other = 60_001;

test('a log that is none of ours is never written to, and the call that names it is told', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	writeFileSync(box.file('victim'), 'precious\n', { mode: 0o644 });
	/** @type {Record<string, (path: string) => unknown>} */
	const logs = {
		'a link': (path) => symlinkSync(box.file('victim'), path),
		'a hard link': (path) => linkSync(box.file('victim'), path),
		'a FIFO': (path) => execFileSync('mkfifo', [path]),
		'a directory': (path) => mkdirSync(path),
		...(root && {
			'a device': (path) => execFileSync('mknod', [path, 'c', '1', '3']),
			"another user's file": (path) => {
				writeFileSync(path, 'precious\n');
				chownSync(path, other, other);
			},
		}),
	};
	for (const [what, plant] of Object.entries(logs)) {
		const key = what.replaceAll(' ', '-');
		const logFile = box.file(`log-${key}`);
		plant(logFile);
		const pidDir = box.file(key);
		const {
			processes,
			reaper: state,
			report,
		} = await host.guard(0, { pidDir, processes: [box.process()], reaper: { graceMs: 100, logFile } }, key);
		assert.deepEqual([processes[0].error, state.error], [undefined, undefined], what);
		const line = report.find((/** @type {string} */ each) => each.includes(logFile)) ?? '';
		assert.match(line, /cannot be written: .*; it works without one: remove what lies there/, what);
	}
	assert.equal(box.reapers().length, Object.keys(logs).length);
	await host.kill();
	await until(
		() => box.running().length + box.reapers().length === 0,
		10_000,
		() => `cleaned up\n${box.tree()}`
	);
	assert.deepEqual(box.lines('victim'), ['precious']);
	if (root) assert.deepEqual(box.lines("log-another-user's-file"), ['precious']);
});

/**
 * A reaper of a host that is gone, run to its end.
 * @param {string[]} args
 * @param {import('node:child_process').SpawnOptions} [options]
 */
async function reaps(args, options = {}) {
	const gone = spawnSync('true').pid;
	const child = spawn(
		reaper,
		['run', '--host-pid', String(gone), '--host-started', 'x:1', '--grace-ms', '0', ...args],
		{
			stdio: 'ignore',
			...options,
		}
	);
	const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)));
	const timer = setTimeout(() => child.kill('SIGKILL'), 10_000);
	const how = await ended;
	clearTimeout(timer);
	return how;
}

test("a reaper in another user's pidDir: nothing there steers a signal, by whatever field or file", {
	skip: !root && 'needs root to plant it',
}, async (t) => {
	const box = sandbox(t);
	const pidDir = box.pidDir;
	mkdirSync(pidDir, { mode: 0o700 });
	const victim = box.spawn([box.marker, `signals=${box.file('signals')}`, `starts=${box.file('starts')}`]);
	await until(() => box.lines('starts').length === 1, 5_000, 'the victim runs');
	const pid = Number(victim.pid);
	const argv = /** @type {any} */ (processOf(pid)).argv;
	const record = (/** @type {any} */ more, first = pid) =>
		`${first}\n1\n${JSON.stringify({ token: '1.1.1.aaaa', host: 1, argv, ...more })}\n`;
	const planted = {
		'process.pid': record({}),
		'keeper.pid': record({ keeper: pid, keeperArgv: argv }, 0),
		'dead.pid': record({ keeper: pid, keeperArgv: argv }, 4_194_305),
		'launcher.pid': record({ launcher: pid, host: pid }, 0),
		'aside.pid.reaping': record({}),
		'exit.pid.exit': JSON.stringify({
			token: '1.1.1.aaaa',
			keeper: pid,
			pid,
			code: 1,
			signal: null,
			outcome: 'restarting',
		}),
		'process.pid.keeper.1.1.1.aaaa': 'process-guard-life-1 00000000 2\n{}',
		'gate.pid': record({}),
		'gate.pid.claiming': `${pid} 1 1 ${Date.now()}`,
		'\u001b[2Jline\n\u009b2Jline.pid': record({}),
	};
	for (const [name, text] of Object.entries(planted)) {
		writeFileSync(join(pidDir, name), text, { mode: 0o644 });
		chownSync(join(pidDir, name), other, other);
	}
	utimesSync(join(pidDir, 'gate.pid.claiming'), 0, 0); // younger than seven seconds its text counts, as the original's
	chownSync(pidDir, other, other);
	box.expectedLeftovers.push(/line\.pid/);
	const log = box.file('log');
	assert.equal(await reaps(['--pid-dir', pidDir, '--log', log]), 0);
	assert.equal(alive(pid), true);
	assert.deepEqual(box.lines('signals'), []);
	for (const [name, text] of Object.entries(planted))
		if (!name.endsWith('claiming')) assert.equal(readFileSync(join(pidDir, name), 'utf8'), text, name);
	const said = readFileSync(log, 'utf8');
	for (const name of ['process', 'keeper', 'dead', 'launcher', 'aside', 'gate'])
		assert.match(said, new RegExp(`${name}: left alone: .*${name}\\.pid.* belongs to uid ${other}`), name);
	assert.ok(!/[^\n -~]/.test(said), 'a name does not end a line or reach the terminal');
	assert.equal(statSync(log).mode & 0o777, 0o600);
	// The same records, ours by now: it was their owner and nothing else that kept them from being followed.
	rmSync(join(pidDir, 'gate.pid.claiming'));
	for (const name of ['process.pid']) chownSync(join(pidDir, name), 0, 0);
	assert.equal(await reaps(['--pid-dir', pidDir, '--log', log]), 0);
	assert.equal(box.lines('signals').length, 1);
});

test('arguments that no guard writes: the reaper ends with a reason, or works, and touches nothing else', async (t) => {
	const box = sandbox(t);
	mkdirSync(box.pidDir, { mode: 0o700 });
	const victim = box.file('victim.pid');
	writeFileSync(victim, 'precious\n');
	const usage = [
		[],
		['bogus'],
		['run'],
		['run', '--host-pid', '0', '--pid-dir', box.pidDir],
		['run', '--host-pid', '-1', '--pid-dir', box.pidDir],
		['run', '--host-pid', '99999999999999999999', '--pid-dir', box.pidDir],
		['run', '--host-pid', '1x', '--pid-dir', box.pidDir],
		['run', '--host-pid', '--pid-dir', box.pidDir],
		['run', '--host-pid', '1'],
		['launch', '--token', '../../x', '--version', '-1'],
		[
			'launch',
			'--token',
			'a',
			'--version',
			'1',
			'--host-pid',
			'1',
			'--pid-dir',
			box.pidDir,
			'--self-lock',
			'/etc/passwd',
		],
		[
			'launch',
			'--token',
			'a',
			'--version',
			'1',
			'--host-pid',
			'1',
			'--pid-dir',
			box.pidDir,
			'--self-lock',
			`${box.dir}/.pid`,
		],
	];
	for (const args of usage) {
		const { status, stderr } = spawnSync(reaper, args, { encoding: 'utf8', timeout: 5_000 });
		assert.equal(status, 2, `${args.join(' ')}: ${stderr}`);
		assert.match(stderr, /nothing|no reaper/, args.join(' '));
	}
	const gone = [
		// A lock of its own that is a file of somebody's, and one outside of pidDir.
		['--pid-dir', box.pidDir, '--self-lock', victim],
		['--pid-dir', box.pidDir, '--self-lock', `${box.pidDir}/../victim.pid`],
		['--pid-dir', `${box.dir}/nowhere/../..`.replace(/$/, '/none')],
		['--pid-dir', '/proc/self/mem'],
		['--pid-dir', box.pidDir, '--replacement-pid-file', '/dev/zero', '--grace-ms', '50'],
		['--pid-dir', box.pidDir, '--replacement-pid-file', '/dev/stdin', '--grace-ms', 'NaN', '--grace-ms', '1e400'],
		['--pid-dir', box.pidDir, '--grace-ms', '-5', '--log', `${'x/'.repeat(3000)}log`],
		['--pid-dir', box.pidDir, '--unknown', 'value', '--', '--log'],
	];
	for (const args of gone) assert.equal(await reaps(args), 0, args.join(' '));
	assert.deepEqual(box.lines('victim.pid'), ['precious']);
});

test('a reaper that may not read pidDir says so and goes on trying; it ends when told to', {
	skip: !root && 'needs root to close it',
}, async (t) => {
	const box = sandbox(t);
	mkdirSync(box.pidDir, { mode: 0o700 });
	chmodSync(box.dir, 0o711);
	mkdirSync(box.file('logs'));
	chownSync(box.file('logs'), other, other);
	const child = spawn(
		reaper,
		[
			'run',
			'--host-pid',
			String(spawnSync('true').pid),
			'--host-started',
			'x:1',
			'--grace-ms',
			'0',
			'--pid-dir',
			box.pidDir,
			'--log',
			box.file('logs/log'),
		],
		{ stdio: 'ignore', uid: other, gid: other }
	);
	box.children.push(child);
	await until(
		() => box.lines('logs/log').some((line) => /cannot read .* yet, trying again: .*permission denied/.test(line)),
		5_000,
		'it says so'
	);
	const ended = new Promise((resolve) => child.once('exit', (code) => resolve(code)));
	child.kill('SIGTERM');
	assert.equal(await ended, 0);
});
