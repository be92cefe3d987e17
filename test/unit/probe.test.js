// @ts-check
/**
 * Probes against real servers: ones that answer, refuse, stall, lie about their length, or come up late.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { after, afterEach, test } from 'node:test';
import { parseJson, pollEndpoint, pollUnixSocket, tailFile, untraceWith } from 'harper-process-guard';
import { socketPath } from '../../lib/probe.js';
import { selfSigned } from '../support/certificate.js';

const dir = mkdtempSync(join(tmpdir(), 'pg-probe-'));
after(() => rmSync(dir, { recursive: true, force: true }));
afterEach(() => untraceWith(null));

/**
 * Listens until the test ends.
 *
 * @param {import('node:test').TestContext} t
 * @param {net.Server} server
 * @param {number | string | { path: string }} [where]
 * @returns {Promise<number>} The port.
 */
async function listening(t, server, where = 0) {
	/** @type {Set<net.Socket>} */
	const sockets = new Set();
	server.on('connection', (socket) => {
		sockets.add(socket);
		socket.on('error', () => {}).on('close', () => sockets.delete(socket));
	});
	await new Promise((resolve, reject) => {
		server.on('error', reject);
		if (where === 0) server.listen(0, '127.0.0.1', () => resolve(undefined));
		else server.listen(where, () => resolve(undefined));
	});
	t.after(async () => {
		for (const socket of sockets) socket.destroy();
		await new Promise((resolve) => server.close(resolve));
	});
	return /** @type {net.AddressInfo} */ (server.address()).port;
}

/** A port that nobody listens on: taken and given back. */
async function freePort() {
	const server = net.createServer();
	await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
	const { port } = /** @type {net.AddressInfo} */ (server.address());
	await new Promise((resolve) => server.close(resolve));
	return port;
}

/** @param {() => Promise<any>} run */
async function timed(run) {
	const began = performance.now();
	const answer = await run();
	return { answer, took: performance.now() - began };
}

test('the body of a 2xx answer is returned, whole and as UTF-8', async (t) => {
	const server = http.createServer((_request, response) => {
		response.statusCode = 201;
		const bytes = Buffer.from('{"état":"prêt"}');
		// In the middle of a character, and not in one packet.
		response.write(bytes.subarray(0, 3), () => setTimeout(() => response.end(bytes.subarray(3)), 30));
	});
	const port = await listening(t, server);
	assert.equal(await pollEndpoint({ url: `http://127.0.0.1:${port}/status` }), '{"état":"prêt"}');
	assert.equal(await pollEndpoint({ url: new URL(`http://127.0.0.1:${port}/`) }), '{"état":"prêt"}');
});

test('an empty 204 is an answer, and any other status is none', async (t) => {
	let status = 204;
	const server = http.createServer((_request, response) => response.writeHead(status, { location: '/' }).end());
	const url = `http://127.0.0.1:${await listening(t, server)}/`;
	assert.equal(await pollEndpoint({ url }), '');
	for (status of [302, 304, 404, 500]) {
		assert.equal(await pollEndpoint({ url, giveUp: () => true }), null, `${status}`);
	}
});

test('a certificate that the server signed itself is accepted', async (t) => {
	const server = https.createServer(selfSigned(), (_request, response) => response.end('over TLS'));
	const port = await listening(t, server);
	assert.equal(await pollEndpoint({ url: `https://127.0.0.1:${port}/`, giveUp: () => true }), 'over TLS');
	// The same answer must not come from a probe that fell back to plain text.
	assert.equal(await pollEndpoint({ url: `http://127.0.0.1:${port}/`, giveUp: () => true }), null);
});

test('a server that stalls in the middle of its answer costs one second', async (t) => {
	const server = http.createServer((_request, response) => {
		response.writeHead(200, { 'content-length': 100 });
		response.write('half of it');
	});
	const url = `http://127.0.0.1:${await listening(t, server)}/`;
	const { answer, took } = await timed(() => pollEndpoint({ url, giveUp: () => true }));
	assert.equal(answer, null);
	assert.ok(took > 950 && took < 2500, `${took} ms`);
});

test('a server that accepts and says nothing costs one second, over TLS too', async (t) => {
	const port = await listening(t, net.createServer());
	for (const scheme of ['http', 'https']) {
		const { answer, took } = await timed(() =>
			pollEndpoint({ url: `${scheme}://127.0.0.1:${port}/`, giveUp: () => true })
		);
		assert.equal(answer, null);
		assert.ok(took > 950 && took < 2500, `${scheme}: ${took} ms`);
	}
});

test('an answer that is cut short, or longer than any status is, is none', async (t) => {
	const cut = http.createServer((_request, response) => {
		response.writeHead(200, { 'content-length': 100 });
		response.write('half of it', () => response.destroy());
	});
	const url = `http://127.0.0.1:${await listening(t, cut)}/`;
	const { answer, took } = await timed(() => pollEndpoint({ url, giveUp: () => true }));
	assert.equal(answer, null);
	assert.ok(took < 800, `${took} ms: it is known at once`);
	const endless = http.createServer((_request, response) => {
		const more = () => {
			while (!response.destroyed && response.write(Buffer.alloc(1 << 20)));
		};
		response.on('drain', more);
		more();
	});
	const before = process.memoryUsage().rss;
	assert.equal(
		await pollEndpoint({ url: `http://127.0.0.1:${await listening(t, endless)}/`, giveUp: () => true }),
		null
	);
	assert.ok(process.memoryUsage().rss - before < 300e6, 'the host took it all in');
});

test('it asks again, each time after twice the wait, until somebody answers', async (t) => {
	const port = await freePort();
	/** @type {number[]} */
	const asked = [];
	/** @type {Promise<any> | undefined} */
	let up;
	const answer = await pollEndpoint({
		url: `http://127.0.0.1:${port}/`,
		intervalMs: 40,
		giveUp() {
			asked.push(performance.now());
			if (asked.length === 4) {
				const server = http.createServer((_request, response) => response.end('here'));
				up = new Promise((resolve) => server.listen(port, '127.0.0.1', () => resolve(undefined)));
				t.after(() => new Promise((resolve) => server.close(resolve)));
			}
			return false;
		},
	});
	await up;
	assert.equal(answer, 'here');
	const gaps = asked.slice(1).map((at, i) => at - asked[i]);
	assert.equal(gaps.length, 3);
	for (const [i, gap] of gaps.entries()) assert.ok(gap >= 40 * 2 ** i - 5, `gap ${i}: ${gap} ms`);
});

test('it ends at its deadline, and giving up is asked after an attempt and never before', async () => {
	const url = `http://127.0.0.1:${await freePort()}/`;
	const { answer, took } = await timed(() => pollEndpoint({ url, timeoutMs: 300, intervalMs: 4000 }));
	assert.equal(answer, null);
	assert.ok(took >= 290 && took < 1500, `${took} ms`);

	/** @type {string[]} */
	const order = [];
	untraceWith((probe) => {
		order.push('probe');
		return probe();
	});
	await pollEndpoint({ url, intervalMs: 1, giveUp: () => order.push('ask') > 3 });
	assert.deepEqual(order, ['probe', 'ask', 'probe', 'ask']);
});

test('nothing makes a probe reject', async () => {
	const url = `http://127.0.0.1:${await freePort()}/`;
	const path = join(dir, 'nobody.sock');
	for (const bad of ['', 'no url', 'ftp://127.0.0.1/', 'http://127.0.0.1:99999/', 'http:///']) {
		assert.equal(await pollEndpoint({ url: bad, giveUp: () => true }), null, bad);
	}
	const angry = () => {
		throw new Error('giveUp is broken');
	};
	assert.equal(await pollEndpoint({ url, giveUp: angry }), null);
	assert.equal(await pollUnixSocket({ path, giveUp: angry }), false);
	assert.equal(await pollUnixSocket({ path: '', giveUp: () => true }), false);
	assert.equal(await pollUnixSocket({ path: `${dir}/${'x'.repeat(200)}`, giveUp: () => true }), false);
	assert.equal(await pollUnixSocket({ path: /** @type {any} */ (undefined), giveUp: () => true }), false);
	/** @type {any[]} */
	const wrappers = [
		() => {
			throw new Error('the tracer is broken');
		},
		() => Promise.reject(new Error('the tracer is broken')),
		() => undefined,
		() => new Promise(() => {}),
	];
	for (const wrapper of wrappers) {
		untraceWith(wrapper);
		assert.equal(await pollEndpoint({ url, timeoutMs: 50, giveUp: () => true }), null);
		assert.equal(await pollUnixSocket({ path, timeoutMs: 50, giveUp: () => true }), false);
	}
});

test('every probe runs in the wrapper, and a wrapper that passes nothing on loses no answer', async (t) => {
	const server = http.createServer((_request, response) => response.end('yes'));
	const url = `http://127.0.0.1:${await listening(t, server)}/`;
	const path = join(dir, 'wrapped.sock');
	await listening(t, net.createServer(), { path });
	let inside = 0;
	untraceWith((probe) => {
		inside++;
		probe(); // its promise is dropped
	});
	assert.equal(await pollEndpoint({ url }), 'yes');
	assert.equal(await pollUnixSocket({ path }), true);
	assert.equal(inside, 2);
	untraceWith(async (probe) => {
		await null; // a tracer that switches something off first
		return probe();
	});
	assert.equal(await pollEndpoint({ url }), 'yes');
	untraceWith((probe) => probe().then(() => Promise.reject(new Error('afterwards'))));
	assert.equal(await pollEndpoint({ url }), 'yes');
});

test('a Unix socket is reached, and one without a listener is not', async (t) => {
	const path = join(dir, 'here.sock');
	/** @type {Buffer[]} */
	const said = [];
	const server = net.createServer((socket) => socket.on('data', (data) => said.push(data)));
	await listening(t, server, { path });
	assert.equal(await pollUnixSocket({ path }), true);
	assert.equal(await pollUnixSocket({ path: `unix://${path}` }), true);
	assert.deepEqual(said, []);
	assert.equal(await pollUnixSocket({ path: join(dir, 'nobody.sock'), giveUp: () => true }), false);
	writeFileSync(join(dir, 'plain'), '');
	assert.equal(await pollUnixSocket({ path: join(dir, 'plain'), giveUp: () => true }), false);
	assert.equal(await pollUnixSocket({ path: dir, giveUp: () => true }), false);
});

test('a socket that appears later is found', async (t) => {
	const path = join(dir, 'late.sock');
	let asked = 0;
	const found = pollUnixSocket({
		path,
		intervalMs: 20,
		giveUp: () => {
			if (++asked === 2) void listening(t, net.createServer(), { path });
			return false;
		},
	});
	assert.equal(await found, true);
	assert.equal(asked, 2);
});

test('an abstract socket is reached where there are any', { skip: process.platform !== 'linux' }, async (t) => {
	const path = `\0pg-probe-${process.pid}`;
	assert.equal(await pollUnixSocket({ path, giveUp: () => true }), false);
	await listening(t, net.createServer(), { path });
	assert.equal(await pollUnixSocket({ path, giveUp: () => true }), true);
});

test('a named pipe is one however it is written', () => {
	const pipe = '\\\\.\\pipe\\docker_engine';
	for (const written of [
		pipe,
		'\\\\?\\pipe\\docker_engine',
		'//./pipe/docker_engine',
		'npipe:////./pipe/docker_engine',
	]) {
		assert.equal(socketPath(written, 'win32'), pipe, written);
	}
	assert.equal(socketPath('\\\\.\\pipe\\a\\b', 'win32'), '\\\\.\\pipe\\a\\b');
	assert.equal(socketPath('C:\\run\\x.sock', 'win32'), 'C:\\run\\x.sock');
	assert.equal(socketPath('//./pipe/x', 'linux'), '//./pipe/x');
	assert.equal(socketPath('unix:/run/x', 'linux'), '/run/x');
	assert.equal(socketPath('unix:x', 'linux'), 'unix:x');
});

test('JSON is parsed, and what is none is null', () => {
	assert.deepEqual(parseJson('{"a":[1]}'), { a: [1] });
	assert.equal(parseJson('false'), false);
	for (const none of [null, undefined, '', '{', 'undefined', /** @type {any} */ (7)])
		assert.equal(parseJson(none), null);
});

test('the end of a file is read, by whole characters', () => {
	const file = join(dir, 'log');
	writeFileSync(file, '');
	assert.equal(tailFile(file), '');
	writeFileSync(file, 'a short log');
	assert.equal(tailFile(file), 'a short log');
	assert.equal(tailFile(file, 3), 'log');
	writeFileSync(file, `${'x'.repeat(70_000)}end`);
	assert.equal(tailFile(file)?.length, 65_536);
	assert.ok(tailFile(file)?.endsWith('xend'));
	for (const text of ['äöü', '€€', '😀😀']) {
		writeFileSync(file, text);
		for (let bytes = 1; bytes < 9; bytes++) {
			const tail = /** @type {string} */ (tailFile(file, bytes));
			assert.ok(text.endsWith(tail), `${text} ${bytes}: ${tail}`);
			assert.ok(Buffer.byteLength(tail) > bytes - 4 || bytes > Buffer.byteLength(text), `${text} ${bytes}: ${tail}`);
		}
	}
});

test('what is no file has no end', { skip: process.platform === 'win32' }, () => {
	const fifo = join(dir, 'fifo');
	execFileSync('mkfifo', [fifo]);
	mkdirSync(join(dir, 'sub'));
	for (const none of [fifo, join(dir, 'sub'), join(dir, 'absent'), '/dev/null', ''])
		assert.equal(tailFile(none), null, none);
	assert.equal(tailFile(join(dir, 'log'), -5), null);
});
