// @ts-check
/**
 * Verdicts: what a verifier proved about a process, and whether that is still about the process that runs. When a verdict
 * is stale, and when it is to be taken again, is the Go side's decision.
 *
 * @module
 */
import * as native from './native.js';

/** How long a verdict that failed stands before it is taken again. */
export const RETAKE_INTERVAL_MS = 10_000;

/** @typedef {import('./guard.js').ProcessState} ProcessState */
/** @typedef {import('./guard.js').Verdict} Verdict */

/**
 * Why a verdict is taken again: it was about a process that is gone, there is none yet, or the last one failed.
 *
 * @typedef {'restarted' | 'untaken' | 'refuted'} RetakeReason
 */

/**
 * A verifier as `retakeVerdict` calls it.
 *
 * @template {Partial<ProcessState>} [S=ProcessState]
 * @typedef {(state: S, context: { reason: RetakeReason }) => Verdict | Promise<Verdict>} Retaker
 */

/**
 * Notes on the state which process the verdict that is about to be taken is about. A verifier calls it first.
 *
 * @template {Partial<ProcessState>} S
 * @param {S} state
 * @returns {S} The same object.
 */
export function takeVerdictAgainst(state) {
	state.verifiedPid = state.pid ?? null;
	return state;
}

/**
 * The verdict on a process that this node never started, so that no verifier takes an answer on its port for its own.
 *
 * @param {Partial<ProcessState>} state
 * @returns {{ ok: false, detail: string } | null} Null: it was started.
 */
export function neverStarted(state) {
	if (state?.started !== false) return null;
	const because = state.error ? ` (${state.error})` : '';
	return {
		ok: false,
		detail: `this node never started it${because}, so anything answering its port belongs to another process`,
	};
}

/**
 * @param {unknown} value
 * @returns {number | null}
 */
function whole(value) {
	return Number.isSafeInteger(value) ? /** @type {number} */ (value) : null;
}

/**
 * @param {unknown} value
 * @returns {boolean | null}
 */
function truth(value) {
	return typeof value === 'boolean' ? value : null;
}

/**
 * @param {Partial<ProcessState>} state
 * @param {number} now
 * @param {number} intervalMs
 * @returns {{ stale: boolean, retake: '' | RetakeReason, detail?: string }}
 */
function judge(state, now, intervalMs) {
	const { pid, started, exited, restarts, verified, verifyDetail, verifiedPid, verifiedAt } = state;
	try {
		return native.sync('verdict', {
			state: {
				pid: whole(pid),
				started: truth(started),
				exited: truth(exited),
				restarts: whole(restarts),
				verified: truth(verified),
				hasVerified: verified !== undefined,
				verifyDetail: verifyDetail === undefined ? '' : String(verifyDetail),
				verifiedPid: whole(verifiedPid),
				verifiedAt: Number.isFinite(verifiedAt) ? verifiedAt : null,
			},
			now,
			intervalMs,
		});
	} catch {
		// Where the native part cannot load nothing ever ran, and every state says why; a status page still opens.
		return { stale: false, retake: '' };
	}
}

/**
 * The state as it may be published: a verdict about a process that is gone is replaced by one that says so.
 *
 * @template {Partial<ProcessState>} S
 * @param {S} state
 * @returns {S} The same object while its verdict holds, else a copy.
 */
export function currentVerdict(state) {
	if (!state) return state;
	const { stale, detail } = judge(state, 0, 0);
	return stale ? { ...state, verified: null, verifyDetail: detail } : state;
}

/**
 * Verdicts being taken: a status page that many look at must not probe once for each of them.
 *
 * @type {WeakMap<object, Promise<void>>}
 */
const underWay = new WeakMap();

/**
 * @param {Partial<ProcessState>} state
 * @param {Retaker<any>} verify
 * @param {RetakeReason} reason
 * @param {() => number} now
 */
async function take(state, verify, reason, now) {
	const { pid, verifiedPid: before } = state;
	try {
		const verdict = /** @type {Partial<Verdict> | null | undefined} */ (await verify(state, { reason }));
		if (typeof verdict !== 'object' || verdict === null) throw new TypeError('it answered no { ok, detail }');
		state.verified = Boolean(verdict.ok);
		state.verifyDetail = verdict.detail;
	} catch (error) {
		state.verified = false;
		const message = error instanceof Error ? error.message : String(error);
		state.verifyDetail = `retaking the verdict against pid ${pid ?? 'unknown'} threw: ${message}`;
	}
	// A verifier that notes no pid of its own would leave the old one, and with it a verdict that is stale for ever.
	if (typeof before === 'number' && state.verifiedPid === before) state.verifiedPid = pid ?? null;
	state.verifiedAt = now();
}

/**
 * Takes the verdict again where it is about a process that is gone, where there is none, or where the last one failed some
 * time ago. Never for a process that did not start or has ended. Calls while one is being taken share it.
 *
 * @template {Partial<ProcessState>} S
 * @param {S} state Changed in place.
 * @param {Retaker<S> | null} [verify]
 * @param {{ now?: () => number, intervalMs?: number }} [options] `intervalMs`: how long a failed verdict stands.
 * @returns {Promise<S>} As `currentVerdict` gives it.
 */
export async function retakeVerdict(state, verify, { now = Date.now, intervalMs = RETAKE_INTERVAL_MS } = {}) {
	if (!state || !verify) return currentVerdict(state);
	let taking = underWay.get(state);
	if (!taking) {
		const { retake } = judge(state, now(), intervalMs);
		if (retake === '') return currentVerdict(state);
		taking = take(state, verify, retake, now).finally(() => underWay.delete(state));
		underWay.set(state, taking);
	}
	await taking;
	return currentVerdict(state);
}
