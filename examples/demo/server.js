// @ts-check
/** The guarded process of the demo: a small HTTP server that says who answers. */
import { createServer } from 'node:http';

const port = Number(process.argv[2]);
let answered = 0;

createServer((_request, response) => {
	response.setHeader('Connection', 'close');
	response.end(`hello from pid ${process.pid}, answer ${++answered}\n`);
}).listen(port, '127.0.0.1');
