// @ts-check
/** A minute of everything at once by a fixed seed, and the proof that what looks for violations finds one. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { root } from '../support/fixtures.js';
import { full } from '../support/scale.js';

const program = fileURLToPath(new URL('./chaos.mjs', import.meta.url));

/** @param {string[]} args */
async function chaos(args) {
	const child = spawn(process.execPath, [program, ...args], {
		stdio: ['ignore', 'pipe', 'pipe'],
		env: { ...process.env, NODE_TEST_CONTEXT: undefined },
	});
	let output = '';
	for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += data));
	const [code] = await once(child, 'close');
	return { code, output, summary: output.trim().split('\n').at(-1) ?? '' };
}

test('a minute of everything at once', { timeout: 240_000 }, async (t) => {
	const { code, output, summary } = await chaos(['--seed', '1', '--seconds', '60']);
	assert.equal(code, 0, output);
	assert.match(summary, /^chaos: seed 1, \d+ s, \d+ actions, \d+ hosts, \d+ restarts, 0 violations$/);
	t.diagnostic(summary);
	for (const line of output.split('\n').filter((each) => /^chaos: no /.test(each))) t.diagnostic(line);
});

test('claims at one instant, with hosts stopped in the middle of them', { timeout: 240_000 }, async (t) => {
	const { code, output, summary } = await chaos([
		'--seed',
		'1',
		'--seconds',
		full ? '60' : '20',
		'--profile',
		'claims',
	]);
	assert.equal(code, 0, output);
	t.diagnostic(summary);
});

test('the same without the gate: the violation is found', {
	timeout: 420_000,
	skip: existsSync(join(root, 'prebuilds-fault')) ? false : 'needs make build-fault',
}, async (t) => {
	// Whether a host is stopped between its look and its write is up to the machine; a minute has hundreds of attempts.
	for (const seed of ['1', '2', '3', '4', '5']) {
		const { code, output, summary } = await chaos([
			...['--seed', seed, '--seconds', '60', '--profile', 'claims', '--plant', 'no-gate'],
		]);
		t.diagnostic(summary);
		const found = /^VIOLATION seed \d+ at [\d.]+ s: two of one version: .*/m.exec(output);
		if (!found) continue;
		assert.equal(code, 1);
		t.diagnostic(found[0]);
		return;
	}
	assert.fail('two of one version were never seen, although nothing kept them apart');
});
