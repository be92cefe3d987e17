// @ts-check
/**
 * How the Go code is reached, and the only file that knows it: guard.node is loaded
 * from prebuilds/, it loads libguard beside it, and JSON goes back and forth.
 * @module
 */
import { existsSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { notRunnable, privateCopy } from './programs.js';

/**
 * What guard.node exports; binding/addon.c says what each does.
 * @typedef {object} Addon
 * @property {(path: string, settings: string, deliver: (kind: number, id: number, payload: string) => void) => void} open
 * @property {(fn: string, args: string) => string} sync
 * @property {(id: number, fn: string, args: string) => void} call
 * @property {(id: number, message: string) => void} send
 * @property {(id: number) => void} drop
 * @property {() => [threads: number, parcels: number]} stats
 */

/**
 * One unanswered call, or one session until its end.
 * @typedef {object} Entry
 * @property {(value: any) => void} resolve
 * @property {(error: Error) => void} reject
 * @property {((message: any) => void) | undefined} onMessage
 */

/**
 * @typedef {object} Session
 * @property {Promise<any>} settled the answer; the event loop is held until it came
 * @property {(message: unknown) => void} send a message to the Go side
 * @property {() => void} drop stop listening: no further message arrives
 */

/**
 * @typedef {object} Paths
 * @property {string} keeper the keeper executable
 * @property {string} reaper the reaper executable
 * @property {string} launch the script that starts either where only `node` may be spawned
 * @property {string} [note] why these are not the installed ones, when they are a private copy
 */

/**
 * @typedef {object} Native
 * @property {(fn: string, args?: unknown) => any} sync a short function, answered at once
 * @property {(fn: string, args?: unknown) => Promise<any>} call a function that takes its time
 * @property {(fn: string, args: unknown, onMessage: (message: any) => void) => Session} session a call with messages both ways
 * @property {(pidDir?: string) => Paths} paths the executables, checked to be there and to be executable; a private copy,
 *   where one is needed, is made in `pidDir`
 * @property {() => Addon} addon loads what is not loaded yet; for tests
 */

const ANSWER = 0;
const MESSAGE = 1;
const END = 2;

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const require = createRequire(import.meta.url);

const libraryNames = /** @type {Record<string, string>} */ ({ win32: 'libguard.dll', darwin: 'libguard.dylib' });

/** What the package is built and tested for: a release carries prebuilds/ of each. */
export const supported = ['linux-x64', 'linux-arm64', 'win32-x64'];

/**
 * @param {string} code
 * @param {string} message
 * @param {unknown} [cause]
 * @returns {Error & { code: string }}
 */
function failure(code, message, cause) {
	return Object.assign(new Error(message, cause === undefined ? undefined : { cause }), { code });
}

/**
 * Says why this runtime or system cannot load the addon, before the dynamic loader
 * says it in words that help nobody, or crashes.
 * @param {{ platform: string, arch: string, versions: Record<string, string | undefined>, musl: () => boolean }} system
 * @returns {string | undefined}
 */
export function unsupported({ platform, arch, versions, musl }) {
	const target = `${platform}-${arch}`;
	const end = `Supported: Node.js 20 or newer on ${supported.join(', ')} with glibc 2.28 or newer.`;
	for (const [key, name] of [
		['bun', 'Bun'],
		['deno', 'Deno'],
	]) {
		// Bun's garbage collector stops threads with signals that Go's flags break: the
		// event loop hangs now and then, which is worse than a refusal.
		if (versions[key]) return `${name} ${versions[key]} cannot run the native part of process guard. ${end}`;
	}
	if (platform === 'linux' && musl()) {
		return `this Node.js is built for musl (Alpine), where a Go library cannot be loaded into a running process: golang/go#54805. ${end} On Alpine use a Debian-based image such as node:22-slim.`;
	}
	if (!supported.includes(target)) return `process guard has no native part for ${target}. ${end}`;
	return undefined;
}

/**
 * Whether this Node is linked to musl. The report answers for certain but takes 7 ms
 * a call, so it is asked only where musl's loader is there to have started Node.
 * @returns {boolean}
 */
function runsOnMusl() {
	const name =
		/** @type {Record<string, string>} */ ({ x64: 'x86_64', arm64: 'aarch64' })[process.arch] ?? process.arch;
	if (!existsSync(`/lib/ld-musl-${name}.so.1`)) return false;
	const report = /** @type {{ excludeNetwork?: boolean, getReport(): any }} */ (process.report);
	const before = report.excludeNetwork;
	// With the network part it resolves the names of all peers, which can take seconds.
	report.excludeNetwork = true;
	try {
		return report.getReport().header.glibcVersionRuntime === undefined;
	} finally {
		report.excludeNetwork = before;
	}
}

/**
 * What stands in prebuilds/, for a message: an installation that was copied from another system has that system's.
 * @returns {string}
 */
function present() {
	try {
		const names = readdirSync(join(root, 'prebuilds'));
		return names.length === 0 ? 'nothing' : names.sort().join(', ');
	} catch {
		return 'nothing';
	}
}

/**
 * @param {string} file what was looked for
 * @returns {Error}
 */
function notBuilt(file) {
	const advice = existsSync(join(root, 'binding', 'build.mjs'))
		? `Run \`npm install\` or \`node binding/build.mjs\` in ${root} (it needs Go and a C compiler).`
		: `Install the package again on this system: a bundler, a copy of node_modules or an installer that leaves files out has lost them. It needs no install script, so --ignore-scripts is no reason.`;
	return failure(
		'PG_NOT_BUILT',
		`the native part of process guard is not there: looked for ${file}, and ${join(root, 'prebuilds')} has ${present()}. ${advice}`
	);
}

/**
 * @param {string} file
 * @param {unknown} cause
 * @returns {Error}
 */
function notLoaded(file, cause) {
	const { code, message } = /** @type {{ code?: string, message?: string }} */ (cause);
	const words = message ?? String(cause);
	if (code === 'ERR_DLOPEN_DISABLED') {
		return failure(
			code,
			`Node.js may not load ${file}: ${words}. Start the host without --no-addons, or with --allow-addons under --permission.`,
			cause
		);
	}
	if (code === 'PG_SECOND_COPY' || code === 'PG_LIMIT') return failure(code, words, cause);
	return failure(
		'PG_LOAD_FAILED',
		`${file} could not be loaded: ${words}. It is there, so it was built for another system or is damaged; rebuild it with \`node binding/build.mjs --force\` in ${root}, or reinstall the package.`,
		cause
	);
}

/**
 * The error that Go answered with.
 * @param {{ code: string, message: string, stack?: string }} error
 * @returns {Error}
 */
function fromGo({ code, message, stack }) {
	const error = failure(code, message);
	return stack === undefined ? error : Object.assign(error, { goStack: stack });
}

/**
 * The state of one thread. It lives on the addon's exports object, of which a thread
 * has one however many copies of this module it loads: with two maps, the second
 * copy's would swallow the first one's answers.
 * @typedef {{ entries: Map<number, Entry>, last: number }} State
 */
const stateKey = Symbol.for('harper-process-guard.native.1');

/**
 * @param {Map<number, Entry>} entries
 * @returns {(kind: number, id: number, payload: string) => void}
 */
function deliverTo(entries) {
	return (kind, id, payload) => {
		const entry = entries.get(id);
		if (kind === ANSWER) {
			const answer = JSON.parse(payload);
			if (!answer.open) entries.delete(id);
			if (answer.error) entry?.reject(fromGo(answer.error));
			else entry?.resolve(answer.ok);
		} else if (kind === MESSAGE) {
			entry?.onMessage?.(JSON.parse(payload));
		} else if (kind === END) {
			entries.delete(id);
		}
	};
}

/**
 * The functions of the library in this directory. Nothing is loaded before the first
 * call of one of them.
 * @param {string} [directory] where guard.node, libguard and the executables are
 * @returns {Native}
 */
export function nativeFrom(directory = join(root, 'prebuilds', `${process.platform}-${process.arch}`)) {
	/** @type {(Addon & { [stateKey]?: State }) | undefined} */
	let addon;
	/** @type {State} */
	let state;
	/** @type {Paths | undefined} */
	let checked;

	/** @returns {Addon} */
	function load() {
		if (addon) return addon;
		const reason = unsupported({
			platform: process.platform,
			arch: process.arch,
			versions: process.versions,
			musl: runsOnMusl,
		});
		if (reason) throw failure('PG_UNSUPPORTED', reason);
		const shim = join(directory, 'guard.node');
		const library = join(directory, libraryNames[process.platform] ?? 'libguard.so');
		for (const file of [shim, library]) if (!existsSync(file)) throw notBuilt(file);

		/** @type {Addon & { [stateKey]?: State }} */
		let loaded;
		try {
			loaded = require(shim);
		} catch (error) {
			throw notLoaded(shim, error);
		}
		const shared = loaded[stateKey] ?? { entries: new Map(), last: 0 };
		try {
			loaded.open(library, JSON.stringify({ version: require('../package.json').version }), deliverTo(shared.entries));
		} catch (error) {
			throw notLoaded(library, error);
		}
		loaded[stateKey] = state = shared;
		return (addon = loaded);
	}

	/**
	 * @param {string} fn
	 * @param {unknown} args
	 * @param {((message: any) => void) | undefined} onMessage
	 * @returns {{ id: number, settled: Promise<any> }}
	 */
	function begin(fn, args, onMessage) {
		const native = load();
		const text = JSON.stringify(args ?? null);
		const id = ++state.last;
		const settled = new Promise((resolve, reject) => state.entries.set(id, { resolve, reject, onMessage }));
		native.call(id, fn, text);
		return { id, settled };
	}

	return {
		addon: load,
		sync(fn, args) {
			const answer = JSON.parse(load().sync(fn, JSON.stringify(args ?? null)));
			if (answer.error) throw fromGo(answer.error);
			return answer.ok;
		},
		async call(fn, args) {
			return begin(fn, args, undefined).settled;
		},
		session(fn, args, onMessage) {
			const { id, settled } = begin(fn, args, onMessage);
			return {
				settled,
				send: (message) => load().send(id, JSON.stringify(message)),
				drop() {
					const entry = state.entries.get(id);
					if (entry) entry.onMessage = undefined;
					load().drop(id);
				},
			};
		},
		paths(pidDir) {
			if (checked) return checked;
			const suffix = process.platform === 'win32' ? '.exe' : '';
			const launch = join(root, 'lib', 'launch.js');
			const keeper = join(directory, `keeper${suffix}`);
			const reaper = join(directory, `reaper${suffix}`);
			for (const file of [keeper, reaper, launch]) if (!existsSync(file)) throw notBuilt(file);
			const reasons = [keeper, reaper].flatMap((file) => {
				const reason = notRunnable(file);
				return reason === undefined ? [] : [`${file} cannot be run: ${reason}`];
			});
			if (reasons.length === 0) return (checked = { keeper, reaper, launch });
			return copied(pidDir, { keeper, reaper, launch }, reasons.join('; '));
		},
	};
}

/**
 * A private copy of what the package has but cannot run from where it is.
 * @param {string | undefined} pidDir
 * @param {Paths} installed
 * @param {string} why
 * @returns {Paths}
 */
function copied(pidDir, installed, why) {
	const { keeper, reaper, launch } = installed;
	// Where launch.js looks for the other two.
	const executables = join('prebuilds', `${process.platform}-${process.arch}`);
	const names = {
		keeper: join(executables, basename(keeper)),
		reaper: join(executables, basename(reaper)),
		launch: join('lib', 'launch.js'),
	};
	const files = { [names.keeper]: keeper, [names.reaper]: reaper, [names.launch]: launch };
	const made = pidDir === undefined ? { refusals: [] } : privateCopy(files, pidDir);
	if ('refusals' in made) {
		const copies = made.refusals.length === 0 ? '' : `, nor from a private copy (${made.refusals.join('; ')})`;
		throw failure(
			'PG_NOT_EXECUTABLE',
			`${why}${copies}. Run \`chmod +x ${keeper} ${reaper}\` as their owner, or put the package or pidDir on a file system that is not mounted noexec.`
		);
	}
	const { directory } = made;
	return {
		keeper: join(directory, names.keeper),
		reaper: join(directory, names.reaper),
		launch: join(directory, names.launch),
		note: `${why}; the copy in ${directory} is used. Run \`chmod +x ${keeper} ${reaper}\` as their owner`,
	};
}

/** The library that belongs to this package. */
export const { sync, call, session, paths } = nativeFrom();
