// @ts-check
/**
 * What the Windows tests share. They run in a Windows node.exe, under Wine or on a real Windows.
 * @module
 */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

export const here = dirname(fileURLToPath(import.meta.url));
/** The Go program that is guarded; see test/support/windows/process. */
const built = process.env.PG_TEST_PROCESS ?? '';

let serial = 0;

/**
 * A directory, and a program that no other test runs.
 * @param {import('node:test').TestContext} t
 */
export function sandbox(t) {
	const dir = mkdtempSync(join(tmpdir(), 'pg-test-'));
	const name = `pg${process.pid}-${++serial}.exe`;
	const program = join(dir, name);
	copyFileSync(built, program);
	const pidDir = join(dir, 'pids');
	mkdirSync(pidDir);
	const running = () => list(name);
	t.after(async () => {
		await until('nothing of the test runs', () => {
			const keeper = keeperIn(join(pidDir, 'agent.pid'));
			if (keeper) end(keeper); // first: it would start another one
			const pids = running();
			for (const pid of pids) end(pid);
			return pids.length === 0;
		});
		try {
			rmSync(dir, { recursive: true, force: true, maxRetries: 2 });
		} catch {
			// Under Wine a directory that our guard still watches keeps its name.
		}
	});
	return { dir, pidDir, program, running };
}

/** @param {string} record */
export function keeperIn(record) {
	try {
		return JSON.parse(readFileSync(record, 'utf8').split('\n')[2]).keeper;
	} catch {
		return undefined;
	}
}

/**
 * @param {string} name
 * @returns {number[]}
 */
function list(name) {
	return execFileSync(built, ['list', name], { encoding: 'utf8' }).split(/\r?\n/).filter(Boolean).map(Number);
}

/** @param {number} pid */
export function alive(pid) {
	return execFileSync(built, ['alive', String(pid)], { encoding: 'utf8' }).trim() === 'true';
}

/**
 * Ends a process that a test started, the hard way: TerminateProcess with code 1.
 * @param {number} pid
 */
export function end(pid) {
	try {
		process.kill(pid, 'SIGKILL');
	} catch {
		// It has ended.
	}
}

/**
 * @param {string} what
 * @param {() => unknown} fact
 * @param {number} [patience]
 */
export async function until(what, fact, patience = 30_000) {
	const limit = Date.now() + patience;
	for (;;) {
		const value = await fact();
		if (value) return value;
		if (Date.now() > limit) assert.fail(`${what}: not so after ${patience} ms`);
		await sleep(20);
	}
}

/**
 * A thread that calls guard() and answers what became of it.
 * @param {object} options
 */
export async function thread(options) {
	const worker = new Worker(join(here, 'thread.mjs'), { workerData: options });
	const state = await new Promise((resolve, reject) => {
		worker.once('message', resolve);
		worker.once('error', reject);
		worker.once('exit', (code) => reject(new Error(`the thread ended with ${code}`)));
	});
	return { worker, state };
}

/**
 * Another host process that calls guard() and stays.
 * @param {object} options
 */
export async function host(options) {
	const child = spawn(process.execPath, [join(here, 'host.mjs'), JSON.stringify(options)], {
		stdio: ['pipe', 'pipe', 'inherit'],
		detached: true,
	});
	let text = '';
	child.stdout.setEncoding('utf8').on('data', (chunk) => (text += chunk));
	const ended = new Promise((resolve) => child.once('exit', resolve));
	const state = await until('the host has guarded', () => {
		if (child.exitCode !== null) throw new Error(`the host ended with ${child.exitCode}: ${text}`);
		return text.includes('\n') && JSON.parse(text.slice(0, text.indexOf('\n')));
	});
	return { child, state, ended };
}
