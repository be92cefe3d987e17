// @ts-check
/** A real nginx: a master that renames itself, with workers of its own. */
import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { freePort, get } from '../support/ports.js';
import { alive, childrenOf, processOf, processes as table } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { findService } from '../support/services.js';
import { never, until } from '../support/until.js';

const nginx = findService('nginx');

/** @param {import('node:test').TestContext} t */
async function guarded(t) {
	const box = sandbox(t);
	const port = await freePort();
	mkdirSync(box.file('www'));
	// The workers change their user.
	chmodSync(box.dir, 0o755);
	writeFileSync(
		box.file('nginx.conf'),
		`daemon off;
worker_processes 2;
pid ${box.file('nginx.pid')};
error_log ${box.file('error.log')};
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path ${box.file('www')}/body;
	proxy_temp_path ${box.file('www')}/proxy;
	fastcgi_temp_path ${box.file('www')}/fastcgi;
	uwsgi_temp_path ${box.file('www')}/uwsgi;
	scgi_temp_path ${box.file('www')}/scgi;
	server { listen 127.0.0.1:${port}; return 200 "worker $pid\\n"; }
}
`
	);
	const config = {
		pidDir: box.pidDir,
		restart: { baseMs: 50 },
		reaper: { graceMs: 300 },
		processes: [
			{
				name: 'nginx',
				binaryPath: nginx?.binary,
				args: ['-p', box.dir, '-c', box.file('nginx.conf')],
				spawnOptions: { env: nginx?.env },
			},
		],
	};
	const host = await (await box.host({ threads: 8 })).load();
	const results = await host.guardAll(config);
	for (const { processes } of results) assert.deepEqual([processes[0].error, processes[0].started], [undefined, true]);
	const { pid } = results[0].processes[0];
	await until(() => answers(port), 10_000, 'nginx answers');
	t.after(() => until(() => group(pid).length === 0, 10_000, 'master and workers have ended with the keeper'));
	return { box, port, config, host, pid };
}

/** @param {number} port */
const answers = async (port) => /^worker \d+$/.test((await get(port))?.trim() ?? '');

/**
 * Master and workers: the process has a group of its own.
 * @param {number} pgid
 */
const group = (pgid) => table().filter((one) => one.pgid === pgid);

const skip = nginx ? false : 'no nginx on this machine and none could be fetched';

test('nginx: one master with its workers for 8 threads, joined although it renamed itself', { skip }, async (t) => {
	const { box, pid, config } = await guarded(t);
	assert.match(processOf(pid)?.argv.join(' ') ?? '', /^nginx: master process/);
	await until(() => childrenOf(pid).length === 2, 5_000, 'two workers');
	assert.equal(processOf(pid)?.ppid, box.keepers()[0].pid);
	const { processes } = await (await box.host()).guard(0, config);
	assert.deepEqual([processes[0].pid, processes[0].adopted, processes[0].error], [pid, true, undefined]);
});

test('a dead worker is the business of nginx; a dead master with its group is started again', { skip }, async (t) => {
	const { port, host, pid } = await guarded(t);
	const [worker] = await until(() => (childrenOf(pid).length === 2 ? childrenOf(pid) : null), 5_000, 'two workers');
	process.kill(worker.pid, 'SIGKILL');
	await until(() => childrenOf(pid).length === 2 && !alive(worker.pid, worker.started), 5_000, 'nginx replaced it');
	assert.equal((await host.state(2)).processes[0].restarts, 0);
	// The way an out-of-memory kill of the whole group ends it.
	process.kill(-pid, 'SIGKILL');
	const next = await host.stateUntil(
		2,
		(state) => state.restarts >= 1 && !state.exited && state.pid !== pid,
		15_000,
		'it was started again'
	);
	await until(() => answers(port), 10_000, 'nginx answers again');
	await until(() => group(pid).length === 0, 5_000, 'nothing of the old group is left');
	t.after(() => until(() => group(next.pid).length === 0, 10_000, 'the second group has ended too'));
});

test('nginx stopped by SIGTERM and by SIGQUIT exits 0 and stays stopped, workers included', { skip }, async (t) => {
	const { box, port, host, pid, config } = await guarded(t);
	process.kill(pid, 'SIGQUIT');
	const state = await host.stateUntil(4, (one) => one.exited, 10_000, 'it shows the end');
	assert.equal(state.code, 0);
	await never(() => answers(port), 300, 'nginx comes back');
	await host.guard(1, config, 'again');
	await until(() => answers(port), 10_000, 'nginx answers again');
	const answer = await host.call(1, 'stopProcess', 'again', 'nginx');
	assert.deepEqual([answer.stopped, answer.code], [true, 0]);
	await until(() => group(answer.pid).length === 0, 5_000, 'no worker is left');
	assert.equal(box.record('nginx'), null);
});

test('nginx adopted by the next host, and stopped by its reaper with all workers', { skip }, async (t) => {
	const { box, config, host, pid } = await guarded(t);
	const next = await box.host({ threads: 1 });
	for (const reaper of box.reapers()) process.kill(reaper.pid, 'SIGTERM');
	await until(() => box.reapers().length === 0, 5_000, 'no reaper interferes');
	await host.kill();
	const { processes } = await next.guard(1, config);
	assert.deepEqual([processes[0].pid, processes[0].adopted], [pid, true]);
	await next.kill();
	await until(
		() => group(pid).length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
		15_000,
		'the reaper stopped it'
	);
});
