// @ts-check
/**
 * Reads what a caller gave `guard()`: everything is checked here, before a file or a process is touched, and copied, so
 * that an object the caller changes later changes nothing that already runs.
 *
 * @module
 */
import { resolve } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';

/** The longest name: a file system takes 255 bytes, and the life file adds `.pid.keeper.` and a token of its own. */
const NAME_BYTES = 200;
/** The longest time a timer can wait; Node turns a longer one into 1 ms without a word. */
const LONGEST_MS = 2 ** 31 - 1;
/** Exit codes are 8 bits on POSIX and 32 on Windows. */
const HIGHEST_EXIT_CODE = 2 ** 32 - 1;

/** What keeps a process restarted when neither the call nor the process says anything. */
export const RESTART_DEFAULTS = Object.freeze({ max: 5, baseMs: 1000, capMs: 16_000, resetAfterMs: 0 });

/** @typedef {import('./guard.js').Log} Log */
/** @typedef {import('./guard.js').GuardOptions} GuardOptions */
/** @typedef {import('./guard.js').GuardedProcess} GuardedProcess */
/** @typedef {import('./guard.js').ProcessState} ProcessState */
/** @typedef {import('./guard.js').Spawn} Spawn */

/** @typedef {'pipe' | 'ignore' | 'inherit' | 'fd' | 'overlapped'} StdioKind */

/**
 * What the Go side is told about the caller's spawn options.
 *
 * @typedef {object} SpawnFacts
 * @property {Record<string, string>} env The whole environment the process gets.
 * @property {string | null} hostPath The host's own PATH: a launcher named `node` is looked up there.
 * @property {string | null} hostCwd What a relative binary path is relative to. Null: the host's directory is gone.
 * @property {string | null} cwd Absolute.
 * @property {number} uid -1: as the host.
 * @property {number} gid -1: as the host.
 * @property {string | null} argv0 Null: the binary's path.
 * @property {boolean | string} shell As given; the command line of a shell is built by the Go side.
 * @property {boolean} detached
 * @property {StdioKind[]} stdio One per declared slot, three at least.
 */

/**
 * One process of a checked call.
 *
 * @typedef {object} ProcessPlan
 * @property {string} name
 * @property {string} title
 * @property {string} binaryPath
 * @property {string[]} args
 * @property {string | null} exitHint
 * @property {((state: ProcessState) => unknown) | null} verify
 * @property {AbortSignal[]} signals
 * @property {Record<string, unknown>} direct Options of a spawn of the process itself.
 * @property {Record<string, unknown>} launcher Options of a spawn of its launcher, `env` left to the Go side.
 * @property {SpawnFacts} spawn
 * @property {{ max: number, baseMs: number, capMs: number, resetAfterMs: number }} restart
 * @property {number} replaceGraceMs
 * @property {boolean} replaceKill
 * @property {number[]} deliberateExitCodes
 */

/**
 * The reaper of a checked call.
 *
 * @typedef {object} ReaperPlan
 * @property {string} name
 * @property {number} graceMs
 * @property {string | null} replacementPidFile
 * @property {string | null} logFile
 * @property {Record<string, unknown>} direct Options of a spawn, `env` left to the Go side where it sends one.
 * @property {SpawnFacts} spawn
 */

/**
 * A checked call.
 *
 * @typedef {object} Plan
 * @property {string} pidDir Absolute.
 * @property {Spawn} spawn
 * @property {number} version
 * @property {boolean} stopOrphans
 * @property {number | null} claimTimeoutMs Null: the platform's own.
 * @property {Log | null} log
 * @property {ProcessPlan[]} processes
 * @property {ReaperPlan | null} reaper
 */

/**
 * The error for an option that cannot be used. It names the option and what it must be, and quotes the value unless it
 * may be a secret.
 *
 * @param {string} option
 * @param {string} must
 * @param {unknown} value
 * @param {boolean} [secret] Arguments and environment carry passwords: only their type is told.
 * @returns {TypeError & { code: string, option: string }}
 */
function wrong(option, must, value, secret = false) {
	const got = secret ? kindOf(value) : shortly(value);
	return Object.assign(new TypeError(`guard(): ${option} must be ${must}; got ${got}`), {
		code: 'ERR_INVALID_ARG_VALUE',
		option,
	});
}

/**
 * @param {unknown} value
 * @returns {string}
 */
function shortly(value) {
	let text;
	try {
		text = inspect(value, { depth: 0, breakLength: Infinity, maxStringLength: 100, maxArrayLength: 3 });
	} catch {
		// A proxy or a getter that throws must not hide which option is wrong.
		text = kindOf(value);
	}
	return text.length > 160 ? `${text.slice(0, 160)}…` : text;
}

/**
 * @param {unknown} value
 * @returns {string}
 */
function kindOf(value) {
	if (value === null) return 'null';
	if (Array.isArray(value)) return 'an array';
	if (typeof value === 'string') return 'a string with a null byte';
	return typeof value === 'undefined' ? 'undefined' : `a value of type ${typeof value}`;
}

/**
 * @param {unknown} value
 * @returns {value is null | undefined}
 */
function absent(value) {
	return value === undefined || value === null;
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
function isObject(value) {
	return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Node hands a lone surrogate to the system as U+FFFD. Doing so at once keeps the recorded command line equal to the one
 * the system shows; an unequal one would make the process a stranger to its own guard.
 *
 * @param {string} text
 * @returns {string}
 */
function wellFormed(text) {
	return text.toWellFormed();
}

/**
 * @param {string} option
 * @param {unknown} value
 * @param {{ secret?: boolean, empty?: boolean }} [allow]
 * @returns {string}
 */
function readString(option, value, { secret = false, empty = true } = {}) {
	if (typeof value !== 'string' || value.includes('\0')) {
		throw wrong(option, 'a string without null bytes', value, secret);
	}
	if (!empty && value === '') throw wrong(option, 'a string that is not empty', value);
	return wellFormed(value);
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {string | null}
 */
function readOptionalString(option, value) {
	return absent(value) ? null : readString(option, value);
}

/**
 * @param {string} option
 * @param {unknown} value
 * @param {boolean} otherwise
 * @returns {boolean}
 */
function readBoolean(option, value, otherwise) {
	if (absent(value)) return otherwise;
	if (typeof value !== 'boolean') throw wrong(option, 'true or false', value);
	return value;
}

/**
 * @param {string} option
 * @param {unknown} value
 * @param {{ min?: number, max?: number, unit?: string }} [range]
 * @returns {number}
 */
function readInteger(option, value, { min = 0, max = LONGEST_MS, unit = 'milliseconds' } = {}) {
	if (!Number.isSafeInteger(value) || /** @type {number} */ (value) < min || /** @type {number} */ (value) > max) {
		throw wrong(option, `a whole number${unit && ` of ${unit}`} from ${min} to ${max}`, value);
	}
	// -0 would be written as 0 and compared as another value.
	return /** @type {number} */ (value) + 0;
}

/**
 * A name becomes a file name and, through the caller's spawn, often a second one in a directory of the host's.
 *
 * @param {string} option
 * @param {unknown} value
 * @param {NodeJS.Platform} platform
 * @returns {string}
 */
function readName(option, value, platform) {
	const must = `a plain file name (not empty, no path separator, not "." or "..", no control character, at most ${NAME_BYTES} bytes)`;
	if (
		typeof value !== 'string' ||
		value === '' ||
		value === '.' ||
		value === '..' ||
		/[/\\]|\p{Cc}/u.test(value) ||
		!value.isWellFormed() ||
		Buffer.byteLength(value) > NAME_BYTES
	) {
		throw wrong(option, must, value);
	}
	// `a:b` is a second stream of the file `a` there, and the rest are refused by the file system.
	if (platform === 'win32' && /[<>:"|?*]/.test(value)) {
		throw wrong(option, `${must}, and on Windows without < > : " | ? *`, value);
	}
	// Those lead to a device there, whatever follows the first dot.
	if (platform === 'win32' && /^(con|prn|aux|nul|(com|lpt)[0-9¹²³])\s*(\.|$)/i.test(value)) {
		throw wrong(option, `${must}, and on Windows not the name of a device`, value);
	}
	return value;
}

/**
 * The names one call may not use twice: its lock files would be the same file.
 *
 * @param {NodeJS.Platform} platform
 */
function uniqueNames(platform) {
	/** @type {Map<string, string>} */
	const seen = new Map();
	const foldsCase = platform === 'win32' || platform === 'darwin';
	return {
		/**
		 * @param {string} option
		 * @param {string} name
		 */
		add(option, name) {
			const key = foldsCase ? name.toLowerCase() : name;
			const first = seen.get(key);
			if (first !== undefined) throw wrong(option, `a name that this call uses once; ${first} has it already`, name);
			seen.set(key, option);
		},
	};
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {AbortSignal | null}
 */
function readSignal(option, value) {
	if (absent(value)) return null;
	// By shape, not by class: a signal made in another realm (a vm context, a polyfill) works as well.
	const signal = /** @type {Partial<AbortSignal>} */ (value);
	if (typeof signal.aborted !== 'boolean' || typeof signal.addEventListener !== 'function') {
		throw wrong(option, 'an AbortSignal', value);
	}
	return /** @type {AbortSignal} */ (signal);
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {Log | null}
 */
function readLog(option, value) {
	if (absent(value)) return null;
	const log = /** @type {Record<string, unknown>} */ (value);
	for (const level of ['info', 'warn', 'error']) {
		if (typeof log[level] !== 'function') {
			throw wrong(`${option}.${level}`, 'a function (log needs info, warn and error)', log[level]);
		}
	}
	return /** @type {Log} */ (value);
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {Partial<Record<keyof typeof RESTART_DEFAULTS, number>>}
 */
function readRestart(option, value) {
	if (absent(value)) return {};
	if (!isObject(value)) throw wrong(option, 'an object with max, baseMs, capMs or resetAfterMs', value);
	/** @type {Partial<Record<keyof typeof RESTART_DEFAULTS, number>>} */
	const restart = {};
	for (const [field, given] of Object.entries(value)) {
		if (!Object.hasOwn(RESTART_DEFAULTS, field)) {
			// A misspelt field would silently leave the default in force.
			throw wrong(`${option}.${field}`, 'one of the fields max, baseMs, capMs and resetAfterMs', given);
		}
		if (absent(given)) continue;
		const path = `${option}.${field}`;
		const range = field === 'max' ? { unit: 'restarts' } : { min: field === 'resetAfterMs' ? 0 : 1 };
		restart[/** @type {keyof typeof RESTART_DEFAULTS} */ (field)] = readInteger(path, given, range);
	}
	return restart;
}

/**
 * @param {Partial<Record<keyof typeof RESTART_DEFAULTS, number>>} restart
 */
function completeRestart(restart) {
	const merged = { ...RESTART_DEFAULTS, ...restart };
	// A base above the default cap is a caller who wants long waits, not shorter ones.
	if (restart.capMs === undefined) merged.capMs = Math.max(merged.capMs, merged.baseMs);
	return merged;
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {number[] | null}
 */
function readExitCodes(option, value) {
	if (absent(value)) return null;
	if (!Array.isArray(value)) throw wrong(option, 'an array of exit codes', value);
	return Array.from(value, (code, i) => readInteger(`${option}[${i}]`, code, { max: HIGHEST_EXIT_CODE, unit: '' }));
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {string[]}
 */
function readArgs(option, value) {
	if (absent(value)) return [];
	if (!Array.isArray(value)) throw wrong(option, 'an array of strings', value);
	return Array.from(value, (arg, i) => readString(`${option}[${i}]`, arg, { secret: true }));
}

/**
 * The environment as Node would hand it on: inherited properties count, undefined values do not, everything else is text.
 *
 * @param {string} option
 * @param {unknown} value
 * @returns {Record<string, string>}
 */
function readEnv(option, value) {
	const given = absent(value) ? process.env : value;
	if (typeof given !== 'object') throw wrong(option, 'an object of strings', value, true);
	/** @type {[string, string][]} */
	const pairs = [];
	for (const name in given) {
		const content = /** @type {Record<string, unknown>} */ (given)[name];
		if (content === undefined) continue;
		const text = String(content);
		if (name.includes('\0') || text.includes('\0')) {
			throw wrong(`${option}.${name.replaceAll('\0', '\\0')}`, 'a name and a value without null bytes', text, true);
		}
		pairs.push([wellFormed(name), wellFormed(text)]);
	}
	// fromEntries defines, so a variable called __proto__ is one like any other.
	return Object.fromEntries(pairs);
}

/**
 * What Node makes of one stdio slot, in the five words the Go side knows, and the value that says the same to a spawn.
 *
 * @param {string} option
 * @param {unknown} slot
 * @param {number} index
 * @returns {{ kind: StdioKind, value: unknown }}
 */
function readSlot(option, slot, index) {
	if (absent(slot)) return index < 3 ? { kind: 'pipe', value: 'pipe' } : { kind: 'ignore', value: 'ignore' };
	if (slot === 'pipe' || slot === 'ignore' || slot === 'inherit' || slot === 'overlapped') {
		return { kind: slot, value: slot };
	}
	if (slot === 'ipc') {
		throw wrong(
			option,
			'"pipe", "ignore", "inherit", "overlapped", a descriptor or a stream (an IPC channel ends at the keeper, it cannot reach the process)',
			slot
		);
	}
	// Node reads a negative number as a pipe.
	if (typeof slot === 'number') {
		if (!Number.isInteger(slot)) throw wrong(option, 'a descriptor', slot);
		return slot < 0 ? { kind: 'pipe', value: 'pipe' } : { kind: 'fd', value: slot };
	}
	if (typeof slot === 'object') {
		const stream = /** @type {{ fd?: unknown, handle?: unknown, _handle?: unknown }} */ (slot);
		if (typeof stream.fd === 'number' || stream.handle || stream._handle) return { kind: 'fd', value: slot };
	}
	throw wrong(option, '"pipe", "ignore", "inherit", "overlapped", a descriptor or a stream that has one by now', slot);
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {{ kinds: StdioKind[], values: unknown[] }}
 */
function readStdio(option, value) {
	/** @type {unknown[]} */
	let slots;
	if (absent(value)) slots = [];
	else if (Array.isArray(value)) slots = Array.from(value);
	else if (value === 'pipe' || value === 'ignore' || value === 'inherit' || value === 'overlapped') {
		slots = [value, value, value];
	} else throw wrong(option, '"pipe", "ignore", "inherit", "overlapped" or an array of slots', value);
	while (slots.length < 3) slots.push(undefined);
	const read = slots.map((slot, i) => readSlot(`${option}[${i}]`, slot, i));
	return { kinds: read.map(({ kind }) => kind), values: read.map(({ value: slot }) => slot) };
}

/**
 * @param {string} option
 * @param {unknown} value
 * @returns {string | null}
 */
function readCwd(option, value) {
	if (absent(value)) return null;
	/** @type {string} */
	let path;
	if (value instanceof URL) {
		try {
			path = fileURLToPath(value);
		} catch {
			throw wrong(option, 'a path or a file: URL', value.href);
		}
	} else path = readString(option, value);
	// Made absolute now: a host changes its directory, and a restart comes long after.
	return path === '' ? null : resolve(path);
}

/** @returns {string | null} */
function currentDirectory() {
	try {
		return process.cwd();
	} catch {
		return null;
	}
}

/** What a process under a keeper cannot have, and why: each would act on the launcher, which ends at once. */
const REFUSED = /** @type {const} */ ({
	signal: 'left out: it would end the launcher, not the process (guard() has a signal of its own, for the start)',
	timeout: 'left out: it would end the launcher, not the process',
	serialization: 'left out: there is no IPC channel to a process under a keeper',
});

/**
 * @param {string} option
 * @param {unknown} value
 * @param {string} name
 * @param {Record<string, unknown>} defaults
 * @returns {{ direct: Record<string, unknown>, launcher: Record<string, unknown>, facts: SpawnFacts }}
 */
function readSpawnOptions(option, value, name, defaults) {
	if (!absent(value) && !isObject(value)) throw wrong(option, 'an object of spawn options', value);
	/** @type {Record<string, unknown>} */
	const given = { ...defaults, ...value };
	for (const [field, must] of Object.entries(REFUSED)) {
		const unset = absent(given[field]) || (field === 'timeout' && given[field] === 0);
		if (!unset) throw wrong(`${option}.${field}`, must, given[field]);
	}
	const { kinds, values } = readStdio(`${option}.stdio`, given.stdio);
	const shell = given.shell;
	if (!absent(shell) && typeof shell !== 'boolean') readString(`${option}.shell`, shell);
	const id = { min: 0, max: LONGEST_MS, unit: '' };
	const facts = {
		env: readEnv(`${option}.env`, given.env),
		hostPath: process.env.PATH ?? null,
		hostCwd: currentDirectory(),
		cwd: readCwd(`${option}.cwd`, given.cwd),
		uid: absent(given.uid) ? -1 : readInteger(`${option}.uid`, given.uid, id),
		gid: absent(given.gid) ? -1 : readInteger(`${option}.gid`, given.gid, id),
		argv0: readOptionalString(`${option}.argv0`, given.argv0),
		shell: /** @type {boolean | string} */ (shell ?? false),
		detached: readBoolean(`${option}.detached`, given.detached, false),
		stdio: kinds,
	};
	/** @type {Record<string, unknown>} */
	const launcher = { stdio: values, name };
	if (readBoolean(`${option}.windowsHide`, given.windowsHide, false)) launcher.windowsHide = true;
	// The name comes last: a host that keeps one file per name must see ours, whatever the options say.
	const direct = { ...given, name };
	return { direct, launcher, facts };
}

/**
 * @param {string} option
 * @param {unknown} value
 * @param {NodeJS.Platform} platform
 * @param {ReturnType<typeof readShared>} shared
 * @returns {ProcessPlan}
 */
function readProcess(option, value, platform, shared) {
	if (!isObject(value)) throw wrong(option, 'an object with name and binaryPath', value);
	const name = readName(`${option}.name`, value.name, platform);
	const title = readOptionalString(`${option}.title`, value.title) ?? name;
	// An empty path is what a caller has whose binary is not installed on this machine: that is the machine's answer, and
	// lands on the state like a missing file.
	const binaryPath = readString(`${option}.binaryPath`, value.binaryPath);
	const verify = value.verify;
	if (!absent(verify) && typeof verify !== 'function') throw wrong(`${option}.verify`, 'a function', verify);
	const { direct, launcher, facts } = readSpawnOptions(`${option}.spawnOptions`, value.spawnOptions, name, {
		stdio: 'ignore',
	});
	const signal = readSignal(`${option}.signal`, value.signal);
	return {
		name,
		title,
		binaryPath,
		args: readArgs(`${option}.args`, value.args),
		exitHint: readOptionalString(`${option}.exitHint`, value.exitHint),
		verify: absent(verify) ? null : (state) => /** @type {Function} */ (verify).call(value, state),
		signals: [shared.signal, signal].filter((each) => each !== null),
		direct,
		launcher,
		spawn: facts,
		restart: completeRestart({
			...shared.restart,
			...readRestart(`${option}.restart`, value.restart),
		}),
		replaceGraceMs: absent(value.replaceGraceMs)
			? shared.replaceGraceMs
			: readInteger(`${option}.replaceGraceMs`, value.replaceGraceMs),
		replaceKill: readBoolean(`${option}.replaceKill`, value.replaceKill, shared.replaceKill),
		deliberateExitCodes:
			readExitCodes(`${option}.deliberateExitCodes`, value.deliberateExitCodes) ?? shared.deliberateExitCodes,
	};
}

/**
 * What the call says for all its processes.
 *
 * @param {Record<string, unknown>} options
 */
function readShared(options) {
	return {
		restart: readRestart('restart', options.restart),
		signal: readSignal('signal', options.signal),
		replaceGraceMs: absent(options.replaceGraceMs) ? 0 : readInteger('replaceGraceMs', options.replaceGraceMs),
		replaceKill: readBoolean('replaceKill', options.replaceKill, false),
		deliberateExitCodes: readExitCodes('deliberateExitCodes', options.deliberateExitCodes) ?? [0],
	};
}

/**
 * @param {unknown} value
 * @param {NodeJS.Platform} platform
 * @returns {ReaperPlan | null}
 */
function readReaper(value, platform) {
	if (absent(value)) return null;
	if (!isObject(value)) throw wrong('reaper', 'an object', value);
	const name = absent(value.name) ? 'process-guard-reaper' : readName('reaper.name', value.name, platform);
	// A reaper runs in a directory of nobody's choosing: its files are named in full.
	/** @param {'replacementPidFile' | 'logFile'} field */
	const path = (field) =>
		absent(value[field]) ? null : resolve(readString(`reaper.${field}`, value[field], { empty: false }));
	const { direct, facts } = readSpawnOptions('reaper.spawnOptions', value.spawnOptions, name, {
		detached: true,
		stdio: 'ignore',
	});
	return {
		name,
		graceMs: absent(value.graceMs) ? 8000 : readInteger('reaper.graceMs', value.graceMs),
		replacementPidFile: path('replacementPidFile'),
		logFile: path('logFile'),
		direct,
		spawn: facts,
	};
}

/**
 * Checks and copies the options of one call.
 *
 * @param {unknown} options
 * @param {NodeJS.Platform} [platform]
 * @returns {Plan}
 * @throws {TypeError} Names the option, what it must be, and what it is.
 */
export function readOptions(options, platform = process.platform) {
	if (!isObject(options)) throw wrong('its argument', 'an object of options', options);
	const pidDir = resolve(readString('pidDir', options.pidDir, { empty: false }));
	if (typeof options.spawn !== 'function') {
		throw wrong('spawn', 'a function that starts a process, such as spawn of node:child_process', options.spawn);
	}
	if (!Array.isArray(options.processes)) throw wrong('processes', 'an array', options.processes);
	const shared = readShared(options);
	const names = uniqueNames(platform);
	const processes = Array.from(options.processes, (value, i) => {
		const plan = readProcess(`processes[${i}]`, value, platform, shared);
		names.add(`processes[${i}].name`, plan.name);
		return plan;
	});
	const reaper = readReaper(options.reaper, platform);
	if (reaper) names.add('reaper.name', reaper.name);
	return {
		pidDir,
		spawn: /** @type {Spawn} */ (options.spawn),
		version: absent(options.version)
			? 0
			: readInteger('version', options.version, { max: Number.MAX_SAFE_INTEGER, unit: '' }),
		stopOrphans: readBoolean('stopOrphans', options.stopOrphans, false),
		claimTimeoutMs: absent(options.claimTimeoutMs)
			? null
			: readInteger('claimTimeoutMs', options.claimTimeoutMs, { min: 1 }),
		log: readLog('log', options.log),
		processes,
		reaper,
	};
}

/**
 * Checks the arguments of `stopProcess`.
 *
 * @param {unknown} name
 * @param {unknown} options
 * @param {string[]} names The call's own processes.
 * @returns {{ timeoutMs: number, force: boolean }}
 * @throws {TypeError}
 */
export function readStopOptions(name, options, names) {
	if (typeof name !== 'string' || !names.includes(name)) {
		throw wrong('stopProcess: name', `one of this call's processes (${names.join(', ') || 'there is none'})`, name);
	}
	if (!absent(options) && !isObject(options)) throw wrong('stopProcess: options', 'an object', options);
	const { timeoutMs, force } = options ?? {};
	return {
		timeoutMs: absent(timeoutMs) ? 10_000 : readInteger('stopProcess: timeoutMs', timeoutMs),
		force: readBoolean('stopProcess: force', force, false),
	};
}
