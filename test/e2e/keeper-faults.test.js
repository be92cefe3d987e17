// @ts-check
/**
 * The keeper is killed at every step of a start, of a restart and of its end; then it is stopped at them for a while.
 * Never do two processes run, the thread that called gets its answer, and the next caller gets a process at once.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { faultPackage } from '../support/fixtures.js';
import { startHost } from '../support/host.js';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

const { entry, points } = faultPackage();

/** Points that only a crash reaches, and those that only an end reaches. */
const ofCrash = points.filter((name) => /^keep-(died|reaped|words|crash-|backoff)/.test(name));
const ofEnd = [
	'keep-died',
	'keep-reaped',
	'keep-words',
	...points.filter((name) => /^keep-(end|removed|exit-written|life-removed)/.test(name)),
];
const ofStart = points.filter((name) => !ofCrash.includes(name) && !ofEnd.includes(name));
/** What a start does, a restart does for the second time. */
const ofRestart = [
	...ofCrash.map((name) => [name, 1]),
	...ofStart
		.filter((name) => name.startsWith('keep-') && name !== 'keep-begin' && name !== 'keep-grace')
		.map((name) => [name, 2]),
];

// One host for all points: what one of them breaks in it shows in the next.
const host = await startHost({ threads: 2, env: { PG_PACKAGE: entry } });
after(() => host.kill());

let round = 0;

/**
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {string} [fault]
 * @param {Record<string, any>} [more]
 */
const config = (box, fault, more = {}) =>
	box.config([`starts=${box.file('starts')}`], {
		claimTimeoutMs: 20_000,
		restart: { baseMs: 20 },
		process: { spawnOptions: { env: { ...process.env, PG_FAULT: fault } } },
		...more,
	});

/**
 * Watches the process table until told otherwise: two at once, however briefly, is what must never be.
 * @param {import('node:test').TestContext} t
 * @param {import('../support/sandbox.js').Sandbox} box
 */
function watching(t, box) {
	let worst = 0;
	let on = true;
	const loop = (async () => {
		while (on) {
			const running = box.running().filter((one) => one.argv[0] === box.proc).length;
			worst = Math.max(worst, running);
			await new Promise((resolve) => setTimeout(resolve, 2));
		}
	})();
	const end = async () => {
		on = false;
		await loop;
		return worst;
	};
	t.after(end);
	return end;
}

/**
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {string} key
 */
async function assertNextGetsOne(box, key) {
	const next = await host.guard(2, config(box), `${key}-next`);
	assert.equal(
		next.processes[0].error,
		undefined,
		`${next.processes[0].error}\n${box.tree()}\n${JSON.stringify(box.record())}`
	);
	assert.ok(next.tookMs < 5_000, `the next caller waited ${next.tookMs} ms`);
	await until(
		() => box.running().length === 1,
		5_000,
		() => `one process\n${box.tree()}`
	);
	const state = await host.stateUntil(
		2,
		(one) => !one.exited && one.pid === box.running()[0]?.pid,
		5_000,
		'it shows the process',
		{ key: `${key}-next` }
	);
	assert.equal(state.pid, box.only().pid);
	await never(() => box.running().length !== 1, 150, 'it does not stay at one process');
	return state;
}

for (const name of ofStart) {
	test(`killed at ${name} of the first start`, async (t) => {
		const box = sandbox(t);
		box.expectedLeftovers.push(/\.tmp$/);
		const key = `start${++round}`;
		const end = watching(t, box);
		const { processes, tookMs } = await host.guard(1, config(box, `${name}:kill`), key);
		assert.ok(tookMs < 10_000, `the caller waited ${tookMs} ms`);
		assert.ok(processes[0].started || processes[0].error, 'the caller is told one or the other');
		await assertNextGetsOne(box, key);
		assert.equal(await end(), 1);
	});
}

for (const [name, time] of ofRestart) {
	test(`killed at ${name} of a restart`, async (t) => {
		const box = sandbox(t);
		box.expectedLeftovers.push(/\.tmp$/);
		const key = `restart${++round}`;
		const end = watching(t, box);
		const { processes } = await host.guard(1, config(box, `${name}:kill:${time}`), key);
		assert.equal(processes[0].error, undefined);
		const [keeper] = box.keepers();
		await until(() => box.lines('starts').length === 1, 5_000, 'it runs');
		process.kill(processes[0].pid, 'SIGKILL');
		await until(() => !alive(keeper.pid, keeper.started), 10_000, `the keeper was killed at ${name}`);
		// The crash is proven, so the watching thread answers it; whether before or after the next caller does not matter.
		await assertNextGetsOne(box, key);
		await host.stateUntil(
			1,
			(state) => !state.exited && state.pid === box.only().pid,
			10_000,
			'the first thread shows it too',
			{ key }
		);
		assert.equal(await end(), 1);
	});
}

for (const name of ofEnd) {
	test(`killed at ${name} of a stop`, async (t) => {
		const box = sandbox(t);
		box.expectedLeftovers.push(/\.tmp$/);
		const key = `end${++round}`;
		const end = watching(t, box);
		const { processes } = await host.guard(1, config(box, `${name}:kill`), key);
		assert.equal(processes[0].error, undefined);
		await until(() => box.lines('starts').length === 1, 5_000, 'it runs');
		const [keeper] = box.keepers();
		process.kill(keeper.pid, 'SIGTERM');
		await until(() => !alive(keeper.pid, keeper.started), 10_000, `the keeper was killed at ${name}`);
		const swept = ['keep-life-removed', 'keep-end'].includes(name);
		assert.equal(
			box.files().some((file) => file.includes('.keeper.')),
			!swept,
			'it came to that point and no further'
		);
		await host.stateUntil(1, (state) => state.exited, 10_000, 'the thread shows the end', { key });
		await never(() => box.lines('starts').length > 1, 300, 'a stop is answered with a start');
		await assertNextGetsOne(box, key);
		assert.equal(await end(), 1);
	});
}

for (const name of [
	'launch-life-made',
	'keep-begin',
	'keep-gate',
	'keep-forked',
	'keep-named',
	'keep-went',
	'hold-begin',
]) {
	test(`stopped at ${name} for a while: nobody starts a second one, and it goes on afterwards`, async (t) => {
		const box = sandbox(t);
		const key = `stop${++round}`;
		const end = watching(t, box);
		const first = host.guard(1, config(box, `${name}:stop`), key);
		const stopped = () => box.all().find((one) => one.state === 'T' && one.argv[0].endsWith('keeper'));
		const one = await until(stopped, 10_000, () => `something is stopped at ${name}\n${box.tree()}`);
		const other = await host.guard(2, config(box, undefined, { claimTimeoutMs: 700 }), `${key}-other`);
		const [state] = other.processes;
		if (state.error) assert.match(state.error, new RegExp(`${one.pid}|pid \\d+`), 'a refusal names who holds it');
		assert.ok(box.running().length <= 1, box.tree());
		process.kill(one.pid, 'SIGCONT');
		const { processes } = await first;
		assert.ok(processes[0].started || processes[0].error);
		await assertNextGetsOne(box, key);
		assert.equal(await end(), 1);
	});
}

test('every fault point was tried, none reached a shipped build', () => {
	const tried = new Set([...ofStart, ...ofCrash, ...ofEnd]);
	assert.deepEqual(
		points.filter((name) => !tried.has(name)),
		[]
	);
	assert.ok(points.length > 10);
});
