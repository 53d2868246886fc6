// `getMetrics()`: what is typed is there and moves as it should; and what the examples make of it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { AggregationTemporality, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { observeSandboxes } from '../examples/opentelemetry-meter.mjs';
import { prometheusText } from '../examples/prometheus.mjs';
import { LINUX, ownWorld, ROOT, rejection, run, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let registry;
let native;
before(async () => {
  ownWorld();
  registry = await useRegistry({ 'counted-dep': { '1.0.0': { 'index.js': 'module.exports = 1' } } });
  surface().registerProvider('folders', localFolders);
  native = surface().NativeSandboxExecutor.getInstance();
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** The figures of an interface of index.d.ts: its fields, as they are written there. */
function typed(name) {
  const text = readFileSync(join(ROOT, 'index.d.ts'), 'utf8');
  const body = text.split(`export interface ${name} {`)[1].split('\n}')[0];
  return [...body.matchAll(/^ {2}(\w+)\??:/gm)].map(([, field]) => field);
}

test('every area that is typed is there, and every area that is there is typed or said to be open', async () => {
  await run('() => 1');
  const metrics = native.getMetrics();
  const areas = typed('ExecutorMetrics');
  assert.ok(areas.length > 12, areas.join());
  for (const area of areas) assert.ok(Object.hasOwn(metrics, area) || area === 'error', `${area} is missing`);
  const open = Object.keys(metrics).filter((area) => !areas.includes(area));
  assert.deepEqual(open, ['settings']);
});

test('calls, sandboxes, outcomes and durations are counted', { timeout: 60_000 }, async () => {
  await until(() => native.getMetrics().calls.running === 0, 5_000, 'what ran before is over');
  const before = native.getMetrics();
  const dependencies = { 'counted-dep': '1.0.0' };
  assert.equal(await run('() => require("counted-dep")', {}, { dependencies }), 1);
  await rejection(run('() => { throw new Error("x") }'));
  const held = run('() => new Promise((done) => setTimeout(done, 600, 1))');
  await until(() => native.getMetrics().calls.running === 1, 5_000, 'a call runs');
  const during = native.getMetrics();
  assert.equal(during.pool.leases, 1);
  assert.ok(during.pool.sandboxes >= 2);
  await held;
  await until(() => native.getMetrics().calls.running === 0, 5_000, 'it is over');
  const now = native.getMetrics();
  assert.equal(now.counters.succeeded - before.counters.succeeded, 2);
  assert.equal(now.counters.failed.TOOL_ERROR - (before.counters.failed.TOOL_ERROR ?? 0), 1);
  assert.equal(now.store.installs - before.store.installs, 1);
  for (const step of ['call', 'queue', 'install', 'start', 'run']) {
    const { counts, count, sumMs } = now.durations[step];
    assert.equal(counts.length, now.durations.boundsMs.length + 1);
    assert.equal(
      counts.reduce((sum, one) => sum + one, 0),
      count
    );
    assert.equal(count - before.durations[step].count, 3, step);
    assert.ok(sumMs > before.durations[step].sumMs);
  }
  const waited = now.durations.run.sumMs - before.durations.run.sumMs;
  assert.ok(waited >= 600, `${waited} ms of running`);
  if (LINUX) assert.ok(now.counters.cpuMs > before.counters.cpuMs);
  assert.ok(now.counters.outputBytes > before.counters.outputBytes);
  const workers = ({ counters }) => Object.values(counters.workers).reduce((sum, one) => sum + one, 0);
  assert.equal(workers(now) - workers(before), 3);
});

test('what is kept ready is counted', { skip: !LINUX, timeout: 60_000 }, async () => {
  const factory = new (surface().SandboxExecutorFactory)({ start: 'standby' });
  await factory.executeFunctionTool('t', {}, tool('() => 1'));
  await until(() => native.getMetrics().standby.ready > 0, 10_000, 'a worker in stock');
  assert.ok(native.getMetrics().standby.stocks >= 1);
  await factory.cleanup();
  const own = new (surface().SandboxExecutorFactory)();
  await own.executeFunctionTool('t', {}, tool('() => 1', { sandbox: { provider: 'folders' } }));
  assert.equal(native.getMetrics().providers.sandboxes, 1);
  await own.cleanup();
  assert.equal(native.getMetrics().providers.sandboxes, 0);
});

/** Reads the text as a scraper does; throws at what is none. */
function scraped(text) {
  assert.ok(text.endsWith('\n'));
  const types = new Map();
  const rows = new Map();
  for (const line of text.trimEnd().split('\n')) {
    const type = /^# TYPE (\w+) (gauge|counter|histogram)$/.exec(line);
    if (type) types.set(type[1], type[2]);
    if (line.startsWith('#')) continue;
    const row = /^(\w+)(\{(?:\w+="[^"\\\n]*",?)+\})? (-?[\d.e+-]+)$/.exec(line);
    assert.ok(row, `not a sample: ${line}`);
    const [, name, labels = '', value] = row;
    const family = types.has(name) ? name : name.replace(/_(bucket|sum|count)$/, '');
    assert.ok(types.has(family), `${name} has no type`);
    if (types.get(family) === 'counter') assert.match(name, /_total$/);
    assert.ok(!rows.has(name + labels), `${name}${labels} twice`);
    rows.set(name + labels, Number(value));
  }
  return rows;
}

test('the page for Prometheus has them, as it reads them', async () => {
  await run('() => 1');
  const metrics = native.getMetrics();
  const rows = scraped(prometheusText(metrics));
  const name = (rest) => `native_sandbox_executor_${rest}`;
  assert.equal(rows.get(name('calls_succeeded_total')), metrics.counters.succeeded);
  assert.equal(rows.get(name('calls{state="running"}')), metrics.calls.running);
  assert.equal(rows.get(name('duration_seconds_bucket{step="call",le="+Inf"}')), metrics.durations.call.count);
  assert.equal(rows.get(name('duration_seconds_count{step="call"}')), metrics.durations.call.count);
  assert.equal(rows.get(name('store_bytes')), metrics.store.bytes);
  let last = 0;
  for (const bound of metrics.durations.boundsMs) {
    const count = rows.get(name(`duration_seconds_bucket{step="run",le="${bound / 1000}"}`));
    assert.ok(count >= last, `${bound} ms`);
    last = count;
  }
});

test('bad options have no figures but the providers’, and say why', () => {
  const { error, providers, ...others } = new (surface().NativeSandboxExecutor)({ memoryMb: 1 }).getMetrics();
  assert.match(error, /memoryMb/);
  assert.deepEqual([providers.leases, others], [0, {}]);
  assert.throws(() => prometheusText({ error }), /memoryMb/);
});

test('the example serves it', async () => {
  const child = spawn(process.execPath, [join(ROOT, 'examples/prometheus.mjs')], {
    env: { ...process.env, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((done) => child.on('exit', done));
  let out = '';
  child.stdout.on('data', (text) => {
    out += text;
  });
  const port = await until(() => /port (\d+)/.exec(out)?.[1], 10_000, 'it listens');
  const answer = await fetch(`http://127.0.0.1:${port}/metrics`);
  assert.match(answer.headers.get('content-type'), /^text\/plain; version=0\.0\.4/);
  assert.ok(scraped(await answer.text()).size > 100);
  child.kill();
  await ended;
});

test('the example for OpenTelemetry observes them, and records what calls took', async () => {
  class Reader extends MetricReader {
    selectAggregationTemporality() {
      return AggregationTemporality.CUMULATIVE;
    }
    async onForceFlush() {}
    async onShutdown() {}
  }
  const reader = new Reader();
  const provider = new MeterProvider({ readers: [reader] });
  const undo = observeSandboxes(provider.getMeter('test'));
  const collected = async () => {
    const { resourceMetrics, errors } = await reader.collect();
    assert.deepEqual(errors, []);
    const all = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    return Object.fromEntries(
      all.map(({ descriptor, dataPoints }) => [descriptor.name, { ...descriptor, dataPoints }])
    );
  };
  const name = (rest) => `native_sandbox_executor.${rest}`;
  assert.equal(await run('() => 1'), 1);
  const found = await until(
    async () => {
      const now = await collected();
      return now[name('step.duration')]?.dataPoints.length >= 5 && now;
    },
    10_000,
    'the durations'
  );
  const { counters, store } = native.getMetrics();
  const [succeeded] = found[name('calls.ended')].dataPoints.filter(({ attributes }) => !attributes['error.type']);
  assert.equal(succeeded.value, counters.succeeded);
  assert.deepEqual([found[name('store.size')].unit, found[name('cpu.time')].unit], ['By', 's']);
  assert.equal(found[name('store.size')].dataPoints[0].value, store.bytes);
  const steps = found[name('step.duration')].dataPoints.map(({ attributes }) => attributes.step).sort();
  assert.deepEqual(steps, ['end', 'install', 'queue', 'run', 'start']);
  undo();
  await provider.shutdown();
});
