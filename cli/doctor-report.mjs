// What `doctor` found → a verdict, and a text for people. Pure.

import { columns } from './table.mjs';
import { shownBytes, shownTime } from './units.mjs';

const TIERS = ['base', 'confined', 'isolated'];

/** Settings that are limits, with the unit of their values. */
const LIMITS = {
  timeoutMs: 'ms',
  queueWaitMs: 'ms',
  installTimeoutMs: 'ms',
  lingerMs: 'ms',
  maxOutputBytes: 'bytes',
  memoryMb: 'MiB',
  nativeMemoryMb: 'MiB',
  cpuSeconds: 's',
  cpus: '',
  openFiles: '',
  fileSizeMb: 'MiB',
  diskMb: 'MiB',
  maxProcesses: '',
  maxConcurrent: '',
  zygoteMemoryMb: 'MiB',
  storeMaxBytes: 'bytes',
};

/**
 * @param {object} found what `doctor` looked at
 * @param {string} [flag] the tier of `--require`
 * @returns {object} the same with what is required and whether all of it is there
 */
export function judged(found, flag) {
  const { calls, isolation, settings = [], store } = found;
  const set = settings.find(({ option }) => option === 'isolation')?.value?.require;
  // The stronger of both.
  const required = TIERS.findLast((tier) => tier === flag || tier === set);
  const tier = isolation?.value?.tier;
  const isMet = !required || (tier !== undefined && TIERS.indexOf(tier) >= TIERS.indexOf(required));
  const problems = [
    calls.problem,
    isolation?.problem,
    store?.problem,
    // A call says it with more words.
    !isMet && calls.problem?.code !== 'ISOLATION_UNAVAILABLE' && unmet(required, tier),
  ].filter(Boolean);
  return {
    ok: isMet && !calls.problem,
    problems: distinct(problems),
    required: required ?? null,
    ...found,
    settings,
    store: store?.value ? sized(store.value, settings) : store,
    isolation: isolation?.value,
    npm: found.npm?.value ?? found.npm,
    calls: calls.value ?? calls,
  };
}

function distinct(problems) {
  return problems.filter(({ message }, at) => problems.findIndex((other) => other.message === message) === at);
}

function unmet(required, tier) {
  const found = tier ? `${tier} is in force` : 'what is in force is not known';
  return {
    code: 'ISOLATION_UNAVAILABLE',
    message: `the tier ${required} is required, and ${found}; the layers that are not in force say why`,
  };
}

function sized({ root, trees }, settings) {
  const serving = trees.filter(({ serves }) => serves);
  return {
    root,
    trees: serving.length,
    bytes: serving.reduce((sum, { bytes }) => sum + bytes, 0),
    maxBytes: settings.find(({ option }) => option === 'storeMaxBytes')?.value,
  };
}

/** @param {object} verdict of `judged` @param {(format: string, text: string) => string} style */
export function report(verdict, style) {
  const marks = {
    good: style('green', '✔'),
    bad: style('red', '✖'),
    note: style('yellow', '!'),
    none: style('dim', '–'),
  };
  const about = { ...verdict, style, marks };
  const sections = [machine, rungs, layers, place, packages, limits, conclusion].map((section) => section(about));
  return `${sections
    .filter((lines) => lines.length > 0)
    .map((lines) => lines.join('\n'))
    .join('\n\n')}\n`;
}

function title(style, text) {
  return style('bold', text);
}

function machine({ node, platform, settings, style, marks }) {
  const nodePath = settings.find(({ option }) => option === 'nodePath');
  const other = nodePath && nodePath.value !== node.path ? [`  ${marks.note} functions run on ${nodePath.value}`] : [];
  return [
    title(style, 'Machine'),
    `  Node ${node.version}  ${style('dim', node.path)}`,
    `  ${platform.name}, ${platform.system}`,
    ...other,
  ];
}

function rungs({ rung, calls, style, marks }) {
  if (!rung) return [];
  const served = Object.entries(rung.served).filter(([, count]) => count > 0);
  const calling = calls.problem
    ? `  ${marks.bad} no call works`
    : `  ${marks.good} ${style('bold', rung.inUse ?? 'not known yet')}: a call took ${shownTime(calls.lastMs)}, the first ${shownTime(calls.firstMs)}`;
  return [
    title(style, 'How workers start'),
    calling,
    ...rung.notUsed.map((one) => `  ${marks.none} not ${one.rung}: ${one.reason}`),
    ...(rung.withoutLauncher ? [`  ${marks.note} no launcher: ${rung.withoutLauncher}`] : []),
    ...(served.length > 0 && !rung.served[rung.inUse]
      ? [`  ${marks.note} served by ${served.map(([name]) => name).join(', ')}`]
      : []),
  ];
}

function layers({ isolation, required, style, marks }) {
  if (!isolation) return [];
  const need = required ? `, ${required} is required` : '';
  const lines = TIERS.flatMap((tier) => {
    const own = isolation.layers.filter((layer) => layer.tier === tier);
    return [`  ${style('underline', tier)}`, ...own.flatMap((layer) => layerLines(layer, style, marks))];
  });
  const advice = adviceOn(isolation.layers, style);
  return [title(style, `Isolation: ${isolation.tier} is in force${need}`), ...lines, ...advice];
}

/** What would put layers in force: each advice once, with all layers that it is for. */
function adviceOn(layers, style) {
  const named = new Map();
  for (const { name, inForce, enable } of layers) {
    if (!inForce && enable) named.set(enable, [...(named.get(enable) ?? []), name]);
  }
  return [...named].map(([enable, names]) => `  ${style('cyan', `to enable ${names.join(', ')}:`)} ${enable}`);
}

function layerLines({ name, inForce, why }, style, marks) {
  const head = `    ${inForce ? marks.good : marks.bad} ${name}`;
  return [why ? `${head}: ${style('dim', why)}` : head];
}

function place({ store, style, marks }) {
  if (!store) return [];
  const { root, trees, bytes, maxBytes, problem } = store;
  if (problem) return [title(style, 'Store'), `  ${marks.bad} ${problem.message}`];
  const most = maxBytes === undefined ? '' : `, at most ${shownBytes(maxBytes)}`;
  return [
    title(style, 'Store'),
    `  ${marks.good} ${root}`,
    `    ${trees} ${trees === 1 ? 'tree' : 'trees'}, ${shownBytes(bytes)}${most}`,
  ];
}

function packages({ npm, style, marks }) {
  if (!npm) return [];
  const { command, version, registry, problem } = npm;
  return [
    title(style, 'Packages'),
    command
      ? `  ${marks.good} npm ${version}  ${style('dim', command.at(-1))}`
      : `  ${marks.bad} ${problem?.message ?? problem}`,
    ...(registry ? [`  ${registryLine(registry, marks)}`] : []),
  ];
}

function registryLine({ url, reachable, status, ms, problem }, marks) {
  if (reachable) return `${marks.good} the registry ${url} answered with ${status} in ${shownTime(ms)}`;
  return `${marks.bad} the registry ${url} cannot be reached: ${problem} (asked directly: a proxy of npm's is not used here)`;
}

function limits({ settings, isolation, style, marks }) {
  if (settings.length === 0) return [];
  const enforced = new Map((isolation?.limits ?? []).map((limit) => [limit.option, limit]));
  const shown = settings.filter(({ option }) => Object.hasOwn(LIMITS, option));
  const rows = shown.map((setting) => {
    const isLost = setting.value !== null && enforced.get(setting.option)?.inForce === false;
    const mark = isLost ? `${marks.bad} not enforced here` : '';
    return [setting.option, shownValue(setting), origin(setting, style), mark];
  });
  return [title(style, 'Limits'), ...columns(rows, { indent: '  ', right: [1] })];
}

function shownValue({ option, value }) {
  // Without one it is a share of what the machine has.
  if (value === null) return option === 'zygoteMemoryMb' ? 'by memory' : 'none';
  const unit = LIMITS[option];
  if (unit === 'bytes') return shownBytes(value);
  if (unit === 'ms') return shownTime(value);
  return `${value} ${unit}`.trimEnd();
}

function origin({ origin: from, variable }, style) {
  if (from === 'default') return style('dim', 'default');
  return from === 'variable' ? style('cyan', variable) : style('cyan', 'option');
}

function conclusion({ ok, problems, warnings, required, calls, style, marks }) {
  const noted = warnings.map(({ message, variable }) => `${marks.note} ${message}${variable ? ` (${variable})` : ''}`);
  const told = problems.map(({ code, message }) => `${marks.bad} ${style('red', code)} ${message}`);
  return [...noted, ...told, `${ok ? marks.good : marks.bad} ${verdictOn({ ok, required, calls })}`];
}

function verdictOn({ ok, required, calls }) {
  if (ok) return 'Functions run here.';
  // Where a tier is required and not there, calls fail for that reason alone.
  const isShort = required && (!calls.problem || calls.problem.code === 'ISOLATION_UNAVAILABLE');
  return isShort ? 'Not as required.' : 'No function can run here.';
}
