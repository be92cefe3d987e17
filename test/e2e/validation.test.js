// @ts-check
/** Wrong options are a TypeError that names the option and what it must be, before anything is touched. */
import assert from 'node:assert/strict';
import { symlinkSync } from 'node:fs';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';

/** @type {[option: string, change: (config: any) => any][]} */
const wrong = [
	['pidDir', (config) => ({ ...config, pidDir: undefined })],
	['pidDir', (config) => ({ ...config, pidDir: '' })],
	['pidDir', (config) => ({ ...config, pidDir: 7 })],
	['pidDir', (config) => ({ ...config, pidDir: `${config.pidDir}\0x` })],
	['processes', (config) => ({ ...config, processes: undefined })],
	['processes', (config) => ({ ...config, processes: {} })],
	['version', (config) => ({ ...config, version: 1.5 })],
	['version', (config) => ({ ...config, version: -1 })],
	['version', (config) => ({ ...config, version: '1' })],
	['version', (config) => ({ ...config, version: 2 ** 53 })],
	['version', (config) => ({ ...config, version: NaN })],
	['stopOrphans', (config) => ({ ...config, stopOrphans: 'yes' })],
	['claimTimeoutMs', (config) => ({ ...config, claimTimeoutMs: -1 })],
	['claimTimeoutMs', (config) => ({ ...config, claimTimeoutMs: 'soon' })],
	['restart', (config) => ({ ...config, restart: 5 })],
	['max', (config) => ({ ...config, restart: { max: -1 } })],
	['baseMs', (config) => ({ ...config, restart: { baseMs: '1' } })],
	['capMs', (config) => ({ ...config, restart: { capMs: NaN } })],
	['resetAfterMs', (config) => ({ ...config, restart: { resetAfterMs: -5 } })],
	['replaceGraceMs', (config) => ({ ...config, replaceGraceMs: -1 })],
	['replaceKill', (config) => ({ ...config, replaceKill: 1 })],
	['deliberateExitCodes', (config) => ({ ...config, deliberateExitCodes: 0 })],
	['deliberateExitCodes', (config) => ({ ...config, deliberateExitCodes: [0.5] })],
	['deliberateExitCodes', (config) => ({ ...config, deliberateExitCodes: ['0'] })],
	['reaper', (config) => ({ ...config, reaper: 'please' })],
	['graceMs', (config) => ({ ...config, reaper: { graceMs: -1 } })],
	['name', (config) => ({ ...config, reaper: { name: 'a/b' } })],
	...['', '.', '..', 'a/b', '../x', 'a\nb', 'a\0b', 'a\u007fb', 'x'.repeat(201), 7, undefined].map(
		(name) =>
			/** @type {[string, (config: any) => any]} */ ([
				'name',
				(/** @type {any} */ config) => ({ ...config, processes: [{ ...config.processes[0], name }] }),
			])
	),
	['name', (config) => ({ ...config, processes: [config.processes[0], config.processes[0]] })],
	['args', (config) => ({ ...config, processes: [{ ...config.processes[0], args: 'one' }] })],
	['args', (config) => ({ ...config, processes: [{ ...config.processes[0], args: [7] }] })],
	['args', (config) => ({ ...config, processes: [{ ...config.processes[0], args: ['a\0b'] }] })],
	['binaryPath', (config) => ({ ...config, processes: [{ ...config.processes[0], binaryPath: 7 }] })],
	['spawnOptions', (config) => ({ ...config, processes: [{ ...config.processes[0], spawnOptions: 'shell' }] })],
];

test('wrong options reject with a TypeError that names them, and touch nothing', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	for (const [option, change] of wrong) {
		const config = change(box.config([]));
		const label = `${option}: ${JSON.stringify(config).slice(0, 200)}`;
		await assert.rejects(
			host.guard(0, config),
			(/** @type {any} */ error) => {
				assert.equal(error.name, 'TypeError', `${label}: ${error.message}`);
				assert.match(error.message, new RegExp(option), label);
				assert.match(error.message, /must|cannot|more than once|twice|once/, label);
				return true;
			},
			label
		);
		assert.deepEqual(box.files(), [], label);
	}
	assert.equal(box.running().length, 0);
});

test('a pidDir that is relative or reached by a symlink is the same directory', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ cwd: box.dir });
	const { processes } = await host.guard(0, box.config([]));
	symlinkSync(box.pidDir, box.file('link'));
	for (const pidDir of ['run', './run/', box.file('link')]) {
		const { processes: again } = await host.guard(0, { ...box.config([]), pidDir }, pidDir);
		assert.deepEqual([again[0].pid, again[0].adopted], [processes[0].pid, true], pidDir);
	}
	assert.equal(box.running().length, 1);
});

test('a pidDir that cannot be used is an error of the state, not a rejection', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	const { processes } = await host.guard(0, { ...box.config([]), pidDir: `${box.proc}/run` });
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, /lock could not be taken|not a directory|ENOTDIR/i);
	assert.equal(box.running().length, 0);
});

test('a name at the limit works', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	const name = `ä b-${'n'.repeat(195)}`;
	assert.equal(Buffer.byteLength(name), 200);
	const { processes } = await host.guard(0, box.config([], { process: { name } }));
	assert.equal(processes[0].error, undefined);
	assert.equal(box.record(name).pid, box.only().pid);
});

test('a broken logger or verify changes nothing about the process', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host
		.guard(1, { ...box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 10 } }), logger: 'throws' })
		.catch(() => {});
	const next = await host.guard(0, { ...box.config([`starts=${box.file('starts')}`]), logger: 'none' });
	assert.equal(next.processes[0].error, undefined);
	assert.ok(next.tookMs < 3_000, 'nothing is wedged');
	assert.equal(box.only().pid, next.processes[0].pid);
	assert.equal(host.exit, null, 'no unhandled rejection ended the host');
});

test('verify is asked after the start, its answer is on the state', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	const good = await host.guard(0, { ...box.config([]), verify: { ok: true, detail: 'answers' } });
	assert.deepEqual([good.processes[0].verified, good.processes[0].verifyDetail], [true, 'answers']);
	const bad = await host.guard(0, { ...box.config([]), verify: { ok: false, detail: 'does not' } }, 'bad');
	assert.deepEqual([bad.processes[0].verified, bad.processes[0].verifyDetail], [false, 'does not']);
	assert.ok(
		bad.log.some((/** @type {any} */ entry) => entry.level === 'error' && /failed verification/.test(entry.line))
	);
});

test('signal: an abort before the start rejects with its reason and starts nothing; after it changes nothing', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await assert.rejects(host.guard(1, { ...box.config([]), abort: 'already' }), /changed its mind/);
	assert.equal(box.running().length, 0);
	assert.equal(box.record(), null);
	const { processes } = await host.guard(1, { ...box.config([]), abort: 'later' }, 'second');
	await host.call(1, 'abort', 'second');
	assert.equal(box.only().pid, processes[0].pid);
	process.kill(box.only().pid, 'SIGKILL');
	await host.stateUntil(1, (state) => state.restarts === 1 && !state.exited, 5_000, 'it is still watched', {
		key: 'second',
	});
});

test('several processes in one call: each has its own state, one failing keeps none of the others', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 4 });
	const processes = [
		box.process([`starts=${box.file('a')}`], { name: 'a' }),
		box.process([], { name: 'b', binaryPath: '/nonexistent' }),
		box.process([`starts=${box.file('c')}`], { name: 'c', title: 'the third' }),
	];
	for (const result of await host.guardAll({ pidDir: box.pidDir, processes })) {
		assert.deepEqual(
			result.processes.map((/** @type {any} */ state) => [state.name, state.title, state.started]),
			[
				['a', 'a', true],
				['b', 'b', false],
				['c', 'the third', true],
			]
		);
		assert.match(result.processes[1].error, /ENOENT/);
	}
	assert.equal(box.running().length, 2);
});
