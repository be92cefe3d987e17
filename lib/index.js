// @ts-check
/**
 * One process per node, whatever the number of threads that ask for it.
 *
 * @module
 */
export { describeExit, describeSpawnFailure } from './exit.js';
export { fingerprint, guard } from './guard.js';
export {
	createHandleApplication,
	hostRoot,
	normaliseLog,
	resolvePort,
	watchForNeverCalled,
	writeFiles,
} from './host.js';
export {
	argvOf,
	claimSingleton,
	claimStaleMs,
	clearStaleHostPidFiles,
	currentReaper,
	heldProcess,
	identify,
	keepReaperAlive,
	nodeProcess,
	REAPER_WATCH_MS,
	readProcess,
	selfProcess,
	sharedMarks,
} from './node.js';
export { parseJson, pollEndpoint, pollUnixSocket, tailFile, untraceWith } from './probe.js';
export { guardDescriptors, supervisesNatively, supervisorFor, unstarted } from './supervisor.js';
export { currentVerdict, neverStarted, retakeVerdict, takeVerdictAgainst } from './verdict.js';

/** @typedef {import('./guard.js').Log} Log */
/** @typedef {import('./guard.js').Spawn} Spawn */
/** @typedef {import('./guard.js').SpawnedChild} SpawnedChild */
/** @typedef {import('./guard.js').GuardOptions} GuardOptions */
/** @typedef {import('./guard.js').GuardedProcess} GuardedProcess */
/** @typedef {import('./guard.js').ReaperOptions} ReaperOptions */
/** @typedef {import('./guard.js').RestartOptions} RestartOptions */
/** @typedef {import('./guard.js').Verdict} Verdict */
/** @typedef {import('./guard.js').GuardStatus} GuardStatus */
/** @typedef {import('./guard.js').ProcessState} ProcessState */
/** @typedef {import('./guard.js').ReaperState} ReaperState */
/** @typedef {import('./guard.js').StopResult} StopResult */
/** @typedef {import('./exit.js').ExitReading} ExitReading */
/** @typedef {import('./node.js').HeldLock} HeldLock */
/** @typedef {import('./node.js').Identity} Identity */
/** @typedef {import('./node.js').HostPidTarget} HostPidTarget */
/** @typedef {import('./node.js').Marks} Marks */
/** @typedef {import('./node.js').ProcessCost} ProcessCost */
/** @typedef {import('./node.js').ReaperWatch} ReaperWatch */
/** @typedef {import('./host.js').PartialLog} PartialLog */
/** @typedef {import('./probe.js').PollOptions} PollOptions */
/** @typedef {import('./supervisor.js').Descriptor} Descriptor */
/** @typedef {import('./supervisor.js').SupervisedState} SupervisedState */
/** @typedef {import('./supervisor.js').Supervised} Supervised */
/** @typedef {import('./supervisor.js').Supervisor} Supervisor */
/** @typedef {import('./supervisor.js').SupervisorContext} SupervisorContext */
/** @typedef {import('./verdict.js').RetakeReason} RetakeReason */
