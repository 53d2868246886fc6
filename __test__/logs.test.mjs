// What the host's log says about a call: the original's names, messages and keys.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, rejection, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const records = [];
let registry;

before(async () => {
  ownWorld();
  registry = await useRegistry({ 'log-dep': { '1.0.0': { 'index.js': 'module.exports = 1' } } });
  const at = (name, level) => (fields, message) => records.push({ name, level, fields, message });
  surface().setLogger((name) => ({
    debug: at(name, 'debug'),
    info: at(name, 'info'),
    warn: at(name, 'warn'),
    error: at(name, 'error'),
  }));
});

after(async () => {
  surface().setLogger(null);
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** The first record with this message; records of the core arrive after the call's promise. */
function record(message) {
  return until(() => records.find((one) => one.message === message), 5000, `a record "${message}"`);
}

const CORE = 'native-sandbox-executor';
const dependencies = { 'log-dep': '1.0.0' };

test('a first call, cold', { timeout: 60_000 }, async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  const config = tool('() => require("log-dep")', {
    dependencies,
    sandbox: { timeout: 5000, token: 'tok-secret-123' },
  });
  assert.equal(await factory.executeFunctionTool('the-tool', {}, config), 1);

  const expected = [
    ['SandboxExecutorFactory', 'info', 'SandboxExecutorFactory initialized', []],
    ['SandboxExecutorFactory', 'info', 'Native sandbox executor created', []],
    [CORE, 'debug', 'Creating new execution semaphore', ['vcpus']],
    [
      CORE,
      'debug',
      'Acquiring execution slot for function tool',
      ['toolId', 'vcpus', 'availablePermits', 'queueLength', 'sandboxConfig', 'poolSize'],
    ],
    [
      CORE,
      'debug',
      'Executing function tool',
      ['toolId', 'dependencies', 'dependencyHash', 'sandboxConfig', 'poolSize'],
    ],
    [CORE, 'debug', 'Creating new sandbox', ['toolId', 'dependencyHash', 'sandboxDir', 'dependencies']],
    [CORE, 'debug', 'Dependencies installed successfully', ['sandboxDir']],
    [CORE, 'debug', 'Added sandbox to pool', ['poolKey', 'sandboxDir']],
  ];
  for (const [name, level, message, keys] of expected) {
    const found = await record(message);
    assert.deepEqual([found.name, found.level], [name, level], message);
    for (const key of keys)
      assert.ok(Object.hasOwn(found.fields, key), `"${message}" lacks ${key}: ${JSON.stringify(found.fields)}`);
  }
  const order = expected.map(([, , message]) => records.findIndex((one) => one.message === message));
  assert.deepEqual(
    order,
    [...order].sort((a, b) => a - b),
    'the order of a cold call'
  );

  const executing = await record('Executing function tool');
  assert.equal(executing.fields.toolId, 'the-tool');
  assert.deepEqual(executing.fields.dependencies, dependencies);
  // sha256('log-dep@1.0.0'), first 16 digits.
  const { createHash } = await import('node:crypto');
  assert.equal(
    executing.fields.dependencyHash,
    createHash('sha256').update('log-dep@1.0.0').digest('hex').slice(0, 16)
  );
});

test('a second call reuses the sandbox', async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  await factory.executeFunctionTool('the-tool', {}, tool('() => require("log-dep")', { dependencies }));
  const { name, level, fields } = await record('Reusing cached sandbox');
  assert.deepEqual([name, level], [CORE, 'debug']);
  for (const key of ['poolKey', 'useCount', 'sandboxDir', 'lastUsed']) assert.ok(Object.hasOwn(fields, key), key);
  assert.ok(fields.useCount >= 2);
});

test('a timeout and a failure', async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  await rejection(factory.executeFunctionTool('t', {}, tool('() => { for (;;); }', { sandbox: { timeout: 500 } })));
  const late = await record('Function execution timed out, killing process');
  assert.equal(late.level, 'warn');
  assert.equal(late.fields.timeout, 500);
  assert.ok(Object.hasOwn(late.fields, 'sandboxDir'));

  await rejection(
    factory.executeFunctionTool('t', {}, tool('() => { console.error("the reason"); process.exit(4); }'))
  );
  const failed = await until(
    () => records.find((one) => one.message === 'Function execution failed' && one.fields.exitCode === 4),
    5000,
    'the failure'
  );
  assert.equal(failed.level, 'error');
  for (const key of ['code', 'signal', 'stderr']) assert.ok(Object.hasOwn(failed.fields, key), key);
  assert.equal(failed.fields.code, 'EXITED');
  assert.match(failed.fields.stderr, /the reason/);
});

test('a failed installation', { timeout: 60_000 }, async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  const config = tool('() => 1', { dependencies: { 'log-absent': '1.0.0' } });
  const error = await rejection(factory.executeFunctionTool('t', {}, config));
  assert.match(error.message, /^npm install failed with code \d+: /);
  const { level, fields } = await record('Failed to install dependencies');
  assert.equal(level, 'error');
  for (const key of ['sandboxDir', 'code', 'stderr']) assert.ok(Object.hasOwn(fields, key), key);
});

test('what a tool prints is logged at debug with its id, and at warn when it fails', async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  await factory.executeFunctionTool('chatty', {}, tool('() => { console.log("said-in-passing"); }'));
  const said = await until(
    () => records.find((one) => JSON.stringify(one.fields).includes('said-in-passing')),
    5000,
    'the output'
  );
  assert.deepEqual([said.name, said.level, said.fields.toolId], [CORE, 'debug', 'chatty']);

  await rejection(
    factory.executeFunctionTool('failing', {}, tool('() => { console.log("last-words"); throw new Error("x"); }'))
  );
  await until(
    () => records.find((one) => one.level === 'warn' && JSON.stringify(one.fields).includes('last-words')),
    5000,
    'the tail of the output at warn'
  );
});

test('credentials of the configuration are in no record', () => {
  assert.ok(records.length > 0);
  assert.ok(!JSON.stringify(records).includes('tok-secret-123'));
});

test('a logger that takes only errors gets nothing else', async () => {
  const taken = [];
  const at = (level) => () => taken.push(level);
  surface().setLogger({ level: 'error', debug: at('debug'), info() {}, warn: at('warn'), error: at('error') });
  await rejection(new (surface().SandboxExecutorFactory)().executeFunctionTool('t', {}, tool('() => process.exit(9)')));
  await until(() => taken.length > 0, 5000, 'the error record');
  assert.deepEqual([...new Set(taken)], ['error']);
});

test('no record has control characters of a function', async () => {
  const from = records.length;
  const taken = [];
  const at = (fields, message) => taken.push(JSON.stringify([fields, message]));
  surface().setLogger({ debug: at, info: at, warn: at, error: at });
  const text = '\\u001b]0;owned\\u0007\\u009b2J\\u202eevil\\u2028';
  await rejection(
    new (surface().SandboxExecutorFactory)().executeFunctionTool(
      't\u001b[2J',
      {},
      tool(`() => { console.log("marked ${text}"); throw new Error("${text}") }`)
    )
  );
  await until(() => taken.some((one) => one.includes('marked')), 5000, 'the output');
  assert.equal(records.length, from);
  for (const one of taken) {
    // `JSON.stringify` shows C0 as `\u001b` where the text has the character, and as `\\u001b` where it has that text.
    assert.doesNotMatch(one, /(?<!\\)\\u00[01][0-9a-f]|[\x7f-\x9f\u2028-\u202e\u2066-\u2069]/);
  }
});

test('each failure has one record, with tool, code, phase and message, before its promise is rejected', {
  timeout: 60_000,
}, async () => {
  const { NativeSandboxExecutor, SandboxExecutorFactory, registerProvider } = surface();
  const taken = [];
  const at = (level) => (fields, message) => taken.push({ level, fields, message });
  surface().setLogger({ debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') });
  registerProvider('log-failing', {
    create: async () => {
      throw new Error('no room');
    },
  });
  const factory = new SandboxExecutorFactory();
  const fields = { sandboxConfig: { provider: 'log-failing', runtime: 'node22' } };
  for (const [name, code, phase, config, level = 'error', call] of [
    ['boom', 'TOOL_ERROR', 'run', tool('() => { throw new Error("boom"); }')],
    ['exits', 'EXITED', 'run', tool('() => process.exit(5)')],
    ['killed', 'KILLED', 'run', tool('() => { process.kill(process.pid, "SIGKILL"); for (;;); }')],
    ['slow', 'TIMEOUT', 'run', tool('() => { for (;;); }', { sandbox: { timeout: 400 } })],
    ['typo', 'INVALID_SOURCE', 'validate', tool('() => {')],
    ['climbs', 'INVALID_DEPENDENCY', 'validate', tool('() => 1', { dependencies: { '../up': '1' } })],
    ['absent', 'INSTALL_FAILED', 'install', tool('() => 1', { dependencies: { 'log-gone': '1.0.0' } })],
    ['circle', 'RESULT_NOT_SERIALIZABLE', 'result', tool('() => { const a = {}; a.a = a; return a; }')],
    ['nowhere', 'INVALID_CONFIG', 'validate', tool('() => 1', { sandbox: { provider: 'unheard-of' } })],
    ['elsewhere', 'START_FAILED', 'start', { ...tool('() => 1'), ...fields }],
    ['left', 'ABORTED', 'validate', tool('() => 1'), 'info', { signal: AbortSignal.abort() }],
  ]) {
    const error = await rejection(factory.executeFunctionTool(name, {}, config, call));
    // At once: it was written before the rejection.
    const own = taken.filter((one) => one.message === 'Function execution failed' && one.fields.toolId === name);
    assert.equal(own.length, 1, `${name}: ${JSON.stringify(own)}`);
    assert.deepEqual(
      [own[0].level, own[0].fields.code, own[0].fields.phase, own[0].fields.message],
      [level, code, phase, error.message],
      name
    );
  }
  const bad = new NativeSandboxExecutor({ timeoutMs: -1 });
  await rejection(bad.executeFunctionTool('set wrongly', {}, tool('() => 1')));
  assert.ok(taken.some(({ fields }) => fields.toolId === 'set wrongly' && fields.code === 'INVALID_CONFIG'));
  const ended = await until(
    () => taken.find(({ fields }) => fields.toolId === 'killed' && fields.signal === 'SIGKILL'),
    5000,
    'the signal'
  );
  assert.equal(ended.fields.exitCode, null);
  for (const { level, fields, message } of taken) {
    if ('code' in fields) assert.equal(typeof fields.code, 'string', message);
    if (level === 'error' && /^Fail|^Function/.test(message)) {
      for (const key of ['toolId', 'code', 'phase', 'message']) assert.ok(fields[key], `${message}: ${key}`);
    }
  }
});
