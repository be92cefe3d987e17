// @ts-check
/** The stress programs, short enough for every run; `make stress` runs them at full length. */
import { test } from 'node:test';
import { passes } from './passes.js';

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
