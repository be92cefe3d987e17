// @ts-check
/** One seed, one sequence: what a run does next depends on it and on nothing else. */

export class Random {
	#state;

	/** @param {number} seed */
	constructor(seed) {
		this.#state = seed >>> 0;
	}

	/** The next of [0, 1), by mulberry32. */
	next() {
		this.#state = (this.#state + 0x6d2b79f5) >>> 0;
		let t = this.#state;
		t = Math.imul(t ^ (t >>> 15), t | 1);
		t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
		return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
	}
}

/**
 * @template T
 * @param {readonly T[]} list
 * @param {number} part where in the list, [0, 1)
 * @returns {T | undefined}
 */
export const at = (list, part) => list[Math.floor(part * list.length)];

/**
 * Mostly short, sometimes long.
 * @param {number} part
 * @param {number} least
 * @param {number} most
 */
export const skewed = (part, least, most) => least + (most - least) * part ** 3;

/** @param {number[]} values */
export const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1] ?? NaN;
