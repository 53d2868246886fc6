'use strict';

// The provider `native`: forwards a call to the core and turns its outcome into a value or a `SandboxError`.

const {
  SandboxError,
  callSite,
  failureFields,
  fromOutcome,
  invalidConfig,
  isSandboxError,
  reasonOf,
  standAt,
  textOf,
} = require('./errors.js');
const { Handover } = require('./handover.js');
const { inertCause } = require('./inert.js');
const {
  field,
  hasOwn,
  hidden,
  isArray,
  keys,
  now,
  orUndefined,
  parse,
  slice,
  stringify,
  weakMapGet,
  weakMapSet,
} = require('./intrinsics.js');
const { CORE_NAME, log, loggerName, quietly } = require('./logger.js');
const { native } = require('./native.js');
const { envOf } = require('./call-env.js');
const { filesOf } = require('./files.js');
const { networkOf } = require('./network.js');
const { noteOutcome } = require('./notice.js');
const { observe } = require('./observe.js');
const {
  GivenOptions,
  argsJson,
  attempt,
  changedProxiesJson,
  environmentJson,
  listedEnvironment,
  listenerOf,
  nodeAbi,
  optionsJson,
  plainCopy,
  proxiesNow,
  read,
  requestJson,
  setsJson,
  shown,
} = require('./options.js');
const { assertOpen, deadlineOf } = require('./shutdown.js');
const { nameOf, outerCall, talkOf } = require('./talk.js');

/** How much of a result that is no JSON its error shows. */
const SHOWN_RESULT_CHARS = 200;

/** Options of `SandboxExecutorFactory.configure`, as they were then. */
let configured = GivenOptions.of('configure()');
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
 * @type {(executor: NativeSandboxExecutor, drain: boolean, deadlineMs?: number) => Promise<void>}
 */
let cleanUp;

/**
 * Does a task of those who look after the machine, for another part of this package: `src/maintenance.rs` names them.
 * @type {(executor: NativeSandboxExecutor, task: { task: string }) => Promise<any>}
 */
let maintain;

/** What to do when a signal fires, by signal: many calls may share one, and Node warns of more than ten listeners. */
const acts = new WeakMap();

/** @returns {() => void} takes it back */
function whenAborted(signal, act) {
  let shared = weakMapGet(acts, signal);
  if (!shared) {
    const pending = { __proto__: null };
    const listener = () => {
      const ids = keys(pending);
      for (let i = 0; i < ids.length; i++) pending[ids[i]]?.();
    };
    shared = { pending, listener, count: 0, nextId: 0 };
    weakMapSet(acts, signal, shared);
  }
  if (shared.count === 0) {
    attempt('signal', 'listened to', () => signal.addEventListener('abort', shared.listener, { once: true }));
  }
  const id = shared.nextId++;
  shared.count += 1;
  shared.pending[id] = act;
  return () => {
    delete shared.pending[id];
    shared.count -= 1;
    if (shared.count === 0) orUndefined(() => signal.removeEventListener('abort', shared.listener));
  };
}

/** Executors of narrower limits that one executor keeps. */
const NARROWED_LIMIT = 16;

class NativeSandboxExecutor {
  static #instance;
  #own;
  #core;
  /** The host's proxies when the core was made. */
  #proxies;
  /** By the JSON of their limits and proxies, the one used last at the end. */
  #narrowed = new Map();
  /** What the option `env` names, and what that was when the core was made. */
  #listed;
  #firstEnv;

  static {
    execute = (executor, site, toolId, args, config, call) => executor.#execute(site, toolId, args, config, call);
    warm = (executor, site, sets) => executor.#warm(site, sets);
    cleanUp = (executor, drain, deadlineMs) => executor.#cleanUp(drain, deadlineMs);
    maintain = (executor, task) => executor.#maintain(callSite(maintain), task);
  }

  static getInstance() {
    NativeSandboxExecutor.#instance ??= new NativeSandboxExecutor();
    return NativeSandboxExecutor.#instance;
  }

  constructor(options) {
    this.#own = GivenOptions.of('the constructor', options);
  }

  executeFunctionTool(toolId, args, config, call) {
    return this.#execute(callSite(NativeSandboxExecutor.prototype.executeFunctionTool), toolId, args, config, call);
  }

  warm(sets) {
    return this.#warm(callSite(NativeSandboxExecutor.prototype.warm), sets);
  }

  async cleanup(options) {
    const deadlineMs = deadlineOf('cleanup()', options);
    // What belongs to the process goes with the process's instance only: others lease sandboxes, they own none.
    await this.#cleanUp(this === NativeSandboxExecutor.#instance, deadlineMs);
  }

  async #cleanUp(drain, deadlineMs) {
    // What belongs to the process is there as soon as any executor was used.
    const core = drain && inUse ? this.#takeCore() : this.#core;
    if (!core) return;
    try {
      const narrowed = [...this.#narrowed.values()];
      this.#narrowed.clear();
      await Promise.all([...narrowed.map((one) => one.cleanup(false, deadlineMs)), core.cleanup(drain, deadlineMs)]);
    } catch (error) {
      throw outcomeUnknown(error);
    }
  }

  getExecutionStats() {
    // Where there is no core, no call has ever waited: why there is none is told by the calls.
    const queues = orUndefined(() => this.#takeCore().stats()) ?? [];
    const stats = {};
    for (let i = 0; i < queues.length; i++) {
      const { vcpus, availablePermits, queueLength } = queues[i];
      field(stats, `vcpu_${vcpus}`, { availablePermits, queueLength });
    }
    return stats;
  }

  getMetrics() {
    const metrics = parse(this.#takeCore().metrics());
    if (hasOwn(metrics, 'rung')) field(metrics, 'rung', knownRung(metrics));
    field(metrics, 'providers', providerCounts());
    return metrics;
  }

  #execute(site, toolId, args, config, call) {
    return watched('native', toolId, site, (observer) => this.#run(toolId, args, config, call, observer));
  }

  #warm(site, sets) {
    return answered(site, async () => {
      assertOpen();
      const core = this.#takeCore();
      const outcome = await core.warm(setsJson(sets));
      if (!outcome.ok) throw fromOutcome(outcome);
    });
  }

  #maintain(site, task) {
    return answered(site, async () => {
      const outcome = await this.#takeCore().maintain(stringify(task));
      if (!outcome.ok) throw fromOutcome(outcome);
      return parse(outcome.value);
    });
  }

  async #run(toolId, args, config, call, observer) {
    assertOpen();
    const core = this.#coreFor(call);
    const callId = nextCallId++;
    const prepared = prepare(callId, toolId, args, config, call, observer, this.#changedEnv());
    const { request, argsText, signal, isAborted, onEvent, handover, talk, files } = prepared;
    if (isAborted) {
      files?.end();
      throw aborted(signal);
    }

    let leave;
    let outcome;
    try {
      leave = signal ? whenAborted(signal, () => core.abort(callId, 'aborted')) : undefined;
      talk?.begin(core, callId);
      files?.begin(core, callId);
      outcome = await core.execute(callId, request, argsText, onEvent);
    } finally {
      leave?.();
      talk?.end();
      files?.end();
      handover?.settled();
    }
    noteOutcome(core, outcome);
    if (observer && outcome.steps) marked(observer, parse(outcome.steps));
    if (outcome.ok) return parseResult(outcome.value);
    if (outcome.code === 'ABORTED' && signal && orUndefined(() => signal.aborted)) throw aborted(signal, outcome);
    const error = fromOutcome(outcome);
    throw files ? files.explain(error) : error;
  }

  /** The host's variables that the option `env` names, where they are not what they were when the core took them. */
  #changedEnv() {
    if (this.#listed.length === 0) return undefined;
    const env = listedEnvironment(this.#listed);
    return stringify(env) === this.#firstEnv ? undefined : env;
  }

  /** The core's side for a call: one of its own limits where it has some, and of the host's proxies where those have changed. */
  #coreFor(call) {
    const core = this.#takeCore();
    const limits = limitsOf(call);
    const proxies = changedProxiesJson(this.#proxies);
    if (limits === undefined && proxies === undefined) return core;
    const key = `${limits} ${proxies}`;
    const narrowed = this.#narrowed.get(key) ?? core.narrowed(limits ?? '{}', proxies);
    this.#narrowed.delete(key);
    this.#narrowed.set(key, narrowed);
    if (this.#narrowed.size > NARROWED_LIMIT) this.#narrowed.delete(this.#narrowed.keys().next().value);
    return narrowed;
  }

  /** The core's side of this executor, made at first use. */
  #takeCore() {
    const { Executor } = native();
    if (this.#core) return this.#core;
    this.#proxies = proxiesNow();
    try {
      this.#core = new Executor(optionsJson(configured, this.#own), environmentJson(), nodeAbi());
    } catch (error) {
      log(CORE_NAME, 'error', { error: reasonOf(error) }, 'Invalid sandbox options');
      throw error;
    }
    // A core that stands in for the addon may list none.
    this.#listed = parse(this.#core.listedEnv?.() ?? '[]');
    this.#firstEnv = stringify(listedEnvironment(this.#listed));
    inUse = true;
    taken = true;
    return this.#core;
  }
}

/** As `answered`, for a call that may be watched: `act` gets who watches, if anybody does. */
function watched(provider, toolId, site, act) {
  const observer = observe(provider, toolId);
  const failed = (error) => logFailure(provider, toolId, error);
  if (!observer) return answered(site, act, failed);
  return observer.run(() => answered(site, () => act(observer), failed));
}

/** The steps that were not heard of while they began. */
function marked(observer, marks) {
  for (let i = 0; i < marks.length; i++) observer.mark(marks[i]);
}

/** What `act` gives; what it throws becomes a `SandboxError` that stands where the call was made. */
async function answered(site, act, failed) {
  const began = now();
  try {
    return await act();
  } catch (error) {
    const known = isSandboxError(error) ? error : outcomeUnknown(error);
    // The core measures what it rejects; what never reached it is measured here.
    if (!known.durationMs) known.durationMs = now() - began;
    failed?.(known);
    throw standAt(known, site);
  }
}

/** Codes of calls that their own host ended or did not take: no fault that somebody has to look for. */
const EXPECTED = { __proto__: null, ABORTED: true, CLEANED_UP: true, SHUTTING_DOWN: true };

/** One record per failed call, before its promise is rejected. */
function logFailure(provider, toolId, error) {
  const level = error.code in EXPECTED ? 'info' : 'error';
  log(loggerName(provider), level, failureFields(toolId, error), 'Function execution failed');
}

/** Everything of a call that can be wrong with what the caller gave, done before the core hears of it. */
function prepare(callId, toolId, args, config, call, observer, listedEnv) {
  if (config === null || typeof config !== 'object') {
    throw invalidConfig(`the function tool's config must be an object, got ${shown(config)}`);
  }
  const { signal, isAborted, onLogs, onUsage } = companions(call);
  const talk = talkOf(call);
  const handover = onUsage || observer ? new Handover() : undefined;
  const wants = {
    __proto__: null,
    logs: onLogs !== undefined,
    steps: observer !== undefined,
    usage: handover !== undefined,
    listedEnv,
    env: envOf(call),
    talk: talk?.offer,
    nest: talk && nameOf(callId),
    within: outerCall(),
    network: networkOf(call),
  };
  const files = filesOf(call);
  const hasEvents = onLogs || handover || talk || files;
  try {
    return {
      request: requestJson(toolId, config, { ...wants, __proto__: null, files: files?.given, collect: files?.wanted }),
      argsText: argsJson(args),
      signal,
      isAborted,
      onEvent: hasEvents ? eventHandler(onLogs, onUsage, observer, handover, talk, files) : null,
      handover,
      talk,
      files,
    };
  } catch (error) {
    files?.end();
    throw error;
  }
}

/** What may go with a call; absent ones are `undefined`. */
function companions(call) {
  if (call === undefined || call === null) return { __proto__: null };
  if (typeof call !== 'object' || attempt('the options of the call', 'read', () => isArray(call))) {
    throw invalidConfig(`the options of the call must be an object, got ${shown(call)}`);
  }
  const signal = read('signal', call, 'signal') ?? undefined;
  if (signal !== undefined && typeof read('signal.addEventListener', signal, 'addEventListener') !== 'function') {
    throw invalidConfig(`signal must be an AbortSignal, got ${shown(signal)}`);
  }
  return {
    signal,
    isAborted: signal !== undefined && Boolean(read('signal.aborted', signal, 'aborted')),
    onLogs: listenerOf(call, 'onLogs'),
    onUsage: listenerOf(call, 'onUsage'),
  };
}

/** The limits of a call as JSON text; `undefined` where it has none of its own. The core says what they may be. */
function limitsOf(call) {
  const given = call === undefined || call === null ? undefined : (read('limits', call, 'limits') ?? undefined);
  if (given === undefined) return undefined;
  if (typeof given !== 'object' || attempt('limits', 'read', () => isArray(given))) {
    throw invalidConfig(`limits must be an object, got ${shown(given)}`);
  }
  const json = stringify(plainCopy('limits', given, 1));
  return json === '{}' ? undefined : json;
}

/** Takes what waited together, in the order in which it came. */
function eventHandler(onLogs, onUsage, observer, handover, talk, files) {
  const use = (text) => {
    observer?.use(parse(text));
    if (onUsage) quietly(() => onUsage(parse(text)));
  };
  const take = ({ kind, text }) => {
    if (kind === 'step') observer?.mark(parse(text));
    else if (kind === 'usage') handover?.after(() => use(text));
    else if (kind === 'call' || kind === 'progress' || kind === 'yield') talk.take(kind, text);
    else if (kind === 'feed' || kind === 'file') files.take(kind, text);
    else if (onLogs) quietly(() => onLogs({ stream: kind, text }));
  };
  return (events) => {
    for (let i = 0; i < events.length; i++) take(events[i]);
  };
}

/** Where the next worker will probably come from; `null` while no way was tried: the core names the fastest until it is refused. */
function knownRung({ rung, rungsNotUsed, counters: { workers }, zygotes, settings }) {
  const isForced = settings.start !== 'default';
  if (isForced || rungsNotUsed.length > 0 || workers[rung] > 0 || zygotes.base > 0) return rung;
  // Of another executor: this one has asked for none yet.
  return workers.standby > 0 ? 'standby' : null;
}

/** What the providers' pool of this thread holds. */
let providerCounts = () => ({ sandboxes: 0, retired: 0, creating: 0, waiting: 0, leases: 0 });

/** The pool tells once there is one. */
function setProviderCounts(counts) {
  providerCounts = counts;
}

/** JSON text to value; none is `undefined`. A function can write to its own channel, so the text may be anything. */
function parseResult(text) {
  if (text === null || text === undefined) return undefined;
  try {
    return parse(text);
  } catch (cause) {
    const message = `Invalid function result: ${slice(text, 0, SHOWN_RESULT_CHARS)}`;
    throw new SandboxError(message, { __proto__: null, code: 'RESULT_NOT_SERIALIZABLE', phase: 'result', cause });
  }
}

/** The error of a call that its signal ended, in the core or before it got there. */
function aborted(signal, outcome) {
  const reason = orUndefined(() => signal.reason);
  // What `abort()` without a reason gives says nothing that "aborted" does not.
  const plain = orUndefined(() => reason.name === 'AbortError');
  const isObject = (typeof reason === 'object' && reason !== null) || typeof reason === 'function';
  const why = isObject ? orUndefined(() => reason.message) : reason;
  const message = plain || !why ? 'Function execution aborted' : `Function execution aborted: ${textOf(why)}`;
  const details = { __proto__: null, phase: 'validate', ...outcome, code: 'ABORTED', message, causeJson: undefined };
  const error = fromOutcome(details);
  hidden(error, 'cause', inertCause(reason));
  return error;
}

/** The core answers with outcomes; a rejection means that it broke, and whether the function ran is not known. */
function outcomeUnknown(error) {
  const message = `The sandbox executor failed: ${reasonOf(error)}`;
  return new SandboxError(message, { __proto__: null, code: 'OUTCOME_UNKNOWN', phase: 'run', cause: error });
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
  configured = GivenOptions.of('configure()', options);
}

/** Hands the configured options to `use`; unless that throws, they cannot be changed from now on. */
function takeConfigured(use) {
  const used = use(configured);
  taken = true;
  return used;
}

async function isolationReport() {
  const outcome = await native().isolationReport(environmentJson());
  if (!outcome.ok) throw fromOutcome(outcome);
  return parse(outcome.value);
}

exports.NativeSandboxExecutor = NativeSandboxExecutor;
exports.aborted = aborted;
exports.answered = answered;
exports.cleanUp = cleanUp;
exports.companions = companions;
exports.configure = configure;
exports.setProviderCounts = setProviderCounts;
exports.execute = execute;
exports.isolationReport = isolationReport;
exports.logFailure = logFailure;
exports.maintain = maintain;
exports.parseResult = parseResult;
exports.takeConfigured = takeConfigured;
exports.warm = warm;
exports.watched = watched;
exports.whenAborted = whenAborted;
