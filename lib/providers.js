'use strict';

// The providers by name: `vercel`, and what the host registers. What a provider has to be stands in `index.d.ts`.

const { invalidConfig } = require('./errors.js');
const { mapGet, mapHas, mapSet } = require('./intrinsics.js');
const { read, shown } = require('./options.js');

/** How a name may look: it stands in keys, logs and texts. */
const NAME = /^[a-z][a-z0-9-]{0,31}$/;

/** Names that are not for hosts. */
const RESERVED = ['native', 'vercel'];

const providers = new Map();

/**
 * Makes `sandboxConfig.provider: name` run functions by `provider`.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function registerProvider(name, provider) {
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw invalidConfig(`registerProvider: the name must match ${NAME}, got ${shown(name)}`);
  }
  if (RESERVED.includes(name) || mapHas(providers, name)) {
    throw invalidConfig(`registerProvider: there is a provider "${name}" already`);
  }
  const isObject = provider !== null && (typeof provider === 'object' || typeof provider === 'function');
  if (!isObject || typeof read('registerProvider: create', provider, 'create') !== 'function') {
    throw invalidConfig(`registerProvider: provider "${name}" must be an object with a method create`);
  }
  mapSet(providers, name, provider);
}

/** The provider of a name; `vercel` is loaded when it is asked for. */
function providerOf(name) {
  if (name === 'vercel') return require('./vercel-provider.js').vercelProvider;
  return mapGet(providers, name);
}

exports.providerOf = providerOf;
exports.registerProvider = registerProvider;
