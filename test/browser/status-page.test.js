// @ts-check
/**
 * The example's page in a real browser: what it draws, that it refreshes itself, and what it says when the host is gone.
 * `make test-page` installs the browser; without one the tests are skipped.
 */
import assert from 'node:assert/strict';
import { execFile, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { StandIn } from '../support/host/stand-in.js';
import { sandbox } from '../support/sandbox.js';
import { until } from '../support/until.js';

const example = fileURLToPath(new URL('../../examples/harper-component', import.meta.url));
const authorization = `Basic ${Buffer.from('operator:secret').toString('base64')}`;
const chromium = process.env.CHROMIUM ?? 'chromium';
const skip = spawnSync(chromium, ['--version']).status === 0 ? false : `${chromium} is not installed: make test-page`;

/**
 * One run of the browser, with a profile of its own.
 *
 * @param {import('../support/sandbox.js').Sandbox} box
 * @param {string[]} args
 * @returns {Promise<string>}
 */
async function browse(box, ...args) {
	const home = box.file(`browser-${Math.random().toString(36).slice(2)}`);
	mkdirSync(home);
	const flags =
		'--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage';
	return new Promise((resolve, reject) => {
		execFile(
			chromium,
			[...flags.split(' '), `--user-data-dir=${home}`, ...args],
			{ timeout: 60_000, killSignal: 'SIGKILL', env: { ...process.env, HOME: home }, maxBuffer: 1 << 24 },
			(error, stdout, stderr) => (error ? reject(new Error(`${error.message}\n${stderr}`)) : resolve(stdout))
		);
	});
}

/**
 * The example in a host, and a server in front of it through which the browser comes: it signs in, and the test decides
 * when a request for new figures is let through.
 *
 * @param {import('node:test').TestContext} t
 * @param {(count: number) => Promise<boolean> | boolean} admit Asked for each request for figures; false: there is no answer.
 */
async function pageOf(t, admit) {
	const box = sandbox(t);
	const free = http.createServer();
	await new Promise((resolve) => free.listen(0, '127.0.0.1', () => resolve(undefined)));
	const { port } = /** @type {import('node:net').AddressInfo} */ (free.address());
	await new Promise((resolve) => free.close(resolve));
	// The path is in the reaper's log, and the log on the page: it must not become part of the page.
	const rootName = '<!--<script><img src=x onerror=document.title=1>';
	const host = new StandIn(box, {
		component: example,
		rootName,
		name: 'guarded-agent',
		threads: 2,
		env: { AGENT_PORT: String(port) },
	});
	box.pidDir = join(host.root, 'guarded-agent');
	await host.boot();
	const status = () => host.get('/Processes', { headers: { authorization } });
	await until(async () => (await status()).processes[0]?.verdict.ok, 20_000, 'the agent is verified');

	const seen = { pages: 0, figures: 0, others: /** @type {string[]} */ ([]) };
	const front = http.createServer(async (request, response) => {
		const { url = '/', headers } = request;
		if (url !== '/Processes') {
			seen.others.push(url);
			response.writeHead(404).end();
			return;
		}
		if (headers.accept?.includes('text/html')) seen.pages++;
		else if (!(await admit(++seen.figures))) {
			response.destroy();
			return;
		}
		const answer = await host.operation('get', { path: url, headers: { accept: headers.accept, authorization } });
		response.writeHead(answer.status, answer.headers).end(answer.body);
	});
	await new Promise((resolve) => front.listen(0, '127.0.0.1', () => resolve(undefined)));
	t.after(() => {
		front.close();
		front.closeAllConnections();
	});
	const address = /** @type {import('node:net').AddressInfo} */ (front.address());
	return { box, status, seen, url: `http://127.0.0.1:${address.port}/Processes` };
}

/** The text of a document, as a reader sees it. */
const textOf = (/** @type {string} */ html) =>
	html
		.replace(/<(script|style)\b.*?<\/\1>/gs, ' ')
		.replace(/<[^>]+>/g, ' ')
		.replace(/\s+/g, ' ');

test('the page shows what the status says, and comes with everything it needs', { skip }, async (t) => {
	const { box, status, seen, url } = await pageOf(t, () => true);
	const {
		processes: [one],
		reaper,
		host,
	} = await status();
	const html = await browse(box, '--dump-dom', url);
	const text = textOf(html);
	assert.match(html, /<title>Processes<\/title>/);
	assert.doesNotMatch(html, /<img/);
	for (const part of [
		'Processes on this node',
		`host pid ${host.pid}`,
		'supervised by guard',
		'the agent running verified guarded-agent',
		'&lt;!--&lt;script&gt;&lt;img src=x onerror=document.title=1&gt;/guarded-agent',
		one.verdict.detail,
		`${one.pid} pid 0 restarts`,
		'MB memory',
		'Reaper on watch',
		`${reaper.pid} pid`,
		'watching pid',
		'live',
	]) {
		assert.ok(text.includes(part), `${part}: ${text}`);
	}
	assert.deepEqual([seen.pages, seen.others], [1, []]);
});

test('it refreshes itself: a restarted process is on it without a reload', { skip }, async (t) => {
	/** @type {(open: boolean) => void} */
	let open = () => {};
	const gate = new Promise((resolve) => (open = resolve));
	const { box, status, seen, url } = await pageOf(t, (count) => (count === 1 ? gate : true));
	const {
		processes: [before],
	} = await status();
	// Time passes in the page as fast as it can, and not while it waits for an answer.
	const dump = browse(box, '--dump-dom', '--virtual-time-budget=20000', url);
	await until(() => seen.figures === 1, 30_000, 'it asks for new figures');
	process.kill(before.pid, 'SIGKILL');
	const after = await until(
		async () => {
			const {
				processes: [one],
			} = await status();
			return one.pid !== before.pid && one.verdict.ok && one;
		},
		20_000,
		'the agent runs again'
	);
	open(true);
	const text = textOf(await dump);
	assert.ok(text.includes(`${/** @type {any} */ (after).pid} pid 1 restarts`), text);
	assert.ok(!text.includes(`${before.pid} pid`), text);
	assert.match(text, /memory over \d+(\.\d+)? s, up to \d+ MB/);
	assert.equal(seen.pages, 1);
	assert.ok(seen.figures > 2, `${seen.figures} requests`);
});

test('it says since when there is no answer, and keeps what it knew', { skip }, async (t) => {
	const { box, status, url } = await pageOf(t, (count) => count < 3);
	const {
		processes: [one],
	} = await status();
	const html = await browse(box, '--dump-dom', '--virtual-time-budget=12000', url);
	const text = textOf(html);
	assert.match(text, /no answer since \d/);
	assert.match(html, /class="live lost"/);
	assert.ok(text.includes(`${one.pid} pid`), text);
});

test('it draws', { skip }, async (t) => {
	const { box, url } = await pageOf(t, () => true);
	const shot = process.env.PG_SCREENSHOT ?? box.file('page.png');
	await browse(
		box,
		`--screenshot=${shot}`,
		'--window-size=1000,1100',
		'--hide-scrollbars',
		'--virtual-time-budget=30000',
		url
	);
	const png = readFileSync(shot);
	assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [1000, 1100]);
	assert.ok(png.length > 20_000, `${png.length} bytes: an empty page`);
});
