// @ts-check
/** Failures in the wild: a pidDir that is full, read-only, without locks, or holds what nobody wrote in one piece. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { refusing } from '../support/fixtures.js';
import { inMounts, whyNoMounts } from '../support/host.js';
import { bootId, nobodysPid, plant, recordText } from '../support/planted.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

/** @typedef {import('../support/sandbox.js').Sandbox} Sandbox */

const skip = whyNoMounts();

/** @param {any} result what guard() answered */
const linesOf = (result) => result.log.map((/** @type {{ line: string }} */ { line }) => line);

test('ENOSPC turns into a storm: on a full tmpfs each call is refused once and nothing is left', {
	skip,
}, async (t) => {
	const box = sandbox(t);
	mkdirSync(box.pidDir, { mode: 0o700 });
	const fill = `head -c 1M /dev/zero > '${box.pidDir}/ballast' 2> '${box.file('full')}' || true`;
	const host = await box.host({
		threads: 4,
		under: inMounts(`mount -t tmpfs -o size=64k,mode=700 none '${box.pidDir}'; ${fill}`),
	});
	assert.match(readFileSync(box.file('full'), 'utf8'), /No space left/);
	// The host's own view of the directory.
	const inside = `/proc/${host.pid}/root${box.pidDir}`;
	const config = box.config([`starts=${box.file('starts')}`], { restart: { baseMs: 1 }, claimTimeoutMs: 10_000 });
	for (let round = 0; round < 5; round++) {
		const results = await host.guardAll(config, { key: `${round}` });
		for (const result of results) {
			const [state] = result.processes;
			assert.deepEqual([state.started, state.pid], [false, undefined]);
			assert.match(state.error, /no space left on device/);
			assert.ok(state.error.includes(box.pidDir), state.error);
			assert.equal(linesOf(result).length, 1, `one line, not a storm:\n${linesOf(result).join('\n')}`);
		}
	}
	await never(
		async () => (await host.state(1, '0')).log.length > 1 || box.running().length + box.keepers().length > 0,
		500,
		'it is tried again'
	);
	assert.deepEqual(
		readdirSync(inside).filter((name) => name !== 'ballast' && name !== 'proc.pid.claiming'),
		[],
		'no temporary file is left'
	);
	rmSync(join(inside, 'ballast'));
	const { processes } = await host.guard(1, config, 'room');
	assert.deepEqual([processes[0].error, processes[0].adopted], [undefined, false], 'with room again it starts');
	await box.startedTimes(1);
});

test('EROFS: a read-only pidDir is refused and named, and nothing is started', { skip }, async (t) => {
	const box = sandbox(t);
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 5_000 });
	mkdirSync(box.pidDir, { mode: 0o700 });
	const bind = `mount --bind '${box.pidDir}' '${box.pidDir}'; mount -o remount,bind,ro '${box.pidDir}'`;
	const host = await box.host({ threads: 2, under: inMounts(bind) });
	const refused = async (/** @type {string} */ key) => {
		for (const { processes, tookMs } of await host.guardAll(config, { key })) {
			assert.equal(processes[0].started, false);
			assert.match(processes[0].error, /read-only file system/);
			assert.ok(processes[0].error.includes(box.pidDir), processes[0].error);
			assert.ok(tookMs < 4_000, `it waited ${tookMs} ms`);
		}
	};
	await refused('empty');
	assert.deepEqual(box.files(), []);
	// What somebody else runs under that name is not doubled either.
	const other = await box.host({ threads: 1 });
	const { processes } = await other.guard(1, config);
	await refused('in use');
	assert.equal(box.only().pid, processes[0].pid);
	await box.startedTimes(1);
});

for (const errno of /** @type {const} */ (['ENOLCK', 'ENOTSUP'])) {
	test(`flock on NFS: where flock answers ${errno} nothing is started, and the remedy is named`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 2, under: refusing(`flock:${errno}`) });
		for (const { processes, tookMs } of await host.guardAll(box.config([], { claimTimeoutMs: 5_000 }))) {
			assert.equal(processes[0].started, false);
			assert.match(processes[0].error, /flock refused/);
			assert.match(processes[0].error, /local disk/);
			assert.ok(processes[0].error.includes(box.pidDir), processes[0].error);
			assert.ok(tookMs < 4_000, `it waited ${tookMs} ms`);
		}
		assert.equal(box.running().length, 0);
	});
}

test('empty or torn record: taken over, since nobody holds a lock on it', { timeout: 300_000 }, async (t) => {
	const box = sandbox(t);
	const host = await (await box.host({ threads: 1 })).load();
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 5_000 });
	const whole = recordText(nobodysPid, [box.proc, box.marker], {
		started: `${bootId}:12345`,
		keeper: nobodysPid,
		keeperArgv: ['/gone/keeper', 'keep', '--lock', join(box.pidDir, 'proc.pid'), '--token', 'x'],
	});
	/** @type {Record<string, string | Buffer>} */
	const torn = {
		'zero bytes': '',
		'a newline': '\n',
		NULs: Buffer.alloc(4096),
		'a record and NULs': Buffer.concat([Buffer.from(whole), Buffer.alloc(4096)]),
		'a number and no more': '4194306',
		'half JSON': whole.slice(0, whole.length / 2),
		'JSON without its end': whole.slice(0, -2),
		'JSON of another kind': `${nobodysPid}\n0\n[1,2]\n`,
		'a megabyte of digits': Buffer.alloc(1 << 20, '7'),
		'a megabyte of letters': Buffer.alloc(1 << 20, 'x'),
		'a megabyte behind a record': Buffer.concat([Buffer.from(whole), Buffer.alloc(1 << 20, ' ')]),
		'bytes that are no text': Buffer.from([0xff, 0xfe, 0x0a, 0x80, 0x0a, 0xc3, 0x28]),
	};
	let round = 0;
	for (const [what, text] of Object.entries(torn)) {
		plant(box, text);
		const { processes, tookMs } = await host.guard(1, config, what);
		assert.deepEqual([processes[0].adopted, processes[0].error], [false, undefined], what);
		assert.ok(tookMs < 4_000, `${what}: it waited ${tookMs} ms`);
		assert.equal(box.record()?.pid, box.only().pid, what);
		await box.startedTimes(++round);
		process.kill(box.keepers()[0].pid, 'SIGTERM');
		await until(() => box.running().length === 0 && box.keepers().length === 0, 5_000, `${what}: stopped`);
	}
});

test('empty or torn record: while its keeper holds the life lock nothing is started beside it', async (t) => {
	const box = sandbox(t);
	const [first, second] = [await box.host({ threads: 1 }), await box.host({ threads: 1 })];
	const config = box.config([`starts=${box.file('starts')}`], { claimTimeoutMs: 1_000 });
	const { pid } = (await first.guard(1, config)).processes[0];
	for (const text of ['', Buffer.alloc(512), `${pid}\n0\n{"tok`, `${pid}\n`]) {
		plant(box, text);
		const { processes } = await second.guard(1, config, `${text}`);
		if (processes[0].error === undefined) assert.deepEqual([processes[0].pid, processes[0].adopted], [pid, true]);
		assert.equal(box.only().pid, pid);
	}
	await box.startedTimes(1);
});
