// @ts-check
import { spawn } from 'node:child_process';
import { parentPort, workerData } from 'node:worker_threads';
import { guard } from '../../lib/index.js';

parentPort?.on('message', async () => {
	const status = await guard({ spawn, ...workerData });
	parentPort?.postMessage({ ...status.processes[0] });
});
