// @ts-check
/**
 * Makes the keeper and the reaper runnable where an archive or a package manager dropped their mode bits: in place if
 * that is possible, else as a private copy.
 * @module
 */
import { createHash } from 'node:crypto';
import {
	accessSync,
	chmodSync,
	constants,
	copyFileSync,
	existsSync,
	lstatSync,
	mkdirSync,
	mkdtempSync,
	readFileSync,
	realpathSync,
	renameSync,
	rmSync,
	writeFileSync,
} from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { dirname, join } from 'node:path';

/** Who may write to a directory with this bit removes and renames only what is theirs. */
const STICKY = 0o1000;

/** @param {string} file */
function runnable(file) {
	try {
		accessSync(file, constants.X_OK);
		return true;
	} catch {
		return false;
	}
}

/**
 * Gives the executable bit back.
 * @param {string} file
 * @returns {string | undefined} why that did not help
 */
export function notRunnable(file) {
	if (runnable(file)) return undefined;
	try {
		chmodSync(file, 0o755);
	} catch (error) {
		return /** @type {Error} */ (error).message;
	}
	return runnable(file) ? undefined : 'it is executable, but its file system is mounted noexec';
}

/**
 * Throws for what another user could change or could have put there: what is run from it gets signals sent and
 * processes started in our name.
 * @param {string} path
 * @param {number} [unless] A mode bit with which others may write: what is ours in there stays ours.
 */
function checkOwned(path, unless = 0) {
	const { uid, mode } = lstatSync(path);
	const own = process.getuid?.() ?? uid;
	if (uid !== own && uid !== 0) throw new Error(`${path} belongs to user ${uid}`);
	if ((mode & constants.S_IFMT) === constants.S_IFLNK) throw new Error(`${path} is a symbolic link`);
	if (process.platform !== 'win32' && mode & 0o022 && !(mode & unless))
		throw new Error(`${path} can be written by other users`);
}

/**
 * Throws for a directory that another user could put another one in the place of: what was checked is looked up once
 * more when it is run.
 * @param {string} directory
 */
function checkAbove(directory) {
	for (let above = dirname(directory); ; above = dirname(above)) {
		checkOwned(above, STICKY);
		if (above === dirname(above)) return;
	}
}

/**
 * The directories that a private copy may lie in, the best one first: nobody cleans `pidDir` up, but it may be mounted
 * noexec.
 * @param {string} pidDir
 */
function candidates(pidDir) {
	return [pidDir, join(tmpdir(), `process-guard-${process.getuid?.() ?? userInfo().username}`)];
}

/**
 * @param {Iterable<string>} files
 */
function digest(files) {
	const hash = createHash('sha256');
	for (const file of files) hash.update(readFileSync(file));
	return hash.digest('hex').slice(0, 16);
}

/**
 * One copy of these files in a directory of its own whose name is their content: hosts and threads that need the same
 * one share it, and an upgrade gets another.
 * @param {string} parent
 * @param {Record<string, string>} files path in the copy to installed file
 * @returns {string} the directory
 */
function copyInto(parent, files) {
	mkdirSync(parent, { recursive: true, mode: 0o700 });
	const home = realpathSync(parent);
	checkOwned(home);
	checkAbove(home);
	const wanted = digest(Object.values(files));
	const copy = join(home, `.programs-${wanted}`);
	if (isThere(copy, Object.keys(files), wanted)) return copy;
	const scratch = mkdtempSync(join(home, '.programs-tmp-'));
	try {
		for (const [name, file] of Object.entries(files)) {
			const to = join(scratch, name);
			mkdirSync(dirname(to), { recursive: true, mode: 0o700 });
			copyFileSync(file, to);
			chmodSync(to, 0o700);
		}
		// launch.js is a module because the package says so, and finds the executables beside itself.
		writeFileSync(join(scratch, 'package.json'), '{"type":"module"}\n', { mode: 0o600 });
		renameSync(scratch, copy);
	} catch (error) {
		// Another thread or host may have been faster.
		if (!isThere(copy, Object.keys(files), wanted)) throw error;
	} finally {
		rmSync(scratch, { recursive: true, force: true });
	}
	return copy;
}

/**
 * Whether this copy exists. It throws for one that is damaged or that another user could have made.
 * @param {string} copy
 * @param {string[]} names
 * @param {string} wanted
 */
function isThere(copy, names, wanted) {
	if (!existsSync(copy)) return false;
	const there = names.map((name) => join(copy, name));
	for (const path of [copy, ...there]) checkOwned(path);
	if (digest(there) !== wanted) throw new Error(`${copy} is not what its name says; remove it`);
	return true;
}

/**
 * Copies these files to where they can be run.
 * @param {Record<string, string>} files path in the copy to installed file
 * @param {string} pidDir
 * @returns {{ directory: string } | { refusals: string[] }}
 */
export function privateCopy(files, pidDir) {
	const refusals = [];
	for (const parent of candidates(pidDir)) {
		try {
			const directory = copyInto(parent, files);
			const stuck = Object.keys(files)
				.map((name) => join(directory, name))
				.find((file) => !runnable(file));
			if (stuck === undefined) return { directory };
			refusals.push(`${stuck} may not be run: its file system is mounted noexec`);
			rmSync(directory, { recursive: true, force: true });
		} catch (error) {
			refusals.push(`${parent}: ${/** @type {Error} */ (error).message}`);
		}
	}
	return { refusals };
}
