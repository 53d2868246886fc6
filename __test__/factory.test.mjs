// The surface over the real addon: calls, sessions, cleanup, and what an executor asks of its host.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { gone, host, LINUX, newMarker, ownWorld, ROOT, rejection, run, surface, tool, until } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

test('arguments go in as JSON, results come out as JSON', async () => {
  assert.deepEqual(await run('({ a, b }) => ({ sum: a + b })', { a: 1, b: 2 }), { sum: 3 });
  assert.equal(
    await run('async (args) => JSON.stringify(args)', { d: new Date(0), u: undefined, n: NaN }),
    '{"d":"1970-01-01T00:00:00.000Z","n":null}'
  );
  assert.equal(await run('() => {}'), undefined);
  assert.equal(await run('() => null'), null);
  assert.deepEqual(await run('() => ({ a: [undefined, NaN, new Map()] })'), { a: [null, null, {}] });
  assert.equal(await run('() => "ab\\ud83d"'), 'ab\ud83d');
});

test('require and import() of the package give the same classes', async () => {
  const required = createRequire(import.meta.url)('native-sandbox-executor');
  const imported = await import('native-sandbox-executor');
  for (const name of Object.keys(required)) assert.equal(imported[name], required[name], name);
  assert.deepEqual(Object.keys(required).sort(), [
    'NativeSandboxExecutor',
    'SandboxError',
    'SandboxExecutorFactory',
    'VercelSandboxExecutor',
    'describeFunctions',
    'gracefulShutdown',
    'isolationReport',
    'registerProvider',
    'setLogger',
    'shutdown',
    'swapReport',
  ]);
});

test('the addon is of the version of the package', () => {
  const require = createRequire(import.meta.url);
  assert.equal(require(`${ROOT}/binding.cjs`).version(), require('../package.json').version);
});

test('sessions run their own calls and can be closed at any time', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = Factory.getForSession('a');
  assert.equal(await factory.executeFunctionTool('t', {}, tool('() => 1')), 1);
  await Promise.all([Factory.cleanupSession('a'), Factory.cleanupSession('a'), Factory.cleanupSession('never')]);
  assert.equal(await Factory.getForSession('a').executeFunctionTool('t', {}, tool('() => 2')), 2);
  await Factory.cleanupSession('a');
});

test('cleanup() waits for what runs, rejects what waits, and the factory works on', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = new Factory();
  const slow = tool('() => { console.log("runs"); return new Promise((done) => setTimeout(done, 700, "finished")); }', {
    sandbox: { vcpus: 1 },
  });
  let runs = false;
  const onLogs = () => {
    runs = true;
  };
  const calls = [1, 2, 3].map(() => factory.executeFunctionTool('t', {}, slow, { onLogs }));
  for (const call of calls) call.catch(() => {});
  const native = new (surface().NativeSandboxExecutor)();
  await until(() => native.getExecutionStats().vcpu_1?.queueLength === 2, 5000, 'two calls wait');
  await until(() => runs, 5000, 'one runs');
  await Promise.all([factory.cleanup(), factory.cleanup()]);
  const settled = await Promise.allSettled(calls);
  const finished = settled.filter(({ status }) => status === 'fulfilled');
  assert.deepEqual(
    finished.map(({ value }) => value),
    ['finished']
  );
  for (const { reason } of settled.filter(({ status }) => status === 'rejected'))
    assert.equal(reason.code, 'CLEANED_UP');
  assert.equal(await factory.executeFunctionTool('t', {}, slow), 'finished');
});

test('the constructor takes its options as the original takes none: its length is 0', () => {
  const { SandboxExecutorFactory: Factory } = surface();
  assert.equal(Factory.length, 0);
});

test('one factory’s cleanup leaves the calls of another alone', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const slow = tool('() => new Promise((done) => setTimeout(done, 400, 1))', { sandbox: { vcpus: 1 } });
  const mine = [1, 2].map(() => new Factory().executeFunctionTool('t', {}, slow));
  const other = new Factory();
  assert.equal(await other.executeFunctionTool('t', {}, tool('() => 3')), 3);
  await other.cleanup();
  assert.deepEqual(await Promise.all(mine), [1, 1]);
});

test('bad options reject the call and name themselves', async () => {
  for (const [options, name] of [
    [{ timeoutMs: -5 }, 'timeoutMs'],
    [{ maxUseCount: 'often' }, 'maxUseCount'],
    [{ network: 'sometimes' }, 'network'],
    [{ noSuchOption: 1 }, 'noSuchOption'],
  ]) {
    const factory = new (surface().SandboxExecutorFactory)(options);
    const error = await rejection(factory.executeFunctionTool('t', {}, tool('() => 1')));
    assert.equal(error.code, 'INVALID_CONFIG');
    assert.ok(error.message.includes(name), error.message);
  }
});

test('a bad variable rejects the call and names itself; an empty one is the default', async () => {
  const name = 'AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT';
  const body = "say(await run('() => 1').catch(({ code, message }) => ({ code, message })));";
  const bad = await host(body, { env: { [name]: 'abc' } }).exited;
  assert.equal(bad.said[0].code, 'INVALID_CONFIG', bad.err);
  assert.ok(bad.said[0].message.includes(name), bad.said[0].message);
  const empty = await host(body, { env: { [name]: '' } }).exited;
  assert.deepEqual(empty.said, [1], empty.err);
});

test('more isolation than there is is refused', async () => {
  const { isolationReport, SandboxExecutorFactory: Factory } = surface();
  const { tier } = await isolationReport();
  assert.match(tier, /^(base|confined|isolated)$/);
  const config = tool('() => 1');
  assert.equal(await new Factory({ isolation: { require: tier } }).executeFunctionTool('t', {}, config), 1);
  const above = ['confined', 'isolated'].slice(['base', 'confined', 'isolated'].indexOf(tier));
  for (const tierAbove of above) {
    const factory = new Factory({ isolation: { require: tierAbove } });
    assert.equal((await rejection(factory.executeFunctionTool('t', {}, config))).code, 'ISOLATION_UNAVAILABLE');
  }
});

test('metrics are plain data about the process', async () => {
  await run('() => 1');
  const metrics = new (surface().NativeSandboxExecutor)().getMetrics();
  assert.ok(Object.keys(metrics).length > 0);
  assert.deepEqual(JSON.parse(JSON.stringify(metrics)), metrics);
});

test('a pending call keeps the host alive, an idle executor does not', async () => {
  const { code, said, err } = await host("say(await run('() => new Promise((done) => setTimeout(done, 300, 7))'));")
    .exited;
  assert.deepEqual([code, said], [0, [7]], err);
  const forgotten = await host("run('() => new Promise((done) => setTimeout(done, 300, 7))').then(say);").exited;
  assert.deepEqual([forgotten.code, forgotten.said], [0, [7]], forgotten.err);
});

test('a host that exits while a tool runs ends promptly and takes the tool along', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const { exited } = host(`
    run("({ marker }) => { process.title = marker; for (;;); }", ${JSON.stringify({ marker })}, { sandbox: { timeout: 60000 } });
    setTimeout(() => process.exit(3), 800);`);
  const { code, signal, err } = await exited;
  assert.deepEqual([code, signal], [3, null], err);
  await gone(marker);
});

test('a host that is killed takes its tools along', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const { child, exited } = host(`
    run("({ marker }) => { process.title = marker; process.on('SIGTERM', () => {}); setInterval(() => {}, 999); return new Promise(() => {}); }",
      ${JSON.stringify({ marker })}, { sandbox: { timeout: 60000 } });`);
  const { appears } = await import('./helpers.mjs');
  await appears(marker);
  child.kill('SIGKILL');
  await exited;
  await gone(marker);
});

test('a cleanup that fails while another is waited for rejects, and does not end the host', async () => {
  const { said, code, err } = await host(`
    process.on('unhandledRejection', (error) => say('unhandled: ' + error.message));
    const { createRequire } = await import('node:module');
    const { ProviderExecutor } = createRequire(import.meta.url)(${JSON.stringify(join(ROOT, 'lib/provider-executor.js'))});
    ProviderExecutor.prototype.cleanup = async () => { throw new Error('no'); };
    rest.registerProvider('failing', { create: async () => { throw new Error('no sandbox'); } });
    const { executeCode, ...config } = tool('() => { console.log("runs"); return new Promise((done) => setTimeout(done, 500, 1)); }');
    await factory.executeFunctionTool('t', {}, { ...config, executeCode, sandboxConfig: { provider: 'failing' } }).catch(() => {});
    let call;
    // The cleanup has to wait for it: one that does not run yet it would reject.
    await new Promise((onLogs) => { call = factory.executeFunctionTool('t', {}, { ...config, executeCode }, { onLogs }); });
    say(await factory.cleanup().catch((error) => error.message));
    say(await call);
    // The failure was told; the next cleanup is another one.
    say((await factory.cleanup()) ?? 'clean');
    process.exit(0);`).exited;
  assert.deepEqual([code, said], [0, ['no', 1, 'clean']], err);
});
