// A function that misuses what it may say to its host harms its own call: the host's memory and loop, and calls beside it, do not notice.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { ownWorld, rejection, surface, tool } from './helpers.mjs';

const LIMIT = { timeout: 240_000 };
const ROUND_TRIPS = 2000;
const MIB = 2 ** 20;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');

describe('a conversation', LIMIT, () => {
  let factory;
  before(() => {
    ownWorld();
    factory = new (surface().SandboxExecutorFactory)();
  });
  after(() => factory.cleanup());

  const call = (code, options, sandbox) => factory.executeFunctionTool('soak', {}, tool(code, { sandbox }), options);
  const heap = () => {
    collect();
    return process.memoryUsage().heapUsed;
  };

  test(`of ${ROUND_TRIPS} round trips is answered in order and leaves nothing in the host`, async () => {
    const code = `async (a, { host }) => { let n = 0; for (let i = 0; i < ${ROUND_TRIPS}; i++) n = (await host.next({ n, pad: 'x'.repeat(1000) })).n; return n; }`;
    const options = {
      functions: { next: ({ n, pad }) => ({ n: n + 1, pad }) },
      functionLimits: { calls: ROUND_TRIPS },
    };
    assert.equal(await call(code, options), ROUND_TRIPS);
    const before = heap();
    for (let times = 0; times < 2; times++) assert.equal(await call(code, options), ROUND_TRIPS);
    // The texts of one conversation have 4 MB.
    assert.ok(heap() - before < 2 * MIB, `${heap() - before} bytes more`);
  });

  test('of a hostile function ends by itself, while another goes on', async () => {
    const called = { one: 0, late: 0 };
    const functions = {
      one: () => {
        called.one += 1;
        return called.one;
      },
      big: () => 'x'.repeat(MIB - 2),
      late: () => {
        called.late += 1;
      },
    };
    const good = call(
      'async (a, { host }) => { let n = 0; for (let i = 0; i < 300; i++) n = await host.next(n); return n; }',
      { functions: { next: (n) => n + 1 } }
    );
    const before = process.memoryUsage().rss;
    const frame = (type, text) =>
      `const b = Buffer.from(${JSON.stringify(text)}); const h = Buffer.alloc(5); h.writeUInt32LE(b.length); h[4] = ${type}; try { require('node:fs').writeSync(3, Buffer.concat([h, b])); } catch {}`;
    const stays = 'return new Promise((done) => setTimeout(done, 20_000));';
    const short = { timeout: 4000 };
    const hostile = [
      // Floods, and waits for nothing.
      [`(a, { host }) => { for (let i = 0; i < 100_000; i++) host.one(i).catch(() => {}); ${stays} }`, ['TOOL_ERROR']],
      // Has as much answered as it may, and reads none of it.
      ['(a, { host }) => { for (let i = 0; i < 64; i++) host.big().catch(() => {}); for (;;); }', ['TIMEOUT'], short],
      // Sends what only its host sends, and answers to calls that it has not made.
      ...[16, 27, 28, 32, 33, 34, 255].map((type) => [
        `(a, { host }) => { ${frame(type, '{"id":1,"ok":true,"value":1}')} ${stays} }`,
        ['TOOL_ERROR', 'TIMEOUT', 'EXITED', 'KILLED', 'OUTCOME_UNKNOWN', 'RESULT_NOT_SERIALIZABLE'],
        short,
      ]),
    ];
    const ends = hostile.map(async ([code, codes, sandbox]) => {
      const error = await rejection(call(code, { functions }, sandbox));
      assert.ok(codes.includes(error.code), `${error.code} of ${code}: ${error.message}`);
    });
    await Promise.all(ends);
    assert.equal(await good, 300);
    assert.ok(called.one <= 1000, `${called.one} calls were let through`);
    // 64 answers of a MiB, once as text and once as bytes, and what the collector has not looked at.
    assert.ok(process.memoryUsage().rss - before < 400 * MIB, `${(process.memoryUsage().rss - before) / MIB} MiB more`);
  });

  test('is over with the result: calls after it are not heard', async () => {
    let late = 0;
    const functions = {
      late: () => {
        late += 1;
      },
    };
    const code = `(a, { host }) => { const again = () => { host.late().catch(() => {}); setImmediate(again); }; setImmediate(() => setImmediate(again)); return 'first'; }`;
    assert.equal(await call(code, { functions }), 'first');
    const heard = late;
    await factory.cleanup();
    assert.equal(late, heard, 'it was heard after its result');
  });

  test('drops old news of progress where the host is late, and keeps the order and the last', async () => {
    const got = [];
    const code = `async (a, { host, progress }) => { await host.busy(); for (let i = 0; i < 5000; i++) progress(i);
      await new Promise((done) => setTimeout(done, 1000)); return 1; }`;
    const functions = {
      // From the next turn on the loop of the host stands still.
      busy: () => void setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 800)),
    };
    assert.equal(await call(code, { functions, onProgress: (done) => got.push(done) }), 1);
    assert.equal(got.at(-1), 4999);
    assert.deepEqual(
      got,
      [...got].sort((one, other) => one - other)
    );
    assert.ok(got.length < 5000, `${got.length} of 5000`);
  });

  test('a generator waits where the host is late', async () => {
    let made = 0;
    let atFirst;
    const code = `async function* count(a, { host }) { for (let i = 0; i < 100; i++) { host.made().catch(() => {}); yield i; } }`;
    const got = [];
    const onYield = async (value) => {
      if (got.length === 0) {
        await new Promise((done) => setTimeout(done, 700));
        atFirst = made;
      }
      got.push(value);
    };
    const functions = {
      made: () => {
        made += 1;
      },
    };
    await call(code, { functions, onYield });
    assert.equal(got.length, 100);
    assert.ok(atFirst <= 20, `${atFirst} values were made before one was taken`);
  });

  test('of calls within calls ends at a depth that the error names', async () => {
    const nested = (level) => ({
      deeper: () =>
        factory.executeFunctionTool(`level-${level}`, {}, tool('async (a, { host }) => host.deeper()'), {
          functions: nested(level + 1),
        }),
    });
    const error = await rejection(call('async (a, { host }) => host.deeper()', { functions: nested(1) }, { vcpus: 1 }));
    assert.match(error.message, /nest too deep: .*8 times, which is the limit/);
  });

  test('that the function answers itself deceives nobody else', async () => {
    const code = `async (a, { host }) => { const { then } = Promise.prototype; JSON.parse = () => 'forged'; return [typeof (await host.one()), 1]; }`;
    const options = { functions: { one: () => ({ right: true }) } };
    await call(code, options).catch(() => {});
    assert.deepEqual(await call('async (a, { host }) => host.one()', options), { right: true });
  });
});
