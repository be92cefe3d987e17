// @ts-check
/**
 * One guarded process on this Node: started under a keeper, restarted after a crash, joined by a worker, stopped. It
 * uses no more of /proc than whether a pid is there, since under qemu every command line begins with qemu.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { guard } from '../../../lib/index.js';

/** @param {string} pidDir */
const guarded = (pidDir) =>
	guard({
		pidDir,
		spawn,
		restart: { max: 2, baseMs: 1, capMs: 1 },
		// An arm64 program, so that the keeper starts what it would start there.
		processes: [{ name: 'proc', binaryPath: process.execPath, args: ['-e', 'setInterval(() => {}, 1e6)'] }],
	});

if (isMainThread) {
	const dir = mkdtempSync(join(tmpdir(), 'pg-arm64-'));
	const pidDir = join(dir, 'pids');
	const status = await guarded(pidDir);
	const [state] = status.processes;
	try {
		assert.equal(state.error, undefined);
		assert.ok(state.pid && state.keeper, JSON.stringify(state));
		const first = state.pid;
		const worker = new Worker(new URL(import.meta.url), { workerData: pidDir });
		const [joined] = await once(worker, 'message');
		await worker.terminate();
		assert.deepEqual([joined.pid, joined.adopted], [first, true]);
		process.kill(first, 'SIGKILL');
		const until = Date.now() + 60_000;
		while ((!state.pid || state.pid === first) && Date.now() < until)
			await new Promise((again) => setTimeout(again, 50));
		assert.notEqual(state.pid, first);
		assert.equal(state.restarts, 1);
	} finally {
		const stopped = await status.stopProcess('proc', { timeoutMs: 60_000, force: true });
		console.log(JSON.stringify({ node: process.version, arch: process.arch, state, stopped, report: status.report }));
		assert.equal(stopped.stopped, true);
		status.stop();
		rmSync(dir, { recursive: true, force: true });
	}
} else {
	const [state] = (await guarded(workerData)).processes;
	parentPort?.postMessage({ pid: state.pid, adopted: state.adopted, error: state.error });
}
