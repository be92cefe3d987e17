// @ts-nocheck: it uses what the host makes global.
/**
 * The component of the stand-in host's tests: what a consumer of the package does, with everything it starts taken from
 * `settings.json` beside it, so that a test can change its configuration while it runs.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isMainThread, threadId } from 'node:worker_threads';
import {
	createHandleApplication,
	currentReaper,
	describeExit,
	hostRoot,
	nodeProcess,
	normaliseLog,
	readProcess,
	retakeVerdict,
	supervisorFor,
	takeVerdictAgainst,
	untraceWith,
	watchForNeverCalled,
} from 'harper-process-guard';

const label = 'guarded component';
const log = normaliseLog(logger);
const deadline = watchForNeverCalled({ log, label, configEntry: 'guarded: { package: … }' });

// At import, as a consumer does it, and so also where the module is only evaluated: this loads the native part.
untraceWith((probe) => probe());
describeExit(0, null);

let slot;
let result;
let pidDir;
let kind;

/** @param {any} state */
async function verify(state) {
	takeVerdictAgainst(state);
	return { ok: readProcess(state.pid) !== null, detail: `pid ${state.pid} has memory` };
}

async function start(scope) {
	const settings = JSON.parse(readFileSync(fileURLToPath(new URL('settings.json', import.meta.url)), 'utf8'));
	const root = hostRoot(log, label);
	pidDir = join(root, settings.pidDir ?? 'process-guard');
	const supervisor = supervisorFor(scope, { log, spawn, label, reaperGraceMs: settings.reaperGraceMs });
	kind = supervisor.kind;
	result = await supervisor.start(
		settings.processes.map((each) => ({ kind: 'test', verify, ...each })),
		{
			root,
			pidDir,
			reaperLog: join(root, 'log', 'reaper.log'),
			replacementPidFile: join(root, 'hdb.pid'),
			fingerprintParts: settings.fingerprint,
		}
	);
}

export const handleApplication = createHandleApplication({
	start,
	deadline,
	slot: { get: () => slot, set: (value) => (slot = value) },
});

export class Guarded extends Resource {
	static async get() {
		await slot;
		return {
			thread: threadId,
			main: isMainThread,
			kind,
			cwd: process.cwd(),
			meta: Object.keys(import.meta).sort(),
			report: result?.report,
			own: result?.processes,
			processes: await Promise.all(
				(result?.processes ?? []).map(async (state) => retakeVerdict(nodeProcess(state, pidDir), verify))
			),
			reaper: currentReaper(result?.reaper, pidDir),
		};
	}
}
