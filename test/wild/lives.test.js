// @ts-check
/** Failures in the wild: a process that lives too long or too short, because of who started it. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { alive } from '../support/processes.js';
import { sandbox } from '../support/sandbox.js';
import { never, until } from '../support/until.js';

test("orphans after the parent's SIGKILL: the reaper stops them, and a replacement host joins them", async (t) => {
	const box = sandbox(t);
	const replacementPidFile = box.file('host.pid');
	const config = box.config([`starts=${box.file('starts')}`, `signals=${box.file('signals')}`], {
		reaper: { graceMs: 1_000, replacementPidFile },
	});
	const first = await box.host({ threads: 1 });
	const { pid } = (await first.guard(1, config)).processes[0];
	const next = await (await box.host({ threads: 1 })).load();
	await first.kill('SIGKILL');
	writeFileSync(replacementPidFile, `${next.pid}`);
	const [state] = (await next.guard(1, config)).processes;
	assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined]);
	await never(() => !alive(pid) || box.lines('signals').length > 0, 1_500, 'the first reaper stops it');
	await next.kill('SIGKILL');
	await until(
		() => box.running().length === 0 && box.keepers().length === 0 && box.reapers().length === 0,
		15_000,
		() => `nothing outlives the last host\n${box.tree()}`
	);
	assert.equal(box.lines('signals').length, 1);
	await box.startedTimes(1);
});

test("child dies with its parent's pipe: it writes 1 MB after the thread has ended, and lives", async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	const words = [
		`starts=${box.file('starts')}`,
		'say=1:hello',
		`after=${box.file('go')}`,
		'write=1:1048576',
		'write=2:1048576',
		`note=${box.file('written')}:yes`,
	];
	const config = box.config(words, { process: { spawnOptions: { stdio: ['ignore', 'pipe', 'pipe'] } } });
	const { pid } = (await host.guard(1, { ...config, reading: 'all' })).processes[0];
	await host.guard(2, config);
	await host.terminate(1);
	writeFileSync(box.file('go'), '');
	await until(() => box.lines('written').length === 1, 10_000, 'it wrote all of it and was not held up');
	await never(() => !alive(pid), 300, 'it dies of its pipe');
	const [state] = (await host.state(2)).processes;
	assert.deepEqual([state.pid, state.exited, state.restarts], [pid, false, 0]);
	await box.startedTimes(1);
});

for (const kind of ['plain', 'no-launcher']) {
	const how = kind === 'plain' ? 'under a keeper' : 'spawned by the thread itself';
	test(`worker's end kills the child (PDEATHSIG): ${how} it survives its worker`, async (t) => {
		const box = sandbox(t);
		const host = await box.host({ threads: 2 });
		const config = box.config([`starts=${box.file('starts')}`, `dump=${box.file('dump')}`], { spawn: { kind } });
		const { pid } = (await host.guard(1, config)).processes[0];
		assert.equal((await box.dump('dump')).deathsig, 0);
		await host.terminate(1);
		await never(() => !alive(pid), 400, 'it dies with the thread');
		const [state] = (await host.guard(2, config)).processes;
		assert.deepEqual([state.pid, state.adopted, state.error], [pid, true, undefined]);
		await box.startedTimes(1);
	});
}

test('an exit that comes before anybody watches is told at once', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 2 });
	for (const kind of ['plain', 'no-launcher']) {
		for (let round = 0; round < 5; round++) {
			const key = `${kind}${round}`;
			const results = await host.guardAll(box.config(['end=0:exit:0'], { spawn: { kind }, claimTimeoutMs: 5_000 }), {
				key,
			});
			for (const { processes, tookMs } of results) {
				assert.equal(processes[0].error, undefined);
				assert.ok(tookMs < 4_000, `it waited ${tookMs} ms`);
			}
			for (const thread of [1, 2])
				await host.stateUntil(thread, (state) => state.exited && state.code === 0, 5_000, 'the end is told', { key });
			await until(() => box.keepers().length === 0 && !box.files().includes('proc.pid'), 5_000, 'nothing is left');
		}
	}
});

test('without a keeper a crash that comes before anybody watches is answered like any other', async (t) => {
	const box = sandbox(t);
	const host = await box.host({ threads: 1 });
	for (let round = 0; round < 5; round++) {
		const key = `round${round}`;
		const starts = box.file(`starts${round}`);
		const restart = { max: 2, baseMs: 5, capMs: 5 };
		const config = box.config([`starts=${starts}`, 'end=0:exit:3'], { spawn: { kind: 'no-launcher' }, restart });
		const [state] = (await host.guard(1, config, key)).processes;
		assert.equal(state.started, true);
		const last = await host.stateUntil(1, (now) => now.exited && now.error, 5_000, 'it is given up', { key });
		assert.match(last.error, /died 3 times \(exit code 3\); not restarting it again/);
		assert.equal(readFileSync(starts, 'utf8').trim().split('\n').length, 3);
	}
});
