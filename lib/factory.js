'use strict';

// Routes a call to its provider; keeps the instance of the process and those of the sessions.

const { callSite, invalidConfig, reasonOf, standAt, textOf } = require('./errors.js');
const { bareArray, mapDelete, mapForEach, mapGet, mapHas, mapSet } = require('./intrinsics.js');
const { log } = require('./logger.js');
const {
  NativeSandboxExecutor,
  cleanUp,
  configure,
  execute,
  logFailure,
  warm,
  watched,
} = require('./native-executor.js');
const { GivenOptions, providerFields } = require('./options.js');
const { providerOf } = require('./providers.js');
const { deadlineOf, shuttingDown } = require('./shutdown.js');

const NAME = 'SandboxExecutorFactory';
/** How long the end of a session waits for calls that run. */
const SESSION_WAIT_MS = 250;
const CLOSING = 'The factory is being cleaned up: it takes no function calls until that is done';

class SandboxExecutorFactory {
  static #instance;
  static #sessions = new Map();
  #options;
  #nativeExecutor;
  /** By provider. */
  #executors = new Map();
  /** Native executors whose calls a cleanup waits for, as keys. */
  #leavingNatives = new Map();
  /** Those of former times that are being cleaned up. */
  #leaving;
  /** How many cleanups with a deadline are under way: they take no calls. */
  #closing = 0;

  static configure(options) {
    configure(options);
  }

  static getInstance() {
    SandboxExecutorFactory.#instance ??= new SandboxExecutorFactory();
    return SandboxExecutorFactory.#instance;
  }

  static getForSession(sessionId) {
    const sessions = SandboxExecutorFactory.#sessions;
    if (!mapHas(sessions, sessionId)) mapSet(sessions, sessionId, new SandboxExecutorFactory());
    return mapGet(sessions, sessionId);
  }

  static async cleanupSession(sessionId, options) {
    const deadlineMs = deadlineOf('cleanupSession()', options);
    const factory = mapGet(SandboxExecutorFactory.#sessions, sessionId);
    // Forgotten first: whoever asks for the session from now on gets a fresh factory, not one that is going away.
    mapDelete(SandboxExecutorFactory.#sessions, sessionId);
    if (!factory) return;
    const cleaned = factory.cleanup(options);
    if (deadlineMs !== undefined) return await cleaned;
    // A server awaits this before it answers. Calls of the session that still run end in the background.
    if (await isWithin(SESSION_WAIT_MS, outcomeOf(cleaned))) await cleaned;
  }

  // A rest parameter: `length` is 0, as the original's.
  constructor(...[options]) {
    this.#options = GivenOptions.of('the constructor', options);
    log(NAME, 'info', {}, 'SandboxExecutorFactory initialized');
  }

  async executeFunctionTool(functionId, args, config, call) {
    const site = callSite(SandboxExecutorFactory.prototype.executeFunctionTool);
    const { problem, sandboxConfig, provider } = routeOf(config);
    const refusal = problem ?? (this.#closing > 0 ? shuttingDown(CLOSING) : undefined);
    if (refusal) {
      logFailure('native', functionId, refusal);
      throw standAt(refusal, site);
    }
    if (provider === 'native') return await execute(this.#native(), site, functionId, args, config, call);
    return await watched(provider, functionId, site, (observer) => {
      const fields = providerFields(provider, sandboxConfig);
      return this.#executor(provider, fields).run(functionId, args, config, fields, call, observer);
    });
  }

  async warm(sets) {
    return await warm(this.#native(), callSite(SandboxExecutorFactory.prototype.warm), sets);
  }

  async cleanup(options) {
    const deadlineMs = deadlineOf('cleanup()', options);
    if (deadlineMs === undefined) return await this.#cleanUp();
    this.#closing += 1;
    try {
      await this.#cleanUp(deadlineMs);
    } finally {
      this.#closing -= 1;
    }
  }

  async #cleanUp(deadlineMs) {
    log(NAME, 'info', {}, 'Cleaning up sandbox executors');
    const executor = this.#nativeExecutor;
    this.#nativeExecutor = undefined;
    // Those that an earlier cleanup waits for as well: this one may have a nearer deadline.
    if (executor) mapSet(this.#leavingNatives, executor, true);
    const drain = this === SandboxExecutorFactory.#instance;
    const executors = this.#executors;
    this.#executors = new Map();
    // At once: none waits for another.
    const others = bareArray();
    mapForEach(executors, (other) => {
      others[others.length] = other.cleanup(deadlineMs);
    });
    const leaving = outcomeOf(allOf(others, this.#leaving));
    this.#leaving = leaving;
    const natives = bareArray();
    const clean = (one) => {
      natives[natives.length] = cleanUp(one, drain, deadlineMs);
    };
    mapForEach(this.#leavingNatives, (_, one) => clean(one));
    if (drain && natives.length === 0) clean(NativeSandboxExecutor.getInstance());
    const gone = await outcomeOf(allOf(natives));
    if (!gone.failed) mapDelete(this.#leavingNatives, executor);
    const left = await leaving;
    if (gone.failed) throw gone.error;
    if (left.failed) throw left.error;
    log(NAME, 'info', {}, 'Sandbox executor cleanup completed');
  }

  #executor(provider, { teamId, projectId }) {
    let executor = mapGet(this.#executors, provider);
    if (!executor) {
      // Now, not while importing: it needs `node:crypto`, which does not load where a host has put fields on `Object.prototype`.
      const { ProviderExecutor } = require('./provider-executor.js');
      executor = new ProviderExecutor(provider, providerOf(provider), this.#options);
      mapSet(this.#executors, provider, executor);
      if (provider === 'vercel') log(NAME, 'info', { teamId, projectId }, 'Vercel sandbox executor created');
      else log(NAME, 'info', { provider }, 'Provider sandbox executor created');
    }
    return executor;
  }

  #native() {
    if (!this.#nativeExecutor) {
      this.#nativeExecutor = new NativeSandboxExecutor(this.#options);
      log(NAME, 'info', {}, 'Native sandbox executor created');
    }
    return this.#nativeExecutor;
  }
}

/**
 * Waits for the cleanups, and for `before`: whoever cleans up twice is not told that all is gone while it is going. The first
 * failure is thrown when all are over. Each is watched from the start: one that fails while another is waited for would end
 * the host as an unhandled rejection.
 */
async function allOf(cleanups, before) {
  const outcomes = bareArray();
  for (let i = 0; i < cleanups.length; i++) outcomes[i] = outcomeOf(cleanups[i]);
  await before;
  let failure;
  for (let i = 0; i < outcomes.length; i++) {
    const outcome = await outcomes[i];
    if (outcome.failed) failure ??= outcome;
  }
  if (failure) throw failure.error;
}

/** What becomes of a promise; never rejects. */
async function outcomeOf(promise) {
  try {
    await promise;
    return { __proto__: null, failed: false };
  } catch (error) {
    return { __proto__: null, failed: true, error };
  }
}

/** Whether `settling`, which never rejects, settles within `ms`. */
async function isWithin(ms, settling) {
  let timer;
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, ms, false);
  });
  const inTime = (async () => {
    await settling;
    return true;
  })();
  const isInTime = await Promise.race([inTime, late]);
  clearTimeout(timer);
  return isInTime;
}

/** Who takes the call, or why nobody does. */
function routeOf(config) {
  let what = 'sandboxConfig';
  const refused = (problem) => ({ __proto__: null, problem });
  try {
    const sandboxConfig = config?.sandboxConfig;
    if (!sandboxConfig) return refused(invalidConfig('Sandbox configuration is required for function tool execution'));
    what = 'sandboxConfig.provider';
    const { provider } = sandboxConfig;
    if (provider === 'native' || providerOf(provider)) return { __proto__: null, provider, sandboxConfig };
    return refused(invalidConfig(`Unknown sandbox provider: ${textOf(provider)}`));
  } catch (error) {
    return refused(invalidConfig(`${what} cannot be read: ${reasonOf(error)}`, error));
  }
}

exports.SandboxExecutorFactory = SandboxExecutorFactory;
