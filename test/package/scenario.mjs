// @ts-check
/**
 * What an application does with the installed package, run from inside that application:
 *
 *   node scenario.mjs PIDDIR MARKER [node]
 *
 * With `node`, the host allows nothing but `node` to be spawned. It prints one line of JSON.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import process from 'node:process';
import { pathToFileURL } from 'node:url';

// By the application's eyes: this file lies in the tests. Yarn's PnP answers through the resolver as well.
const resolve = createRequire(pathToFileURL(`${process.cwd()}/`)).resolve;
const { guard } = await import(pathToFileURL(resolve('harper-process-guard')).href);

const [, , pidDir, marker, only] = process.argv;
/** @type {typeof spawn} */
const limited = (/** @type {any[]} */ ...args) => {
	if (only && args[0] !== only) throw new Error(`${args[0]} may not be spawned`);
	// @ts-expect-error one of its many forms
	return spawn(...args);
};
const log = { info() {}, warn() {}, error() {} };
const status = await guard({
	pidDir,
	spawn: limited,
	log,
	restart: { max: 1, baseMs: 1, capMs: 1 },
	processes: [{ name: 'proc', binaryPath: '/bin/sh', args: ['-c', 'while :; do sleep 600; done', marker] }],
});
const [state] = status.processes;
const first = { pid: state.pid, keeper: state.keeper, error: state.error };
if (first.pid && first.keeper) {
	process.kill(first.pid, 'SIGKILL');
	// The state follows the kernel's news; there is no event on it to wait for.
	const until = Date.now() + 20_000;
	while (state.pid === first.pid && Date.now() < until) await new Promise((again) => setTimeout(again, 20));
}
const second = { pid: state.pid, restarts: state.restarts };
const stopped = await status.stopProcess('proc');
process.stdout.write(`${JSON.stringify({ first, second, stopped, report: status.report })}\n`, () => process.exit());
await once(process, 'exit');
