// @ts-check
/** The stand-in host is an instrument too: what it claims to do like the real one is tested before anything relies on it. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { alive, zombiesOf } from '../processes.js';
import { sandbox } from '../sandbox.js';
import { until } from '../until.js';
import { constrainedChildProcess, generations } from './child-process.js';
import { StandIn } from './stand-in.js';

const component = fileURLToPath(new URL('./component', import.meta.url));

for (const generation of generations) {
	test(`its spawn, generation ${generation}`, async (t) => {
		const box = sandbox(t);
		const allowed = ['node', box.proc];
		const { spawn, fork, execSync } = constrainedChildProcess({ generation, root: box.dir, allowed });
		const file = (/** @type {string} */ name) => box.file(`pids/${name}.pid`);
		const start = (/** @type {string} */ name, /** @type {any} */ more = {}) =>
			spawn(box.proc, [box.marker], { name, stdio: 'ignore', ...more });

		assert.throws(() => spawn(process.execPath, [], { name: 'a' }), /not allowed/, 'a path is no command on the list');
		assert.throws(() => spawn('node -e 0', [], {}), /name/);
		assert.throws(() => fork('x.js', [], {}), /name/);
		assert.throws(execSync, /not allowed/);

		const one = start('a');
		const [pid, version, identity] = readFileSync(file('a'), 'utf8').split('\n');
		assert.equal(Number(pid), one.pid);
		assert.deepEqual(
			[version, identity === undefined],
			{ 51: [undefined, true], 52: ['', true], main: ['', false] }[generation]
		);
		assert.equal(typeof one.spawnfile, 'string');

		const again = start('a');
		assert.equal(again.pid, one.pid);
		for (const absent of ['spawnfile', 'spawnargs', 'stdout', 'stdin', 'stdio']) assert.equal(again[absent], undefined);
		const told = new Promise((resolve) => again.once('exit', (/** @type {any[]} */ ...words) => resolve(words)));
		const unheard = start('a');
		unheard.once('exit', assert.fail);
		unheard.unref();
		const ended = new Promise((resolve) => one.once('exit', resolve));
		again.kill('SIGTERM');
		await ended;
		assert.equal(existsSync(file('a')), false);
		assert.deepEqual(await told, [null, null]);
		assert.equal(again.kill(), false);

		// What no generation but the last looks at: whether the pid is still the process that the file was about.
		const parent = start('parent', { version: 3 });
		writeFileSync(file('b'), `${process.pid}\n1\nlinux:none`);
		const zombieParent = spawn(box.proc, [box.marker, `zombie=${box.file('zombie')}`], { name: 'z', stdio: 'ignore' });
		const zombie = Number(await until(() => box.lines('zombie')[0], 5000, 'the zombie is there'));
		writeFileSync(file('c'), `${zombie}\n`);
		const tid = readdirSync('/proc/self/task')
			.map(Number)
			.find((id) => id !== process.pid);
		writeFileSync(file('d'), `${tid}\n`);
		for (const [name, named] of /** @type {[string, number | undefined][]} */ ([
			['b', process.pid],
			['c', zombie],
			['d', tid],
		])) {
			const child = start(name);
			if (generation === 'main') assert.equal(typeof child.spawnfile, 'string', name);
			else {
				assert.equal(child.pid, named, name);
				child.unref();
			}
		}

		// Another version: the old one is asked to end, and the new one is there at once.
		const next = start('parent', { version: 4 });
		if (generation === '51') {
			assert.equal(next.pid, parent.pid);
			next.unref();
		} else {
			assert.notEqual(next.pid, parent.pid);
			await until(() => !alive(parent.pid), 5000, 'the old version has ended');
		}
		writeFileSync(file('e'), '0');
		assert.equal(typeof start('e').spawnfile, 'string', 'a claim of somebody else counts as nothing');
		for (const child of [parent, next, zombieParent]) child.kill('SIGTERM');
	});
}

/** @param {import('node:test').TestContext} t */
function hostIn(t, more = {}) {
	const box = sandbox(t);
	const host = new StandIn(box, { component, threads: 2, forceExitMs: 500, ...more });
	writeFileSync(join(host.component, 'settings.json'), JSON.stringify({ processes: [], fingerprint: [] }));
	box.pidDir = join(host.root, 'process-guard');
	return { box, host };
}

test('it loads a component in its threads, in the root as current directory, and only evaluates it on the main one', async (t) => {
	const { host } = hostIn(t, { generation: '51' });
	await host.boot();
	const seen = await host.getAll('/Guarded');
	assert.deepEqual(
		seen.map(({ main, cwd, meta }) => [main, cwd, meta]),
		[1, 2].map(() => [false, host.root, ['url']])
	);
	assert.equal(new Set(seen.map(({ thread }) => thread)).size, 2);
	const { port } = await host.status();
	const answer = await fetch(`http://127.0.0.1:${port}/Guarded`);
	assert.equal(answer.headers.get('content-type'), 'application/json');
	assert.equal(/** @type {any} */ (await answer.json()).cwd, host.root);
	assert.equal((await fetch(`http://127.0.0.1:${port}/Nothing`)).status, 404);
});

test('it lets one host have a root, takes a zombie of one for a host, and overwrites a stale file', async (t) => {
	const { host, box } = hostIn(t, { found: 'root' });
	const file = join(host.root, 'hdb.pid');
	writeFileSync(file, '4194303');
	await host.boot();
	assert.equal(readFileSync(file, 'utf8'), String(host.pid));
	const { pid } = host;
	await assert.rejects(host.boot(), /the host ended \(4\)\n.*runs here already/s);
	assert.equal(readFileSync(file, 'utf8'), String(pid));
	host.pid = pid;
	host.exit = null;
	await until(() => alive(pid), 1, 'the first one runs on');
	process.kill(pid, 'SIGTERM');
	await until(() => !existsSync(file), 5000, 'it removes its file');
	assert.equal(box.running().length, 0);
});

test('threads are replaced one after the other, and the old ones end by force', async (t) => {
	const { host } = hostIn(t, { forceExitMs: 3000 });
	await host.boot();
	const before = await host.status();
	await host.restartService({ wait: false });
	const after = await host.status();
	assert.ok(after.most > 2);
	assert.ok(after.current.every((/** @type {number} */ id) => !before.current.includes(id)));
	await until(async () => (await host.status()).threads.length === 2, 10_000, 'the old ones have ended');
	const [first] = after.current;
	await host.operation('end_thread', { thread: 0 });
	assert.ok(!(await host.status()).threads.includes(first));
});

test('a restart is another process, and for a while there is no pid file', async (t) => {
	const { host } = hostIn(t);
	const file = join(host.root, 'hdb.pid');
	await host.boot();
	const { pid } = host;
	const restarted = host.restart({ absentMs: 700 });
	await until(() => !existsSync(file), 5000, 'the file is gone');
	const gone = performance.now();
	await until(() => existsSync(file), 10_000, 'the file is back');
	assert.ok(performance.now() - gone > 600);
	await restarted;
	assert.notEqual(host.pid, pid);
	assert.equal(Number(readFileSync(file, 'utf8')), host.pid);
	assert.ok(!alive(pid));
	await host.kill('SIGKILL');
	assert.ok(existsSync(file));
	assert.deepEqual(zombiesOf(process.pid), []);
});
