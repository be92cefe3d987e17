// What must compile: uses of the package as its README shows them, and as its consumers have them.
import { spawn } from 'node:child_process';
import {
	argvOf,
	describeExit,
	describeSpawnFailure,
	fingerprint,
	type GuardOptions,
	type GuardStatus,
	guard,
	type HeldLock,
	heldProcess,
	type Identity,
	identify,
	type Log,
	type ProcessState,
	type ReaperState,
	type Spawn,
	type StopResult,
} from 'harper-process-guard';

const least: GuardOptions = { pidDir: '/run/x', processes: [], spawn };

const most: GuardOptions = {
	pidDir: '/run/x',
	version: fingerprint('1.2.3', { any: 'thing' }, 7),
	stopOrphans: true,
	claimTimeoutMs: 1000,
	log: console,
	spawn: (command, args, options) => spawn(command, args, { ...options, windowsHide: true }),
	restart: { max: 3, baseMs: 10, capMs: 100, resetAfterMs: 60_000 },
	replaceGraceMs: 5000,
	replaceKill: true,
	deliberateExitCodes: [0, 143],
	signal: AbortSignal.timeout(5000),
	processes: [
		{
			name: 'agent',
			title: 'the agent',
			binaryPath: '/opt/agent',
			args: ['run'],
			exitHint: 'see the log',
			spawnOptions: { stdio: ['ignore', 'pipe', 'pipe'], env: { A: 'b' }, cwd: '/' },
			restart: { max: 0 },
			verify: async (state) => ({ ok: state.pid !== undefined, detail: state.error }),
		},
		{ name: 'other', binaryPath: '/opt/other', verify: () => ({ ok: true }) },
	],
	reaper: { graceMs: 1000, replacementPidFile: '/x.pid', logFile: '/x.log', spawnOptions: { env: {} } },
};

// A host's constrained spawn, whose wrapper has a pid and little else.
const constrained: Spawn = () => ({ pid: 7 });
const quiet: Log = { info() {}, warn() {}, error() {} };

const status: GuardStatus = await guard({ ...most, spawn: constrained, log: quiet });
const states: ProcessState[] = status.processes;
const lines: string[] = status.report;
const reaper: ReaperState | undefined = status.reaper;
const version: number = status.version;
const stopped: StopResult = await status.stopProcess('agent', { timeoutMs: 5, force: true });
status.stop();

for (const { pid, code, signal, restarts, adopted, exited, exitProof, verified } of states) {
	const reading = describeExit(code, signal);
	const words: string = reading.detail;
	const numbers: [number | undefined, number, number] = [pid, restarts, reading.exitCode];
	const truths: boolean[] = [
		adopted,
		exited,
		reading.killed,
		reading.deliberate,
		verified === true,
		exitProof === 'kernel',
	];
	console.log(words, numbers, truths);
}

const verdict: Identity = identify(1, ['init']);
const argv: string[] | null = argvOf(1);
const lock: HeldLock | undefined = heldProcess('/run/x/agent.pid');
const why: string = describeSpawnFailure(new Error('no'), '/opt/agent');
console.log(least, lines, reaper, version, stopped, verdict, argv, lock?.keeperArgv, why);
