// @ts-check
/**
 * A part of what `make faults` walks through, the same for the same PG_FAULT_SEED: one system call of a host, a launcher, a
 * keeper, a held child or a reaper goes wrong, and afterwards everything must be as if it had not, or somebody says why.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { full } from '../support/scale.js';
import { all, closeAll, shuffled, walkAll } from './all.js';
import { Lane, nameOf, stepOf, walk } from './walk.js';

after(closeAll);

const began = performance.now();
const seed = Number(process.env.PG_FAULT_SEED ?? 1);

/** What each of these walks found is named beside it. */
const found = [
	// A stranger was sent SIGTERM because his start could not be read and his command line was that of an old record.
	'reap reap/open:proc-stat:2:EIO',
	'stale host/read:proc-stat:2:ENOMEM',
	// The keeper took the exec for an end without one, and everybody waited 16 s for a process that ran.
	'start hold/write:socket:1:ENOMEM',
	'start hold/chdir:cwd:1:EINTR',
	// A held child that was never told to go was waited for like one that starts slowly.
	'start keep/write:socket:1:ENOMEM',
	// The claim of a keeper that had ended was waited for until it was old.
	'start keep/open:record:1:EIO',
	// "The gate was taken away", and nobody had.
	'start host/stat:claiming:2:EACCES',
	// "Its launcher ended with exit code 3" was all that was said.
	'watch reap-launch/rename:record:1:ENOSPC',
	// The temporary file stayed.
	'watch reap-launch/fstat:tmp:1:ENOMEM',
];

/** @param {import('./walk.js').Step[]} steps */
async function assertHolds(steps, seconds = Infinity) {
	/** @type {string[]} */
	const said = [];
	const { summary, violations, walks, missed } = await walkAll(steps, { seconds, say: (line) => said.push(line) });
	assert.deepEqual(violations, [], said.join('\n'));
	assert.ok(missed <= walks / 4, `too many walks did not come to the call they are about: ${summary}`);
	return summary;
}

test('what went wrong once does not any more', async () => {
	await assertHolds(found.map(stepOf));
});

test('a part of all walks, chosen by a seed', { timeout: 3_600_000 }, async (t) => {
	const steps = shuffled(await all(), seed);
	assert.ok(steps.length > 3_000, `only ${steps.length} walks are known`);
	const some = full ? steps : steps.slice(0, 120);
	t.diagnostic(
		`PG_FAULT_SEED=${seed}: ${await assertHolds(some, full ? Infinity : Math.max(5, 25 - (performance.now() - began) / 1000))}`
	);
});

test('a gate that lets everybody in is found, and only that', async (t) => {
	const step = stepOf('race host/open:tmp:1:stop');
	for (const plant of ['no-gate', '']) {
		const lane = await new Lane(plant).open();
		t.after(() => lane.close());
		const { violations, reached } = await walk(lane, step.scenario, step.point, step.what);
		assert.ok(reached, `${nameOf(step)} did not come to its call`);
		const two = violations.filter((line) => /processes at once/.test(line));
		if (plant) assert.ok(two.length > 0, `the planted bug was not found: ${violations.join('\n')}`);
		else assert.deepEqual(violations, []);
	}
});
