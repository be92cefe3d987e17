// What must compile of everything beside guard(), used as a component uses it.
import { spawn } from 'node:child_process';
import {
	claimSingleton,
	claimStaleMs,
	clearStaleHostPidFiles,
	createHandleApplication,
	currentReaper,
	currentVerdict,
	type Descriptor,
	type GuardStatus,
	guardDescriptors,
	type HostPidTarget,
	hostRoot,
	keepReaperAlive,
	type Log,
	type Marks,
	neverStarted,
	nodeProcess,
	normaliseLog,
	type PartialLog,
	type PollOptions,
	type ProcessCost,
	type ProcessState,
	parseJson,
	pollEndpoint,
	pollUnixSocket,
	REAPER_WATCH_MS,
	type ReaperState,
	type ReaperWatch,
	type RetakeReason,
	readProcess,
	resolvePort,
	retakeVerdict,
	type Supervised,
	type SupervisedState,
	type Supervisor,
	type SupervisorContext,
	selfProcess,
	sharedMarks,
	supervisesNatively,
	supervisorFor,
	tailFile,
	takeVerdictAgainst,
	unstarted,
	untraceWith,
	type Verdict,
	watchForNeverCalled,
	writeFiles,
} from 'harper-process-guard';

// A logger of the host's, whatever levels it has, and none at all.
const partial: PartialLog = {
	warn(message) {
		console.log(message.length);
	},
};
const log: Log = normaliseLog(partial);
normaliseLog();
normaliseLog(console);
normaliseLog({ info: (line: string) => line.length, trace() {} } as PartialLog);

const root: string | null = hostRoot(log, 'me');
const port: number = resolvePort('PORT', 8126, log, 'me');
writeFiles({ '/etc/agent.yaml': 'text', '/etc/key': new Uint8Array(4) }, log, 'me');

const verify = async (state: ProcessState, context?: { reason: RetakeReason }): Promise<Verdict> => {
	const { pid }: ProcessState = takeVerdictAgainst(state);
	if (context?.reason === 'refuted') return { ok: false };
	const options: PollOptions = { timeoutMs: 5, intervalMs: 1, giveUp: () => state.exited };
	const body: string | null = await pollEndpoint({ url: `http://127.0.0.1:${port}/`, ...options });
	const there: boolean = await pollUnixSocket({ path: '/run/agent.sock', giveUp: () => true });
	return neverStarted(state) ?? { ok: there && parseJson(body)?.pid === pid };
};
untraceWith((probe) => probe());
untraceWith(async (probe) => {
	await null;
	return probe();
});
untraceWith(null);

const descriptors: Descriptor[] = [
	{ name: 'a', title: 'A', command: '/a', args: ['x'], exitHint: 'h', kind: 'agent', verify },
	{ name: 'b', command: '/b', env: { A: '1', B: undefined }, restart: { max: 1 }, anything: { of: 'its own' } },
];
const context: SupervisorContext = {
	root,
	pidDir: '/run/x',
	reaperLog: '/log',
	replacementPidFile: undefined,
	configFiles: {},
	fingerprintParts: ['1', 2, null],
};
const supervisor: Supervisor = supervisorFor({} as unknown, {
	log,
	spawn,
	label: 'me',
	reaperName: 'r',
	reaperGraceMs: 1000,
	nativeKind: 'harper',
	beforeStart({ configFiles }) {
		writeFiles(configFiles, log, 'me');
	},
});
const { processes, reaper, report, watchdog, stop, stopProcess }: Supervised = await supervisor.start(
	descriptors,
	context
);
const states: SupervisedState[] = processes;
const kinds: (string | undefined)[] = [supervisor.kind, states[0].kind];
const lines: string[] = report;
const watch: ReaperWatch | undefined = watchdog;
watch?.stop();
stop?.();
await stopProcess?.('a', { timeoutMs: 5 });
const native: boolean = supervisesNatively(undefined);
const lost: SupervisedState = unstarted({ name: 'a', command: '/a' }, 'no such file');
guardDescriptors(descriptors, { PATH: '/bin' }).map(({ binaryPath }) => binaryPath.length);

// Reading a state keeps its type, also where there may be none.
const now: SupervisedState = currentVerdict(states[0]);
const taken: SupervisedState = await retakeVerdict(states[0], verify, { now: () => 1, intervalMs: 2 });
await retakeVerdict(states[0], undefined);
const maybe: ProcessState | undefined = nodeProcess(undefined as ProcessState | undefined, null, 'harper');
const there: ReaperState | undefined = currentReaper(reaper as ReaperState | undefined, '/run/x', 'r');

const targets: HostPidTarget[] = [
	{ name: 'a', argv: ['/a'], lock: '/run/x/a.pid' },
	{ name: 'r', script: '/reaper.js' },
];
clearStaleHostPidFiles(root, targets, log, 'me');

const marks: Marks = sharedMarks(undefined, 'kind');
const before: number | undefined = marks.get('k');
marks.set('k', 1);
const after: number | undefined = marks.add('k', 1);
const elected: boolean = claimSingleton({ dir: '/d', file: 'f', holder: 'h', staleMs: claimStaleMs(10) });
claimSingleton({ dir: '/d', file: 'f', holder: 'h', staleMs: 1, now: 5, read: () => '', write() {} });

const cost: ProcessCost | null = readProcess(states[0].pid, process.platform);
const own: { rssBytes: number; threads: number } = selfProcess();
const tail: string | null = tailFile('/log', 100);

const kept: ReaperWatch = keepReaperAlive({
	pidDir: '/run/x',
	reaper: there,
	relaunch: async (): Promise<GuardStatus | undefined> => undefined,
	log,
	label: 'me',
	everyMs: REAPER_WATCH_MS,
	setTimer: setInterval,
});
const look: 'present' | 'backoff' | 'relaunched' | 'failed' = await kept.tick();

let slot: Promise<Supervised> | undefined;
const handle: (scope: unknown) => void = createHandleApplication({
	start: async (scope: unknown) => supervisorFor(scope, { log, spawn }).start([], context),
	deadline: watchForNeverCalled({ log, label: 'me', configEntry: 'me: { package: me }' }),
	slot: {
		get: () => slot,
		set(started) {
			slot = started;
		},
	},
});
console.log(kinds, lines, native, lost, now, taken, maybe, before, after, elected, cost, own, tail, look, handle);
