'use strict';

// Variables of one call, checked.

const { invalidConfig } = require('./errors.js');
const { includes, stringify } = require('./intrinsics.js');
const { namesOf, read } = require('./options.js');

/** All names and values of one call together. The kernel takes at most 128 KiB for one of a child process (execve(2)). */
const TOTAL_LIMIT_BYTES = 256 * 1024;
/** These name the temp folder of the call, which is made for it. */
const OWN_NAMES = ['TMPDIR', 'TMP', 'TEMP'];

/**
 * `env` of the options of a call; `undefined` where there is none. No value gets into a message: they are secrets.
 * @param {object | undefined} call
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function envOf(call) {
  const given = call === undefined || call === null ? undefined : (read('env', call, 'env') ?? undefined);
  if (given === undefined) return undefined;
  const names = namesOf('env', given, 'names and texts');
  const env = { __proto__: null };
  let bytes = 0;
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    const value = read(`env[${stringify(name)}]`, given, name);
    if (value === undefined) continue;
    checkVariable(name, value);
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value);
    env[name] = value;
  }
  if (bytes > TOTAL_LIMIT_BYTES) {
    throw invalidConfig(`env has ${bytes} bytes, a call can be given at most ${TOTAL_LIMIT_BYTES}`);
  }
  return env;
}

function checkVariable(name, value) {
  const what = `env[${stringify(name)}]`;
  if (name === '' || includes(name, '=') || includes(name, '\0')) {
    throw invalidConfig(`${what}: the name of a variable is not empty and has no "=" and no NUL`);
  }
  if (OWN_NAMES.includes(name)) {
    throw invalidConfig(
      `${what}: ${name} is the temp folder of the call, which it gets for itself; give the variable another name`
    );
  }
  if (typeof value !== 'string') throw invalidConfig(`${what} must be a string, got ${typeof value}`);
  if (includes(value, '\0')) throw invalidConfig(`${what} must not have a NUL in it`);
}

exports.envOf = envOf;
