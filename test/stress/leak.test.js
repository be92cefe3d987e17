// @ts-check
/** The leak test, short enough for every run; `make leaks` runs it at full length. In a file of its own: each has a time limit. */
import { test } from 'node:test';
import { passes } from './passes.js';

test('hundreds of guard() calls, thousands of synchronous ones and workers leave nothing in the host', () => {
	passes(['leak.mjs', '--guards', '450', '--syncs', '5400', '--workers', '36']);
});
