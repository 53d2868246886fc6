'use strict';

// The provider `native`: forwards a call to the core and turns its outcome into a value or a `SandboxError`.

const { SandboxError, callSite, fromOutcome, invalidConfig, standAt } = require('./errors.js');
const { CORE_NAME, log, quietly } = require('./logger.js');
const { native } = require('./native.js');
const {
  argsJson,
  attempt,
  environmentJson,
  kindOf,
  nodeAbi,
  optionsJson,
  requestJson,
  setsJson,
} = require('./options.js');

/** How much of a result that is no JSON its error shows. */
const SHOWN_RESULT_CHARS = 200;

/** Options of `SandboxExecutorFactory.configure`. */
let configured;
/** Whether an executor has taken them. */
let taken = false;
/** Whether one of these executors has. */
let inUse = false;
let nextCallId = 1;

/**
 * Runs a call for another class of this package, whose own frame the error's stack leaves out.
 * @type {(executor: NativeSandboxExecutor, site: object, toolId: unknown, args: unknown, config: unknown, call: unknown) => Promise<unknown>}
 */
let execute;

/**
 * Prepares dependency sets for another class of this package.
 * @type {(executor: NativeSandboxExecutor, site: object, sets: unknown) => Promise<void>}
 */
let warm;

/**
 * Cleans an executor up for another class of this package; with `drain`, what belongs to the process goes too.
 * @type {(executor: NativeSandboxExecutor, drain: boolean) => Promise<void>}
 */
let cleanUp;

/** What to do when a signal fires, by signal: many calls may share one, and Node warns of more than ten listeners. */
const acts = new WeakMap();

/** @returns {() => void} takes it back */
function whenAborted(signal, act) {
  let shared = acts.get(signal);
  if (!shared) {
    const pending = new Set();
    const listener = () => {
      for (const one of pending) one();
    };
    shared = { pending, listener };
    acts.set(signal, shared);
  }
  const { pending, listener } = shared;
  if (pending.size === 0) signal.addEventListener('abort', listener, { once: true });
  pending.add(act);
  return () => {
    pending.delete(act);
    if (pending.size === 0) signal.removeEventListener('abort', listener);
  };
}

class NativeSandboxExecutor {
  static #instance;
  #own;
  #core;

  static {
    execute = (executor, ...call) => executor.#execute(...call);
    warm = (executor, ...sets) => executor.#warm(...sets);
    cleanUp = (executor, drain) => executor.#cleanUp(drain);
  }

  static getInstance() {
    NativeSandboxExecutor.#instance ??= new NativeSandboxExecutor();
    return NativeSandboxExecutor.#instance;
  }

  constructor(options) {
    this.#own = options;
  }

  executeFunctionTool(toolId, args, config, call) {
    return this.#execute(callSite(NativeSandboxExecutor.prototype.executeFunctionTool), toolId, args, config, call);
  }

  warm(sets) {
    return this.#warm(callSite(NativeSandboxExecutor.prototype.warm), sets);
  }

  cleanup() {
    // What belongs to the process goes with the process's instance only: others lease sandboxes, they own none.
    return this.#cleanUp(this === NativeSandboxExecutor.#instance);
  }

  async #cleanUp(drain) {
    // What belongs to the process is there as soon as any executor was used.
    const core = drain && inUse ? this.#takeCore() : this.#core;
    if (!core) return;
    try {
      await core.cleanup(drain);
    } catch (error) {
      throw outcomeUnknown(error);
    }
  }

  getExecutionStats() {
    // Where there is no core, no call has ever waited: why there is none is told by the calls.
    const queues = quietly(() => this.#takeCore().stats()) ?? [];
    return Object.fromEntries(
      queues.map(({ vcpus, availablePermits, queueLength }) => [`vcpu_${vcpus}`, { availablePermits, queueLength }])
    );
  }

  getMetrics() {
    return JSON.parse(this.#takeCore().metrics());
  }

  #execute(site, toolId, args, config, call) {
    return answered(site, () => this.#run(toolId, args, config, call ?? {}));
  }

  #warm(site, sets) {
    return answered(site, async () => {
      const core = this.#takeCore();
      const outcome = await core.warm(attempt('the dependency sets', () => setsJson(sets)));
      if (!outcome.ok) throw fromOutcome(outcome);
    });
  }

  async #run(toolId, args, config, call) {
    const core = this.#takeCore();
    const { request, argsText, signal, onEvent } = attempt('the call', () => prepare(toolId, args, config, call));
    if (signal?.aborted) throw aborted(signal);

    const callId = nextCallId++;
    const leave = signal ? whenAborted(signal, () => core.abort(callId, 'aborted')) : undefined;
    let outcome;
    try {
      outcome = await core.execute(callId, request, argsText, onEvent);
    } finally {
      leave?.();
    }
    if (outcome.ok) return parseResult(outcome.value);
    if (outcome.code === 'ABORTED' && signal?.aborted) throw aborted(signal, outcome);
    throw fromOutcome(outcome);
  }

  /** The core's side of this executor, made at first use. */
  #takeCore() {
    const { Executor } = native();
    if (this.#core) return this.#core;
    try {
      this.#core = new Executor(
        attempt('options', () => optionsJson(configured, this.#own)),
        environmentJson(),
        nodeAbi()
      );
    } catch (error) {
      log(CORE_NAME, 'error', { error: error.message }, 'Invalid sandbox options');
      throw error;
    }
    inUse = true;
    taken = true;
    return this.#core;
  }
}

/** What `act` gives; what it throws becomes a `SandboxError` that stands where the call was made. */
async function answered(site, act) {
  const began = performance.now();
  try {
    return await act();
  } catch (error) {
    const known = error instanceof SandboxError ? error : outcomeUnknown(error);
    // The core measures what it rejects; what never reached it is measured here.
    if (!known.durationMs) known.durationMs = performance.now() - began;
    throw standAt(known, site);
  }
}

/** Everything of a call that can be wrong with what the caller gave, done before the core hears of it. */
function prepare(toolId, args, config, call) {
  if (config === null || typeof config !== 'object') {
    throw invalidConfig(`the function tool's config must be an object, got ${kindOf(config)}`);
  }
  const { signal, onLogs, onUsage } = call;
  if (signal != null && typeof signal.addEventListener !== 'function') {
    throw invalidConfig(`signal must be an AbortSignal, got ${kindOf(signal)}`);
  }
  return {
    request: requestJson(toolId, config, { onLogs, onUsage }),
    argsText: argsJson(args),
    signal: signal ?? undefined,
    onEvent: onLogs || onUsage ? eventHandler(onLogs, onUsage) : null,
  };
}

function eventHandler(onLogs, onUsage) {
  return ({ kind, text }) => {
    if (kind === 'usage') quietly(() => onUsage?.(JSON.parse(text)));
    else quietly(() => onLogs?.({ stream: kind, text }));
  };
}

/** JSON text to value; none is `undefined`. A function can write to its own channel, so the text may be anything. */
function parseResult(text) {
  if (text === null || text === undefined) return undefined;
  try {
    return JSON.parse(text);
  } catch (cause) {
    const message = `Invalid function result: ${text.slice(0, SHOWN_RESULT_CHARS)}`;
    throw new SandboxError(message, { code: 'RESULT_NOT_SERIALIZABLE', phase: 'result', cause });
  }
}

/** The error of a call that its signal ended, in the core or before it got there. */
function aborted({ reason }, outcome) {
  const details = outcome ?? { phase: 'validate' };
  // What `abort()` without a reason gives says nothing that "aborted" does not.
  const plain = reason?.name === 'AbortError';
  const why = reason instanceof Object ? reason.message : reason;
  const message = plain || !why ? 'Function execution aborted' : `Function execution aborted: ${String(why)}`;
  const error = fromOutcome({ ...details, code: 'ABORTED', message, causeJson: undefined });
  Object.defineProperty(error, 'cause', { value: reason, writable: true, enumerable: false, configurable: true });
  return error;
}

/** The core answers with outcomes; a rejection means that it broke, and whether the function ran is not known. */
function outcomeUnknown(error) {
  const reason = error instanceof Error ? error.message : String(error);
  const message = `The sandbox executor failed: ${reason}`;
  return new SandboxError(message, { code: 'OUTCOME_UNKNOWN', phase: 'run', cause: error });
}

/**
 * Sets the options of every executor that has none of its own.
 * @throws {SandboxError} `INVALID_CONFIG` once an executor runs with the former ones: going on with, say, an open
 *   network where the caller has just closed it would be worse than an exception at start-up.
 */
function configure(options) {
  if (taken) {
    const error = invalidConfig(
      'SandboxExecutorFactory.configure() was called after the first function tool ran: call it before, at start-up'
    );
    log(CORE_NAME, 'error', { error: error.message }, 'Invalid sandbox options');
    throw error;
  }
  configured = options;
}

/** Hands the configured options to `use`; unless that throws, they cannot be changed from now on. */
function takeConfigured(use) {
  const used = use(configured);
  taken = true;
  return used;
}

async function isolationReport() {
  return JSON.parse(await native().isolationReport());
}

exports.NativeSandboxExecutor = NativeSandboxExecutor;
exports.aborted = aborted;
exports.answered = answered;
exports.cleanUp = cleanUp;
exports.configure = configure;
exports.execute = execute;
exports.isolationReport = isolationReport;
exports.parseResult = parseResult;
exports.takeConfigured = takeConfigured;
exports.warm = warm;
exports.whenAborted = whenAborted;
