// @ts-check
/**
 * The declarations a consumer gets: built from the JSDoc, then used.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** @param {string} project */
function compile(project) {
	const { status, stdout, stderr } = spawnSync(process.execPath, ['node_modules/typescript/bin/tsc', '-p', project], {
		cwd: root,
		encoding: 'utf8',
	});
	assert.equal(status, 0, `tsc -p ${project}:\n${stdout}${stderr}`);
}

test('what must compile compiles, and what must not is refused', () => {
	compile('.config/tsconfig.types.json');
	compile('test/types/tsconfig.json');
});
