// @ts-check
/**
 * The main job, live: a host with 8 worker threads guards one HTTP server. The server, a thread, the keeper and the
 * host are killed in turn; after each step the terminal shows who knew what and when, and which processes there are.
 *
 *   make demo
 */
import { fork } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { freePort, get } from '../../test/support/ports.js';
import { alive, ended, processes } from '../../test/support/processes.js';
import { until } from '../../test/support/until.js';

const threads = 8;
const colour = process.stdout.isTTY && !process.env.NO_COLOR;
const paint = (/** @type {number} */ code) => (/** @type {string} */ text) =>
	colour ? `\x1b[${code}m${text}\x1b[0m` : text;
const [bold, dim, red, green, yellow, blue] = [1, 2, 31, 32, 33, 36].map(paint);

const now = () => Number(process.hrtime.bigint()) / 1e6;
const began = now();

/** @param {string} text */
function say(text, at = now()) {
	console.log(`${dim(`${((at - began) / 1000).toFixed(3).padStart(7)} s`)}  ${text}`);
}

/**
 * A moment to read what happened, then the next step.
 * @param {string} text
 */
async function step(text) {
	if (process.stdout.isTTY && now() - began > 500) await pause(1_500);
	console.log(`\n${bold(text)}`);
}

const here = (/** @type {string} */ name) => fileURLToPath(new URL(name, import.meta.url));
const dir = realpathSync(mkdtempSync(join(tmpdir(), 'process-guard-demo-')));
const pidDir = join(dir, 'guard');
const logFile = join(dir, 'reaper.log');
const port = await freePort();
const server = here('./server.js');

/** @type {any[]} what the threads told, in the order in which it came */
const told = [];
const host = fork(here('./host.js'), [`${threads}`, pidDir, server, `${port}`, logFile], { serialization: 'advanced' });
host.on('message', (message) => told.push(message));

const hostStarted = processes().find((one) => one.pid === host.pid)?.started;
const isOurs = (/** @type {import('../../test/support/processes.js').Process} */ one) =>
	one.pid === host.pid ||
	(one.argv.some((word) => word.includes(dir)) && one.pid !== process.pid) ||
	one.argv[1] === server;
const living = () => processes().filter((one) => isOurs(one) && !ended(one));
const web = () => living().find((one) => one.argv[1] === server);
const keeper = () => living().find((one) => one.argv[1] === 'keep');
const reaper = () => living().find((one) => one.argv.includes('--pid-dir'));

/** @param {import('../../test/support/processes.js').Process} one */
function role(one) {
	if (one.pid === host.pid) return blue(`host      node, ${threads} worker threads at the start`);
	if (one.argv[1] === server) return green(`server    127.0.0.1:${port}`);
	if (one.argv[1] === 'keep') return yellow('keeper    own session; restarts the server');
	if (one.argv.includes('--pid-dir')) return yellow('reaper    own session; waits for the end of the host');
	return one.argv.join(' ');
}

/** The process tree as the kernel has it, without what is not ours. */
function showTree() {
	const shown = living();
	if (shown.length === 0) say(dim('│ no process'));
	for (const one of shown.filter((each) => !shown.some((other) => other.pid === each.ppid))) {
		say(`${dim('│')} ${String(one.pid).padEnd(7)} ${role(one)}`);
		for (const child of shown.filter((each) => each.ppid === one.pid))
			say(`${dim('│')} └─ ${String(child.pid).padEnd(7)} ${role(child)}`);
	}
}

async function showAnswer() {
	const body = await until(() => get(port), 5_000, 'the server answers');
	say(`GET http://127.0.0.1:${port}/ → ${green(body.trim())}`);
}

/**
 * Waits until as many threads said a thing, and shows it as one line with the time that the last of them took.
 * @param {RegExp} pattern
 * @param {number} count
 * @param {number} from index into `told`: what was said before belongs to an earlier step
 * @param {number} [since] when the cause was
 */
async function showSaid(pattern, count, from, since) {
	const said = () => told.slice(from).filter((one) => one.event === 'log' && pattern.test(one.line));
	await until(
		() => new Set(said().map((one) => one.thread)).size >= count,
		15_000,
		() => `${count} threads say ${pattern}; told so far: ${JSON.stringify(told.slice(from))}`
	);
	const lines = said().sort((left, right) => left.at - right.at);
	const times =
		since === undefined
			? ''
			: dim(` (known after ${(lines[0].at - since).toFixed(1)} to ${(lines.at(-1).at - since).toFixed(1)} ms)`);
	const speakers = new Set(lines.map((one) => one.thread));
	const who = speakers.size === 1 ? `thread ${lines[0].thread}` : `${speakers.size} threads`;
	const mark = { info: blue, warn: yellow, error: red }[/** @type {'info' | 'warn' | 'error'} */ (lines[0].level)];
	say(
		`${mark(who.padEnd(9))} ${lines[0].line.replace('process guard: ', '').replaceAll(server, 'server.js').replaceAll(process.execPath, 'node')}${times}`
	);
	return lines;
}

/**
 * The state of every thread, asked for now.
 * @param {number} count
 */
async function states(count) {
	const from = told.length;
	host.send({});
	await until(
		() => told.slice(from).filter((one) => one.event === 'state').length >= count,
		5_000,
		'every thread tells its state'
	);
	return told.slice(from).filter((one) => one.event === 'state');
}

/** @param {number} count */
async function showStates(count) {
	const all = await states(count);
	const text = (/** @type {any} */ { state }) =>
		[
			`pid ${state.pid}, ${state.keeper ? `keeper ${state.keeper}` : red('no keeper')}, restarts ${state.restarts}`,
			...(state.exited ? [`exited by ${state.signal ?? `code ${state.code}`}, proven by the ${state.exitProof}`] : []),
			...(state.error ? [red(state.error)] : []),
		].join(', ');
	for (const line of new Set(all.map(text)))
		say(`state of ${all.filter((one) => text(one) === line).length} threads: ${line}`);
}

/**
 * @param {{ pid: number } | undefined} one
 * @param {string} what
 */
function kill(one, what) {
	if (!one) throw new Error(`there is no ${what} to kill`);
	const at = now();
	process.kill(one.pid, 'SIGKILL');
	say(red(`kill -9 ${one.pid}: the ${what}`), at);
	return at;
}

async function main() {
	await step(`1. A host starts. ${threads} worker threads call guard() at one instant for one HTTP server.`);
	await until(
		() => told.filter((one) => one.event === 'guarded').length === threads,
		15_000,
		'all threads have their answer'
	);
	const [starter] = await showSaid(/started as pid/, 1, 0);
	await showSaid(/joined/, threads - 1, 0);
	const guarded = told.filter((one) => one.event === 'guarded').map((one) => one.took);
	say(`answered after ${Math.min(...guarded).toFixed(1)} to ${Math.max(...guarded).toFixed(1)} ms, reaper included`);
	await showAnswer();
	showTree();

	await step('2. The server crashes: its keeper starts it again after the first back-off of 1 s. Every thread knows.');
	let from = told.length;
	const first = web();
	let at = kill(first, 'server');
	await showSaid(/is gone \(signal SIGKILL\)/, threads, from, at);
	await showStates(threads);
	await showSaid(/runs again/, threads, from);
	await showAnswer();
	await showStates(threads);
	showTree();

	await step(`3. The thread that started it is terminated. Nothing else happens.`);
	from = told.length;
	host.send({ terminate: starter.thread });
	await until(() => told.slice(from).some((one) => one.event === 'terminated'), 5_000, 'the thread has ended');
	say(red(`worker.terminate(): thread ${starter.thread}`));
	await showAnswer();
	await showStates(threads - 1);
	showTree();

	await step('4. The keeper is killed. The server runs on, and the threads go on watching it.');
	from = told.length;
	const lonely = keeper();
	at = kill(lonely, 'keeper');
	await until(() => lonely && !alive(lonely.pid, lonely.started), 5_000, 'the keeper is dead');
	await showSaid(/its keeper .* is gone/, threads - 1, from, at);
	await showAnswer();
	await showStates(threads - 1);
	showTree();

	await step(
		'5. The server crashes without its keeper. The kernel proves how; exactly one thread starts one replacement.'
	);
	from = told.length;
	const second = web();
	at = kill(second, 'server');
	await showSaid(/is gone \(signal SIGKILL\)/, threads - 1, from, at);
	await showStates(threads - 1);
	await until(() => web() && web()?.pid !== second?.pid && keeper(), 15_000, 'a replacement runs under a keeper');
	await showSaid(/started as pid/, 1, from);
	await showAnswer();
	await until(
		async () => (await states(threads - 1)).every(({ state }) => state.pid === web()?.pid && !state.exited),
		10_000,
		'every thread shows the replacement'
	);
	await showStates(threads - 1);
	showTree();

	await step('6. The host is killed. After its grace of 1.5 s the reaper stops what it left.');
	say(
		`in ${pidDir}: ${readdirSync(pidDir)
			.sort()
			.join('  ')
			.replaceAll(/(keeper\.\d+)\S+/g, '$1…')}`
	);
	at = kill(/** @type {{ pid: number }} */ (host), 'host');
	await until(() => living().every((one) => one.pid !== host.pid), 5_000, 'the host is dead');
	showTree();
	await until(() => living().length === 0, 15_000, 'everything has ended');
	for (const line of readFileSync(logFile, 'utf8').trim().split('\n'))
		say(
			`${yellow('reaper'.padEnd(9))} ${line.replace(/^\S+ \[reaper \d+\] /, '').replace(dir, '…')}`,
			// When it happened by its own clock, not when we read of it.
			Date.parse(line.slice(0, line.indexOf(' '))) - Date.now() + now()
		);
	say(`everything ended ${((now() - at) / 1000).toFixed(1)} s after the host`);
	showTree();
	const locks = readdirSync(pidDir).filter(
		(name) => name.endsWith('.pid') || name.endsWith('.reaping') || name.includes('.keeper.')
	);
	say(`locks left: ${locks.length === 0 ? green('none') : red(locks.join(' '))}`);
	if (locks.length > 0) process.exitCode = 1;
	await step(`Done in ${((now() - began) / 1000).toFixed(0)} s. Nothing is left running, and ${dir} is removed.`);
}

/** Ends only what the demo started, by pid: the host first, or its reaper would take its time over the rest. */
async function cleanUp() {
	if (host.pid && alive(host.pid, hostStarted)) host.kill('SIGKILL');
	for (const one of [keeper(), reaper(), web()])
		if (one && alive(one.pid, one.started)) process.kill(one.pid, 'SIGTERM');
	await until(() => living().length === 0, 5_000, 'nothing is left').catch(() => {
		for (const one of living()) process.kill(one.pid, 'SIGKILL');
	});
	rmSync(dir, { recursive: true, force: true });
}

for (const signal of ['SIGINT', 'SIGTERM'])
	process.once(signal, () => {
		console.log(`\n${signal}: nothing is left running, and ${dir} is removed.`);
		cleanUp().finally(() => process.exit(130));
	});

try {
	await main();
} catch (error) {
	console.error(red(`\nthe demo did not go as it should: ${/** @type {Error} */ (error).message}`));
	process.exitCode = 1;
} finally {
	await cleanUp();
}
