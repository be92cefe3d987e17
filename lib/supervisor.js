// @ts-check
/**
 * Who supervises: the host, where it can, else the guard of this package. A component asks once and is told the same
 * things by both.
 *
 * @module
 */
import { join, resolve } from 'node:path';
import process from 'node:process';
import { describeSpawnFailure } from './exit.js';
import { fingerprint, guard } from './guard.js';
import { clearStaleHostPidFiles, keepReaperAlive } from './node.js';
import { readOptions } from './options.js';

const REAPER_NAME = 'process-guard-reaper';
/** How the reaper's program is told among what runs, whichever copy of it. */
const REAPER_SCRIPT = '/reaper.js';
/** What a descriptor may carry on to the guard as it is. */
const CARRIED = /** @type {const} */ (['restart', 'replaceGraceMs', 'replaceKill', 'deliberateExitCodes', 'signal']);

/** @typedef {import('./guard.js').GuardedProcess} GuardedProcess */
/** @typedef {import('./guard.js').GuardStatus} GuardStatus */
/** @typedef {import('./guard.js').Log} Log */
/** @typedef {import('./guard.js').ProcessState} ProcessState */
/** @typedef {import('./guard.js').ReaperState} ReaperState */
/** @typedef {import('./guard.js').SharedOptions} SharedOptions */
/** @typedef {import('./guard.js').Spawn} Spawn */
/** @typedef {import('./guard.js').Verdict} Verdict */
/** @typedef {import('./node.js').ReaperWatch} ReaperWatch */
/** @typedef {import('./verdict.js').RetakeReason} RetakeReason */

/**
 * A process as a component describes it, whoever supervises it. Keys of the component's own are left alone.
 *
 * @typedef {object} DescriptorFields
 * @property {string} name
 * @property {string} [title]
 * @property {string} command
 * @property {string[]} [args]
 * @property {Record<string, string | undefined>} [env] Added to the host's environment.
 * @property {string} [exitHint]
 * @property {string} [kind] The component's own word for it; it is on the state too.
 * @property {(state: any, context?: any) => Verdict | Promise<Verdict>} [verify]
 */

/** @typedef {DescriptorFields & SharedOptions & Record<string, any>} Descriptor */

/** @typedef {ProcessState & { kind?: string }} SupervisedState */

/**
 * Where a component's processes live.
 *
 * @typedef {object} SupervisorContext
 * @property {string | null} root The host's root, where it keeps pid files of its own; null: none is known.
 * @property {string} pidDir
 * @property {string} [reaperLog]
 * @property {string} [replacementPidFile] Where the pid of a host that takes over appears.
 * @property {any} [configFiles]
 * @property {readonly unknown[]} [fingerprintParts] All of it being equal, a running process is joined.
 */

/**
 * What a start came to.
 *
 * @typedef {object} Supervised
 * @property {SupervisedState[]} processes In the order of the descriptors; changed in place for as long as the thread lives.
 * @property {any} [reaper]
 * @property {string[]} report
 * @property {ReaperWatch} [watchdog] Keeps the reaper running; only the guard has one.
 * @property {() => void} [stop] Ends this thread's watch of the processes and of the reaper, and signals nothing; only the
 *   guard has it.
 * @property {GuardStatus['stopProcess']} [stopProcess] Only the guard has it.
 */

/**
 * @typedef {object} Supervisor
 * @property {string} kind
 * @property {(descriptors: readonly Descriptor[], context: SupervisorContext) => Promise<Supervised>} start
 */

/**
 * Whether the host supervises processes by itself.
 *
 * @param {any} scope
 * @returns {boolean}
 */
export function supervisesNatively(scope) {
	return typeof scope?.processes?.start === 'function';
}

/**
 * The state of a process that was never started.
 *
 * @param {{ name: string, title?: string, kind?: string } & Record<string, any>} descriptor
 * @param {string} [error]
 * @returns {SupervisedState}
 */
export function unstarted({ name, title, kind }, error) {
	return {
		name,
		title: /** @type {string} */ (title),
		kind,
		started: false,
		adopted: false,
		exited: false,
		restarts: 0,
		error,
	};
}

/**
 * Descriptors as `guard()` takes them.
 *
 * @param {readonly Descriptor[]} descriptors
 * @param {Record<string, string | undefined>} [inherited] What `env` of a descriptor is added to.
 * @returns {GuardedProcess[]}
 */
export function guardDescriptors(descriptors, inherited = process.env) {
	return descriptors.map((descriptor) => {
		const { name, title, command, args, exitHint, verify, env } = descriptor;
		/** @type {Record<string, any>} */
		const guarded = { name, title, binaryPath: command, args, exitHint, verify };
		for (const key of CARRIED) if (descriptor[key] !== undefined) guarded[key] = descriptor[key];
		if (env) guarded.spawnOptions = { env: { ...inherited, ...env } };
		return /** @type {GuardedProcess} */ (guarded);
	});
}

/**
 * Puts back on a state what the component calls the process, whatever the supervisor made of it.
 *
 * @param {any} state
 * @param {Descriptor} descriptor
 * @returns {SupervisedState} The same object: it is changed in place from now on.
 */
function tagged(state, { name, title, kind }) {
	return Object.assign(state, { name, title, kind });
}

/**
 * @param {unknown} error
 * @returns {string}
 */
function messageOf(error) {
	return error instanceof Error ? error.message : String(error);
}

/**
 * @param {any} scope
 * @param {{ log: Log, label: string, nativeKind: string }} options
 * @returns {Supervisor}
 */
function nativeSupervisor(scope, { log, label, nativeKind }) {
	/**
	 * @param {Descriptor} descriptor
	 * @param {SupervisorContext} context
	 * @returns {Promise<SupervisedState>}
	 */
	async function startOne(descriptor, { configFiles, fingerprintParts }) {
		const { name, title, command, args, exitHint, verify } = descriptor;
		try {
			const asked = { name, title, command, args, configFiles, fingerprint: fingerprintParts, exitHint, verify };
			const state = await scope.processes.start(asked);
			if (typeof state !== 'object' || state === null) throw new Error('the host answered with no state');
			if (state.verified !== true) {
				log.error(`${label}: ${title ?? name} is not verified: ${state.verifyDetail ?? state.error ?? 'no detail'}`);
			}
			return tagged(state, descriptor);
		} catch (error) {
			const why = describeSpawnFailure(error, command);
			log.error(`${label}: ${title ?? name} was not started: ${why}`);
			return unstarted(descriptor, why);
		}
	}

	return {
		kind: nativeKind,
		async start(descriptors, context) {
			if (!supervisesNatively(scope)) {
				throw new Error(
					`${label}: scope.processes.start, which was there when this component was loaded, is gone. Nothing was started: the bundled process guard could start them, but it and the host use different PID locks, so each would start what the other one runs already`
				);
			}
			const note = `the host supervises processes itself (scope.processes), so the bundled process guard is present but unused`;
			log.warn(`${label}: ${note}`);
			const processes = await Promise.all(descriptors.map((descriptor) => startOne(descriptor, context)));
			return { processes, reaper: scope.processes.reaper, report: [note] };
		},
	};
}

/**
 * @param {{
 *   log: Log,
 *   spawn: Spawn,
 *   label: string,
 *   reaperName: string,
 *   reaperGraceMs?: number,
 *   beforeStart?: (context: any) => unknown,
 * }} options
 * @returns {Supervisor}
 */
function bundledSupervisor({ log, spawn, label, reaperName, reaperGraceMs, beforeStart }) {
	/**
	 * @param {readonly Descriptor[]} descriptors
	 * @param {SupervisorContext} context
	 * @returns {Promise<Supervised>}
	 */
	async function startAll(descriptors, context) {
		const { root, pidDir, reaperLog, replacementPidFile, fingerprintParts } = context;
		/** @param {string} name */
		const lock = (name) => join(resolve(pidDir), `${name}.pid`);
		const reaperTarget = { name: reaperName, script: REAPER_SCRIPT, lock: lock(reaperName) };
		if (descriptors.some(({ name }) => name === reaperName)) {
			throw new TypeError(`${reaperName} is the name of the reaper, and no process can have it too`);
		}
		const call = {
			pidDir,
			processes: guardDescriptors(descriptors),
			spawn,
			log,
			version: fingerprint(...(fingerprintParts ?? [])),
			stopOrphans: true,
		};
		// What guard() would refuse is refused before the reaper runs, which is started first.
		readOptions(call);
		await beforeStart?.(context);
		const targets = descriptors.map(({ name, command, args = [] }) => ({
			name,
			argv: [command, ...args],
			lock: lock(name),
		}));
		clearStaleHostPidFiles(root, [...targets, reaperTarget], log, label);

		// A call of its own, and always of the same version: what the reaper does depends on no configuration, and with the
		// processes' version each change of it would leave one more reaper behind. It comes first, so that a host that is
		// killed while a verifier waits for an answer leaves nothing running.
		const reaper = {
			name: reaperName,
			graceMs: reaperGraceMs,
			logFile: reaperLog,
			...(replacementPidFile ? { replacementPidFile } : {}),
		};
		const launch = () => guard({ pidDir, processes: [], spawn, log, reaper });
		const watched = await launch();
		const status = await guard(call);
		const watchdog = keepReaperAlive({
			pidDir,
			reaper: watched.reaper,
			log,
			label,
			reaperName,
			relaunch() {
				clearStaleHostPidFiles(root, [reaperTarget], log, label);
				return launch();
			},
		});
		return {
			processes: status.processes.map((state, i) => tagged(state, descriptors[i])),
			reaper: watched.reaper,
			report: [...status.report, ...watched.report],
			watchdog,
			stop() {
				watchdog.stop();
				watched.stop();
				status.stop();
			},
			stopProcess: status.stopProcess,
		};
	}

	return {
		kind: 'guard',
		async start(descriptors, context) {
			try {
				return await startAll(descriptors, context);
			} catch (error) {
				const message = messageOf(error);
				log.error(`${label}: nothing was started: ${(error instanceof Error && error.stack) || message}`);
				return {
					processes: descriptors.map((descriptor) => unstarted(descriptor, message)),
					report: [message],
				};
			}
		},
	};
}

/**
 * Chooses who supervises a component's processes, once: the host where it has `scope.processes`, else the guard.
 *
 * @param {any} scope What the host called the component with.
 * @param {object} options
 * @param {Log} options.log
 * @param {Spawn} options.spawn The component's own `spawn`, as its host gives it.
 * @param {string} [options.label] Begins each line that is logged.
 * @param {string} [options.reaperName]
 * @param {number} [options.reaperGraceMs] How long a host that takes over may need to appear. Default 8000.
 * @param {(context: any) => unknown} [options.beforeStart] Called before the guard starts anything; a host of its own
 *   gets `configFiles` instead.
 * @param {string} [options.nativeKind] What `kind` says where the host supervises.
 * @returns {Supervisor}
 */
export function supervisorFor(
	scope,
	{ log, spawn, label = 'process guard', reaperName = REAPER_NAME, reaperGraceMs, beforeStart, nativeKind = 'host' }
) {
	return supervisesNatively(scope)
		? nativeSupervisor(scope, { log, label, nativeKind })
		: bundledSupervisor({ log, spawn, label, reaperName, reaperGraceMs, beforeStart });
}
