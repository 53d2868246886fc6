// Values that no caller means to give: of odd types, with getters and proxies that throw, changed after they were given.

import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { after, before, test } from 'node:test';
import { ownWorld, refuse, rejection, revoked, run, surface, tool } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** An object on which only one field cannot be read. */
const trapped = (object, name) => Object.defineProperty({ ...object }, name, { enumerable: true, get: refuse });

const ODD = [Symbol('s'), 5n, () => 5, { valueOf: () => 5 }, [5], true, new Proxy({}, { get: refuse }), revoked()];

async function invalid(promise, text) {
  const error = await rejection(promise);
  assert.match(error.code, /^INVALID_(CONFIG|DEPENDENCY)$/, error.message);
  assert.match(error.message, text);
  assert.doesNotMatch(error.message, /^the call cannot/);
}

test('an odd timeout is told by the name of its field', async () => {
  for (const timeout of [...ODD, -1, 'soon']) {
    await invalid(run('() => 1', {}, { sandbox: { timeout } }), /^sandboxConfig\.timeout must be a positive number/);
  }
});

test('odd vcpus and an odd runtime are told by the names of their fields', async () => {
  for (const value of ODD.filter((one) => one !== true)) {
    await invalid(run('() => 1', {}, { sandbox: { vcpus: value } }), /^sandboxConfig\.vcpus must be/);
    await invalid(run('() => 1', {}, { sandbox: { runtime: value } }), /^sandboxConfig\.runtime must be/);
  }
});

test('an odd value of any field of a call is told by its name', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const call = (config, over, id = 't') => Factory.getInstance().executeFunctionTool(id, {}, config, over);
  for (const value of ODD) {
    const config = tool('() => 1');
    await invalid(call({ ...config, executeCode: value }), /^executeCode must be/);
    await invalid(call({ ...config, sandboxConfig: { provider: value } }), /provider/);
    await invalid(call({ ...config, dependencies: { lodash: value } }), /"lodash"/);
    await invalid(call(config, { onLogs: typeof value === 'function' ? 5 : value }), /^onLogs must be a function/);
    await invalid(call(config, { onUsage: typeof value === 'function' ? 5 : value }), /^onUsage must be a function/);
    await invalid(call(config, { signal: value }), /^signal/);
  }
  for (const value of [Symbol('s'), 5n, 'soon', true, [5]]) {
    await invalid(call(tool('() => 1'), value), /^the options of the call must be an object/);
    await invalid(call({ ...tool('() => 1'), dependencies: value }), /^dependencies must be an object/);
  }
  await invalid(call(tool('() => 1'), {}, Object.create(null)), /^the id of the function tool/);
  await invalid(run('() => 1', {}, { sandbox: { note: 5n } }), /^sandboxConfig\.note cannot be written/);
  await invalid(run('() => 1', { n: 5n }), /^arguments cannot be written/);
});

test('a getter or a proxy that throws is told by the field that it stands for', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const call = (config, over) => Factory.getInstance().executeFunctionTool('t', {}, config, over);
  const config = tool('() => 1');
  for (const name of ['executeCode', 'dependencies', 'sandboxConfig']) {
    await invalid(call(trapped(config, name)), new RegExp(`^${name} cannot be read: no entry`));
  }
  for (const name of ['provider', 'timeout', 'vcpus', 'runtime', 'note']) {
    const sandboxConfig = trapped(config.sandboxConfig, name);
    await invalid(call({ ...config, sandboxConfig }), new RegExp(`^sandboxConfig\\.${name} cannot be read: no entry`));
  }
  for (const name of ['signal', 'onLogs', 'onUsage']) {
    await invalid(call(config, trapped({}, name)), new RegExp(`^${name} cannot be read: no entry`));
  }
  await invalid(call(config, { signal: trapped({ addEventListener() {} }, 'aborted') }), /^signal\.aborted/);
  await invalid(call({ ...config, dependencies: trapped({}, 'lodash') }), /"lodash" cannot be read: no entry/);
  await invalid(call({ ...config, dependencies: revoked() }), /^dependencies cannot be read/);
  const nothing = trapped({}, 'message');
  await invalid(
    call({
      ...config,
      get executeCode() {
        throw nothing;
      },
    }),
    /^executeCode cannot be read: /
  );
});

test('an odd option is told by its name', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const call = (options) => new Factory(options).executeFunctionTool('t', {}, tool('() => 1'));
  for (const value of [Symbol('s'), 5n, () => 5, Number.NaN]) {
    await invalid(call({ lingerMs: value }), /^option lingerMs must be/);
    await invalid(call({ dependencies: { allow: [value] } }), /^option dependencies\.allow\.0 must be/);
  }
  await invalid(call(trapped({}, 'lingerMs')), /^option lingerMs cannot be read: no entry/);
  await invalid(call({ env: revoked() }), /^option env/);
  await invalid(call(revoked()), /^the options given to the constructor cannot be read/);
  const circle = {};
  circle.self = circle;
  await invalid(call({ dependencies: circle }), /^option dependencies.*nested too deep/);
});

test('options count as they were when they were given, and are read once', async () => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native } = surface();
  for (const make of [(options) => new Factory(options), (options) => new Native(options)]) {
    let reads = 0;
    const options = {
      dependencies: { allow: ['nothing-but-this'] },
      get timeoutMs() {
        reads += 1;
        return 5000;
      },
    };
    const executor = make(options);
    assert.equal(reads, 1);
    options.dependencies.allow.push('lodash');
    options.dependencies = undefined;
    options.nonsense = 1;
    const config = tool('() => 1', { dependencies: { lodash: '4' } });
    const error = await rejection(executor.executeFunctionTool('t', {}, config));
    assert.equal(error.code, 'INVALID_DEPENDENCY', error.message);
    assert.equal(reads, 1);
  }
});

test('functionLimits and files that cannot be looked at are told by their names', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const call = (options) => Factory.getInstance().executeFunctionTool('t', {}, tool('() => 1'), options);
  const locked = new Proxy({}, { ownKeys: refuse });
  for (const value of [revoked(), locked]) {
    await invalid(call({ functionLimits: value }), /^functionLimits (cannot be read|must be an object)/);
  }
  const buffer = new ArrayBuffer(8);
  const view = new Uint8Array(buffer);
  structuredClone(buffer, { transfer: [buffer] });
  const contents = [
    revoked(),
    buffer,
    view,
    { stream: refuse },
    { stream: () => undefined },
    { [Symbol.asyncIterator]() {}, on: refuse },
    trapped({ [Symbol.asyncIterator]() {} }, 'destroyed'),
    { path: revoked() },
  ];
  const match = new Proxy([], { get: refuse });
  await invalid(call({ collect: { match, onFile: refuse } }), /^collect\.match cannot be read: no entry/);
  await invalid(call({ collect: { match: [trapped({}, 'x')], onFile: refuse } }), /^collect\.match\[0\] must be/);
  for (const content of contents) await invalid(call({ files: { a: content } }), /^files\["a"\]/);
});

test('a signal that refuses its listener ends the streams of the call', async () => {
  const stream = Readable.from(['text']);
  await invalid(
    run('() => 1', {}, undefined, { signal: { addEventListener: refuse }, files: { a: stream } }),
    /^signal cannot be listened to: no entry/
  );
  assert.equal(stream.destroyed, true);
});

test('a deadline that cannot be read, or that is no option of an object, is told', async () => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native, shutdown } = surface();
  const acts = {
    'cleanup()': (options) => new Factory().cleanup(options),
    'cleanup() of a native executor': (options) => new Native().cleanup(options),
    'cleanupSession()': (options) => Factory.cleanupSession('none', options),
    'shutdown()': (options) => shutdown(options),
  };
  for (const act of Object.values(acts)) {
    await invalid(act(trapped({}, 'deadlineMs')), /deadlineMs cannot be read: no entry/);
    await invalid(act(revoked()), /deadlineMs cannot be read/);
    for (const options of [5000, '5000', true]) await invalid(act(options), /options must be an object/);
  }
});

test('a getter may throw what cannot be looked at', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const oddly = () => {
    throw revoked();
  };
  const options = new Proxy({}, { ownKeys: oddly, get: oddly });
  await invalid(new Factory(options).executeFunctionTool('t', {}, tool('() => 1')), /cannot be read/);
  await invalid(run('() => 1', options), /^arguments cannot be written/);
  await invalid(run('() => 1', {}, { dependencies: options }), /^dependencies cannot be read/);
});

test('lists too long to be read are refused at once', async () => {
  const { SandboxExecutorFactory: Factory, describeFunctions, gracefulShutdown } = surface();
  const long = new Array(4_000_000_000);
  const odd = new Proxy([], { get: (list, key) => (key === 'length' ? Number.NaN : list[key]) });
  for (const sets of [long, odd]) await invalid(Factory.getInstance().warm(sets), /^warm\(\) takes at most 10000/);
  const collect = { match: long, onFile() {} };
  await invalid(run('() => 1', {}, undefined, { collect }), /^collect\.match must have 1 to 100 patterns/);
  for (const signals of [long, new Array(3), revoked(), new Proxy([], { get: refuse })]) {
    assert.throws(() => gracefulShutdown({ signals }), { code: 'INVALID_CONFIG', message: /signals/ });
  }
  assert.throws(() => describeFunctions(long), { code: 'INVALID_CONFIG', message: /at most 256 can be declared/ });
});
