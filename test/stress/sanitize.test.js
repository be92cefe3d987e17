// @ts-check
/**
 * The shim under AddressSanitizer, its leak check, and UndefinedBehaviorSanitizer. Node itself is not built for them:
 * their libraries are preloaded, and every block that Go hands to the shim comes from the malloc that they watch.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { isAbsolute, join } from 'node:path';
import { before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { root } from '../support/fixtures.js';
import { rounds } from '../support/scale.js';

const directory = join(root, 'prebuilds-asan', `${process.platform}-${process.arch}`);

/**
 * The libraries to preload, or why there are none: a compiler that has no such file prints the bare name.
 * @returns {{ libraries: string[], skip: string | false }}
 */
function sanitizers() {
	const [compiler, ...words] = (process.env.CC ?? 'cc').split(' ');
	try {
		const libraries = ['libasan.so', 'libubsan.so'].map((name) =>
			execFileSync(compiler, [...words, `-print-file-name=${name}`], { encoding: 'utf8' }).trim()
		);
		const missing = libraries.filter((path) => !isAbsolute(path));
		const skip =
			missing.length > 0 && `${compiler} has no ${missing.join(', ')}: Debian's gcc brings both, in libgcc-*-dev`;
		return { libraries, skip };
	} catch (error) {
		return { libraries: [], skip: `no sanitizers: ${/** @type {Error} */ (error).message}` };
	}
}

const { libraries, skip } = sanitizers();

/** @param {string[]} args of Node */
function run(...args) {
	return spawnSync(process.execPath, args, {
		cwd: root,
		encoding: 'utf8',
		timeout: 600_000,
		env: {
			...process.env,
			NODE_TEST_CONTEXT: undefined,
			LD_PRELOAD: libraries.join(' '),
			// By default it holds back 256 MB of freed blocks, which looks like growth.
			ASAN_OPTIONS: 'detect_leaks=1:quarantine_size_mb=16',
			LSAN_OPTIONS: `suppressions=${join(root, 'test/stress/lsan.supp')}:print_suppressions=0`,
			UBSAN_OPTIONS: 'print_stacktrace=1',
			PG_TEST_PREBUILDS: directory,
		},
	});
}

/** @param {ReturnType<typeof run>} result */
function passes({ status, signal, stdout, stderr }) {
	assert.deepEqual({ status, signal }, { status: 0, signal: null }, stdout + stderr);
	assert.match(stdout, /: ok\n$/);
	assert.doesNotMatch(stderr, /Sanitizer|runtime error/);
}

describe('the shim under the sanitizers', { skip }, () => {
	before(() => {
		execFileSync(process.execPath, [join(root, 'binding/build.mjs'), '--sanitize'], { cwd: root });
	});

	for (const [kind, words] of /** @type {const} */ ([
		['overflow', /heap-buffer-overflow.*\n.*\n.*addon_plant/],
		['use after free', /heap-use-after-free.*\n.*\n.*addon_plant/],
		['undefined', /runtime error: signed integer overflow/],
		['leak', /detected memory leaks[\s\S]*addon_plant/],
	])) {
		test(`would not get away with this: ${kind}`, () => {
			const code = `require(${JSON.stringify(join(directory, 'guard.node'))}).plant(${JSON.stringify(kind)})`;
			const { status, stderr } = run('--input-type=commonjs', '--eval', code);
			assert.notEqual(status, 0, 'the planted fault was not found');
			assert.match(stderr, words);
		});
	}

	test('bears every misuse and every way that loading fails', () => {
		passes(run(fileURLToPath(new URL('misuse.mjs', import.meta.url)), directory));
	});

	test('leaves nothing behind when workers come and go in the middle of calls', () => {
		passes(run(fileURLToPath(new URL('churn.mjs', import.meta.url)), '--workers', String(rounds(120, 2000))));
	});

	test('the same while the main thread has the addon too', () => {
		passes(run(fileURLToPath(new URL('churn.mjs', import.meta.url)), '--workers', String(rounds(40, 300)), '--main'));
	});
});
