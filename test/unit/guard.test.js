// @ts-check
/**
 * guard() against a stand-in for the Go side: what is asked of it, how each spawn is answered, what becomes of the states.
 */
import assert from 'node:assert/strict';
import { spawn as nodeSpawn } from 'node:child_process';
import { EventEmitter } from 'node:events';
import process from 'node:process';
import { test } from 'node:test';
import { threadId } from 'node:worker_threads';
import { fingerprint, guardThrough } from '../../lib/guard.js';

/** @typedef {(talk: Talk) => unknown} Script What the Go side does in one session; it is settled when this returns. */

/** One session, seen from the Go side. */
class Talk {
	/** @type {any[]} */
	sent = [];
	/** @type {((message: any) => void)[]} */
	#waiting = [];
	#read = 0;

	/**
	 * @param {string} fn
	 * @param {any} args
	 * @param {(message: any) => void} say
	 */
	constructor(fn, args, say) {
		this.fn = fn;
		// What crosses the border is JSON.
		this.args = JSON.parse(JSON.stringify(args));
		this.say = (/** @type {any} */ message) => say(JSON.parse(JSON.stringify(message)));
	}

	/** @param {any} message */
	hear(message) {
		this.sent.push(JSON.parse(JSON.stringify(message)));
		this.#waiting.shift()?.(this.sent[this.#read++]);
	}

	/** @returns {Promise<any>} The next message of JavaScript. */
	next() {
		if (this.#read < this.sent.length) return Promise.resolve(this.sent[this.#read++]);
		return new Promise((resolve) => this.#waiting.push(resolve));
	}

	/** @param {[string, unknown][]} patch */
	patch(...patch) {
		this.say({ t: 'state', patch });
	}

	/** @param {Record<string, unknown>} [more] */
	spawn(more = {}) {
		this.say({ t: 'spawn', n: 1, command: '/k', args: ['launch'], env: { A: '1' }, direct: false, ...more });
		return this.next();
	}
}

class FakeNative {
	/** @type {Talk[]} */
	talks = [];
	/** @type {[string, object][]} */
	calls = [];
	/** @type {string[]} */
	order = [];
	/** Failures of a script, an assertion's among them: to guard() they are the Go side's, and it does not reject. */
	/** @type {unknown[]} */
	failures = [];
	mayFail = false;

	/** @param {Script} [script] */
	constructor(script = () => {}) {
		this.script = script;
	}

	paths() {
		return { keeper: '/k', reaper: '/r', launch: '/l' };
	}

	/**
	 * @param {string} fn
	 * @param {object} args
	 * @param {(message: any) => void} onMessage
	 */
	session(fn, args, onMessage) {
		const talk = new Talk(fn, args, onMessage);
		this.talks.push(talk);
		this.order.push(`${fn} ${talk.args.name}`);
		const settled = Promise.resolve()
			.then(() => this.script(talk))
			.catch((error) => {
				this.failures.push(error);
				throw error;
			})
			.finally(() => this.order.push(`settled ${talk.args.name}`));
		return { settled, send: (/** @type {any} */ message) => talk.hear(message), drop() {} };
	}

	/**
	 * @param {string} fn
	 * @param {object} args
	 * @returns {Promise<any>}
	 */
	async call(fn, args) {
		this.calls.push([fn, args]);
		return { stopped: true, pid: 7, code: null, signal: 'SIGTERM', detail: '' };
	}
}

class FakeChild extends EventEmitter {
	/** @type {number | undefined} */
	pid = 4242;
	spawnfile = '/k';
	unrefs = 0;
	unref() {
		this.unrefs++;
	}
}

const agent = { name: 'agent', binaryPath: '/bin/agent', args: ['run'] };

/**
 * @param {FakeNative} native
 * @param {Record<string, any>} [change]
 */
async function run(native, change = {}) {
	try {
		return await guardThrough(native)({
			pidDir: '/tmp/pids',
			processes: [agent],
			spawn: () => new FakeChild(),
			...change,
		});
	} finally {
		if (!native.mayFail) assert.deepEqual(native.failures, []);
	}
}

/** A logger that keeps what it is told. */
function recorder() {
	/** @type {string[]} */
	const lines = [];
	const level = (/** @type {string} */ name) => (/** @type {string} */ line) => void lines.push(`${name} ${line}`);
	return { lines, info: level('info'), warn: level('warn'), error: level('error') };
}

/** Lets everything run that waits for nothing but its turn. */
function turn() {
	return new Promise((resolve) => setImmediate(resolve));
}

test('processes are settled one after another, then the reaper, then each verify', async () => {
	const native = new FakeNative(turn);
	const verify = (/** @type {any} */ state) => {
		native.order.push(`verify ${state.name}`);
		return { ok: true };
	};
	const status = await run(native, {
		processes: [
			{ ...agent, verify },
			{ ...agent, name: 'second' },
			{ ...agent, name: 'third', verify },
		],
		reaper: {},
	});
	assert.deepEqual(native.order, [
		'process agent',
		'settled agent',
		'process second',
		'settled second',
		'process third',
		'settled third',
		'reaper process-guard-reaper',
		'settled process-guard-reaper',
		'verify agent',
		'verify third',
	]);
	assert.deepEqual(
		status.processes.map((state) => state.name),
		['agent', 'second', 'third']
	);
});

test('the Go side is told everything', async () => {
	const native = new FakeNative();
	await run(native, {
		version: 7,
		stopOrphans: true,
		claimTimeoutMs: 900,
		processes: [
			{
				...agent,
				title: 'the agent',
				exitHint: 'look there',
				spawnOptions: { env: { A: 'b' }, stdio: ['ignore', 'pipe', 2, null, 'pipe'], uid: 3 },
				restart: { max: 1 },
				replaceGraceMs: 5,
				replaceKill: true,
				deliberateExitCodes: [0, 3],
			},
		],
		reaper: { graceMs: 10, replacementPidFile: '/x.pid', logFile: '/log' },
	});
	const [one, reaper] = native.talks;
	assert.equal(one.fn, 'process');
	assert.deepEqual(one.args, {
		pidDir: '/tmp/pids',
		name: 'agent',
		title: 'the agent',
		binaryPath: '/bin/agent',
		args: ['run'],
		version: 7,
		stopOrphans: true,
		claimTimeoutMs: 900,
		exitHint: 'look there',
		thread: threadId,
		execPath: process.execPath,
		spawn: {
			env: { A: 'b' },
			hostPath: process.env.PATH,
			hostCwd: process.cwd(),
			cwd: null,
			uid: 3,
			gid: -1,
			argv0: null,
			shell: false,
			detached: false,
			stdio: ['ignore', 'pipe', 'fd', 'ignore', 'pipe'],
		},
		restart: { max: 1, baseMs: 1000, capMs: 16000, resetAfterMs: 0 },
		replaceGraceMs: 5,
		replaceKill: true,
		deliberateExitCodes: [0, 3],
		paths: native.paths(),
	});
	assert.equal(reaper.fn, 'reaper');
	const { spawn: facts, ...rest } = reaper.args;
	assert.deepEqual(rest, {
		pidDir: '/tmp/pids',
		name: 'process-guard-reaper',
		version: 7,
		claimTimeoutMs: 900,
		graceMs: 10,
		replacementPidFile: '/x.pid',
		logFile: '/log',
		thread: threadId,
		execPath: process.execPath,
		paths: native.paths(),
	});
	assert.deepEqual(facts.stdio, ['ignore', 'ignore', 'ignore']);
});

test('a wrong option rejects before anything is touched', async () => {
	const native = new FakeNative();
	await assert.rejects(run(native, { processes: [agent, { ...agent, name: 'a/b' }] }), TypeError);
	await assert.rejects(guardThrough(native)(/** @type {any} */ (undefined)), TypeError);
	assert.deepEqual(native.talks, []);
});

test('a state starts with the fields the original has, and is one object for life', async () => {
	/** @type {any} */
	let seen;
	const native = new FakeNative((talk) => talk.patch(['pid', 12], ['started', true]));
	const status = await run(native, {
		processes: [
			{
				...agent,
				verify: (/** @type {any} */ state) => {
					seen = state;
					return { ok: true };
				},
			},
		],
	});
	assert.deepEqual(Object.keys(status), ['report', 'version', 'processes', 'stop', 'stopProcess']);
	assert.equal(seen, status.processes[0]);
	assert.deepEqual(seen, {
		name: 'agent',
		title: 'agent',
		started: true,
		adopted: false,
		exited: false,
		restarts: 0,
		pid: 12,
		verified: true,
		verifyDetail: undefined,
	});
	native.talks[0].patch(['pid', 13], ['restarts', 1]);
	assert.equal(seen.pid, 13);
	assert.equal(seen.restarts, 1);
});

test('a patch is written in the order it comes: code and signal are there before exited turns true', async () => {
	const native = new FakeNative();
	const { processes } = await run(native);
	/** @type {any[]} */
	const seen = [];
	let exited = false;
	Object.defineProperty(processes[0], 'exited', {
		get: () => exited,
		set(value) {
			seen.push([processes[0].code, processes[0].signal, value]);
			exited = value;
		},
	});
	native.talks[0].patch(['code', null], ['signal', 'SIGKILL'], ['exited', true]);
	assert.deepEqual(seen, [[null, 'SIGKILL', true]]);
});

test('what a patch clears is undefined where the original has a field, and gone elsewhere', async () => {
	const native = new FakeNative((talk) =>
		talk.patch(
			['pid', 1],
			['code', 3],
			['signal', null],
			['error', 'x'],
			['verified', true],
			['verifiedPid', 1],
			['exitProof', 'keeper']
		)
	);
	const { processes } = await run(native);
	const state = /** @type {any} */ (processes[0]);
	assert.equal(state.signal, null, 'of a known end the other half is null');
	native.talks[0].patch(['code', null], ['signal', null], ['pid', null], ['error', null]);
	native.talks[0].patch(['verified', null], ['verifiedPid', null], ['exitProof', null]);
	assert.deepEqual(state, {
		name: 'agent',
		title: 'agent',
		started: false,
		adopted: false,
		exited: false,
		restarts: 0,
		pid: undefined,
		code: undefined,
		signal: undefined,
		error: undefined,
	});
});

/**
 * What the Go side hears of one spawn.
 *
 * @param {(command: string, args: string[], options: any) => any} spawn
 * @param {(talk: Talk, first: any) => unknown} [then]
 */
async function answerTo(spawn, then = () => {}) {
	const native = new FakeNative(async (talk) => then(talk, await talk.spawn()));
	const status = await run(native, { spawn });
	return { sent: native.talks[0].sent, status };
}

test('a spawn that hands back a child is answered with its pid', async () => {
	const { sent } = await answerTo(() => new FakeChild());
	assert.deepEqual(sent, [{ t: 'spawned', n: 1, pid: 4242, own: true, events: true }]);
});

test('a spawn that fails in any way is answered with a refusal', async () => {
	for (const [what, spawn, message, code] of /** @type {[string, () => any, RegExp, string | null][]} */ ([
		['throws', () => assert.fail('not allowed'), /^not allowed$/, 'ERR_ASSERTION'],
		[
			'throws with an errno',
			() => {
				throw Object.assign(new Error('spawn EAGAIN'), { code: 'EAGAIN' });
			},
			/^spawn EAGAIN$/,
			'EAGAIN',
		],
		[
			'throws no error',
			() => {
				throw 'never';
			},
			/^never$/,
			null,
		],
		[
			'throws something that cannot be read',
			() => {
				throw { toString: null };
			},
			/^an error that cannot be shown$/,
			null,
		],
		['returns undefined', () => undefined, /^spawn returned undefined instead of a child process$/, null],
		['returns null', () => null, /^spawn returned null instead/, null],
		['returns a number', () => 7, /^spawn returned 7 instead/, null],
		['returns a promise', async () => new FakeChild(), /^spawn returned a promise/, null],
		['returns a failed promise', () => Promise.reject(new Error('late')), /^spawn returned a promise/, null],
		[
			'returns a child that cannot be listened to',
			() => ({
				pid: 5,
				on() {
					throw new Error('no listeners');
				},
			}),
			/^no listeners$/,
			null,
		],
		[
			'returns a child that cannot be read',
			() => ({
				get pid() {
					throw new Error('no pid for you');
				},
			}),
			/^no pid for you$/,
			null,
		],
	])) {
		const { sent, status } = await answerTo(spawn);
		assert.equal(sent.length, 1, what);
		assert.equal(sent[0].t, 'refused', what);
		assert.equal(sent[0].n, 1, what);
		assert.match(sent[0].message, message, what);
		assert.equal(sent[0].code, code, what);
		assert.equal(status.processes.length, 1);
	}
	// A failed promise that nobody handles would end the host one turn later.
	await turn();
});

test('an odd pid is no pid', async () => {
	for (const pid of [undefined, null, 0, -1, 1.5, '4242', Number.NaN]) {
		const { sent } = await answerTo(() => Object.assign(new FakeChild(), { pid }));
		assert.equal(sent[0].pid, null, String(pid));
	}
});

test("a host's wrapper, which has a pid and little else, is told apart from a child of the host", async () => {
	const { sent } = await answerTo(() => ({ pid: 99 }));
	assert.deepEqual(sent, [{ t: 'spawned', n: 1, pid: 99, own: false, events: false }]);
	const once = { pid: 98, once() {} };
	assert.equal((await answerTo(() => once)).sent[0].events, true);
});

test('an error event says why a spawn without a pid failed', async () => {
	const child = Object.assign(new FakeChild(), { pid: undefined });
	const { sent } = await answerTo(
		() => child,
		async (talk) => {
			child.emit('error', Object.assign(new Error('spawn /k ENOENT'), { code: 'ENOENT' }));
			await talk.next();
		}
	);
	assert.deepEqual(sent[1], { t: 'refused', n: 1, message: 'spawn /k ENOENT', code: 'ENOENT' });
});

test('an error event of a child that runs is no refusal, and does not end the host', async () => {
	const child = new FakeChild();
	const { sent } = await answerTo(() => child);
	child.emit('error', new Error('kill EPERM'));
	assert.equal(sent.length, 1);
});

test('an exit is told with code and signal, after the start too', async () => {
	const child = new FakeChild();
	const { sent } = await answerTo(() => child);
	child.emit('exit', 0, null);
	child.emit('exit', null, 'SIGKILL');
	// The wrapper of a host that never learnt more.
	child.emit('exit', null, null);
	child.emit('exit');
	assert.deepEqual(sent.slice(1), [
		{ t: 'exit', n: 1, code: 0, signal: null },
		{ t: 'exit', n: 1, code: null, signal: 'SIGKILL' },
		{ t: 'exit', n: 1, code: null, signal: null },
		{ t: 'exit', n: 1, code: null, signal: null },
	]);
});

test('a launcher gets stdio, environment and name and nothing else; the process itself all the spawn options', async () => {
	/** @type {any[]} */
	const seen = [];
	const native = new FakeNative(async (talk) => {
		await talk.spawn({ env: { FROM: 'go' } });
		await talk.spawn({ n: 2, command: '/bin/agent', args: ['run'], env: null, direct: true });
		await talk.spawn({ n: 3, direct: true, env: { FROM: 'go' } });
	});
	await run(native, {
		/** @this {unknown} @param {any[]} args */
		spawn(...args) {
			assert.equal(this, undefined);
			seen.push(args);
			return new FakeChild();
		},
		processes: [
			{
				...agent,
				spawnOptions: { stdio: ['ignore', 'pipe', null], cwd: '/x', detached: true, name: 'mine', env: { A: 'b' } },
			},
		],
	});
	assert.deepEqual(seen[0], [
		'/k',
		['launch'],
		{ stdio: ['ignore', 'pipe', 'pipe'], name: 'agent', env: { FROM: 'go' } },
	]);
	assert.deepEqual(seen[1], [
		'/bin/agent',
		['run'],
		{ stdio: ['ignore', 'pipe', null], cwd: '/x', detached: true, env: { A: 'b' }, name: 'agent' },
	]);
	assert.deepEqual(seen[2][2].env, { FROM: 'go' });
});

test('a spawn that changes its options changes them for itself only', async () => {
	/** @type {any[]} */
	const seen = [];
	const native = new FakeNative(async (talk) => {
		await talk.spawn();
		await talk.spawn({ n: 2 });
	});
	await run(native, {
		spawn(/** @type {any} */ _command, /** @type {any} */ _args, /** @type {any} */ options) {
			seen.push({ ...options });
			options.name = 'spoilt';
			return new FakeChild();
		},
	});
	assert.equal(seen[1].name, 'agent');
});

test('a launcher stops holding the host once its start is settled, and not before', async () => {
	const children = [new FakeChild(), new FakeChild(), new FakeChild()];
	const [launcher, direct, later] = children;
	const native = new FakeNative(async (talk) => {
		await talk.spawn();
		await talk.spawn({ n: 2, direct: true });
		// A host's wrapper tells of no exit once it is unref'd.
		assert.equal(launcher.unrefs, 0);
	});
	let i = 0;
	await run(native, { spawn: () => children[i++] });
	assert.deepEqual([launcher.unrefs, direct.unrefs], [1, 0]);
	await native.talks[0].spawn({ n: 3 });
	assert.equal(later.unrefs, 1, 'the launcher of a later attempt');
});

test('whatever starts the reaper stops holding the host', async () => {
	const children = [new FakeChild(), new FakeChild()];
	let i = 0;
	const native = new FakeNative(async (talk) => {
		await talk.spawn();
		await talk.spawn({ n: 2, direct: true });
	});
	await run(native, { processes: [], reaper: {}, spawn: () => children[i++] });
	assert.deepEqual(
		children.map((child) => child.unrefs),
		[1, 1]
	);
});

test('a child that cannot be unreferenced is no failure', async () => {
	for (const unref of [undefined, () => assert.fail('no')]) {
		const { status } = await answerTo(() => Object.assign(new FakeChild(), { unref }));
		assert.equal(status.processes[0].error, undefined);
	}
});

test('report lines of the start are kept, later ones are not; log lines are passed on throughout', async () => {
	const log = recorder();
	const native = new FakeNative((talk) => {
		talk.say({ t: 'report', line: 'one' });
		talk.say({ t: 'log', level: 'warn', line: 'process guard: two' });
	});
	const status = await run(native, { log });
	const [talk] = native.talks;
	talk.say({ t: 'report', line: 'late' });
	talk.say({ t: 'log', level: 'error', line: 'process guard: three' });
	assert.deepEqual(status.report, ['one']);
	assert.deepEqual(log.lines, ['warn process guard: two', 'error process guard: three']);
});

test('a logger that fails rejects nothing and wedges nothing, and the report says so once', async () => {
	for (const fail of [
		() => {
			throw new Error('disk full');
		},
		async () => {
			throw new Error('disk full');
		},
	]) {
		const native = new FakeNative(async (talk) => {
			talk.say({ t: 'log', level: 'info', line: 'x' });
			talk.say({ t: 'log', level: 'warn', line: 'y' });
			await talk.spawn();
			talk.patch(['started', true]);
		});
		const status = await run(native, {
			log: { info: fail, warn: fail, error: fail },
			processes: [{ ...agent, verify: () => ({ ok: false }) }],
		});
		await turn();
		assert.equal(status.processes[0].started, true);
		assert.deepEqual(status.report, ['log.info failed (disk full); the guard goes on, and what it logs may be lost']);
	}
});

test('a logger is called as a method, looked up at each line', async () => {
	const native = new FakeNative();
	/** @type {any[]} */
	const seen = [];
	const log = {
		prefix: 'a',
		info(/** @type {string} */ line) {
			seen.push(this.prefix + line);
		},
		warn() {},
		error() {},
	};
	await run(native, { log });
	native.talks[0].say({ t: 'log', level: 'info', line: '1' });
	log.info = (line) => void seen.push(`swapped${line}`);
	native.talks[0].say({ t: 'log', level: 'info', line: '2' });
	assert.deepEqual(seen, ['a1', 'swapped2']);
});

test('a state that cannot be written any more does not end the host', async () => {
	const native = new FakeNative();
	const log = recorder();
	const { processes } = await run(native, { log });
	Object.freeze(processes[0]);
	native.talks[0].patch(['pid', 5]);
	assert.match(log.lines[0], /^error process guard: agent: Cannot add property pid/);
});

test('verify: its answer, or why there is none, is on the state and in the log', async () => {
	for (const [verify, verified, detail, line] of /** @type {[any, boolean, any, string][]} */ ([
		[() => ({ ok: true }), true, undefined, 'info process guard: agent is verified'],
		[async () => ({ ok: true, detail: 'fine' }), true, 'fine', 'info process guard: agent is verified: fine'],
		[
			async () => ({ ok: false, detail: 'mute' }),
			false,
			'mute',
			'error process guard: agent failed verification: mute',
		],
		[() => ({ ok: 1 }), true, undefined, 'info process guard: agent is verified'],
		[
			() => {
				throw new Error('boom');
			},
			false,
			'boom',
			'error process guard: agent failed verification: boom',
		],
		[async () => assert.fail('boom'), false, 'boom', 'error process guard: agent failed verification: boom'],
		[
			() => undefined,
			false,
			'verify answered undefined instead of { ok, detail }',
			'error process guard: agent failed verification: verify answered undefined instead of { ok, detail }',
		],
	])) {
		const log = recorder();
		const { processes } = await run(new FakeNative(), { log, processes: [{ ...agent, verify }] });
		assert.equal(processes[0].verified, verified);
		assert.equal(processes[0].verifyDetail, detail);
		assert.deepEqual(log.lines, [line]);
	}
});

test('verify is called on its own process, for one that did not start too', async () => {
	const native = new FakeNative((talk) => talk.patch(['error', 'no']));
	/** @type {any} */
	let self;
	const declared = {
		...agent,
		verify(/** @type {any} */ state) {
			self = this;
			return { ok: state.error === undefined, detail: state.error };
		},
	};
	const { processes } = await run(native, { processes: [declared] });
	assert.equal(self, declared);
	assert.equal(processes[0].verifyDetail, 'no');
});

test('a Go side that cannot be reached is told on every state and never rejects', async () => {
	for (const breakIt of /** @type {((native: any) => void)[]} */ ([
		(native) => {
			native.paths = () => assert.fail('libguard.so was not found');
		},
		(native) => {
			native.session = () => assert.fail('libguard.so was not found');
		},
		(native) => {
			native.script = () => assert.fail('libguard.so was not found');
		},
	])) {
		const native = new FakeNative();
		native.mayFail = true;
		breakIt(native);
		const log = recorder();
		const verified = /** @type {string[]} */ ([]);
		const status = await run(native, {
			log,
			reaper: {},
			processes: [{ ...agent, verify: (/** @type {any} */ state) => ({ ok: verified.push(state.name) > 9 }) }],
		});
		assert.equal(status.processes[0].error, 'agent could not be guarded: libguard.so was not found');
		assert.equal(status.reaper?.error, 'reaper process-guard-reaper could not be guarded: libguard.so was not found');
		assert.equal(status.processes[0].started, false);
		assert.deepEqual(status.report, [status.processes[0].error, status.reaper?.error]);
		assert.equal(log.lines[0], `error process guard: ${status.processes[0].error}`);
		assert.deepEqual(verified, ['agent']);
		assert.doesNotThrow(() => status.stop());
	}
});

test('the reaper has a state of its own, absent when none was asked for', async () => {
	const native = new FakeNative((talk) => {
		if (talk.fn === 'reaper') talk.patch(['started', true], ['pid', 77], ['command', 'node']);
	});
	const status = await run(native, { reaper: { name: 'r' } });
	assert.deepEqual(status.reaper, { name: 'r', started: true, adopted: false, pid: 77, command: 'node' });
	assert.equal('reaper' in (await run(new FakeNative())), false);
});

test('stop ends the watch: once told, nothing is written or spawned any more', async () => {
	const native = new FakeNative();
	const children = /** @type {FakeChild[]} */ ([]);
	const log = recorder();
	const status = await run(native, {
		log,
		spawn: () => children[children.push(new FakeChild()) - 1],
		processes: [agent, { ...agent, name: 'second' }],
		reaper: {},
	});
	status.stop();
	status.stop();
	assert.deepEqual(
		native.talks.map((talk) => talk.sent),
		[[{ t: 'stop' }], [{ t: 'stop' }], [{ t: 'stop' }]]
	);
	const [talk] = native.talks;
	await talk.next();
	talk.patch(['exited', true]);
	talk.say({ t: 'log', level: 'warn', line: 'late' });
	assert.equal(status.processes[0].exited, false);
	assert.deepEqual(log.lines, []);
	const answer = await talk.spawn({ n: 5 });
	assert.equal(answer.t, 'refused');
	assert.equal(answer.n, 5);
	assert.equal(children.length, 0);
});

test('a signal that has fired rejects with its reason, and nothing is touched', async () => {
	const reason = new Error('changed my mind');
	const signal = AbortSignal.abort(reason);
	for (const change of [{ signal }, { processes: [agent, { ...agent, name: 'b', signal }] }]) {
		const native = new FakeNative();
		await assert.rejects(run(native, change), (error) => error === reason);
		assert.deepEqual(native.talks, []);
	}
});

test('a signal that fires while a claim is waited for calls the start off, and the watch of what came before', async () => {
	const controller = new AbortController();
	const reason = { any: 'thing' };
	const children = /** @type {FakeChild[]} */ ([]);
	const native = new FakeNative(async (talk) => {
		if (talk.args.name === 'agent') {
			await talk.spawn();
			return;
		}
		controller.abort(reason);
		assert.deepEqual(await talk.next(), { t: 'stop' });
		// A spawn that crossed the abort on its way.
		assert.equal((await talk.spawn()).t, 'refused');
	});
	await assert.rejects(
		run(native, {
			signal: controller.signal,
			spawn: () => children[children.push(new FakeChild()) - 1],
			processes: [agent, { ...agent, name: 'second' }, { ...agent, name: 'third' }],
		}),
		(error) => error === reason
	);
	assert.equal(children.length, 1);
	assert.deepEqual(native.order.slice(0, 4), ['process agent', 'settled agent', 'process second', 'settled second']);
	assert.equal(native.talks.length, 2);
	assert.deepEqual(native.talks[0].sent.at(-1), { t: 'stop' });
});

test('a signal that fires after the launcher ran changes nothing for that process', async () => {
	const controller = new AbortController();
	const native = new FakeNative(async (talk) => {
		await talk.spawn();
		controller.abort();
		talk.patch(['started', true]);
	});
	const status = await run(native, { signal: controller.signal });
	assert.equal(status.processes[0].started, true);
	assert.deepEqual(
		native.talks[0].sent.map((message) => message.t),
		['spawned']
	);
});

test('a signal that fires after the launcher of one process ran still keeps the next from starting', async () => {
	const controller = new AbortController();
	const native = new FakeNative(async (talk) => {
		await talk.spawn();
		controller.abort();
	});
	await assert.rejects(
		run(native, { signal: controller.signal, processes: [agent, { ...agent, name: 'second' }] }),
		(error) => error === controller.signal.reason
	);
	assert.equal(native.talks.length, 1);
});

test('a refused launcher is not one that ran: the start can still be called off', async () => {
	for (const spawn of [() => assert.fail('refused'), () => Object.assign(new FakeChild(), { pid: undefined })]) {
		const controller = new AbortController();
		const native = new FakeNative(async (talk) => {
			await talk.spawn();
			controller.abort();
			assert.equal((await talk.next()).t, 'stop');
		});
		await assert.rejects(
			run(native, { signal: controller.signal, spawn }),
			(error) => error === controller.signal.reason
		);
	}
});

test('no listener is left on a signal', async () => {
	const controller = new AbortController();
	let listeners = 0;
	const { signal } = controller;
	const add = signal.addEventListener.bind(signal);
	const remove = signal.removeEventListener.bind(signal);
	Object.assign(signal, {
		addEventListener(/** @type {any} */ event, /** @type {any} */ listener) {
			listeners++;
			add(event, listener);
		},
		removeEventListener(/** @type {any} */ event, /** @type {any} */ listener) {
			listeners--;
			remove(event, listener);
		},
	});
	await run(new FakeNative(), { signal, processes: [agent, { ...agent, name: 'b' }] });
	assert.equal(listeners, 0);
});

test('stopProcess asks the Go side, and what the machine answers is no rejection', async () => {
	const native = new FakeNative((talk) => talk.patch(['pid', 12]));
	const status = await run(native);
	assert.equal((await status.stopProcess('agent')).signal, 'SIGTERM');
	await status.stopProcess('agent', { timeoutMs: 5, force: true });
	assert.deepEqual(native.calls, [
		['stopProcess', { pidDir: '/tmp/pids', name: 'agent', timeoutMs: 10_000, force: false, version: 0 }],
		['stopProcess', { pidDir: '/tmp/pids', name: 'agent', timeoutMs: 5, force: true, version: 0 }],
	]);
	native.call = async () => assert.fail('EROFS');
	assert.deepEqual(await status.stopProcess('agent'), {
		stopped: false,
		pid: 12,
		code: null,
		signal: null,
		detail: 'EROFS',
	});
	await assert.rejects(status.stopProcess('other'), TypeError);
	await assert.rejects(status.stopProcess('agent', { timeoutMs: -1 }), TypeError);
});

test('fingerprint is the documented number', () => {
	assert.equal(fingerprint(), 1910006305);
	assert.equal(fingerprint('a', 'b'), 752433367);
	assert.equal(fingerprint('a', 'b'), fingerprint('a\0b'));
	assert.notEqual(fingerprint('a', 'b'), fingerprint('ab'));
	assert.equal(fingerprint(1, null, undefined), fingerprint('1', 'null', 'undefined'));
	for (let i = 0; i < 1000; i++)
		assert.ok(fingerprint(i) >= 0 && fingerprint(i) < 2 ** 31 && Number.isInteger(fingerprint(i)));
});

test('a launcher that lives on does not keep the host', { skip: process.platform === 'win32' }, async () => {
	const script = `
		import { spawn } from 'node:child_process';
		import { guardThrough } from '${new URL('../../lib/guard.js', import.meta.url)}';
		const answers = [];
		await guardThrough({
			paths: () => ({}),
			session: (fn, args, say) => ({
				settled: new Promise((done) => {
					answers.push(done);
					setImmediate(() => say({ t: 'spawn', n: 1, command: 'sleep', args: ['60'], env: null, direct: false }));
				}),
				send: (message) => {
					if (message.t !== 'spawned') return;
					process.stdout.write(String(message.pid));
					answers[0]();
				},
			}),
		})({ pidDir: '/tmp', spawn, processes: [{ name: 'a', binaryPath: '/bin/true' }] });
	`;
	const host = nodeSpawn(process.execPath, ['--input-type=module', '-e', script], {
		stdio: ['ignore', 'pipe', 'inherit'],
		timeout: 20_000,
	});
	let text = '';
	host.stdout.setEncoding('utf8').on('data', (part) => {
		text += part;
	});
	const [code, signal] = await new Promise((resolve) => host.on('close', (...end) => resolve(end)));
	process.kill(Number(text), 'SIGKILL');
	assert.deepEqual([code, signal], [0, null]);
});
