// @ts-check
/**
 * The Node versions that the package is tested on. Each is the binary of an npm
 * package, put under .cache/node/ (ignored by git) when it is first asked for.
 *
 *   node test/support/node-versions.mjs        the versions, one a line
 *   node test/support/node-versions.mjs 22     the path of that one's binary
 *   node test/support/node-versions.mjs 22 linux arm64   the same for another system
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const cache = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '.cache', 'node');

/** @type {Record<string, string>} */
export const nodeVersions = { 20: '20.20.2', 22: '22.23.5', 24: '24.22.3', 26: '26.12.1' };

/**
 * The path of one version's binary, fetched if need be.
 * @param {string} major
 * @param {string} [platform]
 * @param {string} [arch]
 * @returns {string}
 */
export function nodeBinary(major, platform = process.platform, arch = process.arch) {
	const version = nodeVersions[major];
	if (!version) throw new Error(`no Node ${major} here: ${Object.keys(nodeVersions).join(', ')}`);
	const name = `node-${platform === 'win32' ? 'win' : platform}-${arch}`;
	const own = platform === process.platform && arch === process.arch;
	const folder = join(cache, own ? version : `${version}-${platform}-${arch}`);
	const binary = join(folder, 'node_modules', name, 'bin', platform === 'win32' ? 'node.exe' : 'node');
	if (existsSync(binary)) return binary;

	mkdirSync(cache, { recursive: true });
	const scratch = mkdtempSync(join(cache, 'tmp-'));
	const { status, error } = spawnSync(
		'npm',
		[
			'install',
			'--prefix',
			scratch,
			'--no-save',
			'--no-package-lock',
			'--silent',
			// npm refuses a package for another system without it.
			...(own ? [] : ['--force']),
			`${name}@${version}`,
		],
		{ stdio: ['ignore', 'inherit', 'inherit'] }
	);
	try {
		if (error || status !== 0)
			throw new Error(`npm could not install ${name}@${version}: ${error?.message ?? `exit code ${status}`}`);
		// A scratch folder is private, but some tests run this binary as another user.
		chmodSync(scratch, 0o755);
		renameSync(scratch, folder);
	} catch (error) {
		// Two test runs may fetch the same version: the one that comes second uses the first one's.
		if (!existsSync(binary)) throw error;
	} finally {
		rmSync(scratch, { recursive: true, force: true });
	}
	return binary;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
	const [, , major, platform, arch] = process.argv;
	console.log(major ? nodeBinary(major, platform, arch) : Object.keys(nodeVersions).join('\n'));
}
