// @ts-check
/** What spawnOptions say is true of the guarded process, at its start and at every restart, and of nothing in between. */
import assert from 'node:assert/strict';
import {
	chmodSync,
	chownSync,
	closeSync,
	mkdirSync,
	openSync,
	readFileSync,
	realpathSync,
	unlinkSync,
	writeFileSync,
} from 'node:fs';
import { test } from 'node:test';
import { preload } from '../support/fixtures.js';
import { nobody, whyNotNobody } from '../support/host.js';
import { environmentOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * Guards a process with some options, lets it tell what it got, kills it, and lets the restarted one tell again.
 * @param {import('node:test').TestContext} t
 * @param {Record<string, any> | ((box: Sandbox) => Record<string, any>)} options
 * @param {(seen: any, box: Sandbox, life: 'start' | 'restart') => void} check
 * @param {{ host?: import('../support/host.js').HostOptions, prepare?: (box: Sandbox) => void }} [more]
 */
async function inBothLives(t, options, check, { host: hostOptions = {}, prepare } = {}) {
	const box = sandbox(t);
	prepare?.(box);
	const host = await box.host({ threads: 1, ...hostOptions });
	const spawnOptions = typeof options === 'function' ? options(box) : options;
	const { processes } = await host.guard(
		1,
		box.config([`starts=${box.file('starts')}`, `dump=${box.file('dump')}`], {
			restart: { baseMs: 10 },
			process: { spawnOptions },
		})
	);
	assert.equal(processes[0].error, undefined);
	check(await box.dump('dump'), box, 'start');
	unlinkSync(box.file('dump'));
	process.kill(processes[0].pid, 'SIGKILL');
	check(await box.dump('dump'), box, 'restart');
	return box;
}

test('without spawnOptions: the environment and directory of the host, ignored stdio, clean signals, nothing else open', async (t) => {
	await inBothLives(
		t,
		{},
		(seen, box) => {
			assert.deepEqual(seen.argv, [box.proc, box.marker, `starts=${box.file('starts')}`, `dump=${box.file('dump')}`]);
			assert.deepEqual(Object.keys(seen.fds), ['0', '1', '2']);
			for (const target of Object.values(seen.fds)) assert.equal(target, '/dev/null');
			assert.equal(BigInt(`0x${seen.blocked}`), 0n, 'no signal is blocked');
			assert.equal(BigInt(`0x${seen.ignored}`), 0n, 'no signal is ignored');
			assert.equal(seen.deathsig, 0);
			assert.equal(seen.env.ONLY_FOR_THIS, 'test');
			assert.equal(seen.cwd, process.cwd());
			assert.deepEqual(
				Object.keys(seen.env).filter(
					(name) => name.startsWith('PG_ENV_') || name.startsWith('PG_SPEC') || name.endsWith('_FD')
				),
				[]
			);
		},
		{ host: { env: { ONLY_FOR_THIS: 'test' } } }
	);
});

test('cwd is that of the process; the lock directory may be relative all the same', async (t) => {
	const box = sandbox(t);
	mkdirSync(box.file('work'));
	const host = await box.host({ threads: 1, cwd: box.dir });
	const { processes } = await host.guard(1, {
		...box.config([`dump=${box.file('dump')}`], { process: { spawnOptions: { cwd: box.file('work') } } }),
		pidDir: 'run',
	});
	assert.equal(processes[0].error, undefined);
	assert.equal((await box.dump('dump')).cwd, box.file('work'));
	assert.equal(box.record().pid, processes[0].pid);
	assert.notEqual(realpathSync(`/proc/${box.keepers()[0].pid}/cwd`), box.file('work'));
});

test('env is that of the process alone, to the letter', async (t) => {
	const odd = {
		A: '1',
		EMPTY: '',
		'with space': 'x y',
		QUOTED: '"\'\\',
		LINES: 'a\nb',
		UNI: 'ä€😀',
		PG_ENV_NODE_OPTIONS: 'mine',
		GOGC: '5',
		PATH: '/only/mine',
		HOME: '/nowhere',
	};
	await inBothLives(t, { env: odd }, (seen) => {
		assert.deepEqual(seen.env, odd);
	});
});

test('an environment without PATH stays without PATH', async (t) => {
	await inBothLives(t, { env: { A: '1' } }, (seen) => assert.deepEqual(seen.env, { A: '1' }));
});

test('a large environment and many arguments arrive whole', async (t) => {
	const env = Object.fromEntries(Array.from({ length: 300 }, (_, index) => [`VARIABLE_${index}`, 'v'.repeat(1_000)]));
	const words = Array.from({ length: 2_000 }, (_, index) => `note=/dev/null:${index}-${'w'.repeat(100)}`);
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes } = await host.guard(
		1,
		box.config([`dump=${box.file('dump')}`, ...words], { process: { spawnOptions: { env } } })
	);
	assert.equal(processes[0].error, undefined);
	const seen = await box.dump('dump');
	assert.deepEqual(seen.env, env);
	assert.deepEqual(seen.argv.slice(3), words);
	const joined = await host.guard(
		0,
		box.config([`dump=${box.file('dump')}`, ...words], { process: { spawnOptions: { env } } })
	);
	assert.deepEqual([joined.processes[0].adopted, joined.processes[0].error], [true, undefined]);
});

test('arguments that are empty, blank, or look like flags arrive as they are', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const words = ['note=/dev/null:--', 'note=/dev/null:', `dump=${box.file('dump')}`];
	const config = box.config(words, { process: { args: [box.marker, ...words, 'undumpable'] } });
	await host.guard(1, config);
	assert.deepEqual((await box.dump('dump')).argv.slice(2), [...words, 'undumpable']);
	// Trailing empty arguments are part of the identity too.
	const shell = {
		...config,
		processes: [
			{
				name: 'shell',
				binaryPath: '/bin/sh',
				args: ['-c', `while :; do sleep 1; done; : ${box.marker}`, '', '--', ''],
			},
		],
	};
	const first = await host.guard(1, shell, 'shell');
	const second = await host.guard(2, shell, 'shell');
	assert.deepEqual(
		[second.processes[0].pid, second.processes[0].adopted, second.processes[0].error],
		[first.processes[0].pid, true, undefined]
	);
});

for (const policy of ['plain', 'bare-node']) {
	test(`NODE_OPTIONS, LD_PRELOAD and Go's own variables reach the process and no launcher or keeper (${policy})`, async (t) => {
		const told = (/** @type {Sandbox} */ box) => ({
			NODE_OPTIONS: `--require=${box.file('would-fail.cjs')}`,
			NODE_PATH: '/nowhere',
			LD_PRELOAD: preload(),
			LD_LIBRARY_PATH: '/nowhere',
			GODEBUG: 'gctrace=1',
			GOGC: '13',
			GOMAXPROCS: '7',
			GOMEMLIMIT: '13MiB',
			GOTRACEBACK: 'crash',
			PG_TEST_PRELOADED: box.file('preloaded'),
			PATH: process.env.PATH,
		});
		const box = sandbox(t);
		const host = await box.host({ threads: 1 });
		const { processes } = await host.guard(
			1,
			box.config([`starts=${box.file('starts')}`, `dump=${box.file('dump')}`], {
				spawn: { kind: policy },
				restart: { baseMs: 10 },
				process: { spawnOptions: { env: told(box) } },
			})
		);
		assert.equal(processes[0].error, undefined);
		assert.deepEqual((await box.dump('dump')).env, told(box));
		process.kill(processes[0].pid, 'SIGKILL');
		await until(() => box.lines('starts').length === 2, 10_000, 'it was started again');
		assert.deepEqual(environmentOf(box.only().pid), told(box));
		assert.deepEqual(
			new Set(box.lines('preloaded')),
			new Set([box.proc]),
			'only the process was started with the preload'
		);
		assert.equal(box.lines('preloaded').length, 2);
		const keeper = environmentOf(box.keepers()[0].pid) ?? {};
		// It may have values of its own for some of them.
		for (const [name, value] of Object.entries(told(box)))
			if (name !== 'PATH' && name !== 'PG_TEST_PRELOADED') assert.notEqual(keeper[name], value, name);
	});
}

test('uid and gid are those of the process; the keeper stays what the host is', {
	skip: process.getuid?.() !== 0 && 'needs root',
}, async (t) => {
	const box = await inBothLives(
		t,
		{ uid: 65534, gid: 65534 },
		(seen) => {
			assert.deepEqual([seen.uid, seen.euid, seen.gid, seen.egid], [65534, 65534, 65534, 65534]);
			assert.equal(seen.groups.trim(), '', 'no groups of root are kept');
		},
		{ prepare: (made) => chmodSync(made.dir, 0o777), host: { under: ['setpriv', '--groups', '1,2'] } }
	);
	assert.match(readFileSync(`/proc/${box.keepers()[0].pid}/status`, 'utf8'), /^Uid:\t0\t0\t0\t0$/m);
});

test('a host that is not root guards with its own user', { skip: whyNotNobody() }, async (t) => {
	const box = sandbox(t);
	chownSync(box.dir, nobody.uid, nobody.gid);
	const host = await box.host({ threads: 2, ...nobody });
	const results = await host.guardAll(box.config([`dump=${box.file('dump')}`], { reaper: { graceMs: 100 } }));
	for (const { processes, reaper } of results)
		assert.deepEqual([processes[0].error, reaper.error], [undefined, undefined]);
	assert.equal((await box.dump('dump')).uid, 65534);
	await host.kill();
	await until(
		() => box.running().length === 0 && box.reapers().length === 0,
		10_000,
		() => `cleaned up\n${box.tree()}`
	);
});

test('argv0 replaces the first argument, and a joiner still recognises the process', async (t) => {
	await inBothLives(t, { argv0: 'a name of its own' }, (seen) => assert.equal(seen.argv[0], 'a name of its own'));
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([], { process: { spawnOptions: { argv0: 'renamed' } } });
	await host.guard(1, config);
	const { processes } = await host.guard(2, config);
	assert.deepEqual([processes[0].adopted, processes[0].error], [true, undefined]);
	assert.equal(box.running().length, 1);
});

test('shell: the line runs under /bin/sh, is kept, restarted and joined', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const config = box.config([], {
		restart: { baseMs: 10 },
		process: {
			binaryPath: box.proc,
			args: [box.marker, `note=${box.file('notes')}:"$GREETING"`, `starts=${box.file('starts')}`],
			spawnOptions: { shell: true, env: { ...process.env, GREETING: 'hello you' } },
		},
	});
	const first = (await host.guard(1, config)).processes[0];
	assert.equal(first.error, undefined);
	await until(() => box.lines('starts').length === 1, 5_000, 'it runs');
	assert.deepEqual(box.lines('notes'), ['hello you'], 'the shell expanded it');
	const second = (await host.guard(2, config)).processes[0];
	assert.deepEqual([second.pid, second.adopted, second.error], [first.pid, true, undefined]);
	process.kill(box.keepers()[0].pid, 'SIGTERM');
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
});

test('detached: a session of its own', async (t) => {
	await inBothLives(t, { detached: true }, (seen) => assert.deepEqual([seen.sid, seen.pgid], [seen.pid, seen.pid]));
});

test('extra descriptors reach the process under their numbers, through restarts', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes } = await host.guard(1, {
		...box.config([`starts=${box.file('starts')}`, `dump=${box.file('dump')}`, 'say=3:three', 'say=5:five'], {
			restart: { baseMs: 10 },
			process: {
				spawnOptions: {
					stdio: ['ignore', 'ignore', 'ignore', { open: box.file('three') }, 'ignore', { open: box.file('five') }],
				},
			},
		}),
	});
	assert.equal(processes[0].error, undefined);
	await until(() => box.lines('five').length === 1, 5_000, 'it wrote to 5');
	const { fds } = await box.dump('dump');
	// Node opens nothing for an ignored slot above 2.
	assert.deepEqual(Object.keys(fds), ['0', '1', '2', '3', '5']);
	assert.deepEqual([fds[3], fds[5]], [box.file('three'), box.file('five')]);
	for (let life = 2; life <= 3; life++) {
		process.kill(box.only().pid, 'SIGKILL');
		await until(
			() => box.lines('starts').length === life && box.lines('five').length === life,
			10_000,
			`life ${life} wrote too`
		);
	}
	assert.deepEqual(box.lines('three'), ['three', 'three', 'three']);
});

test('a file as stdout is written by the process directly, and survives its keeper', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	await host.guard(
		1,
		box.config([`after=${box.file('go')}`, 'say=1:still here', `note=${box.file('said')}:yes`], {
			process: { spawnOptions: { stdio: ['ignore', { open: box.file('out') }, 'ignore'] } },
		})
	);
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	closeSync(openSync(box.file('go'), 'w'));
	await until(() => box.lines('said').length === 1, 5_000, 'it said so');
	assert.deepEqual(box.lines('out'), ['still here']);
});

test('options that a keeper cannot honour are refused by name', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	for (const [name, spawnOptions] of Object.entries({
		signal: { signal: 'not serialisable, but named' },
		timeout: { timeout: 1_000 },
		serialization: { serialization: 'advanced' },
		ipc: { stdio: ['ignore', 'ignore', 'ignore', 'ipc'] },
	})) {
		await assert.rejects(
			host.guard(1, box.config([], { process: { spawnOptions } })),
			(error) => error instanceof Error && error.name === 'TypeError' && error.message.includes(name),
			name
		);
		assert.deepEqual(box.files(), []);
		assert.equal(box.running().length, 0);
	}
});

test('a cwd or user that cannot be had is a failed start that says so, and wedges nothing', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	const { processes, tookMs } = await host.guard(
		1,
		box.config([], { process: { spawnOptions: { cwd: box.file('missing') } } })
	);
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, /failed to start|ENOENT|no such file/i);
	assert.ok(tookMs < 5_000);
	assert.equal(box.record(), null);
	const next = await host.guard(1, box.config([]), 'next');
	assert.equal(next.processes[0].error, undefined);
});

test('a program that the kernel refuses to execute is a failed start with the reason', async (t) => {
	const box = sandbox(t);
	writeFileSync(box.file('script'), '#!/nonexistent/interpreter\n', { mode: 0o755 });
	const host = await box.host({ threads: 1 });
	const { processes, tookMs } = await host.guard(1, box.config([], { process: { binaryPath: box.file('script') } }));
	assert.equal(processes[0].started, false);
	assert.match(processes[0].error, /ENOENT|no such file/i);
	assert.ok(tookMs < 5_000);
	await until(() => box.keepers().length === 0, 5_000, 'the keeper has ended');
	assert.equal(box.record(), null);
	assert.equal(box.exitRecord()?.outcome, 'failed');
});
