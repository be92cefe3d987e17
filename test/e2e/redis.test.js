// @ts-check
/** A real redis-server: it renames itself, saves on SIGTERM and exits 0. */
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { test } from 'node:test';
import { ask, freePort } from '../support/ports.js';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { findService } from '../support/services.js';
import { never, until } from '../support/until.js';

const redis = findService('redis-server');

/** @param {import('node:test').TestContext} t */
async function guarded(t) {
	const box = sandbox(t);
	const port = await freePort();
	mkdirSync(box.file('data'));
	const config = {
		pidDir: box.pidDir,
		restart: { baseMs: 50 },
		reaper: { graceMs: 300 },
		processes: [
			{
				name: 'redis',
				binaryPath: redis?.binary,
				args: [
					'--port',
					`${port}`,
					'--bind',
					'127.0.0.1',
					'--dir',
					box.file('data'),
					'--appendonly',
					'yes',
					'--appendfsync',
					'always',
					'--save',
					'',
					'--daemonize',
					'no',
				],
				spawnOptions: { env: redis?.env },
			},
		],
	};
	const host = await (await box.host({ threads: 8 })).load();
	const results = await host.guardAll(config);
	for (const { processes } of results) assert.deepEqual([processes[0].error, processes[0].started], [undefined, true]);
	const { pid } = results[0].processes[0];
	await until(async () => (await ask(port, 'PING')) === '+PONG', 10_000, 'redis answers');
	t.after(async () => {
		// It has overwritten its command line, so the sandbox cannot find it by its directory.
		const last = box.record('redis')?.pid;
		if (last) await until(() => !alive(last), 10_000, 'redis has ended with its keeper');
	});
	return { box, port, config, host, pid };
}

const skip = redis ? false : 'no redis-server on this machine and none could be fetched';

test('redis-server: 8 threads, one process, joined although it renamed itself', { skip }, async (t) => {
	const { box, host, pid, config } = await guarded(t);
	assert.match(processOf(pid)?.argv.join(' ') ?? '', /redis-server 127\.0\.0\.1:\d+/, 'it did rename itself');
	for (const thread of host.threadNumbers()) assert.equal((await host.state(thread)).processes[0].pid, pid);
	const other = await box.host();
	const { processes } = await other.guard(0, config);
	assert.deepEqual([processes[0].pid, processes[0].adopted, processes[0].error], [pid, true, undefined]);
});

test('redis-server crashed: started again with its data, once', { skip }, async (t) => {
	const { port, host, pid } = await guarded(t);
	assert.equal(await ask(port, 'SET key value'), '+OK');
	process.kill(pid, 'SIGKILL');
	const next = await host.stateUntil(
		3,
		(state) => state.restarts === 1 && !state.exited && state.pid !== pid,
		10_000,
		'it was started again'
	);
	await until(async () => (await ask(port, 'PING')) === '+PONG', 10_000, 'redis answers again');
	assert.match((await ask(port, 'GET key')) ?? '', /value/);
	assert.match((await ask(port, 'INFO server')) ?? '', new RegExp(`process_id:${next.pid}\\b`));
});

test('redis-server stopped: by SIGTERM it exits 0 and stays stopped; stopProcess does the same', {
	skip,
}, async (t) => {
	const { box, port, host, pid, config } = await guarded(t);
	process.kill(pid, 'SIGTERM');
	for (const thread of [1, 5]) {
		const state = await host.stateUntil(thread, (one) => one.exited, 10_000, 'it shows the end');
		assert.deepEqual([state.code, state.signal ?? null, state.restarts], [0, null, 0]);
	}
	await never(async () => (await ask(port, 'PING')) !== null, 400, 'redis comes back');
	await host.guard(1, config, 'again');
	await until(async () => (await ask(port, 'PING')) === '+PONG', 10_000, 'redis answers again');
	const answer = await host.call(1, 'stopProcess', 'again', 'redis');
	assert.deepEqual([answer.stopped, answer.code], [true, 0]);
	assert.equal(await ask(port, 'PING'), null);
	assert.equal(box.record('redis'), null);
});

test('redis-server adopted by the next host with its data; the reaper of the last host stops it cleanly', {
	skip,
}, async (t) => {
	const { box, port, config, host, pid } = await guarded(t);
	assert.equal(await ask(port, 'SET key kept'), '+OK');
	const next = await box.host({ threads: 2 });
	await next.guardAll({ ...config, reaper: undefined });
	for (const reaper of box.reapers()) process.kill(reaper.pid, 'SIGTERM');
	await until(() => box.reapers().length === 0, 5_000, 'no reaper interferes');
	await host.kill();
	const { processes, reaper } = await next.guard(1, config, 'again');
	assert.deepEqual([processes[0].pid, processes[0].adopted, reaper.error], [pid, true, undefined]);
	assert.match((await ask(port, 'GET key')) ?? '', /kept/);
	await next.kill();
	await until(
		() => !alive(pid) && box.keepers().length === 0 && box.reapers().length === 0,
		15_000,
		'the reaper stopped it'
	);
	assert.equal(box.exitRecord('redis')?.signal ?? null, null, 'redis was not killed');
});
