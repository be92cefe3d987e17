// @ts-check
/**
 * What the package shows to the outside: its names, what a published consumer imports of it, and that it knows no consumer.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import * as exported from 'harper-process-guard';

const root = fileURLToPath(new URL('../..', import.meta.url));

const functions = `argvOf claimSingleton claimStaleMs clearStaleHostPidFiles createHandleApplication currentReaper
	currentVerdict describeExit describeSpawnFailure fingerprint guard guardDescriptors heldProcess hostRoot identify
	keepReaperAlive neverStarted nodeProcess normaliseLog parseJson pollEndpoint pollUnixSocket readProcess resolvePort
	retakeVerdict selfProcess sharedMarks supervisesNatively supervisorFor tailFile takeVerdictAgainst unstarted
	untraceWith watchForNeverCalled writeFiles`.split(/\s+/);

test('there are 36 public names, functions but for one', () => {
	const kinds = Object.fromEntries(Object.entries(exported).map(([name, value]) => [name, typeof value]));
	assert.deepEqual(kinds, {
		...Object.fromEntries(functions.map((name) => [name, 'function'])),
		REAPER_WATCH_MS: 'number',
	});
	assert.equal(Object.keys(kinds).length, 36);
	assert.equal(exported.REAPER_WATCH_MS, 60_000);
});

/** What each module of the published consumer imports. */
const imports = {
	component: `createHandleApplication currentReaper nodeProcess normaliseLog retakeVerdict supervisorFor unstarted
		untraceWith watchForNeverCalled`,
	verify: 'describeExit neverStarted parseJson pollEndpoint pollUnixSocket takeVerdictAgainst',
	delivery: 'parseJson pollEndpoint sharedMarks tailFile',
	series: 'claimSingleton claimStaleMs readProcess selfProcess',
	settings: 'hostRoot resolvePort writeFiles',
};

test('what a published consumer imports resolves, by the names of its own modules', async () => {
	const names = new Set(Object.values(imports).flatMap((list) => list.split(/\s+/)));
	assert.equal(names.size, 24);
	const dir = mkdtempSync(join(tmpdir(), 'pg-consumer-'));
	try {
		mkdirSync(join(dir, 'node_modules'));
		symlinkSync(root, join(dir, 'node_modules/harper-process-guard'));
		for (const [module, list] of Object.entries(imports)) {
			// A name that is missing fails when the module is linked, before a line of it runs.
			const words = list.split(/\s+/);
			const file = join(dir, `${module}.mjs`);
			writeFileSync(
				file,
				`import { ${words.join(', ')} } from 'harper-process-guard';\nexport const kinds = [${words.map((word) => `typeof ${word}`)}];\n`
			);
			const { kinds } = await import(pathToFileURL(file).href);
			assert.deepEqual(new Set(kinds), new Set(['function']), module);
		}
		// A loader that resolves as CommonJS does finds the same file: a map with nothing but an `import` condition fails.
		const required = createRequire(join(dir, 'component.mjs')).resolve('harper-process-guard');
		assert.equal(pathToFileURL(required).href, import.meta.resolve('harper-process-guard'));
	} finally {
		rmSync(dir, { recursive: true, force: true });
	}
});

/**
 * What a consumer calls itself and what it sells. Written apart, so that this file does not contain what it looks for.
 */
const consumers = [
	['data', 'dog'],
	['delicious', 'monster'],
].map((parts) => parts.join(''));

/**
 * @param {string} text
 * @returns {string | undefined}
 */
const consumerIn = (text) =>
	consumers.find((name) =>
		text
			.toLowerCase()
			.replaceAll(/[\s_.-]+/g, '')
			.includes(name)
	);

test('no source file names a consumer', () => {
	assert.equal(consumerIn(`an agent of Data${'-'}Dog`), consumers[0]);
	let seen = 0;
	for (const top of ['lib', 'go', 'binding', 'docs', 'examples']) {
		for (const entry of readdirSync(join(root, top), { recursive: true, withFileTypes: true })) {
			if (!entry.isFile()) continue;
			const path = join(entry.parentPath, entry.name);
			assert.equal(consumerIn(path), undefined, path);
			assert.equal(consumerIn(readFileSync(path, 'utf8')), undefined, path);
			seen++;
		}
	}
	assert.ok(seen > 80, `${seen} files`);
});
