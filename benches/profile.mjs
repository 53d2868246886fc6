// Where the time of one call goes, by phase.
//
//   node benches/profile.mjs [--tool trivial|packages|fetching] [--calls 100] [--start <rung>]
//
// Looks at what is built, with the running Node. Processes of a machine share the monotonic clock, so a tool that says
// when it began, by `process.hrtime`, can be placed between the moments that the host sees: what it hands over, the
// debug records of the core, the answer, and `onUsage`, which comes when the processes are gone.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { short, summary } from '../cli/bench/stats.mjs';
import { configOf, TOOLS } from '../cli/bench/tools.mjs';
import { argumentsOf } from '../scripts/steps.mjs';
import { rungsText } from './report.mjs';

const NS_PER_MS = 1e6;
const WARM_UP_CALLS = 10;
/** From the answer to `onUsage`: the linger and the end of a few processes, with much to spare. */
const GONE_LIMIT_MS = 10_000;
const RECORDS = {
  'Acquiring execution slot for function tool': 'asked',
  'Executing function tool': 'permitted',
};

/** From one moment to the next; those between which a moment is not known to all calls become one. */
const PHASES = [
  ['begun', 'handedOver', "the host's own thread: JSON, and over to the core"],
  ['handedOver', 'asked', 'check of source and dependencies'],
  ['asked', 'permitted', 'queue'],
  ['permitted', 'processUp', 'lease, run folder, start of a process'],
  ['processUp', 'booted', 'boot of Node'],
  ['booted', 'toolBegan', 'worker script, job, compiling the function'],
  ['toolBegan', 'toolEnded', 'the function'],
  ['toolEnded', 'answered', 'result, and back to the caller'],
  ['answered', 'gone', 'the processes end (after the answer)'],
];

const { values: options } = argumentsOf(import.meta.url, {
  tool: { type: 'string', default: 'trivial' },
  calls: { type: 'string', default: '100' },
  start: { type: 'string' },
});

const require = createRequire(import.meta.url);
const now = () => Number(process.hrtime.bigint()) / NS_PER_MS;

/** The tool, telling its times. */
function observed(code) {
  return `async (args) => {
    const upForMs = performance.now();
    const began = Number(process.hrtime.bigint()) / 1e6;
    const bootMs = performance.nodeTiming.bootstrapComplete;
    const answer = await (${code})(args);
    return { answer, began, upForMs, bootMs, ended: Number(process.hrtime.bigint()) / 1e6 };
  }`;
}

/** Makes one call; gives its moments, in ms of the monotonic clock. */
async function moments(factory, args, { records, plain }) {
  const { right } = TOOLS[options.tool];
  const config = configOf(options.tool);
  const at = {};
  records.current = at;
  let gone;
  const end = new Promise((done) => {
    gone = done;
  });
  const onUsage = () => gone(now());
  at.begun = now();
  const promise = factory.executeFunctionTool(
    'profile',
    args,
    { ...config, executeCode: plain ? config.executeCode : observed(config.executeCode) },
    { onUsage }
  );
  at.handedOver = now();
  const said = await promise;
  at.answered = now();
  const tooLong = limit(GONE_LIMIT_MS, 'onUsage did not come');
  at.gone = await Promise.race([end, tooLong.promise]).finally(tooLong.cancel);
  if (!right(args, plain ? said : said.answer)) throw new Error(`wrong answer: ${JSON.stringify(said)}`);
  return plain ? at : { ...at, ...workersOwn(said, at.begun) };
}

/** A promise that rejects after a time, unless cancelled. */
function limit(ms, what) {
  let timer;
  const promise = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} within ${ms} ms`)), ms);
  });
  return { promise, cancel: () => clearTimeout(timer) };
}

/**
 * A process that was up before the call has no start in it; one that was forked tells of its parent's boot, which is
 * longer than its own life so far.
 */
function workersOwn({ began, ended, upForMs, bootMs }, begun) {
  const up = began - upForMs;
  const own = up > begun && bootMs <= upForMs;
  return { toolBegan: began, toolEnded: ended, ...(own && { processUp: up, booted: up + bootMs }) };
}

/** Times between neighbouring moments that all calls have. */
function phases(calls) {
  const known = (moment) => calls.every((call) => call[moment] !== undefined);
  const rows = [];
  let open;
  for (const [from, to, title] of PHASES) {
    const titles = [...(open?.titles ?? []), title];
    const since = open?.from ?? from;
    if (!known(to)) {
      open = { from: since, titles };
      continue;
    }
    open = undefined;
    rows.push({ title: titles.join('; '), ...summary(calls.map((call) => call[to] - call[since])) });
  }
  return rows;
}

function print(title, rows) {
  const width = Math.max(...rows.map((row) => row.title.length));
  console.log(`\n${title}\n${'phase'.padEnd(width)}  ${'p50 ms'.padStart(9)}  ${'p99 ms'.padStart(9)}`);
  for (const row of rows) {
    console.log(`${row.title.padEnd(width)}  ${short(row.p50).padStart(9)}  ${short(row.p99).padStart(9)}`);
  }
}

async function main() {
  const count = Number(options.calls);
  if (!Number.isInteger(count) || count < 1) throw new Error(`--calls is a number of calls, got ${options.calls}`);
  if (!TOOLS[options.tool]) throw new Error(`--tool is one of ${Object.keys(TOOLS).join(', ')}, got ${options.tool}`);
  const { NativeSandboxExecutor, SandboxExecutorFactory, setLogger } = require('../index.js');
  SandboxExecutorFactory.configure({ maxUseCount: 1e9, ...(options.start && { start: options.start }) });
  const factory = SandboxExecutorFactory.getInstance();
  const server = createServer((request, response) => {
    response.end(JSON.stringify({ n: Number(new URL(request.url, 'http://localhost').searchParams.get('n')) }));
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const url = `http://127.0.0.1:${server.address().port}/`;

  const records = {};
  const workers = () => NativeSandboxExecutor.getInstance().getMetrics().counters.workers;
  const series = async (number, plain) => {
    const calls = [];
    for (let n = 0; n < number; n += 1) {
      calls.push(await moments(factory, { n, url, ...TOOLS[options.tool].args }, { records, plain }));
    }
    return calls;
  };
  await series(WARM_UP_CALLS, true);
  const unobserved = await series(count, true);
  const record = (_fields, message) => {
    if (RECORDS[message]) records.current[RECORDS[message]] = now();
  };
  setLogger({ level: 'debug', debug: record, info() {}, warn() {}, error() {} });
  const before = workers();
  const calls = await series(count, false);
  const rungs = rungsText(workers(), before);
  setLogger(null);
  server.closeAllConnections();
  server.close();

  const whole = (of) => summary(of.map(({ begun, answered }) => answered - begun));
  print(`${options.tool}, ${count} calls one after the other, Node ${process.version}; workers: ${rungs}`, [
    ...phases(calls),
    { title: 'from the call to its answer', ...whole(calls) },
    { title: 'the same, unobserved', ...whole(unobserved) },
  ]);
}

main().catch((error) => {
  console.error(error.stack);
  process.exit(1); // the server would hold it
});
