// @ts-check
/**
 * The figures that matter, in about two minutes: how long a start takes, how soon a death is known, what a restart
 * costs beyond its back-off, and what keeper and reaper cost while nothing happens.
 *
 *   make bench-quick
 *   PG_ORIGINAL=/path/to/the/original/index.js make bench-quick    the JavaScript original beside it
 *
 * PG_BENCH_RUNS (21) and PG_BENCH_IDLE (10, seconds) change how long it takes. The load of the machine is printed with
 * the figures: on a busy one they say nothing.
 */
import { rmSync, watch } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { setTimeout as pause } from 'node:timers/promises';
import { startHost } from '../support/host.js';
import { contextSwitches, memoryOf, processes } from '../support/processes.js';
import { Sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const runs = Number(process.env.PG_BENCH_RUNS ?? 21);
const idleSeconds = Number(process.env.PG_BENCH_IDLE ?? 10);

/** @typedef {{ name: string, unit: string, values: number[] }} Figure */

const now = () => Number(process.hrtime.bigint()) / 1e6;

/** @param {Sandbox} box */
async function stopped(box) {
	for (const one of [...box.keepers(), ...box.reapers()]) process.kill(one.pid, 'SIGTERM');
	// The original's keepers and reapers are Node programs: found by the directory they name.
	for (const one of box.all())
		if (one.argv.some((word) => /(keeper|reaper)\.js$/.test(word))) process.kill(one.pid, 'SIGTERM');
	await until(
		() => box.all().length === 0,
		10_000,
		() => `everything has ended\n${box.tree()}`
	);
	rmSync(box.pidDir, { recursive: true, force: true });
}

/**
 * @param {string} what
 * @param {string | undefined} entry the module to measure; undefined for this package
 */
async function measure(what, entry) {
	/** @type {Figure[]} */
	const figures = [];
	const figure = (/** @type {string} */ name, /** @type {string} */ unit = 'ms') => {
		const made = { name, unit, values: /** @type {number[]} */ ([]) };
		figures.push(made);
		return made.values;
	};
	const box = new Sandbox();
	const host = await startHost({ threads: 8, env: entry ? { PG_PACKAGE: entry } : {} });
	box.hosts.push(host);
	await host.load();
	// Where an original without a keeper of its own runs the process under the host, there is nothing below to count.
	const config = (/** @type {any} */ more = {}) => box.config([], more);
	try {
		// The first start of a host pays for what is loaded once; it is shown apart.
		figure('first start in a host, one thread').push((await host.guard(1, config())).tookMs);
		await stopped(box);
		const alone = figure('start, one thread');
		for (let run = 0; run < runs; run++) {
			alone.push((await host.guard(1, config(), `alone${run}`)).tookMs);
			await stopped(box);
		}
		const reaped = figure('start with a reaper, one thread');
		for (let run = 0; run < runs; run++) {
			reaped.push((await host.guard(1, config({ reaper: {} }), `reaped${run}`)).tookMs);
			await stopped(box);
		}
		const [eight, joined] = [
			figure('start, 8 threads at once, until the last has its answer'),
			figure('join of a running process, one thread'),
		];
		for (let run = 0; run < runs; run++) {
			const results = await host.guardAll(config(), { key: `eight${run}` });
			eight.push(
				Math.max(...results.map((result) => result.resolved)) - Math.min(...results.map((result) => result.called))
			);
			joined.push((await host.guard(0, config(), `joined${run}`)).tookMs);
			await stopped(box);
		}

		const [owner, joiner, restart] = [
			figure('SIGKILL to exited on the owner'),
			figure('SIGKILL to exited on a joined thread'),
			figure('restart: SIGKILL to the new pid on record, less the back-off'),
		];
		const [ownerPid, joinerPid] = [
			figure('new pid on record to its showing on the owner'),
			figure('new pid on record to its showing on a joined thread'),
		];
		const baseMs = entry ? 1_000 : 200;
		for (let run = 0; run < Math.ceil(runs / 2); run++) {
			const key = `death${run}`;
			await host.guard(1, config({ restart: { baseMs } }), key);
			await host.guard(2, config({ restart: { baseMs } }), key);
			const old = box.only();
			const commit = commitOf(box, old.pid);
			const killed = now();
			process.kill(old.pid, 'SIGKILL');
			const committed = await commit;
			restart.push(committed - killed - baseMs);
			for (const [thread, known, shown] of /** @type {[number, number[], number[]][]} */ ([
				[1, owner, ownerPid],
				[2, joiner, joinerPid],
			])) {
				const renewed = await host.stateUntil(
					thread,
					(state) => state.restarts === 1 && !state.exited && state.pid && state.pid !== old.pid,
					10_000,
					'it shows the restart',
					{ key }
				);
				const changes = await host.call(thread, 'changes', key);
				known.push(changes.find((/** @type {any} */ one) => one.field === 'exited' && one.value).at - killed);
				shown.push(
					changes.find((/** @type {any} */ one) => one.field === 'pid' && one.value === renewed.pid).at - committed
				);
			}
			await stopped(box);
		}

		await host.guard(1, config({ reaper: {} }), 'idle');
		await pause(1_500);
		for (const [name, one] of /** @type {const} */ ([
			['keeper', box.keepers()[0] ?? programNamed(box, 'keeper.js')],
			['reaper', box.reapers()[0] ?? programNamed(box, 'reaper.js')],
		])) {
			if (!one) continue;
			const memory = memoryOf(one.pid);
			figure(`${name}: Private_Dirty`, 'kB').push(memory.privateDirty);
			figure(`${name}: Pss`, 'kB').push(memory.pss);
			figure(`${name}: Rss`, 'kB').push(memory.rss);
			const before = contextSwitches(one.pid);
			await pause(idleSeconds * 1_000);
			figure(`${name}: context switches in ${idleSeconds} idle s`, '').push(contextSwitches(one.pid) - before);
		}
		await stopped(box);
	} finally {
		await host.kill();
		await box.finish();
	}
	print(what, figures);
	return figures;
}

/**
 * When the record first names another pid: told by the kernel, since a look every millisecond would be the largest
 * figure of the table.
 * @param {Sandbox} box
 * @param {number} old
 * @returns {Promise<number>}
 */
function commitOf(box, old) {
	return new Promise((resolve, reject) => {
		const late = setTimeout(() => reject(new Error('no new pid came on record')), 15_000);
		const watcher = watch(box.pidDir, () => {
			const pid = box.record()?.pid ?? 0;
			if (pid <= 0 || pid === old) return;
			const at = now();
			watcher.close();
			clearTimeout(late);
			resolve(at);
		});
	});
}

/**
 * @param {Sandbox} box
 * @param {string} name
 */
function programNamed(box, name) {
	return processes().find(
		(one) =>
			one.argv.some((word) => word.endsWith(`/${name}`)) &&
			one.argv.some((word) => word.includes(box.dir)) &&
			!one.argv.includes('--launch')
	);
}

/**
 * @param {string} title
 * @param {Figure[]} figures
 */
function print(title, figures) {
	const number = (/** @type {number} */ value, /** @type {string} */ unit) =>
		unit === 'ms' ? value.toFixed(2) : String(Math.round(value));
	const rows = figures.map(({ name, unit, values }) => {
		const sorted = values.toSorted((left, right) => left - right);
		return [
			name,
			number(sorted[Math.floor((sorted.length - 1) / 2)], unit),
			number(/** @type {number} */ (sorted.at(-1)), unit),
			unit,
			`${values.length}`,
		];
	});
	const table = [['', 'p50', 'max', 'unit', 'runs'], ...rows];
	const widths = table[0].map((_, column) => Math.max(...table.map((row) => row[column].length)));
	console.log(`\n${title}`);
	for (const row of table)
		console.log(
			row.map((cell, column) => (column === 0 ? cell.padEnd(widths[column]) : cell.padStart(widths[column]))).join('  ')
		);
}

const idle = loadavg()[0];
console.log(
	`Node ${process.version}, ${cpus().length} × ${cpus()[0].model}, load ${idle.toFixed(2)} before the first run`
);
if (idle > 0.5) console.log('This machine is busy: the figures below are worse than what it can do.');
await measure('process guard', undefined);
if (process.env.PG_ORIGINAL) await measure(`the original, ${process.env.PG_ORIGINAL}`, process.env.PG_ORIGINAL);
console.log(`\nload ${loadavg()[0].toFixed(2)} after the last run`);
