// The figures of `getMetrics()` on an OpenTelemetry meter, read whenever the host's reader collects; durations of calls as histograms,
// from the channel that tells what each call used. (Spans come without this: see docs/OPERATING.md.)
//
//   import { observeSandboxes } from './opentelemetry-meter.mjs';   // after the host has registered its meter provider
//   const undo = observeSandboxes();

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { metrics, ValueType } from '@opentelemetry/api';
import { NativeSandboxExecutor } from 'native-sandbox-executor';

const NAME = 'native_sandbox_executor';
const USAGE = 'native-sandbox-executor:usage';

/** Begins to observe; gives what ends it. */
export function observeSandboxes(meter = metrics.getMeter('native-sandbox-executor')) {
  const native = NativeSandboxExecutor.getInstance();
  const gauge = (name, unit, description) =>
    meter.createObservableUpDownCounter(`${NAME}.${name}`, { unit, description, valueType: ValueType.INT });
  const counter = (name, unit, description) => meter.createObservableCounter(`${NAME}.${name}`, { unit, description });

  const calls = gauge('calls', '{call}', 'Calls that run or wait');
  const sandboxes = gauge('sandboxes', '{sandbox}', 'Sandboxes that can be lent');
  const ready = gauge('workers.ready', '{process}', 'Workers made ahead of need');
  const stored = gauge('store.size', 'By', 'What installed dependency sets take on disk');
  const installs = counter('store.installs', '{install}', 'Installations of dependency sets');
  const ended = counter('calls.ended', '{call}', 'Calls by their outcome');
  const cpu = counter('cpu.time', 's', 'Processor time of calls');

  const observe = (result) => {
    const found = native.getMetrics();
    for (const [state, count] of Object.entries(found.calls)) result.observe(calls, count, { state });
    result.observe(sandboxes, found.pool.sandboxes, { provider: 'native' });
    result.observe(sandboxes, found.providers.sandboxes, { provider: 'other' });
    result.observe(ready, found.zygotes.ready, { rung: 'zygote' });
    result.observe(ready, found.standby.ready, { rung: 'standby' });
    result.observe(stored, found.store.bytes);
    result.observe(installs, found.store.installs);
    result.observe(ended, found.counters.succeeded);
    // As spans have it: absent where nothing went wrong.
    for (const [code, count] of Object.entries(found.counters.failed))
      result.observe(ended, count, { 'error.type': code });
    result.observe(cpu, found.counters.cpuMs / 1000);
  };
  const instruments = [calls, sandboxes, ready, stored, installs, ended, cpu];
  meter.addBatchObservableCallback(observe, instruments);

  const duration = meter.createHistogram(`${NAME}.step.duration`, { unit: 's', description: 'Steps of calls' });
  const record = ({ provider, usage }) => {
    for (const [name, ms] of Object.entries(usage.phases))
      duration.record(ms / 1000, { provider, step: name.replace(/Ms$/, '') });
  };
  subscribe(USAGE, record);
  return () => {
    meter.removeBatchObservableCallback(observe, instruments);
    unsubscribe(USAGE, record);
  };
}
