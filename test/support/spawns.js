// @ts-check
/**
 * The `spawn` functions a host may hand to guard(): Node's own, the constrained ones that real hosts have, and broken
 * ones. They run inside the host process of a test; `host-process.js` picks one by its name.
 */
import { spawn as nodeSpawn } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * @typedef {object} Policy
 * @property {string} kind a name in the table below
 * @property {number} [pid] what `hands-back` returns
 * @property {string} [root] where `harper` keeps its pid files
 * @property {string[]} [allowed] commands `allowlist` permits
 * @property {number} [refuse] how many first calls `refuse-first` refuses
 */

/** @typedef {(command: string, args: string[], options: Record<string, any>) => any} Spawn */

/** The only members a host's wrapper around a foreign pid has: no stdio, no spawnfile, no error event. */
class Wrapper extends EventEmitter {
	/** @param {number} pid */
	constructor(pid) {
		super();
		this.pid = pid;
	}
	/** @param {NodeJS.Signals} [signal] */
	kill(signal) {
		return process.kill(this.pid, signal);
	}
	unref() {}
}

/**
 * Refuses what is not on the list and anything without a name, as a host does that only lets its components start known
 * commands.
 * @param {string} command
 * @param {Record<string, any>} options
 * @param {string[]} allowed
 */
function constrain(command, options, allowed) {
	if (!allowed.includes(command.split(' ')[0])) throw new Error(`Command ${command} is not allowed`);
	if (typeof options?.name !== 'string' || options.name === '') throw new Error('options.name is required');
}

/**
 * Harper's own spawn in its 5.2 form: exact allowlist, mandatory name, one pid file per name; a file whose pid answers
 * kill(pid, 0) gets a wrapper around that pid, whatever it is, instead of a new process.
 * @param {Policy} policy
 * @returns {Spawn}
 */
function harper({ root = '', allowed = ['npm', 'node'] }) {
	return (command, args, options) => {
		constrain(command, options, allowed);
		const file = join(root, 'pids', `${options.name}.pid`);
		mkdirSync(join(root, 'pids'), { recursive: true });
		let held = NaN;
		try {
			held = Number.parseInt(readFileSync(file, 'utf8'), 10);
			process.kill(held, 0);
			return new Wrapper(held);
		} catch {
			// Nobody there: the file, if any, is stale.
		}
		const child = nodeSpawn(command, args, options);
		if (child.pid) writeFileSync(file, `${child.pid}\n${options.version ?? 0}`);
		child.on('exit', () => rmSync(file, { force: true }));
		return child;
	};
}

/** @type {Record<string, (policy: Policy) => Spawn>} */
const policies = {
	plain: () => (command, args, options) => nodeSpawn(command, args, options),
	/** Bare `node`, by exact string, with a name: what a stock Harper permits. */
	'bare-node': () => (command, args, options) => {
		constrain(command, options, ['node']);
		return nodeSpawn(command, args, options);
	},
	allowlist:
		({ allowed = [] }) =>
		(command, args, options) => {
			constrain(command, options, allowed);
			return nodeSpawn(command, args, options);
		},
	/** Only the guarded process itself may start: no launcher of any kind. */
	'no-launcher': () => (command, args, options) => {
		if (args.some((word) => word === 'launch'))
			throw Object.assign(new Error('launchers are not allowed'), { code: 'EPERM' });
		return nodeSpawn(command, args, options);
	},
	nothing: () => (command) => {
		throw Object.assign(new Error(`${command} is not allowed`), { code: 'EPERM' });
	},
	/** Reports a failure the way Node does it: a child without a pid, and the error as an event. */
	'late-error': () => (_command, args, options) => nodeSpawn('/nonexistent/program', args, options),
	/** A child without a pid that never says why. */
	silent: () => () => new EventEmitter(),
	undefined: () => () => undefined,
	null: () => () => null,
	'hands-back':
		({ pid = 0 }) =>
		() =>
			new Wrapper(pid),
	/** The process is really started, but what comes back is a wrapper that knows only its pid. */
	wraps: () => (command, args, options) => {
		const child = nodeSpawn(command, args, options);
		child.on('error', () => {});
		return new Wrapper(child.pid ?? 0);
	},
	/** As above, and the wrapper's owner counts it as refused: a launcher runs that nobody admits to. */
	'starts-and-refuses': () => (command, args, options) => {
		nodeSpawn(command, args, options).on('error', () => {});
		throw new Error('refused after the start');
	},
	'refuse-first': ({ refuse = 1 }) => {
		let left = refuse;
		return (command, args, options) => {
			if (left-- > 0) throw new Error('not yet');
			return nodeSpawn(command, args, options);
		};
	},
	harper,
};

/**
 * @param {Policy} [policy]
 * @returns {Spawn}
 */
export function spawnFor(policy = { kind: 'plain' }) {
	const make = policies[policy.kind];
	if (!make) throw new Error(`no spawn policy named ${policy.kind}`);
	return make(policy);
}
