'use strict';

// Our own entry in the host's NODE_OPTIONS. Node reads it in every process that the host starts, and a bare name in it is
// looked for from that process's folder: where it is not found, that process dies before its first line.

const { realpathSync } = require('node:fs');
const { resolve } = require('node:path');
const { fileURLToPath, pathToFileURL } = require('node:url');
const { rewritten } = require('./node-options.js');

const REGISTER = resolve(__dirname, '..', 'register.js');
const NAME = `${require('../package.json').name}/register`;

function isOurs(module) {
  if (module === NAME) return true;
  try {
    // As Node does for `--require`: the ending may be left out.
    const path = module.startsWith('file:') ? fileURLToPath(module) : require.resolve(resolve(module));
    return realpathSync(path) === realpathSync(REGISTER);
  } catch {
    return false;
  }
}

/** The text without our entry. */
function withoutOwnEntry(text) {
  return rewritten(text, isOurs, () => undefined);
}

/** The text with our entry by its absolute name, which is found from everywhere. */
function withAbsoluteEntry(text) {
  return rewritten(text, isOurs, (option) => (option === '--import' ? pathToFileURL(REGISTER).href : REGISTER));
}

/**
 * Changes NODE_OPTIONS in an environment; an empty one goes.
 * @param {Record<string, string | undefined>} env changed in place
 * @param {(text: string) => string} change
 */
function changeNodeOptions(env, change) {
  const text = env.NODE_OPTIONS;
  if (!text) return;
  const changed = change(text);
  if (changed === text) return;
  if (changed === '') delete env.NODE_OPTIONS;
  else env.NODE_OPTIONS = changed;
}

exports.changeNodeOptions = changeNodeOptions;
exports.withAbsoluteEntry = withAbsoluteEntry;
exports.withoutOwnEntry = withoutOwnEntry;
