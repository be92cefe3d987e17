/**
 * The process of this example: it says on a port how it is. Yours is any program of your own; nothing in it has to know
 * of the guard.
 *
 *   node agent.js PORT
 */
import { createServer } from 'node:http';
import process from 'node:process';

const [, , port] = process.argv;

createServer((request, response) => {
	if (request.url !== '/health') return response.writeHead(404).end();
	response.setHeader('content-type', 'application/json');
	response.end(JSON.stringify({ pid: process.pid }));
}).listen(Number(port), '127.0.0.1');
