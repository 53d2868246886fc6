// `npm run bench`: this package and the published original, side by side in one run.
//
//   npm run bench -- [options]
//
//   --quick            few samples: shows that everything works, not how fast
//   --full             the rows about growth too, 10,000 calls and 100 trees among them
//   --only <id,…>      these rows alone
//   --no-original      this package alone; without the other side there are no ratios
//   --start <rung>     forces a way of starting workers
//   --node <path>      the Node of both sides; without it, a Node 22
//   --name <name>      of the report: bench-results/<name>.json (default: latest)
//   --results <folder> of the report and the picture (default: bench-results)
//   --svg <path>       of the picture (default: latency.svg among the results)
//   --cache <folder>   where the original is kept; about 390 MB
//   --no-build         measures what is built already
//
// Ends with 1 when a row broke or an answer of this package was wrong; a missed target is told, and is no failure.

import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join, resolve } from 'node:path';
import { writeRefusing } from '../__test__/escapes/refusal.mjs';
import { endHosts, Host } from '../cli/bench/hosts.mjs';
import { latencies } from '../cli/bench/svg.mjs';
import { interrupted, interruptible, whenInterrupted } from '../cli/interrupt.mjs';
import { assertWritable } from '../cli/output-file.mjs';
import { CommandError } from '../cli/usage.mjs';
import { buildSteps } from '../scripts/build.mjs';
import {
  argumentsOf,
  installIfNeeded,
  needsRust,
  output,
  ROOT,
  runSteps,
  StepFailed,
  seconds,
} from '../scripts/steps.mjs';
import { defaultCache, node22, ORIGINAL, original } from './cache.mjs';
import { facts, hasSection, loadAverage } from './machine.mjs';
import { preamble, rungsText, table } from './report.mjs';
import { ROWS } from './rows.mjs';

const { platformArchAbi } = createRequire(import.meta.url)('../lib/platform.js');

const NAMES = { ours: 'this package', original: 'the original' };

function options() {
  const flag = { type: 'boolean', default: false };
  const word = { type: 'string' };
  const { values } = argumentsOf(import.meta.url, {
    quick: flag,
    full: flag,
    only: word,
    'no-original': flag,
    start: word,
    node: word,
    name: { ...word, default: 'latest' },
    results: { ...word, default: join(ROOT, 'bench-results') },
    svg: word,
    cache: { ...word, default: defaultCache() },
    'no-build': flag,
  });
  if (!/^[\w.-]+$/.test(values.name)) throw new StepFailed('--name is the name of a file, without folders');
  return { ...values, rows: chosen(values) };
}

function chosen({ only, full }) {
  if (!only) return ROWS.filter((row) => full || !row.full);
  return only.split(',').map((id) => {
    const row = ROWS.find((one) => one.id === id);
    if (!row) throw new StepFailed(`--only ${id}: no such row; there are ${ROWS.map((one) => one.id).join(', ')}`);
    return row;
  });
}

/** What the rows measure with. */
function refusing(folder, refused, command, variables) {
  const program = join(folder, 'refusing');
  writeRefusing(program, refused, command, variables);
  return [program];
}

class Bench {
  faults = [];
  about;
  #files;
  #quick;
  #start;
  #folders = 0;
  #workers = {};

  constructor({ node, files, quick, start, scratch }) {
    this.node = node;
    this.scratch = scratch;
    this.#files = files;
    this.#quick = quick;
    this.#start = start;
  }

  /** The sides that are measured, this package first. */
  get sides() {
    return Object.keys(this.#files);
  }

  name(side) {
    return NAMES[side];
  }

  pick({ quick, usual }) {
    return this.#quick ? quick : usual;
  }

  /** Something that this package did wrong: the run fails. */
  fault(text) {
    this.faults.push(text);
  }

  /** A folder of a host's own, for its temp folder and home. */
  folder(side) {
    this.#folders += 1;
    const folder = join(this.scratch, 'hosts', `${side}-${this.#folders}`);
    mkdirSync(folder, { recursive: true });
    return folder;
  }

  /** `refused`: what of the kernel's help is refused to it. What such a host says about itself does not count as this machine's. */
  start(side, { env = {}, folder = this.folder(side), refused } = {}) {
    const forced = side === 'ours' && this.#start ? { AGENTS_FUNCTION_TOOL_SANDBOX_START: this.#start } : {};
    const text = Object.fromEntries(
      Object.entries({ ...env, ...forced }).map(([name, value]) => [name, String(value)])
    );
    const onEnd = side === 'ours' && !refused ? (about) => this.#told(about) : undefined;
    const through = refused ? (command, variables) => refusing(folder, refused, command, variables) : undefined;
    return Host.start({ side, file: this.#files[side], node: this.node.path, folder, env: text, through, onEnd });
  }

  /** Notes what a host of ours says about itself at its end. */
  #told(about) {
    this.about = about;
    for (const [rung, count] of Object.entries(about.metrics.counters.workers)) {
      this.#workers[rung] = (this.#workers[rung] ?? 0) + count;
    }
  }

  /** The workers that ours started since this was asked last, by rung. */
  takeWorkers() {
    const taken = this.#workers;
    this.#workers = {};
    return taken;
  }

  /** Removes what the hosts of a row left. */
  clean() {
    rmSync(join(this.scratch, 'hosts'), { recursive: true, force: true, maxRetries: 5 });
  }
}

async function prepared(options) {
  if (process.platform !== 'linux') throw new StepFailed('The bench reads /proc: it runs on Linux only.');
  if (!options['no-build']) await build();
  if (!existsSync(join(ROOT, 'binding.cjs')))
    throw new StepFailed('There is no build to measure: leave --no-build out.');
  const machine = facts();
  const node = await node22(options.cache, options.node && resolve(options.node));
  const files = { ours: join(ROOT, 'index.js') };
  let originalIs = 'left out (--no-original)';
  if (!options['no-original']) {
    const { file, version } = await original(options.cache);
    files.original = file;
    originalIs = `${ORIGINAL} ${version}`;
  }
  const versions = {
    node: node.version,
    nodeOrigin: node.origin,
    npm: output('npm', ['--version'], { env: { PATH: [dirname(node.path), process.env.PATH].join(delimiter) } }).trim(),
    package: JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).version,
    build: builtAs(),
    original: originalIs,
  };
  return { machine, node, files, versions };
}

async function build() {
  const steps = [
    ['look for the tools', () => needsRust()],
    ['install the development dependencies', installIfNeeded],
    ...buildSteps(),
  ];
  if (!(await runSteps(steps))) throw new StepFailed('The build failed.');
}

/** A debug build carries debug information, a release build does not: its figures must never pass for real ones. */
function builtAs() {
  const addon = join(ROOT, `native-sandbox-executor.${platformArchAbi()}.node`);
  return hasSection(readFileSync(addon), '.debug_info') ? 'DEBUG BUILD: these are no figures to show' : 'release build';
}

async function measure(bench, rows) {
  const lines = [];
  for (const { id, measure: act } of rows) {
    const began = performance.now();
    try {
      const [first, ...others] = [await act(bench)].flat();
      lines.push({ ...first, workers: bench.takeWorkers() }, ...others);
    } catch (error) {
      bench.fault(`${id} broke: ${error.stack}`);
      lines.push({ id, title: id, error: error.message, workers: bench.takeWorkers() });
    } finally {
      bench.clean();
    }
    console.error(`${id}: ${seconds(performance.now() - began)}`);
  }
  return lines;
}

/** The rungs that served in all rows, and the tier, as the package itself names it. */
function startOf(bench, lines) {
  if (!bench.about) throw new StepFailed('No host process of this package told about itself: nothing was measured.');
  const { metrics, isolation } = bench.about;
  const all = {};
  for (const { workers } of lines) {
    for (const [rung, count] of Object.entries(workers ?? {})) all[rung] = (all[rung] ?? 0) + count;
  }
  const refused = [...(metrics.rungsNotUsed ?? []), metrics.withoutLauncher].filter(Boolean);
  return {
    rung: rungsText(all),
    tier: isolation.tier,
    refused: refused.map((one) => (typeof one === 'string' ? one : JSON.stringify(one))).join('; '),
  };
}

function write(path, text) {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  console.log(`written: ${path}`);
}

function picture(lines, { machine, versions, start }) {
  return latencies(lines, {
    title: 'Time of one call',
    subtitle: `Node ${versions.node.slice(1)}, ${machine.cpu}, ${machine.cores} cores; workers: ${start.rung}; tier ${start.tier}; original: ${versions.original}`,
  });
}

async function main() {
  const chosenOptions = options();
  const { quick, name, results, svg = join(results, 'latency.svg') } = chosenOptions;
  const report = resolve(results, `${name}.json`);
  // What cannot be written is told before anything is measured.
  for (const [file, what] of [
    [report, 'the report'],
    [resolve(svg), 'the picture'],
  ]) {
    assertWritable(file, what);
  }
  const { machine, node, files, versions } = await prepared(chosenOptions);
  const scratch = mkdtempSync(join(tmpdir(), 'nse-bench-'));
  // Workers may run under other users.
  chmodSync(scratch, 0o755);
  process.on('exit', () => rmSync(scratch, { recursive: true, force: true, maxRetries: 5 }));

  const bench = new Bench({ node, files, quick, start: chosenOptions.start, scratch });
  const lines = await measure(bench, chosenOptions.rows);
  machine.loadAverageAtEnd = loadAverage();
  const about = { machine, versions, start: startOf(bench, lines), quick };
  console.log(`\n${preamble(about)}\n\n${table(lines)}\n`);
  write(report, `${JSON.stringify({ ...about, date: new Date().toISOString(), lines }, null, 1)}\n`);
  const shown = lines.filter(({ plot }) => plot);
  if (shown.length > 0) write(resolve(svg), picture(shown, about));
  for (const fault of bench.faults) console.error(`FAULT: ${fault}`);
  process.exitCode = bench.faults.length > 0 ? 1 : 0;
}

interruptible((signal) => console.error(`interrupted by ${signal}`));
whenInterrupted(endHosts);
main().catch((error) => {
  // The hosts of a run that is interrupted end in the middle of it.
  if (interrupted.aborted) return;
  console.error(error instanceof StepFailed || error instanceof CommandError ? error.message : error.stack);
  process.exitCode = 1;
});
