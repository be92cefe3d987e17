// @ts-check
/** Who else can get at pidDir, at the locks in it, at what the process is given and at what is said about it. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import {
	chmodSync,
	chownSync,
	lchownSync,
	mkdirSync,
	readdirSync,
	readFileSync,
	statSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { root as packageRoot } from '../support/fixtures.js';
import { environmentOf, processOf, processes as processTable } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const root = process.getuid?.() === 0;
const needsRoot = { skip: !root && 'needs root to be somebody else' };
const other = 60_001;

test(
	'pidDir by owner and mode: what others could take away is said once in the report and the log, and nothing is refused',
	needsRoot,
	async (t) => {
		const box = sandbox(t);
		chmodSync(box.dir, 0o755);
		const host = await box.host({ threads: 1 });
		/** @type {Record<string, { make: (dir: string) => string | void, says?: RegExp }>} */
		const cases = {
			'made by us': { make: () => {} },
			'of mode 0755': { make: (dir) => mkdirSync(dir, { mode: 0o755 }) },
			"writable by the user's own group": {
				make(dir) {
					mkdirSync(dir);
					chmodSync(dir, 0o775);
				},
			},
			'writable by another group': {
				make(dir) {
					mkdirSync(dir);
					chownSync(dir, 0, other);
					chmodSync(dir, 0o2775);
				},
				says: /run can be written by group 60001/,
			},
			'writable by everybody': {
				make(dir) {
					mkdirSync(dir);
					chmodSync(dir, 0o777);
				},
				says: /run can be written by everybody/,
			},
			'writable by everybody with the sticky bit': {
				make(dir) {
					mkdirSync(dir);
					chmodSync(dir, 0o1777);
				},
				says: /run can be written by everybody/,
			},
			"another user's": {
				make(dir) {
					mkdirSync(dir);
					chownSync(dir, other, other);
				},
				says: /run belongs to uid 60001/,
			},
			'in a directory that everybody may write': {
				make(dir) {
					mkdirSync(dir);
					chmodSync(join(dir, '..'), 0o777);
				},
				says: /everybody: give|everybody, and/,
			},
			"behind another user's link": {
				make(dir) {
					mkdirSync(`${dir}-real`);
					symlinkSync(`${dir}-real`, dir);
					lchownSync(dir, other, other);
				},
				says: /run belongs to uid 60001/,
			},
		};
		for (const [what, { make, says }] of Object.entries(cases)) {
			const key = what.replaceAll(/\W/g, '-');
			mkdirSync(box.file(key));
			const pidDir = join(box.file(key), 'run');
			make(pidDir);
			const config = {
				pidDir,
				processes: [box.process(), box.process([], { name: 'second' })],
				reaper: { graceMs: 100 },
			};
			const results = [await host.guard(0, config, key), await host.guard(1, config, key)];
			const logged = [];
			for (const { processes, report, log } of results) {
				for (const { error } of processes) assert.equal(error, undefined, what);
				const lines = report.filter((/** @type {string} */ line) => line.includes('not ours alone'));
				assert.equal(lines.length, says ? 1 : 0, `${what}: ${report.join('\n')}`);
				if (says) {
					assert.match(lines[0], says, what);
					assert.match(lines[0], /chown, chmod go-w/, what);
				}
				logged.push(...log.filter((/** @type {any} */ { line }) => line.includes('not ours alone')));
			}
			assert.equal(logged.length, says ? 1 : 0, what);
		}
	}
);

test(
	'a gate that another user locks: refused within the budget, by its holder; then closed to others',
	needsRoot,
	async (t) => {
		const box = sandbox(t);
		chmodSync(box.dir, 0o755);
		mkdirSync(box.pidDir);
		chmodSync(box.pidDir, 0o755);
		const gate = join(box.pidDir, 'proc.pid.claiming');
		// As the original made its files: to be read by everybody, and what can be read can be locked.
		writeFileSync(gate, '');
		chmodSync(gate, 0o644);
		const child = spawn('flock', ['-x', '--no-fork', gate, 'sleep', '60'], { stdio: 'ignore', uid: other, gid: other });
		box.children.push(child);
		const held = () => processOf(Number(child.pid))?.argv[0] === 'sleep';
		await until(held, 5_000, 'the gate is locked');
		const host = await box.host();
		const { processes, tookMs } = await host.guard(0, box.config([], { claimTimeoutMs: 300 }));
		assert.match(
			processes[0].error,
			new RegExp(`gate ${gate} is held by pid ${child.pid} .*nothing was started: end pid ${child.pid}`)
		);
		assert.ok(tookMs < 5_000, `${tookMs} ms`);
		assert.equal(box.running().length, 0);
		child.kill('SIGKILL');
		await until(() => !held(), 5_000, 'the gate is free');
		const again = await host.guard(0, box.config(), 'again');
		assert.equal(again.processes[0].error, undefined);
		assert.equal(statSync(gate).mode & 0o777, 0o600);
	}
);

test('a process that runs as somebody else has none of our groups and no right in pidDir', needsRoot, async (t) => {
	const box = sandbox(t);
	chmodSync(box.dir, 0o777);
	mkdirSync(box.pidDir);
	chmodSync(box.pidDir, 0o775);
	chownSync(box.pidDir, 0, 4);
	const host = await box.host({ under: ['setpriv', '--groups', '0,4'] });
	const attempt = `id -G > ${box.file('groups')}; for f in ${box.pidDir}/*; do echo x >> "$f"; rm -f "$f"; done; echo x > ${box.pidDir}/new; exec sleep 60 # ${box.marker}`;
	const { processes } = await host.guard(0, {
		pidDir: box.pidDir,
		processes: [
			{ name: 'proc', binaryPath: '/bin/sh', args: ['-c', attempt], spawnOptions: { uid: other, gid: other } },
		],
	});
	assert.equal(processes[0].error, undefined);
	await until(() => processOf(processes[0].pid)?.comm === 'sleep', 5_000, 'it has tried');
	assert.deepEqual(box.lines('groups'), [`${other}`]);
	assert.deepEqual(box.files(), ['proc.pid', 'proc.pid.claiming', `proc.pid.keeper.${box.record().token}`]);
	assert.equal(box.record().pid, processes[0].pid);
	assert.ok(!readFileSync(join(box.pidDir, 'proc.pid'), 'utf8').includes('\nx\n'));
});

test('variables that would steer a launcher, a keeper or a reaper reach the process as they are and nobody else', async (t) => {
	const box = sandbox(t);
	const hostile = {
		PG_SPEC_0: '{"name":"proc","file":"/bin/false","argv":["x"],"slots":900,"uid":1}',
		PG_SPEC_7: 'x',
		PG_LIFE_FD: '0',
		PG_HOST_FD: '4',
		PG_ENV_PG_SPEC_0: 'x',
		PG_FAULT: 'keep-forked:kill,launch-begin:kill,run-begin:kill',
		PG_FAULT_MARK: box.file('mark'),
		PG_PLANT: 'no-gate',
		GODEBUG: 'gctrace=1',
		GOTRACEBACK: 'crash',
		GOMEMLIMIT: '1',
	};
	const host = await box.host({ env: hostile });
	const { processes, reaper } = await host.guard(
		0,
		box.config([`dump=${box.file('dump')}`], { reaper: { graceMs: 100 } })
	);
	assert.deepEqual([processes[0].error, reaper.error], [undefined, undefined]);
	const seen = await box.dump('dump');
	for (const [name, value] of Object.entries(hostile)) assert.equal(seen.env[name], value, name);
	assert.deepEqual(
		Object.keys(seen.env).filter((name) => /^PG_(SPEC|ENV|.*_FD)/.test(name) && !(name in hostile)),
		[],
		"nothing of the keeper's own"
	);
	assert.deepEqual(Object.keys(seen.fds), ['0', '1', '2']);
	assert.equal(environmentOf(box.reapers()[0].pid)?.PG_SPEC_0, undefined);
	assert.throws(() => statSync(box.file('mark')), 'a fault hook acted');
	await host.kill();
	await until(
		() => box.running().length + box.reapers().length === 0,
		10_000,
		() => `cleaned up\n${box.tree()}`
	);
});

test('a build that ships has no fault hooks', () => {
	const prebuilt = join(packageRoot, `prebuilds/${process.platform}-${process.arch}`);
	for (const name of readdirSync(prebuilt)) {
		const binary = readFileSync(join(prebuilt, name));
		for (const word of ['PG_FAULT', 'PG_PLANT', 'faultpoints', 'fault.panic'])
			assert.equal(binary.includes(word), false, `${name} has ${word}`);
	}
});

test('arguments and variables stand in files of mode 0600 and in no command line, error, report or log', async (t) => {
	const box = sandbox(t);
	const secret = `s3cret-${box.marker}`;
	const host = await box.host({ threads: 1 });
	const logFile = box.file('reaper.log');
	const config = (/** @type {string} */ word, /** @type {any} */ more = {}) => ({
		pidDir: box.pidDir,
		restart: { baseMs: 10, max: 1 },
		reaper: { graceMs: 100, logFile },
		processes: [
			{
				name: 'proc',
				binaryPath: box.proc,
				args: [box.marker, `note=/dev/null:${word}`],
				spawnOptions: { env: { PASSWORD: secret } },
			},
			{ name: 'missing', binaryPath: box.file('missing'), args: [secret], spawnOptions: { env: { PASSWORD: secret } } },
			{
				name: 'cwd',
				binaryPath: '/bin/sleep',
				args: [secret],
				spawnOptions: { cwd: box.file('nowhere'), env: { PASSWORD: secret } },
			},
			{
				name: 'crash',
				binaryPath: '/bin/sh',
				args: ['-c', 'exit 3', secret],
				spawnOptions: { env: { PASSWORD: secret } },
			},
		],
		...more,
	});
	/** @type {any[]} */
	const told = [];
	told.push(await host.guard(0, config(`${secret}-1`), 'first'));
	told.push(await host.guard(0, config(`${secret}-2`), 'name in use'));
	told.push(
		await host.guard(0, config(`${secret}-2`, { stopOrphans: true, version: 2, claimTimeoutMs: 2_000 }), 'orphan')
	);
	told.push(await host.guard(1, config(`${secret}-3`, { stopOrphans: true, version: 3 }), 'again'));
	await host.stateUntil(0, (state) => state.exited && state.error, 10_000, 'it was given up', {
		key: 'first',
		index: 3,
	});
	for (const key of ['first', 'name in use', 'orphan']) told.push(await host.state(0, key));
	const table = processTable().filter((one) => box.all().some(({ pid }) => pid === one.pid));
	const keepers = table.filter(({ argv }) => ['keep', 'run', 'hold', 'launch'].includes(argv[1]));
	assert.ok(keepers.length >= 2);
	for (const { argv } of keepers) assert.ok(!argv.some((word) => word.includes(secret)), argv.join(' '));
	for (const { command, args } of await host.call(0, 'spawned', 'first'))
		assert.ok(![command, ...args].some((word) => word.includes(secret)), args.join(' '));
	let holding = 0;
	for (const name of box.files()) {
		const path = join(box.pidDir, name);
		if (!readFileSync(path).includes(secret)) continue;
		holding++;
		assert.equal(statSync(path).mode & 0o777, 0o600, name);
		assert.ok(!name.endsWith('.exit'), name);
	}
	assert.ok(holding > 0, 'the record has the arguments');
	await host.kill();
	await until(
		() => box.reapers().length === 0,
		10_000,
		() => `cleaned up\n${box.tree()}`
	);
	told.push(
		readFileSync(logFile, 'utf8'),
		box
			.files()
			.filter((name) => name.endsWith('.exit'))
			.map((name) => readFileSync(join(box.pidDir, name), 'utf8'))
	);
	assert.ok(!JSON.stringify(told).includes('s3cret'), JSON.stringify(told, null, 1));
});
