'use strict';

// The end of the process in good order: no new calls, those that were taken go on until a deadline. Signals are the host's; this
// helps with them where it is asked to.

const { constants } = require('node:os');
const { TIMER_LIMIT_MS, bounded } = require('./bounded.js');
const { SandboxError, invalidConfig, reasonOf } = require('./errors.js');
const { isArray, isFiniteNumber } = require('./intrinsics.js');
const { CORE_NAME, log } = require('./logger.js');
const { addonProblem, loaded } = require('./native.js');
const { attempt, read, shown } = require('./options.js');

const DEFAULT_DEADLINE_MS = 10_000;
/** Exit code of who ends in place of a signal, as shells have it: this and the signal's number. */
const SIGNAL_EXIT_CODE_BASE = 128;
const DEFAULT_SIGNALS = ['SIGTERM', 'SIGINT'];

/** Whether this thread takes no more calls. */
let closed = false;
/** How many graceful shutdowns there are that were not taken back. */
let graceful = 0;
/** Executors of providers that have calls. */
const busy = new Set();
/** Ends what the providers' pool holds; set when there is one. */
let drainPool = async () => {};

/**
 * Does nothing while calls are taken.
 * @throws {SandboxError} `SHUTTING_DOWN`
 */
function assertOpen() {
  if (closed) throw shuttingDown('The process is shutting down: it takes no more function calls');
}

function shuttingDown(message) {
  return new SandboxError(message, { __proto__: null, code: 'SHUTTING_DOWN', phase: 'validate' });
}

/** See `index.d.ts`. */
async function shutdown(options) {
  const deadlineMs = deadlineOf('shutdown()', options) ?? DEFAULT_DEADLINE_MS;
  closed = true;
  const others = [...busy].map((executor) => executor.cleanup(deadlineMs));
  // Other threads may have used it where this one has not.
  addonProblem();
  const ended = await Promise.allSettled([loaded()?.shutdown(deadlineMs), ...others]);
  await drainPool();
  const failed = ended.find(({ status }) => status === 'rejected');
  if (failed) throw failed.reason;
}

/** Takes calls again. */
function reopen() {
  closed = false;
  loaded()?.reopen();
}

/** See `index.d.ts`. */
function gracefulShutdown(options) {
  const { signals, deadlineMs, before } = checked(options);
  const stop = () => {
    for (const signal of signals) process.off(signal, onSignal);
  };
  const onSignal = (signal) => {
    // From here on a second signal does what it does by itself: it ends the process at once, and what runs with it.
    stop();
    end(signal, deadlineMs, before);
  };
  for (const signal of signals) process.on(signal, onSignal);
  graceful += 1;
  let isTakenBack = false;
  return () => {
    if (isTakenBack) return;
    isTakenBack = true;
    stop();
    graceful -= 1;
    // Another may have closed, or is to.
    if (graceful === 0) reopen();
  };
}

async function end(signal, deadlineMs, before) {
  const until = performance.now() + deadlineMs;
  log(CORE_NAME, 'info', { signal, deadlineMs }, 'Shutting down');
  try {
    if (before) await bounded(deadlineMs, undefined, () => before(signal));
  } catch (error) {
    log(CORE_NAME, 'warn', { error: reasonOf(error) }, 'What was to be done before the shutdown failed');
  }
  try {
    await shutdown({ deadlineMs: Math.max(until - performance.now(), 0) });
    log(CORE_NAME, 'info', { signal }, 'Shut down');
  } catch (error) {
    // The process ends all the same, as the signal wants it.
    log(CORE_NAME, 'error', { signal, error: reasonOf(error) }, 'The shutdown failed');
  }
  // Somebody else who listens ends the process himself. Else it ends as it would have without us: by the signal.
  if (process.listenerCount(signal) > 0) return;
  process.kill(process.pid, signal);
  // The kernel spares the first process of a container what it has no handler for.
  process.exit(SIGNAL_EXIT_CODE_BASE + constants.signals[signal]);
}

/** Names that `signals` may have: more than there are signals. */
const SIGNALS_LIMIT = 100;
/** The kernel lets nobody handle two of them. */
const UNHANDLED = ['SIGKILL', 'SIGSTOP'];

function isSignal(name) {
  return Object.hasOwn(constants.signals, name) && !UNHANDLED.includes(name);
}

function checked(chosen) {
  const options = chosen ?? {};
  if (typeof options !== 'object') {
    throw invalidConfig(`gracefulShutdown(): options must be an object, got ${shown(options)}`);
  }
  const deadlineMs = deadlineOf('gracefulShutdown()', options) ?? DEFAULT_DEADLINE_MS;
  const given = read('gracefulShutdown(): signals', options, 'signals') ?? DEFAULT_SIGNALS;
  const before = read('gracefulShutdown(): before', options, 'before') ?? undefined;
  // A copy: an element that is missing is one that is no signal.
  const signals = attempt('gracefulShutdown(): signals', 'read', () =>
    isArray(given) && given.length <= SIGNALS_LIMIT ? Array.from(given) : undefined
  );
  if (!signals?.every(isSignal)) {
    const wrong = signals ? signals.find((name) => !isSignal(name)) : given;
    throw invalidConfig(
      `gracefulShutdown(): signals must be an array of names of signals that can be handled, got ${shown(wrong)}`
    );
  }
  if (before !== undefined && typeof before !== 'function') {
    throw invalidConfig(`gracefulShutdown(): before must be a function, got ${shown(before)}`);
  }
  return { signals: [...new Set(signals)], deadlineMs, before };
}

/**
 * The deadline that options name; nothing where they name none.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function deadlineOf(what, options) {
  if (options === undefined || options === null) return undefined;
  if (typeof options !== 'object') throw invalidConfig(`${what}: options must be an object, got ${shown(options)}`);
  const deadlineMs = read(`${what}: deadlineMs`, options, 'deadlineMs') ?? undefined;
  if (deadlineMs === undefined) return undefined;
  if (typeof deadlineMs !== 'number' || !isFiniteNumber(deadlineMs) || deadlineMs < 0) {
    throw invalidConfig(`${what}: deadlineMs must be a number of milliseconds from 0 on, got ${shown(deadlineMs)}`);
  }
  return Math.min(deadlineMs, TIMER_LIMIT_MS);
}

/** An executor has calls; gives what to call when it has none any more. */
function track(executor) {
  busy.add(executor);
  return () => busy.delete(executor);
}

/** There is a pool of providers' sandboxes from now on. */
function setPoolDrain(act) {
  drainPool = act;
}

exports.assertOpen = assertOpen;
exports.deadlineOf = deadlineOf;
exports.gracefulShutdown = gracefulShutdown;
exports.setPoolDrain = setPoolDrain;
exports.shutdown = shutdown;
exports.shuttingDown = shuttingDown;
exports.track = track;
