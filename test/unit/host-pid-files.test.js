// @ts-check
/**
 * The host's own pid files, with real processes behind the pids they name: what a file names that is not about it goes,
 * and the log says what it was; what is about it, and what the host recognises itself, stays.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { clearStaleHostPidFiles, guard } from 'harper-process-guard';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const posix = { skip: process.platform === 'win32' };

/** @param {import('node:test').TestContext} t */
function root(t) {
	const box = sandbox(t);
	mkdirSync(box.file('pids'));
	const file = (/** @type {string} */ name) => box.file(`pids/${name}.pid`);
	/** @type {string[]} */
	const lines = [];
	const noting = (/** @type {string} */ level) => (/** @type {string} */ line) => void lines.push(`${level} ${line}`);
	return {
		box,
		file,
		lines,
		log: { info: noting('info'), warn: noting('warn'), error: noting('error') },
		lock: (/** @type {string} */ name) => join(box.pidDir, `${name}.pid`),
		/**
		 * @param {string} name
		 * @param {string} text
		 */
		write: (name, text) => writeFileSync(file(name), text),
	};
}

/**
 * A process that waits for the end of the test, under any command line.
 *
 * @param {import('node:test').TestContext} t
 * @param {string[]} words
 */
function lasting(t, ...words) {
	const child = spawn('/bin/sh', ['-c', 'read x', ...words], { stdio: ['pipe', 'ignore', 'ignore'] });
	const ended = new Promise((resolve) => child.once('exit', resolve));
	t.after(async () => {
		child.stdin.end();
		await ended;
	});
	return /** @type {number} */ (child.pid);
}

/** A thread of this process that is not its first. */
function threadOfOurs() {
	const tid = readdirSync('/proc/self/task')
		.map(Number)
		.find((id) => id !== process.pid);
	assert.ok(tid);
	process.kill(tid, 0); // it answers like a process, which is the trouble
	return tid;
}

test(
	'a recycled pid, a zombie, a thread of the host and the keeper of another name: removed, and said what it was',
	posix,
	async (t) => {
		const { box, file, lines, log, lock, write } = root(t);
		const { stop } = await guard({ ...box.config(), spawn });
		const { keeper } = box.record();
		assert.ok(keeper > 0);
		const parent = spawn(box.proc, [box.marker, `zombie=${box.file('zombie')}`], { stdio: 'ignore' });
		const zombie = Number(await until(() => box.lines('zombie')[0], 5000, 'the zombie is there'));
		const stranger = lasting(t, 'somebody', 'else');
		const tid = threadOfOurs();
		const before = lasting(t, 'keeper', 'keep', '--lock', `${lock('longer')}.pid`, '--token', 'x');
		const named = { stranger, zombie, thread: tid, other: keeper, longer: before, host: process.pid };
		for (const [name, pid] of Object.entries(named)) write(name, `${pid}\n3\n`);
		clearStaleHostPidFiles(
			box.dir,
			Object.keys(named).map((name) => ({ name, argv: ['/opt/agent', 'run', name], lock: lock(name) })),
			log,
			'me'
		);
		assert.deepEqual(readdirSync(box.file('pids')), []);
		assert.equal(lines.length, 6);
		for (const [name, what] of Object.entries({
			stranger: /is running `\/bin\/sh`; the host/,
			zombie: /has exited and was never reaped/,
			thread: /is a thread of another process/,
			other: /is running `\S*keeper`/,
			longer: /is running `/,
			host: /is running `[^ ]*node`/,
		})) {
			const line = lines.find((each) => each.includes(file(name))) ?? '';
			assert.ok(
				line.startsWith(`warn me: removed ${file(name)}: it named pid ${/** @type {any} */ (named)[name]}, which `),
				line
			);
			assert.match(line, what);
		}
		for (const pid of [stranger, keeper, before]) assert.ok(alive(pid), 'nothing is signalled');
		stop();
		const ended = new Promise((resolve) => parent.once('exit', resolve));
		parent.kill('SIGTERM');
		await ended;
	}
);

test("the real process's, its launcher's, its keeper's, the reaper's and a dead pid's: left", posix, async (t) => {
	const { box, file, lines, log, lock, write } = root(t);
	const { stop, processes, reaper } = await guard({ ...box.config(), spawn, reaper: { graceMs: 100 } });
	const real = /** @type {number} */ (processes[0].pid);
	const dead = spawn('/bin/true');
	await new Promise((resolve) => dead.once('exit', resolve));
	const argv = [box.proc, box.marker];
	/** @type {[string, number | undefined, any][]} */
	const kept = [
		['real', real, { argv }],
		['real-with-lock', real, { argv, lock: lock('real-with-lock') }],
		['keeper', box.record().keeper, { argv: ['/opt/agent'], lock: lock('proc') }],
		[
			'launcher',
			lasting(t, 'node', '/x/launch.js', 'keeper', 'launch', '--lock', lock('launcher'), '--token', 'x'),
			{ argv: ['/opt/agent'], lock: lock('launcher') },
		],
		[
			'reaper-launcher',
			lasting(t, 'node', '/x/launch.js', 'reaper', 'launch', '--self-lock', lock('process-guard-reaper')),
			{ script: '/reaper.js', lock: lock('process-guard-reaper') },
		],
		['reaper', reaper?.pid, { script: '/reaper.js', lock: lock('process-guard-reaper') }],
		['reaper-anywhere', reaper?.pid, { script: '/reaper.js' }],
		['dead', dead.pid, { argv: ['/opt/agent'] }],
	];
	for (const [name, pid] of kept) write(name, `${pid}`);
	clearStaleHostPidFiles(
		box.dir,
		kept.map(([name, , target]) => ({ name, ...target })),
		log,
		'me'
	);
	assert.deepEqual(lines, []);
	for (const [name, pid] of kept) assert.equal(readFileSync(file(name), 'utf8'), `${pid}`, name);
	// The reaper of another directory is a stranger to this one's.
	clearStaleHostPidFiles(
		box.dir,
		[{ name: 'reaper', script: '/reaper.js', lock: '/elsewhere/process-guard-reaper.pid' }],
		log,
		'me'
	);
	assert.equal(existsSync(file('reaper')), false);
	stop();
});

test('what names no pid is not looked into, and without a root there is nothing to look at', posix, async (t) => {
	const { box, file, lines, log, write } = root(t);
	const texts = { empty: '', word: 'pid', zero: '0\n', negative: '-1', late: 'x 12' };
	for (const [name, text] of Object.entries(texts)) write(name, text);
	mkdirSync(file('directory'));
	const targets = [...Object.keys(texts), 'directory', 'absent'].map((name) => ({ name, argv: ['/opt/agent'] }));
	clearStaleHostPidFiles(box.dir, targets, log, 'me');
	for (const name of Object.keys(texts)) assert.ok(existsSync(file(name)), name);
	clearStaleHostPidFiles(null, targets, log, 'me');
	clearStaleHostPidFiles(undefined, targets, log, 'me');
	clearStaleHostPidFiles(box.file('no such root'), targets, log, 'me');
	assert.deepEqual(lines, []);
});

test('a file that cannot be removed is told as an error', { skip: process.getuid?.() !== 0 }, async (t) => {
	const { box, file, lines, log, write } = root(t);
	write('stuck', `${lasting(t, 'stranger')}`);
	const { spawnSync } = await import('node:child_process');
	// Root removes anything but what is marked as not to be changed.
	if (spawnSync('chattr', ['+i', box.file('pids')]).status !== 0) return t.skip('this file system knows no such mark');
	try {
		clearStaleHostPidFiles(box.dir, [{ name: 'stuck', argv: ['/opt/agent'] }], log, 'me');
	} finally {
		spawnSync('chattr', ['-i', box.file('pids')]);
	}
	assert.equal(lines.length, 1);
	assert.match(lines[0], /^error me: .*stuck\.pid could not be removed \(.*\): it names pid \d+, which is running/);
	assert.ok(existsSync(file('stuck')));
});
