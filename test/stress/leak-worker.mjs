// @ts-check
/** One worker of leak.mjs: joins the process that runs, looks about, and ends in one of three ways. */
import { spawn } from 'node:child_process';
import { parentPort, workerData } from 'node:worker_threads';
import { guard, heldProcess, readProcess } from '../../lib/index.js';

const { config, file, number } = workerData;
const { processes, stop } = await guard({ ...config, spawn });
const [state] = processes;
if (!state.adopted || state.error) throw new Error(`worker ${number} did not join: ${JSON.stringify(state)}`);
if (heldProcess(file)?.pid !== state.pid) throw new Error(`worker ${number} reads another record`);
readProcess(state.pid);
if (number % 3 === 0)
	stop(); // the loop drains
else if (number % 3 === 1) process.exit(7);
else {
	setInterval(() => {}, 1000);
	parentPort?.postMessage('busy');
}
