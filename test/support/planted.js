// @ts-check
/** Records that somebody else left, and the words in which a record names a process. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { processOf } from './processes.js';

export const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** Above the largest pid that the kernel gives out: nothing can carry it. */
export const nobodysPid = 4_194_305;

/**
 * How a record names the start of a process that runs now.
 * @param {number} pid
 */
export const startOf = (pid) => `${bootId}:${processOf(pid)?.started}`;

/**
 * A start in this boot that is not that process's.
 * @param {number} pid
 */
export const anotherStart = (pid) => `${bootId}:${Number(processOf(pid)?.started) - 1_000}`;

/**
 * @param {import('./sandbox.js').Sandbox} box
 * @param {string | Uint8Array} text
 * @param {string} [name]
 */
export function plant(box, text, name = 'proc') {
	mkdirSync(box.pidDir, { recursive: true, mode: 0o700 });
	writeFileSync(join(box.pidDir, `${name}.pid`), text, { mode: 0o600 });
}

/**
 * The text of a record of a guard that is gone.
 * @param {number} pid
 * @param {string[]} argv
 * @param {Record<string, any>} [more]
 */
export const recordText = (pid, argv, { version = 0, ...more } = {}) =>
	`${pid}\n${version}\n${JSON.stringify({ token: `${nobodysPid}.1.1.0123456789abcdef`, host: nobodysPid, argv, ...more })}\n`;
