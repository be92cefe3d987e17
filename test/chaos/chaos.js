// @ts-check
/**
 * Everything at once, on purpose: hosts that share one pidDir, their threads, keepers, reapers, processes and strangers,
 * while signals, ends, version changes and a bad disk come in an order that a seed decides. What must hold is read from
 * the process table all along, and once more when it has become quiet.
 *
 * What can be promised, by docs/protocol.md:
 *  - never two processes of one name, version and command line, whatever is killed or stopped. All hosts here are in one
 *    pid namespace and leave the files alone, so one known limit is left: a host killed between a direct spawn, which it
 *    comes to when every launcher was killed, and its record. That is counted, and its process ended;
 *  - two of different versions only beside each other, which the orphan rows permit;
 *  - no signal to what is not proven to be a recorded process;
 *  - every guard() answers, and never names a process of another version as the one it asked for;
 *  - no host ends by itself, and none keeps a zombie;
 *  - afterwards one fresh guard() in every thread agrees on one process, and after the end of all hosts the reaper leaves
 *    only what no record names: displaced versions that stopOrphans did not ask to stop.
 */
import { appendFileSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Host } from '../support/host.js';
import { alive, descriptorsOf, memoryOf, processOf } from '../support/processes.js';
import { Sandbox, signal } from '../support/sandbox.js';
import { patience, until } from '../support/until.js';
import { Disk } from './disk.js';
import { at, median, Random, skewed } from './random.js';
import { Table, textOf, versionWord } from './table.js';

/** @typedef {import('./table.js').Seen} Seen */

/**
 * @typedef {object} Slot one place for a host; the first is never killed and never stopped
 * @property {number} number
 * @property {Host | null} host
 * @property {boolean} ready
 * @property {boolean} ending somebody has ended this host on purpose
 * @property {Set<number>} threads those that take calls
 * @property {string[]} under
 */

/**
 * @typedef {object} Options
 * @property {number} seed
 * @property {number} seconds
 * @property {'everything' | 'claims'} profile
 * @property {number} pace the longest pause between two actions, in ms
 * @property {string} logFile
 * @property {Record<string, string | undefined>} env of the hosts
 * @property {boolean} root
 */

const names = ['proc', 'proc', 'proc', 'side'];
const versions = [1, 2, 3];
const reaperName = 'process-guard-reaper';
/** Names in pidDir that the documentation gives; a writer that is killed leaves its temporary file until the next claim. */
const documented = /^[^/]+\.pid(\.claiming|\.exit|\.reaping|\.keeper\.[\w.-]+|(\.exit)?\.[\w.-]+\.tmp)?$/;
const scanMs = 15;
/** Far beyond every budget in here: who has no answer by then never gets one. */
const answerMs = 60_000;
const zombieMs = 10_000;
const claimTimeoutMs = 4_000;

/** What a guard() may ask for beside its version. */
const wishes = [
	{},
	{},
	{},
	{ stopOrphans: true },
	{ stopOrphans: true },
	{ stopOrphans: true, replaceGraceMs: 300, replaceKill: true },
	{ stopOrphans: true, replaceGraceMs: 200 },
	// Through `node lib/launch.js`, which takes its time.
	{ spawn: { kind: 'bare-node' } },
	{ stopOrphans: true, spawn: { kind: 'bare-node' } },
	{ abort: 12 },
];

/**
 * Whom nobody may signal, each with the file in which it counts signals: one whose command line begins with that of a
 * guarded process, as a match asks for, and one with another. Both are named by records that are planted.
 */
const strangers = ['twin', 'stranger'];

export class Chaos {
	/** @type {string[]} */
	violations = [];
	/** @type {string[]} the last actions */
	#recent = [];
	/** @type {Slot[]} */
	slots = [];
	/** @type {Map<number, { one: Seen, timer: NodeJS.Timeout, since: number }>} whom we have stopped */
	#stopped = new Map();
	/** @type {Map<number, number>} when a host went on after a stop */
	#resumed = new Map();
	/** @type {Set<{ what: string, host: Host, since: number, settled?: boolean }>} */
	#calls = new Set();
	/** @type {Set<Promise<unknown>>} */
	#starting = new Set();
	#began = performance.now();
	actions = 0;
	hosts = 0;
	/** @type {Record<string, number>} */
	counts = {};
	/** @type {Record<string, { rss: number, fds: number, threads: number }>} */
	held = {};
	/** @type {string[]} */
	#lines = [];
	#watching = true;
	#busyMs = 0;

	/** @param {Options} options */
	constructor(options) {
		this.options = options;
		this.random = new Random(options.seed);
		this.box = new Sandbox();
		this.disk = options.root && options.profile === 'everything' ? new Disk(this.box.pidDir) : null;
		this.replacement = this.box.file('host.pid');
		this.reaperLog = this.box.file('reaper.log');
		writeFileSync(options.logFile, '');
		this.table = new Table({
			dir: this.box.dir,
			program: this.box.proc,
			marker: this.box.marker,
			log: (line) => this.note(`\t${line}`),
		});
	}

	/** @param {string} line */
	note(line) {
		this.#lines.push(`${((performance.now() - this.#began) / 1000).toFixed(3).padStart(9)} ${line}`);
		if (this.#lines.length > 200) this.flush();
	}

	flush() {
		if (this.#lines.length > 0) appendFileSync(this.options.logFile, `${this.#lines.join('\n')}\n`);
		this.#lines = [];
	}

	/**
	 * @param {string} kind
	 * @param {string} text
	 */
	act(kind, text) {
		this.actions++;
		this.counts[kind] = (this.counts[kind] ?? 0) + 1;
		const line = `#${this.actions} ${kind} ${text}`;
		this.note(line);
		this.#recent.push(`${((performance.now() - this.#began) / 1000).toFixed(3)} ${line}`);
		if (this.#recent.length > 30) this.#recent.shift();
	}

	/** Ends the run where it is, and still leaves nothing behind. */
	interrupt() {
		this.violations.push('interrupted');
	}

	/** @param {string} what */
	violation(what) {
		if (this.violations.length >= 5 || this.violations.some((one) => one.startsWith(what.slice(0, 40)))) return;
		this.violations.push(what);
		const seconds = ((performance.now() - this.#began) / 1000).toFixed(3);
		const files = this.box.files().map((name) => {
			const text = name.endsWith('.claiming') ? '' : textOf(join(this.box.pidDir, name)).replaceAll('\0', '').trim();
			return `  ${name}: ${text.replaceAll('\n', ' ').slice(0, 700)}`;
		});
		const text = [
			`VIOLATION seed ${this.options.seed} at ${seconds} s: ${what}`,
			'the last actions:',
			...this.#recent.map((line) => `  ${line}`),
			'the table:',
			...this.table
				.text()
				.split('\n')
				.map((line) => `  ${line}`),
			'the directory:',
			...files,
			'the reaper log:',
			...textOf(this.reaperLog)
				.trim()
				.split('\n')
				.slice(-30)
				.map((line) => `  ${line}`),
		].join('\n');
		this.note(text);
		this.flush();
		console.error(text);
	}

	/** Looks at everything that must hold at every instant. */
	look() {
		const now = performance.now();
		this.table.scan(now);
		const doubles = this.table.doubles();
		const unknown = doubles.find((one) => one.direct && !this.living().some((slot) => slot.host?.pid === one.direct));
		if (unknown) {
			this.act(
				'known-limit',
				`${unknown.key} pid ${unknown.pid}: started without a keeper by host ${unknown.direct}, which has ended`
			);
			signal(unknown, 'SIGKILL');
		} else if (doubles.length > 0)
			this.violation(
				`two of one version: ${doubles.map((one) => `${one.key} is pid ${one.pid} (of ${one.ppid}, ${one.state})`).join(', ')}`
			);
		if (this.table.scans % 20 !== 0) return;
		for (const zombie of this.table.zombies(now)) {
			const since = Math.max(zombie.since, this.#resumed.get(zombie.ppid) ?? 0);
			if (!this.#stopped.has(zombie.ppid) && now - since > zombieMs * patience)
				this.violation(
					`zombie ${zombie.pid} (${zombie.role}) of host ${zombie.ppid} for ${Math.round(now - since)} ms`
				);
		}
		const strange = this.box.files().filter((name) => !documented.test(name));
		if (strange.length > 0) this.violation(`undocumented files: ${strange.join(' ')}`);
		for (const [index, child] of this.box.children.entries()) {
			const got = textOf(this.box.file(strangers[index])).trim();
			if (got || !alive(Number(child.pid)))
				this.violation(`${strangers[index]}, pid ${child.pid}, got a signal: ${got || 'it is gone'}`);
		}
		for (const slot of this.slots) {
			const { host } = slot;
			if (!host) continue;
			if (host.exit && !slot.ending)
				this.violation(`host ${host.pid} ended by itself: ${JSON.stringify(host.exit)}\n${host.output.slice(-4000)}`);
			const thrown = /^thread \d+: .*/m.exec(host.output);
			if (thrown) this.violation(`an error in a thread of host ${host.pid}: ${thrown[0]}`);
		}
		for (const call of this.#calls) {
			if (this.#stopped.has(call.host.pid)) call.since = now;
			const since = Math.max(call.since, this.#resumed.get(call.host.pid) ?? 0);
			if (now - since > answerMs * patience)
				this.violation(`no answer for ${Math.round(now - since)} ms: ${call.what}`);
		}
	}

	async watch() {
		while (this.#watching) {
			const began = performance.now();
			this.look();
			const took = performance.now() - began;
			this.#busyMs += took;
			// A slow machine has others to serve too.
			await pause(Math.max(scanMs, took * 3));
		}
	}

	/**
	 * @param {number} version
	 * @param {string} name
	 * @param {Record<string, any>} [more]
	 */
	config(version, name, more = {}) {
		const words = [`${versionWord}${name}-v${version}`, `starts=${this.box.file('starts')}`, 'usr1=exit:3'];
		// One version takes its time to end or has to be killed, so that replacing and reaping meet it ending.
		if (version === 2) words.push(name === 'proc' ? 'term=slow:150' : 'term=ignore');
		return {
			pidDir: this.box.pidDir,
			version,
			claimTimeoutMs,
			restart: { max: 4, baseMs: 20, capMs: 200 },
			reaper: { graceMs: 300, replacementPidFile: this.replacement, logFile: this.reaperLog },
			processes: [{ name, binaryPath: this.box.proc, args: [this.box.marker, ...words] }],
			observed: false,
			...more,
		};
	}

	/**
	 * @param {Slot} slot
	 * @param {number} thread
	 * @param {string} op
	 * @param {...any} args
	 */
	async call(slot, thread, op, ...args) {
		const host = /** @type {Host} */ (slot.host);
		const call = {
			what: `${op} ${args[0] ?? ''} in thread ${thread} of host ${host.pid}`,
			host,
			since: performance.now(),
		};
		this.#calls.add(call);
		try {
			return await host.call(thread, op, ...args);
		} catch (error) {
			// An ended host or thread owes no answer.
			if (/has ended|host ended|does not run|EPIPE|ERR_IPC_CHANNEL_CLOSED|channel closed/i.test(String(error)))
				return null;
			if (/changed its mind/.test(String(error))) return null;
			this.violation(`${call.what} was rejected: ${error} ${/** @type {any} */ (error).remoteStack ?? ''}`);
			return null;
		} finally {
			this.#calls.delete(call);
		}
	}

	/**
	 * @param {Slot} slot
	 * @param {number} thread
	 * @param {number} version
	 * @param {string} name
	 * @param {Record<string, any>} [more]
	 */
	async guard(slot, thread, version, name, more = {}) {
		const pid = slot.host?.pid;
		// One watch per thread and name, as a component has it; the earlier one is let go.
		await this.call(slot, thread, 'stop', name);
		if (slot.host?.pid !== pid) return null;
		const result = await this.call(slot, thread, 'guard', name, this.config(version, name, more));
		if (!result) return null;
		const [state] = result.processes;
		this.note(
			`\tguard of ${name}-v${version} in thread ${thread} of host ${pid} after ${Math.round(result.tookMs)} ms: ${state.error ?? `pid ${state.pid}${state.adopted ? ' adopted' : ''}${state.exited ? ' exited' : ''}`} | ${result.report.join(' | ').slice(0, 900)}`
		);
		if (state.started && !state.error) {
			const one = processOf(state.pid);
			const word = one?.argv[0] === this.box.proc ? one.argv.find((each) => each.startsWith(versionWord)) : undefined;
			if (word && word !== `${versionWord}${name}-v${version}`)
				this.violation(`guard() of ${name}-v${version} answered with pid ${state.pid}, which is ${word}`);
		}
		return result;
	}

	/**
	 * @param {Slot} slot
	 * @param {number} part decides the form of the host
	 * @param {number} threads
	 */
	async startHost(slot, part, threads = 2) {
		// A clock step cannot be had alone on a shared machine; another time namespace shows the same other clock.
		const shift = at([[], [], ['86400', '86400'], ['3600', '-1000'], ['-600', '90000']], part) ?? [];
		slot.under =
			shift.length > 0 && this.options.root && slot.number > 0
				? ['unshare', '--fork', '--time', '--boottime', shift[0], '--monotonic', shift[1]]
				: [];
		const host = new Host({
			threads,
			under: slot.under,
			execArgv: slot.number === 0 ? ['--expose-gc'] : [],
			env: this.options.env,
		});
		this.box.hosts.push(host);
		Object.assign(slot, { host, ready: false, ending: false, threads: new Set(host.threadNumbers()) });
		this.hosts++;
		try {
			await host.ready;
			this.table.hosts.add(host.pid);
			slot.ready = true;
			this.note(`\thost ${host.pid} in slot ${slot.number} is ready ${slot.under.join(' ')}`);
		} catch (error) {
			this.violation(`host in slot ${slot.number} did not start: ${error}`);
		}
	}

	/** @param {Promise<unknown>} start a host or a thread that the end of the run waits for */
	onTheWay(start) {
		this.#starting.add(start);
		start.finally(() => this.#starting.delete(start));
	}

	/**
	 * A new thread takes calls, and can be ended, once it has loaded the package: Node 20 keeps a descriptor for each module
	 * that a thread was reading when it was ended (257 after 300 threads with nothing of ours in them; Node 22 keeps none).
	 * @param {Slot} slot
	 * @param {number} thread
	 */
	async startThread(slot, thread) {
		const { host } = slot;
		if (!(await this.call(slot, 0, 'startWorker', thread))) return;
		if ((await this.call(slot, thread, 'load')) && slot.host === host) slot.threads.add(thread);
	}

	living() {
		return this.slots.filter((slot) => slot.ready && slot.host?.exit === null && !slot.ending);
	}

	/**
	 * @param {Seen | undefined} one
	 * @param {number} ms
	 */
	stopFor(one, ms) {
		if (!one || this.#stopped.has(one.pid) || !alive(one.pid, one.started)) return false;
		signal(one, 'SIGSTOP');
		const timer = setTimeout(() => this.resume(one.pid), ms);
		this.#stopped.set(one.pid, { one, timer, since: performance.now() });
		return true;
	}

	/** @param {number} pid */
	resume(pid) {
		const held = this.#stopped.get(pid);
		if (!held) return;
		clearTimeout(held.timer);
		this.#stopped.delete(pid);
		this.#resumed.set(pid, performance.now());
		signal(held.one, 'SIGCONT');
	}

	/** @param {Slot} slot */
	hostProcess(slot) {
		return this.table.of('host').find((one) => one.pid === slot.host?.pid);
	}

	/** A record of another boot's, or of a process that had the pid before: whoever acts on it signals a stranger. */
	plant(/** @type {number} */ part) {
		const stranger = at(this.box.children, part);
		if (!stranger?.pid || this.disk?.state === 'read-only') return false;
		const inode = Math.floor(part * 1e6) + 1;
		const started = `${textOf('/proc/sys/kernel/random/boot_id').trim()}:1${inode}`;
		const argv = processOf(stranger.pid)?.argv ?? [];
		const line = {
			token: `1.1.1.${inode.toString(16).padStart(16, '0')}`,
			host: 1,
			argv,
			started,
			inode,
			uid: process.getuid?.(),
		};
		const file = join(this.box.pidDir, 'planted.pid');
		try {
			writeFileSync(`${file}.1.tmp`, `${stranger.pid}\n1\n${JSON.stringify(line)}\n`, { mode: 0o600 });
			renameSync(`${file}.1.tmp`, file);
		} catch {
			return false;
		}
		return true;
	}

	/**
	 * The actions with their weights. Every step draws the same number of parts, whatever it finds to act upon.
	 * @type {[weight: number, kind: string, run: (this: Chaos, a: number, b: number, c: number) => string | false][]}
	 */
	static actions = [
		[
			34,
			'guard',
			function (a, b, c) {
				const slot = at(this.living(), a);
				const thread = slot && at([...slot.threads], b);
				if (!slot || thread === undefined) return false;
				const [version, name] = [at(versions, c) ?? 1, at(names, (c * 97) % 1) ?? 'proc'];
				const more = at(wishes, (c * 31) % 1);
				this.guard(slot, thread, version, name, more);
				return `${name}-v${version} ${JSON.stringify(more)} in thread ${thread} of host ${slot.host?.pid}`;
			},
		],
		[
			9,
			'guard-everywhere',
			function (a, _b, c) {
				const version = at(versions, a) ?? 1;
				const stopOrphans = c < 0.5;
				const instant = Date.now() + 40;
				for (const slot of this.living())
					for (const thread of slot.threads) this.guard(slot, thread, version, 'proc', { stopOrphans, at: instant });
				return `proc-v${version} stopOrphans ${stopOrphans}`;
			},
		],
		[
			8,
			'kill-process',
			function (a, b) {
				const one = at(this.table.of('guarded'), a);
				const how = at(
					/** @type {NodeJS.Signals[]} */ ([
						'SIGKILL',
						'SIGKILL',
						'SIGKILL',
						'SIGABRT',
						'SIGUSR1',
						'SIGTERM',
						'SIGTERM',
					]),
					b
				);
				if (!one || !how) return false;
				signal(one, how);
				return `${how} to ${one.key} pid ${one.pid}`;
			},
		],
		[
			3,
			'stop-process-signal',
			function (a, b) {
				const one = at(this.table.of('guarded'), a);
				const ms = Math.round(skewed(b, 20, 3_000));
				return this.stopFor(one, ms) && `${one?.key} pid ${one?.pid} for ${ms} ms`;
			},
		],
		[
			6,
			'kill-keeper',
			function (a, b) {
				const one = at(this.table.of('keeper'), a);
				const how = at(/** @type {NodeJS.Signals[]} */ (['SIGKILL', 'SIGKILL', 'SIGKILL', 'SIGTERM']), b);
				if (!one || !how) return false;
				signal(one, how);
				return `${how} to pid ${one.pid}`;
			},
		],
		[
			5,
			'stop-keeper',
			function (a, b) {
				const one = at(this.table.of('keeper'), a);
				const ms = Math.round(skewed(b, 10, 6_000));
				return this.stopFor(one, ms) && `pid ${one?.pid} for ${ms} ms`;
			},
		],
		[
			5,
			'hit-start',
			function (a, b, c) {
				// Whatever is just on its way: launchers and held children live for milliseconds, so the table is read anew.
				this.look();
				const one = at([...this.table.of('launcher'), ...this.table.of('held')], a);
				if (!one) return false;
				const ms = Math.round(skewed(c, 5, 5_000));
				if (b < 0.5) signal(one, 'SIGKILL');
				else if (!this.stopFor(one, ms)) return false;
				return `${b < 0.5 ? 'SIGKILL' : `SIGSTOP for ${ms} ms`} to ${one.role} ${one.pid}`;
			},
		],
		[
			3,
			'kill-keeper-and-process',
			function (a, b) {
				const one = at(this.table.of('guarded'), a);
				const keeper = this.table.of('keeper').find((each) => each.pid === one?.ppid);
				if (!one || !keeper) return false;
				for (const each of b < 0.5 ? [one, keeper] : [keeper, one]) signal(each, 'SIGKILL');
				return `${one.key} pid ${one.pid}, keeper ${keeper.pid}`;
			},
		],
		[
			5,
			'hit-reaper',
			function (a, b, c) {
				const one = at(this.table.of('reaper'), a);
				if (!one) return false;
				const how = at(/** @type {NodeJS.Signals[]} */ (['SIGKILL', 'SIGTERM', 'SIGSTOP', 'SIGSTOP']), b);
				const ms = Math.round(skewed(c, 10, 5_000));
				if (how === 'SIGSTOP' && !this.stopFor(one, ms)) return false;
				if (how && how !== 'SIGSTOP') signal(one, how);
				return `${how} to pid ${one.pid} (${ms} ms)`;
			},
		],
		[
			4,
			'end-host',
			function (a, b) {
				const slot = at(
					this.living().filter((each) => each.number > 0),
					a
				);
				if (!slot?.host) return false;
				slot.ending = true;
				if (b < 0.75) slot.host.kill('SIGKILL');
				else if (b < 0.9) slot.host.call(0, 'exit', 3).catch(() => {});
				else slot.host.kill('SIGTERM');
				// What is stopped does not exit by a call or a SIGTERM before it goes on.
				return `${b < 0.75 ? 'SIGKILL' : b < 0.9 ? 'exit' : 'SIGTERM'} of ${slot.host.pid}`;
			},
		],
		[
			7,
			'start-host',
			function (a, b) {
				const slot = this.slots.find((each) => each.number > 0 && (!each.host || each.host.exit !== null));
				if (!slot) return false;
				this.onTheWay(this.startHost(slot, a, 1 + Math.floor(b * 3)));
				return `in slot ${slot.number}`;
			},
		],
		[
			5,
			'stop-host',
			function (a, b) {
				const slot = at(
					this.living().filter((each) => each.number > 0),
					a
				);
				const ms = Math.round(skewed(b, 5, 5_500));
				return slot && this.stopFor(this.hostProcess(slot), ms) ? `${slot.host?.pid} for ${ms} ms` : false;
			},
		],
		[
			6,
			'renew-thread',
			function (a, b, c) {
				const slot = at(this.living(), a);
				const thread = slot && at([...slot.threads], b);
				if (!slot || thread === undefined || thread === 0) return false;
				slot.threads.delete(thread);
				const { host } = slot;
				const config = this.config(at(versions, c) ?? 1, 'proc');
				// Half of them end in the middle of a call of their own.
				const end =
					c < 0.5 ? ['terminate', thread] : ['guardThenTerminate', thread, 'proc', config, Math.floor(b * 60)];
				this.onTheWay(
					this.call(slot, 0, /** @type {string} */ (end[0]), ...end.slice(1)).then(async () => {
						if (slot.host === host) await this.startThread(slot, thread);
					})
				);
				return `${thread} of host ${slot.host?.pid}, ${end[0]}`;
			},
		],
		[
			3,
			'stopProcess',
			function (a, b, c) {
				const slot = at(this.living(), a);
				const thread = slot && at([...slot.threads], b);
				if (!slot || thread === undefined) return false;
				const name = at(names, c) ?? 'proc';
				const { host } = slot;
				this.call(slot, thread, 'state', name).then((state) => {
					if (state && slot.host === host)
						this.call(slot, thread, 'stopProcess', name, name, { timeoutMs: 1_500, force: c < 0.5 }).then((answer) =>
							this.note(`\tstopProcess: ${JSON.stringify(answer)}`)
						);
				});
				return `${name} in thread ${thread} of host ${slot.host?.pid}`;
			},
		],
		[
			2,
			'stop-watch',
			function (a, b) {
				const slot = at(this.living(), a);
				const thread = slot && at([...slot.threads], b);
				if (!slot || thread === undefined) return false;
				this.call(slot, thread, 'stop', 'proc');
				return `thread ${thread} of host ${slot.host?.pid}`;
			},
		],
		[
			3,
			'name-replacement',
			function (a, b) {
				const slot = at(this.living(), a);
				const text = at([`${slot?.host?.pid}`, `${slot?.host?.pid}`, '', '4194304', 'no pid'], b) ?? '';
				writeFileSync(this.replacement, text);
				return text;
			},
		],
		[
			2,
			'plant',
			function (a) {
				return this.plant(a) && 'a stale record of a stranger';
			},
		],
		[
			2,
			'bad-disk',
			function (a, b) {
				if (this.disk?.state !== 'writable') return false;
				const ms = Math.round(skewed(b, 50, 3_000));
				const refused = a < 0.6 ? this.disk.fill() : this.disk.protect();
				if (refused) throw new Error(refused);
				const { state } = this.disk;
				setTimeout(() => this.healDisk(), ms);
				return `${state} for ${ms} ms`;
			},
		],
	];

	healDisk() {
		if (!this.disk || this.disk.state === 'writable') return;
		this.note(`\tthe disk is writable again`);
		const refused = this.disk.heal();
		if (refused) this.violation(`the driver could not mend the disk: ${refused}`);
	}

	async begin() {
		const complaint = this.disk?.mount();
		if (complaint) {
			console.log(`chaos: no full and no read-only disk: ${complaint}`);
			this.disk = null;
		} else if (!this.disk) {
			if (!this.options.root) console.log('chaos: no bad disk and no other clocks: needs root');
			mkdirSync(this.box.pidDir, { mode: 0o700 });
		}
		const claims = this.options.profile === 'claims';
		this.slots = Array.from({ length: claims ? 6 : 4 }, (_, number) => ({
			number,
			host: null,
			ready: false,
			ending: false,
			threads: new Set(),
			under: [],
		}));
		const twin = this.config(1, 'proc').processes[0].args;
		for (const [index, words] of [twin, ['bystander']].entries()) {
			const child = this.box.spawn([...words, 'term=ignore', `signals=${this.box.file(strangers[index])}`]);
			this.table.strangers.add(Number(child.pid));
		}
		await Promise.all(this.slots.map((slot) => this.startHost(slot, slot.number / this.slots.length, claims ? 3 : 2)));
		for (const slot of this.living()) for (const thread of slot.threads) await this.call(slot, thread, 'load');
	}

	/** One step after the other until the time is over. */
	async everything() {
		const total = Chaos.actions.reduce((sum, [weight]) => sum + weight, 0);
		const end = performance.now() + this.options.seconds * 1000;
		const settled = performance.now() + Math.min(this.options.seconds * 200, 60_000);
		while (performance.now() < end && this.violations.length === 0) {
			const [which, a, b, c, wait] = Array.from({ length: 5 }, () => this.random.next());
			let left = which * total;
			const action = Chaos.actions.find(([weight]) => (left -= weight) < 0);
			if (action) {
				const [, kind, run] = action;
				const text = run.call(this, a, b, c);
				this.act(kind, text === false ? '(nothing to act upon)' : text);
			}
			// Bursts and lulls: most of what is interesting happens while the last thing is still under way.
			await pause(skewed(wait, 2, this.options.pace));
			if (!this.held.before && performance.now() > settled && this.options.seconds >= 300) await this.measure('before');
		}
	}

	/**
	 * Rounds of claims: every thread of every host at one instant, and hosts stopped and continued in the middle. Each
	 * round begins with nothing running.
	 */
	async claims() {
		const end = performance.now() + this.options.seconds * 1000;
		while (performance.now() < end && this.violations.length === 0) {
			const version = at(versions, this.random.next()) ?? 1;
			const instant = Date.now() + 60;
			this.act('claims', `proc-v${version}`);
			const calls = this.living().flatMap((slot) =>
				[...slot.threads].map((thread) => this.guard(slot, thread, version, 'proc', { at: instant, reaper: undefined }))
			);
			const [when, ...howLong] = Array.from({ length: 2 + this.slots.length }, () => this.random.next());
			// All but the first are stopped within a millisecond, wherever each of them is then: between its look and its
			// write, if the instant is right. They go on one by one, while the first is long through.
			await pause(Math.max(0, instant - Date.now()) + when * 10);
			for (const slot of this.living().slice(1)) {
				const ms = skewed(howLong[slot.number], 10, 200);
				if (this.stopFor(this.hostProcess(slot), ms))
					this.act('stop-host', `${slot.host?.pid} for ${Math.round(ms)} ms`);
			}
			await Promise.all(calls);
			// The table as it is now: a keeper that the last look has not seen would be left out.
			this.look();
			const keepers = this.table.of('keeper');
			for (const keeper of keepers) signal(keeper, 'SIGTERM');
			for (const one of this.table.of('guarded'))
				if (!keepers.some((keeper) => keeper.pid === one.ppid)) signal(one, 'SIGTERM');
			await until(
				() =>
					['keeper', 'guarded', 'held', 'launcher'].every(
						(role) => this.table.of(/** @type {any} */ (role)).length === 0
					),
				30_000,
				() => `a round is over\n${this.table.text()}`
			).catch((error) => this.violation(String(error)));
		}
	}

	/** Everything that was stopped goes on, the disk is good, and who is on the way arrives. */
	async calm() {
		for (const pid of [...this.#stopped.keys()]) this.resume(pid);
		this.healDisk();
		await Promise.all(this.#starting);
		// A host that was told to end while it was stopped does so now.
		await until(
			() => this.slots.every((slot) => !slot.ending || slot.host?.exit !== null),
			30_000,
			'hosts that were told to end have ended'
		).catch((error) => this.violation(String(error)));
		await until(
			() => this.#calls.size === 0 || this.violations.length > 0,
			answerMs + 5_000,
			() => `every call is answered: ${[...this.#calls].map((call) => call.what).join(', ')}`
		).catch((error) => this.violation(String(error)));
	}

	/** The reapers whose host is over. */
	orphanedReapers() {
		return this.table.of('reaper').filter((one) => {
			const pid = Number(one.argv[one.argv.indexOf('--host-pid') + 1]);
			return !this.living().some((slot) => slot.host?.pid === pid);
		});
	}

	/** What the host that lives through everything holds, when none of its threads has anything to do. */
	async measure(/** @type {'before' | 'after'} */ when) {
		this.act('measure', when);
		await this.calm();
		const [slot] = this.slots;
		const host = /** @type {Host} */ (slot.host);
		for (const thread of host.threadNumbers()) {
			await this.call(slot, 0, 'terminate', thread);
			await this.startThread(slot, thread);
		}
		/** @type {Record<string, number[]>} */
		const samples = { rss: [], fds: [], threads: [] };
		for (let round = 0; round < 9; round++) {
			for (const thread of [0, ...host.threadNumbers()]) await this.call(slot, thread, 'gc');
			await pause(300);
			samples.rss.push(memoryOf(host.pid).rss);
			samples.fds.push(Object.keys(descriptorsOf(host.pid)).length);
			samples.threads.push(readdirSync(`/proc/${host.pid}/task`).length);
		}
		this.held[when] = { rss: median(samples.rss), fds: median(samples.fds), threads: median(samples.threads) };
		this.note(`\theld ${when}: ${JSON.stringify(this.held[when])} ${JSON.stringify(samples)}`);
		for (const [fd, target] of Object.entries(descriptorsOf(host.pid))) {
			const info = textOf(`/proc/${host.pid}/fdinfo/${fd}`);
			this.note(`\t\tdescriptor ${fd} ${target}${/^Pid:.*$/m.exec(info)?.[0].replace('Pid:', ', of pid') ?? ''}`);
		}
	}

	/** Nothing is hurt any more: one fresh guard() in every thread, and all of them agree. */
	async quiet() {
		this.act('quiet', 'nothing is hurt any more');
		await this.calm();
		await until(
			() => this.orphanedReapers().length === 0,
			60_000,
			() =>
				`the reapers of ended hosts are done: ${this.orphanedReapers()
					.map((one) => one.pid)
					.join(' ')}`
		).catch((error) => this.violation(String(error)));
		if (this.violations.length > 0) return;
		for (const name of new Set(names)) {
			const version = at(versions, this.random.next()) ?? 1;
			const key = `${name}-v${version}`;
			this.act('last-guard', key);
			const results = await Promise.all(
				this.living().flatMap((slot) =>
					[...slot.threads].map(async (thread) => ({
						slot,
						thread,
						result: await this.guard(slot, thread, version, name, { stopOrphans: true, claimTimeoutMs: 20_000 }),
					}))
				)
			);
			for (const { slot, thread, result } of results) {
				const error = result?.processes[0].error ?? result?.reaper?.error ?? (result ? undefined : 'no answer');
				if (error) this.violation(`the last guard() of ${key} in thread ${thread} of host ${slot.host?.pid}: ${error}`);
			}
			const mine = () => this.table.of('guarded').filter((one) => one.key === key);
			await until(
				() => mine().length === 1,
				20_000,
				() => `exactly one ${key} runs`
			).catch((error) => this.violation(String(error)));
			for (const { slot, thread } of results) {
				/** @type {any} */
				let state;
				await until(
					async () => {
						state = (await this.call(slot, thread, 'state', name))?.processes[0];
						return state && !state.exited && state.pid === mine()[0]?.pid;
					},
					20_000,
					() =>
						`thread ${thread} of host ${slot.host?.pid} agrees that ${key} is pid ${mine()[0]?.pid}: ${JSON.stringify(state)}`
				).catch((error) => this.violation(String(error)));
			}
		}
	}

	/** The pids that records name. */
	recorded() {
		return new Set(
			this.box
				.files()
				.filter((name) => name.endsWith('.pid') && !name.startsWith(reaperName))
				.map((name) => Number(readFileSync(join(this.box.pidDir, name), 'utf8').split('\n')[0]))
		);
	}

	/** All hosts are killed; what their reapers leave is what no record named. */
	async end() {
		const recorded = this.recorded();
		const displaced = new Set(
			this.table
				.of('guarded')
				.filter((one) => !recorded.has(one.pid))
				.map((one) => one.pid)
		);
		writeFileSync(this.replacement, '');
		this.act('kill-all', `hosts; displaced: ${[...displaced].join(' ') || 'none'}`);
		for (const slot of this.living()) {
			slot.ending = true;
			slot.host?.kill('SIGKILL');
		}
		const rest = () => this.table.of('guarded').filter((one) => !displaced.has(one.pid));
		await until(
			() => this.table.of('host').length === 0 && this.table.of('reaper').length === 0 && rest().length === 0,
			60_000,
			() =>
				`the reapers have ended everything: ${rest()
					.map((one) => `${one.key} pid ${one.pid}`)
					.join(', ')}`
		).catch((error) => this.violation(String(error)));
		// What a displaced version's own keeper does: it passes the signal on, waits and ends.
		for (const one of this.table.of('guarded'))
			signal(this.table.of('keeper').find((each) => each.pid === one.ppid) ?? one, 'SIGTERM');
		await until(() => this.table.of('guarded').length === 0, 2_000, 'most of them').catch(() => {});
		for (const one of this.table.of('guarded')) if (one.argv.includes('term=ignore')) signal(one, 'SIGKILL');
		await until(
			() => this.table.of('guarded').length + this.table.of('keeper').length + this.table.of('held').length === 0,
			30_000,
			'displaced processes and their keepers end by SIGTERM, or SIGKILL where that is ignored'
		).catch((error) => this.violation(String(error)));
		const left = this.box
			.files()
			.filter((name) => !/\.pid(\.claiming|\.exit|\.keeper\.[\w.-]+)$/.test(name) && name !== 'planted.pid');
		if (left.length > 0) this.violation(`the reapers left ${left.join(' ')}`);
		this.note(`\tleft: ${this.box.files().join(' ')}`);
	}

	async run() {
		/** @type {unknown} */
		let broken;
		const watching = this.begin()
			.then(() => this.watch())
			.catch((error) => {
				broken = error;
				this.violation(`the driver failed: ${error?.stack}`);
			});
		await until(() => this.table.scans > 0 || broken, 60_000, 'everything has begun');
		const began = performance.now();
		if (!broken) {
			await (this.options.profile === 'claims' ? this.claims() : this.everything()).catch((error) =>
				this.violation(`the driver failed: ${error?.stack}`)
			);
			if (this.held.before && this.violations.length === 0) await this.measure('after');
			if (this.violations.length === 0) await this.quiet();
			if (this.violations.length === 0) await this.end();
		}
		const took = Math.round((performance.now() - began) / 1000);
		for (const pid of [...this.#stopped.keys()]) this.resume(pid);
		this.healDisk();
		this.#watching = false;
		await watching;
		await Promise.allSettled(this.#starting);
		this.#compare();
		// What was stopped by somebody else, a child of a keeper that was itself stopped in the middle, would not end.
		for (const one of this.table.seen.values()) if (one.state === 'T' && one.role !== 'other') signal(one, 'SIGCONT');
		for (const slot of this.slots) await slot.host?.kill('SIGKILL');
		await pause(0);
		this.disk?.unmount();
		await this.box.finish().catch((error) => {
			if (this.violations.length === 0) this.violation(`something was left: ${error.message}`);
		});
		const restarts = Math.max(0, this.table.generations - 1);
		this.note(
			`counts ${JSON.stringify(this.counts)}, ${this.table.scans} scans, ${Math.round(this.#busyMs)} ms in them`
		);
		this.flush();
		console.log(
			`chaos: seed ${this.options.seed}, ${took} s, ${this.actions} actions, ${this.hosts} hosts, ${restarts} restarts, ${this.violations.length} violations`
		);
		return this.violations.length;
	}

	#compare() {
		const { before, after } = this.held;
		if (!before || !after) return;
		/** Beside the 5 %: what an allocator keeps for itself, and what a thread that has just begun has open. */
		const slack = { rss: 8_192, fds: 4, threads: 2 };
		for (const [what, more] of Object.entries(slack)) {
			const [was, is] = [before, after].map((one) => one[/** @type {keyof typeof slack} */ (what)]);
			console.log(`chaos: the host that stayed: ${what} ${was} -> ${is}${what === 'rss' ? ' KiB' : ''}`);
			if (is > was * 1.05 + more) this.violation(`${what} of the host that stayed grew from ${was} to ${is}`);
		}
		console.log(
			`chaos: ${Object.entries(this.counts)
				.map(([kind, count]) => `${kind} ${count}`)
				.join(', ')}`
		);
	}
}
