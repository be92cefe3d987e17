// @ts-check
/** The guard on Windows, end to end: real node.exe, real keepers and reapers. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { describe, test } from 'node:test';
import { guard } from '../../lib/index.js';
import { alive, end, host, keeperIn, sandbox, thread, until } from './support.js';

const restart = { max: 5, baseMs: 50, capMs: 200 };

/** @param {string} pidDir */
const record = (pidDir) => {
	try {
		return readFileSync(join(pidDir, 'agent.pid'), 'utf8');
	} catch {
		return undefined;
	}
};

describe('guard on Windows', { concurrency: false }, () => {
	test('eight workers, one process', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		const options = { pidDir, restart, processes: [{ name: 'agent', binaryPath: program, args: ['wait'] }] };
		const threads = await Promise.all(Array.from({ length: 8 }, () => thread(options)));
		const pids = new Set(threads.map(({ state }) => state.pid));
		assert.deepEqual([...pids], running());
		assert.equal(threads.filter(({ state }) => state.started && !state.adopted).length, 1);
		for (const { state } of threads) assert.equal(state.error, undefined);
		// All of them hear of the stop.
		threads[3].worker.postMessage('stop');
		const [answer] = await Promise.all([new Promise((resolve) => threads[3].worker.once('message', resolve))]);
		assert.equal(answer.stopped, true);
		assert.deepEqual(running(), []);
		for (const { worker } of threads) {
			const state = await until('the thread knows', async () => {
				worker.postMessage('state');
				const state = await new Promise((resolve) => worker.once('message', resolve));
				return state.exited && state;
			});
			assert.deepEqual([state.exitProof, state.signal], ['keeper', 'SIGTERM']);
		}
		await Promise.all(threads.map(({ worker }) => worker.terminate()));
		await until('the keeper is gone', () => record(pidDir) === undefined);
	});

	test('a crash is restarted by the keeper, and given up in the end', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		const status = await guard({
			spawn,
			pidDir,
			restart: { max: 2, baseMs: 20, capMs: 50 },
			processes: [{ name: 'agent', binaryPath: program, args: ['wait'] }],
		});
		const [state] = status.processes;
		const keeper = keeperIn(join(pidDir, 'agent.pid'));
		for (const round of [1, 2]) {
			const { pid } = state;
			end(/** @type {number} */ (pid));
			await until('another one runs', () => state.pid !== pid && !state.exited && state.restarts === round);
			assert.deepEqual(running(), [state.pid]);
			assert.equal(keeperIn(join(pidDir, 'agent.pid')), keeper);
		}
		end(/** @type {number} */ (state.pid));
		await until('it is given up', () => state.exited && state.error);
		assert.match(String(state.error), /died 3 times \(exit code 1/);
		assert.equal(state.code, 1);
		assert.equal(state.exitProof, 'keeper');
		assert.equal(record(pidDir), undefined);
	});

	test('exit code 0 ends it, other codes are told', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		for (const [code, error] of [
			[0, undefined],
			[3, /died 1 time \(exit code 3/],
			[-1, /exit code 4294967295/],
		]) {
			const status = await guard({
				spawn,
				pidDir,
				restart: { max: 0 },
				processes: [{ name: 'agent', binaryPath: program, args: ['exit', String(code), '100'] }],
			});
			const [state] = status.processes;
			await until('it ended', () => state.exited && (error === undefined || state.error));
			assert.equal(state.code, Number(code) >>> 0);
			if (error === undefined) assert.equal(state.error, undefined);
			else assert.match(String(state.error), /** @type {RegExp} */ (error));
			await until('its record is gone', () => record(pidDir) === undefined);
			assert.deepEqual(running(), []);
		}
	});

	test('with no host left the keeper restarts crashes, and neither exit 0 nor a stop', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		const options = { pidDir, restart, processes: [{ name: 'agent', binaryPath: program, args: ['wait'] }] };
		const first = await host(options);
		first.child.stdin.end();
		await first.ended;
		assert.deepEqual(running(), [first.state.pid]);
		end(first.state.pid);
		const [second] = await until('the keeper restarts it', () => {
			const pids = running();
			return pids.length === 1 && pids[0] !== first.state.pid && record(pidDir)?.startsWith(`${pids[0]}\n`) && pids;
		});
		// Another host joins, stops and nothing comes back.
		const other = await guard({ spawn, ...options });
		assert.equal(other.processes[0].pid, second);
		assert.equal(other.processes[0].adopted, true);
		const answer = await other.stopProcess('agent');
		assert.deepEqual([answer.stopped, answer.signal], [true, 'SIGTERM']);
		assert.equal(record(pidDir), undefined);
		assert.deepEqual(running(), []);
		assert.deepEqual(
			readdirSync(pidDir).filter((file) => file.includes('.keeper.')),
			[]
		);
	});

	test('a killed keeper takes the whole tree with it, and a crash is answered', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		const options = { pidDir, restart, processes: [{ name: 'agent', binaryPath: program, args: ['tree'] }] };
		const status = await guard({ spawn, ...options });
		const [state] = status.processes;
		await until('the tree is there', () => running().length === 2);
		const before = running();
		const keeper = keeperIn(join(pidDir, 'agent.pid'));
		end(keeper);
		await until('the tree of the first is gone', () => before.every((pid) => !alive(pid)));
		await until(
			'the lock restarts it',
			() => !state.exited && !before.includes(Number(state.pid)) && running().length === 2
		);
		assert.equal(state.restarts, 1);
		assert.notEqual(keeperIn(join(pidDir, 'agent.pid')), keeper);
		const answer = await status.stopProcess('agent');
		assert.equal(answer.stopped, true);
		await until('all of it ended', () => running().length === 0);
	});

	test('a killed host: the reaper stops the tree', async (t) => {
		const { dir, pidDir, program, running } = sandbox(t);
		const h = await host({
			pidDir,
			restart,
			processes: [{ name: 'agent', binaryPath: program, args: ['tree'] }],
			reaper: { name: 'watch', graceMs: 300, logFile: join(dir, 'reaper.log') },
		});
		assert.ok(h.state.reaper.pid > 0 && h.state.reaper.error === undefined, JSON.stringify(h.state.reaper));
		await until('the tree is there', () => running().length === 2);
		end(Number(h.child.pid));
		await h.ended;
		await until('the tree is gone', () => running().length === 0);
		await until('the reaper is gone', () => !alive(h.state.reaper.pid));
		const log = readFileSync(join(dir, 'reaper.log'), 'utf8');
		assert.match(log, /sent SIGTERM to pid \d+[\s\S]*done\./);
		assert.deepEqual(
			readdirSync(pidDir).filter((file) => /\.pid$|\.reaping$|\.keeper\./.test(file)),
			[],
			log
		);
	});

	test('a host that was replaced in time: nothing is stopped', async (t) => {
		const { dir, pidDir, program, running } = sandbox(t);
		const options = {
			pidDir,
			restart,
			processes: [{ name: 'agent', binaryPath: program, args: ['wait'] }],
			reaper: { name: 'watch', graceMs: 60_000, replacementPidFile: join(dir, 'host.pid') },
		};
		const h = await host(options);
		end(Number(h.child.pid));
		await h.ended;
		const { writeFileSync } = await import('node:fs');
		writeFileSync(join(dir, 'host.pid'), String(process.pid));
		await until('the reaper ends', () => !alive(h.state.reaper.pid));
		assert.deepEqual(running(), [h.state.pid]);
	});

	test('output is relayed, and stdin stays open when the reading host is gone', async (t) => {
		const { pidDir, program, running } = sandbox(t);
		let out = '';
		let err = '';
		const status = await guard({
			spawn: (command, args, options) => {
				const child = spawn(command, args, options);
				child.stdout?.setEncoding('utf8').on('data', (text) => (out += text));
				child.stderr?.setEncoding('utf8').on('data', (text) => (err += text));
				return child;
			},
			pidDir,
			restart,
			processes: [
				{
					name: 'agent',
					binaryPath: program,
					args: ['say', 'grüße'],
					spawnOptions: { stdio: ['pipe', 'pipe', 'pipe'] },
				},
			],
		});
		await until('both arrived', () => out === 'out grüße\n' && err === 'err grüße\n');
		assert.deepEqual(running(), [status.processes[0].pid]);
		assert.doesNotMatch(out, /end of input/);
		end(Number(status.processes[0].pid));
		await until('the next run is heard too', () => out === 'out grüße\nout grüße\n');
	});

	test('what cannot be started says so', async (t) => {
		const { dir, pidDir, program } = sandbox(t);
		for (const [process_, why] of [
			[{ binaryPath: join(dir, 'none.exe') }, /does not exist \(ENOENT\)/],
			[{ binaryPath: program, spawnOptions: { cwd: join(dir, 'none') } }, /working directory .*none/],
		]) {
			const status = await guard({
				spawn,
				pidDir,
				restart,
				processes: [{ name: 'agent', args: ['wait'], ...process_ }],
			});
			assert.match(String(status.processes[0].error), why);
			assert.equal(record(pidDir), undefined);
		}
	});

	test('the environment and the command line are what the host said', async (t) => {
		const { dir, pidDir } = sandbox(t);
		const file = join(dir, 'told');
		const args = [
			'-e',
			`require('fs').writeFileSync(process.argv[1], JSON.stringify([process.argv.slice(2), process.env, process.cwd()]))`,
			file,
			'a b',
			'q"uo\\"te\\',
			'',
		];
		await guard({
			spawn,
			pidDir,
			restart,
			processes: [
				{
					name: 'agent',
					binaryPath: process.execPath,
					args,
					spawnOptions: { cwd: dir, env: { ...process.env, NODE_OPTIONS: '--no-warnings', Own: 'ü' } },
				},
			],
		});
		const [told, env, cwd] = await until('it has told', () => {
			try {
				return JSON.parse(readFileSync(file, 'utf8'));
			} catch {
				return undefined;
			}
		});
		assert.deepEqual(told, args.slice(3));
		assert.equal(cwd.toLowerCase(), dir.toLowerCase());
		assert.equal(env.NODE_OPTIONS, '--no-warnings');
		assert.equal(env.Own, 'ü');
		const path = Object.keys(env).filter((name) => name.toUpperCase() === 'PATH');
		assert.equal(path.length, 1);
		assert.equal(env[path[0]], process.env.PATH);
		assert.deepEqual(
			Object.keys(env).filter((name) => /^(PG_|GOMAXPROCS|GOGC)/.test(name) && process.env[name] === undefined),
			[]
		);
		await until('its record is gone', () => record(pidDir) === undefined);
	});
});
