// Samples → rows, and rows → a text for people. Pure.

import { median, summary } from './bench/stats.mjs';
import { compared } from './bench/svg.mjs';
import { columns } from './table.mjs';
import { shownTime } from './units.mjs';

export const SIDES = {
  ours: 'native-sandbox-executor',
  node: 'node, spawned for each call',
  original: 'the original',
};

/**
 * The row of a time: smaller is better.
 * @param {Record<string, number[]>} samples milliseconds by side
 */
export function timeRow(id, title, samples) {
  const sides = mapped(samples, (all) => ({ ...summary(all), value: median(all), samples: all }));
  return { id, title, unit: 'ms', sides, ratio: sides.node.value / sides.ours.value, than: 'node' };
}

/**
 * The row of a rate: greater is better.
 * @param {Record<string, number[]>} rates per second, by side
 */
export function rateRow(id, title, rates) {
  const sides = mapped(rates, (all) => ({ value: median(all), samples: all }));
  return { id, title, unit: '/s', sides, ratio: sides.ours.value / sides.node.value, than: 'node' };
}

function mapped(bySide, act) {
  return Object.fromEntries(Object.entries(bySide).map(([side, samples]) => [side, act(samples)]));
}

/** @param {object} found `{ machine, versions, start, rows }` @param {(format: string, text: string) => string} style */
export function report({ machine, versions, start, rows }, style) {
  return [
    `${machine.cpu}, ${machine.cores} cores; Node ${versions.node.slice(1)}; load ${machine.load}`,
    `workers: ${start.rung}; isolation: ${start.tier}; original: ${versions.original ?? 'not found from here'}`,
    ...rows.flatMap((row) => ['', ...rowLines(row, style)]),
    '',
  ].join('\n');
}

function rowLines({ title, unit, sides, than }, style) {
  const best = (side) => (side === 'ours' ? style('green', SIDES[side]) : SIDES[side]);
  const lines = Object.entries(sides).map(([side, { value, p99 }]) => {
    const times = unit === 'ms' ? [shownTime(value), shownTime(p99)] : [`${value.toFixed(0)}/s`, ''];
    return [best(side), ...times, side === than ? '' : beside(value, sides[than].value, unit)];
  });
  const head = ['', unit === 'ms' ? 'p50' : 'calls', unit === 'ms' ? 'p99' : '', `beside ${than}`];
  const [first, ...rest] = columns([head, ...lines], { indent: '  ', right: [1, 2] });
  return [style('bold', title), style('dim', first), ...rest];
}

function beside(value, other, unit) {
  return compared(unit === 'ms' ? other / value : value / other);
}
