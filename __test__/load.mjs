// Mixed calls from many callers over many dependency sets, with the outcome that each has to have; and what has to be gone afterwards.
// `stress.test.mjs` runs a few of them, `scripts/soak.mjs` many.

import assert from 'node:assert/strict';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { below, filesBelow, LINUX, launcherPid, openDescriptors, surface, tool, until } from './helpers.mjs';

const VCPUS = 16;
/** Longer than any permit, process or folder takes to come back, on a loaded machine, too. */
const SETTLE_MS = 30_000;

/** One package for each set but the first, which has none. */
export function packagesOf(sets) {
  const names = Array.from({ length: sets - 1 }, (_, n) => `package-${n + 1}`);
  return Object.fromEntries(names.map((name) => [name, { '1.0.0': { 'index.js': `module.exports = '${name} 1'` } }]));
}

const nameOf = (set) => (set === 0 ? undefined : `package-${set}`);
const loadedOf = (set) => (set === 0 ? null : `${nameOf(set)} 1`);
const LOAD = (set) => (set === 0 ? 'null' : `require('${nameOf(set)}')`);
const forever = '() => new Promise((done) => setTimeout(done, 60000))';

function isCode(code) {
  return ({ error }) => assert.equal(error?.code, code);
}

/** What each call does, by its number `n` and its set; each knows what it must come to. */
const KINDS = [
  {
    name: 'answers',
    share: 20,
    source: (load) =>
      `async ({ n }) => { await new Promise((done) => setTimeout(done, n % 7)); return { n, loaded: ${load} }; }`,
    check: ({ value }, n, set) => assert.deepEqual(value, { n, loaded: loadedOf(set) }),
  },
  {
    name: 'throws',
    share: 3,
    source: (load) => `({ n }) => { throw new Error('failed ' + n + ' ' + ${load}); }`,
    check: ({ error }, n, set) => {
      assert.equal(error?.code, 'TOOL_ERROR');
      assert.equal(error.cause.message, `failed ${n} ${loadedOf(set)}`);
    },
  },
  {
    name: 'exits',
    share: 1,
    source: () => '({ n }) => process.exit(1 + (n % 100))',
    check: ({ error }, n) => {
      assert.equal(error?.code, 'EXITED');
      assert.ok(error.message.startsWith(`Function execution failed with code ${1 + (n % 100)}`), error.message);
    },
  },
  { name: 'crashes', share: 1, source: () => "() => process.kill(process.pid, 'SIGKILL')", check: isCode('KILLED') },
  {
    name: 'is too late',
    share: 1,
    timeout: 400,
    source: () => forever,
    check: ({ error }) => assert.equal(error?.message, 'Function execution timed out after 400ms'),
  },
  {
    name: 'is cancelled',
    share: 3,
    abortAfterMs: (n) => n % 300,
    source: () => forever,
    check: isCode('ABORTED'),
  },
  {
    name: 'floods',
    share: 1,
    source: () => "() => { for (;;) process.stdout.write('x'.repeat(65536)); }",
    check: isCode('OUTPUT_LIMIT'),
  },
  {
    name: 'leaves a process',
    share: 1,
    source: () =>
      "({ n }) => { require('node:child_process').spawn('sleep', ['600'], { detached: true, stdio: 'ignore' }).unref(); return n; }",
    check: ({ value }, n) => assert.equal(value, n),
  },
  { name: 'is no function', share: 1, source: () => '({ n }) =>', check: isCode('INVALID_SOURCE') },
  {
    name: 'is mistyped',
    share: 1,
    source: () => '() => 1',
    options: () => ({ limits: { memoryMb: 'many' } }),
    check: isCode('INVALID_CONFIG'),
  },
  {
    name: 'calls its host',
    share: 2,
    source: () => 'async ({ n }, { host }) => [await host.double(n), await host.double(n + 1)]',
    options: () => ({ functions: { double: (n) => 2 * n } }),
    check: ({ value }, n) => assert.deepEqual(value, [2 * n, 2 * n + 2]),
  },
  {
    name: 'has a file',
    share: 1,
    source: () => "() => require('node:fs').readFileSync('in.txt', 'utf8')",
    options: (n) => ({ files: { 'in.txt': n % 2 === 0 ? `file ${n}` : Readable.from([`file ${n}`]) } }),
    check: ({ value }, n) => assert.equal(value, `file ${n}`),
  },
];
const SCHEDULE = KINDS.flatMap((kind) => Array(kind.share).fill(kind));
/** Has no factor in common with the length of the schedule, so that all of it comes, in another order. */
const STRIDE = 7;

/** Latencies of a stretch of calls, in milliseconds. */
function percentiles(latencies) {
  const sorted = latencies.toSorted((one, other) => one - other);
  const at = (part) => Math.round((sorted[Math.floor(sorted.length * part)] ?? 0) * 10) / 10;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99) };
}

/** What the host has, to be compared. */
function possessions(world) {
  const processes = LINUX ? below(process.pid).filter((pid) => pid !== launcherPid()).length : 0;
  const runFolders = filesBelow(world.tmp).filter((path) => /(^|[\\/])runs?[\\/][^\\/]+$/.test(path)).length;
  const descriptors = LINUX ? openDescriptors() : 0;
  const threads = LINUX ? readdirSync('/proc/self/task').length : 0;
  return {
    processes,
    runFolders,
    descriptors,
    threads,
    rssBytes: process.memoryUsage().rss,
    storeBytes: sizeOf(world.tmp),
  };
}

function sizeOf(folder) {
  const sizes = filesBelow(folder).map((path) => {
    try {
      const entry = statSync(join(folder, path));
      return entry.isFile() ? entry.size : 0;
    } catch {
      // Gone meanwhile: what works in the background removes what it has made.
      return 0;
    }
  });
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** Option sets that a part of the calls are made with. */
const OPTIONS = [{ lingerMs: 20 }, { memoryMb: 256 }, { network: 'none' }];

export class Load {
  #world;
  #calls;
  #callers;
  #sets;
  #failures = [];
  #own = OPTIONS.map((options) => new (surface().SandboxExecutorFactory)(options));
  #next = 0;
  #stretches = [];
  #latencies = [];

  /** @param {{ world: { tmp: string }, calls: number, callers: number, sets: number }} size */
  constructor({ world, calls, callers, sets }) {
    this.#world = world;
    this.#calls = calls;
    this.#callers = callers;
    this.#sets = sets;
  }

  /** Sessions come and go, beside factories with options of their own, which need other zygotes. */
  #factory(caller, n) {
    if (n % 8 === 0) return this.#own[(n / 8) % this.#own.length];
    return surface().SandboxExecutorFactory.getForSession(`session ${caller % 8} ${Math.floor(n / 200)}`);
  }

  async #one(caller, n) {
    const kind = SCHEDULE[(n * STRIDE) % SCHEDULE.length];
    const set = n % this.#sets;
    const dependencies = set === 0 ? {} : { [nameOf(set)]: '1.0.0' };
    const sandbox = { vcpus: VCPUS, timeout: kind.timeout ?? 60_000 };
    const controller = new AbortController();
    const timer = kind.abortAfterMs && setTimeout(() => controller.abort(), kind.abortAfterMs(n));
    let settled = 0;
    const note = (outcome) => {
      settled += 1;
      return outcome;
    };
    const began = performance.now();
    const outcome = await this.#factory(caller, n)
      .executeFunctionTool(`tool-${n % 10}`, { n }, tool(kind.source(LOAD(set)), { dependencies, sandbox }), {
        signal: controller.signal,
        ...kind.options?.(n),
      })
      .then(
        (value) => note({ value }),
        (error) => note({ error })
      );
    if (kind.name === 'answers') this.#latencies.push(performance.now() - began);
    clearTimeout(timer);
    try {
      assert.equal(settled, 1);
      kind.check(outcome, n, set);
    } catch (cause) {
      const came = outcome.error ? `${outcome.error.code}: ${outcome.error.message}` : JSON.stringify(outcome.value);
      throw new Error(`call ${n} (${kind.name}, set ${set}) came to ${came}`, { cause });
    }
  }

  async #caller(id) {
    while (this.#next < this.#calls) {
      const n = this.#next++;
      await this.#one(id, n).catch((error) => this.#failures.push(error));
      if (n % Math.ceil(this.#calls / 50) === 0) this.#note(n);
      if (n % 200 === 199)
        await surface().SandboxExecutorFactory.cleanupSession(`session ${id % 8} ${Math.floor(n / 200) - 2}`);
    }
  }

  /** A stretch of calls is over. */
  #note(n) {
    if (this.#latencies.length === 0) return;
    const { rss } = process.memoryUsage();
    this.#stretches.push({ call: n, ...percentiles(this.#latencies.splice(0)), rssBytes: rss });
  }

  /** Installs all sets, and makes one call with each. */
  async #warm() {
    const { SandboxExecutorFactory: Factory } = surface();
    for (let set = 0; set < this.#sets; set++) {
      const dependencies = set === 0 ? {} : { [nameOf(set)]: '1.0.0' };
      const loaded = await Factory.getInstance().executeFunctionTool(
        'warm',
        {},
        tool(`() => ${LOAD(set)}`, { dependencies })
      );
      assert.equal(loaded, loadedOf(set));
    }
    await this.#rest();
  }

  /** Ends what is kept for later calls, and waits until nothing is left. */
  async #rest() {
    const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native } = surface();
    await Factory.getInstance().cleanup();
    await Native.getInstance().cleanup();
    const stats = new Native();
    const isIdle = () =>
      Object.entries(stats.getExecutionStats()).every(
        ([key, { availablePermits, queueLength }]) => availablePermits === Number(key.slice(5)) && queueLength === 0
      );
    await until(isIdle, SETTLE_MS, 'every permit is back');
    await until(() => possessions(this.#world).processes === 0, SETTLE_MS, 'no process but the launcher');
    await until(() => possessions(this.#world).runFolders === 0, SETTLE_MS, 'no run folder');
  }

  /** @returns what was found, where nothing was wrong; the report has the latencies of 50 stretches */
  async run() {
    await this.#warm();
    const before = possessions(this.#world);
    const began = performance.now();
    await Promise.all(Array.from({ length: this.#callers }, (_, id) => this.#caller(id)));
    const seconds = (performance.now() - began) / 1000;
    assert.deepEqual(
      this.#failures.slice(0, 5).map(({ message }) => message),
      [],
      `${this.#failures.length} of ${this.#calls} calls went wrong`
    );
    const { SandboxExecutorFactory: Factory } = surface();
    for (let session = 0; session < 8; session++) {
      for (let part = 0; part <= this.#calls / 200; part++) await Factory.cleanupSession(`session ${session} ${part}`);
    }
    await Promise.all(this.#own.map((factory) => factory.cleanup()));
    await this.#rest();
    if (LINUX) {
      const most = before.descriptors + 4;
      await until(() => openDescriptors() <= most, SETTLE_MS, `no more than ${most} descriptors`);
      const threads = before.threads + 4;
      await until(() => possessions(this.#world).threads <= threads, SETTLE_MS, `no more than ${threads} threads`);
    }
    const calls = this.#calls;
    const size = { calls, callers: this.#callers, sets: this.#sets };
    return {
      ...size,
      seconds,
      perSecond: calls / seconds,
      before,
      after: possessions(this.#world),
      stretches: this.#stretches,
    };
  }
}
