// @ts-check
/**
 * Something else lies under a name that the guard opens. Each case is answered within a bound, by a start that leaves
 * the planted file alone or by an error that names it and says what to do; what a link leads to is never touched.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
	chmodSync,
	chownSync,
	linkSync,
	lstatSync,
	mkdirSync,
	readFileSync,
	statSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { nobody, whyNotNobody } from '../support/host.js';
import { alive, marked, processOf } from '../support/processes.js';
import { sandbox, signal } from '../support/sandbox.js';
import { patience, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

const root = process.getuid?.() === 0;

/** A text that the victim has and that says, as a gate, that it is held by this very test. */
const precious = `${process.pid} 0 0 0 ${'precious '.repeat(20)}\n`;

/** Every name that the guard opens for a process called `proc`. */
const names = {
	record: 'proc.pid',
	gate: 'proc.pid.claiming',
	exit: 'proc.pid.exit',
	reaping: 'proc.pid.reaping',
	life: 'proc.pid.keeper.1.1.1.aaaa',
	leftover: 'proc.pid.1.1.1.aaaa.tmp',
};

/** @type {Record<string, (path: string, victim: string) => unknown>} */
const plants = {
	'a link to a victim': (path, victim) => symlinkSync(victim, path),
	'a link to nothing': (path) => symlinkSync(`${path}-elsewhere`, path),
	'a hard link to a victim': (path, victim) => linkSync(victim, path),
	'a FIFO': (path) => execFileSync('mkfifo', [path]),
	'a directory': (path) => mkdirSync(path),
	'a socket': (path) =>
		new Promise((done) =>
			createServer()
				.listen(path, () => done(undefined))
				.unref()
		),
	'a file that everybody may write': (path) => writeFileSync(path, '', { mode: 0o666 }),
	'a file of mode 000': (path) => writeFileSync(path, '', { mode: 0 }),
	...(root && {
		'a device': (path) => execFileSync('mknod', [path, 'c', '1', '5']),
		'a file of another user': (path) => {
			writeFileSync(path, precious);
			chownSync(path, nobody.uid, nobody.gid);
		},
	}),
};

/**
 * One case: its own directory, a victim outside of it, one guard() call.
 * @param {Sandbox} box
 * @param {import('../support/host.js').Host} host
 * @param {string} key
 * @param {(pidDir: string, victim: string) => unknown} plant
 * @param {number} [owner] whose everything is but for what is planted
 */
async function attacked(box, host, key, plant, owner) {
	const home = box.file(key);
	const pidDir = join(home, 'run');
	const victim = join(home, 'victim');
	mkdirSync(pidDir, { recursive: true, mode: 0o700 });
	// Old: text of a gate that is younger than seven seconds counts as held.
	execFileSync('touch', ['-d', '1 hour ago', victim]);
	writeFileSync(victim, precious, { mode: 0o644 });
	execFileSync('touch', ['-d', '1 hour ago', victim]);
	if (owner) for (const path of [home, pidDir, victim]) chownSync(path, owner, owner);
	await plant(pidDir, victim);
	const before = statSync(victim);
	const marker = `${box.marker}-${key}`;
	const processes = [{ name: 'proc', binaryPath: box.proc, args: [marker] }];
	const result = await host.guard(0, { pidDir, claimTimeoutMs: 400, processes }, key);
	const [state] = result.processes;
	const running = marked(marker).length;
	if (state.keeper) signal({ .../** @type {any} */ (state), pid: state.keeper, started: undefined }, 'SIGTERM');
	await until(() => marked(marker).length === 0, 5_000, `${key} has ended`);
	const after = statSync(victim);
	assert.equal(readFileSync(victim, 'utf8'), precious, `${key}: the victim was written to`);
	assert.deepEqual([after.mode, after.uid, after.mtimeMs], [before.mode, before.uid, before.mtimeMs], key);
	assert.ok(result.tookMs < 3_000 * patience, `${key} took ${result.tookMs} ms`);
	assert.equal(running, state.error ? 0 : 1, `${key}: ${state.error}`);
	return { state, report: result.report, pidDir };
}

test('whatever lies under a name of ours: started beside it, or refused by its path and a remedy', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	/** @type {Record<string, string>} */
	const answers = {};
	for (const [what, name] of Object.entries(names)) {
		for (const [kind, plant] of Object.entries(plants)) {
			const key = `${what}-${kind.replaceAll(' ', '-')}`;
			const { state, pidDir } = await attacked(box, host, key, (dir, victim) => plant(join(dir, name), victim));
			answers[`${what}: ${kind}`] = state.error ?? 'started';
			if (!state.error) continue;
			assert.ok(state.error.includes(join(pidDir, name)), `${key}: ${state.error}`);
			assert.match(state.error, /remove|right to/, key);
			assert.ok(lstatSync(join(pidDir, name)), `${key} is still there`);
		}
	}
	if (process.env.PG_SHOW) console.log(answers);
	// What says nothing of a process that runs does not keep one from starting.
	for (const kind of Object.keys(plants))
		for (const what of ['exit', 'life', 'leftover'])
			assert.equal(answers[`${what}: ${kind}`], 'started', `${what}: ${kind}`);
});

test('a hard link to a file of ours, where others can make one: its text steers no signal and nothing is started beside it', {
	skip: !root && 'needs root to be more than another user',
}, async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	const child = box.spawn([`victim-${box.marker}`, `signals=${box.file('signals')}`, `starts=${box.file('starts')}`]);
	await until(() => box.lines('starts').length === 1, 5_000, 'the victim runs');
	const pid = Number(child.pid);
	// A file of root's that says what somebody else wanted it to say: a log, a mail, a cache.
	const text = `${pid}\n1\n${JSON.stringify({ token: '1.1.1.aaaa', host: 1, argv: processOf(pid)?.argv })}\n`;
	writeFileSync(box.file('text'), text);
	for (const name of ['proc.pid', 'proc.pid.reaping']) {
		const pidDir = box.file(`with-${name}`);
		mkdirSync(pidDir);
		chmodSync(pidDir, 0o777);
		linkSync(box.file('text'), join(pidDir, name));
		const processes = [box.process()];
		const answer = await host.guard(0, { pidDir, version: 2, stopOrphans: true, claimTimeoutMs: 500, processes }, name);
		assert.match(answer.processes[0].error, new RegExp(`${join(pidDir, name)}.* second name.*remove it`));
		assert.equal(box.running().length, 0);
	}
	// A copy by hard links of a directory that is ours alone is a backup, and no reason to lose sight of a process.
	await host.guard(0, box.config([], {}), 'ours');
	execFileSync('cp', ['-al', box.pidDir, box.file('backup')]);
	const again = await host.guard(0, box.config([], { claimTimeoutMs: 500 }), 'again');
	assert.deepEqual([again.processes[0].error, again.processes[0].adopted], [undefined, true]);
	assert.ok(alive(pid));
	assert.deepEqual(box.lines('signals'), []);
});

test('a host that is not root says of each file that it may not use whose it is or what right it lacks', {
	skip: whyNotNobody(),
}, async (t) => {
	const box = sandbox(t);
	chownSync(box.dir, nobody.uid, nobody.gid);
	const host = await box.host(nobody);
	/** @type {Record<string, (path: string) => void>} */
	const closed = {
		'of mode 000': (path) => {
			writeFileSync(path, '', { mode: 0 });
			chownSync(path, nobody.uid, nobody.gid);
		},
		"of root's": (path) => writeFileSync(path, '', { mode: 0o600 }),
		'of a third user': (path) => {
			writeFileSync(path, precious, { mode: 0o666 });
			chmodSync(path, 0o666);
			chownSync(path, 60_001, 60_001);
		},
	};
	for (const [what, name] of Object.entries(names)) {
		for (const [kind, plant] of Object.entries(closed)) {
			const key = `${what}-${kind.replaceAll(/\W/g, '-')}`;
			const { state, report, pidDir } = await attacked(box, host, key, (dir) => plant(join(dir, name)), nobody.uid);
			const said = state.error ?? report.join('\n');
			if (process.env.PG_SHOW) console.log(key, state.error ?? 'started', report);
			if (['exit', 'leftover'].includes(what)) assert.equal(state.error, undefined, key);
			if (!state.error) continue;
			assert.ok(said.includes(join(pidDir, what === 'life' ? 'proc.pid.keeper.' : name)), `${key}: ${said}`);
			assert.match(
				said,
				{ 'of mode 000': /right to|look into/, "of root's": /uid 0.*remove it|look into/ }[kind] ??
					/uid 60001.*remove it/,
				key
			);
		}
	}
});
