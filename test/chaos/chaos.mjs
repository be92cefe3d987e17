// @ts-check
/**
 *   node test/chaos/chaos.mjs [--seed N] [--seconds S] [--profile everything|claims] [--pace MS] [--plant BUG]
 *     [--log FILE]
 *
 * --pace MS          the longest pause between two actions; 500 leaves a core to others, 60 does not
 * --profile claims   nothing but claims at one instant, with hosts stopped in the middle
 * --plant BUG        the hosts run the fault build with that bug
 *
 * Exit code 1 after a violation. The same seed decides the same sequence of actions; whom they hit depends on who is
 * there at that moment, so a violation may need several runs of its seed. The log has all of them, and the table's changes.
 */
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { faultBuild, root } from '../support/fixtures.js';
import { Chaos } from './chaos.js';

const { values } = parseArgs({
	options: {
		seed: { type: 'string', default: '1' },
		seconds: { type: 'string', default: '60' },
		profile: { type: 'string', default: 'everything' },
		pace: { type: 'string', default: '500' },
		plant: { type: 'string', default: '' },
		log: { type: 'string', default: '' },
	},
});
const seed = Number(values.seed);
const seconds = Number(values.seconds);
const profile = /** @type {'everything' | 'claims'} */ (values.profile);
if (!Number.isInteger(seed) || !(seconds > 0) || !['everything', 'claims'].includes(profile))
	throw new Error('--seed takes a whole number, --seconds a number, --profile everything or claims');

const isRoot = process.getuid?.() === 0;
const own = 'PG_CHAOS_OWN_MOUNTS';

if (isRoot && !process.env[own]) {
	// In a mount namespace of its own: what is mounted for it goes with it.
	const child = spawn(
		'unshare',
		['--mount', '--propagation', 'private', process.execPath, ...process.execArgv, ...process.argv.slice(1)],
		{ stdio: 'inherit', env: { ...process.env, [own]: '1' } }
	);
	for (const name of /** @type {NodeJS.Signals[]} */ (['SIGTERM', 'SIGINT'])) process.on(name, () => child.kill(name));
	child.on('exit', (code) => (process.exitCode = code ?? 1));
} else {
	const logFile = values.log || join(root, `.cache/chaos/${profile}-${seed}.log`);
	mkdirSync(dirname(logFile), { recursive: true });
	console.log(`chaos: seed ${seed}, ${seconds} s, ${profile}, log ${logFile}`);
	/** @type {Record<string, string | undefined>} */
	const env = values.plant ? { PG_PACKAGE: faultBuild(), PG_PLANT: values.plant } : {};
	const chaos = new Chaos({ seed, seconds, profile, pace: Number(values.pace), logFile, env, root: isRoot });
	for (const name of /** @type {NodeJS.Signals[]} */ (['SIGTERM', 'SIGINT'])) process.on(name, () => chaos.interrupt());
	const violations = await chaos.run();
	process.exitCode = violations > 0 ? 1 : 0;
}
