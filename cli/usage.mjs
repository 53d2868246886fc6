// Arguments of a command, read strictly: what is wrong is said together with what would be right. Pure.

import { parseArgs } from 'node:util';
import { bytes, dependency, milliseconds } from './units.mjs';

/** The command line cannot be understood: exit code 2. */
export class UsageError extends Error {
  /** The name of the command whose help tells more, once that is known. */
  command;
}

/** What was asked for cannot be done, for a reason that is told without a stack: exit code 1. */
export class CommandError extends Error {}

/** Options that several commands have. */
export const STORE_DIR = {
  'store-dir': {
    type: 'string',
    value: '<folder>',
    text: "the store's folder, as the option storeDir",
    check: nonEmpty,
  },
};
export const JSON_OUTPUT = { json: { type: 'boolean', text: 'answer with JSON' } };
const HELP = { help: { type: 'boolean', short: 'h', text: 'show this' } };

/**
 * @typedef {{ type: 'string' | 'boolean', short?: string, multiple?: boolean, value?: string, text: string,
 *   check?: (text: string, name: string) => unknown }} Option `check` gives the value, or throws a `UsageError`
 * @param {{ name: string, options: Record<string, Option>, positionals?: string[], siblings?: object[] }} command `siblings` are commands
 *   that it may have been taken for
 * @param {string[]} args
 * @returns {{ values: Record<string, any>, positionals: string[] }}
 * @throws {UsageError}
 */
export function parsed({ name, options, positionals: expected = [], siblings = [] }, args) {
  const all = { ...options, ...HELP };
  const plain = Object.entries(all).map(([key, { type, short, multiple }]) => {
    return [key, { type, ...(short && { short }), ...(multiple && { multiple }) }];
  });
  let found;
  try {
    found = parseArgs({ args, options: Object.fromEntries(plain), allowPositionals: true });
  } catch (error) {
    throw new UsageError(explained(error, { name, options: all, siblings }, args));
  }
  const { values, positionals } = found;
  if (values.help) return { values, positionals };
  if (positionals.length !== expected.length) throw new UsageError(misplaced(name, expected, positionals));
  return { values: checked(values, all), positionals };
}

function checked(values, options) {
  const entries = Object.entries(values).map(([key, value]) => {
    const { check = (text) => text } = options[key];
    return [key, Array.isArray(value) ? value.map((one) => check(one, key)) : check(value, key)];
  });
  return Object.fromEntries(entries);
}

function explained({ code, message }, { name, options, siblings }, args) {
  const named = /--?[\w-]+/.exec(message)?.[0] ?? '';
  if (code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    return `unknown option ${named} of ${name}; ${instead(named.replace(/^-+/, ''), Object.keys(options), siblings)}`;
  }
  const key = named.replace(/^-+/, '');
  if (options[key]?.type === 'boolean') return `--${key} takes no value`;
  if (options[key]) return `--${key} needs a value: --${key} ${options[key].value ?? '<value>'}`;
  return `${args.join(' ')}: ${message}`;
}

function instead(word, known, siblings) {
  const owners = siblings.filter(({ options }) => Object.hasOwn(options, word)).map(({ name }) => name);
  if (owners.length > 0) return `${listed(owners, 'and')} ${owners.length > 1 ? 'have' : 'has'} it`;
  const near = nearest(word, [...known, ...siblings.flatMap(({ options }) => Object.keys(options))]);
  return near ? `did you mean --${near}?` : `known are ${known.map((key) => `--${key}`).join(', ')}`;
}

/** The error of a word that is none of `known`, below the command `name` where that is given. */
export function unknownCommand(word, known, name) {
  const full = (one) => (name ? `${name} ${one}` : one);
  const near = nearest(word, known);
  const hint = near ? `did you mean ${full(near)}?` : `commands are ${known.map(full).join(', ')}`;
  const error = new UsageError(`unknown command ${full(word)}; ${hint}`);
  error.command = near ? full(near) : name;
  return error;
}

function misplaced(name, expected, got) {
  const wanted = expected.length === 0 ? 'takes no arguments beside its options' : `takes ${expected.join(' ')}`;
  return `${name} ${wanted}, got ${got.length === 0 ? 'none' : got.join(' ')}`;
}

/** Of `known` the one that was probably meant. */
export function nearest(word, known) {
  const [best] = known.map((one) => [distance(word, one), one]).sort(([one], [other]) => one - other);
  return best && best[0] <= Math.max(1, Math.round(word.length / 2.5)) ? best[1] : undefined;
}

/** Letters to change, add or leave out. */
function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (const [at, letter] of [...one].entries()) {
    const next = [at + 1];
    for (let to = 0; to < other.length; to++) {
      next.push(Math.min(row[to] + (letter === other[to] ? 0 : 1), row[to + 1] + 1, next[to] + 1));
    }
    row = next;
  }
  return row.at(-1);
}

/* ------------------------------------------------------------------ checks of values */

export function nonEmpty(text, name) {
  if (text === '') throw new UsageError(`--${name} must not be empty`);
  return text;
}

export function duration(text, name) {
  const ms = milliseconds(text);
  if (ms === undefined) {
    throw new UsageError(`--${name} must be a number with a unit (500ms, 5s, 2m, 12h, 7d), not "${text}"`);
  }
  return ms;
}

export function positiveDuration(text, name) {
  const ms = duration(text, name);
  if (ms === 0) throw new UsageError(`--${name} must be more than 0, not "${text}"`);
  return ms;
}

export function size(text, name) {
  const count = bytes(text);
  if (count === undefined) {
    throw new UsageError(`--${name} must be a number with a unit (500MB, 512MiB, 2GiB), not "${text}"`);
  }
  return count;
}

/** @param {string[]} words */
export function oneOf(...words) {
  return (text, name) => {
    if (!words.includes(text)) throw new UsageError(`--${name} must be ${listed(words)}, not "${text}"`);
    return text;
  };
}

export function listed(words, last = 'or') {
  return words.length === 1 ? words[0] : `${words.slice(0, -1).join(', ')} ${last} ${words.at(-1)}`;
}

export function wholeNumber(least, most) {
  return (text, name) => {
    const number = /^\d+$/.test(text) ? Number(text) : Number.NaN;
    if (!(number >= least && number <= most)) {
      throw new UsageError(`--${name} must be a whole number from ${least} to ${most}, not "${text}"`);
    }
    return number;
  };
}

export function packageSpec(text, name) {
  const found = dependency(text);
  if (!found)
    throw new UsageError(`--${name} must be a package with a range (lodash@4, @scope/name@^1.2), not "${text}"`);
  return found;
}

/* ------------------------------------------------------------------ help */

/**
 * @param {{ name: string, summary: string, usage: string[], options: Record<string, Option>, notes?: string[] }} command
 * @returns {string}
 */
export function help({ summary, usage, options, notes = [] }) {
  const rows = Object.entries({ ...options, ...HELP }).map(([key, { short, value, multiple, text }]) => {
    const flag = `${short ? `-${short}, ` : ''}--${key}${value ? ` ${value}` : ''}`;
    return [flag, `${text}${multiple ? ' (may be given several times)' : ''}`];
  });
  const wide = Math.max(...rows.map(([flag]) => flag.length));
  const lines = rows.map(([flag, text]) => `  ${flag.padEnd(wide)}  ${text}`);
  const [first, ...more] = usage.map((line) => `native-sandbox-executor ${line}`);
  return [
    summary,
    '',
    `Usage: ${first}`,
    ...more.map((line) => `       ${line}`),
    '',
    'Options:',
    ...lines,
    ...(notes.length > 0 ? ['', ...notes] : []),
    '',
  ].join('\n');
}
