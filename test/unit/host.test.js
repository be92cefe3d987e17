// @ts-check
/**
 * What a component needs from its host: the root that the host itself would find, files written whole, one start.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
	chmodSync,
	chownSync,
	existsSync,
	mkdirSync,
	mkdtempSync,
	readdirSync,
	readFileSync,
	rmSync,
	statSync,
	symlinkSync,
	writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import process from 'node:process';
import { after, beforeEach, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import {
	createHandleApplication,
	hostRoot,
	normaliseLog,
	resolvePort,
	watchForNeverCalled,
	writeFiles,
} from 'harper-process-guard';
import { until } from '../support/until.js';

const root = mkdtempSync(join(tmpdir(), 'pg-host-'));
after(() => rmSync(root, { recursive: true, force: true }));

/** @type {string[]} */
let lines = [];
/** @param {string} level */
const noting = (level) => (/** @type {string} */ line) => void lines.push(`${level} ${line}`);
const log = { info: noting('info'), warn: noting('warn'), error: noting('error') };
beforeEach(() => {
	lines = [];
});

test('a logger is completed: each level falls back to its neighbour, bound to its owner, looked up when called', () => {
	class Quiet {
		/** @type {string[]} */
		seen = [];
		warn(/** @type {string} */ line) {
			this.seen.push(`warn ${line}`);
		}
	}
	const quiet = new Quiet();
	const full = normaliseLog(quiet);
	full.info('a');
	full.warn('b');
	full.error('c');
	assert.deepEqual(quiet.seen, ['warn a', 'warn b', 'warn c']);
	/** @type {any} */ (quiet).info = (/** @type {string} */ line) => quiet.seen.push(`info ${line}`);
	full.info('d');
	assert.equal(quiet.seen.at(-1), 'info d');
	/** @type {any} */ (quiet).warn = 'no function';
	full.warn('e');
	assert.equal(quiet.seen.at(-1), 'info e');
});

test('what no level of a logger takes goes to the console, and so does everything without one', () => {
	const { log: consoleLog, warn } = console;
	/** @type {any[]} */
	const said = [];
	console.log = (...args) => void said.push(['log', ...args]);
	console.warn = (...args) => void said.push(['warn', ...args]);
	try {
		normaliseLog({}).error('x');
		normaliseLog(null).info('y');
		normaliseLog().warn('z');
	} finally {
		console.log = consoleLog;
		console.warn = warn;
	}
	assert.deepEqual(said, [
		['log', 'x'],
		['log', 'y'],
		['warn', 'z'],
	]);
});

/**
 * A home with boot properties that name a settings file.
 *
 * @param {string} properties
 * @param {Record<string, string>} [settings] By file name, beside the home.
 */
function home(properties, settings = {}) {
	const dir = mkdtempSync(join(root, 'home-'));
	mkdirSync(join(dir, '.harperdb'));
	writeFileSync(join(dir, '.harperdb/hdb_boot_properties.file'), properties.replaceAll('HOME', dir));
	for (const [name, text] of Object.entries(settings)) writeFileSync(join(dir, name), text);
	return dir;
}

/** @param {string} dir */
function rootIn(dir, env = {}) {
	const { HOME, USERPROFILE } = process.env;
	process.env.HOME = process.env.USERPROFILE = dir;
	try {
		return hostRoot(log, 'me', env);
	} finally {
		process.env.HOME = HOME;
		if (USERPROFILE === undefined) delete process.env.USERPROFILE;
		else process.env.USERPROFILE = USERPROFILE;
	}
}

const named = 'settings_path = HOME/harperdb-config.yaml\n    install_user = root\n';

test('the root is found the way the host finds it', () => {
	const settings = { 'harperdb-config.yaml': 'http:\n  port: 9926\nrootPath: /srv/data # here\nthreads: {count: 4}\n' };
	const dir = home(named, settings);
	assert.equal(rootIn(dir), '/srv/data');
	assert.equal(rootIn(dir, { ROOTPATH: '/elsewhere' }), '/elsewhere');
	assert.equal(rootIn(dir, { ROOTPATH: '' }), '/srv/data');
	assert.deepEqual(lines, []);
	assert.equal(rootIn(dir, { ROOTPATH: 'data' }), '/srv/data');
	assert.equal(lines.length, 1);
	assert.match(lines[0], /^warn me: ROOTPATH is data, which is not an absolute path, so it is ignored/);
	assert.match(lines[0], /different PID locks/);
});

test('the settings are YAML, whatever its style, under the name of today and the older one', () => {
	for (const text of [
		'"rootPath": "/srv/da ta"',
		"{threads: {count: 1}, rootPath: '/srv/da ta'}",
		'rootPath:\n  /srv/da ta\n',
		'rootPath: &root /srv/da ta\nlogging: {root: *root}\n',
		'%YAML 1.2\n---\nrootPath: /srv/da ta # the root\n',
		'nested:\n  rootPath: /not/this\nrootPath: /srv/da ta\n',
		'rootPath: /srv/da ta\nbroken: [1\n',
	]) {
		assert.equal(rootIn(home(named, { 'harperdb-config.yaml': text })), '/srv/da ta', text);
	}
	const today = { 'harper-config.yaml': 'rootPath: /today\n' };
	assert.equal(rootIn(home('  settings_path = HOME/harper-config.yaml', today)), '/today');
	assert.equal(rootIn(home(named, today)), '/today', 'the properties of before the upgrade');
	assert.equal(rootIn(home(named, { ...today, 'harperdb-config.yaml': 'rootPath: /old\n' })), '/old');
});

test('where there is no root to be found, there is none', () => {
	for (const [properties, text] of [
		[named, 'rootPath: null\n'],
		[named, 'rootPath: data\n'],
		[named, 'rootPath: [/srv]\n'],
		[named, 'nested:\n  rootPath: /not/this\n'],
		[named, '- a list\n'],
		[named, ': :\n\t- @'],
		[named, ''],
		['settings_path = harperdb-config.yaml\n', 'rootPath: /srv\n'],
		['install_user = root\n', 'rootPath: /srv\n'],
		['', 'rootPath: /srv\n'],
	]) {
		assert.equal(rootIn(home(properties, { 'harperdb-config.yaml': text })), null, properties + text);
	}
	const beside = relative(process.cwd(), home('', { 'harperdb-config.yaml': 'rootPath: /srv\n' }));
	assert.equal(rootIn(home(`settings_path = ${beside}/harperdb-config.yaml\n`)), null, 'a path from where a thread is');
	assert.equal(rootIn(home(named)), null);
	assert.equal(rootIn(join(root, 'no home')), null);
	assert.deepEqual(lines, []);
});

test('a port is a whole number from 1 to 65535, or 0, and nothing that only begins like one', () => {
	const port = (/** @type {string | undefined} */ text) => resolvePort('PORT', 8126, log, 'me', { PORT: text });
	for (const [text, expected] of /** @type {[string | undefined, number][]} */ ([
		[undefined, 8126],
		['', 8126],
		['  ', 8126],
		['0', 0],
		[' 0 ', 0],
		['1', 1],
		['65535', 65_535],
		[' 9000\n', 9000],
		['00080', 80],
	])) {
		assert.equal(port(text), expected, text);
	}
	assert.deepEqual(lines, []);
	for (const text of ['65536', '8126x', 'x', '-1', '1.5', '1e3', '0x50', '00', '100000', '8 1'])
		assert.equal(port(text), 8126, text);
	assert.equal(lines.length, 10);
	for (const line of lines) assert.match(line, /^warn me: PORT is .*, which is not a port in 1-65535; 8126 is used$/);
});

test('files are written whole, in directories that are made, and nothing else is left there', () => {
	const dir = join(root, 'files');
	writeFiles({ [join(dir, 'a/b/one.yaml')]: 'one', [join(dir, 'two')]: Buffer.from([0, 255]) }, log, 'me');
	assert.equal(readFileSync(join(dir, 'a/b/one.yaml'), 'utf8'), 'one');
	assert.deepEqual([...readFileSync(join(dir, 'two'))], [0, 255]);
	writeFiles({ [join(dir, 'two')]: 'again' }, log, 'me');
	assert.equal(readFileSync(join(dir, 'two'), 'utf8'), 'again');
	assert.deepEqual(readdirSync(dir).sort(), ['a', 'two']);
	assert.deepEqual(lines, []);
});

const posix = { skip: process.platform === 'win32' };
const asRoot = { skip: process.getuid?.() !== 0 };

test('a file keeps its mode, whatever the umask is', posix, () => {
	const file = join(root, 'mode');
	for (const mode of [0o600, 0o644, 0o666, 0o755]) {
		writeFileSync(file, 'old');
		chmodSync(file, mode);
		writeFiles({ [file]: 'new' }, log, 'me');
		assert.equal(statSync(file).mode & 0o7777, mode);
		assert.equal(readFileSync(file, 'utf8'), 'new');
	}
});

test('a file keeps its owner where that is ours to give', asRoot, () => {
	const file = join(root, 'owned');
	writeFileSync(file, 'old', { mode: 0o600 });
	chownSync(file, 12_345, 12_346);
	writeFiles({ [file]: 'new' }, log, 'me');
	const { uid, gid, mode } = statSync(file);
	assert.deepEqual([uid, gid, mode & 0o7777], [12_345, 12_346, 0o600]);
});

test('a directory is not replaced, not even an empty one, and not through a link', () => {
	const dir = join(root, 'a directory');
	const link = join(root, 'a link');
	mkdirSync(dir);
	symlinkSync(dir, link);
	const other = join(root, 'the other');
	writeFiles({ [dir]: 'x', [link]: 'x', [other]: 'written' }, log, 'me');
	assert.ok(statSync(dir).isDirectory() && statSync(link).isDirectory());
	assert.equal(readFileSync(other, 'utf8'), 'written', 'one failure stopped the rest');
	assert.deepEqual(
		lines,
		[dir, link].map((path) => `error me: ${path} could not be written: it is a directory`)
	);
});

test('a file that cannot be written leaves no temporary one, and what a killed thread left is replaced', () => {
	const dir = join(root, 'leftovers');
	mkdirSync(dir);
	writeFileSync(join(dir, `file.${process.pid}.0.tmp`), 'half a fi');
	writeFiles({ [join(dir, 'file')]: 'whole', [join(dir, 'file/below')]: 'x' }, log, 'me');
	assert.equal(readFileSync(join(dir, 'file'), 'utf8'), 'whole');
	assert.deepEqual(readdirSync(dir), ['file']);
	assert.equal(lines.length, 1);
	assert.match(lines[0], /file\/below could not be written: (ENOTDIR|EEXIST)/);
	writeFiles({ [join(dir, 'file')]: /** @type {any} */ (Symbol('no text')) }, log, 'me');
	assert.equal(lines.length, 2);
	assert.deepEqual(readdirSync(dir), ['file']);
});

test('threads that write the same file at once leave one of their texts, and a reader never sees less', async () => {
	const file = join(root, 'shared');
	const texts = ['a', 'b', 'c', 'd'].map((letter) => letter.repeat(200_000));
	writeFileSync(file, texts[0]);
	const source = `
		const { parentPort, workerData } = require('node:worker_threads');
		import('harper-process-guard').then(({ writeFiles }) => {
			const log = { info() {}, warn() {}, error(line) { parentPort.postMessage(line); } };
			for (let i = 0; i < 40; i++) writeFiles({ [workerData.file]: workerData.text }, log, 'w');
			parentPort.postMessage(null);
		});`;
	let left = texts.length;
	for (const text of texts) {
		const worker = new Worker(source, { eval: true, workerData: { file, text } });
		worker.on('message', (line) => line === null || lines.push(line));
		worker.on('exit', () => left--);
	}
	while (left > 0) {
		const text = readFileSync(file, 'utf8');
		assert.ok(texts.includes(text), `${text.length} characters of ${text[0]}`);
		await new Promise((resolve) => setImmediate(resolve));
	}
	assert.deepEqual(lines, []);
	assert.ok(!readdirSync(root).some((name) => name.includes('.tmp')));
	assert.ok(existsSync(file));
});

test('a component starts once per slot, not for a trial load, and answers nothing', () => {
	/** @type {any} */
	let slot;
	/** @type {any[]} */
	const started = [];
	let seen = 0;
	const handle = createHandleApplication({
		start: async (scope) => started.push(scope),
		deadline: { seen: () => seen++ },
		slot: { get: () => slot, set: (value) => (slot = value) },
	});
	assert.equal(handle({ isTransientValidation: true }), undefined);
	assert.deepEqual([started.length, slot, seen], [0, undefined, 1]);
	const scope = {};
	assert.equal(handle(scope), undefined);
	handle({});
	assert.equal(started[0], scope);
	assert.deepEqual([started.length, seen], [1, 3]);
	assert.ok(slot instanceof Promise);
});

test('a host that never calls is told of once, with what to write where', async () => {
	watchForNeverCalled({ log, label: 'me', configEntry: 'me: { package: me }', deadlineMs: 20 });
	watchForNeverCalled({ log, label: 'other', configEntry: '', deadlineMs: 20 }).seen();
	await new Promise((resolve) => setTimeout(resolve, 100));
	assert.equal(lines.length, 2);
	assert.match(lines[0], /^error me: .*has not called handleApplication/);
	assert.match(lines[1], /^error me: .*me: \{ package: me \}$/);
});

test('a thread that only evaluates the component says nothing once another was called', async () => {
	const options = { log, label: 'me', configEntry: 'called elsewhere', deadlineMs: 2000 };
	watchForNeverCalled(options);
	watchForNeverCalled({ ...options, configEntry: 'another component' });
	const source = `
		const { workerData } = require('node:worker_threads');
		import('harper-process-guard').then(({ watchForNeverCalled }) =>
			watchForNeverCalled({ log: console, ...workerData }).seen());`;
	const { label, configEntry } = options;
	const worker = new Worker(source, { eval: true, workerData: { label, configEntry } });
	await new Promise((resolve) => worker.once('exit', resolve));
	await until(() => lines.length === 2, 5000, 'the other component is told of');
	await new Promise((resolve) => setTimeout(resolve, 50));
	assert.equal(lines.length, 2);
	assert.match(lines[1], /another component/);
});

test('waiting for the call keeps no host running', () => {
	const source = `import('harper-process-guard').then(({ watchForNeverCalled }) =>
		watchForNeverCalled({ log: console, label: 'me', configEntry: '' }));`;
	const { status, signal } = spawnSync(process.execPath, ['-e', source], { cwd: import.meta.dirname, timeout: 20_000 });
	assert.deepEqual([status, signal], [0, null]);
});
