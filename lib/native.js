'use strict';

// The addon: loaded at the first call and never before, because a package that throws while it is imported makes its
// host drop every tool without a word. What went wrong becomes the answer to every call instead.

const { version } = require('../package.json');
const { isCoreHeard, tellOfCore } = require('./channels.js');
const { SandboxError, reasonOf } = require('./errors.js');
const { includes, indexOf, parse, slice } = require('./intrinsics.js');
const { CORE_NAME, adoptLoggers, coreLevel, coreSink, log } = require('./logger.js');
const { PLATFORMS, platformArchAbi } = require('./platform.js');

/** How many causes of a failure are told. */
const MAX_CAUSES = 8;

/** The loaded addon, once it is. */
let addon;
/** Why it cannot be loaded: `{ message, cause }`. Kept, as a missing file does not appear by itself. */
let failure;
/** Whether the loggers of an optional peer were asked for. */
let adopted = false;
/** The level that the core was last told. */
let toldLevel = 'off';
/** Whether the core was last told that somebody watches sandboxes. */
let toldWatched = false;

/**
 * The addon.
 * @throws {SandboxError} `ADDON_MISSING`
 */
function native() {
  if (!adopted) {
    adopted = true;
    adopt();
  }
  addonProblem();
  if (failure) {
    const { message, cause } = failure;
    throw new SandboxError(message, { __proto__: null, code: 'ADDON_MISSING', phase: 'start', cause });
  }
  tellLevel();
  tellWatched();
  return addon;
}

/** By `await`, not by `then`: a host may have replaced that. */
async function adopt() {
  await adoptLoggers();
  tellLevel();
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
    failure = { message: explain(cause), cause: loadersOwn(cause) };
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

/** Whoever subscribes to the channels of sandboxes and of connections hears of them from the next call on. */
function tellWatched() {
  const isHeard = isCoreHeard();
  if (isHeard === toldWatched) return;
  toldWatched = isHeard;
  addon.setSandboxWatcher(isHeard ? (json) => tellOfCore(parse(json)) : null);
}

/** What cannot be loaded, where it was looked for, and what to do. */
function explain(cause) {
  const platform = platformArchAbi();
  return (
    `The native addon of native-sandbox-executor ${version} could not be loaded on ${platform} (Node ${process.versions.node}). ` +
    `Tried: the file native-sandbox-executor.${platform}.node beside index.js, then the package native-sandbox-executor-${platform}. ` +
    `${advice(cause)} Reason: ${reasons(cause)}`
  );
}

function advice(cause) {
  const errors = chain(cause);
  for (let i = 0; i < errors.length; i++) {
    const { code, message } = errors[i];
    // The loader made errors of its own of what Node said, without their codes.
    const isDisabled = typeof message === 'string' && includes(message, 'addon') && includes(message, 'is disabled');
    if (isDisabled || code === 'ERR_DLOPEN_DISABLED' || code === 'ERR_ACCESS_DENIED') {
      return 'Node runs under --permission: add --allow-addons, --allow-worker and --allow-fs-read for the folder of the package.';
    }
  }
  const platforms = otherPlatforms();
  if (platforms) {
    return `This platform has no package; those that have one: ${platforms}. Its sources may build there: \`npm run build\`.`;
  }
  return (
    'Install the package on the platform that runs it, with optional dependencies (no --omit=optional, no copied ' +
    'node_modules), or build it from its sources with `npm run build`.'
  );
}

/** The platforms that have a package, in words; nothing when this one has. */
function otherPlatforms() {
  const own = platformArchAbi();
  let text = '';
  for (let i = 0; i < PLATFORMS.length; i++) {
    if (PLATFORMS[i] === own) return '';
    text += `${i > 0 ? ', ' : ''}${PLATFORMS[i]}`;
  }
  return text;
}

/** An error and its causes, at most as many as anybody wants to read. */
function chain(error) {
  const found = [];
  for (let at = error; at && found.length < MAX_CAUSES; at = at.cause) found[found.length] = at;
  return found;
}

/**
 * The first of an error and its causes that tells about a file or a package of this platform. The generated loader looks for a package of
 * WebAssembly as well, which there never was, and begins with advice on npm: neither is any help.
 */
function loadersOwn(cause) {
  const errors = chain(cause);
  for (let i = 0; i < errors.length; i++) if (!isMisleading(errors[i])) return errors[i];
  return cause;
}

function isMisleading(error) {
  const message = reasonOf(error);
  return includes(message, 'wasi') || includes(message, 'Cannot find native binding');
}

/** The first line of each, each once. */
function reasons(cause) {
  const errors = chain(loadersOwn(cause));
  const known = { __proto__: null };
  let text = '';
  for (let i = 0; i < errors.length; i++) {
    const message = reasonOf(errors[i]);
    const end = indexOf(message, '\n');
    const line = end < 0 ? message : slice(message, 0, end);
    if (line in known) continue;
    known[line] = true;
    text += `${text === '' ? '' : '; '}${line}`;
  }
  return text;
}

/** The addon, if it was loaded already. */
function loaded() {
  return addon;
}

exports.addonProblem = addonProblem;
exports.loaded = loaded;
exports.native = native;
