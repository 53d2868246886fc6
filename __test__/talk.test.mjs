// What a call may give its function, and what the function may say before its result: host functions, progress, variables, limits.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';

const LIMIT = { timeout: 120_000 };

before(() => {
  ownWorld();
  surface().registerProvider('talk-folders', localFolders);
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

for (const start of RUNGS) {
  describe(`on the rung ${start}`, LIMIT, () => {
    let factory;
    before(() => {
      factory = new (surface().SandboxExecutorFactory)({ start });
    });
    after(() => factory.cleanup());

    const call = (code, options, args = {}) => factory.executeFunctionTool('talk', args, tool(code), options);

    test('a host function is called with the arguments and answers with its result', async () => {
      const functions = { lookup: async ({ id }) => ({ name: `n${id}` }) };
      assert.equal(
        await call('async ({ id }, { host }) => (await host.lookup({ id })).name', { functions }, { id: 5 }),
        'n5'
      );
    });

    test('a dotted name is a function of an object, and many calls go on at once', async () => {
      const functions = { 'crm.find': async (n) => n * 2, 'crm.deep.get': () => undefined };
      const code =
        'async (a, { host }) => [await Promise.all([1, 2, 3].map((n) => host.crm.find(n))), typeof (await host.crm.deep.get())]';
      assert.deepEqual(await call(code, { functions }), [[2, 4, 6], 'undefined']);
    });

    test('an error of a host function has name and message, and nothing else', async () => {
      const functions = {
        bad() {
          throw Object.assign(new TypeError('no'), { secret: 'of the host' });
        },
      };
      const code = `async (a, { host }) => { try { await host.bad(); } catch (e) {
        return [e instanceof Error, e.name, e.message, Object.keys(e), e.secret, /talk\\.test/.test(e.stack)]; } }`;
      assert.deepEqual(await call(code, { functions }), [true, 'TypeError', 'no', [], null, false]);
    });

    test('without anything to talk with there is no second parameter', async () => {
      assert.equal(await call('async (...all) => all.length', {}), 1);
      assert.equal(await call('async (...all) => all.length', { onProgress() {} }), 2);
    });

    test('the signal of a host function fires when its call has ended', async () => {
      const fired = Promise.withResolvers?.() ?? {};
      const done = new Promise((resolve) => {
        fired.resolve = resolve;
      });
      const functions = {
        slow: (_, { signal }) => new Promise(() => signal.addEventListener('abort', () => fired.resolve(true))),
      };
      const code = 'async (a, { host }) => { host.slow().catch(() => {}); return "not waited for"; }';
      assert.equal(await call(code, { functions }), 'not waited for');
      assert.equal(await done, true);
    });

    test('progress comes in order', async () => {
      const got = [];
      const code =
        'async (a, { progress }) => { for (let i = 0; i < 20; i++) progress({ done: i }); await new Promise((r) => setTimeout(r, 50)); return 1; }';
      assert.equal(await call(code, { onProgress: ({ done }) => got.push(done) }), 1);
      assert.deepEqual(got, [...Array(20).keys()]);
    });

    test('a generator hands its values over in order, no faster than they are taken, and then its result', async () => {
      const got = [];
      let busy = 0;
      const onYield = async (value) => {
        busy += 1;
        assert.equal(busy, 1, 'one at a time');
        await new Promise((resolve) => setTimeout(resolve, 1));
        got.push(value);
        busy -= 1;
      };
      const code = "async function* count({ to }) { for (let i = 0; i < to; i++) yield { i }; return 'end'; }";
      assert.equal(await call(code, { onYield }, { to: 50 }), 'end');
      assert.deepEqual(
        got.map(({ i }) => i),
        [...Array(50).keys()]
      );
    });

    test('a generator that nobody takes values from is refused in words that say what to do', async () => {
      const error = await rejection(call('async function* count() { yield 1; }', {}));
      assert.equal(error.code, 'INVALID_SOURCE');
      assert.match(error.message, /generator.*onYield/);
    });

    test('a variable of a call is seen by that call alone', async () => {
      const code = 'async () => process.env.TALK_SECRET ?? null';
      assert.equal(await call(code, { env: { TALK_SECRET: 'of this call' } }), 'of this call');
      assert.equal(await call(code, {}), null);
    });

    test('a limit of a call is that call’s alone', async () => {
      const code = 'async () => "x".repeat(2000)';
      const error = await rejection(call(code, { limits: { maxOutputBytes: 1000 } }));
      assert.equal(error.code, 'OUTPUT_LIMIT');
      assert.equal((await call(code, {})).length, 2000);
    });

    test('more calls at once than are allowed reject in the function', async () => {
      const functions = { slow: () => new Promise((resolve) => setTimeout(resolve, 50, 1)) };
      const code = `async (a, { host }) => { const all = await Promise.allSettled([...Array(5)].map(() => host.slow()));
        return [all.filter((one) => one.status === 'fulfilled').length, all.at(-1).reason.message]; }`;
      const [answered, message] = await call(code, { functions, functionLimits: { pending: 3 } });
      assert.equal(answered, 3);
      assert.match(message, /3 calls of host functions are under way.*functionLimits\.pending/);
    });

    test('calls in all are limited, and a flood ends its own call', async () => {
      const functions = { one: () => 1 };
      const code = `async (a, { host }) => { let n = 0, last; for (let i = 0; i < 15; i++) try { n += await host.one(); } catch (e) { last = e.message; } return [n, last]; }`;
      const [answered, message] = await call(code, { functions, functionLimits: { calls: 10 } });
      assert.equal(answered, 10);
      assert.match(message, /functionLimits\.calls/);
      const flood = 'async (a, { host }) => { for (;;) await host.one().catch(() => {}); }';
      const error = await rejection(call(flood, { functions, functionLimits: { calls: 5 } }));
      assert.equal(error.code, 'TOOL_ERROR');
      assert.match(error.message, /goes on calling/);
    });

    test('messages are limited in both directions', async () => {
      const functions = { echo: (text) => text, big: () => 'x'.repeat(5000) };
      const code = `async (a, { host }) => { const of = (p) => p.then(() => 'answered', (e) => e.message);
        return [await of(host.echo('x'.repeat(5000))), await of(host.big()), await of(host.echo('x'))]; }`;
      const [sent, received, small] = await call(code, { functions, functionLimits: { messageBytes: 1000 } });
      assert.match(sent, /the arguments of host\.echo have 5002 bytes/);
      assert.match(received, /the result of host\.big has 5002 bytes/);
      assert.equal(small, 'answered');
    });

    test('a host function that calls a tool needs no second permit', async () => {
      const inner = () => factory.executeFunctionTool('inner', { n: 1 }, tool('async ({ n }) => n + 1'));
      const code = 'async (a, { host }) => Promise.all([host.again(), host.again()])';
      assert.deepEqual(await call(code, { functions: { again: inner } }), [2, 2]);
    });

    test('forged frames harm only the call that sends them', async () => {
      const forge = (type, text) =>
        `async () => { const b = Buffer.from(${JSON.stringify(text)}); const h = Buffer.alloc(5); h.writeUInt32LE(b.length); h[4] = ${type};
          require('node:fs').writeSync(3, Buffer.concat([h, b])); await new Promise((r) => setTimeout(r, 5000)); }`;
      const called = [];
      const functions = { one: (args) => called.push(args) };
      for (const [type, text, options] of [
        [29, '{"id":1,"name":"one","args":1}', {}],
        [29, '{"id":1,"name":"one"', { functions }],
        [29, '{"id":-1,"name":"one"}', { functions }],
        [31, '1', { functions }],
        [30, '1', { functions }],
      ]) {
        const error = await rejection(call(forge(type, text), options));
        assert.equal(error.code, 'TOOL_ERROR', `${type} ${text}: ${error.message}`);
      }
      assert.deepEqual(called, []);
      assert.equal(await call('async (a, { host }) => host.one(7)', { functions: { one: (n) => n } }), 7);
    });

    test('keys of arguments never become prototypes in the host', async () => {
      const seen = [];
      const functions = { take: (args) => seen.push([Object.keys(args), Object.assign({}, args).polluted]) };
      const code = `async (a, { host }) => { await host.take(JSON.parse('{"__proto__":{"polluted":1},"a":1}')); await host.take(JSON.parse('{"\\\\u005f_proto__":{"polluted":1},"a":1}')); }`;
      await call(code, { functions });
      assert.deepEqual(seen, [
        [['a'], undefined],
        [['a'], undefined],
      ]);
    });

    test('answers larger than the channel holds arrive whole, also beside small ones and while nobody reads', async () => {
      const functions = { text: ({ id, bytes }) => String.fromCharCode(97 + (id % 26)).repeat(bytes) };
      const code = `async (a, { host }) => {
        const sizes = [...Array(40)].map((_, id) => (id % 4 === 0 ? 700_000 : id));
        const answers = sizes.map((bytes, id) => host.text({ id, bytes }));
        await new Promise((done) => setTimeout(done, 10));
        const busyUntil = Date.now() + 200;
        while (Date.now() < busyUntil);
        const texts = await Promise.all(answers);
        return texts.every((text, id) => text === String.fromCharCode(97 + (id % 26)).repeat(sizes[id]));
      }`;
      assert.equal(await call(code, { functions }), true);
    });

    test('answers of one turn and of later ones reach those who wait for them', async () => {
      const later = (n) => new Promise((resolve) => setTimeout(resolve, n % 3, n));
      const functions = { now: (n) => n, later, bad: (n) => Promise.reject(new Error(`no ${n}`)) };
      const code = `async (a, { host }) => {
        const of = (n) => [host.now(n), host.later(n), host.bad(n).catch((e) => e.message)];
        const all = await Promise.all([...Array(20)].map((_, n) => Promise.all(of(n))));
        return all.every(([now, later, bad], n) => now === n && later === n && bad === 'no ' + n);
      }`;
      assert.equal(await call(code, { functions }), true);
    });

    test('a thousand round trips are answered in order', async () => {
      const code =
        'async (a, { host }) => { let n = 0; for (let i = 0; i < 1000; i++) n = await host.inc(n); return n; }';
      assert.equal(await call(code, { functions: { inc: (n) => n + 1 } }), 1000);
    });
  });
}

test('when no call talks with its host any more, the host is not watched any more', {
  ...LIMIT,
  skip: Number.parseInt(process.versions.node, 10) >= 24 && 'costs nothing there',
}, async () => {
  const { outerCall } = createRequire(import.meta.url)('../lib/talk.js');
  const factory = new (surface().SandboxExecutorFactory)();
  let end;
  const ended = new Promise((resolve) => {
    end = resolve;
  });
  const seen = [];
  let late;
  const one = (functions) =>
    factory.executeFunctionTool('talk', {}, tool('async (a, { host }) => host.one()'), { functions });
  const inner = () => one({ one: () => void seen.push(outerCall()) });
  const outer = async () => {
    late = ended.then(() => outerCall());
    seen.push(outerCall());
    await inner();
    seen.push(outerCall());
  };
  await one({ one: outer });
  end();
  assert.equal(seen.length, 3);
  assert.notEqual(seen[0], undefined);
  assert.notEqual(seen[1], seen[0], 'the inner call has its own');
  assert.equal(seen[2], seen[0], 'the end of the inner one leaves the outer one alone');
  assert.equal(await late, undefined);
  await one({ one: () => void seen.push(outerCall()) });
  assert.notEqual(seen[3], undefined, 'and the next one is known again');
  await factory.cleanup();
});

describe('what is wrong with the options of a call', LIMIT, () => {
  const call = (options, sandbox) =>
    surface()
      .SandboxExecutorFactory.getInstance()
      .executeFunctionTool('talk', {}, tool('async () => 1', { sandbox }), options);

  for (const [options, message] of [
    [{ functions: [] }, /functions must be an object/],
    [{ functions: { 'a b': () => 1 } }, /a name is made of letters/],
    [{ functions: { constructor: () => 1 } }, /constructor cannot be the name/],
    [{ functions: { 'a.__proto__.b': () => 1 } }, /__proto__ cannot be the name/],
    [{ functions: { a: () => 1, 'a.b': () => 1 } }, /"a" is a function and cannot be the object of "a\.b" too/],
    [{ functions: { a: 5 } }, /functions\["a"\] must be a function, got 5/],
    [
      { functions: { a: () => 1 }, functionLimits: { pending: 0 } },
      /functionLimits\.pending must be a whole number from 1 to 1024/,
    ],
    [{ functionLimits: { pendings: 1 } }, /functionLimits has no "pendings"/],
    [{ onProgress: 5 }, /onProgress must be a function/],
    [{ onYield: {} }, /onYield must be a function/],
    [{ env: 'A=1' }, /env must be an object/],
    [{ env: { A: 1 } }, /env\["A"\] must be a string, got number/],
    [{ env: { 'A=B': '1' } }, /has no "="/],
    [{ env: { TMPDIR: '/x' } }, /the temp folder of the call/],
    [{ env: { A: 'x'.repeat(300_000) } }, /at most 262144/],
    [{ limits: { memoryMb: 1e6 } }, /limits\.memoryMb must be a whole number from 16 to 1024/],
    [{ limits: { memoryMb: Number.POSITIVE_INFINITY } }, /limits\.memoryMb must be a finite number/],
    [{ limits: { memory: 5 } }, /unknown field `memory`/],
    [{ limits: 5 }, /limits must be an object/],
  ]) {
    test(`${message}`, async () => {
      const error = await rejection(call(options));
      assert.equal(error.code, 'INVALID_CONFIG');
      assert.equal(error.phase, 'validate');
      assert.match(error.message, message);
    });
  }

  test('a provider that cannot give it refuses it by name, before anything is spent', async () => {
    for (const options of [
      { functions: { a: () => 1 } },
      { onProgress() {} },
      { onYield() {} },
      { limits: { diskMb: 1 } },
    ]) {
      const error = await rejection(call(options, { provider: 'talk-folders' }));
      assert.equal(error.code, 'INVALID_CONFIG');
      assert.match(error.message, /cannot be had where the provider "talk-folders" runs a function/);
    }
  });
});

test('a secret of a call is in no text that is kept of it', LIMIT, async () => {
  const secret = 'correct-horse-battery';
  const logged = [];
  const take = (fields, message) => logged.push(JSON.stringify([fields, message]));
  surface().setLogger({ debug: take, info: take, warn: take, error: take });
  try {
    const code =
      'async () => { console.log(process.env.TALK_SECRET); console.error("x", process.env.TALK_SECRET); throw Object.assign(new Error("got " + process.env.TALK_SECRET), { field: process.env.TALK_SECRET }); }';
    const factory = new (surface().SandboxExecutorFactory)();
    const error = await rejection(
      factory.executeFunctionTool('secret', {}, tool(code), { env: { TALK_SECRET: secret } })
    );
    // It waits until the records of the call are written.
    await factory.cleanup();
    assert.match(error.message, /got \[redacted\]/);
    assert.match(error.stderr, /x \[redacted\]/);
    const kept = `${error.stack}${error.stdout}${error.stderr}${JSON.stringify(error)}${JSON.stringify(error.cause)}${logged.join()}`;
    assert.ok(!kept.includes(secret), kept);
  } finally {
    surface().setLogger(undefined);
  }
});
