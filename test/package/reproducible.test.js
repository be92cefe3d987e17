// @ts-check
/**
 * The same sources give the same bytes, wherever they lie: what a release carries can be compared with a build of one's
 * own. `make test` builds for this machine, PG_PACK=1 for every platform; PG_COLD=1 takes nothing from Go's cache.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { supported } from '../../lib/native.js';
import { root } from '../support/fixtures.js';

const here = `${process.platform}-${process.arch}`;
const targets = process.env.PG_PACK === '1' ? supported : [here];
const scratch = mkdtempSync(join(tmpdir(), 'pg-reproducible-'));
after(() => rmSync(scratch, { recursive: true, force: true }));

/**
 * The sources in a directory of their own.
 * @param {string} from
 * @param {string} name
 */
function copy(from, name) {
	const dir = join(scratch, name);
	mkdirSync(dir, { recursive: true });
	for (const part of ['go', 'go.mod', 'go.sum', 'binding', 'package.json'])
		cpSync(join(from, part), join(dir, part), { recursive: true });
	symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'));
	return dir;
}

// Others may change the tree meanwhile, so the second copy is one of the first.
const first = copy(root, 'one');
const second = copy(first, 'another place/with a longer name');

for (const target of targets) {
	test(`${target} built in two places has the same bytes`, { skip: process.platform === 'win32' }, async () => {
		/** @type {Record<string, string>[]} */
		const sums = [];
		for (const [i, dir] of [first, second].entries()) {
			const cold = process.env.PG_COLD === '1' ? { GOCACHE: join(scratch, `cache-${i}`) } : {};
			await promisify(execFile)(process.execPath, [join(dir, 'binding/build.mjs'), '--target', target], {
				env: { ...process.env, ...cold },
				timeout: 600_000,
			});
			const out = join(dir, 'prebuilds', target);
			sums[i] = Object.fromEntries(
				readdirSync(out)
					.sort()
					.map((name) => [
						name,
						createHash('sha256')
							.update(readFileSync(join(out, name)))
							.digest('hex'),
					])
			);
		}
		assert.equal(Object.keys(sums[0]).length, 5);
		assert.deepEqual(sums[0], sums[1]);
	});
}
