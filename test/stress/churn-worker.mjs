// @ts-check
/** One worker of churn.mjs. */
import { parentPort, workerData } from 'node:worker_threads';
import { nativeFrom } from '../../lib/native.js';

const { call, session, sync } = nativeFrom(process.env.PG_TEST_PREBUILDS);

const { life, control, number } = workerData;
const busy = () => parentPort?.postMessage('busy');

if (control) {
	if (life === 'exit') process.exit(7);
	if (life !== 'drain') {
		setInterval(() => {}, 1000);
		busy();
	}
} else if (life === 'pending' || life === 'immediate') {
	for (let i = 0; i < 5; i++) call('sleep', { ms: i % 2 ? 60_000 : 1 + i });
	(async () => {
		while (true) await Promise.all(Array.from({ length: 50 }, () => call('ping')));
	})();
	busy();
} else if (life === 'sync') {
	busy();
	const text = 'x'.repeat(100_000);
	while (true) sync('echo', text);
} else if (life === 'session') {
	const echo = session('echo', { session: true }, () => {});
	await echo.settled;
	setInterval(() => {
		for (let i = 0; i < 100; i++) echo.send(i);
	}, 0);
	busy();
} else if (life === 'exit') {
	for (let i = 0; i < 5; i++) call('sleep', { ms: 60_000 });
	if (number % 2) await call('ping');
	process.exit(7);
} else {
	// A session that is open after its answer must not keep the thread alive.
	const echo = session('echo', { session: true }, () => {});
	await echo.settled;
	echo.send('unread');
	await Promise.all(Array.from({ length: 20 }, () => call('ping')));
	await call('sleep', { ms: 2 });
}
