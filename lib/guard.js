// @ts-check
/**
 * `guard()`: one process per name and node, whoever asks for it first.
 *
 * The Go side decides: locks, identity, restarts, and every word of the report. This file does what only JavaScript can:
 * it calls the caller's own `spawn` when asked to, keeps the caller's state objects, and calls loggers and verifiers,
 * none of which may take the guard down with them.
 *
 * @module
 */
import { createHash } from 'node:crypto';
import process from 'node:process';
import { inspect } from 'node:util';
import { threadId } from 'node:worker_threads';
import * as native from './native.js';
import { readOptions, readStopOptions } from './options.js';

/**
 * Where the guard says what it does. `console` is one.
 *
 * @typedef {object} Log
 * @property {(message: string) => void} info
 * @property {(message: string) => void} warn
 * @property {(message: string) => void} error
 */

/**
 * What a spawn has to hand back. Node's own ChildProcess is one; so is a host's wrapper that has nothing but a pid.
 *
 * @typedef {object} SpawnedChild
 * @property {number | undefined} [pid]
 * @property {string} [spawnfile] Only a process that the host really spawned has it.
 * @property {(event: string, listener: (...args: any[]) => void) => unknown} [on]
 * @property {(event: string, listener: (...args: any[]) => void) => unknown} [once]
 * @property {() => unknown} [unref]
 */

/**
 * Starts a process. `spawn` of `node:child_process` is one; a host may constrain it. `any`, because each host and each
 * version of Node types its own differently, and all of them fit.
 *
 * @typedef {(command: string, args: string[], options: any) => SpawnedChild} Spawn
 */

/**
 * How a crash is answered.
 *
 * @typedef {object} RestartOptions
 * @property {number} [max] Restarts before giving up; 0: none. Default 5.
 * @property {number} [baseMs] Wait before the first restart; each further one doubles it. Default 1000.
 * @property {number} [capMs] The longest wait. Default 16000.
 * @property {number} [resetAfterMs] A process that ran this long starts counting from zero again. Default 0: never.
 */

/**
 * What a verifier answers.
 *
 * @typedef {object} Verdict
 * @property {boolean} ok
 * @property {string} [detail]
 */

/**
 * What one process may say for itself and the call may say for all.
 *
 * @typedef {object} SharedOptions
 * @property {RestartOptions} [restart] Merged field by field: default, call, process.
 * @property {number} [replaceGraceMs] With `stopOrphans`: how long a replacement waits for the old one to end. Default 0.
 * @property {boolean} [replaceKill] Whether what outlives that grace is killed. Default false.
 * @property {number[]} [deliberateExitCodes] Exit codes that are an intended end. Default `[0]`.
 * @property {AbortSignal} [signal] Ends the start. Once the launcher of a process ran it changes nothing for that process.
 */

/**
 * A process to guard.
 *
 * @typedef {object} ProcessFields
 * @property {string} name A plain file name, one per `pidDir` and purpose.
 * @property {string} binaryPath
 * @property {string[]} [args]
 * @property {string} [title] What people call it. Default: the name.
 * @property {string} [exitHint] Said after a non-zero exit code.
 * @property {object} [spawnOptions] As for `spawn` of `node:child_process`, less `signal`, `timeout`, `serialization` and
 *   IPC. Default `{ stdio: 'ignore' }`.
 * @property {(state: ProcessState) => Verdict | Promise<Verdict>} [verify] Called once everything is up.
 */

/** @typedef {ProcessFields & SharedOptions} GuardedProcess */

/**
 * The process that cleans up once the host is gone.
 *
 * @typedef {object} ReaperOptions
 * @property {string} [name] Default `process-guard-reaper`.
 * @property {number} [graceMs] How long a replacement host may take to appear. Default 8000.
 * @property {string} [replacementPidFile] Where the replacement host's pid appears.
 * @property {string} [logFile]
 * @property {object} [spawnOptions] For the reaper's launcher.
 */

/**
 * @typedef {object} GuardFields
 * @property {string} pidDir A directory of the guard's own.
 * @property {readonly GuardedProcess[]} processes
 * @property {Spawn} spawn
 * @property {number} [version] Stands for everything that must force a replacement; see `fingerprint`. Default 0.
 * @property {boolean} [stopOrphans] Whether a process of another version is sent SIGTERM. Default false.
 * @property {number} [claimTimeoutMs] How old an unfinished claim gets. Default 47000, on Windows 146000.
 * @property {Log} [log] Default: silent.
 * @property {ReaperOptions} [reaper] Without it no reaper runs.
 */

/** @typedef {GuardFields & SharedOptions} GuardOptions */

/**
 * What is known of one process. One object for the life of the node, changed in place.
 *
 * @typedef {object} ProcessState
 * @property {string} name
 * @property {string} title
 * @property {number} [pid]
 * @property {number} [keeper] Pid of the keeper that restarts it. Absent where none lives: then only watching threads do.
 * @property {boolean} started It ran under this guard; stays true after its end.
 * @property {boolean} adopted It was running already, or another thread started it.
 * @property {boolean} exited It ended and, so far, nothing runs in its place.
 * @property {number} restarts
 * @property {string} [error]
 * @property {number | null} [code] Set before `exited` turns true.
 * @property {string | null} [signal] Set before `exited` turns true.
 * @property {'keeper' | 'kernel' | 'none'} [exitProof] Who vouches for `code` and `signal`.
 * @property {boolean | null} [verified]
 * @property {string} [verifyDetail]
 * @property {number | null} [verifiedPid]
 * @property {number} [verifiedAt]
 */

/**
 * What is known of the reaper.
 *
 * @typedef {object} ReaperState
 * @property {string} name
 * @property {boolean} started
 * @property {boolean} adopted
 * @property {number} [pid]
 * @property {string} [command] What the launcher was started with; absent for a reaper that was running already.
 * @property {string} [error]
 */

/**
 * How a process was stopped.
 *
 * @typedef {object} StopResult
 * @property {boolean} stopped
 * @property {number | null} pid
 * @property {number | null} code
 * @property {string | null} signal
 * @property {string} detail
 */

/**
 * @typedef {object} GuardStatus
 * @property {string[]} report One line per decision or refusal of this call.
 * @property {number} version
 * @property {ProcessState[]} processes In the order of the options.
 * @property {ReaperState} [reaper] Absent when none was asked for.
 * @property {() => void} stop Ends this thread's watch. Signals nothing, releases nothing.
 * @property {(name: string, options?: { timeoutMs?: number, force?: boolean }) => Promise<StopResult>} stopProcess Stops
 *   one process on purpose; nothing restarts it until the next `guard()`.
 */

/** @typedef {import('./options.js').Plan} Plan */
/** @typedef {import('./options.js').ProcessPlan} ProcessPlan */
/** @typedef {import('./options.js').ReaperPlan} ReaperPlan */

/**
 * A conversation with the Go side about one process or one reaper.
 *
 * @typedef {object} Session
 * @property {Promise<unknown>} settled
 * @property {(message: object) => void} send
 * @property {() => void} drop
 */

/**
 * How the Go side is reached: `native.js`, or a stand-in for it in a test.
 *
 * @typedef {object} Native
 * @property {(fn: string, args: object) => Promise<any>} call
 * @property {(fn: string, args: object, onMessage: (message: any) => void) => Session} session
 * @property {(pidDir: string) => { keeper: string, reaper: string, launch: string, note?: string }} paths
 */

/** Stay on the state without a value; any other field that is cleared goes. */
const LASTING_KEYS = new Set(['pid', 'error', 'code', 'signal']);

/** The code of a spawn that was refused because nobody wants the process any more; the Go side gives the claim back. */
const TOO_LATE = 'PG_TOO_LATE';

/**
 * The number that stands for everything in `parts`: equal parts, equal number.
 *
 * @param {...unknown} parts
 * @returns {number} An integer from 0 to 2^31 - 1.
 */
export function fingerprint(...parts) {
	return createHash('sha256').update(parts.map(String).join('\0')).digest().readUInt32BE(0) >>> 1;
}

/**
 * @param {unknown} error
 * @returns {string}
 */
function messageOf(error) {
	try {
		return error instanceof Error ? error.message : String(error);
	} catch {
		return 'an error that cannot be shown';
	}
}

/**
 * @param {unknown} error
 * @returns {string | null}
 */
function codeOf(error) {
	const code = /** @type {{ code?: unknown } | null | undefined} */ (error)?.code;
	return typeof code === 'string' ? code : null;
}

/** The caller's logger, behind a door that lets no failure out: one that threw took the claim down with it. */
class SafeLog {
	/** @type {Log | null} */
	#log;
	/** @type {string[]} */
	#report;
	#failed = false;

	/**
	 * @param {Log | null} log
	 * @param {string[]} report Told once that the logger fails.
	 */
	constructor(log, report) {
		this.#log = log;
		this.#report = report;
	}

	/**
	 * A line of this file's own.
	 *
	 * @param {'info' | 'warn' | 'error'} level
	 * @param {string} line
	 */
	say(level, line) {
		this.write(level, `process guard: ${line}`);
	}

	/**
	 * A line as the Go side wrote it.
	 *
	 * @param {'info' | 'warn' | 'error'} level
	 * @param {string} line
	 */
	write(level, line) {
		if (!this.#log) return;
		try {
			// Looked up at each call: a host swaps its logger's methods while it runs.
			const answer = /** @type {unknown} */ (this.#log[level](line));
			// An async logger's rejection would otherwise end the host as an unhandled one.
			if (answer instanceof Promise) answer.catch((error) => this.#fail(level, error));
		} catch (error) {
			this.#fail(level, error);
		}
	}

	/**
	 * @param {string} level
	 * @param {unknown} error
	 */
	#fail(level, error) {
		if (this.#failed) return;
		this.#failed = true;
		this.#report.push(`log.${level} failed (${messageOf(error)}); the guard goes on, and what it logs may be lost`);
	}
}

/**
 * Writes one patch of the Go side on a state, key by key in the order given: a reader that sees `exited` must find `code`
 * and `signal` already there.
 *
 * @param {Record<string, any>} state
 * @param {[string, any][]} patch
 */
function applyPatch(state, patch) {
	// Of a death that is known, one of the two is null by nature and says so; of one that is not, neither is anything.
	const knownEnd = patch.some(([key, value]) => (key === 'code' || key === 'signal') && value !== null);
	for (const [key, value] of patch) {
		if (value !== null) state[key] = value;
		else if (!LASTING_KEYS.has(key)) delete state[key];
		else state[key] = knownEnd && (key === 'code' || key === 'signal') ? null : undefined;
	}
}

/**
 * @param {unknown} value
 * @returns {number | null}
 */
function pidOf(value) {
	return Number.isSafeInteger(value) && /** @type {number} */ (value) > 0 ? /** @type {number} */ (value) : null;
}

/** One process, or the reaper, of one call: what the Go side asks for is done here, and what it tells is written down. */
class Run {
	/** @type {Session | null} */
	#session = null;
	#settled = false;
	#stopped = false;
	#aborted = false;
	/** Whether a spawn of this run handed back a process. */
	#ran = false;
	/** @type {SpawnedChild[]} */
	#launchers = [];

	/**
	 * @param {{
	 *   state: Record<string, any>,
	 *   title: string,
	 *   spawn: Spawn,
	 *   direct: Record<string, unknown>,
	 *   launcher: Record<string, unknown>,
	 *   holdsHost: boolean,
	 *   log: SafeLog,
	 *   report: string[],
	 * }} parts `holdsHost`: whether what is spawned without a launcher keeps the host's event loop alive.
	 */
	constructor({ state, title, spawn, direct, launcher, holdsHost, log, report }) {
		this.state = state;
		this.title = title;
		this.spawn = spawn;
		this.direct = direct;
		this.launcher = launcher;
		this.holdsHost = holdsHost;
		this.log = log;
		this.report = report;
	}

	/**
	 * Runs to the point where the process runs or was turned down. Never rejects: what the machine answers is on the state.
	 *
	 * @param {Native} from
	 * @param {string} fn
	 * @param {object} args
	 */
	async start(from, fn, args) {
		try {
			this.#session = from.session(fn, args, (message) => this.#take(message));
			await this.#session.settled;
		} catch (error) {
			if (!this.#aborted) this.fail(`${this.title} could not be guarded: ${messageOf(error)}`);
		} finally {
			this.#settled = true;
			for (const child of this.#launchers.splice(0)) this.#unref(child);
		}
	}

	/**
	 * @param {string} line
	 */
	fail(line) {
		this.state.error = line;
		this.log.say('error', line);
		if (!this.#settled) this.report.push(line);
	}

	/** Ends the watch. What was asked for and is not spawned yet will not be. */
	stop() {
		if (this.#stopped) return;
		this.#stopped = true;
		this.#send({ t: 'stop' });
	}

	/**
	 * Calls a start off, unless something was spawned for it already.
	 *
	 * @returns {boolean} Whether it was called off.
	 */
	abort() {
		if (this.#ran || this.#settled) return false;
		this.#aborted = true;
		this.#send({ t: 'stop' });
		return true;
	}

	/**
	 * @param {object} message
	 */
	#send(message) {
		try {
			this.#session?.send(message);
		} catch (error) {
			// Only an environment that is being torn down refuses a message, and then nobody is left to tell.
			this.log.say('error', `${this.title}: ${messageOf(error)}`);
		}
	}

	/**
	 * @param {any} message
	 */
	#take(message) {
		try {
			this.#handle(message);
		} catch (error) {
			// Thrown here it would be an uncaught exception of the host.
			this.log.say('error', `${this.title}: ${messageOf(error)}`);
		}
	}

	/**
	 * @param {any} message
	 */
	#handle(message) {
		switch (message.t) {
			case 'spawn':
				this.#spawn(message);
				break;
			case 'state':
				if (!this.#stopped) applyPatch(this.state, message.patch);
				break;
			case 'log':
				if (!this.#stopped) this.log.write(message.level, message.line);
				break;
			case 'report':
				// The report is about this call's own start; what happens later is in the log.
				// What holds for the whole directory is said of each process in it.
				if (!this.#settled && !this.report.includes(message.line)) this.report.push(message.line);
				break;
		}
	}

	/**
	 * Calls the caller's spawn and answers for it, whatever it does.
	 *
	 * @param {{ n: number, command: string, args: string[], env: Record<string, string> | null, direct: boolean }} request
	 */
	#spawn({ n, command, args, env, direct }) {
		/** @param {unknown} error */
		const refuse = (error) => this.#send({ t: 'refused', n, message: messageOf(error), code: codeOf(error) });
		if (this.#stopped || this.#aborted) {
			return refuse(Object.assign(new Error('not wanted any more'), { code: TOO_LATE }));
		}
		const options = { ...(direct ? this.direct : this.launcher) };
		if (env) options.env = env;
		try {
			// Not a method call: the caller's function gets no `this` of ours.
			const { spawn } = this;
			const child = spawn(command, args, options);
			this.#watch(child, n, direct, refuse);
		} catch (error) {
			refuse(error);
		}
	}

	/**
	 * @param {unknown} value What spawn returned.
	 * @param {number} n
	 * @param {boolean} direct
	 * @param {(error: unknown) => void} refuse
	 */
	#watch(value, n, direct, refuse) {
		if (value === null || (typeof value !== 'object' && typeof value !== 'function')) {
			throw new Error(`spawn returned ${inspect(value, { maxStringLength: 60 })} instead of a child process`);
		}
		if (value instanceof Promise) {
			value.catch(() => {});
			throw new Error('spawn returned a promise instead of a child process');
		}
		const child = /** @type {SpawnedChild} */ (value);
		const pid = pidOf(child.pid);
		const listen = child.on ?? child.once;
		const events = typeof listen === 'function';
		if (events) {
			// First of all: an 'error' nobody listens to ends the host. One that comes with a pid is about a signal or a
			// message that could not be sent, and the process runs on.
			listen.call(child, 'error', (/** @type {unknown} */ error) => {
				if (pid === null) refuse(error);
			});
			listen.call(child, 'exit', (/** @type {unknown} */ code, /** @type {unknown} */ signal) => {
				this.#send({
					t: 'exit',
					n,
					code: Number.isSafeInteger(code) ? code : null,
					signal: typeof signal === 'string' ? signal : null,
				});
			});
		}
		if (pid !== null) this.#ran = true;
		this.#send({ t: 'spawned', n, pid, own: typeof child.spawnfile === 'string', events });
		// A process of the thread's own keeps its host, as it would without a guard; a launcher is gone in a moment. Until
		// the start is settled it is left alone: a wrapper that is unref'd tells of no exit.
		if (direct && this.holdsHost) return;
		if (this.#settled) this.#unref(child);
		else this.#launchers.push(child);
	}

	/**
	 * @param {SpawnedChild} child
	 */
	#unref(child) {
		try {
			child.unref?.();
		} catch (error) {
			this.log.say('warn', `${this.title}: its launcher could not be unreferenced (${messageOf(error)})`);
		}
	}
}

/**
 * @param {AbortSignal[]} signals
 */
function throwIfAborted(signals) {
	for (const signal of signals) if (signal.aborted) throw signal.reason;
}

/**
 * @param {Plan} plan
 * @param {ProcessPlan} planned
 * @param {object} paths
 */
function processArgs(plan, planned, paths) {
	const { name, title, binaryPath, args, exitHint, spawn, restart } = planned;
	const { replaceGraceMs, replaceKill, deliberateExitCodes } = planned;
	const { pidDir, version, stopOrphans, claimTimeoutMs } = plan;
	return {
		pidDir,
		name,
		title,
		binaryPath,
		args,
		version,
		stopOrphans,
		claimTimeoutMs,
		exitHint,
		thread: threadId,
		execPath: process.execPath,
		spawn,
		restart,
		replaceGraceMs,
		replaceKill,
		deliberateExitCodes,
		paths,
	};
}

/**
 * @param {Plan} plan
 * @param {ReaperPlan} reaper
 * @param {object} paths
 */
function reaperArgs(plan, reaper, paths) {
	const { name, graceMs, replacementPidFile, logFile, spawn } = reaper;
	const { pidDir, version, claimTimeoutMs } = plan;
	return {
		pidDir,
		name,
		version,
		claimTimeoutMs,
		graceMs,
		replacementPidFile,
		logFile,
		thread: threadId,
		execPath: process.execPath,
		spawn,
		paths,
	};
}

/**
 * @param {ProcessPlan} planned
 * @param {ProcessState} state
 * @param {SafeLog} log
 */
async function verifyProcess({ title, verify }, state, log) {
	if (!verify) return;
	try {
		const verdict = /** @type {Partial<Verdict> | null | undefined} */ (await verify(state));
		if (typeof verdict !== 'object' || verdict === null) {
			throw new Error(`verify answered ${inspect(verdict, { maxStringLength: 60 })} instead of { ok, detail }`);
		}
		state.verified = Boolean(verdict.ok);
		state.verifyDetail = verdict.detail;
	} catch (error) {
		state.verified = false;
		state.verifyDetail = messageOf(error);
	}
	const because = state.verifyDetail ? `: ${state.verifyDetail}` : '';
	if (state.verified) log.say('info', `${title} is verified${because}`);
	else log.say('error', `${title} failed verification${because}`);
}

/**
 * Makes a `guard` that reaches the Go side through `from`.
 *
 * @internal
 * @param {Native} from
 * @returns {(options: GuardOptions) => Promise<GuardStatus>}
 */
export function guardThrough(from) {
	return async function guard(options) {
		const plan = readOptions(options);
		const signals = plan.processes.flatMap((planned) => planned.signals);
		throwIfAborted(signals);

		/** @type {string[]} */
		const report = [];
		const log = new SafeLog(plan.log, report);
		/** @type {Run[]} */
		const runs = [];
		const stop = () => {
			for (const run of runs) run.stop();
		};

		/**
		 * Starts one run and waits until it is settled. The paths are asked for inside, because a package that cannot
		 * load is a fact about the machine too, to be told on every state.
		 *
		 * @param {Run} run
		 * @param {string} fn
		 * @param {(paths: object) => object} argsFor
		 */
		const settle = async (run, fn, argsFor) => {
			runs.push(run);
			/** @type {object} */
			let args;
			try {
				const { note, ...paths } = from.paths(plan.pidDir);
				if (note !== undefined && !report.includes(note)) {
					report.push(note);
					log.say('warn', note);
				}
				args = argsFor(paths);
			} catch (error) {
				run.fail(`${run.title} could not be guarded: ${messageOf(error)}`);
				return;
			}
			await run.start(from, fn, args);
		};

		/** @type {ProcessState[]} */
		const processes = [];
		for (const planned of plan.processes) {
			const { name, title, direct, launcher } = planned;
			/** @type {ProcessState} */
			const state = { name, title, started: false, adopted: false, exited: false, restarts: 0 };
			processes.push(state);
			const run = new Run({ state, title, spawn: plan.spawn, direct, launcher, holdsHost: true, log, report });
			let calledOff = false;
			const abort = () => {
				calledOff = run.abort() || calledOff;
			};
			for (const signal of planned.signals) signal.addEventListener('abort', abort);
			try {
				// A signal that fired while an earlier process started: its listeners were not there yet.
				throwIfAborted(planned.signals);
				await settle(run, 'process', (paths) => processArgs(plan, planned, paths));
				if (calledOff) throwIfAborted(planned.signals);
			} catch (error) {
				// The caller gets no status to stop with, so nothing of this call goes on watching.
				stop();
				throw error;
			} finally {
				for (const signal of planned.signals) signal.removeEventListener('abort', abort);
			}
		}

		/** @type {GuardStatus} */
		const status = {
			report,
			version: plan.version,
			processes,
			stop,
			async stopProcess(name, stopOptions) {
				const { timeoutMs, force } = readStopOptions(
					name,
					stopOptions,
					processes.map((state) => state.name)
				);
				const state = processes.find((each) => each.name === name);
				try {
					return await from.call('stopProcess', { pidDir: plan.pidDir, name, timeoutMs, force, version: plan.version });
				} catch (error) {
					return { stopped: false, pid: state?.pid ?? null, code: null, signal: null, detail: messageOf(error) };
				}
			},
		};

		// Before any verifier: a probe may take half a minute, and a host that dies meanwhile leaves what it started.
		const { reaper } = plan;
		if (reaper) {
			const { name, direct } = reaper;
			/** @type {ReaperState} */
			const state = { name, started: false, adopted: false };
			status.reaper = state;
			const run = new Run({
				state,
				title: `reaper ${name}`,
				spawn: plan.spawn,
				direct,
				launcher: direct,
				holdsHost: false,
				log,
				report,
			});
			await settle(run, 'reaper', (paths) => reaperArgs(plan, reaper, paths));
		}

		for (const [i, planned] of plan.processes.entries()) await verifyProcess(planned, processes[i], log);
		return status;
	};
}

/**
 * Starts the declared processes, or joins those that run already, and watches them.
 *
 * @type {(options: GuardOptions) => Promise<GuardStatus>}
 * @throws {TypeError} For an option that cannot be used; nothing was touched.
 */
export const guard = guardThrough(native);
