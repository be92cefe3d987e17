// @ts-check
/**
 * One directory, one marker and a list of hosts per test. Everything a test starts names the directory on its command
 * line, so the end of a test can ask the process table whether anything is left and end exactly that, by pid.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { proc } from './fixtures.js';
import { startHost } from './host.js';
import { alive, ended, marked, processes, processOf, tree, zombiesOf } from './processes.js';
import { until } from './until.js';

/** @typedef {import('./processes.js').Process} Process */

/** @param {string} file */
function textOf(file) {
	try {
		return readFileSync(file, 'utf8');
	} catch {
		return '';
	}
}

export class Sandbox {
	/** @type {import('./host.js').Host[]} */
	hosts = [];
	/** @type {import('node:child_process').ChildProcess[]} */
	children = [];
	/** Names in pidDir that a test's own fault leaves behind and that are not counted as a leak. */
	/** @type {RegExp[]} */
	expectedLeftovers = [];

	constructor() {
		this.dir = realpathSync(mkdtempSync(join(tmpdir(), 'pg-')));
		this.pidDir = join(this.dir, 'run');
		this.marker = join(this.dir, 'marker');
		// At the first need of a test and not inside a measured race.
		this.proc = proc();
	}

	/** @param {string} name */
	file(name) {
		return join(this.dir, name);
	}

	/**
	 * A guarded process for guard()'s `processes`: the test program with the marker and some words.
	 * @param {string[]} [words]
	 * @param {Record<string, any>} [more]
	 */
	process(words = [], more = {}) {
		return { name: 'proc', binaryPath: this.proc, args: [this.marker, ...words], ...more };
	}

	/**
	 * guard() options for one process.
	 * @param {string[]} [words]
	 * @param {Record<string, any>} [more] `process` inside goes to the process, the rest to guard()
	 */
	config(words = [], { process: forProcess = {}, ...more } = {}) {
		return { pidDir: this.pidDir, processes: [this.process(words, forProcess)], ...more };
	}

	/** @param {import('./host.js').HostOptions} [options] */
	async host(options) {
		const host = await startHost(options);
		this.hosts.push(host);
		return host;
	}

	/** @param {string} [marker] */
	running(marker = this.marker) {
		return marked(marker);
	}

	/**
	 * The one process there must be.
	 * @param {string} [marker]
	 */
	only(marker = this.marker) {
		const found = this.running(marker);
		if (found.length !== 1) throw new Error(`${found.length} processes where there must be one:\n${this.tree()}`);
		return found[0];
	}

	/**
	 * Everything alive that names this directory or is the child of what does: processes, also those that renamed
	 * themselves, keepers and what they hold, reapers, launchers.
	 */
	all() {
		const table = processes().filter((one) => one.pid !== process.pid && !ended(one));
		const named = new Set(
			table.filter((one) => one.argv.some((word) => word.includes(this.dir))).map((one) => one.pid)
		);
		return table.filter((one) => named.has(one.pid) || named.has(one.ppid));
	}

	/** Keepers of this directory: the durable ones, not their launchers and not the children they hold. */
	keepers() {
		return this.all().filter((one) => one.argv[1] === 'keep');
	}

	reapers() {
		return this.all().filter((one) => one.argv[1] === 'run' && one.argv.includes('--pid-dir'));
	}

	/**
	 * The record of a name, as written on disk, or null.
	 * @param {string} [name]
	 */
	record(name = 'proc') {
		const [pid, version, json] = textOf(join(this.pidDir, `${name}.pid`)).split('\n');
		if (!pid) return null;
		return { pid: Number(pid), version: Number(version), ...(json ? JSON.parse(json) : {}) };
	}

	/** @param {string} [name] */
	exitRecord(name = 'proc') {
		const text = textOf(join(this.pidDir, `${name}.pid.exit`));
		return text ? JSON.parse(text) : null;
	}

	/** @returns {string[]} names in pidDir, sorted; empty when it does not exist */
	files() {
		try {
			return readdirSync(this.pidDir).sort();
		} catch {
			return [];
		}
	}

	/**
	 * Lines of a file that the test program appends to.
	 * @param {string} name
	 */
	lines(name) {
		return textOf(this.file(name)).split('\n').filter(Boolean);
	}

	/**
	 * How often the test program was started, by its word `starts=`. It is on record a little before it gets to write.
	 * @param {number} count
	 * @param {string} [name]
	 */
	async startedTimes(count, name = 'starts') {
		await until(
			() => this.lines(name).length >= count,
			5_000,
			() => `${count} starts, there were ${this.lines(name).length}`
		);
		if (this.lines(name).length > count)
			throw new Error(`started ${this.lines(name).length} times instead of ${count}: ${this.lines(name).join(', ')}`);
	}

	/**
	 * What the test program saw of itself, from its word `dump=`.
	 * @param {string} name
	 */
	async dump(name) {
		const text = await until(() => textOf(this.file(name)), 10_000, `${name} is written`);
		const seen = JSON.parse(text);
		return {
			...seen,
			env: Object.fromEntries(
				seen.env.map((/** @type {string} */ entry) => [
					entry.slice(0, entry.indexOf('=')),
					entry.slice(entry.indexOf('=') + 1),
				])
			),
		};
	}

	/**
	 * A process that the test starts itself: a stranger to the guard. It ends with the test.
	 * @param {string[]} words
	 */
	spawn(words) {
		const child = spawn(this.proc, words, { stdio: 'ignore' });
		this.children.push(child);
		return child;
	}

	/**
	 * Stops a process that is not inside the gate at that moment: there it would hold everybody up.
	 * @param {number} pid
	 */
	async stopOutsideTheGate(pid) {
		await until(
			async () => {
				process.kill(pid, 'SIGSTOP');
				await until(() => processOf(pid)?.state === 'T', 5_000, `pid ${pid} has stopped`);
				if (textOf(join(this.pidDir, 'proc.pid.claiming')) === '') return true;
				process.kill(pid, 'SIGCONT');
				return false;
			},
			5_000,
			`pid ${pid} stops outside the gate`
		);
	}

	/** Everything that belongs to this test, as a tree. */
	tree() {
		const ours = new Set(this.all().map((one) => one.pid));
		const hosts = new Set(this.hosts.map((host) => host.pid));
		return tree((one) => ours.has(one.pid) || hosts.has(one.pid) || hosts.has(one.ppid));
	}

	/**
	 * Ends what the test left running the way an operator would, then proves that nothing is left: no process, no
	 * zombie, no file whose name the documentation does not give.
	 */
	async finish() {
		/** @type {string[]} */
		const complaints = [];
		for (const host of this.hosts) if (host.exit === null) await host.kill('SIGKILL');
		for (const child of this.children) child.kill('SIGKILL');
		const rest = () => this.all();
		for (let round = 0; round < 3 && rest().length > 0; round++) {
			const keepers = this.keepers().map((one) => one.pid);
			for (const one of rest()) if (keepers.includes(one.pid) || !keepers.includes(one.ppid)) signal(one, 'SIGTERM');
			await until(() => rest().length === 0, round === 0 ? 3_000 : 1_500, 'everything has ended').catch(() => {});
		}
		if (rest().length > 0) {
			complaints.push(`left running after SIGTERM:\n${this.tree()}`);
			for (const one of rest()) signal(one, 'SIGKILL');
			await until(() => rest().length === 0, 5_000, 'everything was killed').catch((error) =>
				complaints.push(error.message)
			);
		}
		// The test's own children are waited for by its event loop, which needs a turn for it.
		await until(() => zombiesOf(process.pid).length === 0, 2_000, 'no zombies of the test').catch((error) =>
			complaints.push(error.message)
		);
		const documented = /^[^/]+\.pid(\.claiming|\.exit|\.reaping|\.keeper\.[\w.-]+)?$/;
		const strange = this.files().filter(
			(name) => !documented.test(name) && !this.expectedLeftovers.some((one) => one.test(name))
		);
		if (strange.length > 0) complaints.push(`undocumented files in pidDir: ${strange.join(' ')}`);
		rmSync(this.dir, { recursive: true, force: true });
		if (complaints.length > 0) throw new Error(complaints.join('\n'));
	}
}

/**
 * Signals a process unless it has ended meanwhile, or its number is another's by now.
 * @param {Process} one
 * @param {NodeJS.Signals} name
 */
export function signal(one, name) {
	if (!alive(one.pid, one.started)) return;
	try {
		process.kill(one.pid, name);
	} catch {
		// It ended in between.
	}
}

/**
 * A sandbox that is proven clean when the test ends.
 * @param {import('node:test').TestContext} t
 */
export function sandbox(t) {
	const made = new Sandbox();
	t.after(() => made.finish());
	return made;
}
