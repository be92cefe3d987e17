// @ts-check
/** The stress programs, short enough for every run; `make stress` and `make leaks` run them at full length. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

/** @param {string[]} args */
function passes([program, ...args]) {
	const { status, signal, stdout, stderr } = spawnSync(
		process.execPath,
		[fileURLToPath(new URL(program, import.meta.url)), ...args],
		{ encoding: 'utf8', env: { ...process.env, NODE_TEST_CONTEXT: undefined }, timeout: 300_000 }
	);
	assert.deepEqual({ status, signal }, { status: 0, signal: null }, stdout + stderr);
	assert.match(stdout, /: ok\n$/);
}

test('workers that only themselves load the addon come and go in the middle of calls', () => {
	passes(['churn.mjs', '--workers', '240']);
});

test('workers come and go while the main thread has the addon too', () => {
	passes(['churn.mjs', '--workers', '90', '--main']);
});

const seconds = process.env.PG_STORM_SECONDS ?? '10';

test(`${seconds} seconds of signals from outside do not end the host`, () => {
	passes(['storm.mjs', '--seconds', seconds]);
});

test('hundreds of guard() calls, thousands of synchronous ones and workers leave nothing in the host', () => {
	passes(['leak.mjs', '--guards', '450', '--syncs', '5400', '--workers', '36']);
});
