// @ts-check
/**
 * The tarball as users get it: installed by the package managers, in the places where installs are found, and then
 * used to guard a real process.
 *
 * `make test` has one install and the Node that runs the tests; PG_PACK=1 (`make pack-test`) all installs and every Node.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import {
	chmodSync,
	chownSync,
	existsSync,
	lstatSync,
	mkdirSync,
	mkdtempSync,
	readdirSync,
	readFileSync,
	realpathSync,
	rmSync,
	statSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import process from 'node:process';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { supported } from '../../lib/native.js';
import { root } from '../support/fixtures.js';
import { nodeBinary, nodeVersions } from '../support/node-versions.mjs';
import { marked } from '../support/processes.js';

const full = process.env.PG_PACK === '1';
const skip = process.platform === 'win32';
const target = `${process.platform}-${process.arch}`;
const scenario = fileURLToPath(new URL('scenario.mjs', import.meta.url));
const nodes = full ? Object.keys(nodeVersions).map((major) => nodeBinary(major)) : [process.execPath];
const isRoot = process.getuid?.() === 0;
/** Who owns nothing of an installation. Without root the tests are somebody else than the owner of nothing, too. */
const nobody = isRoot ? 65534 : undefined;

/** @type {string} */
let scratch;
/** @type {string} */
let tarball;
/** @type {{ path: string, mode: number, size: number }[]} */
let packed;
/** @type {number} */
let packedSize;

/**
 * @param {string} command
 * @param {string[]} args
 * @param {import('node:child_process').ExecFileSyncOptions} options
 */
function run(command, args, options) {
	return execFileSync(command, args, {
		encoding: 'utf8',
		timeout: 180_000,
		stdio: ['ignore', 'pipe', 'pipe'],
		...options,
		env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...options.env },
	}).toString();
}

/**
 * An application of its own.
 * @param {string} name
 */
function application(name) {
	const dir = join(scratch, name);
	mkdirSync(dir);
	writeFileSync(join(dir, 'package.json'), '{"name":"application","version":"1.0.0","private":true,"type":"module"}\n');
	return dir;
}

/**
 * @param {string} dir
 * @param {string[]} [flags]
 */
function npmInstall(dir, flags = []) {
	run('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', ...flags, tarball], { cwd: dir });
	return join(dir, 'node_modules', 'harper-process-guard');
}

/**
 * A package manager that is an npm package itself, and needs no install script.
 * @param {string} name
 * @param {string} version
 * @returns {string} its script
 */
function manager(name, version) {
	const dir = join(root, '.cache', 'managers', `${name.replace(/\W/g, '-')}-${version}`);
	const home = join(dir, 'node_modules', name);
	if (!existsSync(home)) {
		mkdirSync(dir, { recursive: true });
		run('npm', ['install', '--prefix', dir, '--no-save', '--ignore-scripts', '--silent', `${name}@${version}`], {});
	}
	const { bin } = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'));
	return join(home, typeof bin === 'string' ? bin : (bin.pnpm ?? bin.yarn));
}

let count = 0;

/**
 * The application guards a process: started under a keeper, restarted after a crash, stopped, and nothing is left.
 * @param {string} dir
 * @param {{ uid?: number, env?: Record<string, string>, only?: string, execArgv?: string[] }} [options]
 */
function guards(dir, { uid, env, only, execArgv = [] } = {}) {
	let answer;
	for (const node of nodes) {
		const own = join(scratch, `run-${++count}`);
		mkdirSync(own, { mode: 0o700 });
		if (uid !== undefined) chownSync(own, uid, uid);
		const marker = `pg-package-${process.pid}-${count}`;
		const { status, stdout, stderr } = spawnSync(
			node,
			[...execArgv, scenario, join(own, 'pids'), marker, ...(only ? [only] : [])],
			{
				cwd: dir,
				encoding: 'utf8',
				timeout: 60_000,
				uid,
				gid: uid,
				env: {
					...process.env,
					PATH: `${dirname(node)}${delimiter}${process.env.PATH}`,
					HOME: own,
					TMPDIR: own,
					NODE_TEST_CONTEXT: undefined,
					...env,
				},
			}
		);
		assert.equal(status, 0, `${node}: ${stderr}`);
		answer = JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
		const told = `${node}: ${JSON.stringify(answer)}`;
		assert.ok(answer.first.pid > 0 && answer.first.keeper > 0 && !answer.first.error, told);
		assert.ok(answer.second.pid > 0 && answer.second.pid !== answer.first.pid, told);
		assert.equal(answer.second.restarts, 1, told);
		assert.equal(answer.stopped.stopped, true, told);
		assert.deepEqual(marked(marker), [], told);
	}
	return answer;
}

describe('the package', { skip }, () => {
	before(() => {
		scratch = realpathSync(mkdtempSync(join(tmpdir(), 'pg-package-')));
		// Some installs are used by somebody else.
		chmodSync(scratch, 0o755);
		const json = run('npm', ['pack', '--json', '--pack-destination', scratch], {
			cwd: root,
			env: full ? {} : { PG_PACK_TARGETS: target },
		});
		// What prepack prints comes before it, and newer npms answer with an object by name.
		const answer = JSON.parse(json.slice(json.search(/^[[{]/m)));
		const [one] = Object.values(answer);
		packed = one.files;
		packedSize = one.size;
		tarball = join(scratch, one.filename);
	});
	after(() => {
		// Nobody but root may remove files from read-only directories.
		spawnSync('chmod', ['-R', 'u+w', scratch]);
		rmSync(scratch, { recursive: true, force: true });
	});

	test('has what it needs and nothing else, and stays small', (t) => {
		const paths = packed.map(({ path }) => path);
		const allowed =
			/^(lib\/[\w-]+\.js|types\/[\w-]+\.d\.ts|docs\/[\w-]+\.md|prebuilds\/[\w-]+\/[\w.]+|package\.json|README\.md|SECURITY\.md|LICENSE)$/;
		assert.deepEqual(
			paths.filter((path) => !allowed.test(path)),
			[]
		);
		for (const wanted of full ? supported : [target]) {
			const names = paths.filter((path) => path.startsWith(`prebuilds/${wanted}/`));
			assert.equal(names.length, 5, `${wanted}: ${names}`);
			const licences = run('tar', ['-xzOf', tarball, `package/prebuilds/${wanted}/LICENCES.txt`], {});
			for (const part of ['The Go Authors', 'golang.org/x/sys', 'gopsutil', 'Redistribution'])
				assert.ok(licences.includes(part), `${wanted}: ${part}`);
		}
		for (const { path, mode } of packed) {
			if (/^prebuilds\/(?!win32)[\w-]+\/(keeper|reaper)$/.test(path)) assert.equal(mode & 0o777, 0o755, path);
		}
		t.diagnostic(`${(packedSize / 1e6).toFixed(1)} MB packed`);
		assert.ok(packedSize < 15e6, `${packedSize} bytes`);
		const { scripts } = JSON.parse(run('tar', ['-xzOf', tarball, 'package/package.json'], {}));
		// npm 11 asks users about each package that has one of these.
		for (const name of ['preinstall', 'install', 'postinstall']) assert.equal(scripts[name], undefined);
	});

	test('installed by npm with --ignore-scripts guards a process', () => {
		const dir = application('npm-ignore');
		const home = npmInstall(dir, ['--ignore-scripts']);
		guards(dir);
		assert.equal(statSync(join(home, 'prebuilds', target, 'keeper')).mode & 0o111, 0o111);
	});

	test('has types that TypeScript finds', () => {
		const dir = join(scratch, 'npm-ignore');
		writeFileSync(
			join(dir, 'use.ts'),
			`import { guard, type GuardStatus } from 'harper-process-guard';
			export const status: Promise<GuardStatus> = guard({ pidDir: '/x', spawn: (() => undefined) as never, processes: [] });
			// @ts-expect-error
			export const wrong: number = guard;`
		);
		const tsc = [join(root, 'node_modules/typescript/bin/tsc'), '--noEmit', '--strict', '--target', 'es2024'];
		const types = ['--typeRoots', join(root, 'node_modules/@types'), '--types', 'node'];
		for (const module of ['nodenext', 'preserve']) {
			const { status, stdout } = spawnSync(process.execPath, [...tsc, ...types, '--module', module, 'use.ts'], {
				cwd: dir,
				encoding: 'utf8',
			});
			assert.equal(status, 0, `${module}: ${stdout}`);
		}
	});

	if (!full) return;

	test('loads on glibc 2.28 and stays loaded, on every Linux', () => {
		for (const name of supported.filter((each) => each.startsWith('linux-'))) {
			for (const file of ['guard.node', 'libguard.so'].map((each) => join(root, 'prebuilds', name, each))) {
				const text = run('readelf', ['-W', '--dyn-syms', '-d', file], {});
				const versions = [...text.matchAll(/GLIBC_2\.(\d+)/g)].map((found) => Number(found[1]));
				assert.ok(versions.length > 0 && Math.max(...versions) <= 28, `${file}: 2.${Math.max(...versions)}`);
				assert.match(text, /FLAGS_1.*NODELETE/, file);
			}
		}
	});

	test('installed by npm with scripts guards a process', () => {
		const dir = application('npm');
		npmInstall(dir);
		guards(dir);
	});

	test('in a host that may spawn node alone guards a process', () => {
		guards(join(scratch, 'npm-ignore'), { only: 'node' });
	});

	test('installed by pnpm guards a process', () => {
		const dir = application('pnpm');
		const pnpm = manager('pnpm', '10.34.8');
		run(process.execPath, [pnpm, 'add', '--store-dir', join(scratch, 'pnpm-store'), tarball], { cwd: dir });
		assert.ok(lstatSync(join(dir, 'node_modules/harper-process-guard')).isSymbolicLink());
		guards(dir);
	});

	test("installed by yarn's PnP, which unplugs it, guards a process", () => {
		const dir = application('yarn');
		const yarn = manager('@yarnpkg/cli-dist', '4.9.4');
		const env = {
			YARN_GLOBAL_FOLDER: join(scratch, 'yarn-global'),
			YARN_ENABLE_TELEMETRY: '0',
			YARN_ENABLE_SCRIPTS: '0',
			YARN_NPM_REGISTRY_SERVER: run('npm', ['config', 'get', 'registry'], {}).trim(),
		};
		writeFileSync(join(dir, 'yarn.lock'), '');
		run(process.execPath, [yarn, 'add', `harper-process-guard@file:${tarball}`], { cwd: dir, env });
		assert.equal(readdirSync(join(dir, '.yarn/unplugged')).length, 1);
		guards(dir, { execArgv: ['--require', join(dir, '.pnp.cjs'), '--loader', join(dir, '.pnp.loader.mjs')] });
	});

	test('reached through a symlink guards a process', () => {
		const dir = application('linked');
		mkdirSync(join(dir, 'node_modules'));
		symlinkSync(join(scratch, 'npm/node_modules/harper-process-guard'), join(dir, 'node_modules/harper-process-guard'));
		guards(dir);
		guards(dir, { only: 'node' });
		guards(dir, { execArgv: ['--preserve-symlinks'] });
	});

	test('installed read-only, by another user, guards a process and leaves the installation as it is', () => {
		const dir = application('read-only');
		npmInstall(dir, ['--ignore-scripts']);
		run('chmod', ['-R', 'a-w', dir], {});
		const names = run('find', [dir, '-printf', '%p %m %T@\\n'], {});
		assert.equal(guards(dir, { uid: nobody }).report.length, 0);
		assert.equal(run('find', [dir, '-printf', '%p %m %T@\\n'], {}), names);
	});

	for (const [what, only] of /** @type {[string, string | undefined][]} */ ([
		['', undefined],
		[', by node alone', 'node'],
	])) {
		test(`without mode bits that the host may give back runs a private copy and says so${what}`, (t) => {
			if (!isRoot) return t.skip('only root can become a user who may not');
			const dir = join(scratch, 'read-only');
			for (const name of ['keeper', 'reaper'])
				chmodSync(join(dir, 'node_modules/harper-process-guard/prebuilds', target, name), 0o444);
			const { report } = guards(dir, { uid: nobody, only });
			assert.match(report[0], /keeper cannot be run: EPERM.*the copy in .*\/pids\/\.programs-\w+ is used/);
		});
	}

	test('without its files for this platform says what it has', () => {
		const dir = application('pruned');
		const home = npmInstall(dir, ['--ignore-scripts']);
		rmSync(join(home, 'prebuilds', target), { recursive: true });
		const { status, stdout } = spawnSync(process.execPath, [scenario, join(scratch, 'pruned-pids'), 'pg-pruned'], {
			cwd: dir,
			encoding: 'utf8',
		});
		assert.equal(status, 0);
		assert.match(
			stdout,
			/the native part of process guard is not there: looked for .*Install the package again on this system/
		);
	});
});
