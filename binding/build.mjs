// @ts-check
/**
 * The one build script: `npm install` in a checkout, Make and node-gyp (through
 * binding.gyp) all end here. It needs Go, a C compiler and nothing from the network
 * beyond the Go modules: node-gyp would fetch Node's headers from nodejs.org, so
 * the C compiler is called directly, with the headers of node-api-headers.
 *
 *   node binding/build.mjs [--if-missing] [--tags fault] [--sanitize] [--force] [--target win32-x64] [--check]
 *
 * --if-missing  content with whatever is there, however old
 * --check       builds nothing; says what would have to be built, and fails if anything would
 * --sanitize    the shim under AddressSanitizer and UndefinedBehaviorSanitizer, into prebuilds-asan/; for tests
 *
 * Everything lands in prebuilds/<platform>-<arch>/ (prebuilds-<tags>/ with --tags),
 * each file by rename: a host that runs keeps the files that it mapped.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
	existsSync,
	mkdirSync,
	mkdtempSync,
	readdirSync,
	readFileSync,
	renameSync,
	rmSync,
	statSync,
	writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const { values: options } = parseArgs({
	options: {
		'if-missing': { type: 'boolean', default: false },
		force: { type: 'boolean', default: false },
		check: { type: 'boolean', default: false },
		tags: { type: 'string', default: '' },
		sanitize: { type: 'boolean', default: false },
		target: { type: 'string', default: `${process.platform}-${process.arch}` },
	},
});

const target = options.target;
const [platform, arch] = target.split('-');
const windows = platform === 'win32';
// The cross compilers by the names that Debian gives them.
const cross = { 'win32-x64': 'x86_64-w64-mingw32-gcc', 'linux-arm64': 'aarch64-linux-gnu-gcc' };
const variant = [...options.tags.split(','), options.sanitize ? 'asan' : ''].filter(Boolean);
const outputs = join(root, ['prebuilds', ...variant].join('-'), target);
// Go's own default is gcc; the library and the shim shall come from one compiler.
const compiler =
	process.env.CC ||
	(target === `${process.platform}-${process.arch}` ? undefined : cross[/** @type {'win32-x64'} */ (target)]) ||
	(windows ? 'gcc' : 'cc');
const library = { win32: 'libguard.dll', darwin: 'libguard.dylib' }[platform] ?? 'libguard.so';
const executable = (/** @type {string} */ name) => (windows ? `${name}.exe` : name);

/** Ends the build with a sentence instead of a stack. */
class BuildError extends Error {}

/**
 * @param {string} command
 * @param {string[]} args
 * @param {NodeJS.ProcessEnv} [env]
 */
function run(command, args, env = {}) {
	const { error, status, signal } = spawnSync(command, args, {
		cwd: root,
		env: { ...process.env, ...env },
		stdio: ['ignore', 'inherit', 'inherit'],
	});
	if (error) throw new BuildError(`${command} could not be started: ${error.message}`);
	if (status !== 0)
		throw new BuildError(`${command} ${args[0]} failed (${signal ?? `exit code ${status}`}); its messages are above`);
}

/**
 * Both tools are looked for before anything is built: Go's own message for a missing
 * compiler names gcc and not what to do.
 */
function checkTools() {
	for (const [command, argument] of [
		['go', 'version'],
		[compiler.split(' ')[0], '--version'],
	]) {
		const { error } = spawnSync(command, [argument], { stdio: 'ignore' });
		if (error && 'code' in error && error.code === 'ENOENT') throw new BuildError(missing(command));
	}
}

/** @param {string} command */
function missing(command) {
	const what =
		command === 'go'
			? `Go ${goVersion()} or newer (\`go\`)`
			: `a C compiler (\`${command}\`${process.env.CC ? ', from the environment variable CC' : '; set CC to use another'})`;
	return `${what} was not found on PATH. It is needed to build harper-process-guard from its sources for ${target}, since ${outputs} is not there or is older than they are. Install it and run \`node binding/build.mjs\`, or install a release that carries ${target}.`;
}

function goVersion() {
	return /^go (\S+)/m.exec(readFileSync(join(root, 'go.mod'), 'utf8'))?.[1] ?? '';
}

/**
 * The newest change below these paths. Directories count, so that a removed file does.
 * @param {string[]} paths
 * @returns {number}
 */
function newest(paths) {
	let time = 0;
	for (const path of paths) {
		const stat = statSync(join(root, path));
		time = Math.max(time, stat.mtimeMs);
		if (stat.isDirectory()) {
			const inside = readdirSync(join(root, path)).filter((name) => !name.endsWith('_test.go') && name !== 'testdata');
			time = Math.max(time, newest(inside.map((name) => join(path, name))));
		}
	}
	return time;
}

/**
 * @param {string} file
 * @param {string[]} sources
 */
function stale(file, sources) {
	const path = join(outputs, file);
	return options.force || !existsSync(path) || statSync(path).mtimeMs < newest(sources);
}

/** The folder that holds node_api.h. */
function headers() {
	try {
		return dirname(createRequire(join(root, 'package.json')).resolve('node-api-headers/include/node_api.h'));
	} catch {
		const own = join(dirname(dirname(process.execPath)), 'include', 'node');
		if (existsSync(join(own, 'node_api.h'))) return own;
		throw new BuildError(
			`node_api.h was not found: neither the package node-api-headers (a development dependency: run \`npm install\` in ${root}) nor ${own} has it.`
		);
	}
}

const flags = ['-trimpath', '-buildvcs=false'];
const goEnv = {
	GOOS: { win32: 'windows' }[platform] ?? platform,
	GOARCH: { x64: 'amd64', ia32: '386' }[arch] ?? arch,
};
const goSources = ['go', 'go.mod', 'go.sum', 'binding/build.mjs'];
const floor = platform === 'linux' ? ['-include', join(root, 'binding', 'glibc.h')] : [];

/** @param {string} out */
function buildLibrary(out) {
	// Go's build cache keeps what it compiled from headers outside of a package, however
	// they change, so their content is made part of the command line.
	const hash = createHash('sha256');
	for (const name of ['guard.h', 'glibc.h']) hash.update(readFileSync(join(root, 'binding', name)));
	const words = [...floor, `-DPG_HEADERS=0x${hash.digest('hex').slice(0, 8)}`];
	const quoted = words.map((word) => (/\s/.test(word) ? `"${word}"` : word)).join(' ');
	run(
		'go',
		[
			'build',
			'-buildmode=c-shared',
			...flags,
			'-tags',
			['netgo', 'osusergo', ...(options.tags ? [options.tags] : [])].join(','),
			// Without asyncpreemptoff=1 Go sends itself SIGURG and must keep it open on its
			// threads: a host with a SIGURG listener then died within 3 seconds.
			// No build id: it is made from the paths of the headers, too, and the same sources
			// shall give the same bytes wherever they lie.
			'-ldflags=-s -w -buildid= -X=runtime.godebugDefault=asyncpreemptoff=1',
			'-o',
			out,
			'./go/capi',
		],
		{ ...goEnv, CGO_ENABLED: '1', CC: compiler, CGO_CFLAGS: `${process.env.CGO_CFLAGS ?? '-O2 -g'} ${quoted}` }
	);
}

/** @param {string} name */
function buildExecutable(name) {
	return (/** @type {string} */ out) =>
		run(
			'go',
			[
				'build',
				...flags,
				...(options.tags ? ['-tags', options.tags] : []),
				'-ldflags=-s -w',
				'-o',
				out,
				`./go/cmd/${name}`,
			],
			{ ...goEnv, CGO_ENABLED: '0' }
		);
}

/** @param {string} out */
function buildShim(out) {
	const link = {
		linux: ['-Wl,-z,nodelete', '-Wl,-z,relro', '-Wl,-z,now', '-lpthread', '-ldl'],
		darwin: ['-undefined', 'dynamic_lookup'],
		// Left alone, the linker writes the time into the file, and a base made from the path of the output.
		win32: ['-static-libgcc', '-Wl,--no-insert-timestamp', '-Wl,--image-base,0x180000000'],
	};
	// A stranger's newer compiler may warn of something; that must not end an install.
	const strict = options['if-missing'] ? [] : ['-Werror'];
	// Node is not built for it: whoever runs this preloads the library of the sanitizers.
	const sanitized = [
		'-g',
		'-fno-omit-frame-pointer',
		'-fsanitize=address,undefined',
		'-fno-sanitize-recover=undefined',
	];
	const [command, ...words] = compiler.split(' ');
	run(command, [
		...words,
		'-std=c11',
		'-D_GNU_SOURCE',
		'-O2',
		'-fPIC',
		'-shared',
		'-fvisibility=hidden',
		...(options.sanitize ? [...sanitized, '-DPG_SANITIZE'] : ['-s']),
		'-Wall',
		'-Wextra',
		...strict,
		...floor,
		// The header says dllexport. Called as imports, the functions are reached through
		// the variables that load_windows.c fills, and the linker invents no others.
		...(windows ? ['-DNAPI_EXTERN=__declspec(dllimport)'] : []),
		'-I',
		headers(),
		join(root, 'binding', 'addon.c'),
		join(root, 'binding', windows ? 'load_windows.c' : 'load_posix.c'),
		'-o',
		out,
		...(link[/** @type {'linux'} */ (platform)] ?? []),
	]);
}

/**
 * What is linked into the binaries is under licences that want their texts beside them.
 * @param {string} out
 */
function writeLicences(out) {
	const list = (/** @type {string[]} */ args, /** @type {string} */ cgo) => {
		const { status, stdout } = spawnSync('go', args, {
			cwd: root,
			encoding: 'utf8',
			env: { ...process.env, ...goEnv, CGO_ENABLED: cgo, CC: compiler },
			stdio: ['ignore', 'pipe', 'inherit'],
		});
		if (status !== 0) throw new BuildError(`go ${args[0]} failed; its messages are above`);
		return stdout.split('\n').filter(Boolean);
	};
	const format = '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}';
	const modules = list(['list', '-deps', '-f', format, './go/capi', './go/cmd/keeper', './go/cmd/reaper'], '1');
	// Its patent grant belongs to it.
	const parts = list(['env', 'GOROOT'], '0').map((goroot) => `The Go standard library and runtime\t${goroot}`);
	const texts = [...parts, ...[...new Set(modules)].sort()].map((line) => {
		const [name, directory] = line.split('\t');
		const files = readdirSync(directory).filter((file) => /^(licen[cs]e|copying|notice|patents)\b/i.test(file));
		if (files.length === 0) throw new BuildError(`${name} in ${directory} has no licence text`);
		return [`# ${name}`, ...files.sort().map((file) => readFileSync(join(directory, file), 'utf8').trim())].join(
			'\n\n'
		);
	});
	writeFileSync(
		out,
		`What the binaries beside this file contain of others, and its licences.\n\n${texts.join('\n\n')}\n`
	);
}

/** @type {Array<{ file: string, sources: string[], build: (out: string) => void }>} */
const products = [
	{ file: library, sources: [...goSources, 'binding/guard.h', 'binding/glibc.h'], build: buildLibrary },
	{ file: 'guard.node', sources: ['binding'], build: buildShim },
	...['keeper', 'reaper'].map((name) => ({ file: executable(name), sources: goSources, build: buildExecutable(name) })),
	{ file: 'LICENCES.txt', sources: ['go.mod', 'go.sum', 'binding/build.mjs'], build: writeLicences },
];

try {
	const wanted = options['if-missing']
		? products.every(({ file }) => existsSync(join(outputs, file)))
			? []
			: products
		: products.filter(({ file, sources }) => stale(file, sources));
	if (options.check) {
		const files = wanted.map(({ file }) => file).join(', ');
		const what = options['if-missing'] ? 'incomplete' : 'incomplete or older than the sources';
		if (files !== '')
			throw new BuildError(`${outputs} is ${what}: ${files}. Run \`node binding/build.mjs --target ${target}\``);
	} else if (wanted.length > 0) {
		checkTools();
		mkdirSync(join(root, 'build'), { recursive: true });
		mkdirSync(outputs, { recursive: true });
		const scratch = mkdtempSync(join(root, 'build', 'tmp-'));
		try {
			for (const { file, build } of wanted) {
				console.log(`building ${join(outputs, file)}`);
				build(join(scratch, file));
				renameSync(join(scratch, file), join(outputs, file));
			}
		} finally {
			rmSync(scratch, { recursive: true, force: true });
		}
	}
} catch (error) {
	if (!(error instanceof BuildError)) throw error;
	console.error(`harper-process-guard: ${error.message}`);
	process.exitCode = 1;
}
