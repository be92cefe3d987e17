// @ts-check
/**
 * The host of the demo: a Node process whose worker threads all call guard() for the same server, as the threads of a
 * Harper node do. What their loggers are told goes to the narrator, with the thread and the time.
 */
import { spawn } from 'node:child_process';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { guard } from 'harper-process-guard';

const now = () => Number(process.hrtime.bigint()) / 1e6;

if (isMainThread) {
	const [threads, ...options] = process.argv.slice(2);
	/** @type {Map<number, Worker>} */
	const workers = new Map();
	let ready = 0;
	for (let thread = 1; thread <= Number(threads); thread++) {
		const worker = new Worker(new URL(import.meta.url), { workerData: { thread, options } });
		workers.set(thread, worker);
		worker.on('message', (message) => {
			process.send?.({ thread, ...message });
			// All call at one instant: that is the race to look at.
			if (message.event === 'ready' && ++ready === workers.size)
				for (const each of workers.values()) each.postMessage('go');
		});
	}
	process.on('message', async (/** @type {{ ask?: string, terminate?: number }} */ { terminate }) => {
		if (terminate !== undefined) {
			await workers.get(terminate)?.terminate();
			workers.delete(terminate);
			process.send?.({ thread: terminate, event: 'terminated', at: now() });
		} else for (const worker of workers.values()) worker.postMessage('state');
	});
	process.on('disconnect', () => process.exit());
} else {
	const { options } = workerData;
	const [pidDir, server, port, logFile] = options;
	const tell = (/** @type {string} */ level) => (/** @type {string} */ line) =>
		parentPort?.postMessage({ event: 'log', level, line, at: now() });
	/** @type {import('harper-process-guard').GuardStatus | undefined} */
	let status;
	parentPort?.on('message', async (message) => {
		if (message === 'go') {
			const called = now();
			status = await guard({
				pidDir,
				spawn,
				log: { info: tell('info'), warn: tell('warn'), error: tell('error') },
				processes: [{ name: 'web', title: 'web server', binaryPath: process.execPath, args: [server, port] }],
				reaper: { graceMs: 1_500, logFile },
			});
			parentPort?.postMessage({
				event: 'guarded',
				adopted: status.processes[0].adopted,
				took: now() - called,
				at: now(),
			});
		}
		parentPort?.postMessage({ event: 'state', state: { ...status?.processes[0] }, at: now() });
	});
	parentPort?.postMessage({ event: 'ready', at: now() });
}
