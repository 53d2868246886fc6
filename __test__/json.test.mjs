// Arguments and results mean in the function, and at the caller, what JSON says, no more and no less.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const LARGE_CHARS = 5 * 1024 * 1024;
const DEEP_LEVELS = 3000;

function nested(levels) {
  let value = 0;
  for (let level = 0; level < levels; level++) value = [value];
  return value;
}

/** Values that have to come back as they went, byte for byte of their JSON. */
const SAME = {
  'a key __proto__': JSON.parse('{"__proto__":{"x":1},"a":{"__proto__":5},"constructor":{"prototype":1},"toString":2}'),
  'lone surrogates': { text: '\ud800x\udc00', '\udfffkey': '\ud83d' },
  'control characters and line ends': { text: '\0\b\u2028\u2029\ufeff\u007f"\\' },
  'empty keys': { '': 1, ' ': { '': [] } },
  'the order of keys': { b: 1, a: 2, 10: 3, 2: 4 },
  'numbers at the borders': [5e-324, 1.7976931348623157e308, 2 ** 53 + 2, 0.1 + 0.2, 1e21, -1e-7],
  'large integers in text': { id: '9007199254740993', more: '-123456789012345678901234567890' },
  'empty things': [[], {}, '', null, [null], false],
  'deep nesting': { deep: nested(DEEP_LEVELS) },
};

for (const rung of RUNGS) {
  test(`JSON on the rung ${rung}`, { timeout: 120_000 }, async (t) => {
    const factory = new (surface().SandboxExecutorFactory)({ start: rung, maxOutputBytes: 64 * 1024 * 1024 });
    const call = (code, args) => factory.executeFunctionTool('t', args, tool(code));

    for (const [what, value] of Object.entries(SAME)) {
      await t.test(`${what} come back as they went`, async () => {
        const args = { value };
        assert.equal(JSON.stringify(await call('(args) => args', args)), JSON.stringify(args));
        assert.equal(await call('(args) => JSON.stringify(args)', args), JSON.stringify(args));
      });
    }

    await t.test('a key __proto__ is a key, on both sides', async () => {
      const value = JSON.parse('{"__proto__":{"x":1}}');
      const look = (it) => [
        Object.getOwnPropertyNames(it),
        Object.getPrototypeOf(it) === Object.prototype,
        it.x ?? null,
      ];
      assert.deepEqual(await call(`(args) => (${look})(args)`, value), [['__proto__'], true, null]);
      assert.deepEqual(look(await call('(args) => args', value)), [['__proto__'], true, null]);
    });

    await t.test('5 MB go in and come back', async () => {
      const text = 'é'.repeat(LARGE_CHARS);
      assert.equal((await call('({ text }) => ({ text })', { text })).text === text, true);
    });

    await t.test('what JSON has no word for is as JSON.stringify makes it, in both directions', async () => {
      const odd = () => ({
        u: undefined,
        z: -0,
        n: Number.NaN,
        i: Number.POSITIVE_INFINITY,
        d: new Date(0),
        f() {},
        s: Symbol('s'),
        m: new Map([[1, 2]]),
        j: { toJSON: () => 7 },
        a: [undefined, () => 1],
      });
      const expected = JSON.stringify(odd());
      assert.equal(JSON.stringify(await call(`() => (${odd})()`, {})), expected);
      assert.equal(await call('(args) => JSON.stringify(args)', odd()), expected);
      assert.equal(Object.is(await call('() => -0', {}), 0), true);
    });

    await t.test('-0 in a text is -0', { skip: !JSON.rawJSON && 'this Node writes no -0' }, async () => {
      assert.equal(await call('({ z }) => Object.is(z, -0)', { z: JSON.rawJSON('-0') }), true);
      assert.equal(Object.is((await call(`() => ({ z: JSON.rawJSON('-0') })`, {})).z, -0), true);
    });

    await t.test('a BigInt is an error that says so', async () => {
      assert.equal((await rejection(call('() => 5n', {}))).code, 'RESULT_NOT_SERIALIZABLE');
      assert.equal((await rejection(call('() => 5', { a: 5n }))).code, 'INVALID_CONFIG');
    });

    await t.test('a function that changes JSON changes nothing about its result', async () => {
      const code = `() => { JSON.stringify = () => '"forged"'; JSON.parse = () => 0; String.prototype.toJSON = undefined; return { a: [1, 'b'] }; }`;
      assert.deepEqual(await call(code, {}), { a: [1, 'b'] });
    });

    await t.test('no arguments and no result', async () => {
      assert.deepEqual(await call('(...args) => args', null), [null]);
      assert.equal(await call('() => undefined', {}), undefined);
      assert.equal(await call('() => null', {}), null);
    });

    await factory.cleanup();
  });
}
