// @ts-check
/**
 * A storm of signals over a host whose threads call Go, spawn children and come and
 * go. A handler without SA_ONSTACK that runs on a goroutine's stack overwrites its
 * neighbour: without the rules of the loader the host aborts within a second, and it
 * did so once in ten runs with no storm at all.
 *
 *   node test/stress/storm.mjs [--seconds 10] [--to both|process|threads] [--pause-us 50] [--threads 3] [--node path]
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { storm } from '../support/fixtures.js';

const { values } = parseArgs({
	options: {
		seconds: { type: 'string', default: '10' },
		to: { type: 'string', default: 'both' },
		'pause-us': { type: 'string', default: '50' },
		threads: { type: 'string', default: '3' },
		node: { type: 'string', default: process.execPath },
	},
});
const signals = ['SIGCHLD', 'SIGUSR2', 'SIGWINCH', 'SIGTERM', 'SIGURG', 'SIGHUP'];
const numbers = signals.map((name) => constants.signals[/** @type {NodeJS.Signals} */ (name)]);

const host = spawn(values.node, [fileURLToPath(new URL('./storm-host.mjs', import.meta.url)), values.threads], {
	stdio: ['pipe', 'pipe', 'inherit'],
	env: { ...process.env, NODE_TEST_CONTEXT: undefined },
});
const exited = once(host, 'exit');
const lines = createInterface({ input: host.stdout })[Symbol.asyncIterator]();

/** The host's next line, or an error that says how it ended. */
async function nextLine() {
	const { value, done } = await lines.next();
	if (!done) return value;
	const [code, signal] = await exited;
	throw new Error(`the host ended in the storm: code ${code}, signal ${signal}`);
}

assert.equal(await nextLine(), 'ready');
const sender = spawn(
	storm(),
	[String(host.pid), values.to, values.seconds, values['pause-us'], ...numbers.map(String)],
	{
		stdio: ['ignore', 'pipe', 'inherit'],
	}
);
let sent = '';
sender.stdout.on('data', (data) => (sent += data));
await once(sender, 'close');
host.stdin.end('stop\n');

const report = JSON.parse(await nextLine());
const [code, signal] = await exited;
console.log(JSON.stringify({ sent: Number(sent), ...report }));
assert.deepEqual({ code, signal }, { code: 0, signal: null }, 'how the host ended');
assert.equal(report.bad, 0, 'children with a wrong exit code');
for (const [what, least] of Object.entries({ children: 20, calls: 1000, syncs: 1000, workers: 2 })) {
	assert.ok(report[what] >= least, `only ${report[what]} ${what}: the host did not do what the storm is about`);
}
for (const name of signals.slice(1)) assert.ok(report.signals[name] > 0, `the host never saw ${name}`);
console.log(`storm: ${values.seconds} s to ${values.to} on ${report.version}: ok`);
