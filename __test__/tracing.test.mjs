// Who watches calls: the channels of `node:diagnostics_channel`, and OpenTelemetry's spans; and that nothing is made where nobody does.

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { channel, tracingChannel } from 'node:diagnostics_channel';
import { createRequire } from 'node:module';
import { after, afterEach, before, describe, test } from 'node:test';
import { context, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { host, LINUX, ownWorld, rejection, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const require = createRequire(import.meta.url);
const { observe } = require('../lib/observe.js');

const STEPS = ['queue', 'install', 'start', 'run'];
const SECRET = 'hunter2';
const EVENTS = ['start', 'end', 'asyncStart', 'asyncEnd', 'error'];
const LIMIT = { timeout: 60_000 };
const name = (what) => `native-sandbox-executor:${what}`;

let registry;
let factory;
before(async () => {
  ownWorld();
  registry = await useRegistry({ 'traced-dep': { '1.0.0': { 'index.js': 'module.exports = 1' } } });
  surface().registerProvider('folders', localFolders);
  factory = new (surface().SandboxExecutorFactory)();
});
after(async () => {
  await factory.cleanup();
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

const run = (code, over, call) => factory.executeFunctionTool('the-tool', { password: SECRET }, tool(code, over), call);

/** Subscribes to everything for as long as a test takes; what came, in order. */
function listen() {
  const heard = [];
  const undo = [];
  for (const what of ['call', ...STEPS]) {
    const handlers = Object.fromEntries(
      EVENTS.map((event) => [event, (message) => heard.push({ what, event, message })])
    );
    tracingChannel(name(what)).subscribe(handlers);
    undo.push(() => tracingChannel(name(what)).unsubscribe(handlers));
  }
  for (const what of ['usage', 'sandbox']) {
    const handler = (message) => heard.push({ what, message });
    channel(name(what)).subscribe(handler);
    undo.push(() => channel(name(what)).unsubscribe(handler));
  }
  return { heard, stop: () => undo.forEach((act) => void act()) };
}

describe('channels', LIMIT, () => {
  test('nothing is made for a call while nobody listens', async () => {
    assert.equal(observe('native', 'a-tool'), undefined);
    const { heard, stop } = listen();
    assert.notEqual(observe('native', 'a-tool'), undefined);
    stop();
    assert.equal(observe('native', 'a-tool'), undefined);
    assert.equal(await run('() => 1'), 1);
    assert.deepEqual(heard, []);
  });

  for (const [place, sandbox] of [
    ['this machine', {}],
    ['a provider', { provider: 'folders' }],
  ]) {
    test(`a call and its steps, in their order, on ${place}`, { skip: !LINUX }, async () => {
      const { heard, stop } = listen();
      assert.equal(await run(`() => '${SECRET}'`, { sandbox }), SECRET);
      await until(() => heard.some(({ what }) => what === 'usage'), 10_000, 'the usage');
      stop();
      const about = heard
        .filter(({ what }) => what !== 'sandbox')
        .map(({ what, event }) => `${what} ${event ?? ''}`.trim());
      assert.deepEqual(
        about.filter((one) => one.startsWith('call')),
        ['call start', 'call end', 'call asyncStart', 'call asyncEnd']
      );
      for (const step of STEPS) {
        const events = ['start', 'end', 'asyncStart', 'asyncEnd'].map((event) => `${step} ${event}`);
        assert.deepEqual(
          about.filter((one) => one.startsWith(step)),
          events
        );
      }
      const starts = about.filter((one) => / start$/.test(one));
      assert.deepEqual(starts, ['call start', 'queue start', 'install start', 'start start', 'run start']);
      assert.ok(about.indexOf('run asyncEnd') < about.indexOf('call asyncEnd'));

      const ended = Object.fromEntries(
        heard.filter(({ event }) => event === 'asyncEnd').map(({ what, message }) => [what, message])
      );
      for (const message of heard.map((one) => one.message).filter(({ callId }) => callId)) {
        assert.deepEqual(
          [message.callId, message.toolId, message.provider],
          [ended.call.callId, 'the-tool', sandbox.provider ?? 'native']
        );
      }
      const sum = STEPS.reduce((all, step) => all + ended[step].durationMs, 0);
      assert.ok(Math.abs(sum - ended.call.durationMs) < 20, `steps of ${sum} ms in ${ended.call.durationMs} ms`);
      assert.equal(typeof ended.install.reused, 'boolean');
      if (!sandbox.provider) assert.match(ended.run.rung, /^(zygote|standby|spawn)$/);
      assert.equal(heard.find(({ what }) => what === 'usage').message.usage.exit.reason, 'completed');
    });
  }

  test('an error is told by its code, in the step where it happened', async () => {
    const { heard, stop } = listen();
    await rejection(run(`() => { throw new Error('${SECRET}') }`));
    await rejection(run('not a function at all ('));
    const early = await rejection(run(7n));
    stop();
    const errors = heard.filter(({ event }) => event === 'error').map(({ what, message }) => [what, message.error]);
    const thrown = { name: 'SandboxError', code: 'TOOL_ERROR', phase: 'run' };
    const invalid = { name: 'SandboxError', code: 'INVALID_SOURCE', phase: 'validate' };
    assert.deepEqual(errors.slice(0, 4), [
      ['run', thrown],
      ['call', thrown],
      ['queue', invalid],
      ['call', invalid],
    ]);
    assert.deepEqual(errors.at(-1), ['call', { name: 'SandboxError', code: early.code, phase: early.phase }]);
  });

  test('no code, argument, result or text of an error is in any message', async () => {
    const { heard, stop } = listen();
    process.env.NSE_TRACED = SECRET;
    const seen = new (surface().SandboxExecutorFactory)({ env: ['NSE_TRACED'] });
    const code = `(args) => { console.log(args.password, process.env.NSE_TRACED, 'in-the-code'); return args.password; }`;
    assert.equal(await seen.executeFunctionTool('t', { password: SECRET }, tool(code)), SECRET);
    await rejection(run(`(args) => { console.error(args.password); throw new Error(args.password + 'in-the-code'); }`));
    await seen.cleanup();
    stop();
    delete process.env.NSE_TRACED;
    assert.ok(heard.length > 10);
    const text = JSON.stringify(heard);
    for (const word of [SECRET, 'in-the-code', 'NSE_TRACED']) assert.ok(!text.includes(word), word);
  });

  test('stores are bound to the call', async () => {
    const storage = new AsyncLocalStorage();
    const { start } = tracingChannel(name('call'));
    start.bindStore(storage, ({ toolId }) => `of ${toolId}`);
    const seen = [];
    const listener = () => seen.push(storage.getStore());
    tracingChannel(name('call')).subscribe({ asyncEnd: listener });
    await run('() => 1');
    tracingChannel(name('call')).unsubscribe({ asyncEnd: listener });
    start.unbindStore(storage);
    assert.deepEqual(seen, ['of the-tool']);
  });

  test('sandboxes come and go', async () => {
    const { heard, stop } = listen();
    const own = new (surface().SandboxExecutorFactory)({ tenantKey: 'lifecycle' });
    const dependencies = { 'traced-dep': '1.0.0' };
    assert.equal(await own.executeFunctionTool('t', {}, tool('() => require("traced-dep")', { dependencies })), 1);
    await own.cleanup();
    await surface().SandboxExecutorFactory.getInstance().cleanup();
    const of = (event) =>
      heard.filter(({ what, message }) => what === 'sandbox' && message.event === event).map(({ message }) => message);
    await until(() => of('removed').length > 0, 10_000, 'a sandbox was removed');
    stop();
    const [created] = of('created');
    assert.match(created.dependencyHash, /^[0-9a-f]{16}$/);
    assert.ok(created.durationMs > 0);
    assert.ok(of('removed').some(({ dependencyHash }) => dependencyHash === created.dependencyHash));
  });
});

describe('spans', LIMIT, () => {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
  before(() => {
    context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
    trace.setGlobalTracerProvider(provider);
  });
  after(async () => {
    trace.disable();
    context.disable();
    await provider.shutdown();
  });
  afterEach(() => exporter.reset());

  const spans = async (count) => {
    await until(() => exporter.getFinishedSpans().length >= count, 10_000, `${count} spans`);
    return Object.fromEntries(exporter.getFinishedSpans().map((span) => [span.name, span]));
  };
  const at = ([seconds, nanos]) => seconds * 1e3 + nanos / 1e6;

  test('the step `run` is told when the host hears of the usage before the answer, too', async () => {
    const pause = new Int32Array(new SharedArrayBuffer(4));
    for (const code of ['() => 1', '() => process.exit(3)']) {
      exporter.reset();
      const call = run(code).catch(() => {});
      // Everything of the call happens meanwhile, and is heard of at once.
      setImmediate(() => Atomics.wait(pause, 0, 0, 300));
      await call;
      const found = await spans(5);
      assert.equal(typeof found['sandbox.run'].attributes['native_sandbox_executor.exit.reason'], 'string', code);
    }
  });

  test('a call is a child of what is active in the caller, its steps are its children', async () => {
    const tracer = trace.getTracer('test');
    await tracer.startActiveSpan('caller', async (span) => {
      assert.equal(await run('() => 1'), 1);
      span.end();
    });
    const found = await spans(6);
    const call = found['sandbox.call'];
    assert.equal(call.parentSpanContext.spanId, found.caller.spanContext().spanId);
    assert.equal(call.kind, SpanKind.INTERNAL);
    assert.equal(call.instrumentationScope.name, 'native-sandbox-executor');
    assert.deepEqual(call.attributes, {
      'code.function.name': 'the-tool',
      'native_sandbox_executor.provider': 'native',
    });
    assert.equal(call.status.code, SpanStatusCode.UNSET);
    let last = at(call.startTime);
    for (const step of STEPS) {
      const span = found[`sandbox.${step}`];
      assert.equal(span.parentSpanContext.spanId, call.spanContext().spanId, step);
      assert.equal(span.spanContext().traceId, found.caller.spanContext().traceId);
      assert.ok(Math.abs(at(span.startTime) - last) < 1, `${step} begins where the one before ended`);
      last = at(span.endTime);
    }
    assert.ok(Math.abs(last - at(call.endTime)) < 1);
    const { attributes } = found['sandbox.run'];
    assert.equal(attributes['native_sandbox_executor.exit.reason'], 'completed');
    assert.ok(attributes['native_sandbox_executor.max_rss_bytes'] > 1e6 || !LINUX);
    assert.match(attributes['native_sandbox_executor.rung'], /^(zygote|standby|spawn)$/);
    assert.equal(typeof found['sandbox.install'].attributes['native_sandbox_executor.sandbox.reused'], 'boolean');
  });

  test('an error has its code, and not its text', async () => {
    await rejection(run(`() => { throw new Error('${SECRET}') }`));
    const found = await spans(5);
    for (const span of [found['sandbox.call'], found['sandbox.run']]) {
      assert.deepEqual(span.status, { code: SpanStatusCode.ERROR, message: 'TOOL_ERROR' });
      assert.equal(span.attributes['error.type'], 'TOOL_ERROR');
      assert.deepEqual(
        span.events.map((event) => [event.name, event.attributes]),
        [['exception', { 'exception.type': 'SandboxError' }]]
      );
      assert.ok(!JSON.stringify([span.attributes, span.events, span.status]).includes(SECRET));
    }
    assert.equal(found['sandbox.call'].attributes['native_sandbox_executor.error.phase'], 'run');
    assert.equal(found['sandbox.queue'].status.code, SpanStatusCode.UNSET);
  });

  test('nothing that a call is given, and nothing that its function says, is in any span', async () => {
    const secret = 'secret-of-one-call-7d1f';
    const given = {
      env: { TRACED_SECRET: secret },
      files: { 'in/secret.txt': secret },
      functions: { lookup: (text) => text, fails: () => Promise.reject(new Error(secret)) },
      onProgress() {},
    };
    const code = (end) => `async (a, { host, progress }) => {
      const it = process.env.TRACED_SECRET;
      console.log(it);
      progress({ message: it });
      await host.lookup(it);
      await host.fails().catch(() => {});
      ${end} }`;
    assert.equal(await run(code('return it;'), {}, given), secret);
    await rejection(run(code('throw Object.assign(new Error(it), { field: it });'), {}, given));
    await until(() => exporter.getFinishedSpans().length >= 10, 10_000, '10 spans');
    for (const { name: of, attributes, events, links, status, resource } of exporter.getFinishedSpans()) {
      const told = JSON.stringify([of, attributes, events, links, status, resource.attributes]);
      assert.ok(!told.includes(secret), told);
    }
  });

  test('what a provider does is below the call', { skip: !LINUX }, async () => {
    let active;
    const create = (request) => {
      active = trace.getActiveSpan()?.spanContext().spanId;
      return localFolders.create(request);
    };
    surface().registerProvider('seen', { create });
    assert.equal(await run('() => 1', { sandbox: { provider: 'seen' } }), 1);
    const found = await spans(5);
    assert.equal(active, found['sandbox.call'].spanContext().spanId);
    assert.equal(found['sandbox.call'].attributes['native_sandbox_executor.provider'], 'seen');
  });

  test('a call that is not sampled has none', async () => {
    trace.disable();
    trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler: { shouldSample: () => ({ decision: 0 }) } }));
    assert.equal(observe('native', 't'), undefined);
    assert.equal(await run('() => 1'), 1);
    trace.disable();
    assert.equal(observe('native', 't'), undefined);
    trace.setGlobalTracerProvider(provider);
  });
});

test('without the API there is nothing to miss', LIMIT, async () => {
  const { said, err } = await host(
    `const { Module } = await import('node:module');
     const load = Module._load;
     Module._load = (request, ...rest) => {
       if (request === '@opentelemetry/api') throw Object.assign(new Error('not installed'), { code: 'MODULE_NOT_FOUND' });
       return load(request, ...rest);
     };
     say(await run('() => 7'));`
  ).exited;
  assert.deepEqual(said, [7], err);
});
