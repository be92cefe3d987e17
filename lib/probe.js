// @ts-check
/**
 * Probes: asking a process whether it answers. None of them rejects: an answer that does not come is an answer.
 *
 * @module
 */
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import process from 'node:process';
import { setTimeout as pause } from 'node:timers/promises';

/** How long one attempt may take, connection and whole answer. */
const ATTEMPT_MS = 1000;
const INTERVAL_MS = 250;
/** The longest wait between two attempts. */
const INTERVAL_CAP_MS = 5000;
const TIMEOUT_MS = 30_000;
/** More than any status answer; an endless one would otherwise fill the host's memory for a whole attempt. */
const LARGEST_BODY = 16 * 1024 * 1024;
const TAIL_BYTES = 65_536;

/**
 * How long a probe goes on asking.
 *
 * @typedef {object} PollOptions
 * @property {number} [timeoutMs] Default 30000.
 * @property {number} [intervalMs] Wait after the first attempt; each further one doubles it, up to 5 s. Default 250.
 * @property {() => unknown} [giveUp] Asked after each failed attempt; truthy ends the probe.
 */

/** @typedef {<T>(probe: () => Promise<T>) => Promise<T> | T | undefined | void} Untrace */

/** @type {Untrace} */
let untrace = (probe) => probe();

/**
 * Sets what each probe is run in: a tracer's way of saying that what happens inside is not to be traced. One per thread.
 *
 * @param {Untrace | null | undefined} wrapper Called with the probe, which it has to call. None: probes run bare.
 */
export function untraceWith(wrapper) {
	untrace = typeof wrapper === 'function' ? wrapper : (probe) => probe();
}

/**
 * Runs one attempt inside the wrapper. What counts is the attempt, not what the wrapper makes of it; a wrapper that throws
 * or never calls has asked nothing.
 *
 * @template T
 * @param {() => Promise<T>} attempt Never rejects.
 * @param {number} limitMs How long a wrapper may take to call.
 * @returns {Promise<T | null>}
 */
async function untraced(attempt, limitMs) {
	/** @type {Promise<T> | undefined} */
	let asked;
	try {
		const wrapped = Promise.resolve(untrace(() => (asked ??= attempt())));
		wrapped.catch(() => {});
		if (!asked) await Promise.race([wrapped, pause(limitMs)]);
		return asked ? await asked : null;
	} catch {
		return null;
	}
}

/**
 * Asks until something answers, the time is over or the caller gives up. The caller is never asked before the first
 * attempt.
 *
 * @template T
 * @param {(limitMs: number) => Promise<T | null>} attempt Never rejects; null: no answer.
 * @param {PollOptions} options
 * @returns {Promise<T | null>}
 */
async function poll(attempt, { timeoutMs = TIMEOUT_MS, intervalMs = INTERVAL_MS, giveUp }) {
	// Not the wall clock: a step of it would end the probe at once or never.
	const deadline = performance.now() + timeoutMs;
	for (let wait = intervalMs; ; wait = Math.min(wait * 2, INTERVAL_CAP_MS)) {
		const limit = Math.max(1, Math.min(ATTEMPT_MS, deadline - performance.now()));
		const answer = await untraced(() => attempt(limit), limit);
		if (answer !== null) return answer;
		try {
			if (await giveUp?.()) return null;
		} catch {
			return null;
		}
		const left = deadline - performance.now();
		if (left <= 0) return null;
		await pause(Math.min(wait, left));
		if (performance.now() >= deadline) return null;
	}
}

/**
 * @param {URL} url
 * @param {number} limitMs
 * @returns {Promise<string | null>}
 */
function get(url, limitMs) {
	return new Promise((resolve) => {
		/** @type {http.ClientRequest | undefined} */
		let request;
		/** @param {string | null} answer */
		const settle = (answer) => {
			clearTimeout(timer);
			resolve(answer);
			request?.destroy();
		};
		// One timer around everything: a server that stalls in the middle of its answer is silent in every other respect.
		const timer = setTimeout(() => settle(null), limitMs);
		const client = url.protocol === 'https:' ? https : http;
		try {
			// A connection of its own: one that is kept alive outlives the process it led to. Any certificate will do: what a
			// probe wants to know is whether there is an answer, and what runs on this machine signs its own.
			request = client.get(url, { agent: false, rejectUnauthorized: false }, (response) => {
				const { statusCode = 0 } = response;
				if (statusCode < 200 || statusCode > 299) return settle(null);
				/** @type {Buffer[]} */
				const chunks = [];
				let size = 0;
				response.on('data', (chunk) => {
					chunks.push(chunk);
					if ((size += chunk.length) > LARGEST_BODY) settle(null);
				});
				response.on('end', () => settle(Buffer.concat(chunks).toString()));
				response.on('error', () => settle(null)); // also of an answer that was cut short
			});
			request.on('error', () => settle(null));
		} catch {
			settle(null);
		}
	});
}

/**
 * Asks an address until it answers with a status of 2xx.
 *
 * @param {{ url: string | URL } & PollOptions} options
 * @returns {Promise<string | null>} The body of the answer, or null.
 */
export async function pollEndpoint({ url, ...options }) {
	/** @type {URL} */
	let address;
	try {
		address = new URL(url);
	} catch {
		return null; // no waiting makes an address of it
	}
	return poll((limitMs) => get(address, limitMs), options);
}

/**
 * What `net.connect` takes for the path of a socket. On Windows that is a named pipe, which people write in several ways:
 * `\\.\pipe\name`, `//./pipe/name`, `npipe:////./pipe/name`.
 *
 * @internal
 * @param {string} path
 * @param {NodeJS.Platform} [platform]
 * @returns {string}
 */
export function socketPath(path, platform = process.platform) {
	const bare = path.replace(platform === 'win32' ? /^npipe:(?=[\\/]{2})/i : /^unix:(\/\/)?(?=\/)/i, '');
	if (platform !== 'win32') return bare;
	const pipe = /^[\\/]{2,4}[.?][\\/]pipe[\\/](.+)$/i.exec(bare);
	return pipe ? `\\\\.\\pipe\\${pipe[1].replaceAll('/', '\\')}` : bare;
}

/**
 * @param {string} path
 * @param {number} limitMs
 * @returns {Promise<true | null>}
 */
function connect(path, limitMs) {
	return new Promise((resolve) => {
		/** @type {net.Socket | undefined} */
		let socket;
		/** @param {true | null} answer */
		const settle = (answer) => {
			clearTimeout(timer);
			resolve(answer);
			socket?.destroy();
		};
		const timer = setTimeout(() => settle(null), limitMs);
		try {
			socket = net.connect({ path });
			socket.on('connect', () => settle(true));
			socket.on('error', () => settle(null));
		} catch {
			settle(null);
		}
	});
}

/**
 * Connects to a Unix socket, on Windows to a named pipe, until somebody listens there. Nothing is sent.
 *
 * @param {{ path: string } & PollOptions} options
 * @returns {Promise<boolean>}
 */
export async function pollUnixSocket({ path, ...options }) {
	const address = socketPath(String(path));
	return (await poll((limitMs) => connect(address, limitMs), options)) === true;
}

/**
 * @param {string | null | undefined} text
 * @returns {any} What the text says as JSON, null where there is no text or no JSON.
 */
export function parseJson(text) {
	if (typeof text !== 'string') return null;
	try {
		return JSON.parse(text);
	} catch {
		return null;
	}
}

/**
 * The end of a file, such as a log.
 *
 * @param {string} file
 * @param {number} [maxBytes]
 * @returns {string | null} Null: no file, or it cannot be read.
 */
export function tailFile(file, maxBytes = TAIL_BYTES) {
	let descriptor;
	try {
		// A FIFO under that name would hold the thread until somebody writes into it.
		descriptor = openSync(file, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
		const stat = fstatSync(descriptor);
		if (!stat.isFile()) return null;
		const from = Math.max(0, stat.size - maxBytes);
		const buffer = Buffer.alloc(stat.size - from);
		let length = 0;
		while (length < buffer.length) {
			const read = readSync(descriptor, buffer, length, buffer.length - length, from + length);
			if (read === 0) break; // it was cut meanwhile
			length += read;
		}
		let start = 0;
		// The cut may fall into a character: what is left of it is left out.
		if (from > 0) while (start < Math.min(length, 3) && (buffer[start] & 0xc0) === 0x80) start++;
		return buffer.toString('utf8', start, length);
	} catch {
		return null;
	} finally {
		if (descriptor !== undefined) closeSync(descriptor);
	}
}
