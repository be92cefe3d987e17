// @ts-check
/** Runs a program of this directory, which has to end well and say so. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** @param {string[]} args */
export function passes([program, ...args]) {
	const { status, signal, stdout, stderr } = spawnSync(
		process.execPath,
		[fileURLToPath(new URL(program, import.meta.url)), ...args],
		{ encoding: 'utf8', env: { ...process.env, NODE_TEST_CONTEXT: undefined }, timeout: 300_000 }
	);
	assert.deepEqual({ status, signal }, { status: 0, signal: null }, stdout + stderr);
	assert.match(stdout, /: ok\n$/);
}
