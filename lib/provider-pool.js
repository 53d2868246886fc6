'use strict';

// The sandboxes of this JavaScript environment: holds the providers' objects and does to them what the core's desk decides.

const { bounded } = require('./bounded.js');
const { tellSandbox } = require('./channels.js');
const { SandboxError } = require('./errors.js');
const { log, quietly } = require('./logger.js');
const { native } = require('./native.js');
const { setProviderCounts } = require('./native-executor.js');
const { setPoolDrain } = require('./shutdown.js');

/** A sandbox that is to be stopped and does not answer is left to its own end after this. */
const STOP_LIMIT_MS = 20_000;
/** Sandboxes in a row that are not alive when they are lent; then something else is wrong. */
const DEAD_LIMIT = 3;

/** Tells a call to ask again. */
const AGAIN = Symbol('again');

class ProviderPool {
  #desk;
  /** @type {Map<number, { sandbox: object, name: string }>} by creation */
  #sandboxes = new Map();
  /** @type {Map<number, { resolve: Function, reject: Function }>} by ticket */
  #waiting = new Map();
  /** @type {Map<number, AbortController>} */
  #creations = new Map();
  /** Promises of creations and stops that nobody else waits for. */
  #pending = new Set();
  #sweeper;
  #sweepMs = Infinity;

  constructor() {
    this.#desk = new (native().ProviderDesk)();
  }

  /**
   * Lends a sandbox.
   * @param {object} plan the core's
   * @param {string} name the provider's
   * @param {(signal: AbortSignal) => Promise<object>} make gives a sandbox that is ready for runs
   * @param {AbortSignal} signal ends the waiting
   */
  async lease(plan, name, make, signal) {
    for (let dead = 0; dead < DEAD_LIMIT; ) {
      signal.throwIfAborted();
      const reply = this.#desk.acquire(plan);
      this.#stop(reply.stops);
      if (reply.kind === 'rejected') throw tooMany();
      const grant = reply.grant ?? (await this.#wait(reply, name, make, signal));
      if (grant === AGAIN) continue;
      const { sandbox } = this.#sandboxes.get(grant.sandbox);
      if (quietly(() => sandbox.alive()) === true) return this.#lent(grant, sandbox);
      dead++;
      this.#stop(this.#desk.release(grant.lease, true));
    }
    const text = `The sandboxes of provider "${name}" were not alive when they were to be used, ${DEAD_LIMIT} times in a row`;
    throw new SandboxError(text, { code: 'START_FAILED', phase: 'start' });
  }

  #lent({ lease, useCount }, sandbox) {
    return {
      sandbox,
      useCount,
      /** Nobody else gets the sandbox from now on. */
      retire: () => this.#desk.retire(lease),
      isShared: () => this.#desk.isShared(lease),
      /** @param {boolean} suspect nobody else gets the sandbox */
      release: (suspect) => this.#stop(this.#desk.release(lease, suspect)),
    };
  }

  #wait({ ticket, creation }, name, make, signal) {
    return new Promise((resolve, reject) => {
      const leave = () => {
        const unwanted = this.#desk.leave(ticket);
        if (unwanted != null) this.#creations.get(unwanted)?.abort(signal.reason);
        this.#waiting.get(ticket)?.reject(signal.reason);
      };
      const settle = (act) => (value) => {
        this.#waiting.delete(ticket);
        signal.removeEventListener('abort', leave);
        act(value);
      };
      this.#waiting.set(ticket, { resolve: settle(resolve), reject: settle(reject) });
      signal.addEventListener('abort', leave, { once: true });
      if (creation != null) this.track(this.#create(creation, name, make));
    });
  }

  async #create(creation, name, make) {
    const controller = new AbortController();
    this.#creations.set(creation, controller);
    let sandbox;
    try {
      sandbox = await make(controller.signal);
    } catch (error) {
      for (const ticket of this.#desk.failed(creation)) this.#waiting.get(ticket)?.reject(error);
      return;
    } finally {
      this.#creations.delete(creation);
    }
    this.#sandboxes.set(creation, { sandbox, name });
    tellSandbox(() => ({ event: 'created', provider: name, sandbox: sandbox.id }));
    const lifetimeMs = quietly(() => sandbox.remainingLifetimeMs());
    const arrived = this.#desk.ready(creation, Number.isFinite(lifetimeMs) ? Math.max(lifetimeMs, 0) : undefined);
    for (const grant of arrived.granted) this.#waiting.get(grant.ticket)?.resolve(grant);
    for (const ticket of arrived.again) this.#waiting.get(ticket)?.resolve(AGAIN);
    this.#stop(arrived.stops);
  }

  /** Looks for idle sandboxes every `ms` while there are any; the shortest interval of all executors counts. */
  sweepEvery(ms) {
    if (ms >= this.#sweepMs && this.#sweeper) return;
    this.#sweepMs = Math.min(ms, this.#sweepMs);
    clearInterval(this.#sweeper);
    this.#sweeper = setInterval(() => {
      this.#stop(this.#desk.sweep());
      const { ready, retired, creating } = this.#desk.counts();
      if (ready + retired + creating > 0) return;
      clearInterval(this.#sweeper);
      this.#sweeper = undefined;
    }, this.#sweepMs).unref();
  }

  /** Gives up the idle sandboxes of a scope, or all; resolves when they are stopped. */
  async drain(scope) {
    this.#stop(this.#desk.drain(scope));
    await this.settled();
  }

  /** Has `settled` wait for a promise, however it ends. */
  track(promise) {
    const done = promise.then(
      () => this.#pending.delete(done),
      () => this.#pending.delete(done)
    );
    this.#pending.add(done);
    return promise;
  }

  /** Resolves when nothing is being created or stopped any more. */
  async settled() {
    while (this.#pending.size > 0) await Promise.all(this.#pending);
  }

  counts() {
    return this.#desk.counts();
  }

  #stop(creations) {
    for (const creation of creations) {
      const { sandbox, name } = this.#sandboxes.get(creation);
      this.#sandboxes.delete(creation);
      tellSandbox(() => ({ event: 'removed', provider: name, sandbox: sandbox.id }));
      this.track(stopped(name, sandbox));
    }
  }
}

/** Stops a sandbox; never rejects, as nobody could do more about it. */
async function stopped(name, sandbox) {
  try {
    await bounded(STOP_LIMIT_MS, undefined, (signal) => sandbox.stop({ signal }));
    log(logName(name), 'debug', { provider: name, sandbox: sandbox.id }, 'Cleaned up sandbox');
  } catch (error) {
    log(
      logName(name),
      'warn',
      { provider: name, sandbox: sandbox.id, error: error?.message },
      'Failed to clean up sandbox'
    );
  }
}

/** The original's name for one, ours for others. */
function logName(provider) {
  return provider === 'vercel' ? 'VercelSandboxExecutor' : 'ProviderSandboxExecutor';
}

function tooMany() {
  const text =
    'Too many concurrent executions: all sandboxes of this process are in use, or too many calls wait for one.';
  return new SandboxError(text, { code: 'QUEUE_TIMEOUT', phase: 'queue' });
}

let shared;

/** The one pool of this environment. */
function pool() {
  if (!shared) {
    shared = new ProviderPool();
    setPoolDrain(() => shared.drain());
    setProviderCounts(() => {
      const { ready, ...others } = shared.counts();
      return { sandboxes: ready, ...others };
    });
  }
  return shared;
}

exports.logName = logName;
exports.pool = pool;
exports.stopped = stopped;
