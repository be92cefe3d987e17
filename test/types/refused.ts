// What must not compile. An expectation that is not met is an error of its own, so this file compiles only while every
// line below it is refused.
import { spawn } from 'node:child_process';
import { guard, identify, type ProcessState } from 'harper-process-guard';

// @ts-expect-error pidDir is required
guard({ processes: [], spawn });
// @ts-expect-error spawn is required
guard({ pidDir: '/x', processes: [] });
// @ts-expect-error processes is required
guard({ pidDir: '/x', spawn });
// @ts-expect-error processes is an array
guard({ pidDir: '/x', spawn, processes: { name: 'a', binaryPath: '/a' } });
// @ts-expect-error a process needs its binary
guard({ pidDir: '/x', spawn, processes: [{ name: 'a' }] });
// @ts-expect-error arguments are strings
guard({ pidDir: '/x', spawn, processes: [{ name: 'a', binaryPath: '/a', args: [8126] }] });
// @ts-expect-error a misspelt option
guard({ pidDir: '/x', spawn, processes: [], stopOrphan: true });
// @ts-expect-error a misspelt field of restart
guard({ pidDir: '/x', spawn, processes: [], restart: { maxRestarts: 1 } });
// @ts-expect-error version is a number
guard({ pidDir: '/x', spawn, processes: [], version: '1.2.3' });
// @ts-expect-error a logger has three levels
guard({ pidDir: '/x', spawn, processes: [], log: { info() {} } });
// @ts-expect-error a verifier answers { ok }
guard({ pidDir: '/x', spawn, processes: [{ name: 'a', binaryPath: '/a', verify: () => true }] });
// @ts-expect-error spawn hands back a child, not a promise of one
guard({ pidDir: '/x', processes: [], spawn: async () => ({ pid: 1 }) });
// @ts-expect-error no such verdict
identify(1, []) === 'maybe';

export function read(state: ProcessState) {
	// @ts-expect-error a state that never started has no pid
	const pid: number = state.pid;
	// @ts-expect-error no such field
	return [pid, state.memory];
}
