// @ts-check
/**
 * The reaper's watch, with real reapers that are really killed: a dead one is replaced within moments, not at the next
 * look a minute later.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { currentReaper, guard, keepReaperAlive, nodeProcess, REAPER_WATCH_MS } from 'harper-process-guard';
import { alive, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

const NAME = 'process-guard-reaper';

/** A logger that keeps what it is told. */
function notes() {
	/** @type {string[]} */
	const lines = [];
	const noting = (/** @type {string} */ level) => (/** @type {string} */ line) => void lines.push(`${level} ${line}`);
	return { lines, log: { info: noting('info'), warn: noting('warn'), error: noting('error') } };
}

/** @param {import('../support/sandbox.js').Sandbox} box */
const launchIn = (box) => () => guard({ pidDir: box.pidDir, processes: [], spawn, reaper: { graceMs: 100 } });

/**
 * A reaper under watch, both ended with the test.
 *
 * @param {import('node:test').TestContext} t
 * @param {Record<string, any>} [more]
 */
async function watched(t, more = {}) {
	const box = sandbox(t);
	const launch = launchIn(box);
	const { reaper } = await launch();
	const { lines, log } = notes();
	const relaunches = /** @type {number[]} */ ([]);
	const watch = keepReaperAlive({
		pidDir: box.pidDir,
		reaper,
		log,
		label: 'me',
		relaunch() {
			relaunches.push(performance.now());
			return launch();
		},
		...more,
	});
	// Before the sandbox ends the reapers, whose deaths would otherwise be answered.
	const { finish } = box;
	box.finish = () => {
		watch.stop();
		return finish.call(box);
	};
	return { box, launch, reaper, lines, relaunches, watch };
}

/**
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {number} [not] A pid that does not count.
 */
const oneReaper = (box, not = 0) =>
	until(
		() => {
			const found = box.reapers().filter(({ pid }) => pid !== not);
			return found.length === 1 ? found[0] : null;
		},
		10_000,
		'one reaper runs'
	);

test('a reaper that is killed, or stopped, runs again within a second, as often as it happens', async (t) => {
	const { box, lines, relaunches, watch } = await watched(t);
	assert.equal(await watch.tick(), 'present');
	for (const signal of /** @type {NodeJS.Signals[]} */ (['SIGKILL', 'SIGTERM', 'SIGKILL'])) {
		const { pid } = await oneReaper(box);
		const killed = performance.now();
		process.kill(pid, signal);
		await oneReaper(box, pid);
		const took = performance.now() - killed;
		assert.ok(took < 1000, `${signal}: ${took} ms`);
		await until(() => lines.length > 0, 5000, 'it is told');
		assert.match(lines.splice(0).join('\n'), /^warn me: the reaper had ended and has been relaunched as pid \d+$/);
		assert.equal(await watch.tick(), 'present');
	}
	assert.equal(relaunches.length, 3, 'one relaunch for one death');
});

test('watches that see the same death agree on one reaper, and one of them alarms nobody', async (t) => {
	const { box, launch, lines } = await watched(t);
	const other = notes();
	const watch = keepReaperAlive({ pidDir: box.pidDir, relaunch: launch, log: other.log, label: 'other' });
	const { finish } = box;
	box.finish = () => {
		watch.stop();
		return finish.call(box);
	};
	assert.equal(await watch.tick(), 'present');
	const { pid } = await oneReaper(box);
	process.kill(pid, 'SIGKILL');
	await until(() => lines.length === 1 && other.lines.length === 1, 5000, 'both have told');
	const { pid: now } = await oneReaper(box, pid);
	const told = [...lines, ...other.lines].map((line) => line.replace(/^(\w+) (me|other): /, '$1 ')).sort();
	const line = `the reaper had ended and has been relaunched as pid ${now}`;
	assert.deepEqual(told, [`info ${line} by another thread`, `warn ${line}`]);
});

test('once stopped it answers no death, and its timers are gone', async (t) => {
	const { box, lines, relaunches, watch } = await watched(t);
	watch.stop();
	const { pid } = await oneReaper(box);
	process.kill(pid, 'SIGKILL');
	await never(() => relaunches.length > 0 || lines.length > 0, 1200, 'a relaunch after stop()');
	watch.stop();
});

test('what a relaunch under way comes to is not told once stopped, and is not repeated', async (t) => {
	/** @type {(value?: any) => void} */
	let end = () => {};
	const pending = new Promise((resolve) => (end = resolve));
	let relaunches = 0;
	const relaunch = () => {
		relaunches++;
		return pending;
	};
	const { box, lines, watch } = await watched(t, { everyMs: 50, relaunch });
	process.kill((await oneReaper(box)).pid, 'SIGKILL');
	await until(() => relaunches === 1, 5000, 'a relaunch');
	watch.stop();
	end();
	await never(() => relaunches > 1 || lines.length > 0, 300, 'a word after stop()');
});

test('a relaunch that fails is repeated after everyMs, twice that, and so on, until one works', async (t) => {
	let works = false;
	/** @type {any} */
	let launch;
	const times = /** @type {number[]} */ ([]);
	const set = await watched(t, {
		everyMs: 200,
		relaunch() {
			times.push(performance.now());
			if (works) return launch();
			if (times.length === 2) throw new Error('spawn is refused');
			return times.length === 3 ? { reaper: { error: 'the lock is held' } } : undefined;
		},
	});
	launch = set.launch;
	const { box, lines, watch } = set;
	process.kill((await oneReaper(box)).pid, 'SIGKILL');
	await until(() => times.length === 1, 2000, 'the first attempt');
	assert.equal(await watch.tick(), 'backoff');
	await until(() => times.length === 3, 5000, 'three attempts');
	works = true;
	await until(() => times.length === 4, 5000, 'the fourth attempt');
	const gaps = times.slice(1).map((at, i) => at - times[i]);
	for (const [i, gap] of gaps.entries())
		assert.ok(gap > 190 * 2 ** i && gap < 200 * 2 ** i + 900, `gap ${i}: ${gap} ms`);
	await until(() => lines.length === 4, 5000, 'all is told');
	assert.match(lines[0], /^error me: .*left none running; next attempt in 0 s$/);
	assert.match(lines[1], /left none running: spawn is refused; next attempt in 0 s$/);
	assert.match(lines[2], /left none running: the lock is held; next attempt in 1 s$/);
	assert.match(lines[3], /^warn me: .*has been relaunched as pid/);
	assert.equal(await watch.tick(), 'present');
	// The next death starts with the shortest wait again.
	works = false;
	process.kill((await oneReaper(box)).pid, 'SIGKILL');
	await until(() => times.length === 6, 5000, 'two more attempts');
	assert.ok(times[5] - times[4] < 200 + 900, `${times[5] - times[4]} ms`);
});

test('the wait between failed relaunches grows no longer than a quarter of an hour', async (t) => {
	const box = sandbox(t);
	const { lines, log } = notes();
	t.mock.timers.enable({ apis: ['setTimeout'] });
	const watch = keepReaperAlive({ pidDir: box.pidDir, relaunch: () => {}, log, label: 'me', everyMs: 300_000 });
	assert.equal(await watch.tick(), 'failed');
	for (const ms of [300_000, 600_000, 900_000]) {
		t.mock.timers.tick(ms - 1);
		assert.equal(await watch.tick(), 'backoff');
		t.mock.timers.tick(1);
		assert.equal(await watch.tick(), 'failed', 'the attempt that the timer made');
	}
	watch.stop();
	assert.deepEqual(
		lines.map((line) => line.match(/\d+ s$/)?.[0]),
		['300 s', '600 s', '900 s', '900 s']
	);
	assert.equal(REAPER_WATCH_MS, 60_000);
});

test('a reaper that could not be started at all is tried again after everyMs, not at once', async (t) => {
	const box = sandbox(t);
	mkdirSync(box.pidDir);
	const { log } = notes();
	const began = performance.now();
	const times = /** @type {number[]} */ ([]);
	const watch = keepReaperAlive({
		pidDir: box.pidDir,
		reaper: { name: NAME, started: false },
		relaunch: () => void times.push(performance.now() - began),
		log,
		label: 'me',
		everyMs: 600,
	});
	t.after(() => watch.stop());
	await until(() => times.length === 1, 5000, 'an attempt');
	assert.ok(times[0] > 590, `after ${times[0]} ms`);
	// Who looks himself is not held back.
	const other = keepReaperAlive({
		pidDir: box.pidDir,
		reaper: { started: false },
		relaunch: () => {},
		log,
		label: 'me',
	});
	t.after(() => other.stop());
	assert.equal(await other.tick(), 'failed');
});

test('a timer of the caller looks every so often, is unreferenced, and is cleared', async (t) => {
	/** @type {{ look: () => void, ms: number }[]} */
	const set = [];
	let referenced = true;
	const timer = setTimeout(() => {}, 1e6);
	const { unref } = timer;
	timer.unref = () => {
		referenced = false;
		return unref.call(timer);
	};
	const { box, relaunches, watch } = await watched(t, {
		everyMs: 12_345,
		setTimer(/** @type {() => void} */ look, /** @type {number} */ ms) {
			set.push({ look, ms });
			return timer;
		},
	});
	assert.deepEqual(
		set.map(({ ms }) => ms),
		[12_345]
	);
	assert.equal(referenced, false);
	set[0].look();
	process.kill((await oneReaper(box)).pid, 'SIGKILL');
	await until(() => relaunches.length === 1, 5000, 'a relaunch');
	watch.stop();
	assert.equal(/** @type {any} */ (timer)._destroyed, true, 'the timer goes on');
});

test('a pid directory that appears later, or is replaced, is watched from then on', async (t) => {
	const box = sandbox(t);
	const launch = launchIn(box);
	const { lines, log } = notes();
	let relaunches = 0;
	const relaunch = () => {
		relaunches++;
		return launch();
	};
	const watch = keepReaperAlive({
		pidDir: box.pidDir,
		reaper: { name: NAME, started: true },
		relaunch,
		log,
		label: 'me',
		everyMs: 100,
	});
	const { finish } = box;
	box.finish = () => {
		watch.stop();
		return finish.call(box);
	};
	const first = await oneReaper(box);
	assert.equal(relaunches, 1);
	await until(() => lines.length === 1, 5000, 'told');
	// Whoever tidies up takes the directory with the records in it; a reaper without a record is one that nobody finds.
	renameSync(box.pidDir, join(box.dir, 'moved'));
	const second = await oneReaper(box, first.pid);
	await until(() => lines.length === 2, 5000, 'told again');
	assert.equal(relaunches, 2);
	process.kill(first.pid, 'SIGTERM');
	process.kill(second.pid, 'SIGKILL');
	await until(() => relaunches === 3, 5000, 'the replaced directory is watched');
	await until(() => box.reapers().length === 1, 5000, 'one reaper runs');
	rmSync(join(box.dir, 'moved'), { recursive: true });
});

test('a logger that throws ends nothing', async (t) => {
	const broken = () => {
		throw new Error('the logger is broken');
	};
	const { box, watch } = await watched(t, { log: { info: broken, warn: broken, error: broken } });
	for (let i = 0; i < 2; i++) {
		const { pid } = await oneReaper(box);
		process.kill(pid, 'SIGKILL');
		await oneReaper(box, pid);
		// One that dies while it is being launched is a failed relaunch.
		await watch.tick();
		assert.equal(await watch.tick(), 'present');
	}
});

test('a watch keeps no host running', async (t) => {
	const box = sandbox(t);
	const source = `
		import { spawn } from 'node:child_process';
		import { guard, keepReaperAlive } from 'harper-process-guard';
		const pidDir = ${JSON.stringify(box.pidDir)};
		const { reaper } = await guard({ pidDir, processes: [], spawn, reaper: { graceMs: 100 } });
		const watch = keepReaperAlive({ pidDir, reaper, relaunch() {}, log: { info() {}, warn() {}, error() {} }, label: 'me' });
		console.log(await watch.tick());
		// The one that waits for the next attempt keeps it running no more than the one that waits for a death.
		process.kill(reaper.pid, 'SIGKILL');
		let came = 'present';
		while (came === 'present') came = await watch.tick();`;
	const host = spawn(process.execPath, ['--input-type=module', '-e', source], {
		cwd: import.meta.dirname,
		stdio: ['ignore', 'pipe', 'inherit'],
	});
	let said = '';
	host.stdout.on('data', (data) => (said += data));
	const code = await Promise.race([
		new Promise((resolve) => host.once('exit', resolve)),
		new Promise((resolve) => setTimeout(resolve, 15_000, 'it still runs').unref()),
	]);
	if (host.exitCode === null) host.kill('SIGKILL');
	assert.deepEqual([code, said], [0, 'present\n']);
	await until(() => box.reapers().length === 0, 10_000, 'its reaper has gone too');
});

test('a reaper is looked up as it is now', async (t) => {
	const box = sandbox(t);
	const { reaper } = await launchIn(box)();
	const pid = /** @type {number} */ (reaper?.pid);
	const old = { ...reaper, pid: 1, started: false, error: 'an older one' };
	const now = currentReaper(old, box.pidDir);
	assert.deepEqual([now.started, now.pid, now.error], [true, pid, undefined]);
	assert.deepEqual([old.started, old.pid], [false, 1], 'the state itself was changed');
	assert.equal(currentReaper(/** @type {any} */ ({ started: true }), box.pidDir, NAME).pid, pid);
	for (const [state, dir] of /** @type {[any, any][]} */ ([
		[undefined, box.pidDir],
		[old, undefined],
		[{ started: true }, box.pidDir],
	])) {
		assert.equal(currentReaper(state, dir), state);
	}
	const none = currentReaper(reaper, box.file('nowhere'));
	assert.deepEqual([none?.started, none?.pid], [false, undefined]);
	assert.match(none?.error ?? '', /no lock for process-guard-reaper/);
	assert.match(none?.error ?? '', /outlive it/);

	process.kill(pid, 'SIGKILL');
	await until(() => !alive(pid), 5000, 'it has ended');
	assert.match(currentReaper(reaper, box.pidDir)?.error ?? '', new RegExp(`pid ${pid}, and nothing holds it`));
	// The pid is somebody else's by now.
	const record = box.record(NAME);
	const json = JSON.stringify({
		...record,
		pid: undefined,
		version: undefined,
		inode: undefined,
		started: processOf(process.pid)?.started,
	});
	writeFileSync(join(box.pidDir, `${NAME}.pid`), `${process.pid}\n0\n${json}\n`);
	const stranger = currentReaper(reaper, box.pidDir);
	assert.equal(stranger?.started, false);
	assert.match(stranger?.error ?? '', new RegExp(`pid ${process.pid}, which is running \``));
});

test('a restart that the record knows before this thread is counted with its pid', async (t) => {
	const box = sandbox(t);
	const { processes, stop } = await guard({ ...box.config([], { restart: { baseMs: 10 } }), spawn });
	stop(); // no news reaches this state any more
	const { pid } = box.only();
	process.kill(pid, 'SIGKILL');
	await until(
		() => box.running().some((one) => one.pid !== pid) && box.record()?.pid !== pid,
		5000,
		'its keeper restarts it'
	);
	const seen = /** @type {any} */ (nodeProcess({ ...processes[0], exited: true }, box.pidDir));
	assert.deepEqual([seen.pid, seen.restarts], [box.only().pid, 1]);
});

test('a process is looked up where this thread has none, and only there', async (t) => {
	const box = sandbox(t);
	const { processes, stop } = await guard({ ...box.config(), spawn });
	const { pid } = box.only();
	const failed = {
		...processes[0],
		started: false,
		pid: undefined,
		error: 'refused here',
		verified: true,
		verifyDetail: 'x',
		verifiedPid: 9,
	};
	const seen = /** @type {any} */ (nodeProcess(failed, box.pidDir));
	assert.deepEqual(
		[seen.started, seen.adopted, seen.exited, seen.pid, seen.error, seen.refused],
		[true, true, false, pid, undefined, 'refused here']
	);
	assert.deepEqual([seen.verified, seen.verifyDetail, seen.verifiedPid], [undefined, undefined, null]);
	assert.equal(failed.pid, undefined, 'the state itself was changed');
	const dead = /** @type {any} */ (nodeProcess({ ...processes[0], pid: 5, exited: true, code: 1 }, box.pidDir));
	assert.deepEqual([dead.exited, dead.pid], [false, pid]);
	for (const [state, dir, kind] of /** @type {[any, any, any][]} */ ([
		[processes[0], box.pidDir, 'guard'],
		[failed, box.pidDir, 'host'],
		[failed, null, 'guard'],
		[undefined, box.pidDir, 'guard'],
		[{ ...failed, name: 'other' }, box.pidDir, 'guard'],
	])) {
		assert.equal(nodeProcess(state, dir, kind), state);
	}
	stop();
	process.kill(pid, 'SIGTERM');
	await until(() => box.record() === null, 5000, 'the record is gone');
	const ended = { ...processes[0], exited: true };
	assert.deepEqual(nodeProcess(ended, box.pidDir), { ...ended, started: false });
	assert.equal(nodeProcess(failed, box.pidDir), failed);
});
