// @ts-check
/** What a host goes through while one system call goes wrong. Each arms when what it is about begins. */
import { existsSync } from 'node:fs';
import { startHost } from '../support/host.js';
import { alive } from '../support/processes.js';
import { patience, until } from '../support/until.js';

/** @typedef {import('./walk.js').Walk} Walk */

/**
 * @typedef {object} Scenario
 * @property {string[]} roles whose calls go wrong
 * @property {Record<string, any>} [again] what the next caller wants beside the usual
 * @property {(walk: Walk) => Promise<void>} run
 */

/**
 * A process that runs before anything goes wrong.
 * @param {Walk} walk
 */
async function running(walk) {
	const { processes } = await walk.guard(walk.first, 1, walk.config());
	return processes[0].pid;
}

/**
 * @param {Walk} walk
 * @param {(state: any) => any} fact
 * @param {string} description
 */
const shown = (walk, fact, description) => walk.first.stateUntil(1, fact, 8_000, description, { key: walk.key });

/** @type {Record<string, Scenario>} */
export const scenarios = {
	/** One thread starts it, another joins it. */
	start: {
		roles: ['host', 'launch', 'keep', 'hold'],
		async run(walk) {
			await walk.arm();
			await walk.guard(walk.first, 1, walk.config());
			await walk.guard(walk.first, 2, walk.config());
		},
	},

	/** Over the record of a process whose number and command line are a stranger's by now. */
	stale: {
		roles: ['host'],
		async run(walk) {
			walk.plant('proc', await walk.stranger());
			await walk.arm();
			await walk.guard(walk.first, 1, walk.config());
		},
	},

	/** It crashes and is started again. */
	crash: {
		roles: ['host', 'keep', 'hold'],
		async run(walk) {
			const pid = await running(walk);
			await walk.arm();
			process.kill(pid, 'SIGKILL');
			// Every held child is another process, in which the same goes wrong: that restart is tried again and again.
			const tries = () => walk.call.startsWith('hold/') && walk.box.exitRecord()?.error;
			const state = await shown(
				walk,
				(one) =>
					(one.restarts > 0 && one.pid !== pid && !one.exited && !tries()) ||
					(one.exited && (walk.box.keepers().length === 0 || tries())),
				'it runs again, or is given up'
			);
			if (state.exited) walk.failed = `it was not restarted: ${state.error ?? tries()}`;
		},
	},

	/** It is asked to end, by an operator. */
	stop: {
		roles: ['host', 'keep'],
		async run(walk) {
			const pid = await running(walk);
			await walk.arm();
			process.kill(pid, 'SIGTERM');
			await shown(walk, (one) => one.exited, 'it has ended');
			await until(() => walk.box.keepers().length === 0, 8_000, 'so has its keeper');
		},
	},

	/** It is asked to end, by its host. */
	'stop-process': {
		roles: ['host', 'keep'],
		async run(walk) {
			await running(walk);
			await walk.arm();
			const answer = await walk.first
				.call(1, 'stopProcess', walk.key, 'proc', { timeoutMs: 6_000 })
				.catch((error) => ({ stopped: false, detail: error.message }));
			walk.said.push(answer.detail);
			if (!answer.stopped) walk.failed = `stopProcess: ${answer.detail}`;
			else await shown(walk, (one) => one.exited, 'it has ended');
		},
	},

	/** Another version takes its place. */
	version: {
		roles: ['host', 'launch', 'keep', 'hold'],
		again: { version: 2, stopOrphans: true, replaceGraceMs: 2_000, replaceKill: true },
		async run(walk) {
			await running(walk);
			await walk.arm();
			await walk.guard(
				walk.first,
				2,
				walk.config({ version: 2, stopOrphans: true, replaceGraceMs: 2_000, replaceKill: true })
			);
		},
	},

	/** A reaper is started. */
	watch: {
		roles: ['reap-launch', 'reap'],
		async run(walk) {
			await reaped(walk, true);
		},
	},

	/** A host is killed and its reaper acts. A record beside it names a stranger. */
	reap: {
		roles: ['reap'],
		async run(walk) {
			walk.plant('other', await walk.stranger());
			await reaped(walk, false);
		},
	},

	/** Two hosts start it at once, and one of them is held up wherever the walk says. */
	race: {
		roles: ['host'],
		async run(walk) {
			await walk.first.guard(2, { ...walk.config(), processes: [] }, walk.key);
			/** @type {() => void} */
			let over = () => {};
			walk.goOn = new Promise((resolve) => {
				over = resolve;
				setTimeout(resolve, 2_500 * patience);
			});
			await walk.arm();
			const first = walk.guard(walk.first, 1, walk.config());
			// The other one comes when the first is where it is held up, or is past it.
			await until(
				() => walk.box.lines('trace').some((line) => line.startsWith('fault ')) || existsSync(walk.box.file('starts')),
				4_000,
				'the first is held up, or through'
			).catch(() => {});
			await walk.guard(walk.next, 1, walk.config(), `${walk.key}-race`);
			over();
			await first;
			await walk.next.call(1, 'stop', `${walk.key}-race`);
		},
	},
};

/**
 * @param {Walk} walk
 * @param {boolean} fromTheStart whether the reaper's own start counts
 */
async function reaped(walk, fromTheStart) {
	const { box } = walk;
	const host = await startHost({ env: { PG_PACKAGE: walk.entry } });
	walk.extra.push(host);
	if (fromTheStart) await walk.arm();
	const { processes, reaper } = await walk.guard(
		host,
		0,
		walk.config({
			reaper: { graceMs: 50, logFile: box.file('log'), spawnOptions: { env: { ...process.env, ...walk.faults() } } },
		})
	);
	if (reaper.error) {
		// The process runs on without a reaper, as it says.
		await host.kill();
		return;
	}
	await until(() => box.lines('log').some((line) => line.includes('watching')), 3_000, 'the reaper watches').catch(
		() => {}
	);
	if (!fromTheStart) await walk.arm();
	await host.kill();
	await until(
		() => !alive(reaper.pid),
		15_000,
		() => `the reaper has ended\n${box.lines('log').join('\n')}`
	);
	if (alive(processes[0].pid)) walk.failed = 'the reaper left it running';
}
