// @ts-check
/** Loopback ports and the two smallest clients the tests need. */
import { once } from 'node:events';
import { request } from 'node:http';
import { connect, createServer } from 'node:net';

/** @returns {Promise<number>} a port of the loopback address that was free a moment ago */
export async function freePort() {
	const server = createServer().listen(0, '127.0.0.1');
	await once(server, 'listening');
	const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
	server.close();
	await once(server, 'close');
	return port;
}

/**
 * The body of GET /, or null when nobody answers.
 * @param {number} port
 * @returns {Promise<string | null>}
 */
export function get(port) {
	return new Promise((resolve) => {
		const call = request({ host: '127.0.0.1', port, agent: false, timeout: 2_000 }, async (response) => {
			let body = '';
			try {
				for await (const piece of response) body += piece;
				resolve(body);
			} catch {
				resolve(null);
			}
		});
		call.on('error', () => resolve(null));
		call.on('timeout', () => call.destroy());
		call.end();
	});
}

/**
 * One line to a server that answers with lines, e.g. redis; null when nobody answers.
 * @param {number} port
 * @param {string} line
 * @returns {Promise<string | null>}
 */
export function ask(port, line) {
	return new Promise((resolve) => {
		const socket = connect({ host: '127.0.0.1', port });
		socket.setTimeout(2_000, () => socket.destroy());
		socket.on('error', () => resolve(null));
		socket.on('close', () => resolve(null));
		socket.on('connect', () => socket.write(`${line}\r\n`));
		socket.once('data', (data) => {
			resolve(data.toString().trim());
			socket.destroy();
		});
	});
}
