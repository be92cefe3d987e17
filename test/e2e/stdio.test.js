// @ts-check
/** Pipes under a keeper: relayed to the caller, whole, without the process ever depending on who reads. */
import assert from 'node:assert/strict';
import { closeSync, openSync } from 'node:fs';
import { test } from 'node:test';
import { descriptorsOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

const megabyte = 1_048_576;
const piped = { process: { spawnOptions: { stdio: 'pipe' } } };

/**
 * @param {import('../support/host.js').Host} host
 * @param {number} [thread]
 */
const child = async (host, thread = 1) => (await host.call(thread, 'spawned', 'main'))[0];

for (const reading of ['all', 'slow']) {
	test(`1 MiB on stdout and on stderr arrive complete at a reader that takes ${reading === 'slow' ? 'its time' : 'all at once'}`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 1 });
		await host.guard(1, {
			...box.config([`write=1:${megabyte}`, `write=2:${megabyte}`, `note=${box.file('done')}:written`], piped),
			reading,
		});
		await until(() => box.lines('done').length === 1, 20_000, 'the process wrote everything');
		await until(
			async () => (await child(host)).bytes[1] === megabyte && (await child(host)).bytes[2] === megabyte,
			20_000,
			'everything arrived'
		);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(
			async () => (await child(host)).ended[1] && (await child(host)).ended[2],
			5_000,
			'both pipes end with the keeper'
		);
	});
}

for (const reading of ['all', 'slow']) {
	test(`what a process writes right before its end arrives, at a reader that takes ${reading === 'slow' ? 'its time' : 'all at once'}`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 1 });
		await host.guard(1, {
			...box.config([`after=${box.file('go')}`, `write=1:${megabyte}`, `write=2:${megabyte}`, 'end=0:exit:0'], piped),
			reading,
		});
		closeSync(openSync(box.file('go'), 'w'));
		await until(async () => (await child(host)).ended[1] && (await child(host)).ended[2], 10_000, 'both pipes ended');
		assert.deepEqual((await child(host)).bytes, { 1: megabyte, 2: megabyte });
	});
}

test('the output of every life is relayed', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, {
		...box.config(['say=1:hello', `starts=${box.file('starts')}`], { restart: { baseMs: 10 }, ...piped }),
		reading: 'all',
	});
	for (let life = 2; life <= 4; life++) {
		await until(() => box.lines('starts').length === life - 1, 5_000, `life ${life - 1}`);
		process.kill(box.only().pid, 'SIGKILL');
	}
	await until(async () => (await child(host)).text === 'hello\n'.repeat(4), 5_000, 'four lives said hello');
});

for (const gone of ['the reader closed its end', 'the reading thread was terminated', 'the host was killed']) {
	test(`${gone}: the process writes 1 MiB, neither dies nor blocks`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 1 });
		await host.guard(1, {
			...box.config(
				[
					`starts=${box.file('starts')}`,
					`after=${box.file('go')}`,
					`write=1:${megabyte}`,
					`write=2:${megabyte}`,
					`note=${box.file('done')}:written`,
				],
				piped
			),
			reading: gone.startsWith('the reader ') ? 'destroy' : 'all',
		});
		const one = box.only();
		if (gone.startsWith('the reading')) await host.terminate(1);
		if (gone.startsWith('the host')) await host.kill();
		closeSync(openSync(box.file('go'), 'w'));
		await until(() => box.lines('done').length === 1, 10_000, 'the process wrote everything');
		assert.equal(box.only().pid, one.pid);
		await box.startedTimes(1);
	});
}

test('a reader that never reads holds the process back and nothing else: stopping still works', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, {
		...box.config([`write=1:${4 * megabyte}`, `note=${box.file('done')}:written`], piped),
		reading: 'none',
	});
	await never(() => box.lines('done').length > 0, 300, 'everything was taken although nobody reads');
	const stopped = performance.now();
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'both have ended');
	assert.ok(performance.now() - stopped < 3_000);
});

test('stdin is held open and silent: end-of-file comes when the keeper is gone and not before', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, {
		...box.config([`starts=${box.file('starts')}`, `stdin=${box.file('stdin')}`], piped),
		reading: 'all',
	});
	await host.terminate(1);
	await host.kill();
	await never(() => box.lines('stdin').length > 0, 300, 'it reads end-of-file');
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	await until(() => box.lines('stdin').length === 1, 5_000, 'it reads end-of-file');
	assert.deepEqual(box.lines('stdin'), ['eof 0']);
});

test('unset and null slots among the first three are pipes, as in Node; the default is ignore', async (t) => {
	for (const [stdio, kinds] of /** @type {const} */ ([
		[
			[null, undefined, 'ignore'],
			['pipe', 'pipe', 'null'],
		],
		[
			['ignore', 'pipe'],
			['null', 'pipe', 'pipe'],
		],
		[undefined, ['null', 'null', 'null']],
	])) {
		await t.test(JSON.stringify(stdio) ?? 'default', async (tt) => {
			const box = sandbox(tt);
			const host = await box.host({ threads: 1 });
			await host.guard(1, {
				...box.config([`dump=${box.file('dump')}`], { process: { spawnOptions: stdio ? { stdio } : undefined } }),
				reading: 'all',
			});
			const { fds } = await box.dump('dump');
			assert.deepEqual(
				[0, 1, 2].map((fd) => (/^(pipe|socket):/.test(fds[fd]) ? 'pipe' : fds[fd] === '/dev/null' ? 'null' : fds[fd])),
				kinds
			);
		});
	}
});

test('keeper and reaper write nothing of their own to the descriptors of the host', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(
		1,
		box.config([`starts=${box.file('starts')}`], {
			restart: { baseMs: 10 },
			reaper: { graceMs: 50 },
			process: { spawnOptions: { stdio: 'inherit' } },
		})
	);
	process.kill(box.only().pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 5_000, 'it was started again');
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
	assert.equal(host.output, '');
});

test('the keeper holds no descriptor that nobody declared', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(1, box.config([]));
	for (const target of Object.values(descriptorsOf(box.keepers()[0].pid))) {
		assert.match(target, /^\/dev\/null$|^anon_inode:|^pidfd|^pipe:|\.keeper\.|\/run$/, target);
	}
});
