// @ts-check
/**
 * A certificate that nobody but its own key vouches for, made on the spot: a key in the repository would be found by
 * every scanner there is, and a tool for it is not on every machine.
 */
import { generateKeyPairSync, sign } from 'node:crypto';

/**
 * One ASN.1 value in DER.
 *
 * @param {number} tag
 * @param {...Buffer} parts
 */
function der(tag, ...parts) {
	const body = Buffer.concat(parts);
	const length = [];
	if (body.length < 128) length.push(body.length);
	else {
		for (let rest = body.length; rest > 0; rest >>= 8) length.unshift(rest & 0xff);
		length.unshift(0x80 | length.length);
	}
	return Buffer.concat([Buffer.from([tag, ...length]), body]);
}

const sequence = (/** @type {Buffer[]} */ ...parts) => der(0x30, ...parts);
const oid = (/** @type {number[]} */ ...bytes) => der(0x06, Buffer.from(bytes));
const ecdsaWithSha256 = () => sequence(oid(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02));
const name = (/** @type {string} */ text) =>
	sequence(der(0x31, sequence(oid(0x55, 0x04, 0x03), der(0x0c, Buffer.from(text)))));
const time = (/** @type {string} */ text) => der(0x17, Buffer.from(text));

/** @returns {{ key: string, cert: string }} PEM, for the name `localhost` */
export function selfSigned() {
	const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
	const subject = name('localhost');
	const content = sequence(
		der(0xa0, der(0x02, Buffer.from([2]))),
		der(0x02, Buffer.from([1])),
		ecdsaWithSha256(),
		subject,
		sequence(time('200101000000Z'), time('491231235959Z')),
		subject,
		publicKey.export({ type: 'spki', format: 'der' })
	);
	const signature = der(0x03, Buffer.from([0]), sign('sha256', content, privateKey));
	const base64 = sequence(content, ecdsaWithSha256(), signature).toString('base64');
	return {
		key: String(privateKey.export({ type: 'pkcs8', format: 'pem' })),
		cert: `-----BEGIN CERTIFICATE-----\n${base64.match(/.{1,64}/g)?.join('\n')}\n-----END CERTIFICATE-----\n`,
	};
}
