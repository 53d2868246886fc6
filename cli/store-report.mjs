// What is in the store, and what was done to it → texts. Pure, but for the zone of times.

import { columns } from './table.mjs';
import { dependencies, shownBytes, shownTime } from './units.mjs';

const SHOWN_CHARS = 60;

/**
 * @param {{ root: string, trees: object[] }} found as the core lists them
 * @param {number} now milliseconds since 1970
 */
export function listing({ root, trees }, now, style) {
  if (trees.length === 0) return `${root} is empty\n`;
  const rows = trees.map((tree) => [
    cut(dependencies(tree.what?.dependencies)),
    node(tree.what ?? {}),
    shownBytes(tree.bytes),
    age(now - tree.lastUsedMs),
    tree.generation,
    state(tree, style),
  ]);
  const bytes = trees.reduce((sum, tree) => sum + tree.bytes, 0);
  const [head, ...lines] = columns([['PACKAGES', 'NODE', 'SIZE', 'LAST USED', 'GENERATION', ''], ...rows], {
    right: [2],
  });
  return `${[style('dim', head), ...lines, '', `${trees.length} in ${root}, ${shownBytes(bytes)}`].join('\n')}\n`;
}

/** Where there is none. */
export function absent(base) {
  return `there is no store in ${base}\n`;
}

/** The Node that a tree is for, by the version of its ABI: addons of one run on all of that number. Trees without packages are for any. */
function node({ about, dependencies: set = {} }) {
  if (about?.nodeAbi) return `ABI ${about.nodeAbi}`;
  return Object.keys(set).length === 0 ? 'any' : 'unknown';
}

function cut(text) {
  return text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS - 1)}…` : text;
}

/** To the minute: the store notes no more. */
function age(ms) {
  return ms < 60_000 ? 'just now' : `${shownTime(ms)} ago`;
}

function state({ serves, inUse }, style) {
  if (inUse === null) return style('yellow', 'being installed');
  return [inUse && style('green', 'in use'), !serves && style('dim', 'replaced')].filter(Boolean).join(', ');
}

/** @param {{ useless: number, evicted: number, inUse: number, freedBytes: number, trees: number, bytes: number }} pruned */
export function pruning({ useless, evicted, inUse, freedBytes, trees, bytes }) {
  const kept = inUse > 0 ? `; ${inUse} in use stayed` : '';
  return `removed ${useless + evicted}, freed ${shownBytes(freedBytes)}${kept}; ${trees} left, ${shownBytes(bytes)}\n`;
}
