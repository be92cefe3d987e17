// @ts-check
/**
 * What a component needs from the host it runs in: its root, its logger, its lifecycle.
 *
 * @module
 */
import {
	chmodSync,
	closeSync,
	fchmodSync,
	fchownSync,
	mkdirSync,
	openSync,
	readFileSync,
	renameSync,
	rmSync,
	statSync,
	writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { basename, dirname, isAbsolute, join } from 'node:path';
import process from 'node:process';
import { threadId } from 'node:worker_threads';
import * as native from './native.js';

const require = createRequire(import.meta.url);

/** When a host that never calls is told of. */
const NEVER_CALLED_MS = 60_000;
/** The settings file by its name of today and by its older one. */
const SETTINGS_FILES = ['harper-config.yaml', 'harperdb-config.yaml'];

/** @typedef {import('./guard.js').Log} Log */

/**
 * A logger that may lack levels.
 *
 * @typedef {{ [K in keyof Log]?: Log[K] | undefined }} PartialLog
 */

/**
 * @param {unknown} error
 * @returns {string}
 */
function messageOf(error) {
	return error instanceof Error ? error.message : String(error);
}

/**
 * A logger with all three levels out of one that may lack some: `info` goes to `warn` and the other way round, `error` to
 * `warn`, and what has no home to `console.log`.
 *
 * @param {PartialLog | null} [host] Default: `console`.
 * @returns {Log}
 */
export function normaliseLog(host = console) {
	/**
	 * @param {(keyof Log)[]} levels In the order of preference.
	 * @returns {(message: string) => void}
	 */
	const through =
		(...levels) =>
		(...message) => {
			// Looked up at each call: a host swaps its logger's methods while it runs.
			for (const level of levels) {
				const write = host?.[level];
				if (typeof write === 'function') return write.apply(host, message);
			}
			console.log(...message);
		};
	return { info: through('info', 'warn'), warn: through('warn', 'info'), error: through('error', 'warn') };
}

/**
 * @param {string} file
 * @returns {string | null}
 */
function readText(file) {
	try {
		return readFileSync(file, 'utf8');
	} catch {
		return null;
	}
}

/**
 * The settings file that the boot properties name, or its sibling under the other name: a host that was upgraded renames
 * the file and leaves the properties.
 *
 * @param {string} named
 * @returns {string | null}
 */
function readSettings(named) {
	for (const file of [named, ...SETTINGS_FILES.map((name) => join(dirname(named), name))]) {
		if (file !== named && basename(file) === basename(named)) continue;
		const text = readText(file);
		if (text !== null) return text;
	}
	return null;
}

/**
 * Where the host keeps its data, found the way the host finds it: `ROOTPATH`, else the boot properties in the user's home,
 * which name the settings file, which has a `rootPath`.
 *
 * @param {Log} log
 * @param {string} label Whose line it is.
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {string | null} An absolute path, or null where there is none to be found.
 */
export function hostRoot(log, label, env = process.env) {
	const given = env.ROOTPATH;
	if (given && isAbsolute(given)) return given;
	if (given) {
		log.warn(
			`${label}: ROOTPATH is ${given}, which is not an absolute path, so it is ignored: threads with different current directories would use different PID locks`
		);
	}
	try {
		const boot = readText(join(homedir(), '.harperdb', 'hdb_boot_properties.file'));
		const named = /^[ \t]*settings_path[ \t]*=[ \t]*(.*\S)[ \t]*$/m.exec(boot ?? '')?.[1];
		if (!named || !isAbsolute(named)) return null;
		// Required when there is something to parse: a host whose loader treats packages as application code gives an import
		// of CommonJS no names, and most never come here.
		const { parseDocument } = /** @type {typeof import('yaml')} */ (require('yaml'));
		// A document with a mistake further down still has its root.
		const root = parseDocument(readSettings(named) ?? '', { logLevel: 'silent', uniqueKeys: false }).get('rootPath');
		return typeof root === 'string' && isAbsolute(root) ? root : null;
	} catch {
		return null;
	}
}

/**
 * A port out of the environment. 0 is kept: to whoever listens it means any.
 *
 * @param {string} name
 * @param {number} fallback
 * @param {Log} log
 * @param {string} label
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {number}
 */
export function resolvePort(name, fallback, log, label, env = process.env) {
	const text = env[name]?.trim();
	if (!text) return fallback;
	if (text === '0') return 0;
	const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
	if (port >= 1 && port <= 65_535) return port;
	log.warn(`${label}: ${name} is ${text}, which is not a port in 1-65535; ${fallback} is used`);
	return fallback;
}

/**
 * Owner and mode of what is to be replaced, null where there is nothing yet.
 *
 * @param {string} path
 */
function ownershipOf(path) {
	const stat = statSync(path, { throwIfNoEntry: false });
	if (stat?.isDirectory()) throw new Error('it is a directory');
	return stat ? { mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid } : null;
}

/**
 * @param {string} path
 * @param {string | Uint8Array} content
 */
function replaceFile(path, content) {
	const kept = ownershipOf(path);
	mkdirSync(dirname(path), { recursive: true });
	const temporary = `${path}.${process.pid}.${threadId}.tmp`;
	// One of a thread that was ended in the middle, whose numbers are ours by now.
	rmSync(temporary, { force: true });
	try {
		// Closed to others until it has the mode of what it replaces: it may hold a key.
		const descriptor = openSync(temporary, 'wx', kept ? 0o600 : 0o666);
		try {
			writeFileSync(descriptor, content);
			if (kept && process.platform !== 'win32') {
				try {
					fchownSync(descriptor, kept.uid, kept.gid);
				} catch {
					// Only root gives a file away; who may not has to own it.
				}
				fchmodSync(descriptor, kept.mode);
			}
		} finally {
			closeSync(descriptor);
		}
		// Windows knows one bit of the mode, and renames nothing over a file that has it.
		if (kept && process.platform === 'win32' && (kept.mode & 0o200) === 0) chmodSync(path, 0o600);
		renameSync(temporary, path);
	} catch (error) {
		rmSync(temporary, { force: true });
		throw error;
	}
}

/**
 * Writes files whole or not at all: a reader sees the old text or the new one. A file keeps its mode and, where that is
 * ours to give, its owner. What cannot be written is told, and the rest is written.
 *
 * @param {Record<string, string | Uint8Array>} files Contents by path.
 * @param {Log} log
 * @param {string} label
 */
export function writeFiles(files, log, label) {
	for (const [path, content] of Object.entries(files)) {
		try {
			replaceFile(path, content);
		} catch (error) {
			log.error(`${label}: ${path} could not be written: ${messageOf(error)}`);
		}
	}
}

/**
 * Where one thread keeps that it started.
 *
 * @template T
 * @typedef {{ get: () => T | undefined | null, set: (started: T) => void }} Slot
 */

/**
 * Makes the `handleApplication` of a component: it starts once per slot, however often the host calls, and answers
 * nothing, since a host that awaits it holds up its other threads.
 *
 * @template T
 * @param {{ start: (scope: any) => T, deadline?: { seen: () => void } | null, slot: Slot<T> }} parts `deadline`: what
 *   `watchForNeverCalled` returned.
 * @returns {(scope: any) => void}
 */
export function createHandleApplication({ start, deadline, slot }) {
	return (scope) => {
		deadline?.seen();
		// The host loads a component just to see whether it loads.
		if (scope?.isTransientValidation) return;
		if (slot.get()) return;
		slot.set(start(scope));
	};
}

/**
 * Whether any thread of this process was called, and that this one was.
 *
 * @param {string} key
 * @param {boolean} note
 * @returns {boolean}
 */
function calledAnywhere(key, note) {
	try {
		return native.sync('seen', { key, note });
	} catch {
		return false; // the native part does not load, which guard() says
	}
}

/**
 * Tells of a host that loaded a component and never called it: what it would have started is then simply not there. A
 * host that calls one of its threads has called: some evaluate a component on their main thread as well and call it on
 * the others only.
 *
 * @param {{ log: Log, label: string, configEntry: string, deadlineMs?: number }} options `configEntry`: what has to be in
 *   the host's configuration.
 * @returns {{ seen: () => void }}
 */
export function watchForNeverCalled({ log, label, configEntry, deadlineMs = NEVER_CALLED_MS }) {
	const key = `${label}\0${configEntry}`;
	let told = false;
	const timer = setTimeout(() => {
		if (calledAnywhere(key, false)) return;
		log.error(
			`${label}: the host loaded this component and has not called handleApplication for ${deadlineMs / 1000} s, so nothing was started`
		);
		log.error(`${label}: a component is called when the host's own configuration names it; add to it: ${configEntry}`);
	}, deadlineMs);
	timer.unref();
	return {
		seen() {
			clearTimeout(timer);
			if (!told) calledAnywhere(key, true);
			told = true;
		},
	};
}
