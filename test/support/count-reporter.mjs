// @ts-check
/**
 * A reporter for `node --test` that writes one line of JSON with the number of tests that passed, failed and were
 * skipped. Suites and files are no tests of their own, unless such a one failed although nothing inside it did.
 */

/**
 * @param {AsyncIterable<{ type: string, data: any }>} events
 */
export default async function* count(events) {
	const counted = { passed: 0, failed: 0, skipped: 0 };
	for await (const { type, data } of events) {
		if (type !== 'test:pass' && type !== 'test:fail') continue;
		const failedInside = data.details?.error?.failureType === 'subtestsFailed';
		if (data.skip !== undefined || data.todo !== undefined) counted.skipped++;
		else if (type === 'test:fail') counted.failed += failedInside ? 0 : 1;
		else if (data.details?.type !== 'suite') counted.passed++;
	}
	yield `${JSON.stringify(counted)}\n`;
}
