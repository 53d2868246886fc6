'use strict';

// The text of NODE_OPTIONS: where an entry of ours stands in it, and the text without it, or with another in its place.
// Everything else stays as it was written. Pure.

/** Options that load a module first; with the module after `=` or as the next word. */
const PRELOADS = /^(--import|--require|-r)(?:=(.*))?$/s;

/**
 * The words of such a text, as Node reads them: separated by spaces, joined by double quotes, in which a backslash
 * makes the next character an ordinary one.
 * @returns {Array<{ word: string, start: number, end: number }>}
 */
function words(text) {
  const found = [];
  for (const { 0: raw, index } of text.matchAll(/(?:"(?:\\.|[^"\\])*"?|[^ "])+/gs)) {
    const word = raw.replace(/"((?:\\.|[^"\\])*)"?/gs, (_, quoted) => quoted.replace(/\\(.)/gs, '$1'));
    found.push({ word, start: index, end: index + raw.length });
  }
  return found;
}

/** The entries that load a module: the option, the module, and where they stand. */
function preloads(text) {
  const all = words(text);
  const found = [];
  for (const [at, { word, start, end }] of all.entries()) {
    const [, option, joined] = PRELOADS.exec(word) ?? [];
    const value = joined === undefined ? all[at + 1] : { word: joined, end };
    if (option && value) found.push({ option, module: value.word, start, end: value.end });
  }
  return found;
}

function quoted(word) {
  return /[ "\\]/.test(word) ? `"${word.replace(/["\\]/g, '\\$&')}"` : word;
}

/**
 * Rewrites the entries of one module.
 * @param {string} text
 * @param {(module: string) => boolean} isOurs
 * @param {(option: string) => string | undefined} replacement the module to name instead; nothing takes the entry out
 */
function rewritten(text, isOurs, replacement) {
  let result = text;
  // From the end, so that places found earlier stay right.
  for (const { option, module, start, end } of preloads(text).reverse()) {
    if (!isOurs(module)) continue;
    const other = replacement(option);
    const before = result.slice(0, start);
    const after = result.slice(end);
    result =
      other === undefined
        ? [before.trimEnd(), after.trimStart()].filter(Boolean).join(' ')
        : `${before}${option === '--import' ? `--import=${other}` : `--require=${quoted(other)}`}${after}`;
  }
  return result;
}

exports.rewritten = rewritten;
