/**
 * A component that keeps an agent running: one per node, however many worker threads load this, and a page that shows how
 * it is. `GET /Processes` answers JSON, and HTML to a browser.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { threadId } from 'node:worker_threads';
import {
	createHandleApplication,
	currentReaper,
	describeExit,
	hostRoot,
	neverStarted,
	nodeProcess,
	normaliseLog,
	parseJson,
	pollEndpoint,
	readProcess,
	resolvePort,
	retakeVerdict,
	selfProcess,
	supervisorFor,
	tailFile,
	takeVerdictAgainst,
	watchForNeverCalled,
} from 'harper-process-guard';

const label = 'guarded agent';
const log = normaliseLog(globalThis.logger);
const here = (file) => fileURLToPath(new URL(file, import.meta.url));
const { version } = JSON.parse(readFileSync(here('package.json'), 'utf8'));
const page = readFileSync(here('page.html'), 'utf8');
const port = resolvePort('AGENT_PORT', 8127, log, label);

/** Asks the agent itself: a pid that runs proves little, and an answer from somebody else's process proves nothing. */
async function verify(state) {
	takeVerdictAgainst(state);
	const health = await pollEndpoint({
		url: `http://127.0.0.1:${port}/health`,
		timeoutMs: 5000,
		// What has ended will not answer any more.
		giveUp: () => state.exited === true,
	});
	if (health === null) return neverStarted(state) ?? { ok: false, detail: `nothing answers on port ${port}` };
	const { pid } = parseJson(health) ?? {};
	if (pid !== state.pid)
		return { ok: false, detail: `port ${port} is answered by pid ${pid}, not by pid ${state.pid}` };
	return { ok: true, detail: `answers on port ${port} as pid ${pid}` };
}

const agent = {
	name: 'guarded-agent',
	title: 'the agent',
	kind: 'agent',
	command: process.execPath,
	args: [here('agent.js'), String(port)],
	exitHint: `port ${port} may be taken; AGENT_PORT sets another`,
	verify,
};

/** What supervises and what came of it, once it is known. */
let supervision = null;
let pidDir = null;
let reaperLog = null;

async function start(scope) {
	const root = hostRoot(log, label);
	if (root === null) {
		log.error(
			`${label}: neither ROOTPATH nor the boot properties say where the host keeps its data; nothing is started`
		);
		return null;
	}
	pidDir = join(root, 'guarded-agent');
	reaperLog = join(root, 'log', 'guarded-agent-reaper.log');
	const supervisor = supervisorFor(scope, {
		log,
		spawn,
		label,
		reaperName: 'guarded-agent-reaper',
		nativeKind: 'harper',
	});
	const started = await supervisor.start([agent], {
		root,
		pidDir,
		reaperLog,
		replacementPidFile: join(root, 'hdb.pid'),
		// Whatever has to replace a running agent when it changes.
		fingerprintParts: [version, agent.command, ...agent.args],
	});
	return { kind: supervisor.kind, ...started };
}

export const handleApplication = createHandleApplication({
	start,
	deadline: watchForNeverCalled({ log, label, configEntry: `${label.replace(' ', '-')}: { package: … }` }),
	slot: {
		get: () => supervision,
		set(starting) {
			supervision = starting;
		},
	},
});

/** In one word, for people. */
function wordFor({ started, exited, code, signal }) {
	if (exited) return describeExit(code, signal).deliberate ? 'stopped' : 'crashed';
	return started ? 'running' : 'not started';
}

async function describe(state, kind) {
	const seen = await retakeVerdict(nodeProcess(state, pidDir, kind), verify);
	const { name, title, pid, adopted, exited, restarts, code, signal, error, refused } = seen;
	return {
		name,
		title,
		state: wordFor(seen),
		pid,
		adopted,
		restarts,
		ended: exited ? describeExit(code, signal).detail : undefined,
		error,
		refused,
		verdict: { ok: seen.verified, detail: seen.verifyDetail, pid: seen.verifiedPid, at: seen.verifiedAt },
		cost: exited ? null : readProcess(pid),
	};
}

/** What is known on this node, by the thread that is asked. */
async function status() {
	const now = await supervision;
	const reaper = now && currentReaper(now.reaper, pidDir);
	return {
		at: new Date().toISOString(),
		host: { pid: process.pid, thread: threadId, uptimeSeconds: Math.round(process.uptime()), ...selfProcess() },
		supervisor: now?.kind ?? 'none',
		processes: now ? await Promise.all(now.processes.map((state) => describe(state, now.kind))) : [],
		reaper: reaper && {
			running: reaper.started,
			pid: reaper.pid,
			error: reaper.error,
			cost: reaper.started ? readProcess(reaper.pid) : null,
		},
		report: now?.report ?? [],
		reaperLog: reaperLog && tailFile(reaperLog, 2048)?.split('\n').filter(Boolean).slice(-5),
	};
}

export class Processes extends Resource {
	static async get(_target, context) {
		// Command lines and pids are nobody's business but an operator's.
		if (!context?.user) {
			return { status: 401, headers: { 'www-authenticate': 'Basic realm="Harper"' }, body: 'Who are you?' };
		}
		const now = await status();
		if (!context.headers?.get('accept')?.includes('text/html')) return now;
		// In a script element only the end of that element has a meaning.
		const data = JSON.stringify(now).replaceAll('<', '\\u003c');
		return {
			status: 200,
			headers: {
				'content-type': 'text/html; charset=utf-8',
				'cache-control': 'no-store',
				'content-security-policy':
					"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:",
			},
			body: page.replace('/* data */', () => data),
		};
	}
}
