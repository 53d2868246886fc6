// The report of `npm run packages:real` as Markdown; pure.

const ms = (value) => (value === undefined ? '–' : value >= 100 ? `${Math.round(value)}` : value.toFixed(1));

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function line(row, rungs, differences) {
  const version = row.plain.versions[row.name] ?? '';
  const cells = [`\`${row.name}\``, version, ms(row.plain.ms)];
  for (const rung of rungs) {
    const calls = row.rungs[rung]?.calls ?? [];
    cells.push([calls[0]?.ms, calls[1]?.ms, median(calls.slice(2).map((call) => call.ms))].map(ms).join(' / '));
  }
  const wrong = rungs.filter((rung) => row.rungs[rung]?.difference);
  const plainFails = row.plain.outcome.error !== undefined;
  const state = plainFails ? 'plain Node fails' : wrong.length === 0 ? 'same' : `differs (${wrong.join(', ')})`;
  const why = differences[row.name];
  const preload = row.rungs.zygote?.notPreloaded?.map(({ reason }) => reason)[0];
  cells.push(why ? `${state}: ${why}` : state, preload ? preload.replaceAll('|', '\\|').slice(0, 120) : 'yes');
  return `| ${cells.join(' | ')} |`;
}

/**
 * @param {Array<object>} rows what was found, a row a package
 * @param {Record<string, string>} differences package → why its result is another one
 * @param {{ node: string, cores: number, rungs: string[] }} about
 */
export function renderReport(rows, differences, about) {
  const isSame = (row) =>
    row.plain.outcome.error === undefined && about.rungs.every((rung) => !row.rungs[rung]?.difference);
  const same = rows.filter(isSame).length;
  return `# Real packages

${rows.length} npm packages, each used in a function, not merely loaded: once in plain Node and seven times on each rung (${about.rungs.join(', ')}).
${same} give plain Node's results in every call on every rung; the table explains the others. Packages that draw ids or random numbers must
give another value in each call.

Made by \`npm run packages:real -- --report docs/PACKAGES.md\` with Node ${about.node.replace('v', '')} on ${about.cores} cores, two packages at a time, so the times
are for orientation. Times are milliseconds. *Plain* is a new Node process that loads and uses the package. The columns of the rungs have the first call
of a new host (the first rung's also installs), the second call, and the median of five later calls. *Preloaded* says why a package is loaded by each worker, where it is.

| package | version | plain | ${about.rungs.join(' | ')} | result | preloaded |
| --- | --- | --- | ${about.rungs.map(() => '---').join(' | ')} | --- | --- |
${rows.map((row) => line(row, about.rungs, differences)).join('\n')}
`;
}
