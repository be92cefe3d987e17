// @ts-check
/** The compiled test programs. Make builds them first; a test that is run on its own builds what it lacks. */
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = fileURLToPath(new URL('../..', import.meta.url));

/**
 * @param {string} source
 * @param {string} output
 * @param {string[]} flags
 */
function compiled(source, output, flags) {
	const from = join(root, 'test/fixtures', source);
	const to = join(root, '.cache/fixtures', output);
	if (!existsSync(to) || statSync(to).mtimeMs < statSync(from).mtimeMs) {
		mkdirSync(dirname(to), { recursive: true });
		// Beside and renamed: two test files may build at once, and one of them may already be running the program.
		const temporary = `${to}.${process.pid}`;
		execFileSync(process.env.CC ?? 'cc', [
			'-std=c11',
			'-O2',
			'-Wall',
			'-Wextra',
			'-Werror',
			...flags,
			from,
			'-o',
			temporary,
		]);
		renameSync(temporary, to);
	}
	return to;
}

/** @returns {string} path of the guarded process of the tests; its words are listed in proc.c */
export const proc = () => compiled('proc.c', 'proc', ['-pthread']);

/** @returns {string} path of a library that tells who was started with it preloaded */
export const preload = () => compiled('preload.c', 'preload.so', ['-shared', '-fPIC']);

/** @returns {string} path of a command that runs another one on what looks like a kernel without PIDFD_GET_INFO */
export const withoutExitProof = () => compiled('without-exit-proof.c', 'without-exit-proof', []);

/**
 * A command that runs another one with system calls refused.
 * @param {'flock:ENOLCK' | 'flock:ENOTSUP' | 'link:EPERM'} what
 */
export const refusing = (what) => [compiled('refusing.c', 'refusing', []), what];

/** @returns {string} path of a command that sends a process signals as fast as it is told to */
export const storm = () => compiled('storm.c', 'storm', []);

/**
 * A copy of the package whose keeper can be killed at named points.
 * @returns {{ entry: string, points: string[] }} the module to import, and the points
 */
export function faultPackage() {
	const prebuilt = `prebuilds/${process.platform}-${process.arch}`;
	const copy = join(root, '.cache/fault');
	mkdirSync(join(copy, prebuilt), { recursive: true });
	cpSync(join(root, 'lib'), join(copy, 'lib'), { recursive: true });
	cpSync(join(root, 'package.json'), join(copy, 'package.json'));
	for (const name of readdirSync(join(root, prebuilt)))
		if (!name.startsWith('keeper')) cpSync(join(root, prebuilt, name), join(copy, prebuilt, name));
	const keeper = join(copy, prebuilt, 'keeper');
	execFileSync('go', ['build', '-trimpath', '-buildvcs=false', '-tags', 'fault', '-o', keeper, './go/cmd/keeper'], {
		cwd: root,
		env: { ...process.env, CGO_ENABLED: '0' },
	});
	const points = execFileSync(keeper, ['faultpoints'], { encoding: 'utf8' }).split('\n').filter(Boolean);
	return { entry: join(copy, 'lib/index.js'), points };
}

/**
 * A copy of the package of which everything is the fault build, the library in the host included.
 * @returns {string} the module to import
 */
export function faultBuild() {
	const target = `${process.platform}-${process.arch}`;
	const built = join(root, 'prebuilds-fault', target);
	if (!existsSync(built)) execFileSync(process.execPath, [join(root, 'binding/build.mjs'), '--tags', 'fault']);
	const copy = join(root, '.cache/fault-build');
	/** @param {string} from @param {string} to */
	const replace = (from, to) => {
		// Two tests at once: a host of the other one would load two copies of one library.
		if (existsSync(to) && readFileSync(to).equals(readFileSync(from))) return;
		mkdirSync(dirname(to), { recursive: true });
		// Beside and renamed, because it may be running or be read for somebody else.
		cpSync(from, `${to}.${process.pid}`);
		renameSync(`${to}.${process.pid}`, to);
	};
	replace(join(root, 'package.json'), join(copy, 'package.json'));
	for (const name of readdirSync(join(root, 'lib'))) replace(join(root, 'lib', name), join(copy, 'lib', name));
	for (const name of readdirSync(built)) replace(join(built, name), join(copy, 'prebuilds', target, name));
	return join(copy, 'lib/index.js');
}
