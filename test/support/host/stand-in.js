// @ts-check
/** Starts and drives stand-in hosts for a test: `main.js` says what they are. */
import { spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { alive, processOf } from '../processes.js';
import { until } from '../until.js';

const program = fileURLToPath(new URL('./main.js', import.meta.url));
const repository = fileURLToPath(new URL('../../..', import.meta.url));

/**
 * @typedef {object} StandInOptions
 * @property {import('./child-process.js').Generation} [generation]
 * @property {number} [threads] 0: the main thread is the only one.
 * @property {string} component The directory of a component; a copy of it is installed.
 * @property {string} [name] Under which name the root configuration has it.
 * @property {boolean} [serialised] Whether threads call it one after the other.
 * @property {'auto' | 'app'} [dependencies]
 * @property {number} [forceExitMs]
 * @property {'root' | 'boot'} [found] How the host finds its root: by `ROOTPATH`, or by the boot properties.
 * @property {string} [node]
 * @property {Record<string, any>} [settings] More of the root configuration.
 * @property {string} [rootName] What the directory of its root is called.
 * @property {Record<string, string>} [env] More of the host's environment.
 */

export class StandIn {
	/** @type {{ code: number | null, signal: NodeJS.Signals | null } | null} */
	exit = null;
	pid = 0;
	started = '';
	output = '';
	/** @type {import('node:child_process').ChildProcess | null} */
	#child = null;

	/**
	 * @param {import('../sandbox.js').Sandbox} box
	 * @param {StandInOptions} options
	 */
	constructor(box, options) {
		const { threads = 2, component, name = 'guarded', found = 'boot', settings = {}, rootName = 'root' } = options;
		this.options = options;
		this.root = box.file(rootName);
		this.component = box.file('component');
		this.home = box.file('home');
		mkdirSync(this.root);
		cpSync(component, this.component, { recursive: true });
		if (!existsSync(join(this.component, 'node_modules'))) {
			mkdirSync(join(this.component, 'node_modules'));
			symlinkSync(repository, join(this.component, 'node_modules/harper-process-guard'));
		}
		this.settings = {
			rootPath: this.root,
			threads: { count: threads },
			http: { port: 0 },
			[name]: { package: `file:${this.component}` },
			...settings,
		};
		writeFileSync(join(this.root, 'harper-config.yaml'), stringify(this.settings));
		mkdirSync(join(this.home, '.harperdb'), { recursive: true });
		if (found === 'boot') {
			const boot = `settings_path = ${this.root}/harper-config.yaml\n    install_user = root\n`;
			writeFileSync(join(this.home, '.harperdb/hdb_boot_properties.file'), boot);
		}
		// It is one of the sandbox's hosts, which ends it.
		box.hosts.push(/** @type {any} */ (this));
	}

	/** Starts it and waits until all its threads have called the component. */
	async boot() {
		const {
			generation = 'main',
			serialised = false,
			dependencies = 'auto',
			forceExitMs,
			found = 'boot',
			node = process.execPath,
		} = this.options;
		const self = processOf(process.pid);
		const child = spawn(node, ['--experimental-vm-modules', '--no-warnings', program, this.root], {
			env: {
				...process.env,
				NODE_TEST_CONTEXT: undefined,
				...this.options.env,
				HOME: this.home,
				ROOTPATH: found === 'root' ? this.root : undefined,
				STANDIN_GENERATION: generation,
				STANDIN_SERIALISED: serialised ? '1' : '0',
				STANDIN_DEPENDENCIES: dependencies,
				STANDIN_FORCE_EXIT_MS: forceExitMs === undefined ? undefined : String(forceExitMs),
				STANDIN_OWNER: `${process.pid}:${self?.started}`,
			},
			stdio: ['ignore', 'pipe', 'pipe'],
		});
		this.#child = child;
		this.exit = null;
		for (const stream of [child.stdout, child.stderr])
			stream.on('data', (data) => (this.output = (this.output + data).slice(-65_536)));
		child.on('exit', (code, signal) => {
			if (this.#child === child && this.pid === child.pid) this.exit = { code, signal };
		});
		this.pid = /** @type {number} */ (child.pid);
		await this.#ready(this.pid);
		return this;
	}

	/**
	 * @param {number} [pid] Which process has to answer; by default any but the one of before.
	 */
	async #ready(pid) {
		const before = this.pid;
		const status = await until(
			async () => {
				if (pid && this.exit) throw new Error(`the host ended (${this.exit.code ?? this.exit.signal})\n${this.output}`);
				const answer = await this.operation('status').catch(() => null);
				return answer && (pid ? answer.pid === pid : answer.pid !== before) ? answer : null;
			},
			60_000,
			() => `the host is ready\n${this.output}`
		);
		this.pid = status.pid;
		this.started = processOf(status.pid)?.started ?? '';
		return status;
	}

	/**
	 * @param {string} operation
	 * @param {Record<string, any>} [request]
	 * @returns {Promise<any>}
	 */
	operation(operation, request = {}) {
		return new Promise((resolve, reject) => {
			const socket = net.connect(join(this.root, 'operations'));
			let text = '';
			socket.setEncoding('utf8');
			socket.on('error', reject);
			socket.on('data', (data) => (text += data));
			socket.on('end', () => {
				try {
					const { value, error } = JSON.parse(text);
					if (error) reject(new Error(error));
					else resolve(value);
				} catch {
					reject(new Error(`the host answered ${JSON.stringify(text)}`));
				}
			});
			socket.write(`${JSON.stringify({ operation, ...request })}\n`);
		});
	}

	status() {
		return this.operation('status');
	}

	/**
	 * A resource of the component, from one of the threads.
	 *
	 * @param {string} path
	 * @param {{ thread?: number, headers?: Record<string, string> }} [how]
	 */
	async get(path, how = {}) {
		const answer = await this.operation('get', { path, ...how });
		if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${answer.body}`);
		return JSON.parse(answer.body);
	}

	/** The same from each thread. */
	async getAll(/** @type {string} */ path) {
		const { current } = await this.status();
		return Promise.all(
			(current.length ? current : [0]).map((/** @type {number} */ _, /** @type {number} */ thread) =>
				this.get(path, { thread })
			)
		);
	}

	/** New threads for old ones; with `wait` until the last old one has ended. */
	async restartService({ wait = true } = {}) {
		await this.operation('restart_service', { wait });
	}

	/**
	 * A new main process.
	 *
	 * @param {{ absentMs?: number }} [how] How long there is no pid file.
	 */
	async restart({ absentMs = 0 } = {}) {
		await this.operation('restart', { absentMs });
		await this.#ready();
	}

	/**
	 * @param {NodeJS.Signals} [signal] SIGTERM: it stops properly.
	 */
	async kill(signal = 'SIGKILL') {
		const { pid, started } = this;
		if (pid && alive(pid, started)) process.kill(pid, signal);
		await until(() => !alive(pid, started), 20_000, `host ${pid} has ended`);
		if (this.#child?.pid === pid) await until(() => this.exit !== null, 5000, 'its end was noticed');
		// A zombie still answers, and the next host would take it for one that runs. It is reaped by whatever is pid 1 here,
		// which may take its time.
		else await until(() => processOf(pid)?.started !== started, 20_000, `host ${pid} was reaped`);
		this.exit ??= { code: null, signal };
		return this.exit;
	}

	/** What the host, its threads and the component have logged. */
	log() {
		try {
			return readFileSync(join(this.root, 'log/hdb.log'), 'utf8').split('\n').filter(Boolean);
		} catch {
			return [];
		}
	}
}
