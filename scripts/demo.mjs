// `npm run demo`: installs, builds, and runs the main job on real input, from a fresh clone with Node and Rust only.

import { createRequire } from 'node:module';
import { buildSteps } from './build.mjs';
import { installIfNeeded, needsRust, runSteps } from './steps.mjs';

const require = createRequire(import.meta.url);

/** What the demo puts into its own environment, for a tool to look for. */
const SECRET = 'sk-demo-0123456789';
const ENDLESS_TIMEOUT_MS = 1500;

const JOBS = [
  {
    title: 'a tool without dependencies',
    args: { celsius: 21 },
    code: '({ celsius }) => ({ fahrenheit: celsius * 9 / 5 + 32 })',
    expected: 'fahrenheit 69.8',
    good: ({ value }) => value?.fahrenheit === 69.8,
  },
  {
    title: 'one that uses lodash and zod',
    args: {
      orders: [
        { city: 'Ulm', total: 12 },
        { city: 'Bonn', total: 30 },
        { city: 'Ulm', total: 8 },
      ],
    },
    code: `async ({ orders }) => {
      const _ = require('lodash');
      const { z } = await import('zod');
      const checked = z.array(z.object({ city: z.string(), total: z.number().positive() })).parse(orders);
      return _.mapValues(_.groupBy(checked, 'city'), (list) => _.sumBy(list, 'total'));
    }`,
    dependencies: { lodash: '^4.17.21', zod: '^4.0.0' },
    expected: 'sums per city',
    good: ({ value }) => value?.Ulm === 20 && value?.Bonn === 30,
  },
  {
    title: 'the same again: installed already',
    args: { list: [3, 1, 2] },
    code: `({ list }) => require('lodash').sortBy(list)`,
    dependencies: { lodash: '^4.17.21', zod: '^4.0.0' },
    expected: '[1,2,3]',
    good: ({ value }) => JSON.stringify(value) === '[1,2,3]',
  },
  {
    title: 'one that throws',
    args: { id: 4711 },
    code: `({ id }) => { throw new RangeError('no customer ' + id); }`,
    expected: 'TOOL_ERROR, a RangeError',
    good: ({ error }) => error?.code === 'TOOL_ERROR' && error.cause?.name === 'RangeError',
  },
  {
    title: 'one that never ends',
    args: {},
    code: '() => { for (;;); }',
    timeout: ENDLESS_TIMEOUT_MS,
    expected: `TIMEOUT after ${ENDLESS_TIMEOUT_MS} ms`,
    good: ({ error, ms }) => error?.code === 'TIMEOUT' && ms < ENDLESS_TIMEOUT_MS + 1000,
  },
  {
    title: 'one that looks for a secret',
    args: {},
    code: `() => ({ found: Object.entries(process.env).filter(([, value]) => value.startsWith('sk-')).map(([name]) => name) })`,
    expected: 'nothing found',
    good: ({ value }) => value?.found.length === 0,
  },
];

async function runJob({ code, args, dependencies = {}, timeout = 30_000 }) {
  const { SandboxExecutorFactory } = require('../index.js');
  const began = performance.now();
  const outcome = await SandboxExecutorFactory.getInstance()
    .executeFunctionTool('demo', args, {
      description: 'demo',
      inputSchema: {},
      executeCode: code,
      dependencies,
      sandboxConfig: { provider: 'native', runtime: 'node22', timeout, vcpus: 2 },
    })
    .then(
      (value) => ({ value }),
      (error) => ({ error })
    );
  return { ...outcome, ms: performance.now() - began };
}

function table(rows) {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column]))
        .join('  ')
        .trimEnd()
    )
    .join('\n');
}

function shown({ value, error }) {
  const text = error ? `${error.code ?? error.name}: ${error.message}` : JSON.stringify(value);
  const flat = String(text).replace(/\s+/g, ' ');
  return flat.length > 72 ? `${flat.slice(0, 71)}…` : flat;
}

async function main() {
  const { SandboxExecutorFactory } = require('../index.js');
  process.env.DEMO_API_KEY = SECRET;
  const rows = [['', 'what', 'expected', 'ms', 'answer']];
  let failed = 0;
  for (const job of JOBS) {
    const outcome = await runJob(job);
    const good = Boolean(job.good(outcome));
    if (!good) failed += 1;
    rows.push([good ? 'ok' : 'BAD', job.title, job.expected, outcome.ms.toFixed(0), shown(outcome)]);
  }
  await SandboxExecutorFactory.getInstance().cleanup();
  console.log(`\n${table(rows)}\n\n${JOBS.length - failed} of ${JOBS.length} as they should be.`);
  if (failed) throw new Error(`${failed} of ${JOBS.length} jobs were not as they should be`);
}

const steps = [
  ['look for the tools', () => needsRust()],
  ['install the development dependencies', installIfNeeded],
  ...buildSteps(),
  ['run', main],
];
process.exitCode = (await runSteps(steps)) ? 0 : 1;
