'use strict';

// Who watches a call: subscribers of the diagnostics channels, and the host's tracer. Nothing of this exists for a call that
// nobody watches.

const channels = require('./channels.js');
const { textOf } = require('./errors.js');
const { now } = require('./intrinsics.js');
const { quietly } = require('./logger.js');
const { spansOf } = require('./spans.js');

/** The steps of a call, in their order. */
const ORDER = { __proto__: null, queue: 1, install: 2, start: 3, run: 4, settled: 5 };

let nextCallId = 1;

/**
 * Who watches the call that begins now; nothing where nobody does.
 * @param {string} provider
 * @param {unknown} toolId
 */
function observe(provider, toolId) {
  const isHeard = channels.isCallHeard();
  const spans = spansOf(toolId, provider);
  return isHeard || spans ? new CallObserver(provider, textOf(toolId), isHeard, spans) : undefined;
}

class CallObserver {
  #about;
  #isHeard;
  #spans;
  #began = now();
  /** The message about the call. */
  #message;
  /** The step under way, by its place in the order. */
  #at = 0;
  #step;
  #settledMs;

  constructor(provider, toolId, isHeard, spans) {
    this.#about = { callId: nextCallId++, toolId, provider };
    this.#isHeard = isHeard;
    this.#spans = spans;
    this.#message = { ...this.#about };
  }

  /** Runs the call: `act` gives its promise. */
  run(act) {
    const answered = () => this.#answered(this.#spans ? this.#spans.active(act) : act());
    return this.#isHeard ? this.#published(answered) : answered();
  }

  /** A step begins, and the one before it ends. What was heard of before is nothing new. */
  mark(mark) {
    const at = ORDER[mark.step];
    if (at <= this.#at) return;
    if (mark.step === 'settled') {
      this.#settledMs = mark.atMs;
      return;
    }
    quietly(() => this.#endStep(mark.atMs, mark));
    this.#at = at;
    quietly(() => this.#beginStep(mark));
  }

  /** The processes of the call are gone. */
  use(usage) {
    quietly(() => this.#spans?.use(usage));
    if (channels.usage.hasSubscribers) channels.usage.publish({ ...this.#about, usage });
  }

  #published(act) {
    const { start, end } = channels.call;
    return start.runStores(this.#message, () => {
      try {
        return act();
      } finally {
        end.publish(this.#message);
      }
    });
  }

  async #answered(promise) {
    try {
      const value = await promise;
      this.#settle();
      return value;
    } catch (error) {
      this.#settle(summary(error));
      throw error;
    }
  }

  #settle(error) {
    const durationMs = this.#settledMs ?? now() - this.#began;
    quietly(() => this.#endStep(durationMs, {}, error));
    quietly(() => this.#spans?.settle(durationMs, error));
    if (!this.#isHeard) return;
    this.#message.durationMs = durationMs;
    if (error) this.#message.error = error;
    channels.end(channels.call, this.#message);
  }

  #beginStep(mark) {
    const { step, atMs, rung } = mark;
    this.#step = { ...this.#about, atMs };
    if (rung !== undefined) this.#step.rung = rung;
    this.#spans?.begin(mark);
    if (this.#isHeard) channels.begin(channels.steps[step], this.#step);
  }

  /** What the next mark tells of this one: where the worker came from, and whether the sandbox was there. */
  #endStep(atMs, { rung, reused }, error) {
    const message = this.#step;
    if (!message) return;
    this.#step = undefined;
    const name = nameOf(this.#at);
    this.#spans?.end(name, atMs, reused, error);
    if (!this.#isHeard) return;
    message.durationMs = atMs - message.atMs;
    if (rung !== undefined) message.rung = rung;
    if (reused !== undefined) message.reused = reused;
    if (error) message.error = error;
    channels.end(channels.steps[name], message);
  }
}

function nameOf(at) {
  for (const name in ORDER) if (ORDER[name] === at) return name;
  return undefined;
}

/** What may be told of an error: its text, and what hangs on it, can hold what the function made. */
function summary({ name, code, phase }) {
  return { name, code, phase };
}

exports.observe = observe;
