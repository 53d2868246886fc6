'use strict';

// Routes a call to its provider; keeps the instance of the process and those of the sessions.

const { SandboxError, callSite, invalidConfig, standAt } = require('./errors.js');
const { log } = require('./logger.js');
const { NativeSandboxExecutor, cleanUp, configure, execute, warm } = require('./native-executor.js');
const { attempt } = require('./options.js');
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
    if (!sessions.has(sessionId)) sessions.set(sessionId, new SandboxExecutorFactory());
    return sessions.get(sessionId);
  }

  static async cleanupSession(sessionId) {
    const factory = SandboxExecutorFactory.#sessions.get(sessionId);
    // Forgotten first: whoever asks for the session from now on gets a fresh factory, not one that is going away.
    SandboxExecutorFactory.#sessions.delete(sessionId);
    await factory?.cleanup();
  }

  constructor(options) {
    this.#options = options;
    log(NAME, 'info', {}, 'SandboxExecutorFactory initialized');
  }

  async executeFunctionTool(functionId, args, config, call) {
    const site = callSite(SandboxExecutorFactory.prototype.executeFunctionTool);
    const problem = problemOf(config);
    if (problem) throw standAt(problem, site);
    return execute(this.#native(), site, functionId, args, config, call);
  }

  async warm(sets) {
    return warm(this.#native(), callSite(SandboxExecutorFactory.prototype.warm), sets);
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
  try {
    const sandbox = attempt('sandboxConfig', () => config?.sandboxConfig);
    if (!sandbox) return invalidConfig('Sandbox configuration is required for function tool execution');
    const provider = attempt('sandboxConfig.provider', () => sandbox.provider);
    if (provider === 'native') return undefined;
    if (provider === 'vercel') return invalidConfig(UNAVAILABLE);
    return invalidConfig(`Unknown sandbox provider: ${String(provider)}`);
  } catch (error) {
    return error instanceof SandboxError ? error : invalidConfig(String(error), error);
  }
}

exports.SandboxExecutorFactory = SandboxExecutorFactory;
