// @ts-check
/** Where the real servers are that some tests guard: the machine's own, or what fetch-services.mjs unpacked. */
import { existsSync, readdirSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { root } from './fixtures.js';

export { root };
export const servicesDir = join(root, '.cache/services');

/**
 * @param {string} name
 * @returns {{ binary: string, env: Record<string, string | undefined> } | null} the program, and the environment in which it finds its libraries
 */
export function findService(name) {
	// Not the real path: redis-server is a link, and the program does what its name says.
	for (const dir of [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin']) {
		if (existsSync(join(dir, name))) return { binary: join(dir, name), env: { ...process.env } };
	}
	for (const dir of ['usr/bin', 'usr/sbin']) {
		const binary = join(servicesDir, dir, name);
		if (!existsSync(binary)) continue;
		const lib = join(servicesDir, 'usr/lib');
		const paths = [lib, ...(existsSync(lib) ? readdirSync(lib).map((each) => join(lib, each)) : [])];
		return { binary, env: { ...process.env, LD_LIBRARY_PATH: paths.join(':') } };
	}
	return null;
}
