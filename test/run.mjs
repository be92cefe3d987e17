// @ts-check
/**
 * Runs the Go tests, the fuzz targets, then the JavaScript tests on one or several Nodes, and closes with one line that
 * counts all of them: "N passed, N failed, N skipped". A run that did not come to its end counts as a failure.
 *
 *   node test/run.mjs [--go] [--fuzz SECONDS] [--node PATH]... [--only TEXT]
 *
 * --go          the Go tests too
 * --fuzz N      every fuzz target for N seconds; what is found is written to testdata/fuzz/ of its package
 * --node PATH   run the JavaScript tests on this Node; several are run one after the other
 * --only TEXT   only test files whose path contains TEXT
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const { values } = parseArgs({
	options: {
		go: { type: 'boolean', default: false },
		fuzz: { type: 'string', default: '0' },
		node: { type: 'string', multiple: true, default: [] },
		only: { type: 'string', default: '' },
	},
});

const total = { passed: 0, failed: 0, skipped: 0 };

/** @param {Partial<typeof total>} counted */
function add(counted) {
	for (const key of /** @type {(keyof typeof total)[]} */ (Object.keys(total))) total[key] += counted[key] ?? 0;
}

/**
 * `go test -json`, shown as one line per package and in full where something failed.
 * @param {string[]} args
 */
async function goTests(args) {
	console.log(`# go test ${args.length > 2 ? `${args[0]}, ${args.length - 1} packages` : args.join(' ')}`);
	const child = spawn('go', ['test', '-json', ...args], { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] });
	/** @type {Map<string, string>} */
	const output = new Map();
	const counted = { passed: 0, failed: 0, skipped: 0 };
	let broken = 0;
	for await (const line of createInterface({ input: /** @type {import('node:stream').Readable} */ (child.stdout) })) {
		let event;
		try {
			event = JSON.parse(line);
		} catch {
			console.log(line);
			continue;
		}
		const key = `${event.Package ?? event.ImportPath} ${event.Test ?? ''}`;
		if (event.Output) output.set(key, (output.get(key) ?? '') + event.Output);
		if (event.Action === 'pass' && event.Test) counted.passed++;
		if (event.Action === 'skip' && event.Test) counted.skipped++;
		if (event.Action === 'fail') {
			if (event.Test) counted.failed++;
			// A package that fails without a failing test did not compile, crashed, or ran out of time.
			else if (counted.failed === 0) broken++;
			console.log(output.get(key) ?? '');
		}
		if (event.Action === 'build-fail') console.log(output.get(key) ?? '');
		if (event.Action === 'pass' && !event.Test) console.log(`ok   ${event.Package} ${event.Elapsed}s`);
	}
	const code = child.exitCode ?? (await once(child, 'exit'))[0];
	if (code !== 0 && counted.failed + broken === 0) broken = 1;
	add({ ...counted, failed: counted.failed + broken });
}

/**
 * Every fuzz target of the sources: `go test` takes one of them a run.
 * @returns {{ directory: string, target: string }[]}
 */
function fuzzTargets() {
	return readdirSync(join(root, 'go'), { withFileTypes: true, recursive: true })
		.filter((entry) => entry.isFile() && entry.name.endsWith('_test.go'))
		.flatMap((entry) => {
			const directory = entry.parentPath ?? entry.path;
			const text = readFileSync(join(directory, entry.name), 'utf8');
			return [...text.matchAll(/^func (Fuzz\w+)\(/gm)].map(([, target]) => ({ directory, target }));
		});
}

/**
 * @param {{ directory: string, target: string }} one
 * @param {number} [seconds]
 */
async function fuzz({ directory, target }, seconds = Number(values.fuzz)) {
	const args = ['test', '-run=^$', `-fuzz=^${target}$`, `-fuzztime=${seconds}s`, '-parallel=1'];
	// By default one interesting input is made smaller for up to a minute, in which nothing else is tried.
	args.push('-fuzzminimizetime=1s', '.');
	const child = spawn('go', args, { cwd: directory, stdio: ['ignore', 'pipe', 'pipe'] });
	let output = '';
	for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += data));
	const [code, signal] = await once(child, 'close');
	const tries = [...output.matchAll(/(?:execs: |coverage: )(\d+)/g)].at(-1)?.[1];
	// Go 1.26 may fail a run whose time is over while an input is being tried: golang/go#75804.
	const found = /Failing input written|failure while testing|hung or terminated|panic:/.test(output);
	const outOfTime = code === 1 && !found && /^ +context deadline exceeded$/m.test(output);
	// The corpus comes first: on a loaded machine two seconds were over before it was through, and nothing was found.
	if ((code === 0 || outOfTime) && !output.includes('now fuzzing') && seconds === Number(values.fuzz)) {
		return fuzz({ directory, target }, seconds * 5);
	}
	// A run that tried nothing looks like one that found nothing.
	if (Number(tries) > 0 && (code === 0 || outOfTime)) {
		console.log(`ok   ${target} ${tries} inputs`);
		add({ passed: 1 });
	} else {
		console.log(`FAIL ${target} in ${relative(root, directory)} ended with ${code ?? signal}\n${output}`);
		add({ failed: 1 });
	}
}

/** Two at a time, with one worker each: that is what two cores take. */
async function fuzzTests() {
	const targets = fuzzTargets();
	if (targets.length === 0) throw new Error('no fuzz target was found');
	console.log(`# ${targets.length} fuzz targets, ${values.fuzz} s each`);
	const one = async () => {
		for (let target = targets.pop(); target; target = targets.pop()) await fuzz(target);
	};
	await Promise.all([one(), one()]);
}

/**
 * @param {string} dir
 * @returns {string[]}
 */
function testFiles(dir) {
	return (
		readdirSync(dir, { withFileTypes: true, recursive: true })
			.filter((entry) => entry.isFile() && entry.name.endsWith('.test.js'))
			.map((entry) => relative(root, join(entry.parentPath ?? entry.path, entry.name)))
			.filter((name) => !name.includes('node_modules'))
			// Those have a Makefile of their own, which runs them under Wine.
			.filter((name) => process.platform === 'win32' || !name.startsWith('test/windows/'))
			.sort()
	);
}

/** @param {string} node */
async function jsTests(node) {
	const dir = mkdtempSync(join(tmpdir(), 'pg-run-'));
	const report = join(dir, 'count');
	const files = testFiles(join(root, 'test')).filter((name) => name.includes(values.only));
	if (files.length === 0) throw new Error(`no test file contains ${values.only}`);
	console.log(`# ${files.length} test files on ${node}`);
	const child = spawn(
		node,
		[
			'--test',
			// Races are provoked inside each file; two files at once are what two cores take.
			'--test-concurrency=2',
			'--test-timeout=240000',
			'--test-reporter=spec',
			'--test-reporter-destination=stdout',
			`--test-reporter=${join(root, 'test/support/count-reporter.mjs')}`,
			`--test-reporter-destination=${report}`,
			...files,
		],
		{
			cwd: root,
			stdio: ['ignore', 'inherit', 'inherit'],
			// A constrained spawn allows bare `node`: that has to be this one.
			env: { ...process.env, PATH: `${dirname(node)}${delimiter}${process.env.PATH}` },
		}
	);
	/** @type {[number | string | null, NodeJS.Signals | null]} */
	const [code, signal] = /** @type {any} */ (await once(child, 'exit').catch((error) => [error.message, null]));
	let counted = { passed: 0, failed: 0, skipped: 0 };
	try {
		counted = JSON.parse(readFileSync(report, 'utf8'));
	} catch {
		counted.failed = 1;
	}
	rmSync(dir, { recursive: true });
	if (code !== 0 && counted.failed === 0) {
		console.log(`the test runner ended with ${code ?? signal}`);
		counted.failed = 1;
	}
	add(counted);
}

if (values.go) {
	// A run of the model is one goroutine that shares nothing: under the race detector, which has nothing to see
	// there, it takes five times as long.
	const model = 'processguard/go/internal/model';
	const packages = execFileSync('go', ['list', './...'], { cwd: root, encoding: 'utf8' }).split('\n').filter(Boolean);
	await goTests(['-race', ...packages.filter((name) => name !== model)]);
	await goTests([model]);
}
if (Number(values.fuzz) > 0) await fuzzTests();
for (const node of values.node) await jsTests(node);
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0;
