// @ts-check
/** Claim rounds: threads and processes that all want the same one at the same moment. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { guard } from '../../lib/index.js';
import { here, sandbox, until } from './support.js';

const rounds = Number(process.env.PG_ROUNDS ?? 60);

test(`${rounds} rounds of claims by four threads, never two processes`, async (t) => {
	const { pidDir, program, running } = sandbox(t);
	const options = { pidDir, processes: [{ name: 'agent', binaryPath: program, args: ['wait'] }] };
	const workers = Array.from({ length: 4 }, () => new Worker(join(here, 'claimant.mjs'), { workerData: options }));
	t.after(() => Promise.all(workers.map((worker) => worker.terminate())));
	const status = await guard({ spawn, ...options });
	await status.stopProcess('agent');
	for (let round = 1; round <= rounds; round++) {
		const states = await Promise.all(
			workers.map((worker) => {
				worker.postMessage('guard');
				return new Promise((resolve) => worker.once('message', resolve));
			})
		);
		const pids = [...new Set(states.map((state) => state.pid))];
		assert.deepEqual(
			states.map((state) => state.error),
			[undefined, undefined, undefined, undefined]
		);
		assert.equal(pids.length, 1, `round ${round}: ${pids}`);
		assert.equal(states.filter((state) => !state.adopted).length, 1, `round ${round}`);
		// The process table is asked now and then: that takes longer than a round.
		if (round % 20 === 0) assert.deepEqual(running(), pids, `round ${round}`);
		const answer = await status.stopProcess('agent');
		if (!answer.stopped) t.diagnostic(`runs ${running()}; ${readdirSync(pidDir)}`);
		assert.deepEqual([answer.stopped, answer.pid], [true, pids[0]], `round ${round}: ${answer.detail}`);
	}
	assert.deepEqual(running(), []);
	await until('nothing runs', () => running().length === 0);
});
