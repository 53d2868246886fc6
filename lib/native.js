'use strict';

// The addon: loaded at the first call and never before, because a package that throws while it is imported makes its
// host drop every tool without a word. What went wrong becomes the answer to every call instead.

const { version } = require('../package.json');
const { SandboxError } = require('./errors.js');
const { CORE_NAME, adoptLoggers, coreLevel, coreSink, log } = require('./logger.js');
const { platformArchAbi } = require('./platform.js');

/** The loaded addon, once it is. */
let addon;
/** Why it cannot be loaded: `{ message, cause }`. Kept, as a missing file does not appear by itself. */
let failure;
/** Whether the loggers of an optional peer were asked for. */
let adopted = false;
/** The level that the core was last told. */
let toldLevel = 'off';

/**
 * The addon.
 * @throws {SandboxError} `ADDON_MISSING`
 */
function native() {
  if (!adopted) {
    adopted = true;
    adoptLoggers().then(tellLevel);
  }
  addonProblem();
  if (failure) throw new SandboxError(failure.message, { code: 'ADDON_MISSING', phase: 'start', cause: failure.cause });
  tellLevel();
  return addon;
}

/** Why the addon cannot be loaded, in words for the host's operator; nothing when it can. Loads it. */
function addonProblem() {
  if (!addon && !failure) load();
  return failure?.message;
}

function load() {
  try {
    const found = require('../binding.cjs');
    const foundVersion = found.version();
    if (foundVersion !== version) {
      throw new Error(`the addon found is of version ${foundVersion}, the package of version ${version}`);
    }
    addon = found;
  } catch (cause) {
    failure = { message: explain(cause), cause };
    log(CORE_NAME, 'error', { code: 'ADDON_MISSING', error: failure.message }, 'Failed to load the native addon');
  }
}

/** The host's logger may change its level while it runs: the core follows at the next call. */
function tellLevel() {
  const level = coreLevel();
  if (!addon || level === toldLevel) return;
  toldLevel = level;
  addon.setLogSink(level, level === 'off' ? null : coreSink);
}

/** What cannot be loaded, where it was looked for, and what to do. */
function explain(cause) {
  const platform = platformArchAbi();
  return [
    `The native addon of native-sandbox-executor ${version} could not be loaded on ${platform} (Node ${process.versions.node}).`,
    `Tried: the file native-sandbox-executor.${platform}.node beside index.js, then the package native-sandbox-executor-${platform}.`,
    advice(cause),
    `Reason: ${reasons(cause)}`,
  ].join(' ');
}

function advice(cause) {
  const codes = chain(cause).map((error) => error.code);
  // The loader made errors of its own of what Node said, without their codes.
  const disabled = chain(cause).some(({ message }) => /addons? is disabled/i.test(message));
  if (disabled || codes.includes('ERR_DLOPEN_DISABLED') || codes.includes('ERR_ACCESS_DENIED')) {
    return 'Node runs under --permission: add --allow-addons, --allow-worker and --allow-fs-read for the folder of the package.';
  }
  return (
    'Install the package on the platform that runs it, with optional dependencies (no --omit=optional, no copied ' +
    'node_modules), or build it from its sources with `npm run build`.'
  );
}

/** An error and its causes, at most as many as anybody wants to read. */
function chain(error) {
  const found = [];
  for (let at = error; at && found.length < 8; at = at.cause) found.push(at);
  return found;
}

function reasons(cause) {
  const lines = chain(cause).map((error) => String(error.message ?? error).split('\n')[0]);
  return [...new Set(lines)].join('; ');
}

exports.addonProblem = addonProblem;
exports.native = native;
