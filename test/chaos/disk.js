// @ts-check
/**
 * A pidDir that can be made full and read-only: a small tmpfs, bound over itself. Needs root; it is mounted in the mount
 * namespace of the driver, so that nothing stays when that ends, however it ends.
 */
import { spawnSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** @param {string[]} args */
function run(args) {
	const { status, stderr, error } = spawnSync(args[0], args.slice(1), { encoding: 'utf8' });
	return status === 0 ? '' : (error?.message ?? stderr.trim());
}

export class Disk {
	#layers = 0;
	/** @type {'writable' | 'full' | 'read-only'} */
	state = 'writable';

	/** @param {string} dir */
	constructor(dir) {
		this.dir = dir;
		/** Beside the pidDir on the same file system, not in it: the guard must not find it there. */
		this.store = `${dir}.store`;
		this.layer = `${dir}.layer`;
		this.ballast = join(this.store, 'ballast');
	}

	/** @returns {string} why it cannot be done here, or nothing */
	mount() {
		mkdirSync(this.store);
		mkdirSync(this.dir);
		mkdirSync(this.layer);
		let complaint = run(['mount', '-t', 'tmpfs', '-o', 'size=2m,mode=0700', 'chaos', this.store]);
		if (complaint) return complaint;
		mkdirSync(join(this.store, 'run'), { mode: 0o700 });
		complaint = run(['mount', '--bind', join(this.store, 'run'), this.dir]);
		if (!complaint) this.#layers = 1;
		return complaint;
	}

	/** Grows a file beside it until nothing fits any more. */
	fill() {
		if (this.state !== 'writable') return;
		this.state = 'full';
		const file = openSync(this.ballast, 'w');
		try {
			for (const size of [65536, 4096]) {
				try {
					for (;;) if (writeSync(file, Buffer.alloc(size)) < size) break;
				} catch {
					// Full, which is what was wanted.
				}
			}
		} finally {
			closeSync(file);
		}
	}

	/**
	 * Whoever has a file open for writing there, a keeper's life file most of all, keeps the mount from turning read-only.
	 * Another layer is put on top then: it holds for every later opening, and the keeper goes on as on a handle from before.
	 */
	protect() {
		if (this.state !== 'writable') return '';
		const refused = run(['mount', '-o', 'remount,bind,ro', this.dir]);
		if (refused) {
			// Made read-only where nobody can come in between, and then put in its place.
			const complaint =
				run(['mount', '--bind', this.dir, this.layer]) ||
				run(['mount', '-o', 'remount,bind,ro', this.layer]) ||
				run(['mount', '--move', this.layer, this.dir]);
			this.#layers++;
			if (complaint) return complaint;
		}
		this.state = 'read-only';
		return '';
	}

	heal() {
		let complaint = '';
		if (this.state === 'full') rmSync(this.ballast);
		// Turned back and not taken off: a handle on it is writable again too.
		if (this.state === 'read-only') complaint = run(['mount', '-o', 'remount,bind,rw', this.dir]);
		this.state = 'writable';
		return complaint;
	}

	unmount() {
		this.heal();
		while (this.#layers-- > 0) run(['umount', '-l', this.dir]);
		for (const dir of [this.layer, this.store]) run(['umount', '-l', dir]);
	}
}
