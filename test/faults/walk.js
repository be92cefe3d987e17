// @ts-check
/**
 * One walk: a scenario with one system call gone wrong, and then the questions that must have the same answers whatever
 * went wrong. Never two processes; no signal to a stranger; the next caller gets its process; nothing is left behind; and
 * who failed says why.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { faultBuild } from '../support/fixtures.js';
import { startHost } from '../support/host.js';
import { alive, processOf, zombiesOf } from '../support/processes.js';
import { Sandbox } from '../support/sandbox.js';
import { patience, until } from '../support/until.js';
import { applicable, harmless, words } from './calls.js';
import { scenarios } from './scenarios.js';
import { Watcher } from './watcher.js';

/**
 * @typedef {object} Point
 * @property {string} role
 * @property {string} op
 * @property {string} kind
 * @property {number} nth
 */

/** @typedef {{ scenario: string, point: Point, what: string }} Step */

/** @typedef {{ violations: string[], reached: boolean, trace: string[] }} Outcome */

/** No caller has a reason to wait longer than this, whatever went wrong once. */
const longest = 9_000;

/** Everything that may be in pidDir after the end. */
const kept = /^(proc|other|process-guard-reaper)\.pid\.(claiming|exit)$/;

const watcher = new Watcher();

/** The package that goes wrong. */
const entry = faultBuild();

/** @param {Step} step */
export const nameOf = ({ scenario, point: { role, op, kind, nth }, what }) =>
	`${scenario} ${role}/${op}:${kind}:${nth}:${what}`;

/**
 * @param {string} text as nameOf() gives it
 * @returns {Step}
 */
export function stepOf(text) {
	const [, scenario, role, op, kind, nth, what] = /^(\S+) (\S+?)\/(\w+):([\w-]+):(\d+):([\w-]+)$/.exec(text) ?? [];
	if (!scenario) throw new Error(`no step: ${text}`);
	return { scenario, point: { role, op, kind, nth: Number(nth) }, what };
}

/** Two hosts that go through many walks: what one of them breaks in a host shows in the next. */
export class Lane {
	/** @param {string} plant a bug for the first host and what it starts */
	constructor(plant = '') {
		this.plant = plant;
	}

	async open() {
		/** The one that things go wrong in. */
		this.first = await startHost({ threads: 2, env: { PG_PACKAGE: entry, PG_PLANT: this.plant } });
		/** The one that comes after it. */
		this.next = await startHost({ threads: 1, env: { PG_PACKAGE: entry, PG_PLANT: this.plant } });
		await Promise.all([this.first.load(), this.next.load()]);
		return this;
	}

	async close() {
		await Promise.all([this.first?.kill(), this.next?.kill()]);
	}
}

let serial = 0;

/** What a scenario has to work with. */
export class Walk {
	/** @type {import('../support/host.js').Host[]} */
	extra = [];
	/** @type {import('node:child_process').ChildProcess[]} */
	strangers = [];
	/** @type {string[]} */
	said = [];
	/** Whether something that was asked for failed. */
	failed = '';
	most = 0;
	entry = entry;
	/** @type {Promise<void> | undefined} */
	goOn;

	/**
	 * @param {Lane} lane
	 * @param {string} call
	 */
	constructor(lane, call) {
		this.call = call;
		this.first = /** @type {import('../support/host.js').Host} */ (lane.first);
		this.next = /** @type {import('../support/host.js').Host} */ (lane.next);
		this.box = new Sandbox();
		this.dir = this.box.dir;
		this.key = `walk${++serial}`;
		this.armFile = this.box.file('armed');
		this.traceFile = this.box.file('trace');
		this.words = [`starts=${this.box.file('starts')}`, `alone=${this.box.file('alone')}`];
	}

	hosts() {
		return [this.first, this.next, ...this.extra].map((host) => host.pid);
	}

	/**
	 * @param {string[]} argv
	 * @param {number} pid
	 */
	guarded(argv, pid) {
		return argv[0] === this.box.proc && argv[1] === this.box.marker && !this.strangers.some((one) => one.pid === pid);
	}

	running() {
		return this.box.running().filter((one) => this.guarded(one.argv, one.pid));
	}

	faults() {
		return { PG_FAULT_CALL: this.call, PG_FAULT_TRACE: this.traceFile, PG_FAULT_ARM: this.armFile };
	}

	/** @param {Record<string, any>} [more] */
	config({ process: forProcess = {}, ...more } = {}) {
		return this.box.config(this.words, {
			// Longer than anybody may have to wait: whose claim is over must not be waited for until it is old.
			claimTimeoutMs: 12_000,
			restart: { baseMs: 20 },
			process: { spawnOptions: { stdio: 'ignore', env: { ...process.env, ...this.faults() } }, ...forProcess },
			...more,
		});
	}

	/** A process that the guard has nothing to do with, with the very command line of the guarded one. */
	async stranger() {
		const child = spawn(this.box.proc, [this.box.marker, `starts=${this.box.file('stranger')}`, 'term=die'], {
			stdio: 'ignore',
		});
		this.strangers.push(child);
		await until(() => this.box.lines('stranger').length > 0, 5_000, 'the stranger runs');
		return /** @type {number} */ (child.pid);
	}

	/**
	 * A record that names a stranger as if it were ours, with another start.
	 * @param {string} name
	 * @param {number} pid
	 */
	plant(name, pid) {
		mkdirSync(this.box.pidDir, { recursive: true, mode: 0o700 });
		const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
		const argv = processOf(pid)?.argv;
		const record = { token: '1.0.1.0123456789abcdef', host: 4_194_301, argv, started: `${boot}:1` };
		writeFileSync(join(this.box.pidDir, `${name}.pid`), `${pid}\n0\n${JSON.stringify(record)}\n`, { mode: 0o600 });
	}

	/** From here on calls are counted, and one goes wrong. */
	async arm() {
		writeFileSync(this.armFile, '');
		await this.first.call(0, 'fault', this.call, this.traceFile);
	}

	async disarm() {
		rmSync(this.armFile, { force: true });
		if (this.first.exit === null) await this.first.call(0, 'fault', '', '');
	}

	/**
	 * guard() that may fail; what it said is kept.
	 * @param {import('../support/host.js').Host} host
	 * @param {number} thread
	 * @param {any} config
	 * @param {string} [key]
	 */
	async guard(host, thread, config, key = this.key) {
		const result = await host.guard(thread, config, key);
		this.note(result);
		const [state] = result.processes;
		if (state.error) this.failed ||= `guard(): ${state.error}`;
		else if (result.reaper?.error) this.failed ||= `reaper: ${result.reaper.error}`;
		if (result.tookMs > longest * patience) throw new Error(`guard() took ${Math.round(result.tookMs)} ms`);
		return result;
	}

	/** @param {any} result */
	note(result) {
		if (!result) return;
		this.said.push(...result.report, ...result.log.map((/** @type {any} */ one) => one.line));
		for (const state of [...result.processes, result.reaper ?? {}])
			this.said.push(...[state.error, state.exitDetail, state.detail].filter(Boolean));
	}

	/** Keeps what the threads say in the end. */
	async listen() {
		for (const thread of [1, 2]) this.note(await this.first.state(thread, this.key));
		const exit = this.box.exitRecord();
		if (exit?.error) this.said.push(exit.error);
		this.said.push(...this.box.lines('log'));
	}

	/**
	 * A record whose reaper says in its log why it could not remove it. It names nothing that lives; the next claim takes it.
	 * @param {string} file
	 */
	excused(file) {
		const [name, rest] = file.split('.pid');
		const why = { 'process-guard-reaper': 'could not release own lock: ', other: 'other: ' }[name];
		return (
			why !== undefined && rest === '' && this.box.lines('log').some((line) => line.includes(why) && this.named(line))
		);
	}

	/** @param {string} text */
	named(text) {
		return words[this.call.split(':')[3]]?.test(text) ?? false;
	}

	trace() {
		return this.box.lines('trace');
	}
}

/**
 * @param {Lane} lane
 * @param {string} name
 * @param {Point | null} point null: nothing goes wrong, only the calls are noted
 * @param {string} [what]
 * @returns {Promise<Outcome>}
 */
export async function walk(lane, name, point, what = '') {
	const scenario = scenarios[name];
	if (!scenario) throw new Error(`no scenario ${name}`);
	const one = new Walk(lane, point ? `${point.role}/${point.op}:${point.kind}:${point.nth}:${what}` : '');
	/** @type {string[]} */
	const violations = [];
	const attempt = async (/** @type {string} */ about, /** @type {() => Promise<unknown>} */ part) => {
		try {
			await part();
		} catch (error) {
			violations.push(`${about}: ${/** @type {Error} */ (error).message}`);
		}
	};
	watcher.add(one);
	/** @type {string[]} */
	let trace = [];
	try {
		await attempt('the scenario', () => scenario.run(one));
		await one.disarm();
		trace = one.trace();
		const reached = trace.some((line) => line.startsWith('fault '));
		await one.listen();
		if (one.failed && !reached) violations.push(`it failed with no fault: ${one.failed}`);
		else if (one.failed && harmless.includes(what)) violations.push(`it failed of ${what}: ${one.failed}`);
		else if (one.failed && !one.named(one.said.join('\n'))) violations.push(`nobody says why it failed: ${one.failed}`);
		for (const { pid } of one.strangers)
			if (!alive(/** @type {number} */ (pid))) violations.push(`the stranger, pid ${pid}, was ended`);
		await attempt('the next caller', () => assertNext(one, scenario));
		await attempt('the end', () => assertEnd(one, scenario));
		for (const line of one.box.lines('alone')) violations.push(`two processes at once: pid ${line}`);
		if (one.most > 1) violations.push(`${one.most} processes at once in the process table`);
	} catch (error) {
		violations.push(/** @type {Error} */ (error).message);
	}
	if (violations.length > 0) violations.push(...account(one));
	for (const child of one.strangers) {
		const gone = new Promise((resolve) => child.once('exit', resolve));
		if (child.kill('SIGKILL')) await gone;
	}
	for (const host of one.extra) await host.kill();
	// A killed host shows as a zombie until the last of its threads is gone, which takes its time on a busy machine.
	await until(() => zombiesOf(process.pid).length === 0, 10_000, '').catch(() => {});
	await attempt('left behind', () => one.box.finish());
	watcher.remove(one);
	return { violations, reached: trace.some((line) => line.startsWith('fault ')), trace };
}

/**
 * @param {Walk} one
 * @param {import('./scenarios.js').Scenario} scenario
 */
async function assertNext(one, scenario) {
	const { box, next } = one;
	const { processes, tookMs, report } = await next.guard(1, one.config(scenario.again), one.key);
	const [state] = processes;
	if (state.error) throw new Error(`${state.error}\n${report.join('\n')}`);
	if (tookMs > longest * patience) throw new Error(`it waited ${Math.round(tookMs)} ms`);
	await until(
		async () => {
			const found = one.running();
			const seen = (await next.state(1, one.key)).processes[0];
			return found.length === 1 && !seen.exited && seen.pid === found[0].pid;
		},
		8_000,
		() => `one process, which it shows; there are ${one.running().length}\n${box.tree()}`
	);
}

/**
 * @param {Walk} one
 * @param {import('./scenarios.js').Scenario} [again] what a further caller asks for, where one may have to come
 */
async function assertEnd(one, again) {
	const { box, first, next } = one;
	const answer = await next.call(1, 'stopProcess', one.key, 'proc', { timeoutMs: 6_000 * patience });
	if (!answer.stopped) throw new Error(`stopProcess: ${answer.detail}`);
	await until(
		() => one.running().length === 0 && box.keepers().length === 0,
		8_000,
		() => `everything has ended\n${box.tree()}`
	);
	for (const thread of [1, 2]) await first.call(thread, 'stop', one.key);
	await next.call(1, 'stop', one.key);
	for (const { pid } of one.strangers)
		if (!alive(/** @type {number} */ (pid))) throw new Error(`the stranger, pid ${pid}, was ended`);
	const strange = () => box.files().filter((file) => !kept.test(file) && !one.excused(file));
	await until(() => strange().length === 0, 1_000, '').catch(() => {});
	if (again && strange().length > 0 && strange().every((file) => /^proc\.pid\..*(keeper\.|\.tmp$)/.test(file))) {
		// Whoever could not get into the gate, or could not remove a file, left it for the next claim to sweep; and a claim
		// leaves alone the life file of the very generation whose record it takes, so that it goes with the one after.
		await assertNext(one, again);
		await assertEnd(one);
		return;
	}
	if (strange().length > 0) throw new Error(`files in pidDir after the end: ${strange().join(' ')}`);
}

/**
 * What whoever reads of a violation wants to know.
 * @param {Walk} one
 */
function account(one) {
	const lines = [`  files: ${one.box.files().join(' ')}`];
	const fault = one.trace().find((line) => line.startsWith('fault '));
	lines.push(`  ${fault ?? 'the fault was not reached'}`);
	for (const line of new Set(one.said)) lines.push(`  said: ${line}`);
	if (one.first.output) lines.push(`  output of the host: ${one.first.output.slice(-500)}`);
	return lines;
}

/**
 * The calls that a scenario passes: each of a kind, its first and its second time.
 * @param {Lane} lane
 * @param {string} name
 */
export async function discover(lane, name) {
	const { violations, trace } = await walk(lane, name, null);
	if (violations.length > 0) throw new Error(`${name} without a fault:\n${violations.join('\n')}`);
	/** @type {Map<string, number>} */
	const count = new Map();
	for (const line of trace) count.set(line, (count.get(line) ?? 0) + 1);
	/** @type {Step[]} */
	const steps = [];
	for (const [line, times] of [...count].sort()) {
		const [role, op, kind] = line.split(' ');
		if (!scenarios[name].roles.includes(role)) continue;
		for (let nth = 1; nth <= Math.min(times, 2); nth++)
			for (const what of applicable({ role, op, kind })) {
				// What succeeds does not come back.
				if (op === 'exec' && what === 'stop-after') continue;
				steps.push({ scenario: name, point: { role, op, kind, nth }, what });
			}
	}
	return steps;
}
