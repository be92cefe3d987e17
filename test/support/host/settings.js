// @ts-check
/** The host's own files: boot properties, settings, pid file. All of it is read the way the host reads it. */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { parse } from 'yaml';

/**
 * @typedef {object} Settings
 * @property {string} rootPath
 * @property {{ count: number }} threads
 * @property {{ allowedSpawnCommands?: string[] }} [applications]
 * @property {{ port?: number }} [http]
 */

/** @returns {string} */
export function rootPath() {
	if (process.env.ROOTPATH) return process.env.ROOTPATH;
	const boot = readFileSync(join(homedir(), '.harperdb/hdb_boot_properties.file'), 'utf8');
	const file = /settings_path = (.*)/.exec(boot)?.[1] ?? '';
	return parse(readFileSync(file, 'utf8')).rootPath;
}

/**
 * @param {string} root
 * @returns {Settings & Record<string, any>}
 */
export function settingsIn(root) {
	for (const name of ['harper-config.yaml', 'harperdb-config.yaml']) {
		try {
			return parse(readFileSync(join(root, name), 'utf8'));
		} catch {
			// The older name, then.
		}
	}
	throw new Error(`no settings in ${root}`);
}

/**
 * The components that the root configuration names; the others are never called.
 *
 * @param {string} root
 * @returns {{ name: string, package: string }[]}
 */
export function componentsIn(root) {
	return Object.entries(settingsIn(root)).flatMap(([name, value]) =>
		typeof value?.package === 'string' ? [{ name, package: value.package }] : []
	);
}

export const pidFile = (/** @type {string} */ root) => join(root, 'hdb.pid');

/**
 * Takes the root for this process, or says who has it. A zombie of a killed host still counts as one that runs.
 *
 * @param {string} root
 * @returns {number} The pid of the host that runs already, else 0.
 */
export function takeRoot(root) {
	try {
		const pid = Number.parseInt(readFileSync(pidFile(root), 'utf8'), 10);
		if (pid && pid !== process.pid) {
			process.kill(pid, 0);
			return pid;
		}
	} catch {
		// No file, or a stale one.
	}
	writeFileSync(pidFile(root), `${process.pid}`);
	return 0;
}

/** @param {string} root */
export function leaveRoot(root) {
	rmSync(pidFile(root), { force: true });
}
