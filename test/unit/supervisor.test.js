// @ts-check
/**
 * Who supervises: the host's own supervisor where there is one, else the guard, with real processes and a real reaper.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import {
	fingerprint,
	guardDescriptors,
	heldProcess,
	supervisesNatively,
	supervisorFor,
	unstarted,
} from 'harper-process-guard';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

const REAPER = 'process-guard-reaper';

function notes() {
	/** @type {string[]} */
	const lines = [];
	const noting = (/** @type {string} */ level) => (/** @type {string} */ line) => void lines.push(`${level} ${line}`);
	return { lines, log: { info: noting('info'), warn: noting('warn'), error: noting('error') } };
}

test('a host supervises when scope.processes.start is a function, and by no other sign', () => {
	assert.equal(supervisesNatively({ processes: { start() {} } }), true);
	for (const scope of [
		undefined,
		null,
		{},
		{ processes: null },
		{ processes: {} },
		{ processes: { start: true } },
		7,
	]) {
		assert.equal(supervisesNatively(scope), false);
	}
});

test('a process that was not started has a state like any other', () => {
	assert.deepEqual(unstarted({ name: 'a', title: 'A', kind: 'agent', command: '/a', more: 1 }, 'no such file'), {
		name: 'a',
		title: 'A',
		kind: 'agent',
		started: false,
		adopted: false,
		exited: false,
		restarts: 0,
		error: 'no such file',
	});
	assert.equal(unstarted({ name: 'a' }).error, undefined);
});

test('descriptors become processes of guard(): env is added to what is inherited, guard() options are carried', () => {
	const verify = () => ({ ok: true });
	assert.deepEqual(
		guardDescriptors(
			[
				{ name: 'a', title: 'A', command: '/a', args: ['x'], exitHint: 'hint', verify, kind: 'agent', mine: 1 },
				{ name: 'b', command: '/b', env: { TOKEN: 't', GONE: undefined }, restart: { max: 1 }, replaceGraceMs: 5 },
			],
			{ PATH: '/bin', TOKEN: 'old' }
		),
		[
			{ name: 'a', title: 'A', binaryPath: '/a', args: ['x'], exitHint: 'hint', verify },
			{
				name: 'b',
				title: undefined,
				binaryPath: '/b',
				args: undefined,
				exitHint: undefined,
				verify: undefined,
				restart: { max: 1 },
				replaceGraceMs: 5,
				spawnOptions: { env: { PATH: '/bin', TOKEN: 't', GONE: undefined } },
			},
		]
	);
	const [{ spawnOptions }] = guardDescriptors([{ name: 'c', command: '/c', env: { A: '1' } }]);
	assert.deepEqual(/** @type {any} */ (spawnOptions).env, { ...process.env, A: '1' });
});

/** @type {any[]} */
const descriptors = [
	{ name: 'a', title: 'A', kind: 'one', command: '/bin/a', args: ['x'], exitHint: 'h', env: { X: '1' }, verify() {} },
	{ name: 'b', title: 'B', kind: 'two', command: '/nowhere/b' },
	{ name: 'c', title: 'C', kind: 'two', command: '/bin/c' },
];

test("with a host's own supervisor everything is started by it, at once, and the states are its own objects", async () => {
	const { lines, log } = notes();
	/** @type {any[]} */
	const asked = [];
	const states = /** @type {any} */ ({
		a: { verified: true, name: 'host-a' },
		c: { verified: false, verifyDetail: 'silent' },
	});
	const reaper = { name: 'of the host' };
	const scope = {
		processes: {
			reaper,
			async start(/** @type {any} */ one) {
				asked.push(one);
				await null; // all are asked before the first is answered
				if (one.name === 'b') throw Object.assign(new Error('spawn b ENOENT'), { code: 'ENOENT' });
				return states[one.name];
			},
		},
	};
	const supervisor = supervisorFor(scope, { log, spawn, label: 'me', nativeKind: 'harper', beforeStart: assert.fail });
	assert.equal(supervisor.kind, 'harper');
	const context = { root: '/r', pidDir: '/r/p', configFiles: { '/f': 'text' }, fingerprintParts: ['1', 2] };
	const promise = supervisor.start(descriptors, context);
	assert.equal(asked.length, 3);
	const { processes, reaper: theirs, report, ...rest } = await promise;
	assert.deepEqual(asked[0], {
		name: 'a',
		title: 'A',
		command: '/bin/a',
		args: ['x'],
		configFiles: context.configFiles,
		fingerprint: context.fingerprintParts,
		exitHint: 'h',
		verify: descriptors[0].verify,
	});
	assert.equal(processes[0], states.a);
	assert.deepEqual([processes[0].name, processes[0].title, processes[0].kind], ['a', 'A', 'one']);
	assert.equal(processes[1].started, false);
	assert.match(processes[1].error ?? '', /\/nowhere\/b.*does not exist \(ENOENT\)/);
	assert.equal(processes[2], states.c);
	assert.equal(theirs, reaper);
	assert.deepEqual(rest, {});
	assert.equal(report.length, 1);
	assert.match(report[0], /bundled process guard is present but unused/);
	assert.deepEqual(lines.map((line) => line.slice(0, line.indexOf(' ', 10))).sort(), [
		'error me: B',
		'error me: C',
		'warn me: the',
	]);
	assert.match(lines.find((line) => line.includes('C is not')) ?? '', /not verified: silent/);
});

test('the choice is made once: a host that loses its supervisor is told, and nothing is started twice', async () => {
	const { log } = notes();
	const scope = /** @type {any} */ ({ processes: { start() {} } });
	const supervisor = supervisorFor(scope, { log, spawn: assert.fail, label: 'me' });
	assert.equal(supervisor.kind, 'host');
	scope.processes = undefined;
	await assert.rejects(
		supervisor.start(descriptors, { root: null, pidDir: '/nowhere' }),
		(/** @type {Error} */ error) => {
			for (const part of ['me:', 'scope.processes.start', 'bundled process guard', 'different PID locks'])
				assert.ok(error.message.includes(part), error.message);
			return true;
		}
	);
	const later = /** @type {any} */ ({});
	const bundled = supervisorFor(later, { log, spawn });
	later.processes = { start: assert.fail };
	assert.equal(bundled.kind, 'guard');
});

/**
 * @param {import('node:test').TestContext} t
 * @param {Record<string, any>} [options]
 */
function bundled(t, options = {}) {
	const box = sandbox(t);
	const { lines, log } = notes();
	const supervisor = supervisorFor({}, { log, spawn, label: 'me', reaperGraceMs: 100, ...options });
	/** @type {import('harper-process-guard').Supervised[]} */
	const started = [];
	// Before the sandbox ends the reapers, whose deaths would otherwise be answered.
	const { finish } = box;
	box.finish = () => {
		for (const each of started) each.stop?.();
		return finish.call(box);
	};
	return {
		box,
		lines,
		/**
		 * @param {any[]} list
		 * @param {Record<string, any>} [context]
		 */
		async start(list, context = {}) {
			const result = await supervisor.start(list, {
				root: box.dir,
				pidDir: box.pidDir,
				reaperLog: box.file('reaper.log'),
				...context,
			});
			started.push(result);
			return result;
		},
		describe: (/** @type {string[]} */ words = [], /** @type {any} */ more = {}) => ({
			name: 'proc',
			title: 'the process',
			kind: 'test',
			command: box.proc,
			args: [box.marker, ...words],
			mine: 'own',
			...more,
		}),
	};
}

test('without one the guard starts everything, and the reaper, under the fingerprint of its parts', async (t) => {
	/** @type {any[]} */
	const before = [];
	const beforeStart = async (/** @type {any} */ context) => void before.push([context, box.running().length]);
	const { box, start, describe } = bundled(t, { beforeStart });
	const dump = box.file('dump');
	const { processes, reaper, report, watchdog } = await start(
		[
			describe([`dump=${dump}`], {
				env: { ADDED: 'yes' },
				verify: async (/** @type {any} */ state) => ({ ok: state.pid > 0, detail: 'it runs' }),
			}),
			{ name: 'lost', kind: 'test', command: '/nowhere/at/all' },
		],
		{ fingerprintParts: ['a', 1], replacementPidFile: box.file('hdb.pid'), configFiles: 'x' }
	);
	const { pid } = box.only();
	assert.deepEqual([before.length, before[0][0].configFiles, before[0][1]], [1, 'x', 0]);
	assert.deepEqual(
		[
			processes[0].name,
			processes[0].title,
			processes[0].kind,
			processes[0].pid,
			processes[0].verified,
			processes[0].verifyDetail,
		],
		['proc', 'the process', 'test', pid, true, 'it runs']
	);
	assert.equal(heldProcess(join(box.pidDir, 'proc.pid'))?.version, fingerprint('a', 1));
	const { env } = await box.dump('dump');
	assert.deepEqual([env.ADDED, env.PATH], ['yes', process.env.PATH]);
	assert.deepEqual([processes[1].started, processes[1].kind], [false, 'test']);
	assert.match(processes[1].error ?? '', /does not exist \(ENOENT\)/);
	assert.ok(report.some((line) => line.includes('/nowhere/at/all')));
	const [one] = box.reapers();
	assert.deepEqual([box.reapers().length, reaper.pid], [1, one.pid]);
	for (const word of [box.file('reaper.log'), box.file('hdb.pid'), '100']) assert.ok(one.argv.includes(word), word);
	assert.equal(await watchdog?.tick(), 'present');
	// The state is kept, not copied: what happens later is on it.
	const [state] = processes;
	process.kill(pid, 'SIGTERM');
	await until(() => state.exited, 5000, 'the end is on the state');
	assert.equal(state.kind, 'test');
});

test('a changed fingerprint replaces the process and leaves one reaper', async (t) => {
	const { box, start, describe } = bundled(t);
	await start([describe()], { fingerprintParts: ['v1'] });
	const old = box.only();
	const [reaper] = box.reapers();
	const { processes } = await start([describe()], { fingerprintParts: ['v2'] });
	await until(() => !alive(old.pid, old.started), 5000, 'the old one has ended');
	assert.equal(box.only().pid, processes[0].pid);
	assert.deepEqual(
		box.reapers().map(({ pid }) => pid),
		[reaper.pid]
	);
	const same = await start([describe()], { fingerprintParts: ['v2'] });
	assert.deepEqual([same.processes[0].adopted, same.processes[0].pid], [true, processes[0].pid]);
});

test('stale pid files of the host are cleared first, those of the reaper too', async (t) => {
	const { box, start, describe, lines } = bundled(t);
	mkdirSync(box.file('pids'));
	for (const name of ['proc', REAPER]) writeFileSync(box.file(`pids/${name}.pid`), `${process.pid}\n`);
	await start([describe()]);
	for (const name of ['proc', REAPER]) {
		assert.equal(existsSync(box.file(`pids/${name}.pid`)), false);
		assert.ok(
			lines.some((line) =>
				line.startsWith(`warn me: removed ${box.file(`pids/${name}.pid`)}: it named pid ${process.pid}`)
			),
			name
		);
	}
});

test('a reaper that dies is launched again, its stale host file cleared, until the supervisor is stopped', async (t) => {
	const { box, start, describe, lines } = bundled(t);
	const { stop, processes } = await start([describe()]);
	const [reaper] = box.reapers();
	mkdirSync(box.file('pids'));
	writeFileSync(box.file(`pids/${REAPER}.pid`), `${process.pid}\n`);
	process.kill(reaper.pid, 'SIGKILL');
	await until(() => lines.some((line) => line.includes('has been relaunched as pid')), 3000, 'it is relaunched');
	assert.equal(existsSync(box.file(`pids/${REAPER}.pid`)), false);
	const [next] = box.reapers();
	assert.notEqual(next.pid, reaper.pid);
	stop?.();
	process.kill(next.pid, 'SIGKILL');
	await until(() => !alive(next.pid, next.started), 3000, 'it has ended');
	await never(() => box.reapers().length > 0, 800, 'a relaunch after stop()');
	process.kill(/** @type {number} */ (processes[0].pid), 'SIGKILL');
	await until(
		() => box.running().some(({ pid }) => pid !== processes[0].pid),
		5000,
		'its keeper restarts it all the same'
	);
	assert.equal(processes[0].exited, false, 'this thread no longer watches');
});

test('a host that refuses launchers still gets its processes, and is told that none will clean up after it', async (t) => {
	const direct = (/** @type {string} */ command, /** @type {string[]} */ args, /** @type {any} */ options) => {
		if (args.includes('launch')) throw new Error('not allowed');
		return spawn(command, args, options);
	};
	const { box, start, describe } = bundled(t, { spawn: direct });
	const { processes, reaper, report } = await start([describe()]);
	assert.equal(box.only().pid, processes[0].pid);
	assert.equal(processOf(box.only().pid)?.ppid, process.pid);
	assert.match(reaper.error, /not allowed/);
	assert.ok(report.some((line) => line.includes('will keep running after this host stops')));
	const ended = until(() => processes[0].exited, 5000, 'the end is seen');
	process.kill(box.only().pid, 'SIGTERM');
	await ended;
});

test('what cannot be started at all is on every state and in the log, and rejects nothing', async (t) => {
	const boom = () => {
		throw new Error('the configuration could not be written');
	};
	for (const [options, list, message] of /** @type {[any, any[], RegExp][]} */ ([
		[
			{ beforeStart: boom },
			[
				{ name: 'a', kind: 'k', command: '/a' },
				{ name: 'b', command: '/b' },
			],
			/could not be written/,
		],
		[
			{},
			[
				{ name: 'a', kind: 'k', command: '/a', args: [7] },
				{ name: 'b', command: '/b' },
			],
			/args\[0\] must be/,
		],
		[
			{},
			[
				{ name: REAPER, kind: 'k', command: '/a' },
				{ name: 'b', command: '/b' },
			],
			/is the name of the reaper/,
		],
	])) {
		const { box, start, lines } = bundled(t, options);
		const result = await start(list);
		assert.deepEqual(
			result.processes.map(({ name, started }) => [name, started]),
			list.map(({ name }) => [name, false])
		);
		for (const { error } of result.processes) assert.match(error ?? '', message);
		assert.equal(result.processes[0].kind, 'k');
		assert.equal(result.report.length, 1);
		assert.equal('reaper' in result, false);
		assert.equal(box.reapers().length, 0);
		const line = lines.find((each) => message.test(each)) ?? '';
		assert.match(line, /^error me: nothing was started: \w*Error: /);
		assert.match(line, /\n\s+at /, 'without its stack');
	}
});
