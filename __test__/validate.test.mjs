// `validate`: arguments against `inputSchema`, before anything is spent.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { ownWorld, rejection, surface, tool } from './helpers.mjs';

const LIMIT = { timeout: 120_000 };
const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string', minLength: 2 }, days: { type: 'array', items: { type: 'integer' } } },
  required: ['city'],
  additionalProperties: false,
};
const GOOD = { city: 'Bern', days: [1] };
const BAD = { days: ['x-secret-x'] };

before(() => {
  ownWorld();
  surface().registerProvider('validate-folders', {
    ...localFolders,
    create: () => assert.fail('a sandbox was made for a call that cannot run'),
  });
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

describe('validate', LIMIT, () => {
  const factoryOf = (options) => new (surface().SandboxExecutorFactory)({ start: 'spawn', ...options });
  const checked = (schema, over) => ({ ...tool('(a) => a'), inputSchema: schema, ...over });
  const fails = (promise, code) =>
    rejection(promise).then((error) => {
      assert.equal(error.code, code, error.message);
      assert.equal(error.phase, 'validate');
      return error;
    });

  test('is off where nobody asks, and a call wins over its executor', async () => {
    const off = factoryOf({});
    assert.deepEqual(await off.executeFunctionTool('t', BAD, checked(SCHEMA)), BAD);
    assert.deepEqual(await off.executeFunctionTool('t', GOOD, checked(SCHEMA), { validate: true }), GOOD);
    await fails(off.executeFunctionTool('t', BAD, checked(SCHEMA), { validate: true }), 'INVALID_ARGUMENTS');
    const on = factoryOf({ validate: true });
    await fails(on.executeFunctionTool('t', BAD, checked(SCHEMA)), 'INVALID_ARGUMENTS');
    assert.deepEqual(await on.executeFunctionTool('t', BAD, checked(SCHEMA), { validate: false }), BAD);
    assert.deepEqual(await on.executeFunctionTool('t', GOOD, checked(SCHEMA), { limits: { memoryMb: 64 } }), GOOD);
    await Promise.all([off.cleanup(), on.cleanup()]);
  });

  test('the error has the pointers and what was expected, and no value', async () => {
    const factory = factoryOf({ validate: true });
    const error = await fails(factory.executeFunctionTool('t', BAD, checked(SCHEMA)), 'INVALID_ARGUMENTS');
    assert.match(error.message, /at "\/days\/0": value is not of type "integer"/);
    assert.match(error.message, /at "": "city" is a required property/);
    assert.doesNotMatch(error.message, /x-secret-x/);
    const none = await fails(factory.executeFunctionTool('t', undefined, checked(SCHEMA)), 'INVALID_ARGUMENTS');
    assert.match(none.message, /no arguments/);
    await factory.cleanup();
  });

  test('nothing is spent: no permit is waited for, nothing is installed, no process is made', async () => {
    const factory = factoryOf({ validate: true, queueWaitMs: 60_000 });
    const slow = checked({}, { executeCode: '(a) => new Promise((resolve) => setTimeout(resolve, a.ms))' });
    const config = { ...slow.sandboxConfig, vcpus: 1 };
    const holding = factory.executeFunctionTool('t', { ms: 1500 }, { ...slow, sandboxConfig: config });
    const { counters: before } = surface().NativeSandboxExecutor.getInstance().getMetrics();
    const bad = { ...checked(SCHEMA, { dependencies: { 'no-such-package-at-all': '1.0.0' } }), sandboxConfig: config };
    let isOver = false;
    holding.then(() => {
      isOver = true;
    });
    await fails(factory.executeFunctionTool('t', BAD, bad), 'INVALID_ARGUMENTS');
    assert.equal(isOver, false, 'it waited for the permit of another call');
    const { counters: after } = surface().NativeSandboxExecutor.getInstance().getMetrics();
    assert.equal(after.installs ?? 0, before.installs ?? 0);
    await holding;
    await factory.cleanup();
  });

  test('a schema that cannot be used is INVALID_CONFIG and says where', async () => {
    const factory = factoryOf({ validate: true });
    const circle = {};
    circle.self = circle;
    for (const [schema, part] of [
      [undefined, /has none/],
      [null, /has none/],
      [() => 1, /a function/],
      [circle, /cannot be written as JSON/],
      [{ properties: { a: { type: 'text' } } }, /"\/properties\/a\/type"/],
      [{ $ref: 'https://schemas.example/x.json' }, /https:\/\/schemas\.example\/x\.json/],
      [{ $ref: 'file:///etc/passwd' }, /file:\/\/\/etc\/passwd/],
      [{ $ref: '#' }, /never ends/],
      [{ properties: { a: { pattern: '(?=a)b' } } }, /pattern/],
      [{ $schema: 'https://schemas.example/own' }, /\$schema/],
    ]) {
      const error = await fails(factory.executeFunctionTool('t', { a: 1 }, checked(schema)), 'INVALID_CONFIG');
      assert.match(error.message, part);
    }
    for (const validate of ['yes', 1, {}]) {
      await fails(factory.executeFunctionTool('t', {}, checked({}), { validate }), 'INVALID_CONFIG');
    }
    const odd = factoryOf({ validate: 'yes' });
    const error = await fails(odd.executeFunctionTool('t', {}, checked({})), 'INVALID_CONFIG');
    assert.match(error.message, /AGENTS_FUNCTION_TOOL_SANDBOX_VALIDATE/);
    await factory.cleanup();
  });

  test('a hostile schema does not stop the event loop', async () => {
    const factory = factoryOf({ validate: true });
    const twice = { anyOf: [{ $ref: '#' }, { $ref: '#' }] };
    let deep = {};
    for (let level = 0; level < 100; level++) deep = { a: deep };
    let turns = 0;
    const ticking = setInterval(() => turns++, 1);
    const calls = [
      fails(
        factory.executeFunctionTool('t', deep, checked({ properties: { a: twice }, maxProperties: 0 })),
        'INVALID_CONFIG'
      ),
      fails(
        factory.executeFunctionTool(
          't',
          { a: `${'a'.repeat(200_000)}b` },
          checked({ properties: { a: { pattern: '^(a+)+$' } } })
        ),
        'INVALID_ARGUMENTS'
      ),
    ];
    await Promise.all(calls);
    clearInterval(ticking);
    await factory.cleanup();
    assert.ok(turns > 0, `${turns}`);
  });

  test('the variable sets it, and a provider checks on this machine, before there is a sandbox', async () => {
    const config = { ...checked(SCHEMA), sandboxConfig: { provider: 'validate-folders', runtime: 'node22' } };
    const factory = factoryOf({ validate: true });
    await fails(factory.executeFunctionTool('t', BAD, config), 'INVALID_ARGUMENTS');
    await fails(factory.executeFunctionTool('t', {}, { ...config, inputSchema: { type: 1 } }), 'INVALID_CONFIG');
    process.env.AGENTS_FUNCTION_TOOL_SANDBOX_VALIDATE = 'true';
    try {
      const by = factoryOf({});
      await fails(by.executeFunctionTool('t', BAD, checked(SCHEMA)), 'INVALID_ARGUMENTS');
      await by.cleanup();
    } finally {
      delete process.env.AGENTS_FUNCTION_TOOL_SANDBOX_VALIDATE;
    }
    await factory.cleanup();
  });
});
