// @ts-check
/** The example component in the stand-in host: its status tells what the process table says. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { StandIn } from '../support/host/stand-in.js';
import { processes, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const example = fileURLToPath(new URL('../../examples/harper-component', import.meta.url));
const authorization = `Basic ${Buffer.from('operator:secret').toString('base64')}`;
const NAME = 'guarded-agent';

/**
 * @param {import('node:test').TestContext} t
 * @param {number} port
 */
async function hostIn(t, port) {
	const box = sandbox(t);
	const host = new StandIn(box, {
		component: example,
		name: NAME,
		generation: '52',
		threads: 2,
		forceExitMs: 800,
		env: { AGENT_PORT: String(port) },
	});
	box.pidDir = join(host.root, NAME);
	await host.boot();
	/** @param {number} [thread] */
	const status = (thread) => host.get('/Processes', { thread, headers: { authorization } });
	const agents = () => processes().filter(({ argv }) => argv[1] === join(host.component, 'agent.js'));
	/**
	 * @param {(one: any, all: any) => any} fact
	 * @param {string} what
	 */
	const when = async (fact, what) => {
		/** @type {any} */
		let last;
		return until(
			async () => {
				last = await status();
				return fact(last.processes[0], last) ? last : null;
			},
			20_000,
			() => `${what}: ${JSON.stringify(last, null, 1)}\n${host.log().join('\n')}`
		);
	};
	return { box, host, status, agents, when };
}

async function freePort() {
	const server = createServer();
	await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
	const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
	await new Promise((resolve) => server.close(resolve));
	return port;
}

test('states, verdicts and costs are those of the process that runs, from a start to a stop', async (t) => {
	const port = await freePort();
	const { box, host, status, agents, when } = await hostIn(t, port);
	const started = await when((one) => one?.verdict.ok === true, 'it is verified');
	const [agent] = agents();
	assert.equal(agents().length, 1);
	const [one] = started.processes;
	assert.deepEqual(
		[one.name, one.title, one.state, one.pid, one.restarts],
		[NAME, 'the agent', 'running', agent.pid, 0]
	);
	assert.match(one.verdict.detail, new RegExp(`answers on port ${port} as pid ${agent.pid}`));
	assert.equal(one.verdict.pid, agent.pid);
	assert.ok(one.cost.rssBytes > 1e6 && one.cost.threads > 1 && one.cost.cpuMs > 0);
	assert.deepEqual([started.supervisor, started.host.pid], ['guard', host.pid]);
	const [reaper] = box.reapers();
	assert.deepEqual([started.reaper.running, started.reaper.pid], [true, reaper.pid]);
	assert.ok(started.reaper.cost.rssBytes > 0 && started.reaper.cost.rssBytes < 30e6);
	assert.match(started.reaperLog.join('\n'), /watching pid/);
	for (const thread of [0, 1]) assert.equal((await status(thread)).processes[0].pid, agent.pid);

	process.kill(agent.pid, 'SIGKILL');
	const again = await when((each) => each.pid !== agent.pid && each.verdict.ok, 'it was restarted and verified again');
	assert.deepEqual([again.processes[0].restarts, again.processes[0].verdict.pid], [1, agents()[0].pid]);

	await host.restartService();
	assert.equal((await when((each) => each?.verdict.ok, 'the new threads know it')).processes[0].pid, agents()[0].pid);

	process.kill(agents()[0].pid, 'SIGTERM');
	const stopped = await when((each) => each.state === 'stopped', 'it is shown as stopped');
	const [end] = stopped.processes;
	assert.match(end.ended, /SIGTERM/);
	assert.equal(end.cost, null);
	assert.deepEqual(agents(), []);
});

test('an answer on its port from somebody else proves nothing', async (t) => {
	const other = createServer((_request, response) => response.end(JSON.stringify({ pid: process.pid })));
	await new Promise((resolve) => other.listen(0, '127.0.0.1', () => resolve(undefined)));
	t.after(() => other.close());
	const { port } = /** @type {import('node:net').AddressInfo} */ (other.address());
	const { when } = await hostIn(t, port);
	// It cannot listen, so it crashes, and its keeper tries again.
	const {
		processes: [one],
	} = await when((each) => each?.verdict.ok === false, 'it is not verified');
	assert.match(
		one.verdict.detail,
		new RegExp(`port ${port} is answered by pid ${process.pid}, not by pid|nothing answers`)
	);
});

test('a browser gets a page with the same in it, and whoever has no user gets nothing', async (t) => {
	const { host, when } = await hostIn(t, await freePort());
	await when((one) => one?.verdict.ok, 'it is verified');
	const { port } = await host.status();
	const url = `http://127.0.0.1:${port}/Processes`;
	const stranger = await fetch(url);
	assert.deepEqual([stranger.status, stranger.headers.get('www-authenticate')], [401, 'Basic realm="Harper"']);
	assert.doesNotMatch(await stranger.text(), /agent/);
	const json = await fetch(url, { headers: { authorization } });
	assert.equal(json.headers.get('content-type'), 'application/json');
	const page = await fetch(url, { headers: { authorization, accept: 'text/html,application/xhtml+xml,*/*' } });
	assert.match(page.headers.get('content-type') ?? '', /^text\/html/);
	assert.match(page.headers.get('content-security-policy') ?? '', /default-src 'none'/);
	const text = await page.text();
	const [, data] = /<script type="application\/json" id="data">(.*?)<\/script>/s.exec(text) ?? [];
	const {
		processes: [one],
	} = JSON.parse(data);
	assert.equal(processOf(one.pid)?.argv[1], join(host.component, 'agent.js'));
	assert.doesNotMatch(text, /\b(src|href)="(?!data:)/, 'it needs nothing from anywhere');
});
