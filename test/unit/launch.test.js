// @ts-check
/**
 * lib/launch.js in a package of the test's own, with a shell in the place of the keeper.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
	chmodSync,
	copyFileSync,
	mkdirSync,
	mkdtempSync,
	openSync,
	readFileSync,
	realpathSync,
	rmSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const skip = process.platform === 'win32';
const launch = fileURLToPath(new URL('../../lib/launch.js', import.meta.url));

/**
 * A package that has a launch.js and, as its keeper and reaper, a shell.
 *
 * @param {import('node:test').TestContext} t
 */
function packageOfOwn(t) {
	const dir = realpathSync(mkdtempSync(join(tmpdir(), 'pg-launch-')));
	t.after(() => rmSync(dir, { recursive: true, force: true }));
	const script = join(dir, 'lib', 'launch.js');
	const keeper = join(dir, 'prebuilds', `${process.platform}-${process.arch}`, 'keeper');
	mkdirSync(dirname(script));
	mkdirSync(dirname(keeper), { recursive: true });
	copyFileSync(launch, script);
	writeFileSync(join(dir, 'package.json'), '{"type":"module"}');
	copyFileSync(realpathSync('/bin/sh'), keeper);
	copyFileSync(keeper, join(dirname(keeper), 'reaper'));
	return { dir, script, keeper };
}

/**
 * @param {string[]} args
 * @param {import('node:child_process').SpawnSyncOptions} [options]
 */
function node(args, options = {}) {
	const { status, signal, stdout, stderr } = spawnSync(process.execPath, args, { timeout: 30_000, ...options });
	return { status, signal, stdout: String(stdout ?? ''), stderr: String(stderr ?? '') };
}

/**
 * The environment of a launcher whose process has these slots.
 *
 * @param {object} spec
 */
function declaring(spec) {
	const text = JSON.stringify(spec);
	return { ...process.env, PG_SPEC_0: text.slice(0, 5), PG_SPEC_1: text.slice(5) };
}

test('launch.js runs the program beside it with its arguments and ends with its exit code', { skip }, (t) => {
	const { script } = packageOfOwn(t);
	for (const program of ['keeper', 'reaper']) {
		const run = node([script, program, '-c', 'echo "$0|$1|$2"; cat; exit 7', 'launch', 'a b', ''], { input: 'in' });
		assert.deepEqual(run, { status: 7, signal: null, stdout: 'launch|a b|\nin', stderr: '' });
	}
});

test('launch.js works through a link, and where node keeps links as they are', { skip }, (t) => {
	const { dir, script } = packageOfOwn(t);
	symlinkSync(script, join(dir, 'link.mjs'));
	symlinkSync(dir, join(dir, 'elsewhere'));
	for (const path of [join(dir, 'link.mjs'), join(dir, 'elsewhere', 'lib', 'launch.js')]) {
		for (const flags of [[], ['--preserve-symlinks', '--preserve-symlinks-main']]) {
			const run = node([...flags, path, 'keeper', '-c', 'echo ran']);
			assert.deepEqual(run, { status: 0, signal: null, stdout: 'ran\n', stderr: '' }, `${flags} ${path}`);
		}
	}
});

test('launch.js passes every declared descriptor on, and no other', { skip: process.platform !== 'linux' }, (t) => {
	const { dir, script } = packageOfOwn(t);
	const file = join(dir, 'file');
	writeFileSync(file, 'content');
	const fd = openSync(file, 'r');
	// What is open, without the shell's own and without those of `ls`.
	const list = 'for fd in /proc/self/fd/*; do readlink "$fd" | grep -q pg-launch- && basename "$fd"; done; true';
	/** @param {object} spec @param {(number | 'ignore')[]} more */
	const open = (spec, more) =>
		node([script, 'keeper', '-c', list], { env: declaring(spec), stdio: ['ignore', 'pipe', 'pipe', ...more] });
	assert.equal(open({ slots: 3 }, []).stdout, '');
	assert.equal(open({ slots: 5 }, [fd, fd]).stdout, '3\n4\n');
	assert.equal(open({ slots: 4 }, [fd, fd]).stdout, '3\n', 'a descriptor that nobody declared');
	assert.equal(open({ slots: 5 }, ['ignore', fd]).stdout, '4\n');
	assert.equal(open({ slots: 5, ignored: [3] }, [fd, fd]).stdout, '4\n');
});

test("launch.js never passes node's own descriptors in the place of a declared one", {
	skip: process.platform !== 'linux',
}, (t) => {
	const { script } = packageOfOwn(t);
	const list = 'readlink /proc/self/fd/3 /proc/self/fd/4; true';
	const run = node([script, 'keeper', '-c', list], { env: declaring({ slots: 5 }) });
	assert.doesNotMatch(run.stdout, /anon_inode/);
});

test('launch.js names the path when it cannot run what is there', { skip }, (t) => {
	for (const [what, spoil, why] of /** @type {[string, (keeper: string) => unknown, RegExp][]} */ ([
		['nothing', (keeper) => rmSync(keeper), /ENOENT/],
		['no executable', (keeper) => writeFileSync(keeper, 'exit 0\n'), /not an executable of this platform/],
		['half a file', (keeper) => writeFileSync(keeper, readFileSync(keeper).subarray(0, 2)), /not an executable/],
		['an empty file', (keeper) => writeFileSync(keeper, ''), /not an executable/],
		['a directory', (keeper) => [rmSync(keeper), mkdirSync(keeper)], /EISDIR/],
		// Root may run nothing either that nobody may run.
		['no permission', (keeper) => chmodSync(keeper, 0o644), /EACCES/],
	])) {
		const { script, keeper } = packageOfOwn(t);
		spoil(keeper);
		const run = node([script, 'keeper', 'launch']);
		assert.equal(run.status, 1, what);
		assert.match(run.stderr, why, what);
		assert.ok(run.stderr.startsWith(`process guard: ${keeper} could not be run: `), run.stderr);
		assert.equal(run.stderr.trimEnd().split('\n').length, 1, run.stderr);
	}
});

test('launch.js says how it is used when it is used in another way', { skip }, () => {
	for (const args of [[], ['other'], ['--keep']]) {
		const run = node([launch, ...args]);
		assert.equal(run.status, 2);
		assert.match(run.stderr, /^usage: node launch\.js keeper\|reaper/);
	}
});

test('a program that a signal ended ends launch.js by that signal', { skip }, (t) => {
	const { script } = packageOfOwn(t);
	for (const env of [process.env, declaring({ slots: 4 })]) {
		assert.equal(node([script, 'keeper', '-c', 'kill -TERM $$'], { env }).signal, 'SIGTERM');
	}
});
