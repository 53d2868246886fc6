'use strict';

// `SandboxError`, and how the core's outcome (plain values) becomes one.

/** @typedef {{ code: string, phase: string, durationMs?: number, stdout?: string, stderr?: string, cause?: unknown }} Details */

/** What an error of the function's own may be an instance of again on this side. */
const BUILT_IN_ERRORS = { EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };

class SandboxError extends Error {
  /**
   * @param {string} message
   * @param {Details} details
   */
  constructor(message, { code, phase, durationMs = 0, stdout, stderr, cause }) {
    super(message);
    this.code = code;
    this.phase = phase;
    this.durationMs = durationMs;
    if (stdout !== undefined) this.stdout = stdout;
    if (stderr !== undefined) this.stderr = stderr;
    if (cause !== undefined) hidden(this, 'cause', cause);
  }
}
hidden(SandboxError.prototype, 'name', 'SandboxError');

/** Defines what an ordinary `Error` does not enumerate either. */
function hidden(target, key, value) {
  Object.defineProperty(target, key, { value, writable: true, enumerable: false, configurable: true });
}

/**
 * The caller's frames, taken before the first `await` throws them away. Formatted only when somebody asks for the text.
 * @param {Function} above frames of this function and of what it calls are left out
 * @returns {{ stack?: string }}
 */
function callSite(above) {
  const site = {};
  Error.captureStackTrace(site, above);
  return site;
}

/**
 * Gives an error the frames of the place that made the call. `stack` stays an accessor until it is read: formatting
 * frames costs more than everything else an error needs, and most errors are only read for their message.
 */
function standAt(error, site) {
  Object.defineProperty(error, 'stack', {
    configurable: true,
    enumerable: false,
    get() {
      hidden(error, 'stack', `${error.name}: ${error.message}${framesOf(site)}`);
      return error.stack;
    },
    set(value) {
      hidden(error, 'stack', value);
    },
  });
  return error;
}

function framesOf({ stack }) {
  const start = typeof stack === 'string' ? stack.indexOf('\n    at ') : -1;
  return start < 0 ? '' : stack.slice(start);
}

/** A bad value in what the caller handed over. */
function invalidConfig(message, cause) {
  return new SandboxError(message, { code: 'INVALID_CONFIG', phase: 'validate', cause });
}

/**
 * The error of a failed outcome.
 * @param {{ code: string, phase: string, message: string, durationMs: number, stdout?: string, stderr?: string, causeJson?: string }} outcome
 */
function fromOutcome({ causeJson, message, ...details }) {
  const cause = causeJson == null ? undefined : thrownValue(parseCause(causeJson));
  return new SandboxError(message, { ...withoutNulls(details), cause });
}

function withoutNulls(details) {
  return Object.fromEntries(Object.entries(details).filter(([, value]) => value !== null));
}

function parseCause(json) {
  try {
    return JSON.parse(json);
  } catch {
    // A text that is no JSON still tells more than nothing.
    return { text: json };
  }
}

/**
 * What the function threw (`docs/worker-protocol.md`, "thrown value"): an `Error` with its name, message, stack,
 * enumerable fields and causes; of anything else its fields, or its text.
 */
function thrownValue(thrown) {
  if (thrown === null || typeof thrown !== 'object') return thrown;
  const { text, name, message, stack, fields } = thrown;
  const isError = [name, message, stack].some((part) => part !== undefined);
  return isError ? rebuiltError(thrown) : (fields ?? text);
}

function rebuiltError({ name, message = '', stack, cause, errors, fields }) {
  const error = Array.isArray(errors)
    ? new AggregateError(errors.map(thrownValue), message)
    : new (Object.hasOwn(BUILT_IN_ERRORS, name) ? BUILT_IN_ERRORS[name] : Error)(message);
  if (typeof name === 'string' && error.name !== name) hidden(error, 'name', name);
  if (typeof stack === 'string') hidden(error, 'stack', stack);
  if (cause !== undefined) hidden(error, 'cause', thrownValue(cause));
  for (const [key, value] of Object.entries(fields ?? {})) {
    // Not `error[key] = …`: a field named `__proto__` is a field like any other.
    Object.defineProperty(error, key, { value, writable: true, enumerable: true, configurable: true });
  }
  return error;
}

exports.SandboxError = SandboxError;
exports.callSite = callSite;
exports.fromOutcome = fromOutcome;
exports.invalidConfig = invalidConfig;
exports.standAt = standAt;
