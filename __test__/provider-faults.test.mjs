// Providers that misbehave: whatever one does, a call ends in time with an error that says what happened, nothing is made
// without end, and nothing of the host's breaks.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { host, LINUX, newMarker, ownWorld, ROOT, rejection, SURFACE, surface, until } from './helpers.mjs';

const { pool } = createRequire(import.meta.url)('../lib/provider-pool.js');
const LIMIT = { skip: !LINUX, timeout: 60_000 };

let world;
before(() => {
  world = ownWorld();
});
after(() => {
  assert.deepEqual(
    readdirSync(world.tmp).filter((name) => name.startsWith('local-folder-')),
    []
  );
  const { scopes, pending, ready, retired, creating, waiting, leases } = pool().counts();
  assert.deepEqual(
    [scopes, pending, ready, retired, creating, waiting, leases],
    [0, 0, 0, 0, 0, 0, 0],
    'nothing is kept'
  );
});

let count = 0;

/** Local folders under a name of their own, `over` of whose methods `make` may replace; `create` may be another altogether. */
function registered({ make = () => ({}), create, options, reclaim } = {}) {
  const name = `fault-${++count}`;
  const counts = { create: 0, stop: 0 };
  const own = async (request) => {
    const sandbox = await localFolders.create(request);
    const whole = {
      id: sandbox.id,
      alive: () => sandbox.alive(),
      remainingLifetimeMs: () => sandbox.remainingLifetimeMs(),
      writeFiles: (...what) => sandbox.writeFiles(...what),
      run: (command) => sandbox.run(command),
      stop() {
        counts.stop++;
        return sandbox.stop();
      },
    };
    const over = make(sandbox, counts.create);
    return Object.defineProperties(whole, Object.getOwnPropertyDescriptors(over));
  };
  const provider = {
    create(request) {
      counts.create++;
      return (create ?? own)(request);
    },
  };
  if (reclaim) Object.defineProperty(provider, 'reclaim', { get: reclaim });
  surface().registerProvider(name, provider);
  const factory = new (surface().SandboxExecutorFactory)(options);
  const run = (executeCode, args = {}, { sandbox, id = 't', ...over } = {}, call = undefined) =>
    factory.executeFunctionTool(
      id,
      args,
      {
        description: '',
        inputSchema: {},
        dependencies: {},
        executeCode,
        sandboxConfig: { provider: name, runtime: 'node22', timeout: 10_000, ...sandbox },
        ...over,
      },
      call
    );
  return { name, counts, factory, run };
}

/** What replaces `run` for functions; other commands go their way. */
const running = (act) => (sandbox) => ({
  run: (command) => (command.args.includes('run') ? act(command, sandbox) : sandbox.run(command)),
});

describe('creations', LIMIT, () => {
  for (const [what, remainingLifetimeMs] of [
    ['an hour less than asked for', (sandbox) => sandbox.remainingLifetimeMs() - 3_600_000],
    ['nothing', () => 0],
    ['less than nothing', () => -5],
    ['a negative infinity', () => -Infinity],
  ]) {
    test(`sandboxes that live for ${what} are an error, not creations without end`, async () => {
      const { run, counts, factory } = registered({
        make: (sandbox) => ({ remainingLifetimeMs: () => remainingLifetimeMs(sandbox) }),
      });
      for (const error of await Promise.all([1, 2, 3].map(() => rejection(run('() => 1'))))) {
        assert.equal(error.code, 'START_FAILED');
        assert.match(error.message, /lives for -?\d+ ms, and the call needs one for 25250 ms/);
      }
      await factory.cleanup();
      assert.deepEqual(counts, { create: 1, stop: 1 });
    });
  }

  for (const [what, over, text] of [
    ['alive() is asynchronous', { alive: async () => true }, /alive\(\) .* boolean at once, and gave a promise/],
    ['alive() rejects', { alive: () => Promise.reject(new Error('no')) }, /gave a promise/],
    ['alive() gives a text', { alive: () => 'yes' }, /gave "yes"/],
    [
      'alive() throws',
      {
        alive() {
          throw new Error('no');
        },
      },
      /gave undefined/,
    ],
    ['the lifetime is no number', { remainingLifetimeMs: () => Number.NaN }, /remainingLifetimeMs\(\) .* gave NaN/],
    ['the lifetime is a text', { remainingLifetimeMs: () => '60000' }, /gave "60000"/],
    ['the lifetime is asynchronous', { remainingLifetimeMs: async () => 60_000 }, /gave a promise/],
  ]) {
    test(`a sandbox of which ${what} is refused, and stopped`, async () => {
      const { run, counts, factory } = registered({ make: () => over });
      const error = await rejection(run('() => 1'));
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, text);
      await factory.cleanup();
      assert.deepEqual(counts, { create: 1, stop: 1 });
    });
  }

  test('a sandbox may live for ever', async () => {
    const { run, factory } = registered({ make: () => ({ remainingLifetimeMs: () => Infinity }) });
    assert.equal(await run('() => 1'), 1);
    await factory.cleanup();
  });

  test('a sandbox whose life gets shorter than it said is replaced before a call', async () => {
    let isShort = false;
    const { run, counts, factory } = registered({
      make: (sandbox, number) => ({
        remainingLifetimeMs: () => (isShort && number === 1 ? 5_000 : sandbox.remainingLifetimeMs()),
      }),
    });
    await run('() => 1');
    isShort = true;
    assert.equal(await run('() => 2'), 2);
    assert.equal(counts.create, 2);
    await factory.cleanup();
  });

  test('a sandbox that nobody is to use twice lives long enough, however long its preparation takes', async () => {
    const { run, counts, factory } = registered({ options: { poolTtlMs: 0, installTimeoutMs: 1001 } });
    assert.equal(await run('() => 1'), 1);
    assert.equal(await run('() => 2'), 2);
    assert.equal(counts.create, 2);
    await factory.cleanup();
  });

  for (const [what, create, text] of [
    ['nothing', async () => undefined, /has no writeFiles, run/],
    ['null', () => null, /has no writeFiles, run/],
    [
      'an error at once',
      () => {
        throw new RangeError('at once');
      },
      /could not create a sandbox: at once$/,
    ],
    ['a rejection with nothing', () => Promise.reject(), /could not create a sandbox: undefined$/],
    ['a rejection without a prototype', () => Promise.reject(Object.create(null)), /could not create a sandbox: /],
  ]) {
    test(`a provider that gives ${what} fails the call and nothing else`, async () => {
      const { run, factory } = registered({ create });
      const error = await rejection(run('() => 1'));
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, text);
      await factory.cleanup();
    });
  }

  test('a creation that never ends, and heeds no signal, ends neither call nor cleanup late', async () => {
    const { run, factory } = registered({ create: () => new Promise(() => {}), options: { installTimeoutMs: 200 } });
    const error = await rejection(run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    const began = performance.now();
    await factory.cleanup();
    assert.ok(performance.now() - began < 15_000);
  });

  test('a failed preparation is told at once, though the stop hangs', async () => {
    let go;
    const { run, factory } = registered({
      make: (sandbox) => ({
        writeFiles: () => Promise.reject(new Error('no room')),
        stop: () =>
          new Promise((resolve) => {
            go = resolve;
          }).then(() => sandbox.stop()),
      }),
    });
    const began = performance.now();
    const error = await rejection(run('() => 1'));
    assert.match(error.message, /could not prepare a sandbox: no room/);
    assert.ok(performance.now() - began < 5_000);
    const cleaned = factory.cleanup();
    go();
    await cleaned;
  });
});

describe('runs', LIMIT, () => {
  test('the error of the provider is the cause of an unknown outcome; a SandboxError is the call’s', async () => {
    const { SandboxError } = surface();
    const cut = new Error('cable cut');
    const lost = registered({ make: running(() => Promise.reject(cut)) });
    const error = await rejection(lost.run('() => 1'));
    assert.equal(error.code, 'OUTCOME_UNKNOWN');
    // As data: a server that rethrows the innermost cause that is an `Error` keeps the call's text.
    assert.deepEqual({ ...error.cause }, { name: 'Error', message: 'cable cut', stack: cut.stack });
    await lost.factory.cleanup();
    const refusal = new SandboxError('no more today', { code: 'START_FAILED', phase: 'start' });
    const refused = registered({ make: running(() => Promise.reject(refusal)) });
    assert.equal(await rejection(refused.run('() => 1')), refusal);
    await refused.factory.cleanup();
    assert.equal(refused.counts.stop, 1);
  });

  test('an abort says in which phase it came', async () => {
    for (const [phase, over] of [
      ['install', { make: () => ({ writeFiles: () => new Promise(() => {}) }) }],
      ['run', { make: running(() => new Promise(() => {})) }],
    ]) {
      const { run, factory } = registered(over);
      const controller = new AbortController();
      const aborted = rejection(run('() => 1', {}, {}, { signal: controller.signal }));
      setTimeout(() => controller.abort(new Error('enough')), 1000);
      const error = await aborted;
      assert.deepEqual([error.code, error.phase, error.cause.message], ['ABORTED', phase, 'enough']);
      await factory.cleanup();
    }
    const early = registered({});
    const error = await rejection(early.run('() => 1', {}, {}, { signal: AbortSignal.abort() }));
    assert.deepEqual([error.code, error.phase], ['ABORTED', 'validate']);
  });

  const unreadable = {
    get exitCode() {
      throw new Error('do not look');
    },
  };
  for (const [what, act] of [
    ['cannot be looked at', async () => unreadable],
    ['is a rejection with nothing', () => Promise.reject()],
    ['is no promise', () => 'done'],
    ['is half a code', async () => ({ exitCode: 0.5 })],
  ]) {
    test(`an end that ${what} is an unknown outcome`, async () => {
      const { run, factory } = registered({ make: running(act) });
      assert.equal((await rejection(run('() => 1'))).code, 'OUTCOME_UNKNOWN');
      await factory.cleanup();
    });
  }

  test('a run that never ends is a timeout, and cleanup does not wait for it', async () => {
    const { run, factory } = registered({ make: running(() => new Promise(() => {})) });
    const error = await rejection(run('() => 1', {}, { sandbox: { timeout: 300 } }));
    assert.equal(error.code, 'TIMEOUT');
    const began = performance.now();
    await factory.cleanup();
    assert.ok(performance.now() - began < 5_000);
  });

  test('a provider that goes on printing after the stop reaches nobody', async () => {
    let print;
    const { run, counts, factory } = registered({
      make: running((command) => {
        print = () => command.onOutput('stdout', 'late');
        print();
        return new Promise(() => {});
      }),
    });
    const chunks = [];
    const call = { onLogs: ({ text }) => chunks.push(text) };
    assert.equal((await rejection(run('() => 1', {}, { sandbox: { timeout: 200 } }, call))).code, 'TIMEOUT');
    await factory.cleanup();
    assert.equal(counts.stop, 1);
    print();
    assert.deepEqual(chunks, ['late']);
  });

  const LONG = '"x€".repeat(20000)';
  const long = 'x€'.repeat(20_000);
  const changed = (change) =>
    running((command, sandbox) => {
      let number = 0;
      const onOutput = (stream, chunk) => {
        for (const one of change(chunk, number++)) command.onOutput(stream, one);
      };
      return sandbox.run({ ...command, onOutput });
    });

  test('a transport that brings everything twice does not change the result', async () => {
    const { run, factory } = registered({ make: changed((chunk) => [chunk, chunk]) });
    const chunks = [];
    const call = { onLogs: ({ text }) => chunks.push(text) };
    assert.equal(await run(`() => { console.log("printed"); return ${LONG} }`, {}, {}, call), long);
    assert.ok(chunks.join('').startsWith('printed\n'));
    await factory.cleanup();
  });

  test('a transport that brings a part of a chunk twice, or loses one, never changes the result', async () => {
    let isLost = false;
    const spoilt = {
      'its half twice': (chunk) => [chunk, chunk.subarray(chunk.length >> 1)],
      'its middle not': (chunk) => (chunk.length < 4_000 ? [chunk] : [chunk.subarray(0, 1_000), chunk.subarray(2_000)]),
      'one not at all': (chunk) => {
        if (isLost || chunk.length < 4_000) return [chunk];
        isLost = true;
        return [];
      },
    };
    for (const [what, change] of Object.entries(spoilt)) {
      const { run, factory } = registered({ make: changed(change) });
      const answer = await run(`() => ${LONG}`).catch(({ code }) => code);
      await factory.cleanup();
      // What comes twice may be whole all the same.
      const isWhole = what.endsWith('twice') && answer === long;
      assert.ok(isWhole || answer === 'OUTCOME_UNKNOWN', `${what}: ${String(answer).slice(0, 40)}`);
    }
  });

  test('output that breaks off, though the command ended well, is an unknown outcome', async () => {
    for (const whole of [0, 1, 2]) {
      const { run, factory } = registered({ make: running(untilPiece(whole)) });
      const error = await rejection(run('() => 1'));
      assert.equal(error.code, 'OUTCOME_UNKNOWN', `after ${whole} pieces`);
      assert.match(error.message, /may have run, and was not run again/);
      await factory.cleanup();
    }
  });

  test('a runner that cannot begin is told as such', async () => {
    const { run, factory } = registered({
      make: (sandbox) => ({
        writeFiles: (files) =>
          sandbox.writeFiles(
            files.map((file) => {
              if (!file.path.endsWith('job.json')) return file;
              const job = JSON.parse(file.content);
              return { ...file, content: JSON.stringify({ ...job, job: { ...job.job, version: 99 } }) };
            })
          ),
      }),
    });
    const error = await rejection(run('() => 1'));
    assert.equal(error.code, 'START_FAILED');
    assert.match(error.message, /job of version 99/);
    await factory.cleanup();
  });
});

/** Runs a command whole, and hands over its first pieces only. */
function untilPiece(count) {
  return async (command, sandbox) => {
    let text = '';
    const ended = await sandbox.run({
      ...command,
      onOutput: (_stream, chunk) => {
        text += chunk.toString('latin1');
      },
    });
    const pieces = text.split('\n').filter((line) => line.startsWith('\x1e'));
    assert.ok(pieces.length > 2);
    command.onOutput('stdout', Buffer.from(pieces.slice(0, count).join('\n'), 'latin1'));
    return ended;
  };
}

describe('installations', LIMIT, () => {
  test('output that is none throws nothing into the provider', async () => {
    let thrown;
    const { run, factory } = registered({
      make: (sandbox) => ({
        run(command) {
          if (!command.args.includes('npm')) return sandbox.run(command);
          try {
            for (const chunk of [7, undefined, null, {}, Symbol('chunk')]) command.onOutput('stderr', chunk);
          } catch (error) {
            thrown = error;
          }
          const euro = Buffer.from('€');
          command.onOutput('stderr', euro.subarray(0, 1));
          command.onOutput('stderr', euro.subarray(1));
          return Promise.resolve({ exitCode: 1 });
        },
      }),
    });
    const error = await rejection(run('() => 1', {}, { dependencies: { pkg: '1.0.0' } }));
    assert.equal(thrown, undefined);
    assert.equal(error.code, 'INSTALL_FAILED');
    assert.equal(error.message, 'Failed to install dependencies: €');
    await factory.cleanup();
  });

  for (const [what, ended] of [
    ['nothing', undefined],
    ['no code', { exitCode: '0' }],
  ]) {
    test(`an end with ${what} is a failure`, async () => {
      const { run, factory } = registered({
        make: (sandbox) => ({
          run: (command) => (command.args.includes('npm') ? Promise.resolve(ended) : sandbox.run(command)),
        }),
      });
      const error = await rejection(run('() => 1', {}, { dependencies: { pkg: '1.0.0' } }));
      assert.equal(error.code, 'INSTALL_FAILED');
      assert.match(error.message, /did not say how npm ended/);
      await factory.cleanup();
    });
  }
});

describe('configurations', LIMIT, () => {
  test('what would not tell sandboxes apart is refused', async () => {
    class Credentials {
      #secret = 'of one customer';
      show = () => this.#secret;
    }
    const { run } = registered();
    for (const [value, text] of [
      [() => 'token', /sandboxConfig\.given must be a plain value, got function/],
      [new Map([['token', 1]]), /sandboxConfig\.given must be a plain value, got an object of a class/],
      [new Credentials(), /an object of a class/],
      [new Date(0), /an object of a class/],
      [{ deep: [1n] }, /sandboxConfig\.given\.deep\.0 must be a plain value, got bigint/],
      [Number.NaN, /must be a finite number/],
    ]) {
      const error = await rejection(run('() => 1', {}, { sandbox: { given: value } }));
      assert.equal(error.code, 'INVALID_CONFIG');
      assert.match(error.message, text);
    }
  });

  test('the provider gets a copy, with the methods that lists and objects have', async () => {
    const seen = [];
    const { run, factory } = registered({
      create: async (request) => {
        seen.push(request.config);
        return await localFolders.create(request);
      },
    });
    const regions = ['a', 'b'];
    const given = { regions, deep: { __proto__: null, x: 1 } };
    const called = run('() => 1', {}, { sandbox: { given } });
    regions.push('c');
    assert.equal(await called, 1);
    assert.deepEqual(seen[0].given, { regions: ['a', 'b'], deep: { x: 1 } });
    assert.deepEqual(seen[0].given.regions.map(String), ['a', 'b']);
    await factory.cleanup();
  });

  test('credentials that change leave nothing behind but what is used', async () => {
    const { run, counts, factory } = registered({ options: { poolTtlMs: 0, cleanupIntervalMs: 20 } });
    for (let hour = 0; hour < 12; hour++) await run('() => 1', {}, { sandbox: { token: `token ${hour}` } });
    await until(() => pool().counts().scopes === 0, 10_000, 'they are forgotten');
    assert.deepEqual(counts, { create: 12, stop: 12 });
    await factory.cleanup();
  });

  test('hundreds of configurations at once stay within the limit', async () => {
    const { run, counts, factory } = registered({
      create: async () => pretended({ run: () => new Promise(() => {}) }),
      options: { timeoutMs: 3_000 },
    });
    const calls = Array.from({ length: 250 }, (_, n) =>
      rejection(run('() => 1', {}, { sandbox: { token: `token ${n}`, timeout: 3_000 } }))
    );
    const codes = (await Promise.all(calls)).map(({ code }) => code);
    assert.equal(codes.filter((code) => code === 'TIMEOUT').length, 200);
    assert.equal(codes.filter((code) => code === 'QUEUE_TIMEOUT').length, 50);
    assert.equal(counts.create, 200);
    await factory.cleanup();
  });
});

/** A sandbox that does nothing. */
function pretended(over) {
  const quiet = { async writeFiles() {}, async stop() {}, run: async () => ({ exitCode: 0 }) };
  return { id: newMarker(), alive: () => true, remainingLifetimeMs: () => Infinity, ...quiet, ...over };
}

describe('cleaning up', LIMIT, () => {
  test('an executor waits for what is its own, not for others’ creations', async () => {
    let go;
    const slow = registered({
      create: async (request) => {
        await new Promise((resolve) => {
          go = resolve;
        });
        return await localFolders.create(request);
      },
    });
    const quick = registered();
    const called = slow.run('() => 1');
    await until(() => go, 5_000, 'the slow creation has begun');
    assert.equal(await quick.run('() => 2'), 2);
    await quick.factory.cleanup();
    assert.equal(quick.counts.stop, 1);
    go();
    assert.equal(await called, 1);
    await slow.factory.cleanup();
  });

  test('a second cleanup ends with the first', async () => {
    let go;
    const { run, factory } = registered({
      make: (sandbox) => ({
        stop: () =>
          new Promise((resolve) => {
            go = resolve;
          }).then(() => sandbox.stop()),
      }),
    });
    await run('() => 1');
    const order = [];
    const both = ['first', 'second'].map((which) => factory.cleanup().then(() => order.push(which)));
    await until(() => go, 5_000, 'the sandbox is being stopped');
    assert.deepEqual(order, []);
    go();
    await Promise.all(both);
    assert.deepEqual(order.sort(), ['first', 'second']);
  });

  test('a storm of aborts, failures and cleanups leaves nothing, and mixes up no answers', async () => {
    const options = { poolTtlMs: 60, cleanupIntervalMs: 20, lingerMs: 20, maxUseCount: 4 };
    const made = [];
    const { name, counts, factory } = registered({
      options,
      create: async (request) => {
        await new Promise((go) => setTimeout(go, Math.random() * 40));
        if (Math.random() < 0.1) throw new Error('no room');
        const sandbox = await localFolders.create(request);
        made.push(sandbox);
        return sandbox;
      },
    });
    const factories = [factory, new (surface().SandboxExecutorFactory)(options)];
    const config = (n) => ({
      description: '',
      inputSchema: {},
      dependencies: {},
      executeCode: n % 5 === 0 ? '() => { for (;;); }' : '({ n }) => n',
      sandboxConfig: { provider: name, account: n % 4, timeout: 400 },
    });
    const all = [];
    for (let n = 0; n < 60; n++) {
      const controller = new AbortController();
      const own = factories[n % 2];
      const answered = own.executeFunctionTool('t', { n }, config(n), { signal: controller.signal }).then(
        (value) => assert.equal(value, n),
        ({ code }) => assert.match(code, /^(START_FAILED|TIMEOUT|ABORTED|CLEANED_UP)$/)
      );
      all.push(answered);
      if (n % 3 === 0) setTimeout(() => controller.abort(), Math.random() * 300);
      if (n % 20 === 19) all.push(own.cleanup());
      await new Promise((go) => setTimeout(go, Math.random() * 10));
    }
    await Promise.all(all);
    await Promise.all(factories.map((one) => one.cleanup()));
    assert.ok(counts.create > 0 && made.length > 0);
    assert.deepEqual(
      made.filter((sandbox) => sandbox.alive()),
      []
    );
    assert.equal(pool().counts().leases, 0);
  });

  test('a cleanup during a run waits for it', async () => {
    const { run, counts, factory } = registered();
    let up;
    const call = {
      onLogs: () => {
        up = true;
      },
    };
    const called = run(
      'async () => { console.log("up"); await new Promise((go) => setTimeout(go, 300)); return 1 }',
      {},
      {},
      call
    );
    await until(() => up, 5_000, 'the function runs');
    await factory.cleanup();
    assert.equal(counts.stop, 1);
    assert.equal(await called, 1);
  });

  test('a sandbox that could not be stopped is stopped later, and not tried for ever', async () => {
    for (const [failures, tries] of [
      [1, 2],
      [9, 3],
    ]) {
      let tried = 0;
      const { run, factory } = registered({
        options: { poolTtlMs: 0, cleanupIntervalMs: 20 },
        make: (sandbox) => ({
          async stop() {
            if (++tried === 1) await sandbox.stop();
            if (tried <= failures) throw new Error('busy');
          },
        }),
      });
      assert.equal(await run('() => 1'), 1);
      await until(() => tried === tries && pool().counts().scopes === 0, 10_000, 'it is forgotten');
      await factory.cleanup();
      assert.equal(tried, tries);
      assert.equal(pool().counts().unstopped, 0);
    }
  });

  for (const [what, over] of [
    [
      'throws at once',
      {
        stop() {
          throw new Error('at once');
        },
      },
    ],
    ['rejects with nothing', { stop: () => Promise.reject() }],
    [
      'has no readable id',
      {
        get id() {
          throw new Error('no id');
        },
      },
    ],
  ]) {
    test(`a sandbox whose stop ${what} breaks nothing`, async () => {
      const { run, factory } = registered({ create: async () => pretended(), make: () => over });
      assert.equal((await rejection(run('() => 1'))).code, 'OUTCOME_UNKNOWN');
      await factory.cleanup();
      const odd = registered({
        create: async () => Object.defineProperties(pretended(), Object.getOwnPropertyDescriptors(over)),
      });
      assert.equal((await rejection(odd.run('() => 1'))).code, 'OUTCOME_UNKNOWN');
      await odd.factory.cleanup();
    });
  }
});

describe('looking for what dead hosts left', LIMIT, () => {
  test('a search that throws, even when it is looked at, fails no call', async () => {
    for (const reclaim of [
      () => {
        throw new Error('do not look');
      },
      () => () => {
        throw new Error('at once');
      },
      () => () => Promise.reject(),
      () => async () => 'many',
    ]) {
      const { run, factory } = registered({ reclaim });
      assert.equal(await run('() => 1'), 1);
      await factory.cleanup();
    }
  });

  test('cleanup ends a search that goes on, and the next call begins it again', async () => {
    const signals = [];
    const { run, factory } = registered({
      reclaim:
        () =>
        ({ signal }) => {
          signals.push(signal);
          return new Promise(() => {});
        },
    });
    for (const searches of [1, 2]) {
      assert.equal(await run('() => 1'), 1);
      const began = performance.now();
      await factory.cleanup();
      assert.ok(performance.now() - began < 5_000);
      assert.equal(signals.length, searches);
      assert.ok(signals.at(-1).aborted);
    }
  });
});

describe('the function and what it is given', LIMIT, () => {
  test('names in .env are those that can stand there, with own values only', async () => {
    const { run, factory } = registered({ options: { providerEnv: { A: 'line\n"two"', __proto__: { B: 'x' } } } });
    const code = `() => { process.env.A; process.env.hasOwnProperty('A'); process.env.__proto__; process.env.constructor; process.env['a b'];
      process.env['']; process.env['X\\nY']; process.env['=']; process.env.toString; process.env["npm.x"];
      return require('fs').readFileSync('.env', 'utf8') }`;
    assert.equal(
      await run(code),
      '__proto__=\nconstructor=\nhasOwnProperty=\nnpm.x=\ntoString=\n'.replace(
        '__proto__',
        'A="line\\n\\"two\\""\n__proto__'
      )
    );
    await factory.cleanup();
  });

  test('odd names, arguments and results are as elsewhere', async () => {
    const { run, factory } = registered({ options: { maxOutputBytes: 20_000_000 } });
    for (const id of ['../../x', '__proto__', 'ü/😀', '', 'constructor', 'a\0b']) {
      assert.equal(await run('() => 1', {}, { id }), 1);
    }
    const echo = '(given) => given';
    const args = { '\ud800': '\udfff', __proto__: null, zero: -0, list: [undefined, Number.NaN], when: new Date(0) };
    assert.deepEqual(await run(echo, args), JSON.parse(JSON.stringify(args)));
    const large = { text: 'é"\\'.repeat(1_500_000) };
    assert.deepEqual(await run(echo, large), large);
    assert.deepEqual(await run(echo, JSON.parse('{"__proto__":{"x":1}}')), JSON.parse('{"__proto__":{"x":1}}'));
    assert.equal(await run('() => undefined'), undefined);
    assert.equal(await run('() => () => 1'), undefined);
    for (const code of ['() => 1n', '() => { const a = []; a.push(a); return a }']) {
      assert.equal((await rejection(run(code))).code, 'RESULT_NOT_SERIALIZABLE');
    }
    await factory.cleanup();
  });

  test('output without an end of line, and bytes that are no text, do no harm', async () => {
    const { run, factory } = registered();
    const flood = "() => { for (let i = 0; i < 64; i++) process.stdout.write('x'.repeat(65536)); return 1 }";
    assert.equal((await rejection(run(flood))).code, 'OUTPUT_LIMIT');
    const bytes = '() => { process.stdout.write(Buffer.from([0xff, 0x1e, 0xe2, 0x82, 0x1e, 0x1e, 0x00])); return "é" }';
    assert.equal(await run(bytes), 'é');
    await factory.cleanup();
  });
});

describe('the host', LIMIT, () => {
  const EXAMPLE = JSON.stringify(join(ROOT, 'examples', 'local-folder-provider.mjs'));
  const config = `(code) => ({ description: '', inputSchema: {}, dependencies: {}, executeCode: code,
    sandboxConfig: { provider: 'p', runtime: 'node22', timeout: 20000 } })`;

  /** Ends by itself, without a cleanup; what it said, and how long it lived after the last word. */
  async function ends(provider, body = 'say(await run("() => 1"))') {
    const { child, exited } = host(
      `import { localFolders } from ${EXAMPLE};
      import { rmSync } from 'node:fs';
      const made = [];
      const local = { async create(request) { const one = await localFolders.create(request); made.push(one.id); return one; } };
      process.on('exit', () => made.forEach((folder) => rmSync(folder, { recursive: true, force: true })));
      rest.registerProvider('p', ${provider});
      const config = ${config};
      { const run = (code) => factory.executeFunctionTool('t', {}, config(code)); ${body}; }`,
      { nodeArgs: ['--unhandled-rejections=strict'] }
    );
    let last;
    child.stdout.on('data', () => {
      last = performance.now();
    });
    const { said, code, err } = await exited;
    assert.equal(code, 0, err);
    return { said, afterMs: performance.now() - last };
  }

  test('is not kept alive by an idle sandbox', async () => {
    const { said, afterMs } = await ends('local');
    assert.deepEqual(said, [1]);
    assert.ok(afterMs < 3_000, `${afterMs} ms`);
  });

  test('is not kept alive by a search that never ends, nor by a creation', async () => {
    const { said, afterMs } = await ends('{ ...local, reclaim: () => new Promise(() => {}) }');
    assert.deepEqual(said, [1]);
    assert.ok(afterMs < 3_000, `${afterMs} ms`);
    const hung = await ends(
      '{ create: () => new Promise(() => {}) }',
      'say(await new Factory({ installTimeoutMs: 200 }).executeFunctionTool("t", {}, config("() => 1")).catch(({ code }) => code))'
    );
    assert.deepEqual(hung.said, ['START_FAILED']);
    assert.ok(hung.afterMs < 3_000, `${hung.afterMs} ms`);
  });

  test('may have put fields on Object.prototype', async () => {
    const { said, err } = await host(
      `const { createRequire } = await import('node:module');
      const { localFolders } = await import(${EXAMPLE});
      const require = createRequire(${JSON.stringify(SURFACE)});
      const { SandboxExecutorFactory, registerProvider } = require(${JSON.stringify(SURFACE)});
      require('./lib/provider-executor.js');
      registerProvider('p', localFolders);
      for (const name of ['stdout', 'cause', 'late', 'holds', 'end', 'onLogs', 'exitCode', 'grant', 'ticket', 'creation', 'outcome'])
        Object.prototype[name] = 'from the prototype';
      const factory = new SandboxExecutorFactory();
      const run = (code) => factory.executeFunctionTool('t', {}, (${config})(code));
      const answers = [await run('() => 7'), await run('() => { throw new TypeError("no") }').catch(({ message }) => message)];
      await factory.cleanup();
      process.stdout.write(JSON.stringify(answers) + '\\n');`,
      { bare: true, nodeArgs: ['--unhandled-rejections=strict'] }
    ).exited;
    assert.deepEqual(said, [[7, 'Function execution failed with code 1: TypeError: no']], err);
  });
});
