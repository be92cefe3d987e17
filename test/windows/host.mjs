// @ts-check
import { spawn } from 'node:child_process';
import process from 'node:process';
import { guard } from '../../lib/index.js';

const status = await guard({ spawn, ...JSON.parse(process.argv[2]) });
console.log(JSON.stringify({ ...status.processes[0], report: status.report, reaper: status.reaper }));
process.stdin.on('data', () => process.exit(0)).on('end', () => process.exit(0));
