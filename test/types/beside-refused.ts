// What must not compile of everything beside guard(); see refused.ts.
import { spawn } from 'node:child_process';
import {
	claimSingleton,
	createHandleApplication,
	type Log,
	type ProcessState,
	pollEndpoint,
	readProcess,
	retakeVerdict,
	sharedMarks,
	supervisorFor,
	takeVerdictAgainst,
	writeFiles,
} from 'harper-process-guard';

declare const log: Log;
declare const state: ProcessState;

// @ts-expect-error a supervisor needs a logger
supervisorFor({}, { spawn });
// @ts-expect-error and a spawn
supervisorFor({}, { log });
const supervisor = supervisorFor({}, { log, spawn });
// @ts-expect-error a descriptor needs its command
supervisor.start([{ name: 'a' }], { root: null, pidDir: '/x' });
// @ts-expect-error a context needs a directory
supervisor.start([], { root: null });
// @ts-expect-error a verdict has ok
retakeVerdict(state, () => ({ detail: 'fine' }));
// @ts-expect-error a verdict is about a state
takeVerdictAgainst(7);
// @ts-expect-error a mark is a number
sharedMarks('/d', 'k').set('k', '1');
// @ts-expect-error a claim has a holder
claimSingleton({ dir: '/d', file: 'f', staleMs: 1 });
// @ts-expect-error a probe has an address
pollEndpoint({ timeoutMs: 5 });
// @ts-expect-error a body may not come
pollEndpoint({ url: 'http://x/' }).then((body) => body.length);
// @ts-expect-error a process may be gone
readProcess(1).rssBytes;
// @ts-expect-error files have text or bytes
writeFiles({ '/f': { a: 1 } }, log, 'me');
// @ts-expect-error a slot is read and written
createHandleApplication({ start: () => 1, slot: { get: () => 1 } });

// @ts-expect-error the native part is no business of a consumer
import { sync } from 'harper-process-guard/lib/native.js';

sync();
