// @ts-check
/** Waiting on facts. A test never sleeps for a while and hopes: it names what it waits for and until when. */
import { setTimeout as pause } from 'node:timers/promises';

/** Every deadline is stretched by this factor; a loaded machine sets PG_PATIENCE instead of editing tests. */
export const patience = Number(process.env.PG_PATIENCE ?? 1);

/**
 * Resolves with the first truthy answer of `fact`. Rejects after `deadlineMs`, naming what was waited for and what was
 * seen last.
 * @template T
 * @param {() => T | Promise<T>} fact
 * @param {number} deadlineMs
 * @param {string | (() => string)} description
 * @returns {Promise<NonNullable<T>>}
 */
export async function until(fact, deadlineMs, description) {
	const deadline = performance.now() + deadlineMs * patience;
	for (let wait = 1; ; wait = Math.min(wait * 1.5, 25)) {
		const answer = await fact();
		if (answer) return /** @type {NonNullable<T>} */ (answer);
		if (performance.now() > deadline) {
			const what = typeof description === 'function' ? description() : description;
			throw new Error(`not within ${deadlineMs * patience} ms: ${what}`);
		}
		await pause(wait);
	}
}

/**
 * Watches that something stays false for a whole while; the counterpart of `until` for "nothing else is started".
 * @param {() => unknown} fact
 * @param {number} durationMs
 * @param {string} description
 */
export async function never(fact, durationMs, description) {
	const end = performance.now() + durationMs;
	while (performance.now() < end) {
		const answer = await fact();
		if (answer) throw new Error(`it happened although it must not: ${description} (${JSON.stringify(answer)})`);
		await pause(10);
	}
}
