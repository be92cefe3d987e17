// @ts-check
/** What holds a host open: its own work, a pipe it asked for, a process it spawned itself. Never the guard. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @param {import('../support/host.js').Host} host */
const ended = (host) => host.exit !== null;

test('a host with no other work ends after guard(), with keeper and reaper running on', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	await host.guard(0, box.config([], { reaper: { graceMs: 60_000 } }));
	await host.call(0, 'letGo');
	await until(() => ended(host), 5_000, 'the host ended by itself');
	assert.deepEqual(host.exit, { code: 0, signal: null });
	assert.deepEqual([box.running().length, box.keepers().length, box.reapers().length], [1, 1, 1]);
});

test('so does one that only joined', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host(), await box.host()];
	await first.guard(0, box.config([]));
	await second.guard(0, box.config([]));
	await second.call(0, 'letGo');
	await until(() => ended(second), 5_000, 'the host ended by itself');
	assert.equal(box.running().length, 1);
});

test('a worker thread with no other work ends after guard()', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, box.config([]));
	await host.call(1, 'letGo');
	await until(
		() =>
			host.call(1, 'now').then(
				() => false,
				(error) => /does not run/.test(error.message)
			),
		5_000,
		'the worker ended by itself'
	);
	assert.equal(box.running().length, 1);
});

test('a pipe that the caller asked for holds the host open as long as the keeper lives', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	await host.guard(0, {
		...box.config([], { process: { spawnOptions: { stdio: ['ignore', 'pipe', 'ignore'] } } }),
		reading: 'all',
	});
	await host.call(0, 'letGo');
	await never(() => ended(host), 500, 'the host ends');
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => ended(host), 5_000, 'the host ended with the pipe');
});

test('a process that the thread spawned itself holds the host open until it ends', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	await host.guard(0, box.config([], { spawn: { kind: 'no-launcher' } }));
	await host.call(0, 'letGo');
	await never(() => ended(host), 500, 'the host ends');
	process.kill(box.only().pid, 'SIGTERM');
	await until(() => ended(host), 5_000, 'the host ended with the process');
});

test('a pending guard() holds the host open until it is answered', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host(), await (await box.host()).load()];
	const config = box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 1_000 } });
	await first.guard(0, config);
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.exitRecord()?.outcome === 'restarting', 5_000, 'a restart is owed');
	await second.call(0, 'guardLater', 'main', config);
	await second.call(0, 'letGo');
	await never(() => ended(second), 300, 'it ends with the call pending');
	await until(() => ended(second), 10_000, 'it ended after the answer');
	assert.equal(second.exit?.code, 0);
});
