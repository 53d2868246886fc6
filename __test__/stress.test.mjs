// 2,000 calls from 64 callers over 4 dependency sets, with failures, timeouts and cancellations among them: every
// promise settles once, with its own answer; afterwards nothing is left.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { below, filesBelow, LINUX, launcherPid, openDescriptors, ownWorld, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const CALLS = process.env.NSE_TEST_FULL ? 10_000 : 2000;
const CALLERS = 64;
const VCPUS = 16;

let world;
let registry;

before(async () => {
  world = ownWorld();
  // Waiting behind 63 others on a slow machine is not what is tested here.
  process.env.AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS = '600000';
  registry = await useRegistry({
    alpha: {
      '1.0.0': { 'index.js': 'module.exports = "alpha 1"' },
      '2.0.0': { 'index.js': 'module.exports = "alpha 2"' },
    },
    beta: { '1.0.0': { 'index.js': 'module.exports = "beta 1"' } },
  });
});

const SETS = [
  [{}, 'null'],
  [{ alpha: '1.0.0' }, 'require("alpha")'],
  [{ alpha: '2.0.0' }, 'require("alpha")'],
  [{ beta: '1.0.0', alpha: '1.0.0' }, 'require("beta") + require("alpha")'],
];
const LOADED = [null, 'alpha 1', 'alpha 2', 'beta 1alpha 1'];

/** What each call does, by its number; each knows what it must come to. */
const KINDS = [
  {
    name: 'answers',
    share: 14,
    source: (loads) =>
      `async ({ n }) => { await new Promise((done) => setTimeout(done, n % 7)); return { n, loaded: ${loads} }; }`,
    check: ({ value }, n, set) => assert.deepEqual(value, { n, loaded: LOADED[set] }),
  },
  {
    name: 'throws',
    share: 2,
    source: (loads) => `({ n }) => { throw new Error('failed ' + n + ' ' + ${loads}); }`,
    check: ({ error }, n, set) => {
      assert.equal(error?.code, 'TOOL_ERROR');
      assert.equal(error.cause.message, `failed ${n} ${LOADED[set]}`);
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
  {
    name: 'is too late',
    share: 1,
    timeout: 400,
    source: () => '() => new Promise((done) => setTimeout(done, 60000))',
    check: ({ error }) => assert.equal(error?.message, 'Function execution timed out after 400ms'),
  },
  {
    name: 'is cancelled',
    share: 2,
    abortAfterMs: (n) => n % 300,
    source: () => '() => new Promise((done) => setTimeout(done, 60000))',
    check: ({ error }) => assert.equal(error?.code, 'ABORTED'),
  },
];
const SCHEDULE = KINDS.flatMap((kind) => Array(kind.share).fill(kind));

async function oneCall(factory, n) {
  const kind = SCHEDULE[(n * 7) % SCHEDULE.length];
  const set = n % SETS.length;
  const [dependencies, loads] = SETS[set];
  const config = tool(kind.source(loads), { dependencies, sandbox: { vcpus: VCPUS, timeout: kind.timeout ?? 60_000 } });
  const controller = new AbortController();
  const timer = kind.abortAfterMs && setTimeout(() => controller.abort(), kind.abortAfterMs(n));
  let settled = 0;
  const outcome = await factory
    .executeFunctionTool(`tool-${n % 10}`, { n }, config, { signal: controller.signal })
    .then(
      (value) => {
        settled += 1;
        return { value };
      },
      (error) => {
        settled += 1;
        return { error };
      }
    );
  clearTimeout(timer);
  assert.equal(settled, 1);
  try {
    kind.check(outcome, n, set);
  } catch (error) {
    const came = outcome.error ? `${outcome.error.code}: ${outcome.error.message}` : JSON.stringify(outcome.value);
    throw new Error(`call ${n} (${kind.name}, set ${set}) came to ${came}`, { cause: error });
  }
}

test('many callers', { timeout: 1_200_000 }, async () => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor } = surface();
  const factories = ['a', 'b', 'c'].map((id) => Factory.getForSession(id));
  for (const [set, [dependencies, loads]] of SETS.entries()) {
    assert.equal(
      await factories[0].executeFunctionTool('warm', {}, tool(`() => ${loads}`, { dependencies })),
      LOADED[set]
    );
  }
  const descriptors = openDescriptors();

  let next = 0;
  const failures = [];
  async function caller(id) {
    while (next < CALLS) {
      const n = next++;
      await oneCall(factories[id % factories.length], n).catch((error) => failures.push(error));
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, (_, id) => caller(id)));
  assert.deepEqual(failures.slice(0, 5), [], `${failures.length} of ${CALLS} calls went wrong`);
  assert.equal(next, CALLS);

  const native = new NativeSandboxExecutor();
  const idle = () =>
    Object.entries(native.getExecutionStats()).every(
      ([key, { availablePermits, queueLength }]) => availablePermits === Number(key.slice(5)) && queueLength === 0
    );
  await until(idle, 15_000, 'every permit is back');
  // Ends what is kept ready for later calls.
  await NativeSandboxExecutor.getInstance().cleanup();
  if (LINUX) {
    const others = () => below(process.pid).filter((pid) => pid !== launcherPid());
    await until(() => others().length === 0, 15_000, 'no process but the launcher');
    await until(() => openDescriptors() <= descriptors + 4, 15_000, `no more than ${descriptors} descriptors and four`);
  }
  const runFolders = () => filesBelow(world.tmp).filter((path) => /(^|[\\/])runs?[\\/][^\\/]+$/.test(path));
  await until(() => runFolders().length === 0, 15_000, `no run folder below ${world.tmp}: ${runFolders().slice(0, 3)}`);

  for (const id of ['a', 'b', 'c']) await Factory.cleanupSession(id);
  assert.ok(readdirSync(join(world.tmp)).length <= 1, 'at most the store');
  await registry.close();
});
