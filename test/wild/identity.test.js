// @ts-check
/** Failures in the wild: a process that does not look like its record, and one that cannot be looked at. */
import assert from 'node:assert/strict';
import { chmodSync, chownSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { inMounts, nobody, whyNoMounts, whyNotNobody } from '../support/host.js';
import { plant, recordText, startOf } from '../support/planted.js';
import { alive, processes, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

/**
 * Ends a process without a keeper, which the sandbox cannot find by its words.
 * @param {import('node:test').TestContext} t
 * @param {number} pid
 */
function endWithTest(t, pid) {
	const started = processOf(pid)?.started;
	t.after(() => alive(pid, started) && process.kill(pid, 'SIGKILL'));
}

test('hidepid: a process that cannot be looked at is waited for, then refused; never taken over, never signalled', {
	skip: whyNoMounts() || whyNotNobody(),
}, async (t) => {
	const box = sandbox(t);
	chmodSync(box.dir, 0o777);
	const argv = [box.marker, `signals=${box.file('signals')}`, `starts=${box.file('starts')}`];
	const pid = Number(box.spawn(argv).pid);
	await until(() => box.lines('starts').length === 1, 5_000, 'it runs, as root');
	const become = `exec setpriv --reuid=${nobody.uid} --regid=${nobody.gid} --clear-groups "$@"`;
	const host = await box.host({ threads: 1, under: inMounts(`mount -t proc -o hidepid=2 proc /proc; ${become}`) });
	for (const [number, more] of [{ started: startOf(pid) }, {}].entries()) {
		const text = recordText(pid, [box.proc, ...argv], more);
		plant(box, text);
		for (const path of [box.pidDir, join(box.pidDir, 'proc.pid')]) chownSync(path, nobody.uid, nobody.gid);
		const { processes: states, tookMs } = await host.guard(
			1,
			box.config(argv.slice(1), { version: 2, stopOrphans: true, claimTimeoutMs: 700 }),
			`${number}`
		);
		assert.deepEqual([states[0].started, states[0].pid], [false, undefined]);
		assert.match(states[0].error, new RegExp(`pid ${pid}.*could not be identified`));
		assert.ok(tookMs >= 650, `it waited ${tookMs} ms`);
		assert.equal(box.record()?.pid, pid, 'the record stays');
		assert.equal(box.running().length, 1);
		assert.deepEqual(box.lines('signals'), []);
	}
});

test('node app renames itself: joined by its start although its keeper is dead and its words are others', async (t) => {
	const box = sandbox(t);
	const program = box.file('app.cjs');
	writeFileSync(
		program,
		`require('node:fs').appendFileSync(process.argv[2], process.pid + ' x\\n');
		process.title = 'next-server (v15)';
		setInterval(() => {}, 1e6);`
	);
	const config = {
		pidDir: box.pidDir,
		claimTimeoutMs: 5_000,
		processes: [{ name: 'proc', binaryPath: process.execPath, args: [program, box.file('starts')] }],
	};
	const first = await box.host({ threads: 1 });
	const { pid } = (await first.guard(1, config)).processes[0];
	endWithTest(t, pid);
	await until(() => processOf(pid)?.argv[0].startsWith('next-server'), 10_000, 'it has renamed itself');
	assert.ok(!processOf(pid)?.argv.includes(program), 'nothing of its command line is left');
	const next = await box.host({ threads: 2 });
	for (const keeper of ['alive', 'dead']) {
		if (keeper === 'dead') process.kill(box.keepers()[0].pid, 'SIGKILL');
		for (const { processes: states } of await next.guardAll(config, { key: keeper }))
			assert.deepEqual([states[0].pid, states[0].adopted, states[0].error], [pid, true, undefined], `keeper ${keeper}`);
	}
	await box.startedTimes(1);
	process.kill(pid, 'SIGTERM');
	await until(() => !alive(pid), 5_000, 'it has ended');
});

test('exec chain, wrapper, shebang: joined, and one copy after SIGKILL of it and of its keeper', async (t) => {
	const box = sandbox(t);
	const [wrapper, program] = [box.file('wrapper'), box.file('app.cjs')];
	writeFileSync(
		program,
		`require('node:fs').appendFileSync(process.argv[2], process.pid + ' x\\n'); setInterval(() => {}, 1e6);`
	);
	// The kernel runs sh, sh becomes env, env becomes node: three command lines under one pid.
	writeFileSync(wrapper, `#!/bin/sh\nexec env WRAPPED=1 '${process.execPath}' '${program}' "$@"\n`, { mode: 0o755 });
	const starts = box.file('starts');
	const running = () =>
		processes().filter((one) => one.argv.includes(starts) && alive(one.pid) && one.argv[1] === program);
	const config = {
		pidDir: box.pidDir,
		claimTimeoutMs: 5_000,
		restart: { baseMs: 10 },
		processes: [{ name: 'proc', binaryPath: wrapper, args: [starts] }],
	};
	const [first, second] = [await box.host({ threads: 2 }), await box.host({ threads: 1 })];
	const { pid } = (await first.guard(1, config)).processes[0];
	await until(() => running().length === 1, 10_000, 'the chain came to its end');
	assert.equal(running()[0].pid, pid);
	for (const [host, thread] of /** @type {const} */ ([
		[first, 2],
		[second, 1],
	])) {
		const [state] = (await host.guard(thread, config)).processes;
		assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined]);
	}
	await box.startedTimes(1);
	const [keeper] = box.keepers();
	process.kill(keeper.pid, 'SIGKILL');
	process.kill(pid, 'SIGKILL');
	await until(() => box.lines('starts').length === 2, 10_000, 'a replacement was started');
	await never(() => running().length > 1 || box.lines('starts').length > 2, 500, 'two copies');
	const [one] = running();
	for (const [host, thread] of /** @type {const} */ ([
		[first, 1],
		[first, 2],
		[second, 1],
	]))
		await host.stateUntil(
			thread,
			(state) => state.pid === one.pid && !state.exited,
			10_000,
			'it shows the replacement'
		);
});

test('non-ASCII argv and pidDir: joined, compared byte by byte, also under LC_ALL=C', async (t) => {
	const box = sandbox(t);
	box.pidDir = join(box.dir, 'ü 漢 🜁');
	const words = [
		`starts=${box.file('starts')}`,
		'note=/dev/null:Grüße, 漢字 🜁',
		'note=/dev/null:u\u0308 is not \u00fc',
	];
	const config = box.config(words, { claimTimeoutMs: 5_000 });
	const first = await box.host({ threads: 1, env: { LC_ALL: 'C' } });
	const { pid } = (await first.guard(1, config)).processes[0];
	assert.deepEqual(processOf(pid)?.argv.slice(2), words, 'the words arrive as they were');
	for (const env of [{ LC_ALL: 'C' }, { LC_ALL: 'C.UTF-8' }, { LC_ALL: undefined, LANG: undefined }]) {
		const next = await box.host({ threads: 1, env });
		const [state] = (await next.guard(1, config)).processes;
		assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined], JSON.stringify(env));
	}
	await box.startedTimes(1);
	// Composed and decomposed look alike and are two command lines.
	const alike = box.config(
		words.map((word) => word.normalize('NFC')),
		{ claimTimeoutMs: 2_000 }
	);
	const other = (await first.guard(1, alike, 'alike')).processes[0];
	assert.deepEqual([other.started, other.pid], [false, undefined]);
	assert.match(other.error, new RegExp(`pid ${pid}`));
	assert.equal(box.only().pid, pid);
	await first.call(1, 'stopProcess', 'main', 'proc', {});
	assert.equal(box.running().length, 0);
});

test('non-ASCII argv: bytes that are no UTF-8 are told apart from those that only look like them', async (t) => {
	const box = sandbox(t);
	const wrapper = box.file('wrapper');
	// JavaScript cannot say such words; a wrapper can.
	writeFileSync(
		wrapper,
		`#!/bin/sh\nexec '${box.proc}' "$1" "starts=$2" "$(printf 'note=/dev/null:\\377\\376 \\303\\050')"\n`,
		{ mode: 0o755 }
	);
	const config = {
		pidDir: box.pidDir,
		claimTimeoutMs: 5_000,
		processes: [{ name: 'proc', binaryPath: wrapper, args: [box.marker, box.file('starts')] }],
	};
	const first = await box.host({ threads: 2, env: { LC_ALL: 'C' } });
	const { pid } = (await first.guard(1, config)).processes[0];
	await box.startedTimes(1);
	process.kill(box.keepers()[0].pid, 'SIGKILL');
	const [state] = (await first.guard(2, config)).processes;
	assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined]);
	// A record that has nothing but the words, in which those bytes became U+FFFD: not provably the same.
	const { argv = [] } = processOf(pid) ?? {};
	assert.match(argv[3], /\ufffd/);
	plant(box, recordText(pid, argv, { version: 1 }), 'words');
	const named = {
		...config,
		processes: [{ ...config.processes[0], name: 'words', args: [`${box.marker}2`, box.file('starts2')] }],
	};
	const { report } = await first.guard(1, { ...named, version: 2, stopOrphans: true }, 'words');
	assert.match(report.join('\n'), new RegExp(`pid ${pid}, which is running something else`));
	assert.equal(alive(pid), true);
	process.kill(pid, 'SIGTERM');
	await until(() => !alive(pid), 5_000, 'it has ended');
});

test('clock step, suspend: in another time namespace the same process is joined and a claim gets no older', {
	skip: whyNoMounts(),
}, async (t) => {
	const box = sandbox(t);
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 5_000 });
	// A host that was suspended for eleven days, as far as its clocks can tell.
	const shifted = ['unshare', '--time', '--boottime', '1000000', '--monotonic', '1000000', '--fork', '--kill-child'];
	const here = await box.host({ threads: 1 });
	const there = await box.host({ threads: 1, under: shifted });
	for (const [one, other, round] of /** @type {const} */ ([
		[here, there, 1],
		[there, here, 2],
	])) {
		const { pid } = (await one.guard(1, config, `start${round}`)).processes[0];
		const [state] = (await other.guard(1, config, `join${round}`)).processes;
		assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined]);
		await box.startedTimes(round);
		assert.equal(box.record().started, startOf(pid));
		// A claim in flight of the one: to the other it is as old as it is.
		const { claimedAt, boot, ns, hostStarted } = box.record();
		const file = { version: 0, host: one.pid, hostStarted, boot, ns, uid: 0 };
		plant(box, recordText(0, [box.proc, ...config.processes[0].args], { ...file, claimedAt }), 'inflight');
		const waiting = { ...config, claimTimeoutMs: 60_000, processes: [{ ...config.processes[0], name: 'inflight' }] };
		await other.call(1, 'guardLater', `wait${round}`, waiting);
		await never(() => box.running().length > 1 || box.record('inflight')?.host !== one.pid, 600, 'it is taken over');
		await other.terminate(1);
		await other.startWorker(1);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, 'stopped');
	}
});
