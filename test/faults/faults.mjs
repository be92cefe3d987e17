// @ts-check
/**
 * Walks through every system call that can go wrong, in every scenario, and closes with one line that counts.
 *
 *   node test/faults/faults.mjs [--only TEXT] [--sample N] [--seed N] [--seconds N] [--replay 'STEP']...
 *
 * --only TEXT    only steps whose name contains TEXT
 * --sample N     so many of them, chosen by the seed
 * --seconds N    no further walk is begun after so long
 * --replay STEP  this one, as a violation names it
 */
import { parseArgs } from 'node:util';
import { all, closeAll, shuffled, walkAll } from './all.js';
import { nameOf, stepOf } from './walk.js';

const { values } = parseArgs({
	options: {
		only: { type: 'string', default: '' },
		sample: { type: 'string', default: 'Infinity' },
		seed: { type: 'string', default: process.env.PG_FAULT_SEED ?? '1' },
		seconds: { type: 'string', default: 'Infinity' },
		replay: { type: 'string', multiple: true, default: [] },
	},
});

let steps = values.replay.map(stepOf);
if (steps.length === 0) steps = (await all()).filter((step) => nameOf(step).includes(values.only));
if (values.sample !== 'Infinity') steps = shuffled(steps, Number(values.seed)).slice(0, Number(values.sample));
const { summary, violations } = await walkAll(steps, {
	seconds: Number(values.seconds),
	say: (line) => console.log(line),
});
await closeAll();
console.log(summary);
process.exitCode = violations.length > 0 ? 1 : 0;
