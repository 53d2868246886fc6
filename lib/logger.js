'use strict';

// The host's logger: where it comes from, which levels it wants, and that it never breaks a call.

const { plainFields, plainText } = require('./inert.js');
const { mapGet, mapHas, mapSet, orUndefined, parse } = require('./intrinsics.js');

/** Levels, most verbose last; the core is told the highest one wanted, so that what nobody reads is not made. */
const LEVELS = ['off', 'error', 'warn', 'info', 'debug'];

/** What a logger may call its level, and what that is here. */
const LEVEL_NAMES = {
  __proto__: null,
  off: 'off',
  silent: 'off',
  fatal: 'error',
  error: 'error',
  warn: 'warn',
  info: 'info',
  debug: 'debug',
  trace: 'debug',
};

/** The name under which the core logs; the original's. */
const CORE_NAME = 'native-sandbox-executor';

/** The optional peer whose loggers are taken when the host sets none. In a variable, so that no bundler looks for it. */
const AGENTS_CORE = '@inkeep/agents-core';

/** Records kept until it is known where they go; what comes beyond is not kept. */
const HELD_RECORDS_MAX = 64;

/** Gives the logger of a name, or nothing. */
let loggerFor = () => undefined;
/** Records that wait for a logger; nothing once it is known where records go. */
let held = [];
let adopting = false;

/**
 * Sets where log records go.
 * @param {unknown} logger see `index.d.ts`
 */
function setLogger(logger) {
  loggerFor = remembering(factoryOf(logger));
  held = undefined;
}

/**
 * Takes the loggers of agents-core, unless the host has set some, or this was done before. Silent where there is none.
 * @param {() => Promise<{ getLogger?: unknown }>} load gives the module; the host's own copy where that is known
 */
async function adoptLoggers(load = importPeer) {
  if (adopting || !held) return;
  adopting = true;
  let getLogger;
  try {
    ({ getLogger } = await load());
  } catch {
    // Not installed, or it cannot be loaded here: silence is the default.
  }
  if (!held) return;
  const waiting = held;
  held = undefined;
  if (typeof getLogger !== 'function') return;
  // Asked anew each time: it remembers by itself, and the host may configure it at any time.
  loggerFor = (name) => quietly(() => getLogger(name));
  for (const record of waiting) log(...record);
}

/** The module, where it is installed. Looked for first: a failed `import()` is more than nothing in a host that replaced promises. */
function importPeer() {
  try {
    require.resolve(AGENTS_CORE);
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND') return {};
  }
  return import(AGENTS_CORE);
}

function factoryOf(logger) {
  if (logger === undefined || logger === null) return () => undefined;
  if (typeof logger === 'function') return logger;
  if (hasLevel(logger)) {
    return typeof logger.child === 'function' ? (name) => logger.child({ name }) ?? logger : () => logger;
  }
  throw new TypeError(
    'setLogger: expected an object with debug, info, warn and error, a function that gives one for a name, or null'
  );
}

function hasLevel(logger) {
  for (let i = 0; i < LEVELS.length; i++) if (typeof logger[LEVELS[i]] === 'function') return true;
  return false;
}

/** Asks for each name once; a factory that throws means no log for that name. */
function remembering(factory) {
  const known = new Map();
  return (name) => {
    if (!mapHas(known, name)) {
      const logger = quietly(() => factory(name));
      mapSet(known, name, logger);
    }
    return mapGet(known, name);
  };
}

/** Runs a function of the host's: what it throws, at once or later, is its own affair and no call's. */
function quietly(act) {
  try {
    const result = act();
    if (typeof result?.then === 'function') result.then(undefined, () => {});
    return result;
  } catch {
    return undefined;
  }
}

/**
 * Hands one record to the host's logger.
 * @param {string} name
 * @param {string} level
 * @param {object} fields
 * @param {string} message
 */
function log(name, level, fields, message) {
  if (held) {
    if (held.length < HELD_RECORDS_MAX) held.push([name, level, fields, message]);
    return;
  }
  const logger = loggerFor(name);
  if (typeof logger?.[level] === 'function') quietly(() => logger[level](plainFields(fields), plainText(message)));
}

/** The most verbose level that the host's logger takes for the core's records. */
function coreLevel() {
  if (held) return 'off';
  const logger = loggerFor(CORE_NAME);
  if (!logger) return 'off';
  const level = orUndefined(() => logger.level ?? logger.getPinoInstance?.().level);
  // A level of the host's own making tells nothing about what it wants; it decides by itself then.
  return (typeof level === 'string' && LEVEL_NAMES[level]) || 'debug';
}

/** The logger of a provider's records; the original's names where it has the provider. */
function loggerName(provider) {
  if (provider === 'native') return CORE_NAME;
  return provider === 'vercel' ? 'VercelSandboxExecutor' : 'ProviderSandboxExecutor';
}

/** Whether the core's records go anywhere. */
function hasLogger() {
  return !held && Boolean(loggerFor(CORE_NAME));
}

/** Takes a record of the core. */
function coreSink({ name, level, message, fields }) {
  log(name, level, orUndefined(() => parse(fields)) ?? {}, message);
}

exports.CORE_NAME = CORE_NAME;
exports.adoptLoggers = adoptLoggers;
exports.coreLevel = coreLevel;
exports.coreSink = coreSink;
exports.hasLogger = hasLogger;
exports.log = log;
exports.loggerName = loggerName;
exports.quietly = quietly;
exports.setLogger = setLogger;
