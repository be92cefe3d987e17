// @ts-check
import { spawn } from 'node:child_process';
import { parentPort, workerData } from 'node:worker_threads';
import { guard } from '../../lib/index.js';

const status = await guard({ spawn, ...workerData });
parentPort?.postMessage({ ...status.processes[0], report: status.report });
parentPort?.on('message', async (message) => {
	if (message === 'stop') parentPort?.postMessage(await status.stopProcess('agent'));
	if (message === 'state') parentPort?.postMessage({ ...status.processes[0] });
	if (message === 'end') parentPort?.close();
});
