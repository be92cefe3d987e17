// @ts-check
/**
 * The life of a component in a host, from its first boot to the host's end, on each generation of the host's own spawn.
 * After every step the process table has to hold one process and one reaper and no zombie, and the locks have to say so.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { StandIn } from '../support/host/stand-in.js';
import { alive, zombiesOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { full } from '../support/scale.js';
import { never, until } from '../support/until.js';

const component = fileURLToPath(new URL('../support/host/component', import.meta.url));
const REAPER = 'process-guard-reaper';

/**
 * How long a host that takes over may be away: as long as it takes where one does, so that a loaded machine proves nothing
 * else, and a moment where none will. How long it is away: the real one's worst is 7.9 s.
 */
const patientMs = 120_000;
const briefMs = 1000;
const absentMs = full ? 7900 : 1500;

/**
 * @param {import('node:test').TestContext} t
 * @param {Partial<import('../support/host/stand-in.js').StandInOptions>} options
 */
function scene(t, options) {
	const box = sandbox(t);
	const host = new StandIn(box, { component, threads: 3, forceExitMs: 1500, ...options });
	box.pidDir = join(host.root, 'process-guard');

	/**
	 * @param {string} fingerprint
	 * @param {number} graceMs
	 */
	const configure = (fingerprint, graceMs) =>
		writeFileSync(
			join(host.component, 'settings.json'),
			JSON.stringify({
				reaperGraceMs: graceMs,
				fingerprint: [fingerprint],
				processes: [
					{
						name: 'proc',
						title: 'the process',
						command: box.proc,
						args: [box.marker, `note=${box.file('notes')}:${fingerprint}`],
						restart: { baseMs: 50 },
					},
				],
			})
		);

	/** Two at once are seen although no step looks at that moment. */
	let most = 0;
	let mayBeTwo = false;
	const sampler = setInterval(() => {
		const count = box.running().length;
		if (!mayBeTwo && count > most) most = count;
	}, 20);
	t.after(() => clearInterval(sampler));

	/** Waits until all is as it has to be, and returns the process and the reaper. */
	async function settled({ not = 0, restarts = 0 } = {}) {
		/** @type {any[]} */
		let seen = [];
		let missing = '';
		const complain = (/** @type {string} */ what) => {
			missing = what;
			return null;
		};
		const found = await until(
			async () => {
				const [one, ...others] = box.running();
				if (!one || others.length > 0 || one.pid === not) return complain(`one process: ${box.tree()}`);
				const reapers = box.reapers();
				if (reapers.length !== 1) return complain(`one reaper: ${box.tree()}`);
				const record = box.record();
				if (record?.pid !== one.pid || record.keeper !== one.ppid || record.starting)
					return complain(`a record of ${one.pid}`);
				if (box.record(REAPER)?.pid !== reapers[0].pid) return complain(`a record of the reaper ${reapers[0].pid}`);
				seen = await host.getAll('/Guarded');
				for (const { thread, processes, reaper } of seen) {
					const [state] = processes ?? [];
					const { pid, started, exited, verified } = state ?? {};
					if (pid !== one.pid || !started || exited || verified !== true || state.restarts !== restarts) {
						return complain(`thread ${thread}: ${JSON.stringify(state)}`);
					}
					if (!reaper?.started || reaper.pid !== reapers[0].pid)
						return complain(`thread ${thread}: ${JSON.stringify(reaper)}`);
				}
				const zombies = [host.pid, one.ppid, process.pid].flatMap((pid) => zombiesOf(pid));
				if (zombies.length > 0) return complain(`no zombie: ${zombies.map(({ pid }) => pid)}`);
				return { one, reaper: reapers[0], token: record.token, threads: seen };
			},
			30_000,
			() => `${missing}\n${host.log().join('\n')}`
		);
		assert.equal(most, 1, 'two processes ran at once');
		const names = box.files().filter((name) => !/\.(claiming|exit)$/.test(name));
		assert.deepEqual(names, [`${REAPER}.pid`, 'proc.pid', `proc.pid.keeper.${found.token}`].sort());
		return found;
	}

	/** Waits until the host has left nothing behind. */
	async function nothing() {
		await until(
			() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
			30_000,
			() => `nothing is left: ${box.tree()}`
		);
		assert.deepEqual(
			box.files().filter((name) => !/\.(claiming|exit)$/.test(name)),
			[]
		);
		// The other lives go on in this very process, and their hosts die too.
		await until(() => zombiesOf(process.pid).length === 0, 5000, 'no zombie');
		assert.equal(most, 1, 'two processes ran at once');
	}

	/** @param {() => Promise<void>} run */
	async function withTwo(run) {
		mayBeTwo = true;
		try {
			await run();
		} finally {
			mayBeTwo = false;
		}
	}

	return { box, host, configure, settled, nothing, withTwo };
}

describe('one process, one reaper, no zombie', { concurrency: true }, () => {
	for (const options of /** @type {Partial<import('../support/host/stand-in.js').StandInOptions>[]} */ ([
		{ generation: '51', found: 'boot' },
		{ generation: '52', found: 'root', serialised: true },
		{ generation: 'main', found: 'boot' },
	])) {
		test(`through a whole life, spawn of generation ${options.generation}`, async (t) => {
			const { box, host, configure, settled, nothing, withTwo } = scene(t, options);
			/** @param {string} name */
			const step = (name) => t.diagnostic(`${options.generation}: ${name}`);

			step('boot');
			configure('a', patientMs);
			await host.boot();
			const first = await settled();
			assert.equal(first.threads.filter(({ own }) => !own[0].adopted).length, 1, 'one thread started it');

			step('rolling restart of the threads');
			const before = await host.status();
			await host.restartService({ wait: false });
			assert.ok((await host.status()).most > before.most, 'old and new threads were there together');
			assert.equal((await settled()).one.pid, first.one.pid);
			await until(async () => (await host.status()).threads.length === 3, 20_000, 'the old threads are gone');
			const rolled = await settled();
			assert.deepEqual([rolled.one.pid, rolled.reaper.pid], [first.one.pid, first.reaper.pid]);
			assert.ok(rolled.threads.every(({ thread }) => !before.current.includes(thread)));
			assert.ok(
				rolled.threads.every(({ own }) => own[0].adopted),
				'the thread that started it is gone'
			);

			step('crash');
			process.kill(first.one.pid, 'SIGKILL');
			const second = await settled({ not: first.one.pid, restarts: 1 });
			assert.deepEqual([second.token, second.one.ppid], [first.token, first.one.ppid], 'its keeper restarted it');

			step('crash while threads end');
			const ends = host.operation('end_thread', { thread: 0 });
			process.kill(second.one.pid, 'SIGSEGV');
			await ends;
			const third = await settled({ not: second.one.pid, restarts: 2 });

			step('reaper killed');
			process.kill(third.reaper.pid, 'SIGKILL');
			await until(() => !alive(third.reaper.pid, third.reaper.started), 5000, 'it has ended');
			const { reaper } = await settled({ restarts: 2 });
			assert.equal(box.only().pid, third.one.pid, 'the process is no business of its');

			step('deliberate stop');
			process.kill(third.one.pid, 'SIGTERM');
			await until(
				() => box.record() === null && box.keepers().length === 0,
				10_000,
				'the record and the keeper are gone'
			);
			await until(
				async () => (await host.getAll('/Guarded')).every(({ own }) => own[0].exited && own[0].signal === 'SIGTERM'),
				10_000,
				'every thread knows'
			);
			await never(() => box.running().length > 0, 700, 'a restart after a deliberate stop');
			assert.deepEqual(
				box.reapers().map(({ pid }) => pid),
				[reaper.pid]
			);
			assert.deepEqual(zombiesOf(host.pid), []);

			step('configuration change');
			configure('b', patientMs);
			await host.restartService();
			const changed = await settled();
			assert.equal(box.lines('notes').at(-1), 'b');
			await withTwo(async () => {
				configure('c', patientMs);
				await host.restartService();
				await until(() => !alive(changed.one.pid, changed.one.started), 10_000, 'the old one was asked to end');
			});
			const replaced = await settled({ not: changed.one.pid });
			assert.equal(box.lines('notes').at(-1), 'c');
			assert.equal(replaced.reaper.pid, reaper.pid);

			step('host restart');
			const { pid: firstHost } = host;
			await host.restart({ absentMs });
			assert.notEqual(host.pid, firstHost);
			const restarted = await settled();
			assert.deepEqual([restarted.one.pid, restarted.token], [replaced.one.pid, replaced.token]);
			assert.notEqual(restarted.reaper.pid, replaced.reaper.pid, 'a reaper that watches the new host');

			step('SIGKILL with replacement');
			configure('c', briefMs); // for the reaper of the next host
			await host.kill('SIGKILL');
			assert.ok(existsSync(join(host.root, 'hdb.pid')), 'a killed host leaves its pid file');
			await host.boot();
			const survived = await settled();
			assert.equal(survived.one.pid, replaced.one.pid);

			step('graceful stop');
			assert.deepEqual(await host.kill('SIGTERM'), { code: 0, signal: null });
			assert.equal(existsSync(join(host.root, 'hdb.pid')), false);
			await nothing();

			step('SIGKILL for good');
			await host.boot();
			const last = await settled();
			assert.notEqual(last.one.pid, survived.one.pid);
			await host.kill('SIGKILL');
			await nothing();

			const errors = host.log().filter((line) => line.includes('[error]'));
			assert.deepEqual(errors, []);
			assert.equal(host.output, '');
			const reaperLog = readFileSync(join(host.root, 'log/reaper.log'), 'utf8');
			assert.match(reaperLog, /took over inside the grace window/);
			assert.ok(!alive(last.reaper.pid, last.reaper.started));
		});
	}
});
