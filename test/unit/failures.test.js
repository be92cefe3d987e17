// @ts-check
/** docs/failures.md promises a test for each class of failure. Here it is held to that: a renamed or lost test shows. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { root } from '../support/fixtures.js';

const page = readFileSync(join(root, 'docs/failures.md'), 'utf8');
const [wild, weaknesses] = page.split('# Weaknesses of the original');

/**
 * The rows of a table that begin with a number.
 * @param {string} text
 */
const rows = (text) =>
	[...text.matchAll(/^\| (\d+) \| (.+) \|$/gm)].map(([, number, rest]) => ({
		number: Number(number),
		cells: rest.split(' | '),
	}));

/**
 * The tests that a cell names.
 * @param {string} cell
 */
const named = (cell) =>
	cell.split('<br>').map((one) => {
		const [, file, name] = /^`([^`]+)`: (.+)$/.exec(one) ?? [];
		assert.ok(file && name, `not a test: ${one}`);
		return { file, name };
	});

/**
 * Patterns of the names of the tests that a file has; what a template fills in may be anything.
 * @param {string} file
 */
function testsOf(file) {
	const text = readFileSync(join(root, file), 'utf8');
	const exactly = (/** @type {string} */ name) => name.replace(/[.*+?^$()[\]{}|\\]/g, '\\$&');
	const names = file.endsWith('.go')
		? [...text.matchAll(/^func (Test\w+)\(t \*testing\.T\)/gm)].map(([, name]) => exactly(name))
		: [...text.matchAll(/^\s*test\((?:'((?:[^'\\]|\\.)+)'|"([^"]+)"|`([^`]+)`)/gm)].map(
				([, single, double, template]) =>
					template === undefined
						? exactly((single ?? double).replaceAll("\\'", "'"))
						: template
								.split(/\$\{[^}]*\}/)
								.map(exactly)
								.join('.+')
			);
	return names.map((name) => new RegExp(`^${name}$`));
}

test('every test that the page names exists', () => {
	/** @type {Map<string, RegExp[]>} */
	const known = new Map();
	const missing = [];
	for (const { cells } of [...rows(wild), ...rows(weaknesses)])
		for (const { file, name } of named(cells[2])) {
			if (!known.has(file)) known.set(file, testsOf(file));
			if (!known.get(file)?.some((pattern) => pattern.test(name))) missing.push(`${file}: ${name}`);
		}
	assert.deepEqual(missing, []);
});

test('no class and no weakness is without an answer', () => {
	const others = [10, 21, 22, 25, 26, 27, 30, 31, 40];
	assert.deepEqual(
		rows(wild).map(({ number }) => number),
		Array.from({ length: 45 }, (_, index) => index + 1).filter((number) => !others.includes(number))
	);
	assert.deepEqual(
		rows(weaknesses).map(({ number }) => number),
		Array.from({ length: 30 }, (_, index) => index + 1)
	);
	for (const { cells } of rows(wild)) assert.equal(cells.length, 4, cells.join(' | '));
	for (const { cells } of rows(weaknesses)) assert.equal(cells.length, 3, cells.join(' | '));
});

test('every test in test/wild is on the page', () => {
	const names = [...rows(wild), ...rows(weaknesses)].flatMap(({ cells }) => named(cells[2]));
	for (const file of readdirSync(join(root, 'test/wild')).map((name) => `test/wild/${name}`))
		for (const pattern of testsOf(file))
			assert.ok(
				names.some((one) => one.file === file && pattern.test(one.name)),
				`${file}: ${pattern}`
			);
});
