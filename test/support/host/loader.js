// @ts-check
/**
 * Loads a component the way the host does: its own files as `node:vm` modules in the current context, in which
 * `child_process` is the constrained one; packages natively, unless they are loaded as application code too.
 */
import { readFileSync } from 'node:fs';
import { createRequire, isBuiltin } from 'node:module';
import { dirname } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import vm from 'node:vm';

/** @typedef {import('./child-process.js').Generation} Generation */

export class Loader {
	/** @type {Map<string, Promise<any>>} */
	#modules = new Map();

	/**
	 * @param {object} options
	 * @param {Generation} options.generation
	 * @param {Record<string, any>} options.childProcess
	 * @param {Record<string, any>} options.harper What `import … from 'harper'` gives.
	 * @param {'auto' | 'app'} options.dependencies `app`: packages are application code.
	 */
	constructor({ generation, childProcess, harper, dependencies }) {
		this.generation = generation;
		this.childProcess = childProcess;
		this.harper = harper;
		this.dependencies = dependencies;
	}

	/**
	 * Evaluates a file.
	 *
	 * @param {string} file
	 * @returns {Promise<any>} Its namespace.
	 */
	async load(file) {
		const module = await this.#source(pathToFileURL(file).href);
		if (module.status === 'unlinked') await module.link(this.#link);
		if (module.status !== 'evaluated') await module.evaluate();
		return module.namespace;
	}

	#link = (/** @type {string} */ specifier, /** @type {any} */ from) => this.#resolve(specifier, from.identifier);

	/**
	 * @param {string} specifier
	 * @param {string} from
	 */
	async #resolve(specifier, from) {
		if (specifier === 'node:child_process' || specifier === 'child_process') {
			return this.#synthetic(specifier, { ...this.childProcess, default: this.childProcess });
		}
		if (specifier === 'harper' || specifier === 'harperdb') return this.#synthetic('harper', this.harper);
		if (isBuiltin(specifier)) return this.#synthetic(specifier, await import(specifier));
		if (/^(\.{0,2}\/|file:)/.test(specifier)) return this.#source(new URL(specifier, from).href);
		// As CommonJS does: a package with nothing but an `import` condition is not found.
		const url = pathToFileURL(createRequire(from).resolve(specifier)).href;
		return this.dependencies === 'app' ? this.#source(url) : this.#synthetic(url, await import(url));
	}

	/**
	 * @param {string} key
	 * @param {Record<string, any>} values
	 */
	#synthetic(key, values) {
		return this.#once(key, async () => {
			const module = new /** @type {any} */ (vm).SyntheticModule(
				Object.keys(values),
				(
					/** @type {any} */
					/** @this {any} */
				) => {
					for (const [name, value] of Object.entries(values)) /** @type {any} */ (module).setExport(name, value);
				},
				{ identifier: key }
			);
			return module;
		});
	}

	/** @param {string} url */
	#source(url) {
		return this.#once(url, async () => {
			const file = fileURLToPath(url);
			return new /** @type {any} */ (vm).SourceTextModule(readFileSync(file, 'utf8'), {
				identifier: url,
				initializeImportMeta: (/** @type {any} */ meta) => {
					meta.url = url;
					if (this.generation === '51') return;
					meta.filename = file;
					meta.dirname = dirname(file);
					meta.resolve = (/** @type {string} */ specifier) => pathToFileURL(createRequire(url).resolve(specifier)).href;
				},
				importModuleDynamically: async (/** @type {string} */ specifier, /** @type {any} */ from) => {
					const module = await this.#resolve(specifier, from.identifier);
					if (module.status === 'unlinked') await module.link(this.#link);
					if (module.status !== 'evaluated') await module.evaluate();
					return module;
				},
			});
		});
	}

	/**
	 * @param {string} key
	 * @param {() => Promise<any>} make
	 */
	#once(key, make) {
		let made = this.#modules.get(key);
		if (!made) this.#modules.set(key, (made = make()));
		return made;
	}
}
