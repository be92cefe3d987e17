// @ts-check
/** How much of a long test runs: a part in `make test`, all of it with PG_FULL=1 (`make test-full`). */

export const full = process.env.PG_FULL === '1';

/**
 * @param {number} some rounds in a normal run
 * @param {number} all rounds in a full one
 */
export const rounds = (some, all) => (full ? all : some);
