'use strict';

// Routes a call to its provider; keeps the instance of the process and those of the sessions.

const { callSite, invalidConfig, reasonOf, standAt, textOf } = require('./errors.js');
const { bareArray, mapDelete, mapForEach, mapGet, mapHas, mapSet } = require('./intrinsics.js');
const { log } = require('./logger.js');
const { NativeSandboxExecutor, cleanUp, configure, execute, warm, watched } = require('./native-executor.js');
const { GivenOptions, providerFields } = require('./options.js');
const { providerOf } = require('./providers.js');
const { deadlineOf, shuttingDown } = require('./shutdown.js');

const NAME = 'SandboxExecutorFactory';
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
    const factory = mapGet(SandboxExecutorFactory.#sessions, sessionId);
    // Forgotten first: whoever asks for the session from now on gets a fresh factory, not one that is going away.
    mapDelete(SandboxExecutorFactory.#sessions, sessionId);
    await factory?.cleanup(options);
  }

  constructor(options) {
    this.#options = GivenOptions.of('the constructor', options);
    log(NAME, 'info', {}, 'SandboxExecutorFactory initialized');
  }

  async executeFunctionTool(functionId, args, config, call) {
    const site = callSite(SandboxExecutorFactory.prototype.executeFunctionTool);
    const { problem, sandboxConfig, provider } = routeOf(config);
    if (problem) throw standAt(problem, site);
    if (this.#closing > 0) throw standAt(shuttingDown(CLOSING), site);
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
    const leaving = allOf(others, this.#leaving);
    this.#leaving = leaving;
    const natives = bareArray();
    const clean = (one) => {
      natives[natives.length] = cleanUp(one, drain, deadlineMs);
    };
    mapForEach(this.#leavingNatives, (_, one) => clean(one));
    if (drain && natives.length === 0) clean(NativeSandboxExecutor.getInstance());
    try {
      await allOf(natives);
      mapDelete(this.#leavingNatives, executor);
    } finally {
      await leaving;
    }
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

/** Waits for the cleanups, and for `before`: whoever cleans up twice is not told that all is gone while it is going. */
async function allOf(cleanups, before) {
  await before;
  for (let i = 0; i < cleanups.length; i++) await cleanups[i];
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
