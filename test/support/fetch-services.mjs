// @ts-check
/**
 * Puts a redis-server and an nginx into .cache/services, unless the machine has its own. Debian's packages are taken
 * apart and not installed: installing them starts their system services, which a test must not do to a machine.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { findService, root, servicesDir } from './services.js';

const wanted = { 'redis-server': 'redis-server', nginx: 'nginx' };
const missing = Object.keys(wanted).filter((name) => findService(name) === null);
if (missing.length === 0) process.exit(0);

const archives = join(root, '.cache/archives');

/** @param {string[]} args */
const apt = (args) =>
	spawnSync('apt-get', args, {
		encoding: 'utf8',
		env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C' },
	});

function download() {
	rmSync(archives, { recursive: true, force: true });
	mkdirSync(join(archives, 'partial'), { recursive: true });
	// With the dependencies that this machine lacks; without locks, since nothing of the system is changed.
	return apt([
		'install',
		'--yes',
		'--no-install-recommends',
		'--download-only',
		'-o',
		'Debug::NoLocking=1',
		'-o',
		`Dir::Cache::archives=${archives}`,
		...missing.map((name) => wanted[/** @type {keyof typeof wanted} */ (name)]),
	]);
}

let result = download();
if (result.status !== 0 && !result.error) {
	// A machine made from an image has no package lists, or lists whose files the mirror no longer has.
	apt(['update']);
	result = download();
}
if (result.status !== 0) {
	console.error(
		`fetch-services: ${missing.join(' and ')} could not be fetched, so their tests are skipped: ${result.error?.message ?? result.stderr.trim().split('\n').at(-1)}`
	);
	process.exit(0);
}
for (const name of readdirSync(archives).filter((file) => file.endsWith('.deb')))
	execFileSync('dpkg', ['-x', join(archives, name), servicesDir]);
rmSync(archives, { recursive: true });
for (const name of missing)
	if (!existsSync(findService(name)?.binary ?? ''))
		throw new Error(`fetch-services: the package of ${name} has no such program`);
