// @ts-check
/** Loading the addon where Node may unload it again, and under another name of the executable. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

const native = pathToFileURL(join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'lib', 'native.js')).href;

// The main thread never loads it: Node frees the addon with the last worker, and Go
// would be unmapped under its own threads.
const onlyWorkers = `
	const { Worker } = require('node:worker_threads');
	const code = "import(" + JSON.stringify(${JSON.stringify(native)}) + ").then(({ sync, call }) => { sync('ping'); return call('sleep', { ms: 5 }); }).then(() => " +
		"{ if (require('node:worker_threads').workerData % 2) require('node:process').exit(0); })";
	(async () => {
		for (let round = 0; round < 15; round++) {
			await Promise.all([0, 1, 2].map((n) => new Promise((resolve, reject) => {
				const worker = new Worker(code, { eval: true, workerData: n });
				if (n === 2) setTimeout(() => worker.terminate(), 20);
				worker.on('error', reject).on('exit', resolve);
			})));
		}
		console.log('all ended');
	})();
`;

test('an addon that only workers load, which end', () => {
	const out = execFileSync(process.execPath, ['-e', onlyWorkers], { encoding: 'utf8', timeout: 120_000 });
	assert.equal(out.trim(), 'all ended');
});

test('a node.exe of another name', (t) => {
	const dir = mkdtempSync(join(tmpdir(), 'pg-test-'));
	t.after(() => rmSync(dir, { recursive: true, force: true, maxRetries: 5 }));
	const renamed = join(dir, 'harper.exe');
	copyFileSync(process.execPath, renamed);
	const code = `import(${JSON.stringify(native)}).then(({ sync }) => console.log(sync('ping')))`;
	assert.equal(execFileSync(renamed, ['-e', code], { encoding: 'utf8', timeout: 60_000 }).trim(), 'pong');
});
