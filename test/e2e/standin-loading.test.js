// @ts-check
/**
 * A component in a host that makes it hard: pid files that name strangers, no worker threads, packages loaded as
 * application code, and a pid directory that is the host's own.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { generations } from '../support/host/child-process.js';
import { StandIn } from '../support/host/stand-in.js';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

const component = fileURLToPath(new URL('../support/host/component', import.meta.url));

/**
 * @param {import('node:test').TestContext} t
 * @param {Partial<import('../support/host/stand-in.js').StandInOptions>} options
 * @param {Record<string, any>} [settings]
 */
function hostIn(t, options, settings = {}) {
	const box = sandbox(t);
	const host = new StandIn(box, { component, threads: 2, forceExitMs: 1000, ...options });
	box.pidDir = join(host.root, settings.pidDir ?? 'process-guard');
	const processes = [{ name: 'proc', title: 'the process', command: box.proc, args: [box.marker] }];
	writeFileSync(
		join(host.component, 'settings.json'),
		JSON.stringify({ reaperGraceMs: 300, fingerprint: ['a'], processes, ...settings })
	);
	return { box, host };
}

for (const generation of generations) {
	test(`what an earlier host's pid files name is not handed back, spawn of generation ${generation}`, async (t) => {
		const { box, host } = hostIn(t, { generation });
		const parent = spawn(box.proc, [box.file('other marker'), `zombie=${box.file('zombie')}`], { stdio: 'ignore' });
		const zombie = Number(await until(() => box.lines('zombie')[0], 5000, 'the zombie is there'));
		mkdirSync(join(host.root, 'pids'));
		const file = (/** @type {string} */ name) => join(host.root, 'pids', `${name}.pid`);
		writeFileSync(file('proc'), `${process.pid}\n1\n`);
		writeFileSync(file('process-guard-reaper'), `${zombie}`);
		await host.boot();
		for (const { processes, reaper } of await host.getAll('/Guarded')) {
			assert.equal(processes[0].pid, box.only().pid, JSON.stringify(processes[0]));
			assert.equal(reaper.pid, box.reapers()[0].pid, JSON.stringify(reaper));
		}
		assert.equal(box.keepers().length, 1, 'through a launcher, as if nothing had been there');
		const removed = host.log().filter((line) => line.includes('[warn] guarded component: removed'));
		assert.equal(removed.filter((line) => line.includes(`named pid ${process.pid}, which is running`)).length, 1);
		assert.equal(
			removed.filter((line) => line.includes(`named pid ${zombie}, which has exited and was never reaped`)).length,
			1
		);
		assert.equal(removed.length, 2, 'each by one thread, and nothing else');
		await until(() => !existsSync(file('proc')), 5000, 'the launcher has left no file either');
		const ended = new Promise((resolve) => parent.once('exit', resolve));
		parent.kill('SIGTERM');
		await ended;
	});

	test(`a pid directory that is the host's own is refused with the remedy, spawn of generation ${generation}`, async (t) => {
		const { box, host } = hostIn(t, { generation }, { pidDir: 'pids' });
		box.expectedLeftovers = [/\.pid\b/];
		await host.boot();
		const seen = await host.getAll('/Guarded');
		// Both sides write the same file. Nothing may run that nobody has a record of.
		for (const { processes } of seen) {
			const [state] = processes;
			assert.equal(state.started, false);
			assert.match(state.error, /another pidDir/);
		}
		await until(() => box.keepers().length === 0, 10_000, 'no keeper is left');
		await never(() => box.running().length > 0, 500, 'a process without a record');
	});
}

test('where the main thread is the only one it starts everything', async (t) => {
	const { box, host } = hostIn(t, { threads: 0 });
	await host.boot();
	const [{ main, thread, processes }] = await host.getAll('/Guarded');
	assert.deepEqual([main, thread], [true, 0]);
	assert.deepEqual([processes[0].pid, processes[0].adopted], [box.only().pid, false]);
	process.kill(box.only().pid, 'SIGTERM');
	await until(async () => (await host.get('/Guarded')).own[0].exited, 5000, 'its end is told');
});

for (const generation of generations) {
	test(`loaded as application code it works the same, loader of generation ${generation}`, async (t) => {
		const { box, host } = hostIn(t, { generation, dependencies: 'app' });
		await host.boot();
		for (const { processes, reaper } of await host.getAll('/Guarded')) {
			assert.equal(processes[0].pid, box.only().pid, JSON.stringify(processes[0]));
			assert.equal(reaper.pid, box.reapers()[0].pid);
		}
		assert.equal(host.output, '');
	});
}

test('with the host its processes end, and a stop of one does not', async (t) => {
	const { box, host } = hostIn(t, {}, {});
	await host.boot();
	await host.getAll('/Guarded');
	const { pid, started } = box.only();
	await host.restartService();
	assert.ok(alive(pid, started));
	await host.kill('SIGTERM');
	await until(() => box.running().length + box.keepers().length + box.reapers().length === 0, 20_000, 'all has ended');
	assert.match(readFileSync(join(host.root, 'log/reaper.log'), 'utf8'), /sent SIGTERM/);
	assert.deepEqual(
		readdirSync(box.pidDir).filter((name) => !/\.(claiming|exit)$/.test(name)),
		[]
	);
});
