// @ts-check
/**
 * Everything that lib/native.js never does to guard.node, and the ways its loading fails: wrong types, too few
 * arguments, ids out of range, strings around the size of its buffer, paths too long for a path, a second library.
 * Under a sanitizer this is where a read beyond an argument shows.
 *
 *   node test/stress/misuse.mjs [directory of guard.node]
 */
import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const directory =
	process.argv[2] ?? fileURLToPath(new URL(`../../prebuilds/${process.platform}-${process.arch}`, import.meta.url));
const addon = createRequire(import.meta.url)(join(directory, 'guard.node'));
const library = join(directory, 'libguard.so');
const scratch = mkdtempSync(join(tmpdir(), 'pg-misuse-'));

/** @param {() => unknown} f */
function thrown(f) {
	try {
		f();
	} catch (error) {
		return /** @type {{ code?: string, message: string }} */ (error);
	}
	return { message: 'it threw nothing' };
}

const long = 'é'.repeat(70_000);
const odd = [undefined, null, 1, NaN, {}, [], Symbol('s'), () => {}, 1n, '', '\0', '\ud800', long];

try {
	for (const name of ['sync', 'call', 'send', 'drop'])
		assert.equal(thrown(() => addon[name](1, 'ping', 'null')).code, 'PG_NOT_OPEN');
	writeFileSync(join(scratch, 'text.so'), 'no library');
	copyFileSync(library, join(scratch, 'copy.so'));
	for (const path of [join(scratch, 'none'), join(scratch, 'text.so'), `/${long}`, '', '\0'])
		assert.equal(thrown(() => addon.open(path, '{}', () => {})).code, 'PG_LOAD_FAILED', path.slice(0, 50));
	for (const value of odd) {
		thrown(() => addon.open(value));
		thrown(() => addon.open(value, value));
		if (typeof value !== 'function') assert.ok(thrown(() => addon.open(library, '{}', value)).code !== undefined);
	}

	/** @type {Map<number, string>} */
	const answers = new Map();
	addon.open(library, long, (/** @type {number} */ _, /** @type {number} */ id, /** @type {string} */ text) =>
		answers.set(id, text)
	);
	addon.open(join(scratch, 'copy.so'), '{}', () => {});
	for (const name of ['sync', 'call', 'send', 'drop'])
		for (const a of odd) {
			thrown(() => addon[name]());
			for (const b of odd) {
				thrown(() => addon[name](a, b));
				thrown(() => addon[name](a, b, b));
			}
		}
	// A character of four bytes at every place round the end of the buffer of 1,024.
	for (let size = 1000; size < 1030; size++) {
		const text = JSON.stringify(`${'x'.repeat(size)}😀`);
		assert.equal(addon.sync('echo', text), `{"ok":${text}}`);
		assert.match(addon.sync('n'.repeat(size), 'null'), /PG_UNKNOWN_FUNCTION/);
	}
	for (const id of [-1, 0, 2 ** 53, -(2 ** 63), Infinity, 0.5]) addon.call(id, 'echo', '"x"');
	addon.call(7, 'echo', JSON.stringify(long));
	for (let turn = 0; !answers.has(7) && turn < 1000; turn++) await new Promise((resolve) => setTimeout(resolve, 10));
	assert.equal(JSON.parse(/** @type {string} */ (answers.get(7))).ok, long);
	assert.equal(addon.sync('ping', 'null'), '{"ok":"pong"}');
	console.log(`misuse on ${process.version}: ok`);
} finally {
	rmSync(scratch, { recursive: true });
}
