// @ts-check
/**
 * `node lib/launch.js keeper|reaper <arguments>` runs the Go executable of that name with those arguments, and ends with
 * its exit code. It exists because a host may allow `node` and nothing else.
 *
 * It is run, never imported, and every start waits for it: builtins only, and none that is not needed.
 *
 * @module
 */
import { accessSync, closeSync, constants, fstatSync, openSync, readSync, realpathSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

/**
 * Through the real path: under --preserve-symlinks-main the module's own URL is the link's, and nothing lies beside that.
 *
 * @param {string} program
 * @returns {string}
 */
function executablePath(program) {
	const here = dirname(realpathSync(fileURLToPath(import.meta.url)));
	const suffix = process.platform === 'win32' ? '.exe' : '';
	return join(here, '..', 'prebuilds', `${process.platform}-${process.arch}`, program + suffix);
}

/** @type {Partial<Record<NodeJS.Platform, string>>} How an executable file begins. */
const MAGIC = { linux: '7f454c46', darwin: 'cffaedfe', win32: '4d5a' };

/**
 * Throws for a file that is no executable. A half-written one is run by spawn as a shell script, which ends well and has
 * done nothing, and by execve to a core dump.
 *
 * @param {string} path
 */
function checkExecutable(path) {
	accessSync(path, constants.X_OK);
	const magic = Buffer.from(MAGIC[process.platform] ?? '', 'hex');
	const head = Buffer.alloc(magic.length);
	const file = openSync(path, 'r');
	readSync(file, head);
	closeSync(file);
	if (!head.equals(magic)) throw new Error('it is not an executable of this platform');
}

/**
 * What the guard declared for the process behind a keeper.
 *
 * @returns {{ slots: number, ignored: number[] }}
 */
function declaredSlots() {
	let text = '';
	for (let i = 0; process.env[`PG_SPEC_${i}`] !== undefined; i++) text += process.env[`PG_SPEC_${i}`];
	const { slots = 3, ignored = [] } = text === '' ? {} : JSON.parse(text);
	return { slots, ignored };
}

/**
 * Every declared descriptor under its own number, and no other: what is left out of a spawn's stdio is not inherited.
 *
 * @returns {('inherit' | 'ignore')[]}
 */
function stdioToPass() {
	const { slots, ignored } = declaredSlots();
	return Array.from({ length: Math.max(slots, 3) }, (_, fd) => {
		if (fd < 3) return 'inherit';
		return ignored.includes(fd) || !isHandedDown(fd) ? 'ignore' : 'inherit';
	});
}

/**
 * A free number among the declared ones is taken by Node for a thing of its own, such as its event poll; that one must
 * not reach the process. Those things have no file type.
 *
 * @param {number} fd
 * @returns {boolean}
 */
function isHandedDown(fd) {
	try {
		return (fstatSync(fd).mode & constants.S_IFMT) !== 0;
	} catch {
		return false;
	}
}

/**
 * @param {string} path
 * @param {unknown} error
 * @returns {never}
 */
function fail(path, error) {
	const why = error instanceof Error ? error.message : String(error);
	process.stderr.write(`process guard: ${path} could not be run: ${why}\n`);
	process.exit(1);
}

/**
 * @param {string} path
 * @param {string[]} args
 */
async function run(path, args) {
	try {
		checkExecutable(path);
		const stdio = stdioToPass();
		// Replacing this process saves a second one and a few milliseconds. Node marks every descriptor above 2 to be
		// closed by that, so it does for the plain case only. The ignored SIGPIPE that it leaves behind is undone by Go.
		if (stdio.length === 3 && typeof process.execve === 'function') process.execve(path, [path, ...args], process.env);
		const { spawnSync } = await import('node:child_process');
		const { status, signal, error } = spawnSync(path, args, { stdio, windowsHide: true });
		if (error) fail(path, error);
		if (signal) process.kill(process.pid, signal);
		process.exitCode = status ?? 1;
	} catch (error) {
		fail(path, error);
	}
}

const [, , program, ...args] = process.argv;
if (program === 'keeper' || program === 'reaper') {
	await run(executablePath(program), args);
} else {
	process.stderr.write('usage: node launch.js keeper|reaper <arguments>; it is run by process guard\n');
	process.exitCode = 2;
}
