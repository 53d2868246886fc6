// The JavaScript side alone, over an addon that is played: what it hands over, and what it makes of the answers.

import assert from 'node:assert/strict';
import { createRequire, Module } from 'node:module';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { ROOT, SURFACE, tool } from './helpers.mjs';

const require = createRequire(import.meta.url);
const { version } = require('../package.json');
const load = Module._load;

/** What the played addon was told. */
let seen;
/** How it answers the next calls. */
let answer;
let addon;
let sandbox;

beforeEach(() => {
  seen = { executors: [], requests: [], aborts: [], sinks: [], cleanups: 0 };
  answer = () => ({ ok: true, value: '1' });
  addon = () => ({
    version: () => version,
    setLogSink: (level, sink) => seen.sinks.push({ level, sink }),
    isolationReport: async () => ({ ok: true, value: '{"tier":"base"}' }),
    Executor: class {
      constructor(optionsJson, envJson) {
        seen.executors.push({ options: JSON.parse(optionsJson), env: JSON.parse(envJson) });
      }
      async execute(callId, request, args, onEvent) {
        seen.requests.push({ callId, ...JSON.parse(request), args, onEvent });
        return answer(seen.requests.at(-1));
      }
      abort(callId, reason) {
        seen.aborts.push({ callId, reason });
      }
      async cleanup() {
        seen.cleanups += 1;
      }
      stats() {
        return [{ vcpus: '2', availablePermits: 1, queueLength: 3 }];
      }
      metrics() {
        return '{"pool":{"size":1}}';
      }
    },
  });
  Module._load = (request, ...rest) => (request.endsWith('binding.cjs') ? addon() : load(request, ...rest));
  for (const file of Object.keys(require.cache)) {
    if (file === SURFACE || file.startsWith(join(ROOT, 'lib'))) delete require.cache[file];
  }
  sandbox = require(SURFACE);
});

afterEach(() => {
  Module._load = load;
});

const execute = (code, args, over, call) =>
  sandbox.SandboxExecutorFactory.getInstance().executeFunctionTool('a-tool', args, tool(code, over), call);

async function rejection(promise) {
  const error = await promise.then(
    (value) => assert.fail(`resolved with ${JSON.stringify(value)}`),
    (error) => error
  );
  assert.ok(error instanceof sandbox.SandboxError, String(error?.stack));
  assert.ok(error.durationMs >= 0);
  return error;
}

test('importing, constructing and fetching load no addon', () => {
  Module._load = (request, ...rest) => {
    assert.ok(!request.endsWith('binding.cjs'), 'the addon was loaded');
    return load(request, ...rest);
  };
  new sandbox.SandboxExecutorFactory({ timeoutMs: 5 });
  new sandbox.NativeSandboxExecutor();
  sandbox.SandboxExecutorFactory.getForSession('s');
  sandbox.SandboxExecutorFactory.configure({ lingerMs: 1 });
  sandbox.setLogger(null);
});

test('a missing addon is the rejection of every call, with platform, packages and advice', async () => {
  addon = () => {
    throw new Error('Cannot find native binding.', { cause: new Error("Cannot find module 'x.node'") });
  };
  for (const _ of [1, 2]) {
    const error = await rejection(execute('() => 1'));
    assert.equal(error.code, 'ADDON_MISSING');
    assert.ok(error.message.includes(`${process.platform}-${process.arch}`), error.message);
    assert.match(error.message, /package native-sandbox-executor-/);
    assert.match(error.message, /npm run build/);
    assert.match(error.message, /Reason: Cannot find module 'x\.node'$/);
  }
  assert.equal((await rejection(sandbox.isolationReport())).code, 'ADDON_MISSING');
  assert.throws(() => new sandbox.NativeSandboxExecutor().getMetrics(), { code: 'ADDON_MISSING' });
  assert.deepEqual(new sandbox.NativeSandboxExecutor().getExecutionStats(), {});
  await sandbox.SandboxExecutorFactory.getInstance().cleanup();
});

test('under --permission the advice names the flags', async () => {
  addon = () => {
    throw Object.assign(new Error('Cannot load native addon'), { code: 'ERR_DLOPEN_DISABLED' });
  };
  assert.match((await rejection(execute('() => 1'))).message, /--allow-addons/);
});

test('an addon of another version is refused', async () => {
  const made = addon;
  addon = () => ({ ...made(), version: () => '9.9.9' });
  const error = await rejection(execute('() => 1'));
  assert.equal(error.code, 'ADDON_MISSING');
  assert.match(error.message, /9\.9\.9/);
});

test('a call is handed over as it was given', async () => {
  const dependencies = { b: '1', a: '^2' };
  await execute('() => "x"', { n: 1, when: new Date(0), gone: undefined }, { dependencies, sandbox: { vcpus: '2' } });
  const [{ callId, onEvent, sandboxConfig, ...request }] = seen.requests;
  assert.ok(callId > 0);
  assert.equal(onEvent, null);
  assert.equal(sandboxConfig.provider, 'native');
  assert.deepEqual(request, {
    toolId: 'a-tool',
    source: '() => "x"',
    dependencies,
    timeoutMs: 10_000,
    vcpus: 2,
    runtime: 'node22',
    wantsLogs: false,
    wantsSteps: false,
    wantsUsage: false,
    args: '{"n":1,"when":"1970-01-01T00:00:00.000Z"}',
  });
});

test('timeout and vcpus follow the original', async () => {
  const cases = [
    [{ timeout: undefined, vcpus: undefined }, null, 1],
    [{ timeout: 0, vcpus: 0 }, null, 1],
    [{ timeout: NaN, vcpus: NaN }, null, 1],
    [{ timeout: '700', vcpus: '3' }, 700, 3],
    [{ timeout: 2 ** 31 + 1000, vcpus: -3 }, 2 ** 31 + 1000, 1],
    [{ timeout: Infinity, vcpus: 0.5 }, Number.MAX_SAFE_INTEGER, 1],
    [{ timeout: 1.2, vcpus: 'many' }, 2, 1],
  ];
  for (const [given, timeoutMs, vcpus] of cases) {
    await execute('() => 1', {}, { sandbox: given });
    const request = seen.requests.at(-1);
    assert.deepEqual([request.timeoutMs, request.vcpus], [timeoutMs, vcpus], JSON.stringify(given));
  }
  for (const timeout of [-1, 'soon']) {
    const error = await rejection(execute('() => 1', {}, { sandbox: { timeout } }));
    assert.equal(error.code, 'INVALID_CONFIG');
    assert.match(error.message, /timeout/);
  }
});

test('half surrogate pairs in the source do not make the request unreadable', async () => {
  await execute('() => "\ud83d"', { keep: '\ud83d' });
  assert.equal(seen.requests[0].source, '() => "\ufffd"');
  assert.equal(seen.requests[0].args, '{"keep":"\\ud83d"}');
});

test('results are JSON text; none is undefined', async () => {
  for (const [value, expected] of [
    [null, undefined],
    ['null', null],
    ['""', ''],
    ['{"a":[1]}', { a: [1] }],
    ['"\\ud83d"', '\ud83d'],
  ]) {
    answer = () => ({ ok: true, value });
    assert.deepEqual(await execute('() => 1'), expected);
  }
  answer = () => ({ ok: true, value: '{oops' });
  const error = await rejection(execute('() => 1'));
  assert.deepEqual([error.code, error.phase], ['RESULT_NOT_SERIALIZABLE', 'result']);
});

test('whatever is wrong with a call is a rejection, and the core hears nothing of it', async () => {
  const factory = sandbox.SandboxExecutorFactory.getInstance();
  const circle = {};
  circle.self = circle;
  const hostile = new Proxy(
    {},
    {
      get() {
        throw new Error('no entry');
      },
    }
  );
  const cases = [
    [{}, undefined, /^Sandbox configuration is required for function tool execution$/],
    [{}, null, /^Sandbox configuration is required/],
    [{}, { ...tool('() => 1'), sandboxConfig: undefined }, /^Sandbox configuration is required/],
    [{}, tool('() => 1', { sandbox: { provider: 'moon' } }), /^Unknown sandbox provider: moon$/],
    [{}, tool('() => 1', { sandbox: { provider: undefined } }), /^Unknown sandbox provider: undefined$/],
    [{}, hostile, /no entry/],
    [{}, { ...tool(''), executeCode: undefined }, /executeCode must be .* got undefined/],
    [{}, { ...tool(''), executeCode: 42 }, /executeCode must be .* got number/],
    [circle, tool('() => 1'), /circular/i],
    [{ id: 10n }, tool('() => 1'), /BigInt/],
    [
      {
        toJSON() {
          throw new Error('not today');
        },
      },
      tool('() => 1'),
      /not today/,
    ],
    [{}, tool('() => 1', { sandbox: { extra: circle } }), /circular/i],
  ];
  for (const [args, config, text] of cases) {
    const error = await rejection(factory.executeFunctionTool('t', args, config));
    assert.equal(error.code, 'INVALID_CONFIG', error.message);
    assert.equal(error.phase, 'validate');
    assert.match(error.message, text);
  }
  for (const dependencies of [[], 'lodash', { lodash: 4 }, { lodash: null }]) {
    const error = await rejection(execute('() => 1', {}, { dependencies }));
    assert.equal(error.code, 'INVALID_DEPENDENCY', error.message);
  }
  for (const signal of [true, {}]) {
    assert.match((await rejection(execute('() => 1', {}, {}, { signal }))).message, /AbortSignal/);
  }
  assert.match((await rejection(factory.executeFunctionTool(Object.create(null), {}, tool('() => 1')))).message, /./);
  assert.equal(seen.requests.length, 0);
});

test('arguments and dependencies may be absent; the native executor needs no sandboxConfig', async () => {
  await execute('() => 1', undefined, { dependencies: null });
  await execute('() => 1', null, { dependencies: undefined });
  await sandbox.NativeSandboxExecutor.getInstance().executeFunctionTool('t', {}, { executeCode: '() => 1' });
  assert.deepEqual(
    seen.requests.map(({ args, dependencies }) => [args, dependencies]),
    [
      [null, {}],
      ['null', {}],
      ['{}', {}],
    ]
  );
});

test('a failed outcome is a SandboxError with every field and the frames of the caller', async () => {
  answer = () => ({
    ok: false,
    code: 'TOOL_ERROR',
    phase: 'run',
    message: 'Function execution failed with code 1: TypeError: no',
    durationMs: 12.5,
    stdout: 'out',
    stderr: null,
    causeJson: JSON.stringify({
      text: 'TypeError: no',
      name: 'TypeError',
      message: 'no',
      stack: 'TypeError: no\n    at tool.js:1:2',
      fields: { status: 404, ['__proto__']: 1 },
      cause: { text: 'Deep: down', name: 'Deep', message: 'down', cause: { text: '7' } },
    }),
  });
  async function theCaller() {
    return await execute('() => 1');
  }
  const error = await rejection(theCaller());
  const { code, phase, message, durationMs, stdout, cause } = error;
  assert.deepEqual([code, phase, durationMs, stdout], ['TOOL_ERROR', 'run', 12.5, 'out']);
  assert.equal(Object.hasOwn(error, 'stderr'), false);
  assert.equal(error.stack.split('\n')[0], `SandboxError: ${message}`);
  assert.match(error.stack, /theCaller/);
  assert.doesNotMatch(error.stack, /lib[\\/](factory|native-executor)\.js/);
  assert.ok(!(cause instanceof Error));
  assert.deepEqual([cause.name, cause.message, `${cause}`], ['TypeError', 'no', 'TypeError: no']);
  assert.equal(cause.stack, 'TypeError: no\n    at tool.js:1:2');
  assert.equal(cause.status, 404);
  assert.deepEqual([Object.hasOwn(cause, '__proto__'), cause.___proto__], [false, 1]);
  assert.equal(cause.cause.name, 'Deep');
  assert.equal(cause.cause.cause, '7');
});

test('a thrown plain value is the cause as it is', async () => {
  const failed = { ok: false, code: 'TOOL_ERROR', phase: 'run', message: 'm', durationMs: 1 };
  for (const [thrown, expected] of [
    [{ text: 'just text' }, 'just text'],
    [{ text: '{"a":1}', fields: { a: 1 } }, { a: 1 }],
  ]) {
    answer = () => ({ ...failed, causeJson: JSON.stringify(thrown) });
    assert.deepEqual((await rejection(execute('() => 1'))).cause, expected);
  }
});

test('an AggregateError keeps its errors', async () => {
  const thrown = {
    text: 'x',
    name: 'AggregateError',
    message: 'all',
    errors: [{ text: 'E: one', name: 'E', message: 'one' }, { text: '2' }],
  };
  answer = () => ({
    ok: false,
    code: 'TOOL_ERROR',
    phase: 'run',
    message: 'm',
    durationMs: 1,
    causeJson: JSON.stringify(thrown),
  });
  const { cause } = await rejection(execute('() => 1'));
  assert.deepEqual(
    [cause.name, cause.message, cause.errors[0].message, cause.errors[1]],
    ['AggregateError', 'all', 'one', '2']
  );
});

test('a core that breaks is OUTCOME_UNKNOWN', async () => {
  answer = () => {
    throw new Error('a panic');
  };
  const error = await rejection(execute('() => 1'));
  assert.equal(error.code, 'OUTCOME_UNKNOWN');
  assert.equal(error.cause.message, 'a panic');
});

test('signals: fired already, fired later, not fired', async () => {
  const early = await rejection(execute('() => 1', {}, {}, { signal: AbortSignal.abort() }));
  assert.deepEqual([early.code, early.message], ['ABORTED', 'Function execution aborted']);
  assert.equal(seen.requests.length, 0);

  const controller = new AbortController();
  const listeners = { added: 0, removed: 0 };
  const { signal } = controller;
  for (const [method, counter] of [
    ['addEventListener', 'added'],
    ['removeEventListener', 'removed'],
  ]) {
    const original = signal[method];
    signal[method] = (...args) => {
      listeners[counter] += 1;
      return original.apply(signal, args);
    };
  }
  assert.equal(await execute('() => 1', {}, {}, { signal }), 1);
  assert.deepEqual(listeners, { added: 1, removed: 1 });

  answer = () =>
    new Promise((done) => {
      const failed = {
        ok: false,
        code: 'ABORTED',
        phase: 'queue',
        message: 'Function execution aborted',
        durationMs: 3,
      };
      signal.onabort = () => done(failed);
    });
  const late = rejection(execute('() => 1', {}, {}, { signal }));
  const why = new Error('the user left');
  controller.abort(why);
  const error = await late;
  assert.deepEqual(
    [error.code, error.phase, error.message, error.cause.message, error.cause.stack],
    ['ABORTED', 'queue', 'Function execution aborted: the user left', why.message, why.stack]
  );
  assert.deepEqual(seen.aborts, [{ callId: seen.requests.at(-1).callId, reason: 'aborted' }]);
});

test('live output and usage reach their functions; what these throw reaches nobody', async () => {
  const chunks = [];
  const usages = [];
  answer = ({ onEvent, wantsLogs, wantsUsage }) => {
    assert.ok(wantsLogs && wantsUsage);
    onEvent([
      { kind: 'stdout', text: 'a' },
      { kind: 'stderr', text: 'b' },
    ]);
    onEvent([{ kind: 'usage', text: '{"cpuMs":5}' }]);
    return { ok: true, value: '1' };
  };
  const call = {
    onLogs(chunk) {
      chunks.push(chunk);
      throw new Error('host bug');
    },
    async onUsage(usage) {
      usages.push(usage);
      throw new Error('host bug');
    },
  };
  assert.equal(await execute('() => 1', {}, {}, call), 1);
  assert.deepEqual(chunks, [
    { stream: 'stdout', text: 'a' },
    { stream: 'stderr', text: 'b' },
  ]);
  // After the answer: the loop goes on first.
  await turn();
  assert.deepEqual(usages, [{ cpuMs: 5 }]);
});

test('options: own over configured; the environment is read at first use', async () => {
  sandbox.SandboxExecutorFactory.configure({ lingerMs: 1 });
  sandbox.SandboxExecutorFactory.configure({ lingerMs: 2, timeoutMs: 3 });
  const factory = new sandbox.SandboxExecutorFactory({ timeoutMs: 4, memoryMb: undefined });
  process.env.NSE_LATE_VARIABLE = 'late';
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await execute('() => 1');
  assert.deepEqual(
    seen.executors.map(({ options }) => options),
    [
      { lingerMs: 2, timeoutMs: 4 },
      { lingerMs: 2, timeoutMs: 3 },
    ]
  );
  assert.equal(seen.executors[0].env.NSE_LATE_VARIABLE, 'late');
  delete process.env.NSE_LATE_VARIABLE;
  assert.throws(() => sandbox.SandboxExecutorFactory.configure({}), { name: 'SandboxError', code: 'INVALID_CONFIG' });
});

test('options that JSON would lose are named', async () => {
  for (const [options, text] of [
    [{ lingerMs: NaN }, /option lingerMs must be a finite number, got NaN/],
    [{ dependencies: { minReleaseAgeDays: Infinity } }, /option dependencies\.minReleaseAgeDays/],
    [{ env: () => [] }, /option env must be a plain value/],
    [{ storeMaxBytes: 2n }, /option storeMaxBytes/],
    ['fast', /options given to the constructor must be an object/],
  ]) {
    const factory = new sandbox.SandboxExecutorFactory(options);
    const error = await rejection(factory.executeFunctionTool('t', {}, tool('() => 1')));
    assert.equal(error.code, 'INVALID_CONFIG');
    assert.match(error.message, text);
  }
});

test('a host that is not Node, or an old one, is told which option it needs', async () => {
  const { versions } = process;
  const as = (over) =>
    Object.defineProperty(process, 'versions', { value: { ...versions, ...over }, configurable: true });
  try {
    for (const [over, name] of [
      [{ bun: '1.4.5' }, 'Bun'],
      [{ deno: '2.9.6' }, 'Deno'],
      [{ node: '20.9.0' }, 'Node 20.9.0'],
      [{ node: '18.20.4' }, 'Node 18.20.4'],
      [{ electron: '40.0.0' }, 'Electron'],
    ]) {
      as(over);
      const error = await rejection(execute('() => 1'));
      assert.equal(error.code, 'INVALID_CONFIG');
      assert.match(error.message, new RegExp(`^this host is ${name}, .*20\\.17 or newer.*nodePath.*_NODE_PATH`));
      assert.doesNotMatch(error.message, /\n/);
    }
    const factory = new sandbox.SandboxExecutorFactory({ nodePath: '/usr/bin/node' });
    assert.equal(await factory.executeFunctionTool('t', {}, tool('() => 1')), 1);
  } finally {
    Object.defineProperty(process, 'versions', { value: versions, configurable: true });
  }
});

test('sessions are their own factories until they are cleaned up', async () => {
  const { SandboxExecutorFactory: Factory } = sandbox;
  const first = Factory.getForSession('one');
  assert.equal(Factory.getForSession('one'), first);
  assert.notEqual(Factory.getForSession('two'), first);
  assert.notEqual(Factory.getInstance(), first);
  await first.executeFunctionTool('t', {}, tool('() => 1'));
  const closing = Factory.cleanupSession('one');
  assert.notEqual(Factory.getForSession('one'), first);
  await closing;
  await Factory.cleanupSession('never opened');
  assert.equal(seen.cleanups, 1);
});

test('cleanup() may be repeated, and the factory works afterwards', async () => {
  const factory = new sandbox.SandboxExecutorFactory();
  await factory.cleanup();
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await Promise.all([factory.cleanup(), factory.cleanup()]);
  assert.equal(await factory.executeFunctionTool('t', {}, tool('() => 1')), 1);
});

test('stats, metrics and the isolation report', async () => {
  const native = sandbox.NativeSandboxExecutor.getInstance();
  assert.equal(native, sandbox.NativeSandboxExecutor.getInstance());
  assert.deepEqual(native.getExecutionStats(), { vcpu_2: { availablePermits: 1, queueLength: 3 } });
  const providers = { sandboxes: 0, retired: 0, creating: 0, waiting: 0, leases: 0 };
  assert.deepEqual(native.getMetrics(), { pool: { size: 1 }, providers });
  assert.deepEqual(await sandbox.isolationReport(), { tier: 'base' });
});

test('vercel executors are one per full configuration', async () => {
  const { VercelSandboxExecutor } = sandbox;
  const config = { provider: 'vercel', runtime: 'node22', teamId: 't', projectId: 'p', token: 'k' };
  const one = VercelSandboxExecutor.getInstance(config);
  assert.equal(VercelSandboxExecutor.getInstance({ ...config }), one);
  assert.notEqual(VercelSandboxExecutor.getInstance({ ...config, token: 'other' }), one);
  assert.notEqual(VercelSandboxExecutor.getInstance({ ...config, vcpus: 2 }), one);
  const circle = {};
  circle.self = circle;
  for (const bad of [undefined, null, 7, circle]) VercelSandboxExecutor.getInstance(bad);
  await one.cleanup();
});

/* ---- logs */

function recorder(extra = {}) {
  const records = [];
  const level = (name) => (fields, message) => records.push([name, fields, message]);
  return {
    records,
    logger: { debug: level('debug'), info: level('info'), warn: level('warn'), error: level('error'), ...extra },
  };
}

test('the factory logs what the original logs', async () => {
  const { records, logger } = recorder();
  sandbox.setLogger(logger);
  const factory = new sandbox.SandboxExecutorFactory();
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await factory.cleanup();
  assert.deepEqual(records, [
    ['info', {}, 'SandboxExecutorFactory initialized'],
    ['info', {}, 'Native sandbox executor created'],
    ['info', {}, 'Cleaning up sandbox executors'],
    ['info', {}, 'Sandbox executor cleanup completed'],
  ]);
});

test('records of the core go to the logger of their name', async () => {
  const byName = {};
  sandbox.setLogger((name) => {
    byName[name] ??= recorder();
    return byName[name].logger;
  });
  await execute('() => 1');
  const [{ level, sink }] = seen.sinks;
  assert.equal(level, 'debug');
  sink({ name: 'native-sandbox-executor', level: 'warn', message: 'hot', fields: '{"a":1}' });
  assert.deepEqual(byName['native-sandbox-executor'].records, [['warn', { a: 1 }, 'hot']]);
  assert.equal(byName.SandboxExecutorFactory.records.length, 2);
});

test('the core is told the level that the logger takes, and its changes', async () => {
  await execute('() => 1');
  assert.deepEqual(seen.sinks, [], 'silent until a logger is set');
  const { logger } = recorder({ level: 'info' });
  sandbox.setLogger(logger);
  await execute('() => 1');
  logger.level = 'trace';
  await execute('() => 1');
  await execute('() => 1');
  sandbox.setLogger(null);
  await execute('() => 1');
  assert.deepEqual(
    seen.sinks.map(({ level, sink }) => [level, typeof sink]),
    [
      ['info', 'function'],
      ['debug', 'function'],
      ['off', 'object'],
    ]
  );
});

test('child loggers get their name; a logger that throws breaks nothing', async () => {
  const names = [];
  sandbox.setLogger({
    child({ name }) {
      names.push(name);
      const fail = () => {
        throw new Error('disk full');
      };
      return { debug: fail, info: fail, warn: fail, error: fail };
    },
    info() {},
  });
  assert.equal(await execute('() => 1'), 1);
  assert.deepEqual(names.sort(), ['SandboxExecutorFactory', 'native-sandbox-executor']);
  sandbox.setLogger(() => {
    throw new Error('no logger today');
  });
  assert.equal(await execute('() => 1'), 1);
  assert.throws(() => sandbox.setLogger('loud'), TypeError);
});
