// Providers of the host's own: what the package does for each of them, over the example's local folders with faults put in.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, beforeEach, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { LINUX, ownWorld, rejection, surface, until } from './helpers.mjs';

const { pool } = createRequire(import.meta.url)('../lib/provider-pool.js');
const LIMIT = { skip: !LINUX, timeout: 60_000 };

let world;
before(() => {
  world = ownWorld();
});
after(() => assert.deepEqual(foldersLeft(), []));

function foldersLeft() {
  return readdirSync(world.tmp).filter((name) => name.startsWith('local-folder-'));
}

let count = 0;

/** A registered provider: local folders whose methods `faults` may replace; `events` is what was done to sandboxes. */
function registered(faults = {}) {
  const name = `test-${++count}`;
  const events = [];
  const sandboxes = [];
  surface().registerProvider(name, {
    async create(request) {
      events.push(['create', request]);
      await faults.beforeCreate?.(request);
      const sandbox = await localFolders.create(request);
      const whole = {
        id: sandbox.id,
        alive: () => sandbox.alive(),
        remainingLifetimeMs: () => sandbox.remainingLifetimeMs(),
        writeFiles: (...what) => sandbox.writeFiles(...what),
        run: (command) => {
          events.push(['run', command.args]);
          return sandbox.run(command);
        },
        stop: () => {
          events.push(['stop', sandbox.id]);
          return sandbox.stop();
        },
      };
      sandboxes.push(whole);
      return Object.assign(whole, faults.sandbox?.(sandbox, sandboxes.length));
    },
    ...(faults.reclaim && { reclaim: faults.reclaim }),
  });
  const factory = new (surface().SandboxExecutorFactory)(faults.options);
  const counted = (kind) => events.filter(([one]) => one === kind).length;
  const run = (executeCode, args = {}, { sandbox, ...over } = {}, call = undefined) =>
    factory.executeFunctionTool(
      'test-tool',
      args,
      {
        description: '',
        inputSchema: {},
        dependencies: {},
        executeCode: String(executeCode),
        sandboxConfig: { provider: name, runtime: 'node22', timeout: 10_000, ...sandbox },
        ...over,
      },
      call
    );
  return { name, events, sandboxes, counted, factory, run };
}

describe('registration', () => {
  test('names are checked, and taken once', () => {
    const { registerProvider, SandboxError } = surface();
    const provider = { create: async () => ({}) };
    registerProvider('taken', provider);
    for (const [name, given] of [
      ['native', provider],
      ['vercel', provider],
      ['taken', provider],
      ['Upper', provider],
      ['', provider],
      [undefined, provider],
      ['empty', {}],
      ['nothing', undefined],
    ]) {
      assert.throws(
        () => registerProvider(name, given),
        (error) => error instanceof SandboxError && error.code === 'INVALID_CONFIG',
        String(name)
      );
    }
  });

  test('a name that nobody registered is unknown', async () => {
    const { run } = registered();
    const error = await rejection(run('() => 1', {}, { sandbox: { provider: 'no-such' } }));
    assert.equal(error.message, 'Unknown sandbox provider: no-such');
  });

  test('what create gives is checked', async () => {
    const { run } = registered({ sandbox: () => ({ writeFiles: undefined, alive: undefined }) });
    const error = await rejection(run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    assert.match(error.message, /has no writeFiles, alive/);
  });
});

describe('pooling', LIMIT, () => {
  test('one creation for concurrent first calls, one sandbox for those that follow', async () => {
    const { run, counted, factory } = registered();
    const results = await Promise.all([1, 2, 3, 4].map((n) => run('({ n }) => n', { n })));
    assert.deepEqual(results, [1, 2, 3, 4]);
    assert.equal(await run('() => 5'), 5);
    assert.equal(counted('create'), 1);
    await factory.cleanup();
    assert.equal(counted('stop'), 1);
  });

  test('the use count and the time to live end a sandbox, and sweeping stops it', async () => {
    const options = { maxUseCount: 2, poolTtlMs: 300, cleanupIntervalMs: 50 };
    const { run, counted, factory } = registered({ options });
    for (let call = 0; call < 3; call++) await run('() => 1');
    assert.equal(counted('create'), 2);
    await until(() => counted('stop') === 2, 10_000, 'both are stopped');
    await factory.cleanup();
  });

  test('a failed creation fails all who wait; the next call tries again', async () => {
    let fail = true;
    const { run, counted, factory } = registered({
      beforeCreate: async () => {
        if (!fail) return;
        await until(() => pool().counts().waiting === 2, 5_000, 'both wait');
        throw new Error('no room');
      },
    });
    for (const error of await Promise.all([rejection(run('() => 1')), rejection(run('() => 1'))])) {
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, /could not create a sandbox: no room$/);
      assert.equal(error.cause.message, 'no room');
    }
    assert.equal(counted('create'), 1);
    fail = false;
    assert.equal(await run('() => 2'), 2);
    await factory.cleanup();
  });

  test('a creation that never ends is given up in time', async () => {
    const { run, factory } = registered({
      options: { installTimeoutMs: 300 },
      beforeCreate: ({ signal }) =>
        new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
    });
    const error = await rejection(run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    assert.match(error.message, /no answer within 300 ms|timeout/);
    await factory.cleanup();
  });

  test('a sandbox that comes too late is stopped', async () => {
    let let_come;
    const { run, counted, factory } = registered({
      options: { installTimeoutMs: 200 },
      beforeCreate: () =>
        new Promise((go) => {
          let_come = go;
        }),
    });
    await rejection(run('() => 1'));
    let_come();
    await factory.cleanup();
    await until(() => counted('stop') === 1, 5_000, 'it is stopped');
  });

  test('a dead sandbox is replaced before it is used; dead ones without end are an error', async () => {
    const first = registered({ sandbox: (sandbox, number) => ({ alive: () => number > 1 && sandbox.alive() }) });
    assert.equal(await first.run('() => 1'), 1);
    assert.equal(first.counted('create'), 2);
    await first.factory.cleanup();
    const all = registered({ sandbox: () => ({ alive: () => false }) });
    const error = await rejection(all.run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    assert.equal(all.counted('create'), all.counted('stop'));
    await all.factory.cleanup();
  });

  test('the remaining lifetime is never less than the timeout', async () => {
    const { run, events, counted, factory } = registered({
      sandbox: (_, number) => (number === 1 ? { remainingLifetimeMs: () => 30_000 } : {}),
    });
    await run('() => 1');
    await run('() => 1', {}, { sandbox: { timeout: 60_000 } });
    assert.equal(counted('create'), 2);
    assert.ok(events.filter(([kind]) => kind === 'create')[1][1].lifetimeMs >= 60_000);
    await factory.cleanup();
  });
});

describe('errors', LIMIT, () => {
  test('a job that cannot be sent ran nowhere; a sandbox that is gone is replaced', async () => {
    const broken = registered({
      sandbox: (sandbox) => ({
        writeFiles: (files) =>
          files[0].path.includes('runs') ? Promise.reject(new Error('disk full')) : sandbox.writeFiles(files),
      }),
    });
    const error = await rejection(broken.run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    assert.match(error.message, /nothing of it ran: disk full/);
    await broken.factory.cleanup();
    const gone = registered({
      sandbox: (sandbox, number) => ({
        async writeFiles(files) {
          if (number === 1 && files[0].path.includes('runs')) await sandbox.stop();
          return sandbox.writeFiles(files);
        },
      }),
    });
    assert.equal(await gone.run('() => 1'), 1);
    assert.equal(gone.counted('create'), 2);
    await gone.factory.cleanup();
  });

  for (const [what, run] of [
    ['rejects', () => Promise.reject(new Error('cable cut'))],
    [
      'throws',
      () => {
        throw new Error('cable cut');
      },
    ],
    ['gives nothing', async () => undefined],
    ['gives no code', async () => ({ exitCode: 'none' })],
    [
      'prints what is no output',
      async ({ onOutput }) => {
        onOutput('stdout', 7);
        return { exitCode: 0 };
      },
    ],
  ]) {
    test(`a provider whose run ${what} has lost the answer`, async () => {
      const {
        run: call,
        counted,
        factory,
      } = registered({
        sandbox: (sandbox) => ({
          run: (command) => (command.args.includes('run') ? run(command) : sandbox.run(command)),
        }),
      });
      const error = await rejection(call('() => 1'));
      assert.equal(error.code, 'OUTCOME_UNKNOWN');
      await factory.cleanup();
      assert.equal(counted('stop'), 1, 'nobody else gets the sandbox');
    });
  }

  test('the result counts as soon as it is there, even if the provider never says that the run has ended', async () => {
    const { run, factory } = registered({
      options: { lingerMs: 0 },
      sandbox: (sandbox) => ({
        run: (command) =>
          command.args.includes('run') ? sandbox.run(command).then(() => new Promise(() => {})) : sandbox.run(command),
      }),
    });
    assert.equal(await run('() => 1'), 1);
    await factory.cleanup();
  });

  test('a stop that fails or hangs is logged and waited for in bounds', async () => {
    const records = [];
    surface().setLogger({ debug() {}, info() {}, error() {}, warn: (...record) => records.push(record) });
    const { run, factory, sandboxes } = registered({
      sandbox: (sandbox) => ({
        stop: async () => {
          await sandbox.stop();
          throw new Error('refused');
        },
      }),
    });
    await run('() => 1');
    await factory.cleanup();
    surface().setLogger(null);
    assert.equal(records[0][1], 'Failed to clean up sandbox');
    assert.deepEqual([records[0][0].sandbox, records[0][0].error], [sandboxes[0].id, 'refused']);
  });

  test('values of a configuration reach no log', async () => {
    const records = [];
    const record = (...what) => records.push(what);
    surface().setLogger({ debug: record, info: record, warn: record, error: record });
    const { run, factory } = registered({ options: { providerEnv: { KEY: 'sk-value' } } });
    await run('() => process.env.KEY.length', {}, { sandbox: { apiKey: 'sk-config' } });
    await rejection(run('() => { throw new Error("x") }', {}, { sandbox: { apiKey: 'sk-config' } }));
    await factory.cleanup();
    surface().setLogger(null);
    assert.ok(records.length > 3);
    assert.ok(!JSON.stringify(records).includes('sk-'));
  });

  test('a bad option is the answer of every call', async () => {
    const { run } = registered({ options: { providerEnv: { 'A=B': 'sk-value' } } });
    const error = await rejection(run('() => 1'));
    assert.equal(error.code, 'INVALID_CONFIG');
    assert.match(error.message, /providerEnv/);
    assert.ok(!error.message.includes('sk-value'));
    const none = registered({ options: { network: 'none' } });
    assert.equal((await rejection(none.run('() => 1'))).code, 'ISOLATION_UNAVAILABLE');
  });
});

describe('what dead hosts left', LIMIT, () => {
  let asked;
  beforeEach(() => {
    asked = [];
  });

  test('is looked for once for each account, in the background', async () => {
    const { run, factory } = registered({
      reclaim: async (request) => {
        asked.push(request);
        throw new Error('not allowed');
      },
    });
    for (const account of ['a', 'a', 'b']) await run('() => 1', {}, { sandbox: { account } });
    assert.deepEqual(
      asked.map(({ config }) => config.account),
      ['a', 'b']
    );
    const { owner, isDead } = asked[0];
    assert.equal(isDead(owner.owner), false);
    assert.equal(isDead(`${owner.machine}-${process.pid}-1`), true, 'the process id is used again');
    assert.equal(isDead(`${owner.machine}-4194999-1`), true);
    assert.equal(isDead('0123456789abcdef-4194999-1'), false, 'of other machines nothing is known');
    for (const text of ['', 'x', `${owner.machine}-x-1`]) assert.equal(isDead(text), false);
    await factory.cleanup();
  });
});
