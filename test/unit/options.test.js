// @ts-check
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { resolve } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { readOptions, readStopOptions } from '../../lib/options.js';

const agent = { name: 'agent', binaryPath: '/bin/true' };

/**
 * A call that is right, but for what a test changes.
 *
 * @param {Record<string, unknown>} [change]
 */
function call(change = {}) {
	return { pidDir: '/tmp/pids', spawn, processes: [agent], ...change };
}

/** @param {Record<string, unknown>} change */
function one(change) {
	return readOptions(call({ processes: [{ ...agent, ...change }] })).processes[0];
}

/** @param {Record<string, unknown>} spawnOptions */
function spawned(spawnOptions) {
	return one({ spawnOptions });
}

/**
 * @param {unknown} options
 * @param {string} option
 * @param {RegExp} [words]
 * @param {NodeJS.Platform} [platform]
 */
function refused(options, option, words = /must be/, platform = undefined) {
	assert.throws(
		() => readOptions(options, platform),
		(error) => {
			assert.ok(error instanceof TypeError, String(error));
			assert.equal(/** @type {any} */ (error).option, option);
			assert.equal(/** @type {any} */ (error).code, 'ERR_INVALID_ARG_VALUE');
			assert.ok(error.message.startsWith(`guard(): ${option} must be `), error.message);
			assert.match(error.message, words);
			return true;
		},
		`${option} was not refused`
	);
}

test('a call with no more than it needs gets the documented defaults', () => {
	const plan = readOptions(call());
	assert.equal(plan.pidDir, '/tmp/pids');
	assert.equal(plan.version, 0);
	assert.equal(plan.stopOrphans, false);
	assert.equal(plan.claimTimeoutMs, null);
	assert.equal(plan.log, null);
	assert.equal(plan.reaper, null);
	const [first] = plan.processes;
	assert.equal(first.title, 'agent');
	assert.deepEqual(first.args, []);
	assert.equal(first.exitHint, null);
	assert.equal(first.verify, null);
	assert.deepEqual(first.restart, { max: 5, baseMs: 1000, capMs: 16000, resetAfterMs: 0 });
	assert.equal(first.replaceGraceMs, 0);
	assert.equal(first.replaceKill, false);
	assert.deepEqual(first.deliberateExitCodes, [0]);
	assert.deepEqual(first.direct, { stdio: 'ignore', name: 'agent' });
	assert.deepEqual(first.launcher, { stdio: ['ignore', 'ignore', 'ignore'], name: 'agent' });
	assert.deepEqual(first.spawn.stdio, ['ignore', 'ignore', 'ignore']);
	assert.equal(first.spawn.uid, -1);
	assert.equal(first.spawn.gid, -1);
	assert.equal(first.spawn.cwd, null);
	assert.equal(first.spawn.argv0, null);
	assert.equal(first.spawn.shell, false);
	assert.equal(first.spawn.detached, false);
	assert.equal(first.spawn.hostPath, process.env.PATH);
	assert.equal(first.spawn.hostCwd, process.cwd());
	assert.deepEqual(first.spawn.env, { ...process.env });
});

test('what is null counts as not given', () => {
	const plan = readOptions(
		call({
			version: null,
			stopOrphans: null,
			claimTimeoutMs: null,
			log: null,
			reaper: null,
			restart: null,
			replaceGraceMs: null,
			replaceKill: null,
			deliberateExitCodes: null,
			signal: null,
			processes: [
				{
					...agent,
					title: null,
					args: null,
					exitHint: null,
					verify: null,
					spawnOptions: null,
					restart: { max: null },
					replaceGraceMs: null,
					replaceKill: null,
					deliberateExitCodes: null,
					signal: null,
				},
			],
		})
	);
	assert.deepEqual(plan, readOptions(call()));
});

test('options that are no object are refused', () => {
	for (const options of [undefined, null, 1, 'x', [], () => {}]) refused(options, 'its argument');
});

test('pidDir is a path, made absolute at once', () => {
	for (const pidDir of [undefined, null, '', 1, {}, Buffer.from('/tmp'), '/tmp/\0x'])
		refused(call({ pidDir }), 'pidDir');
	assert.equal(readOptions(call({ pidDir: 'pids' })).pidDir, resolve('pids'));
});

test('spawn, processes, version and claimTimeoutMs are refused when they cannot be used', () => {
	for (const value of [undefined, null, 'spawn', {}]) refused(call({ spawn: value }), 'spawn', /function/);
	for (const value of [undefined, null, {}, 'agent', new Set()]) refused(call({ processes: value }), 'processes');
	// 1.5 was stored as 1 by the original's keeper; every later call then took its own process for an orphan.
	for (const version of [1.5, -1, 2 ** 53, Number.NaN, Infinity, '1', 1n, true]) refused(call({ version }), 'version');
	for (const ms of [0, -1, 0.5, 2 ** 31, Infinity, '47000']) refused(call({ claimTimeoutMs: ms }), 'claimTimeoutMs');
	assert.equal(readOptions(call({ version: 2 ** 53 - 1 })).version, 2 ** 53 - 1);
	assert.equal(Object.is(readOptions(call({ version: -0 })).version, 0), true);
	assert.equal(readOptions(call({ claimTimeoutMs: 1 })).claimTimeoutMs, 1);
});

test('stopOrphans and replaceKill are booleans', () => {
	for (const value of ['true', 1, {}]) {
		refused(call({ stopOrphans: value }), 'stopOrphans');
		refused(call({ replaceKill: value }), 'replaceKill');
	}
});

test('a name is a plain file name', () => {
	const wrongNames = [
		undefined,
		null,
		'',
		'.',
		'..',
		'a/b',
		'../a',
		'a\\b',
		'a\0b',
		'a\nb',
		'a\x7fb',
		'a\x9bb',
		'\ud800',
		'é'.repeat(101),
		'x'.repeat(201),
		7,
		['a'],
	];
	for (const name of wrongNames) refused(call({ processes: [{ ...agent, name }] }), 'processes[0].name', /file name/);
	for (const name of ['a', 'a..b', 'a b', 'ü漢', 'x'.repeat(200), 'é'.repeat(100), 'a.pid', 'a:b']) {
		assert.equal(readOptions(call({ processes: [{ ...agent, name }] }), 'linux').processes[0].name, name);
	}
	for (const name of ['a:b', 'a*', 'a?', 'a"b', 'a<b']) {
		refused(call({ processes: [{ ...agent, name }] }), 'processes[0].name', /Windows/, 'win32');
	}
	for (const name of ['con', 'NUL', 'aux.log', 'Com1', 'LPT9.x', 'prn ']) {
		refused(call({ processes: [{ ...agent, name }] }), 'processes[0].name', /name of a device/, 'win32');
		assert.equal(readOptions(call({ processes: [{ ...agent, name }] }), 'linux').processes[0].name, name);
	}
	for (const name of ['console', 'nullable', 'com10', 'a.nul']) {
		assert.equal(readOptions(call({ processes: [{ ...agent, name }] }), 'win32').processes[0].name, name);
	}
});

test('a name is used once, by processes and reaper together', () => {
	const twice = [agent, { ...agent, name: 'other' }, { ...agent }];
	refused(call({ processes: twice }), 'processes[2].name', /processes\[0\]\.name has it already; got 'agent'/);
	refused(call({ reaper: { name: 'agent' } }), 'reaper.name', /processes\[0\]\.name/);
	const cased = call({ processes: [agent, { ...agent, name: 'AGENT' }] });
	assert.equal(readOptions(cased, 'linux').processes.length, 2);
	// The file systems there fold case: both would be one lock.
	refused(cased, 'processes[1].name', /processes\[0\]/, 'darwin');
	refused(cased, 'processes[1].name', /processes\[0\]/, 'win32');
});

test('binaryPath, args, title, exitHint and verify are refused when they cannot be used', () => {
	const at = (/** @type {Record<string, unknown>} */ change) => call({ processes: [{ ...agent, ...change }] });
	for (const binaryPath of [undefined, null, 7, '/bin/\0']) refused(at({ binaryPath }), 'processes[0].binaryPath');
	for (const args of ['--x', {}, new Set(['a'])]) refused(at({ args }), 'processes[0].args', /array of strings/);
	for (const arg of [1, null, undefined, {}]) refused(at({ args: ['a', arg] }), 'processes[0].args[1]', /string/);
	refused(at({ args: new Array(2) }), 'processes[0].args[0]');
	for (const title of [7, {}]) refused(at({ title }), 'processes[0].title');
	for (const exitHint of [7, {}]) refused(at({ exitHint }), 'processes[0].exitHint');
	for (const verify of ['x', {}, true]) refused(at({ verify }), 'processes[0].verify', /function/);
	for (const entry of [null, undefined, 'agent', []]) refused(call({ processes: [entry] }), 'processes[0]');
	// A binary that is not installed is the machine's answer, not the caller's mistake.
	assert.equal(one({ binaryPath: '' }).binaryPath, '');
});

test('no error quotes an argument or a variable, which may be a password', () => {
	const secret = 'hunter2\0';
	for (const change of [{ args: [secret] }, { spawnOptions: { env: { TOKEN: secret } } }]) {
		assert.throws(
			() => one(change),
			(error) => error instanceof TypeError && !error.message.includes('hunter2') && /null byte/.test(error.message)
		);
	}
});

test('a lone surrogate becomes what the system will show', () => {
	const plan = one({ args: ['a\ud800b'], spawnOptions: { env: { A: '\udc00' } } });
	assert.deepEqual(plan.args, ['a\ufffdb']);
	assert.deepEqual(plan.spawn.env, { A: '\ufffd' });
});

test('a logger needs its three levels', () => {
	const full = { info() {}, warn() {}, error() {} };
	assert.equal(readOptions(call({ log: full })).log, full);
	assert.equal(readOptions(call({ log: console })).log, console);
	for (const level of ['info', 'warn', 'error'])
		refused(call({ log: { ...full, [level]: undefined } }), `log.${level}`);
	refused(call({ log: true }), 'log.info');
});

test('restart is merged field by field: default, call, process', () => {
	const plan = readOptions(
		call({
			restart: { max: 2, baseMs: 10 },
			processes: [agent, { ...agent, name: 'b', restart: { max: 0, resetAfterMs: 5 } }],
		})
	);
	assert.deepEqual(plan.processes[0].restart, { max: 2, baseMs: 10, capMs: 16000, resetAfterMs: 0 });
	assert.deepEqual(plan.processes[1].restart, { max: 0, baseMs: 10, capMs: 16000, resetAfterMs: 5 });
});

test('restart fields are refused when they cannot be used', () => {
	for (const restart of [5, 'no', [], true]) refused(call({ restart }), 'restart');
	for (const [field, values] of /** @type {[string, unknown[]][]} */ ([
		['max', [-1, 1.5, '5', Infinity]],
		['baseMs', [0, -1, 1.5, 2 ** 31]],
		['capMs', [0, 2 ** 31, '16000']],
		['resetAfterMs', [-1, 1.5]],
	])) {
		for (const value of values) {
			refused(call({ restart: { [field]: value } }), `restart.${field}`);
			refused(call({ processes: [{ ...agent, restart: { [field]: value } }] }), `processes[0].restart.${field}`);
		}
	}
	refused(call({ restart: { maxRestarts: 3 } }), 'restart.maxRestarts', /max, baseMs, capMs and resetAfterMs/);
});

test('a base above the default cap raises the cap, and a cap that was given stays', () => {
	assert.equal(one({ restart: { baseMs: 20_000 } }).restart.capMs, 20_000);
	assert.equal(one({ restart: { baseMs: 20_000, capMs: 50 } }).restart.capMs, 50);
	assert.deepEqual(one({ restart: { capMs: 50 } }).restart, { max: 5, baseMs: 1000, capMs: 50, resetAfterMs: 0 });
});

test('deliberateExitCodes, replaceGraceMs and replaceKill of a process replace those of the call', () => {
	const plan = readOptions(
		call({
			deliberateExitCodes: [0, 143],
			replaceGraceMs: 5,
			replaceKill: true,
			processes: [agent, { ...agent, name: 'b', deliberateExitCodes: [], replaceGraceMs: 0, replaceKill: false }],
		})
	);
	assert.deepEqual(plan.processes[0].deliberateExitCodes, [0, 143]);
	assert.deepEqual(plan.processes[1].deliberateExitCodes, []);
	assert.deepEqual([plan.processes[0].replaceGraceMs, plan.processes[0].replaceKill], [5, true]);
	assert.deepEqual([plan.processes[1].replaceGraceMs, plan.processes[1].replaceKill], [0, false]);
	refused(call({ deliberateExitCodes: 0 }), 'deliberateExitCodes');
	for (const code of [-1, 1.5, '0', null, 2 ** 32])
		refused(call({ deliberateExitCodes: [0, code] }), 'deliberateExitCodes[1]');
	for (const ms of [-1, 1.5, 2 ** 31]) refused(call({ replaceGraceMs: ms }), 'replaceGraceMs');
});

test('signal is an AbortSignal, of any realm', () => {
	const { signal } = new AbortController();
	assert.deepEqual(readOptions(call({ signal })).processes[0].signals, [signal]);
	assert.deepEqual(one({ signal }).signals, [signal]);
	const foreign = { aborted: false, addEventListener() {}, removeEventListener() {} };
	assert.deepEqual(one({ signal: foreign }).signals, [foreign]);
	for (const value of [true, {}, new AbortController()]) refused(call({ signal: value }), 'signal', /AbortSignal/);
});

test('spawn options that would act on the launcher are refused by name', () => {
	const at = (/** @type {Record<string, unknown>} */ spawnOptions) => call({ processes: [{ ...agent, spawnOptions }] });
	const option = 'processes[0].spawnOptions';
	refused(at({ signal: new AbortController().signal }), `${option}.signal`, /launcher/);
	refused(at({ timeout: 5 }), `${option}.timeout`, /launcher/);
	refused(at({ serialization: 'advanced' }), `${option}.serialization`, /IPC/);
	refused(at({ stdio: ['ignore', 'pipe', 'pipe', 'ipc'] }), `${option}.stdio[3]`, /IPC/);
	refused(at({ stdio: 'ipc' }), `${option}.stdio`);
	refused(call({ reaper: { spawnOptions: { timeout: 5 } } }), 'reaper.spawnOptions.timeout');
	assert.doesNotThrow(() => readOptions(at({ signal: undefined, timeout: 0, serialization: undefined })));
});

test('spawn options are refused when Node would refuse them', () => {
	const at = (/** @type {unknown} */ spawnOptions) => call({ processes: [{ ...agent, spawnOptions }] });
	for (const spawnOptions of [7, 'x', [], true]) refused(at(spawnOptions), 'processes[0].spawnOptions');
	for (const [field, values] of /** @type {[string, unknown[]][]} */ ([
		['cwd', [7, {}, 'a\0', new URL('https://host/x')]],
		['uid', [-1, 1.5, '0', 2 ** 31]],
		['gid', [-1, 1.5, '0', 2 ** 31]],
		['argv0', [7, 'a\0']],
		['shell', [7, {}, 'sh\0']],
		['detached', [1, 'yes']],
		['windowsHide', [1, 'yes']],
		['env', ['A=b', 7]],
		['stdio', ['fd', 7, {}]],
	])) {
		for (const value of values) refused(at({ [field]: value }), `processes[0].spawnOptions.${field}`);
	}
	for (const slot of ['fd', 1.5, {}, Symbol('x'), createWriteStream('/dev/null'), true]) {
		refused(at({ stdio: ['ignore', slot] }), 'processes[0].spawnOptions.stdio[1]');
	}
	refused(at({ env: { 'A\0': 'b' } }), 'processes[0].spawnOptions.env.A\\0');
});

test('stdio is read as Node reads it', () => {
	const socket = { _handle: {} };
	for (const [stdio, kinds] of /** @type {[unknown, string[]][]} */ ([
		['ignore', ['ignore', 'ignore', 'ignore']],
		['pipe', ['pipe', 'pipe', 'pipe']],
		['inherit', ['inherit', 'inherit', 'inherit']],
		['overlapped', ['overlapped', 'overlapped', 'overlapped']],
		[undefined, ['pipe', 'pipe', 'pipe']],
		[null, ['pipe', 'pipe', 'pipe']],
		[[], ['pipe', 'pipe', 'pipe']],
		[['ignore'], ['ignore', 'pipe', 'pipe']],
		[
			[null, undefined, 'inherit'],
			['pipe', 'pipe', 'inherit'],
		],
		[
			['ignore', 'ignore', 'ignore', null, 'pipe', undefined],
			['ignore', 'ignore', 'ignore', 'ignore', 'pipe', 'ignore'],
		],
		[
			[0, 1, 7],
			['fd', 'fd', 'fd'],
		],
		[
			[-1, 'ignore', 'ignore'],
			['pipe', 'ignore', 'ignore'],
		],
		[
			['ignore', process.stderr, socket],
			['ignore', 'fd', 'fd'],
		],
	])) {
		assert.deepEqual(spawned({ stdio }).spawn.stdio, kinds, String(stdio));
	}
});

test('the launcher gets the declared stdio with every slot spelt out, the process itself what the caller wrote', () => {
	const plan = spawned({
		stdio: [null, 5, process.stderr, null],
		cwd: '/',
		uid: 7,
		windowsHide: true,
		name: 'mine',
		env: {},
	});
	assert.deepEqual(plan.launcher, { stdio: ['pipe', 5, process.stderr, 'ignore'], name: 'agent', windowsHide: true });
	assert.deepEqual(plan.direct, {
		stdio: [null, 5, process.stderr, null],
		cwd: '/',
		uid: 7,
		windowsHide: true,
		name: 'agent',
		env: {},
	});
});

test('the environment is the one Node would hand on', () => {
	const env = Object.create({ INHERITED: 'yes' });
	Object.assign(env, { A: 'b', GONE: undefined, NUMBER: 7, NOTHING: null, EMPTY: '' });
	Object.defineProperty(env, '__proto__', { value: 'odd', enumerable: true });
	const read = spawned({ env }).spawn.env;
	assert.deepEqual(Object.keys(read).sort(), ['A', 'EMPTY', 'INHERITED', 'NOTHING', 'NUMBER', '__proto__']);
	assert.equal(read.NUMBER, '7');
	assert.equal(read.NOTHING, 'null');
	assert.equal(Object.getPrototypeOf(read), Object.prototype);
	assert.deepEqual(spawned({ env: {} }).spawn.env, {});
});

test('cwd becomes absolute, and a file URL a path', () => {
	assert.equal(spawned({ cwd: 'sub' }).spawn.cwd, resolve('sub'));
	assert.equal(spawned({ cwd: pathToFileURL('/tmp/a b') }).spawn.cwd, '/tmp/a b');
	assert.equal(spawned({ cwd: '' }).spawn.cwd, null);
});

test('everything else of the spawn options reaches the Go side', () => {
	const { spawn: facts } = spawned({ uid: 0, gid: 5, argv0: 'other', shell: '/bin/sh', detached: true });
	assert.deepEqual([facts.uid, facts.gid, facts.argv0, facts.shell, facts.detached], [0, 5, 'other', '/bin/sh', true]);
	assert.equal(spawned({ shell: true }).spawn.shell, true);
});

test('the reaper has its defaults, and absolute paths', () => {
	const { reaper } = readOptions(call({ reaper: {} }));
	assert.equal(reaper?.name, 'process-guard-reaper');
	assert.equal(reaper.graceMs, 8000);
	assert.equal(reaper.replacementPidFile, null);
	assert.equal(reaper.logFile, null);
	assert.deepEqual(reaper.direct, { detached: true, stdio: 'ignore', name: 'process-guard-reaper' });
	const given = readOptions(
		call({
			reaper: { name: 'r', graceMs: 0, replacementPidFile: 'x.pid', logFile: 'l', spawnOptions: { detached: false } },
		})
	).reaper;
	assert.equal(given?.name, 'r');
	assert.equal(given.graceMs, 0);
	assert.equal(given.replacementPidFile, resolve('x.pid'));
	assert.equal(given.logFile, resolve('l'));
	assert.equal(given.direct.detached, false);
});

test('reaper fields are refused when they cannot be used', () => {
	for (const reaper of [true, 'reaper', []]) refused(call({ reaper }), 'reaper');
	for (const name of ['', 'a/b', 7]) refused(call({ reaper: { name } }), 'reaper.name');
	for (const graceMs of [-1, 1.5, '8000', 2 ** 31]) refused(call({ reaper: { graceMs } }), 'reaper.graceMs');
	for (const path of ['', 7, 'a\0']) {
		refused(call({ reaper: { replacementPidFile: path } }), 'reaper.replacementPidFile');
		refused(call({ reaper: { logFile: path } }), 'reaper.logFile');
	}
});

test('a call keeps what it was given, whatever the caller changes later', () => {
	const args = ['a'];
	const env = { A: '1' };
	const options = call({ processes: [{ ...agent, args, spawnOptions: { env, stdio: ['ignore', 'pipe', 'pipe'] } }] });
	const plan = readOptions(options);
	args.push('b');
	env.A = '2';
	options.processes.push({ ...agent, name: 'late' });
	assert.deepEqual(plan.processes[0].args, ['a']);
	assert.deepEqual(plan.processes[0].spawn.env, { A: '1' });
	assert.equal(plan.processes.length, 1);
});

test('a value that cannot be shown does not hide which option is wrong', () => {
	const hostile = new Proxy(
		{},
		{
			get() {
				throw new Error('no');
			},
		}
	);
	refused(call({ version: hostile }), 'version');
	refused(call({ version: 'x'.repeat(10_000) }), 'version', /^.{0,400}$/);
});

test('stopProcess names a process of the call', () => {
	assert.deepEqual(readStopOptions('a', undefined, ['a']), { timeoutMs: 10_000, force: false });
	assert.deepEqual(readStopOptions('a', { timeoutMs: 0, force: true }, ['a']), { timeoutMs: 0, force: true });
	assert.throws(() => readStopOptions('b', {}, ['a']), /stopProcess: name must be one of this call's processes \(a\)/);
	assert.throws(() => readStopOptions(undefined, {}, []), /there is none/);
	assert.throws(() => readStopOptions('a', 5, ['a']), TypeError);
	assert.throws(() => readStopOptions('a', { timeoutMs: -1 }, ['a']), /timeoutMs must be/);
	assert.throws(() => readStopOptions('a', { force: 1 }, ['a']), /force must be/);
});
