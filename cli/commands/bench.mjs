// `bench`: how long calls take on this machine, beside a Node that is spawned for each, and beside the published original where the
// working directory has it. Each side is in a host process of its own; short blocks of all sides take turns, so that a machine that
// grows slower meanwhile does so for all.

import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { isOriginal } from '../../lib/swap.js';
import { endHosts, Host } from '../bench/hosts.mjs';
import { latencies } from '../bench/svg.mjs';
import { rateRow, report, SIDES, timeRow } from '../bench-report.mjs';
import { whenInterrupted } from '../interrupt.mjs';
import { assertWritable, write } from '../output-file.mjs';
import { CommandError, JSON_OUTPUT, nonEmpty, wholeNumber } from '../usage.mjs';

const DEFAULT_SAMPLES = 50;
const MAX_SAMPLES = 100_000;
/** Calls before the first that counts: the JIT of the host, the page cache, what is prepared ahead. */
const WARM_UP_CALLS = 10;
const BLOCKS = 5;
const CALLERS = 4;

/** Packages and folders of them that may have the original. */
const ORIGINALS = ['@inkeep/agents-run-api', '@inkeep/agents-api'];
const FOLDERS = ['dist', 'dist/tools', 'dist/domains/run/tools'];

/** A bench that counts warm calls must not count what the 51st brings. */
const ALWAYS_WARM = {
  AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT: '1000000000',
  AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS: '1000000000',
};

const ROOT = fileURLToPath(new URL('../../', import.meta.url));

export const command = {
  name: 'bench',
  summary:
    'Measures calls on this machine, beside a node that is spawned for each, and the published original where it is installed.',
  usage: ['bench [--samples <n>] [--svg <file>] [--json]'],
  options: {
    samples: {
      type: 'string',
      value: '<n>',
      text: `calls of each side (default: ${DEFAULT_SAMPLES})`,
      check: wholeNumber(BLOCKS, MAX_SAMPLES),
    },
    svg: { type: 'string', value: '<file>', text: 'writes a picture of the latencies', check: nonEmpty },
    ...JSON_OUTPUT,
  },
  notes: [
    `The original is looked for as ${ORIGINALS.join(' or ')} from the working directory.`,
    'Let the machine be quiet meanwhile. Exit code: 0, 1 when a call failed or something cannot be written, 2 for wrong usage.',
  ],
  run,
};

const PICTURE = 'the picture';

async function run({ samples = DEFAULT_SAMPLES, svg, json }, _positionals, terminal) {
  const file = svg && resolve(svg);
  const folder = process.cwd();
  if (file) assertWritable(file, PICTURE);
  const scratch = mkdtempSync(join(tmpdir(), 'native-sandbox-executor-bench-'));
  // Workers may run under other users.
  chmodSync(scratch, 0o755);
  const remove = () => rmSync(scratch, { recursive: true, force: true, maxRetries: 5 });
  process.once('exit', remove);
  whenInterrupted(endHosts);
  const original = originalFrom(folder);
  const load = loadavg()[0].toFixed(2);
  const { rows, about } = await terminal.progress('Measuring', () => measured(scratch, original, samples));
  const found = {
    machine: { cpu: cpus()[0]?.model.trim() ?? 'unknown processor', cores: availableParallelism(), load },
    versions: { node: process.version, original: original?.version ?? null },
    start: startOf(about),
    samples,
    rows,
  };
  if (json) terminal.json(found);
  else terminal.out(report(found, terminal.style));
  if (file) write(file, PICTURE, picture(found));
  return 0;
}

async function measured(scratch, original, samples) {
  const files = {
    ours: join(ROOT, 'index.js'),
    node: join(ROOT, 'cli', 'bench', 'plain-node.mjs'),
    ...(original && { original: original.file }),
  };
  const hosts = {};
  let about;
  try {
    for (const [side, file] of Object.entries(files)) {
      const folder = join(scratch, side);
      mkdirSync(folder);
      const told = (metrics) => {
        if (side === 'ours') about = metrics;
      };
      const env = { ...ownSettings(), ...ALWAYS_WARM };
      hosts[side] = await Host.start({ side, file, node: process.execPath, folder, env, onEnd: told });
      await calls(hosts[side], { count: WARM_UP_CALLS });
    }
    const rows = [await warm(hosts, samples), await throughput(hosts, samples)];
    await endAll(hosts);
    return { rows, about };
  } finally {
    await endAll(hosts);
  }
}

/** The settings that the user measures with; hosts get no other variables of the shell. */
function ownSettings() {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => name.startsWith('AGENTS_FUNCTION_TOOL_')));
}

async function endAll(hosts) {
  const ending = Object.values(hosts);
  for (const side of Object.keys(hosts)) delete hosts[side];
  await Promise.all(ending.map((host) => host.end()));
}

async function warm(hosts, samples) {
  const found = await alternating(
    hosts,
    async (host, block) => (await calls(host, { count: share(samples, block) })).ms
  );
  return timeRow('warm', `a call, ${samples} samples`, found);
}

async function throughput(hosts, samples) {
  const found = await alternating(hosts, async (host, block) => {
    const { ms, elapsedMs } = await calls(host, { count: Math.max(CALLERS, share(samples, block)), callers: CALLERS });
    return [(ms.length / elapsedMs) * 1000];
  });
  return rateRow('throughput', `calls per second, ${CALLERS} callers`, found);
}

/** Of `samples` those of one block: together they are all. */
function share(samples, block) {
  return Math.floor(samples / BLOCKS) + (block < samples % BLOCKS ? 1 : 0);
}

async function alternating(hosts, act) {
  const found = Object.fromEntries(Object.keys(hosts).map((side) => [side, []]));
  for (let block = 0; block < BLOCKS; block++) {
    for (const [side, host] of Object.entries(hosts)) found[side].push(...(await act(host, block)));
  }
  return found;
}

/** Calls of an empty function; a wrong answer, or none, ends the bench. */
async function calls(host, request) {
  const answer = await host.ask('calls', { tool: 'trivial', ...request });
  const [failure] = Object.keys(answer.failed);
  if (failure) throw new CommandError(`${SIDES[host.side]} failed: ${failure}`);
  // The original's calls share a file: at times one gets another's answer.
  if (answer.wrong > 0 && host.side !== 'original') throw new CommandError(`${SIDES[host.side]} answered wrongly`);
  return answer;
}

/** By which rungs workers started, and the tier. */
function startOf({ metrics, isolation }) {
  const served = Object.entries(metrics.counters.workers).filter(([, count]) => count > 0);
  return { rung: served.map(([rung, count]) => `${rung} ${count}`).join(', '), tier: isolation.tier };
}

function picture({ rows, machine, versions, start }) {
  return latencies(
    rows.filter(({ unit }) => unit === 'ms'),
    {
      title: 'Time of one call',
      subtitle: `Node ${versions.node.slice(1)}, ${machine.cpu}, ${machine.cores} cores; workers: ${start.rung}; tier ${start.tier}`,
    }
  );
}

/** The file of the original's executor and its version, as an `import` from a folder would find them. */
function originalFrom(folder) {
  const around = createRequire(join(folder, 'any.js')).resolve.paths(ORIGINALS[0]) ?? [];
  const roots = around
    .flatMap((modules) => ORIGINALS.map((name) => join(modules, name)))
    .filter((root) => existsSync(root));
  for (const root of roots) {
    const file = FOLDERS.flatMap((name) => filesIn(join(root, name))).find((one) =>
      isOriginal(pathToFileURL(one).href)
    );
    if (file) return { file, version: JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version };
  }
  return undefined;
}

function filesIn(folder) {
  return existsSync(folder) ? readdirSync(folder).map((name) => join(folder, name)) : [];
}
