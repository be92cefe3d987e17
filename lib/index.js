// @ts-check
/**
 * One process per node, whatever the number of threads that ask for it.
 *
 * @module
 */
export { describeExit, describeSpawnFailure } from './exit.js';
export { fingerprint, guard } from './guard.js';
export { argvOf, heldProcess, identify } from './node.js';

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
