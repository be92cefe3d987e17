// @ts-check
/**
 * Verdicts against the real Go side: when one is about a process that is gone, and when it is taken again.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { currentVerdict, neverStarted, retakeVerdict, takeVerdictAgainst } from 'harper-process-guard';

/**
 * @param {Record<string, any>} [more]
 * @returns {any}
 */
const state = (more = {}) => ({
	name: 'agent',
	title: 'the agent',
	pid: 100,
	started: true,
	adopted: false,
	exited: false,
	restarts: 0,
	...more,
});

test('a verdict is taken against the pid of its moment', () => {
	const one = state();
	assert.equal(takeVerdictAgainst(one), one);
	assert.equal(one.verifiedPid, 100);
	assert.equal(takeVerdictAgainst(state({ pid: undefined })).verifiedPid, null);
});

test('what was never started proves nothing, whatever answers on its port', () => {
	const { ok, detail } = neverStarted(state({ started: false, error: 'no such file' })) ?? {};
	assert.equal(ok, false);
	assert.match(detail ?? '', /this node never started it \(no such file\)/);
	assert.match(detail ?? '', /anything answering its port belongs to another process/);
	for (const one of [state(), state({ started: undefined }), state({ exited: true }), undefined, null]) {
		assert.equal(neverStarted(one), null);
	}
});

test('a verdict holds while its process runs, and the state is the same object', () => {
	for (const one of [
		state({ verified: true, verifiedPid: 100 }),
		state({ verified: true }),
		state({ verified: false, verifiedPid: null }),
		state({ pid: undefined }),
	]) {
		assert.equal(currentVerdict(one), one);
	}
	assert.equal(currentVerdict(/** @type {any} */ (undefined)), undefined);
});

test('a verdict about a process that is gone is not published', () => {
	const one = state({ pid: 200, restarts: 2, verified: true, verifyDetail: 'it answered', verifiedPid: 100 });
	const seen = currentVerdict(one);
	assert.notEqual(seen, one);
	assert.equal(seen.verified, null);
	for (const part of [
		'taken against pid 100',
		'restarted 2 time(s) as pid 200',
		'what the dead one proved was: it answered',
	]) {
		assert.ok(seen.verifyDetail.includes(part), seen.verifyDetail);
	}
	assert.deepEqual([one.verified, one.verifyDetail], [true, 'it answered'], 'the state itself was changed');
	assert.equal(currentVerdict(state({ pid: undefined, verified: true, verifiedPid: 100 })).verified, null);
});

/**
 * A verifier that notes why it was called.
 *
 * @param {() => any} [answer]
 */
function verifier(answer = () => ({ ok: true, detail: 'fine' })) {
	/** @type {string[]} */
	const reasons = [];
	return {
		reasons,
		verify: async (/** @type {any} */ one, /** @type {{ reason: string }} */ { reason }) => {
			reasons.push(reason);
			takeVerdictAgainst(one);
			return answer();
		},
	};
}

test('it is taken again after a restart, where there is none, and some time after it failed', async () => {
	const now = () => 50_000;
	/** @type {[Record<string, any>, string[]][]} */
	const cases = [
		[{ verified: true, verifiedPid: 99 }, ['restarted']],
		[{ verified: false, verifiedPid: 99, verifiedAt: 49_999 }, ['restarted']],
		[{}, ['untaken']],
		[{ verified: false }, ['refuted']],
		[{ verified: false, verifiedPid: 100, verifiedAt: 40_000 }, ['refuted']],
		[{ verified: false, verifiedPid: 100, verifiedAt: 40_001 }, []],
		[{ verified: false, verifiedPid: 100, verifiedAt: 50_001 }, ['refuted']], // the clock was set back
		[{ verified: true, verifiedPid: 100, verifiedAt: 0 }, []],
		[{ verified: null, verifiedPid: null }, []],
		[{ started: false }, []],
		[{ started: false, verified: true, verifiedPid: 99 }, []],
		[{ exited: true, verified: false }, []],
		[{ started: undefined }, []],
	];
	for (const [more, expected] of cases) {
		const one = state(more);
		const { reasons, verify } = verifier();
		const seen = await retakeVerdict(one, verify, { now });
		assert.deepEqual(reasons, expected, JSON.stringify(more));
		if (expected.length > 0) {
			assert.equal(seen, one);
			const { verified, verifyDetail, verifiedPid, verifiedAt } = one;
			assert.deepEqual([verified, verifyDetail, verifiedPid, verifiedAt], [true, 'fine', 100, 50_000]);
		}
	}
	const early = verifier();
	await retakeVerdict(state({ verified: false, verifiedAt: 49_990 }), early.verify, { now, intervalMs: 10 });
	assert.deepEqual(early.reasons, ['refuted']);
});

test('without a verifier the verdict is only read', async () => {
	const one = state({ verified: true, verifiedPid: 99 });
	for (const none of [undefined, null]) {
		const seen = await retakeVerdict(one, none);
		assert.equal(seen.verified, null);
		assert.match(seen.verifyDetail ?? '', /taken against pid 99/);
	}
	assert.equal(one.verified, true);
});

test('a verifier that throws or answers nonsense is a failed verdict, dated when it ended', async () => {
	let clock = 1000;
	const one = state();
	const thrower = verifier(() => {
		clock = 2000;
		throw new Error('no socket');
	});
	await retakeVerdict(one, thrower.verify, { now: () => clock });
	assert.deepEqual([one.verified, one.verifiedAt], [false, 2000]);
	assert.equal(one.verifyDetail, 'retaking the verdict against pid 100 threw: no socket');
	for (const nonsense of [true, undefined, 'yes']) {
		const two = state();
		await retakeVerdict(two, /** @type {any} */ (() => nonsense));
		assert.equal(two.verified, false, String(nonsense));
		assert.match(two.verifyDetail, /threw/);
	}
});

test('a process that restarts while its verdict is taken leaves a verdict about the old one', async () => {
	const one = state();
	const seen = await retakeVerdict(one, async (each) => {
		takeVerdictAgainst(each);
		each.pid = 300;
		each.restarts = 1;
		return { ok: true };
	});
	assert.equal(seen.verified, null);
	assert.match(seen.verifyDetail ?? '', /taken against pid 100.*as pid 300/);
});

test('a verifier that notes no pid does not leave a verdict that is stale for ever', async () => {
	const one = state({ verified: true, verifiedPid: 99 });
	let taken = 0;
	const verify = () => {
		taken++;
		return { ok: true };
	};
	assert.equal((await retakeVerdict(one, verify)).verified, true);
	assert.equal((await retakeVerdict(one, verify)).verified, true);
	assert.equal(taken, 1);
});

test('those who ask while a verdict is taken share it', async () => {
	const one = state();
	/** @type {(value?: any) => void} */
	let answer = () => {};
	const waiting = new Promise((resolve) => (answer = resolve));
	const { reasons, verify } = verifier(() => waiting);
	const asked = [retakeVerdict(one, verify), retakeVerdict(one, verify), retakeVerdict(one, verify)];
	answer({ ok: true });
	for (const seen of await Promise.all(asked)) assert.equal(seen, one);
	assert.deepEqual(reasons, ['untaken']);
	one.pid = 101;
	await retakeVerdict(one, verify);
	assert.deepEqual(reasons, ['untaken', 'restarted']);
});
