'use strict';

// Routes a call to its provider; keeps the instance of the process and those of the sessions.

const { SandboxError, callSite, invalidConfig, standAt } = require('./errors.js');
const { log } = require('./logger.js');
const { NativeSandboxExecutor, answered, cleanUp, configure, execute, warm } = require('./native-executor.js');
const { attempt } = require('./options.js');
const { ProviderExecutor } = require('./provider-executor.js');
const { providerOf } = require('./providers.js');

const NAME = 'SandboxExecutorFactory';

class SandboxExecutorFactory {
  static #instance;
  static #sessions = new Map();
  #options;
  #nativeExecutor;
  /** By provider. */
  #executors = new Map();

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
    const { problem, sandboxConfig, provider } = routeOf(config);
    if (problem) throw standAt(problem, site);
    if (provider === 'native') return execute(this.#native(), site, functionId, args, config, call);
    return answered(site, () =>
      this.#executor(provider, sandboxConfig).run(functionId, args, config, sandboxConfig, call)
    );
  }

  async warm(sets) {
    return warm(this.#native(), callSite(SandboxExecutorFactory.prototype.warm), sets);
  }

  async cleanup() {
    log(NAME, 'info', {}, 'Cleaning up sandbox executors');
    const executor = this.#nativeExecutor;
    this.#nativeExecutor = undefined;
    const drain = this === SandboxExecutorFactory.#instance;
    const others = [...this.#executors.values()];
    this.#executors.clear();
    const native = executor || drain ? cleanUp(executor ?? NativeSandboxExecutor.getInstance(), drain) : undefined;
    await Promise.all([native, ...others.map((other) => other.cleanup())]);
    log(NAME, 'info', {}, 'Sandbox executor cleanup completed');
  }

  #executor(provider, { teamId, projectId }) {
    let executor = this.#executors.get(provider);
    if (!executor) {
      executor = new ProviderExecutor(provider, providerOf(provider), this.#options);
      this.#executors.set(provider, executor);
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

/** Who takes the call, or why nobody does. */
function routeOf(config) {
  try {
    const sandboxConfig = attempt('sandboxConfig', () => config?.sandboxConfig);
    if (!sandboxConfig) {
      return { problem: invalidConfig('Sandbox configuration is required for function tool execution') };
    }
    const provider = attempt('sandboxConfig.provider', () => sandboxConfig.provider);
    if (provider === 'native' || providerOf(provider)) return { provider, sandboxConfig };
    return { problem: invalidConfig(`Unknown sandbox provider: ${String(provider)}`) };
  } catch (error) {
    return { problem: error instanceof SandboxError ? error : invalidConfig(String(error), error) };
  }
}

exports.SandboxExecutorFactory = SandboxExecutorFactory;
