// What is measured: one function per row of the table. Each gives a line (see `line`), with its samples.
//
// A row alternates short blocks of both sides (A B A B …), so that a machine that grows slower meanwhile does so for both.

import { execFileSync } from 'node:child_process';
import { closeSync, fstatSync, mkdirSync, openSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { median, short, summary } from '../cli/bench/stats.mjs';
import { configOf, TOOLS } from '../cli/bench/tools.mjs';
import { output } from '../scripts/steps.mjs';
import { memoryBelow, quiet } from './machine.mjs';

const MIB = 2 ** 20;
const NEVER = 1_000_000_000;
const SHOWN_CHARS = 100;

/** A row that counts warm calls must not count the installation that the 51st brings. */
const ALWAYS_WARM = {
  AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT: NEVER,
  AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS: NEVER,
};
/** Calls before the first that counts: the JIT of the host, the page cache, what is prepared ahead. */
const WARM_UP_CALLS = 10;

/** What a tier may cost on a warm call, as a multiple of base. */
const CONFINED_FACTOR = 1.15;
const ISOLATED_FACTOR = 1.6;

/** Layers that can be refused from outside, each with what the refusal is called, or with the setting that declines it. */
const LAYERS = [
  { layer: 'pidNamespace', refused: 'pids' },
  { layer: 'mountNamespace', refused: 'roots' },
  { layer: 'systemCalls', refused: 'seccomp' },
  { layer: 'files', refused: 'landlock' },
  { layer: 'privateUser', refused: 'users' },
  { layer: 'diskQuota', refused: 'nothing', env: { AGENTS_FUNCTION_TOOL_SANDBOX_RUN_FOLDERS: 'disk' } },
];
/** The others, and why not. */
const UNREFUSED = [
  ['ipcNamespace, utsNamespace', 'one system call makes all namespaces: they are refused together'],
  ['signals', 'it is a part of the Landlock domain that is asked for in memory, where no filter looks'],
  ['controlGroup', 'it is in force only where a group is delegated to the server, and leaves no way to refuse it'],
  ['networkClosed', "it is in force with network: 'none' only"],
  ['networkRules, metadataAddresses', 'the lines network-rules and connections are about them'],
  ['noNewPrivileges, capabilities', 'a process that is refused these does not run: no layer is left then'],
  [
    'processGroup, descriptors, environment, runFolder, treeKill',
    'every process has them, without help that could be refused',
  ],
];

const CALLS_IN_FLIGHT = 20;
/**
 * They begin apart: the original's calls share a file, and one that begins while another's is read spoils that. Where
 * that still happens, or they are not all in flight at once, it is tried again, slower.
 */
const FIRST_RAMP_MS = 50;
const LAST_RAMP_MS = 800;
/** How long a call is in flight, as a multiple of the time that all take to begin. */
const HOLD_FACTOR = 4;

const LOOP_CALLERS = 64;
const TREE_FOLDERS = 200;
const IDLE_MS = 3000;
const LOOP_LOAD_MIN_MS = 3000;
const REMOVAL_LIMIT_MS = 60_000;
const REMOVAL_NUDGE_MS = 10_000;
/** The tree's files are some 20 MB: the sweep, or the size limit, has a reason to remove it, whichever does. */
const TREE_FILE_BYTES = 1024;
const LOOP_ENV = {
  AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT: NEVER,
  AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS: 8000,
  AGENTS_FUNCTION_TOOL_SANDBOX_CLEANUP_INTERVAL_MS: 500,
  AGENTS_FUNCTION_TOOL_SANDBOX_STORE_MAX_BYTES: 8 * MIB,
};

/** One after the other, in one call; and what each may take of host and function. */
const ROUND_TRIPS = 1000;
const ROUND_TRIP_US = 60;

/** What rules of `network` may cost a call that makes no connection, each connection, and the calls of others meanwhile. */
const RULES = { AGENTS_FUNCTION_TOOL_SANDBOX_NETWORK: '{"allow":["127.0.0.1"]}' };
const RULES_FACTOR = 1.05;
const CONNECTION_MS = 0.3;
const CONNECTIONS = 200;
const CROWD = { callers: 20, connections: 50 };
const STALL_MS = 100;

/** What listening may cost. */
const HEARD_FACTOR = 1.1;
const ASKED_TIMES = 10_000;

const WARM = {
  trivial: { id: 'warm', title: 'warm call, no dependencies', tool: 'trivial', factor: 30, target: '≥ 30× faster' },
  packages: {
    id: 'packages',
    title: 'warm call using lodash, zod, axios',
    tool: 'packages',
    factor: 25,
    target: '≥ 25× faster',
  },
};
/** Between two calls of a caller: what is prepared for the next one is then no part of it, as at most servers. */
const PAUSE_MS = 20;
const apart = (row) => ({
  ...row,
  id: `${row.id}-apart`,
  title: `${row.title}, ${PAUSE_MS} ms apart`,
  pauseMs: PAUSE_MS,
});

/** Growth up to this factor is noise; what grows with calls, trees or callers grows by more between the ends. */
const FLAT = 1.25;

/** `measure` gives a line of the table, or a group of them. */
export const ROWS = [
  { id: 'warm', measure: (bench) => warm(bench, WARM.trivial) },
  { id: 'warm-apart', measure: (bench) => warm(bench, apart(WARM.trivial)) },
  { id: 'packages', measure: (bench) => warm(bench, WARM.packages) },
  { id: 'packages-apart', measure: (bench) => warm(bench, apart(WARM.packages)) },
  { id: 'isolation', measure: isolated },
  { id: 'throughput', measure: throughput },
  { id: 'new-host', measure: newHost },
  { id: 'new-session', measure: newSession },
  { id: 'memory', measure: memory },
  { id: 'fetch', measure: fetching },
  { id: 'fetch-memory', measure: fetchMemory },
  { id: 'event-loop', measure: eventLoop },
  { id: 'cpu', measure: (bench) => asFastAsNode(bench, 'cpu', 'CPU-bound tool, own time', 'computing') },
  {
    id: 'allocation',
    measure: (bench) => asFastAsNode(bench, 'allocation', 'allocation-heavy tool, own time', 'allocating'),
  },
  { id: 'prepare', measure: preparing },
  { id: 'big-text', measure: bigText },
  { id: 'host-functions', measure: hostFunctions },
  { id: 'network-rules', measure: networkRules },
  { id: 'connections', measure: connections },
  { id: 'connections-at-once', measure: connectionsAtOnce },
  { id: 'tracing', measure: tracing },
  { id: 'after-calls', full: true, measure: afterCalls },
  { id: 'with-trees', full: true, measure: withTrees },
  { id: 'with-waiting', full: true, measure: withWaiting },
];

/* ------------------------------------------------------------------ lines */

/**
 * One line of the table.
 *
 * @param {{ id: string, title: string, unit: string, target: string, met: boolean, ratio?: number,
 *   sides: Record<string, { value: number, p99?: number, samples?: number[] }>, notes?: string[], plot?: boolean }} what
 *   `value` is what is compared (a median, mostly); `ratio` is how much better this package is, or what `title` says where there is no
 *   other side; `plot` puts its samples into the picture.
 */
function line({ notes = [], ...what }) {
  return { ...what, notes: notes.filter(Boolean) };
}

/** Both sides' medians of a time, smaller is better. */
function timeLine({ samples, factor, notes, spoilt, ...what }) {
  const sides = Object.fromEntries(
    Object.entries(samples).map(([side, blocks]) => {
      const all = blocks.flat();
      const { p50, ...rest } = summary(all);
      const medians = blocks.map(median);
      return [side, { value: p50, ...rest, blockMedians: medians, samples: all }];
    })
  );
  const ratio = sides.original && sides.original.value / sides.ours.value;
  return line({
    unit: 'ms',
    plot: true,
    ...what,
    sides,
    ratio,
    met: ratio && !spoilt ? ratio >= factor : undefined,
    notes,
  });
}

/** What a side answered wrongly or not at all, in words; ours makes the run fail. */
function faults(bench, side, id, { wrong, failed }) {
  const failures = Object.values(failed).reduce((sum, count) => sum + count, 0);
  if (!wrong && !failures) return undefined;
  const [text] = Object.keys(failed).map(firstLine);
  const words = [wrong && `${wrong} wrong answers`, failures && `${failures} failed (${text})`]
    .filter(Boolean)
    .join(', ');
  const note = `${bench.name(side)}: ${words}`;
  if (side === 'ours') bench.fault(`${id}: ${note}`);
  return note;
}

function firstLine(text) {
  return text.split('\n')[0].slice(0, SHOWN_CHARS);
}

function added(one, other) {
  const failed = { ...one.failed };
  for (const [text, count] of Object.entries(other.failed)) failed[text] = (failed[text] ?? 0) + count;
  return { wrong: one.wrong + other.wrong, failed };
}

const NO_FAULTS = { wrong: 0, failed: {} };

/** Runs `act(side, at)` for each side in turn, `blocks` times; gives the results by side. */
async function alternate(bench, blocks, act) {
  const results = Object.fromEntries(bench.sides.map((side) => [side, []]));
  for (let at = 0; at < blocks; at += 1) for (const side of bench.sides) results[side].push(await act(side, at));
  return results;
}

/** A host of each side for as long as `act` takes. */
async function withHosts(bench, env, act) {
  const hosts = {};
  try {
    for (const side of bench.sides) hosts[side] = await bench.start(side, { env });
    return await act(hosts);
  } finally {
    await Promise.all(Object.values(hosts).map((host) => host.end()));
  }
}

/** One host of a side for as long as `act` takes. */
async function withHost(bench, side, options, act) {
  const host = await bench.start(side, options);
  try {
    return await act(host);
  } finally {
    await host.end();
  }
}

/** What it costs when somebody listens to the channels of calls, and the question whether anybody does. */
async function hostFunctions(bench) {
  const [blocks] = bench.pick({ quick: [2], usual: [20] });
  return withHost(bench, 'ours', { env: ALWAYS_WARM }, async (host) => {
    await host.ask('conversations', { count: WARM_UP_CALLS, rounds: ROUND_TRIPS });
    const found = { none: [], many: [] };
    const told = new Set();
    for (let at = 0; at < blocks; at += 1) {
      for (const [key, rounds] of [
        ['none', 0],
        ['many', ROUND_TRIPS],
      ]) {
        await quiet(host.pid);
        const seen = await host.ask('conversations', { count: 1, rounds });
        told.add(faults(bench, 'ours', 'host-functions', { ...seen, ms: seen.us }));
        found[key].push(...seen.us);
      }
    }
    const without = median(found.none);
    const samples = found.many.map((us) => (us - without) / ROUND_TRIPS);
    const each = summary(samples);
    return line({
      id: 'host-functions',
      title: `processor time of a call of a host function, ${ROUND_TRIPS} in one call`,
      unit: 'µs',
      target: `≤ ${ROUND_TRIP_US} µs`,
      sides: { ours: { value: each.p50, ...each, samples } },
      met: each.p50 <= ROUND_TRIP_US,
      notes: ['of host and function together, one after the other', ...told],
      plot: false,
    });
  });
}

/** A call that makes no connection, with rules of `network` and without, side by side. */
async function networkRules(bench) {
  const [blocks, count] = bench.pick({ quick: [3, 10], usual: [20, 50] });
  return withHost(bench, 'ours', { env: ALWAYS_WARM }, (open) =>
    withHost(bench, 'ours', { env: { ...ALWAYS_WARM, ...RULES } }, async (ruled) => {
      const found = { open: [], ruled: [] };
      const told = new Set();
      for (const host of [open, ruled]) await host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS });
      for (let at = 0; at < blocks; at += 1) {
        for (const [key, host] of Object.entries({ open, ruled })) {
          await quiet(host.pid);
          const seen = await host.ask('calls', { tool: 'trivial', count });
          told.add(faults(bench, 'ours', 'network-rules', seen));
          found[key].push(...seen.ms);
        }
      }
      const [without, under] = [summary(found.open), summary(found.ruled)];
      const factor = under.p50 / without.p50;
      return line({
        id: 'network-rules',
        title: 'warm call without a connection, under an allow-list',
        unit: 'ms',
        target: `≤ ${RULES_FACTOR}× of a call without rules`,
        sides: { ours: { value: under.p50, ...under, samples: found.ruled } },
        met: factor <= RULES_FACTOR,
        notes: [`without rules ${short(without.p50)} ms (${short(factor)}×)`, ...told],
      });
    })
  );
}

/** Connections of one call, one after the other, to a server on the loopback; and the same outside of a sandbox. */
async function connections(bench) {
  const [calls] = bench.pick({ quick: [3], usual: [20] });
  return withServer((url) =>
    withHost(bench, 'ours', { env: { ...ALWAYS_WARM, ...RULES } }, async (host) => {
      const args = { port: Number(new URL(url).port), connections: CONNECTIONS };
      const samples = [];
      const told = new Set();
      for (let at = 0; at < calls; at += 1) {
        await quiet(host.pid);
        const seen = await host.ask('calls', { tool: 'connecting', count: 1, args });
        told.add(faults(bench, 'ours', 'connections', seen));
        if (seen.last) samples.push(seen.last.ms);
      }
      const plain = await new Function(`return (${TOOLS.connecting.code})`)()({ n: 0, ...args }).catch(() => undefined);
      const each = summary(samples);
      return line({
        id: 'connections',
        title: `a new connection under an allow-list, ${CONNECTIONS} in one call`,
        unit: 'ms',
        target: `≤ ${CONNECTION_MS} ms`,
        sides: { ours: { value: each.p50, ...each, samples } },
        met: each.p50 <= CONNECTION_MS,
        notes: [plain && `outside of a sandbox ${short(plain.ms)} ms`, ...told],
      });
    })
  );
}

/** How long calls of others take while many connect at once. */
async function connectionsAtOnce(bench) {
  const [blocks] = bench.pick({ quick: [2], usual: [10] });
  return withServer((url) =>
    withHost(bench, 'ours', { env: { ...ALWAYS_WARM, ...RULES } }, async (host) => {
      const args = { port: Number(new URL(url).port), connections: CROWD.connections, atOnce: true };
      // As many calls of the same function that connect once, and those that connect often.
      const crowd = { tool: 'connecting', count: CROWD.callers, callers: CROWD.callers };
      const crowds = { alone: { ...crowd, args: { ...args, connections: 1 } }, beside: { ...crowd, args } };
      const told = new Set();
      const found = { alone: [], beside: [] };
      await host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS });
      for (let at = 0; at < blocks; at += 1) {
        for (const key of ['alone', 'beside']) {
          await quiet(host.pid);
          const [others, seen] = await Promise.all([
            host.ask('calls', crowds[key]),
            host.ask('calls', { tool: 'trivial', count: CROWD.callers }),
          ]);
          for (const one of [others, seen]) told.add(faults(bench, 'ours', 'connections-at-once', one));
          found[key].push(...seen.ms);
        }
      }
      const [alone, beside] = [summary(found.alone), summary(found.beside)];
      return line({
        id: 'connections-at-once',
        title: `warm call, while ${CROWD.callers} others make ${CROWD.callers * CROWD.connections} connections at once`,
        unit: 'ms',
        target: `p99 ≤ ${STALL_MS} ms above that beside calls that make one each`,
        sides: { ours: { value: beside.p50, ...beside, samples: found.beside } },
        met: beside.p99 <= alone.p99 + STALL_MS,
        notes: [`beside calls that make one each ${short(alone.p50)} ms, p99 ${short(alone.p99)} ms`, ...told],
      });
    })
  );
}

async function tracing(bench) {
  const [blocks, count] = bench.pick({ quick: [2, 10], usual: [10, 50] });
  return withHost(bench, 'ours', { env: ALWAYS_WARM }, async (host) => {
    await host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS });
    const asking = await host.ask('asking', { count: ASKED_TIMES });
    const told = [];
    const block = async () => {
      await quiet(host.pid);
      const seen = await host.ask('calls', { tool: 'trivial', count });
      told.push(faults(bench, 'ours', 'tracing', seen));
      return seen.ms;
    };
    const found = { off: [], on: [] };
    for (let at = 0; at < blocks; at += 1) {
      found.off.push(await block());
      await host.ask('listen', { on: true });
      found.on.push(await block());
      await host.ask('listen', { on: false });
    }
    const [off, on] = [summary(found.off.flat()), summary(found.on.flat())];
    const factor = on.p50 / off.p50;
    return line({
      id: 'tracing',
      title: 'warm call, with a listener on every channel',
      unit: 'ms',
      target: `≤ ${HEARD_FACTOR}× of a call that nobody listens to`,
      sides: { ours: { value: on.p50, ...on, samples: found.on.flat() } },
      met: factor <= HEARD_FACTOR,
      notes: [
        `without a listener ${short(off.p50)} ms (${short(factor)}×)`,
        `asking whether anybody listens takes ${short(median(asking))} ns of it`,
        ...told,
      ],
    });
  });
}

/** A large text at its first three uses: prepared, compiled, and taken from V8's cache, which is made meanwhile. */
async function bigText(bench) {
  const [texts] = bench.pick({ quick: [3], usual: [40] });
  return withHost(bench, 'ours', { env: ALWAYS_WARM }, async (host) => {
    await host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS });
    const uses = [[], [], []];
    const told = new Set();
    for (let variant = 0; variant < texts; variant += 1) {
      for (const samples of uses) {
        await quiet(host.pid);
        const seen = await host.ask('calls', { tool: 'bundle', variant, count: 1 });
        told.add(faults(bench, 'ours', 'big-text', seen));
        samples.push(...seen.ms);
      }
    }
    const [first, second, third] = uses.map(summary);
    const { metrics } = await host.ask('metrics');
    const { accepted, refused } = metrics.sources.codeCaches;
    return line({
      id: 'big-text',
      title: `warm call of a text of ${Math.round(TOOLS.bundle.code.length / 1000)} kB, compiled before`,
      unit: 'ms',
      target: 'faster than compiled anew',
      sides: { ours: { value: third.p50, ...third, samples: uses[2] } },
      met: third.p50 < second.p50,
      notes: [
        `compiled anew ${short(second.p50)} ms, and prepared before that ${short(first.p50)} ms`,
        `caches taken ${accepted}, refused ${refused}`,
        ...told,
      ],
    });
  });
}

/* ------------------------------------------------------------------ times of calls */

async function warm(bench, { tool, args, pauseMs, ...what }) {
  const [blocks, count] = bench.pick({ quick: [3, 10], usual: [10, 50] });
  return withHosts(bench, ALWAYS_WARM, async (hosts) => {
    for (const side of bench.sides) {
      await hosts[side].ask('calls', { tool, args, count: WARM_UP_CALLS });
    }
    const results = await alternate(bench, blocks, async (side) => {
      await quiet(hosts[side].pid);
      return hosts[side].ask('calls', { tool, args, count, pauseMs });
    });
    return timesOf(bench, { ...what, results });
  });
}

function timesOf(bench, { results, notes = [], ...what }) {
  const found = bench.sides.map((side) => [side, results[side].reduce(added, NO_FAULTS)]);
  const told = found.map(([side, sum]) => faults(bench, side, what.id, sum));
  const samples = Object.fromEntries(bench.sides.map((side) => [side, results[side].map(({ ms }) => ms)]));
  return timeLine({ ...what, samples, spoilt: Boolean(told[0]), notes: [...notes, ...told] });
}

/** What the tiers cost, and each layer of them. */
async function isolated(bench) {
  const tiers = await tiersOf(bench);
  const { lines, notes } = await layersOf(bench);
  return [{ ...tiers, notes: [...tiers.notes, ...notes] }, ...lines];
}

/** Warm calls of hosts to which a part of the kernel's help is refused, side by side: what each says of its layers, and how long calls took. */
async function refusals(bench, all) {
  const [blocks, count] = bench.pick({ quick: [3, 10], usual: [10, 50] });
  const hosts = [];
  try {
    for (const { refused, env } of all) {
      const host = await bench.start('ours', { env: { ...ALWAYS_WARM, ...env }, refused });
      hosts.push({ host, refused, blocks: [] });
      await host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS });
    }
    for (let at = 0; at < blocks; at += 1) {
      for (const { host, blocks } of hosts) {
        await quiet(host.pid);
        blocks.push(await host.ask('calls', { tool: 'trivial', count }));
      }
    }
    const told = [];
    for (const { host, refused, blocks } of hosts) {
      const { isolation } = await host.ask('metrics');
      const { p50, p99 } = summary(blocks.flatMap(({ ms }) => ms));
      const layers = isolation.layers.filter(({ inForce }) => inForce).map(({ name }) => name);
      const fault = faults(bench, 'ours', 'isolation', blocks.reduce(added, NO_FAULTS));
      told.push({ tier: isolation.tier, layers, refused, p50, p99, fault });
    }
    return told;
  } finally {
    await Promise.all(hosts.map(({ host }) => host.end()));
  }
}

/** What the tiers cost: a host that has all there is beside hosts that have less. */
async function tiersOf(bench) {
  const told = await refusals(bench, [{}, { refused: 'namespaces' }, { refused: 'landlock' }]);
  const [all, ...less] = told;
  const base = told.at(-1).p50;
  const within = (tier) => (tier === 'isolated' ? ISOLATED_FACTOR : CONFINED_FACTOR);
  const judged = told.slice(0, -1);
  return line({
    id: 'isolation',
    title: 'warm call, no dependencies, with all isolation that there is',
    unit: 'ms',
    target: `confined ≤ ${CONFINED_FACTOR}×, isolated ≤ ${ISOLATED_FACTOR}× of base`,
    sides: { ours: { value: all.p50, p99: all.p99 } },
    met: judged.every(({ tier, p50, fault }) => !fault && p50 <= base * within(tier)),
    notes: [
      ...told.map((one) => `${one.tier}: ${short(one.p50)} ms, ${short(one.p50 / base)}× of base`),
      ...less.map((one) => `${one.tier}: ${one.refused} refused, the other layers as they are`),
      ...told.map(({ fault }) => fault),
    ],
  });
}

/** What each layer costs: a line for each that can be refused, and in words why the others cannot. */
async function layersOf(bench) {
  const [all, ...less] = await refusals(bench, [{ refused: 'nothing' }, ...LAYERS]);
  const lines = [];
  const notes = UNREFUSED.map(([layers, why]) => `${layers}: no line, as ${why}`);
  for (const [at, { layer }] of LAYERS.entries()) {
    const { layers, p50, p99, fault } = less[at];
    const lost = all.layers.filter((name) => !layers.includes(name));
    if (!all.layers.includes(layer)) notes.push(`${layer}: no line, as it is not in force here`);
    else if (lost.includes(layer)) lines.push(layerLine(layer, { all, lost, p50, p99, fault }));
    // A line would tell of something else.
    else bench.fault(`isolation: ${layer} was refused, and is in force all the same`);
  }
  return { lines, notes };
}

function layerLine(layer, { all, lost, p50, p99, fault }) {
  const others = lost.filter((name) => name !== layer);
  return line({
    id: `isolation-${layer}`,
    title: `the same without ${layer}, beside all layers`,
    unit: 'ms',
    target: 'told',
    sides: { ours: { value: p50, p99 } },
    ratio: p50 / all.p50,
    met: undefined,
    notes: [
      `${short(p50)} ms, ${short(p50 / all.p50)}× of the ${short(all.p50)} ms with all layers, under a filter that refuses nothing`,
      others.length > 0 && `cannot be refused by itself: with it went ${others.join(', ')}`,
      fault,
    ],
  });
}

async function throughput(bench) {
  const [blocks, forMs] = bench.pick({ quick: [2, 1000], usual: [6, 5000] });
  const load = { tool: 'trivial', callers: 8, vcpus: 4 };
  // With the limits that both have by default: what a sandbox's replacement costs belongs to it.
  return withHosts(bench, {}, async (hosts) => {
    for (const side of bench.sides) await hosts[side].ask('calls', { ...load, count: WARM_UP_CALLS });
    const results = await alternate(bench, blocks, async (side) => {
      await quiet(hosts[side].pid);
      return hosts[side].ask('calls', { ...load, forMs });
    });
    const sides = Object.fromEntries(bench.sides.map((side) => [side, ratesOf(results[side])]));
    const ratio = sides.original && sides.ours.value / sides.original.value;
    const notes = bench.sides.map((side) => faults(bench, side, 'throughput', results[side].reduce(added, NO_FAULTS)));
    return line({
      id: 'throughput',
      title: 'answered calls per second, 8 callers, 4 permits',
      unit: '/s',
      target: '≥ 8×, none failed',
      sides,
      ratio,
      met: ratio && ratio >= 8 && !notes[0],
      notes,
    });
  });
}

/** Answered means: with a value, the right one or (the original's, at times) another call's. */
function ratesOf(blocks) {
  const rates = blocks.map(({ ms, elapsedMs }) => (ms.length / elapsedMs) * 1000);
  const { wrong, failed } = blocks.reduce(added, NO_FAULTS);
  const answered = blocks.reduce((sum, { ms }) => sum + ms.length, 0);
  const failures = Object.values(failed).reduce((sum, count) => sum + count, 0);
  return { value: median(rates), rates, answered, wrong, failures };
}

async function newHost(bench) {
  const folders = Object.fromEntries(bench.sides.map((side) => [side, bench.folder(side)]));
  const first = (side) =>
    withHost(bench, side, { folder: folders[side] }, (host) => host.ask('calls', { tool: 'packages', count: 1 }));
  for (const side of bench.sides) await first(side);
  const results = await alternate(bench, bench.pick({ quick: 2, usual: 10 }), first);
  return timesOf(bench, {
    id: 'new-host',
    title: 'first call of a new host process, set on disk',
    factor: 12,
    target: '≥ 12× faster',
    results,
  });
}

async function newSession(bench) {
  const [blocks, count] = bench.pick({ quick: [1, 2], usual: [5, 4] });
  return withHosts(bench, {}, async (hosts) => {
    for (const side of bench.sides) await hosts[side].ask('calls', { tool: 'packages', count: 2 });
    const results = await alternate(bench, blocks, async (side) => {
      await quiet(hosts[side].pid);
      return hosts[side].ask('sessions', { tool: 'packages', count });
    });
    return timesOf(bench, {
      id: 'new-session',
      title: 'first call of a new session, set known',
      factor: 200,
      target: '≥ 200× faster',
      results,
      notes: ['a session of the original: a factory with a native executor of its own, as in its later versions'],
    });
  });
}

async function fetching(bench) {
  return withServer((url) =>
    warm(bench, {
      id: 'fetch',
      title: 'warm call with one loopback fetch',
      tool: 'fetching',
      factor: 4,
      target: '≥ 4× faster',
      args: { url },
    })
  );
}

/** A server on the loopback that answers with the number it was asked for; it lives in the runner, which is idle. */
async function withServer(act) {
  const server = createServer((request, response) => {
    const n = Number(new URL(request.url, 'http://localhost').searchParams.get('n'));
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ n }));
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  try {
    return await act(`http://127.0.0.1:${server.address().port}/`);
  } finally {
    server.closeAllConnections();
    await new Promise((done) => server.close(done));
  }
}

/* ------------------------------------------------------------------ memory */

async function memory(bench) {
  const results = await alternate(bench, bench.pick({ quick: 1, usual: 3 }), (side) =>
    memoryOf(bench, side, 'memory', 'waiting')
  );
  return memoryLine({
    id: 'memory',
    title: `memory per trivial call in flight (PSS, ${CALLS_IN_FLIGHT} in flight)`,
    target: '≤ 1.5 MiB',
    met: ({ ours }) => ours.value <= 1.5,
    results,
  });
}

async function fetchMemory(bench) {
  const results = await withServer((url) =>
    alternate(bench, bench.pick({ quick: 1, usual: 3 }), (side) =>
      memoryOf(bench, side, 'fetch-memory', 'fetchedAndWaiting', { url })
    )
  );
  return memoryLine({
    id: 'fetch-memory',
    title: `memory per call in flight after its fetch (PSS, ${CALLS_IN_FLIGHT} in flight)`,
    target: "below the original's",
    met: ({ ours, original }) => original && ours.value < original.value,
    results,
  });
}

function memoryLine({ results, met, ...what }) {
  const sides = Object.fromEntries(
    Object.entries(results).map(([side, takes]) => {
      const of = (key) => median(takes.map((take) => take[key]));
      return [side, { value: of('perCall'), idleMiB: of('idle'), addedPerCallMiB: of('addedPerCall'), takes }];
    })
  );
  const { ours, original } = sides;
  const notes = [
    `everything below the host, divided by ${CALLS_IN_FLIGHT}; of this package's, ${short(ours.idleMiB)} MiB in all are there without a call, and a call adds ${short(ours.addedPerCallMiB)} MiB`,
  ];
  return line({ unit: 'MiB', ...what, sides, ratio: original && original.value / ours.value, met: met(sides), notes });
}

/**
 * Memory of everything below a host, without and with calls in flight, in MiB. Only this host lives meanwhile: pages of
 * the Node binary would else be shared with the other side's processes.
 */
async function memoryOf(bench, side, id, tool, args) {
  return withHost(bench, side, { env: ALWAYS_WARM }, async (host) => {
    const load = { tool, sameArgs: true, vcpus: CALLS_IN_FLIGHT, count: CALLS_IN_FLIGHT, callers: CALLS_IN_FLIGHT };
    await host.ask('calls', { ...load, rampMs: FIRST_RAMP_MS, args: { ...args, holdMs: 1 } });
    await quiet(host.pid);
    const idle = memoryBelow(host.pid);
    for (let rampMs = FIRST_RAMP_MS; rampMs <= LAST_RAMP_MS; rampMs *= 2) {
      const holdMs = CALLS_IN_FLIGHT * rampMs * HOLD_FACTOR;
      const { found, seen } = await memoryInFlight(host, { ...load, rampMs, args: { ...args, holdMs } });
      const note = faults(bench, side, id, seen);
      if (!found || note) continue;
      const addedPerCall = (found.bytes - idle.bytes) / CALLS_IN_FLIGHT / MIB;
      return { perCall: found.bytes / CALLS_IN_FLIGHT / MIB, idle: idle.bytes / MIB, addedPerCall, ...found };
    }
    throw new Error(
      `${CALLS_IN_FLIGHT} calls of ${side} were never in flight and quiet together: the machine is too busy`
    );
  });
}

/** `found` is missing when not all of the calls were in flight to the end of the look. */
async function memoryInFlight(host, load) {
  let over = false;
  const calls = host.ask('calls', load).finally(() => {
    over = true;
  });
  const isQuiet = await quiet(host.pid, { processes: CALLS_IN_FLIGHT, over: () => over });
  const found = isQuiet && memoryBelow(host.pid);
  const together = await host.ask('inFlight');
  return { seen: await calls, found: together === CALLS_IN_FLIGHT ? found : undefined };
}

/* ------------------------------------------------------------------ reading a function */

/** The original reads nothing before it starts a process, so that there is no other side. */
function preparing(bench) {
  const samples = bench.pick({ quick: 50, usual: 2000 });
  const { bytes, first_us, samples_us } = JSON.parse(
    output('cargo', ['run', '--quiet', '--release', '--example', 'prepare', '--', String(samples)])
  );
  const { p50, ...rest } = summary(samples_us);
  return line({
    id: 'prepare',
    title: `a TypeScript function of ${bytes} bytes made ready to run, in process`,
    unit: 'µs',
    target: '≤ 500 µs',
    sides: { ours: { value: p50, ...rest } },
    met: p50 <= 500,
    notes: [`the first one of a process: ${short(first_us)} µs; one that is remembered is not prepared again`],
  });
}

/* ------------------------------------------------------------------ the host's event loop */

async function eventLoop(bench) {
  const [repeats, files] = bench.pick({ quick: [1, 4000], usual: [5, 20_000] });
  const big = packed(bench, 'bench-many-files', (folder) => writeTree(folder, files));
  const small = packed(bench, 'bench-one-file', () => {});
  const results = await alternate(bench, repeats, (side) => delayOf(bench, side, big, small));
  const sides = Object.fromEntries(
    bench.sides.map((side) => {
      const over = (key) => median(results[side].map((take) => take.busy[key] - take.idle[key]));
      return [side, { value: over('p99Ms'), max: over('maxMs'), takes: results[side] }];
    })
  );
  const { ours, original } = sides;
  const notes = Object.entries(sides).map(
    ([side, { value, max, takes }]) =>
      `${bench.name(side)}: p99 ${short(value)} ms, max ${short(max)} ms over idle (p99 ${short(median(takes.map(({ idle }) => idle.p99Ms)))} ms, max ${short(median(takes.map(({ idle }) => idle.maxMs)))} ms)`
  );
  return line({
    id: 'event-loop',
    title: `event-loop delay over idle, ${LOOP_CALLERS} callers, ${files.toLocaleString('en')}-file tree removed`,
    unit: 'ms',
    target: 'p99 ≤ 2 ms, max ≤ 10 ms',
    sides: { ours: { ...ours, p99: ours.max }, ...(original && { original: { ...original, p99: original.max } }) },
    secondIs: 'max',
    met: ours.value <= 2 && ours.max <= 10,
    notes,
  });
}

async function delayOf(bench, side, big, small) {
  const env =
    side === 'ours' ? { ...LOOP_ENV, AGENTS_FUNCTION_TOOL_SANDBOX_DEPENDENCIES: '{"specs":["file"]}' } : LOOP_ENV;
  const folder = bench.folder(side);
  return withHost(bench, side, { env, folder }, async (host) => {
    const faultless = async (result) => {
      // The original lets calls at once overwrite each other's arguments: this row asks for the delay, not for that.
      const { wrong, failed } = await result;
      const note = faults(bench, side, 'event-loop', { wrong: side === 'ours' ? wrong : 0, failed });
      if (note) throw new Error(note);
    };
    await faultless(host.ask('calls', { tool: 'trivial', count: WARM_UP_CALLS }));
    await faultless(host.ask('calls', { tool: 'trivial', count: 1, dependencies: big }));
    await quiet(host.pid);
    const tree = watchedTree(folder, 'bench-many-files');
    try {
      await host.ask('watch');
      await delay(IDLE_MS);
      const idle = await host.ask('watched');
      if (tree.removed()) throw new Error('the tree was removed before it was watched');
      await host.ask('watch');
      await host.ask('load', { tool: 'trivial', callers: LOOP_CALLERS, vcpus: 4 });
      await removal(host, tree, small);
      const busy = await host.ask('watched');
      await faultless(host.ask('stop'));
      return { idle, busy };
    } finally {
      tree.close();
    }
  });
}

/** Waits for the tree to be gone; a store that keeps trees until it needs the room is made to need it. */
async function removal(host, tree, small) {
  const began = performance.now();
  let nudged = false;
  for (;;) {
    const passed = performance.now() - began;
    if (tree.removed() && passed >= LOOP_LOAD_MIN_MS) return;
    if (passed > REMOVAL_LIMIT_MS) throw new Error(`the tree was not removed within ${REMOVAL_LIMIT_MS} ms`);
    if (!nudged && passed > REMOVAL_NUDGE_MS && tree.untouched()) {
      nudged = true;
      await host.ask('calls', { tool: 'trivial', count: 1, dependencies: small });
    }
    await delay(20);
  }
}

/**
 * An installed package's folders, held open: a removed folder has no links, wherever it was moved before. Nothing else
 * tells when a removal that goes on in the background has ended.
 */
function watchedTree(root, name) {
  const open = places(root, name).flatMap((folder) =>
    foldersIn(folder).map((entry) => openSync(join(folder, entry.name), 'r'))
  );
  const close = () => {
    for (const fd of open) closeSync(fd);
  };
  if (open.length < TREE_FOLDERS) {
    close();
    throw new Error(`${name} was not installed below ${root}: ${open.length} of its ${TREE_FOLDERS} folders are there`);
  }
  const gone = () => open.filter((fd) => fstatSync(fd).nlink === 0).length;
  return { removed: () => gone() === open.length, untouched: () => gone() === 0, close };
}

/** Every `node_modules/<name>` below a folder; links are not followed. */
function places(folder, name) {
  return foldersIn(folder).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.name === name && basename(folder) === 'node_modules' ? [path] : places(path, name);
  });
}

/** Folders in a folder: none when it is gone meanwhile, as those of calls that ended are. */
function foldersIn(folder) {
  try {
    return readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  } catch (error) {
    if (error.code === 'ENOENT') return [];
    throw error;
  }
}

function writeTree(folder, files) {
  const text = `// ${'x'.repeat(TREE_FILE_BYTES)}\n`;
  for (let at = 0; at < TREE_FOLDERS; at += 1) {
    mkdirSync(join(folder, `part-${at}`));
    for (let file = 0; file < files / TREE_FOLDERS; file += 1)
      writeFileSync(join(folder, `part-${at}`, `${file}.js`), text);
  }
}

/** A package made here, as a tarball on disk: the dependency set that names it needs no registry. */
function packed(bench, name, fill) {
  const folder = join(bench.scratch, 'made', name, 'package');
  const tarball = join(bench.scratch, 'made', `${name}.tgz`);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name, version: '1.0.0', main: 'index.js' }));
  writeFileSync(join(folder, 'index.js'), `module.exports = ${JSON.stringify(name)};\n`);
  fill(folder);
  execFileSync('tar', ['-czf', tarball, '-C', join(folder, '..'), 'package']);
  rmSync(folder, { recursive: true });
  return { [name]: `file:${tarball}` };
}

/* ------------------------------------------------------------------ speed of the code itself */

async function asFastAsNode(bench, id, title, tool) {
  const repeats = bench.pick({ quick: 3, usual: 15 });
  return withHosts(bench, ALWAYS_WARM, async (hosts) => {
    const own = { fresh: [], ...Object.fromEntries(bench.sides.map((side) => [side, []])) };
    for (let at = 0; at < repeats; at += 1) {
      const fresh = inFreshNode(bench, tool);
      own.fresh.push(fresh.ms);
      for (const side of bench.sides) own[side].push(await ownTime(bench, hosts[side], id, tool, fresh.checksum));
    }
    const fresh = median(own.fresh);
    const speed = (side) => [side, { value: fresh / median(own[side]), samples: own[side] }];
    const sides = Object.fromEntries(bench.sides.map(speed));
    return line({
      id,
      title: `${title}: speed against a fresh node`,
      unit: '×',
      target: '≥ 0.9',
      sides,
      ratio: sides.original && sides.ours.value / sides.original.value,
      met: sides.ours.value >= 0.9,
      notes: [`a fresh node takes ${short(fresh)} ms (median of ${repeats})`],
    });
  });
}

/** What a tool says it took, in ms. */
async function ownTime(bench, host, id, tool, checksum) {
  const { last, ...seen } = await host.ask('calls', { tool, count: 1, sameArgs: true });
  const note = faults(bench, host.side, id, seen);
  if (note) throw new Error(note);
  if (last.checksum !== checksum)
    throw new Error(`${bench.name(host.side)} computed ${last.checksum}, not ${checksum}`);
  return last.ms;
}

/** The same text, run by `node` itself. */
function inFreshNode(bench, tool) {
  const args = JSON.stringify({ n: 0, ...TOOLS[tool].args });
  const script = `const tool = ${configOf(tool).executeCode};\nprocess.stdout.write(JSON.stringify(tool(${args})));\n`;
  const file = join(bench.scratch, `fresh-${tool}.cjs`);
  writeFileSync(file, script);
  return JSON.parse(output(bench.node.path, [file]));
}

/* ------------------------------------------------------------------ growth: ours alone */

/** Costs at growing amounts of something, each a median in ms. */
function flatLine(bench, id, title, costs, seen) {
  const note = faults(bench, 'ours', id, seen);
  const values = Object.values(costs);
  const growth = values.at(-1) / values[0];
  return line({
    id,
    title,
    unit: '× from first to last',
    target: `flat (≤ ${FLAT}×)`,
    sides: { ours: { value: growth, costs } },
    met: growth <= FLAT && !note,
    notes: [
      Object.entries(costs)
        .map(([amount, ms]) => `${amount}: ${short(ms)} ms`)
        .join(', '),
      note,
    ],
  });
}

async function afterCalls(bench) {
  const amounts = bench.pick({ quick: [10, 100], usual: [10, 1000, 10_000] });
  const window = bench.pick({ quick: 20, usual: 200 });
  return withHost(bench, 'ours', {}, async (host) => {
    const costs = {};
    let made = 0;
    let seen = NO_FAULTS;
    const calls = async (what) => {
      const result = await host.ask('calls', { tool: 'trivial', ...what });
      made += what.count;
      seen = added(seen, result);
      return result.ms;
    };
    for (const amount of amounts) {
      if (amount > made) await calls({ count: amount - made, callers: amount > 100 ? 4 : 1 });
      await quiet(host.pid);
      costs[`after ${amount}`] = median(await calls({ count: window }));
    }
    return flatLine(bench, 'after-calls', `a call after ${amounts.join(', ')} calls`, costs, seen);
  });
}

async function withTrees(bench) {
  const amounts = bench.pick({ quick: [2, 4], usual: [10, 100] });
  const window = bench.pick({ quick: 20, usual: 200 });
  const env = { ...ALWAYS_WARM, AGENTS_FUNCTION_TOOL_SANDBOX_DEPENDENCIES: '{"specs":["file"]}' };
  return withHost(bench, 'ours', { env }, async (host) => {
    const costs = {};
    let seen = NO_FAULTS;
    const calls = async (what) => {
      const result = await host.ask('calls', { tool: 'trivial', ...what });
      seen = added(seen, result);
      return result.ms;
    };
    const sets = Array.from({ length: amounts.at(-1) }, (_, at) => packed(bench, `bench-tree-${at}`, () => {}));
    let known = 0;
    for (const amount of amounts) {
      for (; known < amount; known += 1) await calls({ count: 1, dependencies: sets[known] });
      await calls({ count: WARM_UP_CALLS, dependencies: sets[0] });
      await quiet(host.pid);
      costs[`${amount} trees`] = median(await calls({ count: window, dependencies: sets[0] }));
    }
    return flatLine(bench, 'with-trees', `a call to one of ${amounts.join(', ')} trees`, costs, seen);
  });
}

async function withWaiting(bench) {
  const amounts = bench.pick({ quick: [10, 50], usual: [10, 1000] });
  const perCaller = 3;
  const env = { ...ALWAYS_WARM, AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS: NEVER };
  return withHost(bench, 'ours', { env }, async (host) => {
    const costs = {};
    let seen = NO_FAULTS;
    for (const callers of amounts) {
      const count = Math.max(callers * perCaller, bench.pick({ quick: 100, usual: 1000 }));
      await quiet(host.pid);
      const result = await host.ask('calls', { tool: 'trivial', callers, count });
      seen = added(seen, result);
      costs[`${callers} callers`] = result.elapsedMs / count;
    }
    return flatLine(bench, 'with-waiting', `time per call with ${amounts.join(', ')} waiting callers`, costs, seen);
  });
}
