// Lines of measurement → a table for people. Pure.

import { short } from '../cli/bench/stats.mjs';

const HEADER = ['measure', 'this package', 'the original', 'ratio', 'target', ''];

/** @param {Array<object>} lines as `rows.mjs` makes them (`workers` with the first of a group), or `{ id, title, error }` for one that broke */
export function table(lines) {
  const rows = [HEADER, ...lines.map(row)];
  const widths = HEADER.map((_, column) => Math.max(...rows.map((cells) => [...cells[column]].length)));
  const text = (cells) =>
    cells
      .map((cell, column) => pad(cell, widths[column], column === 3))
      .join('  ')
      .trimEnd();
  const rule = widths.map((width) => '─'.repeat(width)).join('  ');
  const notes = lines.flatMap(({ id, notes = [], workers }) =>
    [...notes, ...(workers ? [`workers: ${rungsText(workers)}`] : [])].map((note) => `  ${id}: ${note}`)
  );
  return [text(rows[0]), rule, ...rows.slice(1).map(text), ...(notes.length ? ['', 'Notes', ...notes] : [])].join('\n');
}

function pad(cell, width, toTheRight) {
  const space = ' '.repeat(width - [...cell].length);
  return toTheRight ? space + cell : cell + space;
}

function row({ title, error, sides, unit, secondIs = 'p99', ratio, target, met }) {
  if (error) return [title, 'BROKE', '', '', '', error.split('\n')[0].slice(0, 60)];
  return [
    title,
    cell(sides.ours, unit, secondIs),
    cell(sides.original, unit, secondIs),
    factor(ratio),
    target,
    verdict(met),
  ];
}

function cell(side, unit, secondIs) {
  if (!side) return '–';
  const second = side.p99 === undefined ? '' : ` (${secondIs} ${short(side.p99)})`;
  return `${short(side.value)}${second} ${unit}`;
}

function factor(ratio) {
  return ratio === undefined ? '–' : `${short(ratio)}×`;
}

function verdict(met) {
  if (met === undefined) return 'not judged';
  return met ? 'met' : 'NOT MET';
}

/** What was measured, with what, where: said above the table, as figures mean nothing without it. */
export function preamble({ machine, versions, start, quick }) {
  const { cpu, cores, memoryGiB, kernel, loadAverageAtStart, loadAverageAtEnd } = machine;
  return [
    `machine   ${cpu}, ${cores} cores, ${memoryGiB} GiB, Linux ${kernel}`,
    `load      ${loadAverageAtStart.join(' ')} at the start, ${loadAverageAtEnd.join(' ')} at the end (the bench itself makes some)${loadAverageAtStart[0] > cores / 4 ? ' - NOT QUIET AT THE START: mind the figures' : ''}`,
    `node      ${versions.node} (${versions.nodeOrigin}), npm ${versions.npm}`,
    `package   native-sandbox-executor ${versions.package}, ${versions.build}`,
    `original  ${versions.original}`,
    `start     workers by rung: ${start.rung}; tier ${start.tier}${start.refused ? `; not used: ${start.refused}` : ''}`,
    ...(quick ? ['', '--quick: few samples, for function only. These are no figures to show.'] : []),
  ].join('\n');
}

/**
 * Which rungs served, by the count of workers: a rung that is available is not yet the one that a call got.
 * @param {Record<string, number>} workers
 * @param {Record<string, number>} before the count at an earlier time
 */
export function rungsText(workers, before = {}) {
  const used = Object.entries(workers)
    .map(([rung, count]) => [rung, count - (before[rung] ?? 0)])
    .filter(([, count]) => count > 0);
  return used.map(([rung, count]) => `${rung} ${count}`).join(', ') || 'none';
}
