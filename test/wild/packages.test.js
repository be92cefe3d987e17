// @ts-check
/** Failures in the wild: an installation that is not what was published, and a system that cannot take it. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { root } from '../support/fixtures.js';
import { inMounts, whyNoMounts } from '../support/host.js';
import { sandbox } from '../support/sandbox.js';
import { rounds } from '../support/scale.js';

const target = `${process.platform}-${process.arch}`;

/**
 * The package, as an installer would have put it somewhere.
 * @param {import('../support/sandbox.js').Sandbox} box
 */
function installed(box) {
	const to = box.file('package');
	mkdirSync(to);
	for (const name of ['lib', 'package.json', join('prebuilds', target)])
		cpSync(join(root, name), join(to, name), { recursive: true });
	symlinkSync(join(root, 'node_modules'), join(to, 'node_modules'));
	return { to, prebuilds: join(to, 'prebuilds', target), entry: join(to, 'lib/index.js') };
}

test('addon torn down with a worker: loaded in workers only, which end, and the host exits 0', {
	timeout: 600_000,
}, () => {
	const total = rounds(120, 500);
	const worker = `const { parentPort } = require('node:worker_threads');
		import(${JSON.stringify(pathToFileURL(join(root, 'lib/native.js')).href)}).then(({ nativeFrom }) => {
			const native = nativeFrom();
			native.sync('ping');
			native.call('sleep', { ms: 20 });
			parentPort.postMessage('loaded');
		});`;
	const code = `const { Worker } = require('node:worker_threads');
		const { once } = require('node:events');
		let left = ${total};
		async function some() {
			while (left-- > 0) {
				const worker = new Worker(${JSON.stringify(worker)}, { eval: true });
				await once(worker, 'message');
				await worker.terminate();
			}
		}
		Promise.all([some(), some(), some()]).then(() => console.log('done'));`;
	const { status, signal, stdout, stderr } = spawnSync(process.execPath, ['-e', code], {
		encoding: 'utf8',
		env: { ...process.env, NODE_TEST_CONTEXT: undefined },
	});
	assert.deepEqual([status, signal, stdout, stderr], [0, null, 'done\n', '']);
});

test('helper without +x: keeper and reaper are run all the same, where their mode can be mended', async (t) => {
	const box = sandbox(t);
	const { prebuilds, entry } = installed(box);
	for (const name of ['keeper', 'reaper']) chmodSync(join(prebuilds, name), 0o644);
	const host = await box.host({ threads: 2, env: { PG_PACKAGE: entry } });
	for (const { processes, reaper } of await host.guardAll(box.config([], { reaper: { graceMs: 100 } }))) {
		assert.deepEqual([processes[0].error, reaper.error], [undefined, undefined]);
		assert.ok(processes[0].keeper > 0);
	}
	assert.equal(box.keepers()[0].argv[0], join(prebuilds, 'keeper'));
});

test('helper without +x: in a read-only installation a private copy is run, and the report says so', {
	skip: whyNoMounts(),
}, async (t) => {
	const box = sandbox(t);
	box.expectedLeftovers.push(/^\.programs-/);
	const { to, prebuilds, entry } = installed(box);
	for (const name of ['keeper', 'reaper']) chmodSync(join(prebuilds, name), 0o644);
	const host = await box.host({
		threads: 1,
		env: { PG_PACKAGE: entry },
		under: inMounts(`mount --bind '${to}' '${to}'; mount -o remount,bind,ro '${to}'`),
	});
	const { processes, report } = await host.guard(1, box.config());
	assert.equal(processes[0].error, undefined);
	const [keeper] = box.keepers();
	assert.ok(keeper.argv[0].startsWith(join(box.pidDir, '.programs-')), keeper.argv[0]);
	assert.ok(
		report.some((/** @type {string} */ line) => line.includes(join(prebuilds, 'keeper'))),
		report.join('\n')
	);
});

test('platform package missing: nothing is started, and the message names the cause', async (t) => {
	const box = sandbox(t);
	const { prebuilds, entry } = installed(box);
	rmSync(prebuilds, { recursive: true });
	mkdirSync(join(prebuilds, '..', 'plan9-mips'));
	const host = await box.host({ threads: 2, env: { PG_PACKAGE: entry } });
	for (const { processes, report } of await host.guardAll(box.config([], { reaper: { graceMs: 100 } }))) {
		assert.deepEqual([processes[0].started, processes[0].pid], [false, undefined]);
		for (const text of [processes[0].error, report.join('\n')]) {
			assert.ok(text.includes(`looked for ${prebuilds}`), text);
			assert.match(text, /has plan9-mips/);
			assert.match(text, /Install the package again on this system/);
		}
	}
	assert.deepEqual(box.files(), []);
});

test('musl: a Node that is linked to it is told so before anything is loaded', { skip: whyNoMounts() }, async (t) => {
	const box = sandbox(t);
	const loader = `/lib/ld-musl-${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}.so.1`;
	// A report without a glibc is how such a Node shows; there is none to be had here.
	writeFileSync(
		box.file('musl.cjs'),
		`const { getReport } = process.report;
		process.report.getReport = () => {
			const report = getReport.call(process.report);
			delete report.header.glibcVersionRuntime;
			return report;
		};`
	);
	// Its loader is there in the eyes of this host only.
	const over = box.file('over');
	mkdirSync(over);
	const overlay = [
		`mount -t tmpfs none '${over}'`,
		`mkdir '${over}/upper' '${over}/work'`,
		`touch '${over}/upper/${basename(loader)}'`,
		`mount -t overlay -o 'lowerdir=/lib,upperdir=${over}/upper,workdir=${over}/work' none /lib`,
	].join('; ');
	const host = await box.host({
		threads: 1,
		under: existsSync(loader) ? [] : inMounts(overlay),
		execArgv: ['--require', box.file('musl.cjs')],
	});
	const { processes } = await host.guard(1, box.config());
	assert.deepEqual([processes[0].started, processes[0].pid], [false, undefined]);
	assert.match(processes[0].error, /musl \(Alpine\).*golang\/go#54805.*Debian-based image/);
	assert.ok(!readFileSync(`/proc/${host.pid}/maps`, 'utf8').includes('libguard'));
});
