// @ts-check
/**
 * What `npm pack` and `npm publish` do first: the types are built, and a tarball that lacks a platform is refused,
 * because whoever installs it there would find out at run time.
 *
 * PG_PACK_TARGETS="linux-x64 linux-arm64" packs for those only. npm packs a git dependency too, on the machine that
 * installs it: for that, this machine's own is enough.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { supported } from '../lib/native.js';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const command = process.env.npm_command ?? 'pack';
const here = `${process.platform}-${process.arch}`;
const targets =
	process.env.PG_PACK_TARGETS?.split(/[\s,]+/).filter(Boolean) ??
	(command === 'pack' || command === 'publish' ? supported : [here]);

/** @param {string[]} args */
function node(args) {
	const { status, error } = spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
	if (error) throw error;
	return status === 0;
}

let complete = true;
for (const target of targets) {
	// What is published is built from what is published.
	const also = command === 'publish' ? [] : ['--if-missing'];
	if (!node(['binding/build.mjs', '--check', ...also, '--target', target])) {
		complete = false;
		continue;
	}
	// A build that was carried from another machine as a CI artifact has lost them.
	const folder = join(root, 'prebuilds', target);
	for (const name of readdirSync(folder)) chmodSync(join(folder, name), /^(keeper|reaper)/.test(name) ? 0o755 : 0o644);
}
if (!complete) {
	console.error('harper-process-guard: not packed. `make prebuilds` builds every target; PG_PACK_TARGETS packs fewer');
	process.exit(1);
}
if (!node(['node_modules/typescript/bin/tsc', '-p', '.config/tsconfig.types.json'])) {
	console.error('harper-process-guard: not packed: the types could not be built; is node_modules complete?');
	process.exit(1);
}
