// @ts-check
/**
 * What runs on this node: who a pid is, which process a lock names, what it costs, and what the node's threads share.
 *
 * @module
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import process from 'node:process';
import * as native from './native.js';

/** How often a reaper is looked after where its end is not told, and the first wait after a relaunch that failed. */
export const REAPER_WATCH_MS = 60_000;
const LONGEST_BACKOFF_MS = 900_000;
const REAPER_NAME = 'process-guard-reaper';

/** @typedef {import('./guard.js').Log} Log */
/** @typedef {import('./guard.js').ProcessState} ProcessState */
/** @typedef {import('./guard.js').ReaperState} ReaperState */

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

/**
 * What a record says about a process, and whether that process runs.
 *
 * @typedef {object} RecordState
 * @property {number} pid 0: its claim is under way.
 * @property {number} version
 * @property {number} restarts As its keeper counts them.
 * @property {boolean} ours
 * @property {Identity} verdict
 * @property {string | null} running What the pid runs, whoever it is: the program without its arguments.
 */

/**
 * @param {string} pidDir
 * @param {string} name
 * @returns {RecordState | null}
 */
function recordState(pidDir, name) {
	return native.sync('recordState', { file: join(resolve(pidDir), `${name}.pid`) }) ?? null;
}

/**
 * What one process uses.
 *
 * @typedef {object} ProcessCost
 * @property {number} rssBytes
 * @property {number} threads 0 where the system does not tell.
 * @property {number} cpuMs User and system time since its start.
 * @property {number} children Direct children.
 */

/**
 * What a process uses, on every platform.
 *
 * @param {number | null | undefined} pid
 * @param {string} [_platform] Not looked at: it once said where there was a `/proc` to read.
 * @returns {ProcessCost | null} Null: no such process, or none that may be looked at.
 */
export function readProcess(pid, _platform) {
	try {
		return native.sync('readProcess', { pid });
	} catch {
		return null; // a figure for people is not worth a status page
	}
}

/**
 * What this process itself uses. Threads of JavaScript share it, so their number says nothing and is 0.
 *
 * @param {{ memoryUsage: () => { rss: number } }} [self]
 * @returns {{ rssBytes: number, threads: number }}
 */
export function selfProcess(self = process) {
	return { rssBytes: self.memoryUsage().rss, threads: 0 };
}

/**
 * Small numbers that all threads and processes of a node see.
 *
 * @typedef {object} Marks
 * @property {(key: string) => number | undefined} get A positive number, or none.
 * @property {(key: string, value: number) => void} set
 * @property {(key: string, change: number) => number | undefined} add Changes it, nobody else's change being lost, and
 *   returns what it is then. Undefined: it could not be kept.
 */

/**
 * @param {string} text
 * @returns {string}
 */
function fileSafe(text) {
	return String(text).replace(/[^\w.-]+/g, '_');
}

/**
 * Marks of one kind, one file each in `dir`; without a directory they are this thread's own. A mark that cannot be read is
 * none, and one that cannot be written is not kept: what they count goes on without them.
 *
 * @param {string | null | undefined} dir
 * @param {string} kind
 * @returns {Marks}
 */
export function sharedMarks(dir, kind) {
	if (!dir) {
		/** @type {Map<string, number>} */
		const own = new Map();
		/** @param {string} key */
		const get = (key) => {
			const value = own.get(key);
			return value !== undefined && Number.isFinite(value) && value > 0 ? value : undefined;
		};
		return {
			get,
			set: (key, value) => void own.set(key, value),
			add(key, change) {
				const value = (get(key) ?? 0) + change;
				own.set(key, value);
				return value;
			},
		};
	}
	const path = resolve(dir);
	/**
	 * @param {string} fn
	 * @param {string} key
	 * @param {number} [value]
	 * @returns {number | undefined}
	 */
	const ask = (fn, key, value = 0) => {
		try {
			return native.sync(fn, { dir: path, file: `${fileSafe(kind)}-${fileSafe(key)}.mark`, value }) ?? undefined;
		} catch {
			return undefined;
		}
	};
	return {
		get: (key) => ask('getMark', key),
		set: (key, value) => void ask('setMark', key, value),
		add: (key, change) => ask('addMark', key, change),
	};
}

/**
 * How old a claim on periodic work gets: three intervals.
 *
 * @param {number} seconds The interval.
 * @returns {number} Milliseconds.
 */
export function claimStaleMs(seconds) {
	return seconds * 3000;
}

/**
 * Elects who does a periodic piece of work: called by everybody at each turn, true for one of them, who stays it until it
 * has not called for `staleMs`. Nobody is elected where the file cannot be written.
 *
 * @param {object} claim
 * @param {string} claim.dir
 * @param {string} claim.file
 * @param {string} claim.holder Who asks: one word per thread, such as its pid and thread id.
 * @param {number} claim.staleMs
 * @param {number} [claim.now] The caller's own clock, in milliseconds since the epoch. Without it ages are measured on a
 *   clock that nobody sets.
 * @param {(path: string) => string} [claim.read] Instead of the file system; with `read` or `write` nothing is exclusive.
 * @param {(path: string, text: string) => void} [claim.write]
 * @returns {boolean}
 */
export function claimSingleton({ dir, file, holder, staleMs, now, read, write }) {
	try {
		if (!read && !write) {
			return native.sync('claimSingleton', { dir: resolve(dir), file, holder: String(holder), staleMs, now }) === true;
		}
		const path = join(dir, file);
		let text = '';
		try {
			text = String(read ? read(path) : readFileSync(path, 'utf8'));
		} catch {
			// There is none yet.
		}
		const decided = native.sync('decideSingleton', { text, holder: String(holder), staleMs, now: now ?? Date.now() });
		if (!decided.won) return false;
		if (write) write(path, decided.text);
		else writeFileSync(path, decided.text);
		return true;
	} catch {
		return false;
	}
}

/**
 * The reaper as it is now: what `guard()` said of it is about the moment of its start.
 *
 * @template {Partial<ReaperState> | null | undefined} S
 * @param {S} state
 * @param {string | null | undefined} pidDir
 * @param {string} [defaultName] For a state without a name.
 * @returns {S} The same object where nothing can be said, else a copy.
 */
export function currentReaper(state, pidDir, defaultName) {
	const name = state?.name ?? defaultName;
	if (!state || !pidDir || !name) return state;
	/** @type {RecordState | null} */
	let record;
	try {
		record = recordState(pidDir, name);
	} catch {
		return state;
	}
	const held = record?.ours && record.pid > 0 ? record : null;
	if (held?.verdict === 'match') return { ...state, started: true, pid: held.pid, error: undefined };
	if (held?.verdict === 'unknown') return state;
	const lock = join(pidDir, `${name}.pid`);
	let why = `there is no lock for ${name} in ${pidDir}`;
	if (held?.running) why = `${lock} names pid ${held.pid}, which is running \`${held.running}\``;
	else if (held) why = `${lock} names pid ${held.pid}, and nothing holds it`;
	return {
		...state,
		started: false,
		pid: undefined,
		error: `no reaper is running: ${why}. Should this host end without stopping its processes, they outlive it`,
	};
}

/**
 * One process as the node has it: a thread whose own start failed, or whose process ended, may look at one that another
 * thread started since.
 *
 * @template {Partial<ProcessState> | null | undefined} S
 * @param {S} state
 * @param {string | null | undefined} pidDir
 * @param {string} [supervision] Who supervises; anything but `guard` is not looked into.
 * @returns {S} The same object where it holds, else a copy.
 */
export function nodeProcess(state, pidDir, supervision = 'guard') {
	if (!state?.name || !pidDir || supervision !== 'guard') return state;
	if (state.started !== false && state.exited !== true) return state;
	/** @type {RecordState | null} */
	let record;
	try {
		record = recordState(pidDir, state.name);
	} catch {
		return state;
	}
	if (record?.ours && record.pid > 0) {
		if (record.verdict === 'match') {
			return {
				...state,
				started: true,
				adopted: true,
				exited: false,
				pid: record.pid,
				// The record of a restart comes before this thread's own news of it: a new pid with the old count was shown.
				restarts: Math.max(state.restarts ?? 0, record.restarts),
				// What was proved was about another process.
				verified: undefined,
				verifyDetail: undefined,
				verifiedPid: null,
				error: undefined,
				refused: state.error,
			};
		}
		if (record.verdict === 'unknown') return state;
	}
	return state.exited === true ? { ...state, started: false } : state;
}

/**
 * A name whose host pid file may be stale.
 *
 * @typedef {object} HostPidTarget
 * @property {string} name
 * @property {readonly string[]} [argv] The command line that belongs to the name.
 * @property {string} [script] What a process of that name runs, where its command line is not known: the end of a path.
 * @property {string} [lock] The guard's record of that name; who carries it on its command line is its keeper or reaper.
 */

/**
 * Removes pid files of the host that name a process they are not about. A host that keeps `<root>/pids/<name>.pid` hands
 * back whatever runs under that pid instead of starting anything: a stranger, a zombie, a thread of its own.
 *
 * @param {string | null | undefined} root Null: the host keeps none.
 * @param {readonly HostPidTarget[]} targets
 * @param {Log} log
 * @param {string} label
 */
export function clearStaleHostPidFiles(root, targets, log, label) {
	if (!root) return;
	/** @type {{ path: string, pid: number, removed: boolean, what: string, error: string }[]} */
	let answers;
	try {
		answers = native.sync('clearStaleHostPidFiles', {
			root: resolve(root),
			targets: targets.map(({ name, argv, script, lock }) => ({
				name,
				argv: argv?.map(String),
				script,
				lock: lock && resolve(lock),
			})),
		});
	} catch (error) {
		const message = error instanceof Error ? error.message : String(error);
		log.error(`${label}: the pid files in ${join(root, 'pids')} could not be looked at: ${message}`);
		return;
	}
	for (const { path, pid, removed, what, error } of answers ?? []) {
		if (removed) {
			log.warn(`${label}: removed ${path}: it named pid ${pid}, which ${what}; the host would have handed that back`);
		} else {
			log.error(
				`${label}: ${path} could not be removed (${error}): it names pid ${pid}, which ${what}, and the host hands that back`
			);
		}
	}
}

/** @typedef {'present' | 'backoff' | 'relaunched' | 'failed'} ReaperLook What one look at the reaper came to. */

/**
 * @typedef {object} ReaperWatch
 * @property {() => void} stop Ends it. A relaunch under way is not called off, and what it comes to is not told.
 * @property {() => Promise<ReaperLook>} tick Looks now, and relaunches a reaper that does not run.
 */

/**
 * Has a reaper that died launched again: without one, a host that is killed leaves everything running. The reaper's end
 * is told by the system, so a new one runs within moments; relaunches that fail are repeated after `everyMs`, twice that,
 * and so on up to 15 minutes. Nothing of it keeps the host's event loop alive.
 *
 * @param {object} options
 * @param {string} options.pidDir
 * @param {Partial<ReaperState> | null} [options.reaper] What `guard()` said of it.
 * @param {() => unknown} options.relaunch
 * @param {Log} options.log
 * @param {string} options.label
 * @param {string} [options.reaperName] For a state without a name.
 * @param {number} [options.everyMs]
 * @param {(look: () => void, everyMs: number) => any} [options.setTimer] Has looks made every so often too, like
 *   `setInterval`.
 * @returns {ReaperWatch}
 */
export function keepReaperAlive({
	pidDir,
	reaper,
	relaunch,
	log,
	label,
	reaperName = REAPER_NAME,
	everyMs = REAPER_WATCH_MS,
	setTimer,
}) {
	const directory = resolve(pidDir);
	const name = reaper?.name ?? reaperName;
	let stopped = false;
	let wait = everyMs;
	let notBefore = 0;
	/** @type {Promise<ReaperLook> | null} */
	let looking = null;
	/** @type {import('./native.js').Session | null} */
	let session = null;
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	let timer;
	// A start that failed a moment ago would fail again; it is repeated like a relaunch that failed.
	let sparing = reaper?.started === false;

	/** The reaper, while one runs or something runs that cannot be told from it. */
	const running = () => {
		const now = currentReaper(/** @type {Partial<ReaperState>} */ ({ name, started: true }), directory);
		return now.started ? now : null;
	};

	/**
	 * @param {'info' | 'warn' | 'error'} level
	 * @param {string} line
	 */
	const say = (level, line) => {
		if (stopped) return;
		try {
			log[level](`${label}: ${line}`);
		} catch {
			// Nobody awaits a look that an event caused: it would be an unhandled rejection, and those end the host.
		}
	};

	/** @param {number} ms */
	const later = (ms) => {
		if (stopped) return;
		clearTimeout(timer);
		timer = setTimeout(() => {
			notBefore = 0;
			listen();
			void tick();
		}, ms);
		timer.unref();
	};

	/**
	 * @param {string} why
	 * @returns {ReaperLook}
	 */
	const failed = (why) => {
		const next = `next attempt in ${Math.round(wait / 1000)} s`;
		say('error', `the reaper has ended, and relaunching it left none running${why}; ${next}`);
		notBefore = performance.now() + wait;
		later(wait);
		wait = Math.min(wait * 2, LONGEST_BACKOFF_MS);
		return 'failed';
	};

	/** @returns {Promise<ReaperLook>} */
	const look = async () => {
		/** @type {ReaperLook} */
		let came = 'present';
		if (!running()) {
			if (performance.now() < notBefore) return 'backoff';
			/** @type {any} */
			let status;
			try {
				status = await relaunch();
			} catch (error) {
				return failed(`: ${error instanceof Error ? error.message : String(error)}`);
			}
			const now = running();
			if (!now) return failed(status?.reaper?.error ? `: ${status.reaper.error}` : '');
			came = 'relaunched';
			const line = `the reaper had ended and has been relaunched as pid ${now.pid}`;
			if (status?.reaper?.adopted === true) say('info', `${line} by another thread`);
			else say('warn', line);
		}
		clearTimeout(timer);
		wait = everyMs;
		notBefore = 0;
		listen();
		return came;
	};

	// One at a time: an end that is told while a relaunch is under way is that relaunch's business.
	const tick = () => {
		looking ??= look().finally(() => {
			looking = null;
		});
		return looking;
	};

	/** Has the end of the recorded process told, from now on. */
	const listen = () => {
		if (stopped || session) return;
		try {
			const mine = native.session('watchRecord', { pidDir: directory, name }, (message) => {
				if (stopped || session !== mine) return;
				if (message.t === 'gone') session = null;
				else if (message.running) {
					sparing = false;
					return;
				}
				if (sparing) later(wait);
				else void tick();
				sparing = false;
			});
			session = mine;
			// There is no directory to watch, yet or any more.
			mine.settled.catch(() => {
				if (session === mine) session = null;
				later(everyMs);
			});
		} catch {
			later(everyMs); // the native part does not load, which guard() has said
		}
	};

	listen();
	const interval = setTimer?.(() => void tick(), everyMs);
	interval?.unref?.();
	return {
		stop() {
			stopped = true;
			clearTimeout(timer);
			clearInterval(interval);
			session?.drop();
			session = null;
		},
		tick,
	};
}
