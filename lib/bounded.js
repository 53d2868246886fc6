'use strict';

// Waiting for what others do, with an end: a transport may stall for ever.

/** The longest that a timer of Node's waits; a longer one would fire at once. */
const TIMER_LIMIT_MS = 2_147_483_647;

/** Nothing, whatever a host has put on `Object.prototype`. */
const NO_OPTIONS = { __proto__: null };

/** What `bounded` rejects with when the time has passed. */
class OutOfTime extends Error {}

/**
 * What `act` gives, or a rejection when `ms` have passed or `signal` fires; `act` gets a signal of its own that fires then.
 * What comes later goes to `late`: nobody else knows of it. With `holds: false` the waiting does not keep the host alive.
 * @template T
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @param {(signal: AbortSignal) => T | Promise<T>} act
 * @param {{ late?: (value: T) => void, holds?: boolean }} [options]
 * @returns {Promise<T>}
 */
function bounded(ms, signal, act, { late, holds = true } = NO_OPTIONS) {
  return new Promise((resolve, reject) => {
    const controller = new AbortController();
    let over = false;
    const finish = (settle, value) => {
      if (over) return false;
      over = true;
      clearTimeout(timer);
      signal?.removeEventListener('abort', leave);
      settle(value);
      return true;
    };
    const giveUp = (reason) => {
      if (finish(reject, reason)) controller.abort(reason);
    };
    const leave = () => giveUp(signal.reason);
    const limitMs = Math.min(ms, TIMER_LIMIT_MS);
    const timer = setTimeout(() => giveUp(new OutOfTime(`no answer within ${ms} ms`)), limitMs);
    if (!holds) timer.unref();
    if (signal?.aborted) return leave();
    signal?.addEventListener('abort', leave, { once: true });
    // A provider may throw at once as well.
    new Promise((go) => go(act(controller.signal))).then(
      (value) => {
        if (!finish(resolve, value)) late?.(value);
      },
      (error) => finish(reject, error)
    );
  });
}

exports.OutOfTime = OutOfTime;
exports.TIMER_LIMIT_MS = TIMER_LIMIT_MS;
exports.bounded = bounded;
