// @ts-check
/** Many walks: which there are, in what order, several at once, and what came of them. */

import { scenarios } from './scenarios.js';
import { discover, Lane, nameOf, walk } from './walk.js';

/** @typedef {import('./walk.js').Step} Step */

/**
 * Every step of every scenario.
 * @param {string[]} [names]
 */
export async function all(names = Object.keys(scenarios)) {
	const queue = [...names];
	/** @type {Map<string, Step[]>} */
	const found = new Map();
	await Promise.all(
		names.slice(0, jobs).map(async () => {
			const lane = await borrow();
			for (let name = queue.shift(); name; name = queue.shift()) found.set(name, await discover(lane, name));
			idle.push(lane);
		})
	);
	return names.flatMap((name) => found.get(name) ?? []);
}

/** How many walks go on at once. */
const jobs = 3;

/** @type {Lane[]} that nobody walks in; starting two hosts takes longer than a walk */
const idle = [];

const borrow = async () => idle.pop() ?? (await new Lane().open());

/** Ends the hosts. */
export const closeAll = () => Promise.all(idle.splice(0).map((lane) => lane.close()));

/**
 * The same order for the same seed (mulberry32, Fisher and Yates).
 * @template T
 * @param {T[]} list
 * @param {number} seed
 */
export function shuffled(list, seed) {
	const out = [...list];
	let state = seed >>> 0;
	const random = () => {
		state = (state + 0x6d2b79f5) >>> 0;
		let t = state;
		t = Math.imul(t ^ (t >>> 15), t | 1);
		t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
		return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
	};
	for (let i = out.length - 1; i > 0; i--) {
		const j = Math.floor(random() * (i + 1));
		[out[i], out[j]] = [out[j], out[i]];
	}
	return out;
}

/**
 * @param {Step[]} steps
 * @param {{ seconds?: number, say?: (line: string) => void }} [options]
 */
export async function walkAll(steps, { seconds = Infinity, say = () => {} } = {}) {
	const end = performance.now() + seconds * 1000;
	const queue = [...steps];
	const points = new Set();
	/** @type {string[]} */
	const violations = [];
	let walks = 0;
	let missed = 0;
	await Promise.all(
		Array.from({ length: Math.min(jobs, queue.length) }, async () => {
			let lane = await borrow();
			for (let step = queue.shift(); step && performance.now() < end; step = queue.shift()) {
				const began = performance.now();
				const outcome = await walk(lane, step.scenario, step.point, step.what);
				const took = Math.round(performance.now() - began);
				if (++walks % 250 === 0) say(`${walks} walks, ${queue.length} to go`);
				points.add(nameOf({ ...step, what: '' }));
				if (!outcome.reached) missed++;
				if (outcome.violations.length > 0) {
					violations.push(nameOf(step));
					say(`VIOLATION ${nameOf(step)} (${took} ms)\n${outcome.violations.join('\n')}`);
					say(`  again: node test/faults/faults.mjs --replay '${nameOf(step)}'\n`);
					// What broke may have broken its hosts too.
					await lane.close();
					lane = await new Lane().open();
				} else if (process.env.PG_FAULT_VERBOSE)
					say(`ok ${nameOf(step)} (${took} ms${outcome.reached ? '' : ', not reached'})`);
			}
			idle.push(lane);
		})
	);
	const summary = `faults: ${points.size} points, ${walks} walks, ${violations.length} violations (${missed} walks did not come to their call${queue.length > 0 ? `; ${queue.length} were not begun` : ''})`;
	return { summary, violations, walks, missed };
}
