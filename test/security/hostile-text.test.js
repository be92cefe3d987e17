// @ts-check
/**
 * What may stand in a file of ours, in arguments and in names: nothing of it ends a host, reaches a prototype, becomes a
 * path or is signalled.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { alive, marked, processOf } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { patience, until } from '../support/until.js';

const deep = 100_000;
const nested = `${'['.repeat(deep)}${']'.repeat(deep)}`;
const objects = `${'{"a":'.repeat(deep)}1${'}'.repeat(deep)}`;

/**
 * Line 3 of a record, or an exit record, as an attacker would like it.
 * @param {number} pid a living process that is not ours
 * @param {string} argv its command line as JSON
 * @returns {Record<string, string | Buffer>}
 */
const lines = (pid, argv) => ({
	'nothing at all': '',
	'NUL bytes': '\0'.repeat(4096),
	'invalid UTF-8': Buffer.concat([
		Buffer.from('{"token":"'),
		Buffer.from([0xff, 0xfe, 0xc0]),
		Buffer.from('","argv":["a"]}'),
	]),
	'two megabytes of one word': `{"token":"1.1.1.a","host":1,"argv":["${'x'.repeat(2 << 20)}"]}`,
	'a hundred thousand words': `{"token":"1.1.1.a","host":1,"argv":[${'"x",'.repeat(100_000)}"x"]}`,
	'arrays without end': `{"token":"1.1.1.a","argv":${nested}}`,
	'objects without end': `{"token":"1.1.1.a","argv":["a"],"x":${objects}}`,
	'depth alone': nested,
	'depth that is not closed': '['.repeat(deep),
	'huge numbers': `{"token":"1.1.1.a","host":1e400,"argv":["a"],"keeper":99999999999999999999,"inode":-1e308,"restarts":9223372036854775807,"claimedAt":1e999,"ns":-1,"uid":1e99,"launcher":-1}`,
	'a pid that the kernel cuts down': `{"token":"1.1.1.a","host":${2 ** 32 + pid},"argv":${argv},"keeper":${2 ** 32 + pid},"keeperArgv":${argv}}`,
	'doubled keys': `{"token":"../../x","token":"1.1.1.a","argv":["a"],"argv":["b"],"keeper":${pid},"keeper":0,"host":1}`,
	'other types': `{"token":["x"],"host":"${pid}","argv":{"0":"a"},"keeper":[${pid}],"keeperArgv":"x","started":{},"restarts":"many"}`,
	prototypes: `{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}},"token":"1.1.1.a","argv":["a"],"host":1,"restarts":0}`,
	'a token that is a path': `{"token":"../../../../etc/x","argv":${argv},"host":1,"keeper":${pid},"keeperArgv":${argv}}`,
	'a token that is another name': `{"token":"x.pid","argv":${argv},"host":1}`,
	'a token with a line end': `{"token":"a\\nb","argv":${argv},"host":1}`,
	'a token without end': `{"token":"${'t'.repeat(1 << 20)}","argv":${argv},"host":1}`,
	'terminal sequences': `{"token":"1.1.1.a","argv":["\\u001b[2J\\u0007","\\nFORGED"],"host":1}`,
});

/** @param {import('node:test').TestContext} t */
async function withStranger(t) {
	const box = sandbox(t);
	const child = box.spawn([`other-${box.marker}`, `signals=${box.file('signals')}`, `starts=${box.file('starts')}`]);
	await until(() => box.lines('starts').length === 1, 5_000, 'the stranger runs');
	const pid = Number(child.pid);
	return {
		box,
		pid,
		argv: JSON.stringify(processOf(pid)?.argv),
		untouched: () => alive(pid) && box.lines('signals').length === 0,
	};
}

test('a record, an exit record, a set aside record and a life file may say anything', async (t) => {
	const { box, pid, argv, untouched } = await withStranger(t);
	const host = await box.host();
	const dead = 4_194_305;
	let number = 0;
	for (const [what, line] of Object.entries(lines(pid, argv))) {
		for (const file of ['proc.pid', 'proc.pid.reaping']) {
			const key = `case-${number++}`;
			const marker = `${box.marker}-${key}`;
			const pidDir = box.file(key);
			mkdirSync(pidDir, { mode: 0o700 });
			const text = Buffer.concat([Buffer.from(`${dead}\n1\n`), Buffer.from(line), Buffer.from('\n')]);
			for (const each of [file, 'proc.pid.keeper.1.1.1.a']) writeFileSync(join(pidDir, each), text);
			writeFileSync(join(pidDir, 'proc.pid.exit'), line);
			const { processes, tookMs, report } = await host.guard(
				0,
				{
					pidDir,
					version: 1,
					claimTimeoutMs: 1_000,
					stopOrphans: true,
					processes: [{ name: 'proc', binaryPath: box.proc, args: [marker] }],
				},
				key
			);
			assert.equal(processes[0].error, undefined, `${what} in ${file}`);
			assert.ok(tookMs < 3_000 * patience, `${what} in ${file} took ${tookMs} ms`);
			assert.ok(!/\p{Cc}/u.test(report.join('')), `${what} in ${file}: ${report}`);
			await until(() => marked(marker).length === 1, 5_000, `${what} runs`);
			process.kill(processes[0].keeper, 'SIGTERM');
			await until(() => marked(marker).length === 0, 5_000, `${what} has ended`);
		}
	}
	assert.ok(untouched(), 'nobody else was signalled');
	assert.equal(/** @type {any} */ ({}).polluted, undefined);
});

test('what JavaScript is told of such a file is plain data', async (t) => {
	const { box, pid, argv } = await withStranger(t);
	mkdirSync(box.pidDir, { mode: 0o700 });
	const { argvOf, currentReaper, heldProcess, identify, nodeProcess } = await import('harper-process-guard');
	for (const [what, line] of Object.entries(lines(pid, argv))) {
		writeFileSync(
			join(box.pidDir, 'proc.pid'),
			Buffer.concat([Buffer.from(`${pid}\n1\n`), Buffer.from(line), Buffer.from('\n')])
		);
		const held = /** @type {any} */ (heldProcess(join(box.pidDir, 'proc.pid')));
		assert.equal(held.pid, pid, what);
		for (const one of [
			held,
			nodeProcess({ name: 'proc', started: false }, box.pidDir),
			currentReaper({ name: 'proc' }, box.pidDir),
		]) {
			assert.equal(Object.getPrototypeOf(one), Object.prototype, what);
			assert.equal(one.polluted, undefined, what);
		}
	}
	assert.equal(/** @type {any} */ ({}).polluted, undefined);
	// Numbers and words that no process has.
	for (const odd of [
		0,
		-1,
		1.5,
		2 ** 31,
		2 ** 32 + pid,
		Number.MAX_SAFE_INTEGER,
		Number.NaN,
		Number.POSITIVE_INFINITY,
	]) {
		assert.notEqual(identify(odd, JSON.parse(argv)), 'match', `${odd}`);
		assert.ok(!argvOf(odd)?.length, `${odd}`);
	}
});

test("a stranger's command line reaches no log: neither its arguments nor a line of its own making", async (t) => {
	const box = sandbox(t);
	const { clearStaleHostPidFiles, currentReaper } = await import('harper-process-guard');
	const words = ['-c', 'read line', 'password', '\n2030-01-01 [error] FORGED', '\u001b[2J'];
	const child = spawn('/bin/sh', words, { stdio: ['pipe', 'ignore', 'ignore'] });
	box.children.push(child);
	await until(() => processOf(Number(child.pid))?.argv.includes('password'), 5_000, 'the stranger runs');
	mkdirSync(box.file('pids'));
	mkdirSync(box.pidDir, { mode: 0o700 });
	writeFileSync(box.file('pids/agent.pid'), `${child.pid}\n`);
	writeFileSync(join(box.pidDir, 'watch.pid'), `${child.pid}\n1\n{"token":"1.1.1.a","argv":["a"],"host":1}\n`);
	// One that is no file of the host's pids: it stays.
	writeFileSync(box.file('away.pid'), `${child.pid}\n`);
	/** @type {string[]} */
	const said = [];
	const log = { info: said.push.bind(said), warn: said.push.bind(said), error: said.push.bind(said) };
	clearStaleHostPidFiles(
		box.dir,
		[
			{ name: 'agent', argv: ['/opt/agent'] },
			{ name: '../away', argv: ['/opt/agent'] },
		],
		log,
		'me'
	);
	said.push(String(/** @type {any} */ (currentReaper({ name: 'watch' }, box.pidDir)).error));
	assert.equal(said.length, 2);
	for (const line of said) {
		assert.match(line, new RegExp(`pid ${child.pid}, which is running \`/bin/sh\``));
		assert.ok(!/password|FORGED|\p{Cc}/u.test(line), line);
	}
	assert.deepEqual(readdirSync(box.file('pids')), []);
	assert.equal(readFileSync(box.file('away.pid'), 'utf8'), `${child.pid}\n`);
});

test('a name is a file name in pidDir and nothing else; a mark and a claim stay in their directory', async (t) => {
	const box = sandbox(t);
	const host = await box.host();
	const { claimSingleton, sharedMarks } = await import('harper-process-guard');
	const odd = [
		'',
		'.',
		'..',
		'../x',
		'a/b',
		'/etc/x',
		'a\\b',
		'a\0b',
		'a\nb',
		'\x7f',
		'\ud800',
		'x'.repeat(201),
		'漢'.repeat(67),
	];
	for (const name of odd) {
		for (const config of [box.config([], { process: { name } }), box.config([], { reaper: { name } })])
			await assert.rejects(
				host.guard(0, config, 'odd'),
				(/** @type {any} */ error) => error.type === undefined && /name must be a plain file name/.test(error.message),
				JSON.stringify(name)
			);
	}
	assert.deepEqual(box.files(), [], 'nothing was made');
	// What a file system takes is one name, however odd it looks.
	const fine = [
		'...',
		'-rf',
		'~',
		'$(touch x)',
		'%2e%2e%2f',
		'con',
		'e\u0301',
		'é',
		'\u202eexe',
		'__proto__',
		'x'.repeat(200),
	];
	for (const [number, name] of fine.entries()) {
		const { processes } = await host.guard(0, box.config([], { process: { name } }), `fine-${number}`);
		assert.equal(processes[0].error, undefined, name);
		assert.ok(box.files().includes(`${name}.pid`), name);
		process.kill(processes[0].keeper, 'SIGTERM');
	}
	await until(() => box.keepers().length === 0, 5_000, 'all have ended');
	assert.ok(
		box.files().every((file) => fine.some((name) => file.startsWith(name))),
		box.files().join(' ')
	);
	const marks = box.file('marks');
	for (const key of [...odd, ...fine]) {
		sharedMarks(marks, key).set(key, 1);
		sharedMarks(marks, 'kind').add(key, 1);
	}
	for (const file of readdirSync(marks)) assert.match(file, /^[\w.-]+\.mark$/);
	for (const file of ['', '.', '..', 'a\0b', 'x'.repeat(300)])
		assert.equal(claimSingleton({ dir: marks, file, holder: 'me', staleMs: 1_000 }), false, JSON.stringify(file));
	for (const holder of ['', 'a\nb', 'a\0b'])
		assert.equal(claimSingleton({ dir: marks, file: 'claim', holder, staleMs: 1_000 }), false, JSON.stringify(holder));
	assert.deepEqual(readdirSync(box.dir).sort(), ['marks', 'run']);
});
