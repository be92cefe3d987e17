// @ts-check
/**
 * Reading an exit, and saying why a spawn failed. The words are the Go side's, so that a thread, a keeper and a reaper
 * read the same exit the same way.
 *
 * @module
 */
import * as native from './native.js';

/**
 * @typedef {object} ExitReading
 * @property {boolean} killed By a signal that is nobody's way of asking for a stop: a crash, or memory ran out.
 * @property {boolean} deliberate Exit code 0, or a signal by which one asks for a stop. Nothing is restarted after it.
 * @property {string} detail In words.
 * @property {number} exitCode The code a shell would show.
 */

/**
 * Reads how a process ended.
 *
 * @param {number | null | undefined} code
 * @param {string | null | undefined} signal
 * @returns {ExitReading}
 */
export function describeExit(code, signal) {
	return native.sync('describeExit', { code: code ?? null, signal: signal ?? null });
}

/**
 * Says why something could not be started: what the system's error code means for that path, or the error's own message.
 *
 * @param {unknown} error What spawn threw, or what its `error` event carried.
 * @param {string} path
 * @returns {string}
 */
export function describeSpawnFailure(error, path) {
	const { code, message } = /** @type {{ code?: unknown, message?: unknown }} */ (error ?? {});
	return native.sync('describeSpawnFailure', {
		code: typeof code === 'string' ? code : null,
		message: typeof message === 'string' ? message : String(error),
		path: String(path),
	});
}
