'use strict';

// The sandboxes of this JavaScript environment: holds the providers' objects and does to them what the core's desk decides.

const { TIMER_LIMIT_MS, bounded } = require('./bounded.js');
const { tellSandbox } = require('./channels.js');
const { SandboxError, reasonOf } = require('./errors.js');
const { log, loggerName, quietly } = require('./logger.js');
const { native } = require('./native.js');
const { setProviderCounts } = require('./native-executor.js');
const { setPoolDrain } = require('./shutdown.js');

/** A sandbox that is to be stopped and does not answer is left to its own end after this. */
const STOP_LIMIT_MS = 20_000;
/** How often it is tried to stop a sandbox: when it is given up, then at each look for idle ones. */
const STOP_TRIES = 3;
/** Sandboxes that are remembered as not stopped. */
const UNSTOPPED_LIMIT = 200;
/** Sandboxes in a row that cannot be used when they are lent; then something else is wrong. */
const DEAD_LIMIT = 3;

/** Tells a call to ask again. */
const AGAIN = Symbol('again');

class ProviderPool {
  #desk;
  /** @type {Map<number, { sandbox: object, name: string, scope: string }>} by creation */
  #sandboxes = new Map();
  /** @type {Map<number, { resolve: Function, reject: Function }>} by ticket */
  #waiting = new Map();
  /** @type {Map<number, { controller: AbortController, scope: string }>} */
  #creations = new Map();
  /** Creations, stops and so on that no call waits for: of which scope, and what ends them early. */
  #pending = new Map();
  /** What could not be stopped, and costs money until its end, by sandbox. */
  #unstopped = new Map();
  /** Who uses a scope, as long as there is anything of it. @type {Map<string, Set<object>>} */
  #users = new Map();
  #sweeper;
  #sweepMs = Infinity;

  constructor() {
    this.#desk = new (native().ProviderDesk)();
  }

  /**
   * Lends a sandbox.
   * @param {object} plan the core's
   * @param {{ user: object, name: string, scope: string, lifetimeMs: number, make: (signal: AbortSignal) => Promise<object>,
   *   signal: AbortSignal }} call `name`: the provider's; `lifetimeMs`: how long the sandbox has to live; `make` gives one that is
   *   ready for runs; `signal` ends the waiting
   */
  async lease(plan, call) {
    const { name, lifetimeMs, signal } = call;
    for (let dead = 0; dead < DEAD_LIMIT; ) {
      signal.throwIfAborted();
      const reply = this.#desk.acquire(plan);
      this.#stop(reply.stops);
      if (reply.kind === 'rejected') throw tooMany();
      this.#use(call);
      const grant = reply.kind === 'granted' ? reply.grant : await this.#wait(reply, call);
      if (grant === AGAIN) continue;
      const { sandbox } = this.#sandboxes.get(grant.sandbox);
      if (isAlive(sandbox) && lifeOf(sandbox) >= lifetimeMs) return this.#lent(grant, sandbox);
      dead++;
      this.#stop(this.#desk.release(grant.lease, true));
    }
    const text = `The sandboxes of provider "${name}" were not alive when they were to be used, ${DEAD_LIMIT} times in a row`;
    throw new SandboxError(text, { __proto__: null, code: 'START_FAILED', phase: 'start' });
  }

  #use({ scope, user }) {
    const users = this.#users.get(scope);
    if (users) users.add(user);
    else this.#users.set(scope, new Set([user]));
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

  #wait({ kind, ticket, creation }, call) {
    const { signal } = call;
    return new Promise((resolve, reject) => {
      const leave = () => {
        const unwanted = this.#desk.leave(ticket);
        if (unwanted != null) this.#creations.get(unwanted)?.controller.abort(signal.reason);
        this.#waiting.get(ticket)?.reject(signal.reason);
      };
      const settle = (act) => (value) => {
        this.#waiting.delete(ticket);
        signal.removeEventListener('abort', leave);
        act(value);
      };
      this.#waiting.set(ticket, { resolve: settle(resolve), reject: settle(reject) });
      signal.addEventListener('abort', leave, { once: true });
      if (kind === 'create') this.track(call.scope, this.#create(creation, ticket, call));
    });
  }

  async #create(creation, own, { name, scope, lifetimeMs, make }) {
    const controller = new AbortController();
    this.#creations.set(creation, { controller, scope });
    let sandbox;
    try {
      sandbox = await make(controller.signal);
    } catch (error) {
      for (const ticket of this.#desk.failed(creation)) this.#waiting.get(ticket)?.reject(error);
      return;
    } finally {
      this.#creations.delete(creation);
    }
    this.#sandboxes.set(creation, { sandbox, name, scope });
    tellSandbox(() => ({ event: 'created', provider: name, sandbox: idOf(sandbox) }));
    const lifeMs = lifeOf(sandbox);
    const arrived = this.#desk.ready(creation, lifeMs === Infinity ? undefined : lifeMs);
    for (const grant of arrived.granted) this.#waiting.get(grant.ticket)?.resolve(grant);
    // What does not live as long as it was asked to will not do so the next time either: creations would go on without end.
    const isShort = arrived.again.includes(own);
    for (const ticket of arrived.again) {
      if (isShort) this.#waiting.get(ticket)?.reject(tooShort(name, lifeMs, lifetimeMs));
      else this.#waiting.get(ticket)?.resolve(AGAIN);
    }
    this.#stop(arrived.stops);
  }

  /** Looks for idle sandboxes every `ms` while there are any; the shortest interval of all executors counts. */
  sweepEvery(ms) {
    if (ms >= this.#sweepMs && this.#sweeper) return;
    this.#sweepMs = Math.min(ms, this.#sweepMs);
    clearInterval(this.#sweeper);
    this.#sweeper = setInterval(() => {
      this.#stop(this.#desk.sweep());
      this.#stopAgain(() => true);
      const { ready, retired, creating } = this.#desk.counts();
      if (ready + retired + creating + this.#unstopped.size + this.#pending.size > 0) return;
      clearInterval(this.#sweeper);
      this.#sweeper = undefined;
    }, this.#sweepMs).unref();
  }

  /**
   * Ends a user's use of everything: gives up the idle sandboxes that no other user has a use for; resolves when they are stopped.
   * Of others' sandboxes nothing is waited for.
   */
  async leave(user) {
    const left = [];
    for (const [scope, users] of [...this.#users]) {
      if (!users.delete(user) || users.size > 0) continue;
      this.#users.delete(scope);
      this.#stop(this.#desk.drain(scope));
      this.#stopAgain((one) => one.scope === scope);
      for (const [, { scope: of, end }] of this.#pending) if (of === scope) end?.();
      left.push(this.#settled(scope));
    }
    await Promise.all(left);
  }

  /** Gives up all that is idle, whoever uses it; resolves when nothing is being created or stopped any more. */
  async drain() {
    this.#stop(this.#desk.drain(undefined));
    this.#stopAgain(() => true);
    for (const [, { end }] of this.#pending) end?.();
    await this.#settled(undefined);
  }

  /** Has `leave` wait for a promise, however it ends; `end` makes it end soon. */
  track(scope, promise, end = undefined) {
    const over = () => {
      this.#pending.delete(done);
      this.#forget(scope);
    };
    const done = promise.then(over, over);
    this.#pending.set(done, { scope, end });
    return promise;
  }

  /** Resolves when nothing of a scope, or nothing at all, is being created or stopped any more. */
  async #settled(scope) {
    // What is waited for may be bounded by timers that do not keep the host alive.
    const hold = setInterval(() => {}, TIMER_LIMIT_MS);
    const open = () =>
      [...this.#pending].filter(([, { scope: of }]) => scope === undefined || of === scope).map(([promise]) => promise);
    for (let promises = open(); promises.length > 0; promises = open()) await Promise.all(promises);
    clearInterval(hold);
  }

  /** Of a scope of which there is nothing any more nothing is remembered: credentials change, and so do scopes. */
  #forget(scope) {
    if (!this.#users.has(scope)) return;
    const held = [this.#sandboxes, this.#creations, this.#pending, this.#unstopped];
    for (const map of held) for (const { scope: of } of map.values()) if (of === scope) return;
    this.#users.delete(scope);
  }

  counts() {
    const { size: scopes } = this.#users;
    return { ...this.#desk.counts(), scopes, pending: this.#pending.size, unstopped: this.#unstopped.size };
  }

  #stop(creations) {
    for (const creation of creations) {
      const { sandbox, name, scope } = this.#sandboxes.get(creation);
      this.#sandboxes.delete(creation);
      tellSandbox(() => ({ event: 'removed', provider: name, sandbox: idOf(sandbox) }));
      this.discard(name, scope, sandbox);
    }
  }

  /** Stops a sandbox that is nobody's; where that fails, again later. */
  discard(name, scope, sandbox, tries = 1) {
    const stopping = async () => {
      const isOver = (await stopped(name, sandbox)) || tries >= STOP_TRIES || this.#unstopped.size >= UNSTOPPED_LIMIT;
      if (!isOver) this.#unstopped.set(sandbox, { name, scope, tries });
    };
    this.track(scope, stopping());
  }

  #stopAgain(isMeant) {
    for (const [sandbox, one] of [...this.#unstopped]) {
      if (!isMeant(one)) continue;
      this.#unstopped.delete(sandbox);
      this.discard(one.name, one.scope, sandbox, one.tries + 1);
    }
  }
}

function isAlive(sandbox) {
  return quietly(() => sandbox.alive()) === true;
}

/** Milliseconds that a sandbox says it lives; none if it says nothing that can be understood. */
function lifeOf(sandbox) {
  const ms = quietly(() => sandbox.remainingLifetimeMs());
  return typeof ms === 'number' && ms > 0 ? ms : 0;
}

/** Stops a sandbox, or tells in the log why not; gives whether it did. Never rejects. */
async function stopped(name, sandbox) {
  const about = { provider: name, sandbox: idOf(sandbox) };
  try {
    await bounded(STOP_LIMIT_MS, undefined, (signal) => sandbox.stop({ signal }));
    log(loggerName(name), 'debug', about, 'Cleaned up sandbox');
    return true;
  } catch (error) {
    log(loggerName(name), 'warn', { ...about, error: reasonOf(error) }, 'Failed to clean up sandbox');
    return false;
  }
}

/** For logs. */
function idOf(sandbox) {
  return quietly(() => sandbox.id);
}

function tooMany() {
  const text =
    'Too many concurrent executions: all sandboxes of this process are in use, or too many calls wait for one.';
  return new SandboxError(text, { __proto__: null, code: 'QUEUE_TIMEOUT', phase: 'queue' });
}

function tooShort(name, lifeMs, lifetimeMs) {
  const text =
    `A new sandbox of provider "${name}" lives for ${Math.floor(lifeMs)} ms, and the call needs one for ${lifetimeMs} ms: ` +
    'its timeout and some time around it';
  return new SandboxError(text, { __proto__: null, code: 'START_FAILED', phase: 'start' });
}

let shared;

/** The one pool of this environment. */
function pool() {
  if (!shared) {
    shared = new ProviderPool();
    setPoolDrain(() => shared.drain());
    setProviderCounts(() => {
      const { ready, retired, creating, waiting, leases } = shared.counts();
      return { sandboxes: ready, retired, creating, waiting, leases };
    });
  }
  return shared;
}

/** As `ProviderPool.leave`, where there is a pool: whoever has never made a call needs none. */
async function leave(user) {
  await shared?.leave(user);
}

exports.idOf = idOf;
exports.leave = leave;
exports.pool = pool;
