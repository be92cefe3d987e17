// @ts-check
/**
 * What runs on this node: who a pid is, and which process a lock names.
 *
 * @module
 */
import { resolve } from 'node:path';
import * as native from './native.js';

/** The largest pid of any system; a larger number would be cut to a pid that is somebody else's. */
const HIGHEST_PID = 2 ** 32 - 1;

/**
 * Whether a pid is the process that was meant: `unknown` is what a system says that does not let us look, and is no
 * reason to signal anything.
 *
 * @typedef {'match' | 'differs' | 'unknown'} Identity
 */

/**
 * What a lock file says.
 *
 * @typedef {object} HeldLock
 * @property {number} pid
 * @property {number} version
 * @property {string} token
 * @property {number} host
 * @property {string[]} argv
 * @property {number} [keeper]
 * @property {string[]} [keeperArgv]
 * @property {string} [started]
 */

/**
 * @param {unknown} pid
 * @returns {pid is number}
 */
function isPid(pid) {
	return Number.isInteger(pid) && /** @type {number} */ (pid) > 0 && /** @type {number} */ (pid) <= HIGHEST_PID;
}

/**
 * Whether `pid` runs the command line `expected`, of which the live one may have more.
 *
 * @param {number} pid
 * @param {readonly string[]} expected
 * @returns {Identity}
 */
export function identify(pid, expected) {
	if (!isPid(pid)) return 'differs';
	return native.sync('identify', { pid, expected: [...(expected ?? [])].map(String) });
}

/**
 * The command line of a process, or null where there is none to be read.
 *
 * @param {number} pid
 * @returns {string[] | null}
 */
export function argvOf(pid) {
	return isPid(pid) ? (native.sync('argvOf', { pid }) ?? null) : null;
}

/**
 * What a lock file says, while it names a process.
 *
 * @param {string} file
 * @returns {HeldLock | undefined} Undefined: no lock, none of the guard's, or one whose claim is still under way.
 */
export function heldProcess(file) {
	return native.sync('heldProcess', { file: resolve(file) }) ?? undefined;
}
