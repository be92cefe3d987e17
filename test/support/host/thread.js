// @ts-check
/**
 * One thread of the host: it loads the components, calls them, answers requests and ends as it is told to. Imported by
 * `main.js` where the main thread is the only one.
 */
import { EventEmitter } from 'node:events';
import { appendFileSync, existsSync, mkdirSync, readFileSync, realpathSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { isMainThread, parentPort, threadId, workerData } from 'node:worker_threads';
import { parse } from 'yaml';
import { constrainedChildProcess } from './child-process.js';
import { Loader } from './loader.js';
import { componentsIn, settingsIn } from './settings.js';

/** @typedef {import('./child-process.js').Generation} Generation */

/**
 * @typedef {object} ThreadOptions
 * @property {string} root
 * @property {Generation} generation
 * @property {'auto' | 'app'} dependencies
 * @property {number} forceExitMs How long a thread that was told to end may go on.
 */

class Resource {}

class Scope extends EventEmitter {
	resources = new Map();
	options = { get: () => undefined, getAll: () => undefined, on() {} };

	/**
	 * @param {string} name
	 * @param {string} directory
	 * @param {Record<string, (...words: any[]) => void>} logger
	 */
	constructor(name, directory, logger) {
		super();
		this.name = name;
		this.directory = directory;
		this.logger = logger;
	}
}

/** What came after the path of a resource in a request. */
class RequestTarget extends URLSearchParams {
	/**
	 * @param {string} pathname
	 * @param {string} query
	 */
	constructor(pathname, query) {
		super(query);
		this.pathname = pathname;
		this.id = pathname.replace(/^\//, '') || undefined;
	}
}

/** @param {string} root */
function loggerIn(root) {
	const file = join(root, 'log', 'hdb.log');
	mkdirSync(dirname(file), { recursive: true });
	const writing =
		(/** @type {string} */ level) =>
		(/** @type {any[]} */ ...words) =>
			appendFileSync(
				file,
				`${new Date().toISOString()} [${threadId}] [${level}] ${words.map(String).join(' ').replaceAll('\n', '\\n')}\n`
			);
	return Object.fromEntries(
		['trace', 'debug', 'info', 'notify', 'warn', 'error', 'fatal'].map((level) => [level, writing(level)])
	);
}

export class Thread {
	/** @type {Map<string, any>} */
	#resources = new Map();
	/** @type {Scope[]} */
	#scopes = [];

	/** @param {ThreadOptions} options */
	constructor(options) {
		this.options = options;
		this.logger = loggerIn(options.root);
	}

	/**
	 * Loads every component that the root configuration names.
	 *
	 * @param {boolean} calls Whether they are called; the main thread of some generations only evaluates them.
	 * @param {<T>(call: () => T) => Promise<T>} inTurn
	 */
	async load(calls, inTurn = async (call) => call()) {
		const { root, generation, dependencies } = this.options;
		const { applications } = settingsIn(root);
		const allowed = applications?.allowedSpawnCommands ?? ['npm', 'node'];
		const childProcess = constrainedChildProcess({ generation, root, allowed });
		const { logger } = this;
		Object.assign(globalThis, { logger, Resource });
		for (const { name, package: from } of componentsIn(root)) {
			const link = join(root, 'components', name);
			mkdirSync(dirname(link), { recursive: true });
			try {
				if (!existsSync(link)) symlinkSync(from.replace(/^file:/, ''), link);
			} catch {
				// Another thread was faster.
			}
			const directory = realpathSync(link);
			const config = parse(readFileSync(join(directory, 'config.yaml'), 'utf8'));
			const loader = new Loader({ generation, childProcess, harper: { Resource, logger }, dependencies });
			if (config.jsResource) {
				for (const [key, value] of Object.entries(await loader.load(join(directory, config.jsResource.files)))) {
					if (typeof value === 'function' && typeof value.get === 'function') this.#resources.set(key, value);
				}
			}
			if (!config.pluginModule) continue;
			const plugin = await loader.load(join(directory, config.pluginModule));
			if (!calls) continue;
			const scope = new Scope(name, directory, logger);
			this.#scopes.push(scope);
			await inTurn(() => plugin.handleApplication(scope));
		}
	}

	/**
	 * @param {{ path: string, headers?: Record<string, string>, [more: string]: any }} request
	 * @returns {Promise<{ status: number, headers: Record<string, string>, body: string }>}
	 */
	async answer({ path, headers = {} }) {
		const url = new URL(path, 'http://host');
		const [, name] = url.pathname.split('/');
		const resource = this.#resources.get(name);
		if (!resource) return { status: 404, headers: {}, body: 'Not found' };
		try {
			const target = new RequestTarget(url.pathname.slice(name.length + 1), url.search);
			const [, credentials = ''] = /^Basic (.*)$/.exec(headers.authorization ?? '') ?? [];
			const [username] = Buffer.from(credentials, 'base64').toString().split(':');
			const context = {
				headers: new Headers(headers),
				url: path,
				pathname: url.pathname,
				method: 'GET',
				user: username ? { username } : undefined,
			};
			const result = await resource.get(target, context);
			// A status alone is an attribute like any other: an answer of its own has headers.
			if (result?.headers) {
				const { status = 200, headers: own, body, data } = result;
				return { status, headers: own, body: body ?? JSON.stringify(data) };
			}
			return { status: 200, headers: { 'content-type': 'application/json' }, body: JSON.stringify(result) };
		} catch (error) {
			const { statusCode, message } = /** @type {any} */ (error);
			return { status: statusCode ?? 500, headers: {}, body: JSON.stringify({ error: message }) };
		}
	}

	/** The older generations end a thread without telling the components. */
	async close() {
		if (this.options.generation === '51') return;
		for (const scope of this.#scopes) {
			for (const listener of scope.listeners('close')) await listener.call(scope);
		}
	}
}

if (!isMainThread && workerData?.standIn) {
	const port = /** @type {import('node:worker_threads').MessagePort} */ (parentPort);
	const thread = new Thread(workerData.standIn);
	/** @type {Map<string, () => void>} */
	const waiting = new Map();
	port.on('message', async (message) => {
		if (message.t === 'turn') waiting.get('turn')?.();
		else if (message.t === 'request')
			port.postMessage({ t: 'answer', id: message.id, answer: await thread.answer(message) });
		else if (message.t === 'shutdown') {
			// Nothing of the component's own ends it, so in the end the thread ends itself, with everything in it.
			setTimeout(() => process.exit(0), workerData.standIn.forceExitMs).unref();
			await thread.close();
			port.unref();
		}
	});
	await thread.load(true, async (call) => {
		const turn = new Promise((resolve) => waiting.set('turn', () => resolve(undefined)));
		port.postMessage({ t: 'turn?' });
		await turn;
		try {
			return await call();
		} finally {
			port.postMessage({ t: 'turn over' });
		}
	});
	port.postMessage({ t: 'ready' });
}
