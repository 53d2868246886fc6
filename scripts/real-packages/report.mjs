// The report of `npm run packages:real`: what is kept of a run, and docs/PACKAGES.md from that; pure.

const RUNGS = ['zygote', 'standby', 'spawn'];
/** An installation takes longer than this, milliseconds; a look into the store takes less. */
const INSTALL_MS = 50;
/** Upper bound of a text that is kept of a failure. */
const TEXT_LIMIT = 300;

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

const rounded = (value) => (value === undefined ? undefined : Number(value.toFixed(value >= 100 ? 0 : 1)));

/** A failure's text without the places of the machine that it happened on. */
const kept = (text) => `${text}`.replace(/[^\s'"`]*\/(?=(?:node_modules|real-packages)\/)/g, '').slice(0, TEXT_LIMIT);

/** What is kept of one rung. */
function describeRung({ calls, notPreloaded, isServed, difference }) {
  const [first, second, ...later] = calls;
  const rungs = [...new Set(later.flatMap(({ rung }) => rung ?? []))];
  return {
    ...(difference && { difference: kept(difference) }),
    firstMs: rounded(first?.ms),
    ...(first?.installMs > INSTALL_MS && { installMs: rounded(first.installMs) }),
    secondMs: rounded(second?.ms),
    laterMs: rounded(later.length > 0 ? median(later.map(({ ms }) => ms)) : undefined),
    ...(rungs.length > 0 && { laterBy: rungs.join(' and ') }),
    ...(isServed && { isServed }),
    ...(notPreloaded?.length > 0 && { notPreloaded }),
  };
}

/** What is kept of one package on one Node. */
export function describe({ use, plain: { versions, outcome, ms }, rungs }) {
  return {
    use,
    version: Object.values(versions)[0],
    ...(outcome.error !== undefined && { error: kept(outcome.error) }),
    plainMs: rounded(ms),
    rungs: Object.fromEntries(Object.entries(rungs).map(([rung, found]) => [rung, describeRung(found)])),
  };
}

const ms = (value) => (value === undefined ? '–' : value >= 100 ? `${Math.round(value)}` : value.toFixed(1));
const cell = (text) => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

/** Node's lines of a package, those it was tried on, newest last. */
const linesOf = (nodes) => Object.keys(nodes).sort((a, b) => Number(a) - Number(b));

/** Where a package gave plain Node's result, and where not: `all` when that is everywhere. */
function whereEqual(nodes) {
  const tried = linesOf(nodes).flatMap((line) =>
    RUNGS.filter((rung) => nodes[line].rungs[rung]).map((rung) => ({ line, rung, found: nodes[line].rungs[rung] }))
  );
  const names = (found) =>
    linesOf(nodes)
      .map((line) => [line, found.filter((one) => one.line === line).map(({ rung }) => rung)])
      .filter(([, rungs]) => rungs.length > 0)
      .map(([line, rungs]) => `${line} ${rungs.length === RUNGS.length ? 'all' : rungs.join(', ')}`)
      .join('; ');
  const equal = tried.filter(({ found }) => !found.difference);
  return { tried, equal: names(equal), different: names(tried.filter(({ found }) => found.difference)) };
}

/** A result that is not plain Node's, or plain Node's own failure. */
export function isOdd(nodes) {
  return linesOf(nodes).some(
    (line) => nodes[line].error || Object.values(nodes[line].rungs).some(({ difference }) => difference)
  );
}

/** Why something of a package is loaded by each worker; `yes` where nothing is. */
function preloaded(nodes) {
  const found = linesOf(nodes).map((line) => nodes[line].rungs.zygote);
  const reasons = new Set(found.flatMap((rung) => rung?.notPreloaded ?? []).map(({ reason }) => reason));
  if (reasons.size > 0) return cell([...reasons].join('; '));
  return found.some((rung) => rung?.isServed || rung?.laterBy?.includes('zygote')) ? 'yes' : 'no zygote served';
}

function row(name, nodes, words, differences) {
  const line = linesOf(nodes).find((one) => nodes[one].rungs.zygote) ?? linesOf(nodes)[0];
  const { version, plainMs, rungs, error } = nodes[line];
  const { zygote = {}, spawn = {} } = rungs;
  const { equal, different } = whereEqual(nodes);
  const why = differences[name];
  const result = [
    equal && `equal on ${equal}`,
    different && `differs on ${different}`,
    error && 'plain Node fails',
    why && `see [below](#differences)`,
  ];
  const cells = [
    `\`${name}\``,
    version ?? '–',
    cell(words),
    result.filter(Boolean).join('; '),
    ms(plainMs),
    zygote.installMs === undefined ? '–' : ms(zygote.firstMs),
    ms(zygote.secondMs),
    ms(zygote.laterMs),
    ms(spawn.laterMs),
    preloaded(nodes),
  ];
  return `| ${cells.join(' | ')} |`;
}

function machine({ nodes }) {
  return Object.entries(nodes)
    .map(([, { version, date, kernel, cores, jobs, note }]) => {
      const busy = note ? ` ${note}` : '';
      return `- Node ${version}: ${date}, Linux ${kernel}, ${cores} cores, ${jobs} packages at a time.${busy}`;
    })
    .join('\n');
}

/**
 * @param {{ nodes: object, packages: Record<string, object> }} report what was found
 * @param {Record<string, string>} differences package → why its result is another one
 * @param {Record<string, string>} words package → what its use does
 */
export function renderReport(report, differences, words) {
  const rows = Object.entries(report.packages).filter(([name]) => Object.hasOwn(words, name));
  const even = rows.filter(([, nodes]) => !isOdd(nodes)).length;
  const odd = rows.filter(([name]) => Object.hasOwn(differences, name));
  return `# Real packages

${rows.length} npm packages, each used in a function, not merely loaded: once in plain Node and seven times on each rung. ${even} give plain
Node's result in every call, on every rung and Node that they were tried on; [the others](#differences) are explained. Where a use draws
ids or random numbers, each call must give another value.

This page is written by \`npm run packages:real\` from \`scripts/real-packages/report.json\`; the uses are in
\`scripts/real-packages/uses.mjs\`. For one package: \`npm run packages:real -- --node <path of a Node> --only <package>\`.

${machine(report)}

Times are milliseconds and for orientation, one measurement each. *Plain* is a new Node process that loads and uses the package. *First* is
the first call with a new store: it installs. *Second* is the next one, which does not. *Later* is the median of five calls once
the tree's zygote serves, *by spawn* the same with a boot for each call. *Preloaded* says why a package, or one it depends on,
is loaded by each worker instead of once by the zygote, where that is so. The times are those of the first Node in the column *result*.

| package | version | what it does | result | plain | first | second | later | by spawn | preloaded |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
${rows.map(([name, nodes]) => row(name, nodes, words[name], differences)).join('\n')}

## What is loaded ahead

The zygote of a tree loads, once, the packages that its tools use; each call is forked from it. What a package takes while it is
loaded would be the same in all calls then. So a package, or one that depends on it, is loaded by each worker instead where it draws random
bytes or numbers, reads the clock, its process, its folders or its main module, or leaves a timer, a socket, a file, a
thread or output behind; \`getMetrics().notPreloaded\` says so, and the column *preloaded* here. Such a package costs each
call the time of its loading, as with a boot.

One exception goes by name: lodash, which nearly every tree has, reads the time to count how often one of its functions is called within
16 ms, and keeps it for nothing else. Whether a value is kept for a comparison or for a token cannot be told by a rule, so there is none.

## Differences

${odd.length === 0 ? 'None.' : odd.map(([name]) => `- \`${name}\`: ${differences[name]}`).join('\n')}
`;
}
