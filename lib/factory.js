'use strict';

// Routes a call to its provider; keeps the instance of the process and those of the sessions.

const { callSite, invalidConfig, reasonOf, standAt, textOf } = require('./errors.js');
const { mapDelete, mapGet, mapHas, mapSet } = require('./intrinsics.js');
const { log } = require('./logger.js');
const { NativeSandboxExecutor, cleanUp, configure, execute, warm } = require('./native-executor.js');
const { GivenOptions } = require('./options.js');
const { UNAVAILABLE } = require('./vercel-executor.js');

const NAME = 'SandboxExecutorFactory';

class SandboxExecutorFactory {
  static #instance;
  static #sessions = new Map();
  #options;
  #nativeExecutor;

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

  static async cleanupSession(sessionId) {
    const factory = mapGet(SandboxExecutorFactory.#sessions, sessionId);
    // Forgotten first: whoever asks for the session from now on gets a fresh factory, not one that is going away.
    mapDelete(SandboxExecutorFactory.#sessions, sessionId);
    await factory?.cleanup();
  }

  constructor(options) {
    this.#options = GivenOptions.of('the constructor', options);
    log(NAME, 'info', {}, 'SandboxExecutorFactory initialized');
  }

  async executeFunctionTool(functionId, args, config, call) {
    const site = callSite(SandboxExecutorFactory.prototype.executeFunctionTool);
    const problem = problemOf(config);
    if (problem) throw standAt(problem, site);
    return await execute(this.#native(), site, functionId, args, config, call);
  }

  async warm(sets) {
    return await warm(this.#native(), callSite(SandboxExecutorFactory.prototype.warm), sets);
  }

  async cleanup() {
    log(NAME, 'info', {}, 'Cleaning up sandbox executors');
    const executor = this.#nativeExecutor;
    this.#nativeExecutor = undefined;
    const drain = this === SandboxExecutorFactory.#instance;
    if (executor || drain) await cleanUp(executor ?? NativeSandboxExecutor.getInstance(), drain);
    log(NAME, 'info', {}, 'Sandbox executor cleanup completed');
  }

  #native() {
    if (!this.#nativeExecutor) {
      this.#nativeExecutor = new NativeSandboxExecutor(this.#options);
      log(NAME, 'info', {}, 'Native sandbox executor created');
    }
    return this.#nativeExecutor;
  }
}

/** Why no provider of ours can take the call; nothing when the native one can. */
function problemOf(config) {
  let what = 'sandboxConfig';
  try {
    const sandbox = config?.sandboxConfig;
    if (!sandbox) return invalidConfig('Sandbox configuration is required for function tool execution');
    what = 'sandboxConfig.provider';
    const { provider } = sandbox;
    if (provider === 'native') return undefined;
    if (provider === 'vercel') return invalidConfig(UNAVAILABLE);
    return invalidConfig(`Unknown sandbox provider: ${textOf(provider)}`);
  } catch (error) {
    return invalidConfig(`${what} cannot be read: ${reasonOf(error)}`, error);
  }
}

exports.SandboxExecutorFactory = SandboxExecutorFactory;
