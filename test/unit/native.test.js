// @ts-check
/** The addon: what it says when it cannot load, what it leaves of the host's signals, what the binaries are bound to. */
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
	chmodSync,
	chownSync,
	cpSync,
	linkSync,
	mkdirSync,
	mkdtempSync,
	readdirSync,
	readFileSync,
	renameSync,
	rmSync,
	statSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { call, nativeFrom, session, sync, unsupported } from '../../lib/native.js';
import { root } from '../support/fixtures.js';

const target = `${process.platform}-${process.arch}`;
const prebuilds = join(root, 'prebuilds', target);
const faulty = join(root, 'prebuilds-fault', target);
const native = pathToFileURL(join(root, 'lib/native.js')).href;

/** @type {string} */
let scratch;
before(() => {
	scratch = mkdtempSync(join(tmpdir(), 'pg-native-'));
});
after(() => rmSync(scratch, { recursive: true, force: true }));

/**
 * Runs a module in a Node of its own, which must end well, and returns what it printed.
 * @param {string} code
 * @param {{ execArgv?: string[], env?: Record<string, string> }} [options]
 */
function run(code, { execArgv = [], env = {} } = {}) {
	const { status, signal, stdout, stderr } = spawnSync(
		process.execPath,
		[...execArgv, '--input-type=module', '--eval', code],
		{ encoding: 'utf8', env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env }, timeout: 60_000 }
	);
	assert.deepEqual({ status, signal }, { status: 0, signal: null }, stderr);
	return stdout.trim();
}

/** A code that imports lib/native.js, with the library of a directory as `lib`. */
const importing = (directory = prebuilds) =>
	`import { nativeFrom, sync, call, session } from ${JSON.stringify(native)};
	const lib = nativeFrom(${JSON.stringify(directory)});`;

/** @param {() => unknown} f */
function thrown(f) {
	try {
		f();
	} catch (error) {
		return /** @type {Error & { code: string }} */ (error);
	}
	assert.fail('it threw nothing');
}

describe('calls', () => {
	test('carry JSON of any size and any character both ways', async () => {
		for (const value of [
			null,
			1,
			'é😀\u0000\u2028',
			{ a: [1, { b: 'x'.repeat(1_000_000) }] },
			'y'.repeat(1018),
			'é'.repeat(511),
		]) {
			assert.deepEqual(sync('echo', value), value);
			assert.deepEqual(await call('echo', value), value);
		}
		assert.equal(sync('ping'), 'pong');
	});

	test('fail with the code and the words of Go', async () => {
		const error = thrown(() => sync('no such function'));
		assert.equal(error.code, 'PG_UNKNOWN_FUNCTION');
		assert.match(error.message, /no function no such function/);
		await assert.rejects(call('sleep', 'text'), { code: 'PG_ARGUMENT', message: /^sleep: json: / });
	});

	test('are answered each by its own, whatever comes first', async () => {
		const answers = await Promise.all(
			Array.from({ length: 300 }, (_, n) => (n % 3 ? call('echo', n) : call('sleep', { ms: n % 7 })))
		);
		for (const [n, answer] of answers.entries()) assert.equal(answer, n % 3 ? n : n % 7);
	});

	test('of a session carry messages in order and none after drop', async () => {
		/** @type {number[]} */
		const got = [];
		/** @type {() => void} */
		let done = () => {};
		const all = new Promise((resolve) => (done = () => resolve(undefined)));
		const echo = session('echo', { session: true }, (n) => {
			got.push(n);
			if (n === 499) {
				echo.drop();
				done();
			}
		});
		assert.deepEqual(await echo.settled, { session: true });
		for (let n = 0; n < 600; n++) echo.send(n);
		// An open session does not hold the event loop, so something else must.
		const hold = setInterval(() => {}, 1000);
		await all;
		await call('sleep', { ms: 20 });
		clearInterval(hold);
		assert.deepEqual(
			got,
			Array.from({ length: 500 }, (_, n) => n)
		);
	});

	test('hold the event loop until they are answered, a session not after that', () => {
		const code = `${importing()}
			const began = performance.now();
			process.on('exit', () => console.log(performance.now() - began >= 99 ? 'held' : 'not held'));
			const s = session('echo', { session: true }, () => {});
			call('sleep', { ms: 100 });`;
		assert.equal(run(code), 'held');
	});

	test('of a listener that throws end in the uncaught exception of the host', () => {
		const code = `${importing()}
			process.on('uncaughtException', (error) => console.log(error.message));
			const s = session('echo', { session: true }, () => { throw new Error('mine'); });
			await s.settled;
			s.send(1);
			await call('sleep', { ms: 50 });`;
		assert.equal(run(code), 'mine');
	});

	test('share their ids among copies of the module in one thread', async () => {
		const copy = nativeFrom(prebuilds);
		const both = await Promise.all([call('echo', 'first'), copy.call('echo', 'second'), call('echo', 'third')]);
		assert.deepEqual(both, ['first', 'second', 'third']);
	});

	test('survive a second initialisation in the same thread', () => {
		// A cleared require cache initialises the addon again: the first module's answers must still come.
		const code = `${importing()}
			import { createRequire } from 'node:module';
			const require = createRequire(import.meta.url);
			const slow = call('sleep', { ms: 30 });
			for (const key of Object.keys(require.cache)) delete require.cache[key];
			const second = await import(${JSON.stringify(native)} + '?again');
			console.log(await second.call('echo', 'second'), await slow, await call('echo', 'first'));`;
		assert.equal(run(code), 'second 30 first');
	});
});

describe('what cannot load says so', () => {
	test('missing files', () => {
		const error = thrown(() => nativeFrom(join(scratch, 'nowhere')).sync('ping'));
		assert.equal(error.code, 'PG_NOT_BUILT');
		assert.ok(error.message.includes(`looked for ${join(scratch, 'nowhere', 'guard.node')}`), error.message);
		assert.ok(error.message.includes(`node binding/build.mjs\` in ${root.replace(/\/$/, '')} `), error.message);
		assert.match(error.message, new RegExp(`prebuilds has .*\\b${target}\\b`));
	});

	test('a missing library beside the shim', () => {
		const directory = join(scratch, 'no-library');
		mkdirSync(directory);
		cpSync(join(prebuilds, 'guard.node'), join(directory, 'guard.node'));
		const error = thrown(() => nativeFrom(directory).sync('ping'));
		assert.equal(error.code, 'PG_NOT_BUILT');
		assert.ok(error.message.includes(join(directory, 'libguard.so')), error.message);
	});

	test('a damaged library, with the words of the dynamic loader', () => {
		const directory = join(scratch, 'damaged');
		cpSync(prebuilds, directory, { recursive: true });
		writeFileSync(join(directory, 'libguard.so'), 'not a library');
		const code = `${importing(directory)}
			try { lib.sync('ping') } catch (error) { console.log(error.code, error.message) }`;
		const printed = run(code);
		assert.match(printed, /^PG_LOAD_FAILED .*libguard\.so could not be loaded: .*(file too short|invalid ELF header)/);
		assert.match(printed, /build\.mjs --force/);
	});

	test('a library that is another one', () => {
		const directory = join(scratch, 'stranger');
		cpSync(prebuilds, directory, { recursive: true });
		cpSync(join(directory, 'guard.node'), join(directory, 'libguard.so'));
		const code = `${importing(directory)}
			try { lib.sync('ping') } catch (error) { console.log(error.code, error.message) }`;
		assert.match(run(code), /^PG_LOAD_FAILED .*has no symbol pg_api_get/);
	});

	test('a second copy, which names both, also from another copy of the shim and another thread', async () => {
		const directory = join(scratch, 'copy');
		cpSync(prebuilds, directory, { recursive: true });
		sync('ping');
		/** @param {string} message */
		const check = (message) => {
			assert.ok(message.includes(`already runs the process guard library ${join(prebuilds, 'libguard.so')}`), message);
			assert.ok(message.includes(`the copy ${join(directory, 'libguard.so')} was not loaded`), message);
		};
		const error = thrown(() => nativeFrom(directory).sync('ping'));
		assert.equal(error.code, 'PG_SECOND_COPY');
		check(error.message);

		const code = `import { parentPort } from 'node:worker_threads';
			import(${JSON.stringify(native)}).then(({ nativeFrom }) => {
				try { nativeFrom(${JSON.stringify(directory)}).sync('ping'); parentPort.postMessage('loaded'); }
				catch (error) { parentPort.postMessage(error.message); }
			});`;
		const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`));
		const [message] = await once(worker, 'message');
		check(message);
		await worker.terminate();
		assert.equal(sync('ping'), 'pong');
	});

	test('two copies that are opened at the same time by two threads: one is refused', () => {
		const directory = join(scratch, 'race');
		cpSync(prebuilds, directory, { recursive: true });
		const worker = `import { parentPort, workerData } from 'node:worker_threads';
			import(${JSON.stringify(native)}).then(({ nativeFrom }) => {
				const lib = nativeFrom(workerData.directory);
				const gate = new Int32Array(workerData.gate);
				Atomics.add(gate, 0, 1);
				while (Atomics.load(gate, 0) < 2);
				try { parentPort.postMessage(lib.sync('ping')); } catch (error) { parentPort.postMessage(error.code); }
			});`;
		const code = `import { Worker } from 'node:worker_threads';
			import { once } from 'node:events';
			const gate = new SharedArrayBuffer(4);
			const answers = await Promise.all([${JSON.stringify(prebuilds)}, ${JSON.stringify(directory)}].map(async (directory) => {
				const [answer] = await once(new Worker(new URL('data:text/javascript,' + encodeURIComponent(${JSON.stringify(worker)})), { workerData: { directory, gate } }), 'message');
				return answer;
			}));
			console.log(answers.sort().join(' '));`;
		for (let round = 0; round < 5; round++) assert.equal(run(code), 'PG_SECOND_COPY pong');
	});

	test('the same file under a second name is not a second copy', () => {
		const directory = join(scratch, 'linked');
		const original = join(scratch, 'original');
		mkdirSync(directory);
		cpSync(prebuilds, original, { recursive: true });
		for (const name of ['guard.node', 'libguard.so']) linkSync(join(original, name), join(directory, name));
		const code = `${importing(original)}
			const other = nativeFrom(${JSON.stringify(directory)});
			console.log(lib.sync('ping'), other.sync('ping'), await other.call('echo', 1), await lib.call('echo', 2));`;
		assert.equal(run(code), 'pong pong 1 2');
	});

	test('an address space limit under which Go would end the process', () => {
		const code = `${importing()}
			try { console.log(lib.sync('ping')) } catch (error) { console.log(error.code, error.message) }`;
		for (const [megabytes, wanted] of /** @type {const} */ ([
			[2300, /^PG_LIMIT the limit .*ulimit -v.* is \d+ MB too low for a Go library/],
			[4500, /^pong$/],
		])) {
			const { status, stdout, stderr } = spawnSync(
				'/bin/sh',
				[
					'-c',
					`ulimit -v ${megabytes * 1024}; exec "$@"`,
					'sh',
					process.execPath,
					'--input-type=module',
					'--eval',
					code,
				],
				{ encoding: 'utf8', env: { ...process.env, NODE_TEST_CONTEXT: undefined } }
			);
			assert.equal(status, 0, stderr);
			assert.match(stdout.trim(), wanted);
		}
	});

	test('an addon that the host forbids', () => {
		const code = `${importing()}
			try { lib.sync('ping') } catch (error) { console.log(error.code, error.message) }`;
		assert.match(
			run(code, { execArgv: ['--no-addons'] }),
			/^ERR_DLOPEN_DISABLED Node\.js may not load .*guard\.node.*--allow-addons/
		);
	});

	test('systems that are not supported', () => {
		const fine = { platform: 'linux', arch: 'x64', versions: {}, musl: () => false };
		assert.equal(unsupported(fine), undefined);
		assert.match(
			String(unsupported({ ...fine, musl: () => true })),
			/musl \(Alpine\).*golang\/go#54805.*Supported: .*glibc 2\.28.*node:22-slim/
		);
		assert.match(
			String(unsupported({ ...fine, versions: { bun: '1.2.3' } })),
			/^Bun 1\.2\.3 cannot run.*Supported: Node\.js 20/
		);
		assert.match(String(unsupported({ ...fine, versions: { deno: '2' } })), /^Deno 2 cannot run/);
		assert.match(
			String(unsupported({ ...fine, platform: 'freebsd' })),
			/no native part for freebsd-x64\. Supported: .*linux-x64/
		);
		assert.match(String(unsupported({ ...fine, arch: 'ppc64' })), /no native part for linux-ppc64/);
	});

	test('executables that are missing, and ones that only lost their bit', () => {
		const directory = join(scratch, 'bits');
		cpSync(prebuilds, directory, { recursive: true });
		execFileSync('chmod', ['644', join(directory, 'keeper')]);
		const { keeper, reaper, launch } = nativeFrom(directory).paths();
		assert.ok(statSync(keeper).mode & 0o100);
		assert.deepEqual(
			[keeper, reaper, launch],
			[join(directory, 'keeper'), join(directory, 'reaper'), join(root, 'lib/launch.js')]
		);
		rmSync(join(directory, 'reaper'));
		const error = thrown(() => nativeFrom(directory).paths());
		assert.equal(error.code, 'PG_NOT_BUILT');
		assert.ok(error.message.includes(join(directory, 'reaper')), error.message);
	});

	describe('executables that lost their bit where it cannot be given back', () => {
		/** @type {string} */
		let directory;
		/** @type {string} */
		let pidDir;
		/**
		 * The answer of paths() to a user who owns none of these files. Only root can become one; anybody else meets a
		 * read-only installation of root's.
		 * @param {string} [before]
		 */
		const asNobody = (before = '') => {
			const code = `${before}
				const { nativeFrom } = await import(${JSON.stringify(native)});
				process.setgroups?.([]); process.setgid(65534); process.setuid(65534);
				try { console.log(JSON.stringify(nativeFrom(${JSON.stringify(directory)}).paths(${JSON.stringify(pidDir)}))); }
				catch ({ code, message }) { console.log(JSON.stringify({ code, message })); }`;
			return JSON.parse(run(code, { env: { TMPDIR: join(pidDir, '..', 'tmp') } }));
		};
		const skip = process.getuid?.() !== 0;

		beforeEach((t) => {
			if (skip) return;
			chmodSync(scratch, 0o755);
			directory = join(scratch, `private-${/** @type {{ name: string }} */ (t).name.replaceAll(' ', '-')}`);
			pidDir = join(directory, 'run');
			cpSync(prebuilds, directory, { recursive: true });
			for (const name of ['keeper', 'reaper']) chmodSync(join(directory, name), 0o644);
			for (const name of ['run', 'tmp']) {
				mkdirSync(join(directory, name), { mode: 0o700 });
				chownSync(join(directory, name), 65534, 65534);
			}
		});

		test('are run from a private copy in pidDir, which is made once', { skip }, () => {
			const first = asNobody();
			const copy = join(pidDir, readdirSync(pidDir)[0]);
			assert.deepEqual(
				[first.keeper, first.launch],
				[join(copy, 'prebuilds', target, 'keeper'), join(copy, 'lib/launch.js')]
			);
			assert.ok(first.note.startsWith(`${join(directory, 'keeper')} cannot be run: EPERM`), first.note);
			assert.ok(first.note.includes(`the copy in ${copy} is used`), first.note);
			const inode = statSync(first.keeper).ino;
			assert.equal(statSync(first.keeper).mode & 0o777, 0o700);
			assert.deepEqual(asNobody(), first);
			assert.equal(statSync(first.keeper).ino, inode);
			assert.deepEqual(readdirSync(pidDir), [basename(copy)]);
			// launch.js of the copy runs the keeper of the copy: it says how it is used.
			const { status, stderr } = spawnSync(process.execPath, [first.launch, 'keeper'], { encoding: 'utf8' });
			assert.equal(status, 2, stderr);
			assert.match(stderr, /keeper/);
		});

		test('are not run from a copy that was changed or that another user can write to', { skip }, () => {
			const { keeper } = asNobody();
			writeFileSync(keeper, 'something else');
			const elsewhere = asNobody();
			assert.ok(elsewhere.keeper.startsWith(join(directory, 'tmp', 'process-guard-65534')), elsewhere.keeper);
			chmodSync(join(directory, 'tmp', 'process-guard-65534'), 0o770);
			const { code, message } = asNobody();
			assert.equal(code, 'PG_NOT_EXECUTABLE');
			assert.match(message, /is not what its name says; remove it.*process-guard-65534 can be written by other users/);
		});

		test('are copied elsewhere when a directory above pidDir can be written by others, but for one like /tmp', {
			skip,
		}, () => {
			const above = join(directory, 'above');
			mkdirSync(above);
			renameSync(pidDir, join(above, 'run'));
			pidDir = join(above, 'run');
			chmodSync(above, 0o777);
			symlinkSync(join(directory, 'tmp'), join(above, 'tmp'));
			chmodSync(above, 0o1777);
			assert.ok(asNobody().keeper.startsWith(pidDir), 'with the sticky bit');
			rmSync(join(pidDir, readdirSync(pidDir)[0]), { recursive: true });
			chmodSync(above, 0o777);
			assert.ok(asNobody().keeper.startsWith(join(directory, 'tmp')), 'without');
			chmodSync(above, 0o1777);
			chownSync(above, 65533, 65533);
			assert.ok(asNobody().keeper.startsWith(join(directory, 'tmp')), "another user's");
			assert.deepEqual(readdirSync(pidDir), []);
		});

		test('are copied elsewhere when pidDir belongs to somebody else', { skip }, () => {
			chownSync(pidDir, 65533, 65533);
			chmodSync(pidDir, 0o755);
			const { keeper } = asNobody();
			assert.ok(keeper.startsWith(join(directory, 'tmp', 'process-guard-65534')), keeper);
			assert.deepEqual(readdirSync(pidDir), []);
		});

		test("are not copied by root into another user's directory", { skip }, () => {
			chownSync(join(directory, 'tmp'), 0, 0);
			const code = `const { privateCopy } = await import(${JSON.stringify(pathToFileURL(join(root, 'lib/programs.js')).href)});
				console.log(JSON.stringify(privateCopy({ keeper: ${JSON.stringify(join(directory, 'keeper'))} }, ${JSON.stringify(pidDir)})));`;
			const made = JSON.parse(run(code, { env: { TMPDIR: join(directory, 'tmp') } }));
			assert.ok(made.directory.startsWith(join(directory, 'tmp', 'process-guard-0')), JSON.stringify(made));
			assert.deepEqual(readdirSync(pidDir), []);
		});

		test('are an error that names every place when nothing can be copied', { skip }, () => {
			for (const name of ['run', 'tmp']) chownSync(join(directory, name), 0, 0);
			const { code, message } = asNobody();
			assert.equal(code, 'PG_NOT_EXECUTABLE');
			for (const part of [join(directory, 'keeper'), join(directory, 'run'), join(directory, 'tmp'), 'chmod +x'])
				assert.ok(message.includes(part), message);
		});
	});
});

describe('the host keeps', () => {
	const dispositions = `
		import { readFileSync, readdirSync } from 'node:fs';
		const masks = (name) => readdirSync('/proc/self/task').map((tid) =>
			BigInt('0x' + new RegExp(name + ':\\\\s+(\\\\w+)').exec(readFileSync('/proc/self/task/' + tid + '/status', 'utf8'))[1]));`;

	test('its signal masks, while every thread of Go blocks what can be blocked', () => {
		const code = `${importing()} ${dispositions}
			const before = masks('SigBlk');
			lib.sync('ping');
			await lib.call('ping');
			await Promise.all(Array.from({ length: 20 }, () => lib.call('sleep', { ms: 1 })));
			const [main, ...others] = masks('SigBlk');
			console.log(JSON.stringify({ before: before.map(String), main: String(main), others: others.map(String) }));`;
		const { before: earlier, main, others } = JSON.parse(run(code));
		assert.equal(BigInt(main), 0n, 'the main thread has a signal blocked after the calls');
		const added = others
			.map(BigInt)
			.filter((/** @type {bigint} */ mask) => mask !== 0n && !earlier.includes(String(mask)));
		assert.ok(added.length >= 3, `only ${added.length} threads of Go: ${others}`);
		const bit = (/** @type {number} */ number) => 1n << BigInt(number - 1);
		const { signals } = constants;
		for (const mask of added) {
			for (const name of /** @type {const} */ ([
				'SIGTERM',
				'SIGINT',
				'SIGHUP',
				'SIGUSR1',
				'SIGUSR2',
				'SIGWINCH',
				'SIGURG',
				'SIGALRM',
			])) {
				assert.ok(mask & bit(signals[name]), `${name} can reach a thread of Go: ${mask.toString(16)}`);
			}
			for (const name of /** @type {const} */ ([
				'SIGSEGV',
				'SIGBUS',
				'SIGFPE',
				'SIGILL',
				'SIGTRAP',
				'SIGABRT',
				'SIGSYS',
			])) {
				assert.ok(
					!(mask & bit(signals[name])),
					`${name} is blocked on a thread of Go, so a fault there is fatal: ${mask.toString(16)}`
				);
			}
		}
	});

	test('SIGPIPE ignored: a write to a closed descriptor is an error and not the end', () => {
		const code = `${importing()} ${dispositions}
			lib.sync('ping');
			console.log(masks('SigIgn').every((mask) => mask & ${1n << 12n}n));`;
		assert.equal(run(code), 'true');
	});

	test('the exit codes of its children, spawned between calls', () => {
		const code = `${importing()}
			import { spawn } from 'node:child_process';
			import { once } from 'node:events';
			lib.sync('ping');
			let bad = 0;
			for (let n = 0; n < 40; n++) {
				const [code] = await once(spawn('/bin/sh', ['-c', 'exit ' + n], { stdio: 'ignore' }), 'exit');
				if (code !== n) bad++;
				lib.sync('echo', n);
			}
			console.log(bad);`;
		assert.equal(run(code), '0');
	});

	test('the default death of a signal, with calls pending', async () => {
		for (const name of /** @type {const} */ (['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR2', 'SIGQUIT'])) {
			const code = `${importing()}
				lib.sync('ping');
				for (let n = 0; n < 4; n++) lib.call('sleep', { ms: 60000 });
				console.log('ready');
				const busy = () => { lib.sync('echo', 'x'.repeat(10000)); setTimeout(busy, 1); };
				busy();`;
			const host = spawn(process.execPath, ['--input-type=module', '--eval', code], {
				stdio: ['ignore', 'pipe', 'inherit'],
				env: { ...process.env, NODE_TEST_CONTEXT: undefined },
				cwd: scratch,
			});
			const exited = once(host, 'exit');
			await once(host.stdout, 'data');
			host.kill(name);
			assert.deepEqual(await exited, [null, name]);
		}
	});

	test('its SIGTERM listener and its own exit code', async () => {
		const code = `${importing()}
			lib.sync('ping');
			process.on('SIGTERM', () => process.exit(9));
			for (let n = 0; n < 4; n++) lib.call('sleep', { ms: 60000 });
			console.log('ready');`;
		const host = spawn(process.execPath, ['--input-type=module', '--eval', code], {
			stdio: ['ignore', 'pipe', 'inherit'],
			env: { ...process.env, NODE_TEST_CONTEXT: undefined },
		});
		const exited = once(host, 'exit');
		await once(host.stdout, 'data');
		host.kill('SIGTERM');
		assert.deepEqual(await exited, [9, null]);
	});

	test('its process.exit while other threads wait for Go', () => {
		const worker = `import(${JSON.stringify(native)}).then(async ({ call }) => {
			for (let n = 0; n < 5; n++) call('sleep', { ms: 60000 });
			await call('ping');
			(await import('node:worker_threads')).parentPort.postMessage('waiting');
		});`;
		const code = `${importing()}
			import { Worker } from 'node:worker_threads';
			import { once } from 'node:events';
			for (let n = 0; n < 5; n++) lib.call('sleep', { ms: 60000 });
			const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(${JSON.stringify(worker)})));
			await once(worker, 'message');
			process.on('exit', () => console.log('leaving'));
			process.exit(0);`;
		const began = performance.now();
		assert.equal(run(code), 'leaving');
		assert.ok(performance.now() - began < 30_000, 'the host waited for the calls');
	});

	test('its wasm traps: a load out of bounds is caught', () => {
		// (module (memory 1) (func (export "f") (result i32) (i32.load (i32.const 70000))))
		const bytes = [
			0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 5, 3, 1, 0, 1, 7, 5, 1, 1, 102, 0, 0, 10, 11, 1,
			9, 0, 65, 240, 162, 4, 40, 2, 0, 11,
		];
		const code = `${importing()}
			lib.sync('ping');
			const { instance } = await WebAssembly.instantiate(new Uint8Array(${JSON.stringify(bytes)}));
			let caught = 0;
			for (let n = 0; n < 200; n++) { try { instance.exports.f(); } catch (error) { if (error instanceof WebAssembly.RuntimeError) caught++; } lib.sync('ping'); }
			console.log(caught);`;
		assert.equal(run(code), '200');
	});

	test('its life when Go panics in a call, dereferences nil or grows its stack', async () => {
		const code = `${importing(faulty)}
			const codes = [];
			for (let n = 0; n < 20; n++) {
				for (const fn of ['fault.nil', 'fault.panic']) { try { lib.sync(fn); } catch (error) { codes.push(error.code, typeof error.goStack); } }
				await lib.call('fault.nil').catch((error) => codes.push(error.code, typeof error.goStack));
				lib.sync('fault.stack');
			}
			console.log(codes.length, new Set(codes).size, codes[0], codes[1], lib.sync('ping'));`;
		assert.equal(run(code), '120 2 PG_PANIC string pong');
	});

	test('most of its processors: Go runs on two at most', () => {
		const code = `${importing(faulty)} console.log(lib.sync('fault.threads').maxprocs <= 2)`;
		assert.equal(run(code, { env: { GOMAXPROCS: '8' } }), 'true');
	});
});

describe('the binaries', () => {
	const shim = join(prebuilds, 'guard.node');
	const library = join(prebuilds, 'libguard.so');

	test('stay loaded when the last worker that used them ends', () => {
		for (const file of [shim, library])
			assert.match(execFileSync('readelf', ['-d', file], { encoding: 'utf8' }), /FLAGS_1.*NODELETE/, file);
	});

	test('do not preempt goroutines by signals', () => {
		assert.ok(readFileSync(library).includes('asyncpreemptoff=1'));
	});

	test('load on glibc 2.28', () => {
		for (const file of [shim, library]) {
			const text = execFileSync('objdump', ['-T', file], { encoding: 'utf8' });
			for (const [line, major, minor] of text.matchAll(/^.*GLIBC_(\d+)\.(\d+).*$/gm)) {
				assert.ok(Number(major) === 2 && Number(minor) <= 28, `${file}: ${line}`);
			}
		}
	});

	test('of the keeper and the reaper need no library at all', () => {
		for (const name of ['keeper', 'reaper']) {
			const text = execFileSync('readelf', ['-d', join(prebuilds, name)], { encoding: 'utf8' });
			assert.match(text, /no dynamic section/, name);
		}
	});

	test('stay small', () => {
		const megabytes = Object.fromEntries(
			readdirSync(prebuilds).map((name) => [name, statSync(join(prebuilds, name)).size / 1e6])
		);
		for (const [name, limit] of Object.entries({ 'guard.node': 0.04, 'libguard.so': 5, keeper: 3.2, reaper: 3.2 })) {
			assert.ok(megabytes[name] <= limit, `${name} has ${megabytes[name]} MB, the limit is ${limit}`);
		}
	});

	test('export only what the other side looks for', () => {
		const names = execFileSync('nm', ['-D', '--defined-only', shim], { encoding: 'utf8' })
			.trim()
			.split('\n')
			.map((line) => line.split(' ')[2]);
		assert.deepEqual(names.sort(), [
			'napi_register_module_v1',
			'node_api_module_get_api_version_v1',
			'pg_process_state_1',
		]);
	});
});
