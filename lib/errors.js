'use strict';

// `SandboxError`, and how the core's outcome (plain values) becomes one.

const { inertCause, plainMessage, plainText, thrownValue } = require('./inert.js');
const {
  accessor,
  captureStackTrace,
  field,
  hasOwn,
  hidden,
  indexOf,
  parse,
  slice,
  weakMapGet,
  weakMapSet,
} = require('./intrinsics.js');

/** @typedef {{ code: string, phase: string, durationMs?: number, stdout?: string, stderr?: string, cause?: unknown }} Details */

/**
 * Whether a caught value is a `SandboxError`. Never throws: `instanceof` would ask a proxy for its prototype.
 * @type {(error: unknown) => error is SandboxError}
 */
let isSandboxError;

class SandboxError extends Error {
  /** Marks the errors of this class. */
  #own;

  static {
    isSandboxError = (error) => typeof error === 'object' && error !== null && #own in error;
  }

  /**
   * @param {string} message
   * @param {Details} details
   */
  constructor(message, { code, phase, durationMs = 0, stdout, stderr, cause }) {
    super(plainMessage(`${message}`));
    field(this, 'code', code);
    field(this, 'phase', phase);
    field(this, 'durationMs', durationMs);
    if (stdout !== undefined) field(this, 'stdout', plainText(stdout));
    if (stderr !== undefined) field(this, 'stderr', plainText(stderr));
    if (cause !== undefined) hidden(this, 'cause', inertCause(cause));
  }
}
hidden(SandboxError.prototype, 'name', 'SandboxError');

/**
 * The caller's frames, taken before the first `await` throws them away. Formatted only when somebody asks for the text.
 * @param {Function} above frames of this function and of what it calls are left out
 * @returns {{ stack?: string }}
 */
function callSite(above) {
  const site = { __proto__: null };
  captureStackTrace(site, above);
  return site;
}

/**
 * Gives an error the frames of the place that made the call. `stack` stays an accessor until it is read: formatting
 * frames costs more than everything else an error needs, and most errors are only read for their message.
 */
function standAt(error, site) {
  accessor(
    error,
    'stack',
    () => {
      hidden(error, 'stack', `${error.name}: ${error.message}${framesOf(site)}`);
      return error.stack;
    },
    (value) => hidden(error, 'stack', value)
  );
  return error;
}

function framesOf({ stack }) {
  const start = typeof stack === 'string' ? indexOf(stack, '\n    at ') : -1;
  return start < 0 ? '' : slice(stack, start);
}

/** A bad value in what the caller handed over. */
function invalidConfig(message, cause) {
  return new SandboxError(message, { __proto__: null, code: 'INVALID_CONFIG', phase: 'validate', cause });
}

/** What a caught value says: its message, else its text. Never throws, whatever was thrown. */
function reasonOf(error) {
  try {
    const { message } = error;
    if (typeof message === 'string' && message !== '') return message;
  } catch {
    // `undefined`, `null`, and what throws when it is looked at.
  }
  return textOf(error);
}

/** A value as text, for a message. */
function textOf(value) {
  try {
    return String(value);
  } catch {
    return `an unreadable ${typeof value}`;
  }
}

/** How the process of a failed call ended, by error: for the log. */
const exits = new WeakMap();

/**
 * The error of a failed outcome.
 * @param {{ code: string, phase: string, message: string, durationMs: number, stdout?: string, stderr?: string, causeJson?: string }} outcome
 */
function fromOutcome(outcome) {
  const causeJson = own(outcome, 'causeJson');
  const error = new SandboxError(own(outcome, 'message'), {
    __proto__: null,
    code: own(outcome, 'code'),
    phase: own(outcome, 'phase'),
    durationMs: own(outcome, 'durationMs'),
    stdout: own(outcome, 'stdout'),
    stderr: own(outcome, 'stderr'),
    cause: causeJson === undefined ? undefined : thrownValue(parseCause(causeJson)),
  });
  weakMapSet(exits, error, { exitCode: own(outcome, 'exitCode'), signal: own(outcome, 'exitSignal') });
  return error;
}

/**
 * The fields of the log record about a failed call.
 * @param {unknown} toolId
 * @param {SandboxError} error
 */
function failureFields(toolId, error) {
  const { exitCode, signal } = weakMapGet(exits, error) ?? { __proto__: null };
  const { code, phase, message, durationMs, stderr } = error;
  return {
    toolId: textOf(toolId),
    code,
    phase,
    message,
    durationMs,
    exitCode: exitCode ?? null,
    signal: signal ?? null,
    stderr: stderr ?? '',
  };
}

/** What the core set; it leaves out what there is not, or says `null`. */
function own(outcome, key) {
  return hasOwn(outcome, key) ? (outcome[key] ?? undefined) : undefined;
}

function parseCause(json) {
  try {
    return parse(json);
  } catch {
    // A text that is no JSON still tells more than nothing.
    return { text: json };
  }
}

exports.SandboxError = SandboxError;
exports.callSite = callSite;
exports.failureFields = failureFields;
exports.fromOutcome = fromOutcome;
exports.isSandboxError = isSandboxError;
exports.invalidConfig = invalidConfig;
exports.reasonOf = reasonOf;
exports.standAt = standAt;
exports.textOf = textOf;
