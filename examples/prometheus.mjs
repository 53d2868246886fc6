// A page for Prometheus, made of `getMetrics()` whenever it is asked for. No client library: the figures are counted already, and
// their number is bounded. Names follow Prometheus: base units, `_total` for counters, ranges of a histogram cumulative.
//
//   PORT=9464 node examples/prometheus.mjs
//   curl localhost:9464/metrics

import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { NativeSandboxExecutor } from 'native-sandbox-executor';

const PREFIX = 'native_sandbox_executor';
const STEPS = ['call', 'queue', 'install', 'start', 'run'];

/** What `getMetrics()` gave, as the text that Prometheus reads. */
export function prometheusText(metrics) {
  if (metrics.error) throw new Error(metrics.error);
  const { calls, queue, pool, zygotes, standby, providers, store, counters, durations, isolation, rung } = metrics;
  const page = new Page();
  page.family('calls', 'gauge', 'Calls that run or wait.', samples('state', calls));
  page.family('permits_available', 'gauge', 'Free permits.', byClass(queue, 'availablePermits'));
  page.family('queue_length', 'gauge', 'Calls that wait for a permit.', byClass(queue, 'queueLength'));
  page.family('pool', 'gauge', 'Sandboxes of this machine, and what they are at.', samples('what', pool));
  page.family(
    'zygotes',
    'gauge',
    'Processes that workers are forked from, and workers forked ahead.',
    samples('what', zygotes)
  );
  page.family('standby', 'gauge', 'Stocks of booted workers, and workers in them.', samples('what', standby));
  page.family('providers', 'gauge', 'Sandboxes of providers, and what they are at.', samples('what', providers));
  page.family('store_trees', 'gauge', 'Installed dependency sets.', [[{}, store.trees]]);
  page.family('store_bytes', 'gauge', 'What they take on disk.', [[{}, store.bytes]]);
  for (const what of ['installs', 'hits', 'evictions', 'renewals']) {
    page.family(`store_${what}_total`, 'counter', `Of dependency sets: ${what}.`, [[{}, store[what]]]);
  }
  page.family('calls_succeeded_total', 'counter', 'Calls that gave a result.', [[{}, counters.succeeded]]);
  page.family('calls_failed_total', 'counter', 'Rejected calls.', samples('code', counters.failed));
  page.family('workers_total', 'counter', 'Workers by where they came from.', samples('rung', counters.workers));
  page.family('cpu_seconds_total', 'counter', 'Processor time of calls.', [[{}, counters.cpuMs / 1000]]);
  page.family('output_bytes_total', 'counter', 'What calls printed and returned.', [[{}, counters.outputBytes]]);
  page.family('info', 'gauge', 'What is in use.', [
    [{ rung: rung ?? 'unknown', tier: isolation?.tier ?? 'unknown' }, 1],
  ]);
  page.histogram('duration_seconds', 'How long calls and their steps took.', durations);
  return page.text();
}

class Page {
  #lines = [];

  family(name, type, help, rows) {
    this.#head(name, type, help);
    for (const [labels, value] of rows) this.#row(name, labels, value);
  }

  histogram(name, help, { boundsMs, ...steps }) {
    this.#head(name, 'histogram', help);
    for (const step of STEPS) {
      const { counts, count, sumMs } = steps[step];
      let sum = 0;
      counts.forEach((inRange, at) => {
        sum += inRange;
        const le = at < boundsMs.length ? boundsMs[at] / 1000 : '+Inf';
        this.#row(`${name}_bucket`, { step, le }, sum);
      });
      this.#row(`${name}_sum`, { step }, sumMs / 1000);
      this.#row(`${name}_count`, { step }, count);
    }
  }

  text() {
    return `${this.#lines.join('\n')}\n`;
  }

  #head(name, type, help) {
    this.#lines.push(`# HELP ${PREFIX}_${name} ${help}`, `# TYPE ${PREFIX}_${name} ${type}`);
  }

  #row(name, labels, value) {
    // None of the values here needs escaping: they are names of ours, codes and numbers.
    const text = Object.entries(labels).map(([label, of]) => `${label}="${of}"`);
    this.#lines.push(`${PREFIX}_${name}${text.length > 0 ? `{${text.join(',')}}` : ''} ${value}`);
  }
}

/** One row for each figure of an area. */
function samples(label, figures) {
  return Object.entries(figures).map(([name, value]) => [{ [label]: name }, value]);
}

function byClass(queue, figure) {
  return Object.entries(queue).map(([name, stats]) => [{ vcpus: name.slice('vcpu_'.length) }, stats[figure]]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = createServer((request, response) => {
    if (request.url !== '/metrics') return response.writeHead(404).end();
    try {
      const page = prometheusText(NativeSandboxExecutor.getInstance().getMetrics());
      response.setHeader('content-type', 'text/plain; version=0.0.4; charset=utf-8');
      return response.end(page);
    } catch (error) {
      // No addon, or options that are none: calls say the same.
      return response.writeHead(500).end(`${error.message}\n`);
    }
  });
  server.listen(process.env.PORT ?? 9464, () => process.stdout.write(`port ${server.address().port}\n`));
}
