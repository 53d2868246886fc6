'use strict';

// What the caller hands over, as JSON text for the core. Everything here is pure but for `hostProblem`.

const { SandboxError, invalidConfig } = require('./errors.js');

/** Largest whole number that survives JSON; a time limit above it means "practically never". */
const MAX_WHOLE_NUMBER = Number.MAX_SAFE_INTEGER;

const NODE_PATH_VARIABLE = 'AGENTS_FUNCTION_TOOL_SANDBOX_NODE_PATH';

/**
 * JSON text that a strict reader takes: half surrogate pairs are replaced, as they are when such a text is written to
 * a file. (Arguments and results do not pass here: they keep theirs.)
 */
function strictJson(value) {
  const text = JSON.stringify(value);
  if (!/\\ud[89a-f]/.test(text)) return text;
  return JSON.stringify(value, (_, one) => (typeof one === 'string' ? one.toWellFormed() : one));
}

/**
 * Own options over configured ones.
 * @throws {SandboxError} `INVALID_CONFIG` for what JSON would silently turn into "not set"
 */
function optionsJson(configured, own) {
  const merged = mergedOptions(configured, own);
  const problem = hostProblem(merged);
  if (problem) throw invalidConfig(problem);
  return strictJson(merged);
}

/** The same for functions that do not run on this host. */
function providerOptionsJson(configured, own) {
  return strictJson(mergedOptions(configured, own));
}

function mergedOptions(configured, own) {
  const merged = { ...givenOptions('configure()', configured), ...givenOptions('the constructor', own) };
  for (const [key, value] of Object.entries(merged)) assertPlain(`option ${key}`, value);
  return merged;
}

function givenOptions(where, options) {
  if (options === undefined || options === null) return {};
  if (typeof options !== 'object' || Array.isArray(options)) {
    throw invalidConfig(`options given to ${where} must be an object, got ${kindOf(options)}`);
  }
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

function assertPlain(what, value) {
  const kind = typeof value;
  if (kind === 'function' || kind === 'symbol' || kind === 'bigint') {
    throw invalidConfig(`${what} must be a plain value, got ${kindOf(value)}`);
  }
  if (kind === 'number' && !Number.isFinite(value))
    throw invalidConfig(`${what} must be a finite number, got ${value}`);
  if (kind === 'object' && value !== null) {
    for (const [key, one] of Object.entries(value)) assertPlain(`${what}.${key}`, one);
  }
}

/** Whether this host's own executable can run tools. */
function hostProblem({ nodePath }) {
  const { electron, bun } = process.versions;
  const host = electron ? 'Electron' : bun ? 'Bun' : undefined;
  if (!host || nodePath || process.env[NODE_PATH_VARIABLE]) return undefined;
  return (
    `this host is ${host}, whose own executable cannot run function tools: set the option nodePath or the variable ` +
    `${NODE_PATH_VARIABLE} to the path of a Node binary`
  );
}

/** The variables of the host, taken once: at first use, when its `.env` has been read. */
function environmentJson() {
  return strictJson({ ...process.env });
}

/** The ABI of this host's own Node, for addons of dependencies; nothing where the host is something else. */
function nodeAbi() {
  const { electron, bun, modules } = process.versions;
  return electron || bun ? undefined : modules;
}

/**
 * Dependency sets to prepare.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function setsJson(sets) {
  if (!Array.isArray(sets)) {
    throw invalidConfig(`warm() takes an array of dependency sets ({ name: range }), got ${kindOf(sets)}`);
  }
  return strictJson(sets.map(checkedDependencies));
}

/**
 * The request of one call.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function requestJson(toolId, config, call) {
  if (typeof config.executeCode !== 'string') {
    throw invalidConfig(`executeCode must be the source text of a function, got ${kindOf(config.executeCode)}`);
  }
  const sandbox = config.sandboxConfig ?? {};
  const request = {
    toolId: String(toolId),
    source: config.executeCode,
    dependencies: checkedDependencies(config.dependencies),
    sandboxConfig: sandbox,
    timeoutMs: timeoutMs(sandbox.timeout),
    vcpus: vcpus(sandbox.vcpus),
    runtime: String(sandbox.runtime ?? 'node22'),
    wantsLogs: typeof call.onLogs === 'function',
    wantsUsage: typeof call.onUsage === 'function',
  };
  return attempt('sandboxConfig', () => strictJson(request));
}

/**
 * The request of one call that a provider runs.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function providerRequestJson(provider, config, sandboxConfig) {
  if (typeof config.executeCode !== 'string') {
    throw invalidConfig(`executeCode must be the source text of a function, got ${kindOf(config.executeCode)}`);
  }
  const request = {
    provider,
    sandboxConfig,
    source: config.executeCode,
    dependencies: checkedDependencies(config.dependencies),
    timeoutMs: timeoutMs(sandboxConfig.timeout),
    runtime: String(sandboxConfig.runtime ?? 'node22'),
  };
  return attempt('sandboxConfig', () => strictJson(request));
}

/**
 * The arguments as JSON text; `null` when there are none.
 * @throws {SandboxError} `INVALID_CONFIG` with JSON's own words
 */
function argsJson(args) {
  return attempt('arguments', () => JSON.stringify(args) ?? null);
}

/** Runs what may throw in the caller's own getters, proxies and `toJSON`s. */
function attempt(what, act) {
  try {
    return act();
  } catch (error) {
    if (error instanceof SandboxError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw invalidConfig(`${what} cannot be written as JSON: ${reason}`, error);
  }
}

function checkedDependencies(dependencies) {
  if (dependencies === undefined || dependencies === null) return {};
  if (typeof dependencies !== 'object' || Array.isArray(dependencies)) {
    throw invalidDependency(`dependencies must be an object of package names and ranges, got ${kindOf(dependencies)}`);
  }
  for (const [name, range] of Object.entries(dependencies)) {
    if (typeof range !== 'string') {
      throw invalidDependency(`the range of dependency ${JSON.stringify(name)} must be a string, got ${kindOf(range)}`);
    }
  }
  return dependencies;
}

function invalidDependency(message) {
  return new SandboxError(message, { code: 'INVALID_DEPENDENCY', phase: 'validate' });
}

/** Milliseconds, or `null` for the default; 0, absent and NaN are the default, as in the original. */
function timeoutMs(value) {
  const number = Number(value || 0);
  if (number === 0) return null;
  if (!(number > 0)) {
    throw invalidConfig(
      `sandboxConfig.timeout must be a positive number of milliseconds, got ${kindOf(value)} ${value}`
    );
  }
  return Math.min(Math.ceil(number), MAX_WHOLE_NUMBER);
}

/** The size of the queue a call waits in; anything without a sensible number is 1, as in the original. */
function vcpus(value) {
  const number = Number(value || 1);
  return Number.isNaN(number) ? 1 : Math.min(Math.max(number, 1), MAX_WHOLE_NUMBER);
}

function kindOf(value) {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'an array' : typeof value;
}

exports.argsJson = argsJson;
exports.attempt = attempt;
exports.environmentJson = environmentJson;
exports.kindOf = kindOf;
exports.nodeAbi = nodeAbi;
exports.optionsJson = optionsJson;
exports.providerOptionsJson = providerOptionsJson;
exports.providerRequestJson = providerRequestJson;
exports.requestJson = requestJson;
exports.setsJson = setsJson;
