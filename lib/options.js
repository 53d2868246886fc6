'use strict';

// What the caller hands over, as JSON text for the core. Everything here is pure but for what asks the process. Whatever is wrong
// with a value is told with the name of its field, also where looking at it throws (getters, proxies).

const { SandboxError, invalidConfig, isSandboxError, reasonOf } = require('./errors.js');
const {
  bareArray,
  ceil,
  includes,
  isArray,
  isFiniteNumber,
  keys,
  min,
  parse,
  prototypeOf,
  slice,
  stringify,
  toWellFormed,
} = require('./intrinsics.js');
const { changeNodeOptions, withoutOwnEntry } = require('./own-entry.js');
const { hostProblem, otherHost } = require('./platform.js');

/** Largest whole number that survives JSON; a time limit above it means "practically never". */
const MAX_WHOLE_NUMBER = Number.MAX_SAFE_INTEGER;

/** Dependency sets that one call of `warm` takes: they are checked at one go, on the event loop. */
const SETS_LIMIT = 10_000;

/** How deep an option may nest; none needs more than three. */
const OPTION_LIMIT_LEVELS = 16;

/** Fields of `sandboxConfig` that count, `vercel`'s included; others are only logged, or are for providers of the host's own. */
const SANDBOX_FIELDS = ['provider', 'runtime', 'timeout', 'vcpus', 'token', 'teamId', 'projectId'];

/**
 * JSON text that a strict reader takes: half surrogate pairs are replaced, as they are when such a text is written to
 * a file. (Arguments and results do not pass here: they keep theirs.)
 */
function strictJson(value) {
  const text = stringify(value);
  if (!includes(text, '\\ud')) return text;
  return stringify(value, (_, one) => (typeof one === 'string' ? toWellFormed(one) : one));
}

/**
 * Options as they were when they were given: a caller may change its object afterwards. What is wrong with them is told
 * when they are needed, because constructors never throw.
 */
class GivenOptions {
  #values = { __proto__: null };
  #problem;

  /** @param {string} where for messages @param {unknown} options may be of this class already */
  static of(where, options) {
    const isTaken = typeof options === 'object' && options !== null && #values in options;
    return isTaken ? options : new GivenOptions(where, options);
  }

  constructor(where, options) {
    try {
      this.#take(where, options);
    } catch (error) {
      this.#problem = isSandboxError(error) ? error : unreadable(`the options given to ${where}`, error);
    }
  }

  #take(where, options) {
    if (options === undefined || options === null) return;
    if (typeof options !== 'object' || isArray(options)) {
      throw invalidConfig(`options given to ${where} must be an object, got ${shown(options)}`);
    }
    const names = keys(options);
    for (let i = 0; i < names.length; i++) {
      const name = names[i];
      const value = read(`option ${name}`, options, name);
      if (value !== undefined) this.#values[name] = plainCopy(`option ${name}`, value, OPTION_LIMIT_LEVELS);
    }
  }

  /** @throws {SandboxError} `INVALID_CONFIG` */
  get values() {
    if (this.#problem) throw this.#problem;
    return this.#values;
  }
}

/**
 * The names of an object that an option of a call has to be.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function namesOf(what, given, expected) {
  if (typeof given !== 'object' || attempt(what, 'read', () => isArray(given))) {
    throw invalidConfig(`${what} must be an object of ${expected}, got ${shown(given)}`);
  }
  return attempt(what, 'read', () => keys(given));
}

/**
 * A copy without prototypes of what JSON carries; anything else JSON would silently turn into "not set". Objects of classes are read
 * as if they had none, unless `isStrict`.
 */
function plainCopy(what, value, levels, isStrict = false) {
  const kind = typeof value;
  if (kind === 'function' || kind === 'symbol' || kind === 'bigint') {
    throw invalidConfig(`${what} must be a plain value, got ${kindOf(value)}`);
  }
  if (kind === 'number' && !isFiniteNumber(value)) {
    throw invalidConfig(`${what} must be a finite number, got ${value}`);
  }
  if (kind !== 'object' || value === null) return value;
  if (levels === 0) throw invalidConfig(`${what} is nested too deep`);
  const isList = attempt(what, 'read', () => isArray(value));
  if (isStrict && !isList && !attempt(what, 'read', () => isPlain(value))) {
    throw invalidConfig(`${what} must be a plain value, got an object of a class of its own`);
  }
  const copy = isList ? bareArray() : { __proto__: null };
  const names = attempt(what, 'read', () => keys(value));
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const within = `${what}.${name}`;
    copy[name] = plainCopy(within, read(within, value, name), levels - 1, isStrict);
  }
  return copy;
}

/**
 * Own options over configured ones.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function optionsJson(configured, own) {
  const merged = mergedOptions(configured, own);
  const problem = hostProblem(merged.nodePath);
  if (problem) throw invalidConfig(problem);
  return strictJson(merged);
}

/**
 * The same for functions that do not run on this host.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function providerOptionsJson(configured, own) {
  return strictJson(mergedOptions(configured, own));
}

function mergedOptions(configured, own) {
  const merged = { __proto__: null, ...configured.values, ...own.values };
  // Loaded late: it needs this file.
  if (merged.network !== undefined) merged.network = require('./network.js').withAsciiNames(merged.network);
  return merged;
}

/** The variables of the host, taken once: at first use, when its `.env` has been read. */
function environmentJson() {
  const env = { __proto__: null, ...process.env };
  // Functions that are given all variables may start Nodes: these are no servers.
  changeNodeOptions(env, withoutOwnEntry);
  return strictJson(env);
}

/** Where the host goes to reach the network: what people change under a running server. */
const PROXY_NAMES = [
  'HTTP_PROXY',
  'HTTPS_PROXY',
  'ALL_PROXY',
  'NO_PROXY',
  'http_proxy',
  'https_proxy',
  'all_proxy',
  'no_proxy',
  'NODE_USE_ENV_PROXY',
];

/** The proxies of the host as they are now. */
function proxiesNow() {
  const values = bareArray();
  for (let i = 0; i < PROXY_NAMES.length; i++) values[i] = process.env[PROXY_NAMES[i]];
  return values;
}

/** The proxies of the host as JSON, an absent one `null`, where they are others than `known`; else nothing. Each call asks. */
function changedProxiesJson(known) {
  const values = proxiesNow();
  let isSame = true;
  for (let i = 0; i < values.length; i++) isSame &&= values[i] === known[i];
  if (isSame) return undefined;
  const changed = { __proto__: null };
  for (let i = 0; i < values.length; i++) changed[PROXY_NAMES[i]] = values[i] ?? null;
  return strictJson(changed);
}

/**
 * The host's variables that an executor's option `env` names, as they are now.
 * @param {'inherit' | string[]} listed
 */
function listedEnvironment(listed) {
  const env = { __proto__: null };
  const source = process.env;
  const takeAll = (isNamed) => {
    const names = keys(source);
    for (let i = 0; i < names.length; i++) if (isNamed(names[i])) env[names[i]] = source[names[i]];
  };
  if (listed === 'inherit') takeAll(() => true);
  for (let i = 0; listed !== 'inherit' && i < listed.length; i++) {
    const name = listed[i];
    const start = slice(name, 0, -1);
    if (slice(name, -1) === '*') takeAll((one) => slice(one, 0, start.length) === start);
    else if (source[name] !== undefined) env[name] = source[name];
  }
  if (env.NODE_OPTIONS !== undefined) changeNodeOptions(env, withoutOwnEntry);
  return env;
}

/** The ABI of this host's own Node, for addons of dependencies; nothing where the host is something else. */
function nodeAbi() {
  return otherHost(process.versions) ? undefined : process.versions.modules;
}

/**
 * Dependency sets to prepare.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function setsJson(sets) {
  if (!attempt('the dependency sets', 'read', () => isArray(sets))) {
    throw invalidConfig(`warm() takes an array of dependency sets ({ name: range }), got ${shown(sets)}`);
  }
  const checked = bareArray();
  const length = read('the dependency sets', sets, 'length');
  if (!(length <= SETS_LIMIT)) {
    throw invalidConfig(`warm() takes at most ${SETS_LIMIT} dependency sets, got ${shown(length)}`);
  }
  for (let i = 0; i < length; i++) checked[i] = checkedDependencies(read(`dependency set ${i}`, sets, i));
  return strictJson(checked);
}

/**
 * The request of one call.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function requestJson(toolId, config, wants) {
  const sandbox = sandboxFields(read('sandboxConfig', config, 'sandboxConfig'));
  const request = {
    __proto__: null,
    toolId: toolIdText(toolId),
    sandboxConfig: sandbox,
    ...toolJob(config, sandbox),
    vcpus: vcpus(sandbox.vcpus),
    wantsLogs: wants.logs,
    wantsSteps: wants.steps,
    wantsUsage: wants.usage,
    listedEnv: wants.listedEnv,
    env: wants.env,
    files: wants.files,
    collect: wants.collect,
    talk: wants.talk,
    nest: wants.nest,
    within: wants.within,
    network: wants.network,
  };
  return written(request, sandbox);
}

/** What is to be run, and for how long, wherever that is. */
function toolJob(config, sandbox) {
  const source = read('executeCode', config, 'executeCode');
  if (typeof source !== 'string') {
    throw invalidConfig(`executeCode must be the source text of a function, got ${kindOf(source)}`);
  }
  return {
    __proto__: null,
    source,
    dependencies: checkedDependencies(read('dependencies', config, 'dependencies')),
    timeoutMs: timeoutMs(sandbox.timeout),
    runtime: String(scalar('sandboxConfig.runtime', sandbox.runtime) ?? 'node22'),
  };
}

function toolIdText(toolId) {
  return attempt('the id of the function tool', 'written as text', () => String(toolId));
}

/** A request as text; of what is in it only `sandboxConfig` can be anything. */
function written(request, sandbox) {
  try {
    return strictJson(request);
  } catch (error) {
    throw unwritable(sandbox) ?? unreadable('sandboxConfig', error);
  }
}

/** A copy of what is in `sandboxConfig`, each field read once. */
function sandboxFields(given) {
  const fields = { __proto__: null };
  if (given === undefined || given === null) return fields;
  if (typeof given !== 'object') throw invalidConfig(`sandboxConfig must be an object, got ${kindOf(given)}`);
  for (let i = 0; i < SANDBOX_FIELDS.length; i++) {
    const name = SANDBOX_FIELDS[i];
    // These may be inherited: a configuration can be an instance of a class.
    const value = read(`sandboxConfig.${name}`, given, name);
    if (value !== undefined) fields[name] = value;
  }
  const names = attempt('sandboxConfig', 'read', () => keys(given));
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    if (!(name in fields)) fields[name] = read(`sandboxConfig.${name}`, given, name);
  }
  return fields;
}

/** The error of the first field that cannot be written. */
function unwritable(sandbox) {
  const names = keys(sandbox);
  for (let i = 0; i < names.length; i++) {
    try {
      stringify(sandbox[names[i]]);
    } catch (error) {
      return invalidConfig(`sandboxConfig.${names[i]} cannot be written as JSON: ${reasonOf(error)}`, error);
    }
  }
  return undefined;
}

/**
 * What a provider gets of a `sandboxConfig`: a copy of plain values. Anything else would not tell sandboxes apart, and calls with
 * different credentials would share one.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function providerFields(provider, given) {
  const fields = sandboxFields(given);
  const names = provider === 'vercel' ? SANDBOX_FIELDS : keys(fields);
  const plain = { __proto__: null };
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const value = fields[name];
    if (value === undefined) continue;
    // What a time may be is checked with the call; it tells nothing apart.
    plain[name] = name === 'timeout' ? value : plainValue(`sandboxConfig.${name}`, value);
  }
  return plain;
}

function plainValue(what, value) {
  const copy = plainCopy(what, value, OPTION_LIMIT_LEVELS, true);
  // The copy has no prototypes: arrays without methods are not for others.
  return copy === undefined ? undefined : parse(stringify(copy));
}

/** Whether an object is one by itself: what a class keeps to itself cannot be copied. */
function isPlain(object) {
  const prototype = prototypeOf(object);
  return prototype === null || prototypeOf(prototype) === null;
}

/**
 * The request of one call that a provider runs; `sandbox` is what `providerFields` made.
 * @throws {SandboxError} `INVALID_CONFIG`, `INVALID_DEPENDENCY`
 */
function providerRequestJson(provider, config, sandbox, env) {
  const request = {
    __proto__: null,
    provider,
    sandboxConfig: sandbox,
    ...toolJob(config, sandbox),
    env,
  };
  return written(request, sandbox);
}

/**
 * The arguments as JSON text, as the host's own JSON makes it; `null` when there are none.
 * @throws {SandboxError} `INVALID_CONFIG` with JSON's own words
 */
function argsJson(args) {
  return attempt('arguments', 'written as JSON', () => stringify(args) ?? null);
}

/** One field of what the caller gave. */
function read(what, object, key) {
  try {
    return object[key];
  } catch (error) {
    throw unreadable(what, error);
  }
}

/** A function that the caller may give under that name. */
function listenerOf(object, name) {
  const given = read(name, object, name) ?? undefined;
  if (given !== undefined && typeof given !== 'function') {
    throw invalidConfig(`${name} must be a function, got ${shown(given)}`);
  }
  return given;
}

/** Runs what may throw in the caller's own getters, proxies and `toJSON`s. */
function attempt(what, verb, act) {
  try {
    return act();
  } catch (error) {
    throw invalidConfig(`${what} cannot be ${verb}: ${reasonOf(error)}`, error);
  }
}

function unreadable(what, error) {
  return invalidConfig(`${what} cannot be read: ${reasonOf(error)}`, error);
}

/** A value that is no object, function, symbol or bigint: these would turn into texts and numbers that nobody meant. */
function scalar(what, value) {
  const kind = typeof value;
  const isOdd = kind === 'function' || kind === 'symbol' || kind === 'bigint' || (kind === 'object' && value !== null);
  if (isOdd) throw invalidConfig(`${what} must be a text or a number, got ${shown(value)}`);
  return value;
}

function checkedDependencies(dependencies) {
  if (dependencies === undefined || dependencies === null) return { __proto__: null };
  if (typeof dependencies !== 'object' || attempt('dependencies', 'read', () => isArray(dependencies))) {
    throw invalidDependency(`dependencies must be an object of package names and ranges, got ${shown(dependencies)}`);
  }
  const checked = { __proto__: null };
  const names = attempt('dependencies', 'read', () => keys(dependencies));
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const range = read(`the range of dependency ${stringify(name)}`, dependencies, name);
    if (typeof range !== 'string') {
      throw invalidDependency(`the range of dependency ${stringify(name)} must be a string, got ${shown(range)}`);
    }
    checked[name] = range;
  }
  return checked;
}

function invalidDependency(message) {
  return new SandboxError(message, { __proto__: null, code: 'INVALID_DEPENDENCY', phase: 'validate' });
}

/** Milliseconds, or `null` for the default; 0, absent and NaN are the default, as in the original. */
function timeoutMs(value) {
  if (!value) return null;
  const number = typeof value === 'number' || typeof value === 'string' ? Number(value) : Number.NaN;
  if (number === 0) return null;
  if (!(number > 0)) {
    throw invalidConfig(`sandboxConfig.timeout must be a positive number of milliseconds, got ${shown(value)}`);
  }
  return min(ceil(number), MAX_WHOLE_NUMBER);
}

/** The size of the queue a call waits in; a text without a sensible number is 1, as in the original. */
function vcpus(value) {
  const number = Number(scalar('sandboxConfig.vcpus', value) || 1);
  // Not a number compares with nothing.
  return number > 1 ? min(number, MAX_WHOLE_NUMBER) : 1;
}

/** How much of a text a message shows. */
const SHOWN_CHARS = 80;

/** A value for a message: itself where it is short and cannot be a secret, else what kind of thing it is. */
function shown(value) {
  switch (typeof value) {
    case 'number':
    case 'boolean':
      return `${value}`;
    case 'bigint':
      return `${value}n`;
    case 'string':
      return value.length > SHOWN_CHARS ? `${stringify(slice(value, 0, SHOWN_CHARS))}…` : stringify(value);
    case 'function':
      return 'a function';
    case 'symbol':
      return 'a symbol';
    default:
      return kindOf(value) === 'object' ? 'an object' : kindOf(value);
  }
}

function kindOf(value) {
  if (value === null) return 'null';
  try {
    return isArray(value) ? 'an array' : typeof value;
  } catch {
    return 'a revoked proxy';
  }
}

exports.GivenOptions = GivenOptions;
exports.argsJson = argsJson;
exports.attempt = attempt;
exports.environmentJson = environmentJson;
exports.changedProxiesJson = changedProxiesJson;
exports.proxiesNow = proxiesNow;
exports.kindOf = kindOf;
exports.listedEnvironment = listedEnvironment;
exports.listenerOf = listenerOf;
exports.namesOf = namesOf;
exports.nodeAbi = nodeAbi;
exports.optionsJson = optionsJson;
exports.plainCopy = plainCopy;
exports.providerFields = providerFields;
exports.providerOptionsJson = providerOptionsJson;
exports.providerRequestJson = providerRequestJson;
exports.read = read;
exports.shown = shown;
exports.requestJson = requestJson;
exports.setsJson = setsJson;
exports.toolIdText = toolIdText;
