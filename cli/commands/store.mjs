// `store`: what is installed on this machine, for people who look after it and for those who make images.

import { existsSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setLogger } from '../../index.js';
import { executorOptions, withExecutor } from '../session.mjs';
import { absent, listing, pruning } from '../store-report.mjs';
import { harmless } from '../terminal.mjs';
import { dependencies as named, parsedJson } from '../units.mjs';
import { CommandError, duration, JSON_OUTPUT, STORE_DIR, size, UsageError } from '../usage.mjs';

const LS = 'store ls [--store-dir <folder>] [--json]';
const PRUNE = 'store prune (--max-size <size> | --older-than <time> | --all) [--store-dir <folder>] [--json]';
const WARM = 'store warm <deps.json> [--store-dir <folder>] [--json]';

/** What a prune answers where there is no store. */
const NOTHING_PRUNED = { useless: 0, evicted: 0, inUse: 0, freedBytes: 0, trees: 0, bytes: 0 };

const COMMON = { ...STORE_DIR, ...JSON_OUTPUT };

export const subcommands = {
  ls: {
    name: 'store ls',
    summary: 'Lists what is installed, the least recently used first.',
    usage: [LS],
    options: COMMON,
    run: ls,
  },
  prune: {
    name: 'store prune',
    summary: 'Removes what nobody uses, the least recently used first. What is in use, by whatever process, stays.',
    usage: [PRUNE],
    options: {
      'max-size': {
        type: 'string',
        value: '<size>',
        text: 'until all together take no more: 500MB, 2GiB',
        check: size,
      },
      'older-than': {
        type: 'string',
        value: '<time>',
        text: 'what was not used for so long: 12h, 7d',
        check: duration,
      },
      all: { type: 'boolean', text: 'everything' },
      ...COMMON,
    },
    notes: ['--max-size and --older-than may be given together: what either asks for goes.'],
    run: prune,
  },
  warm: {
    name: 'store warm',
    summary: 'Installs dependency sets, so that the first call of each finds them: for images and CI.',
    usage: [WARM],
    positionals: ['<deps.json>'],
    options: COMMON,
    notes: [
      'The file has one set, {"lodash":"^4"}, or an array of them. What is there already is not installed again.',
      'A folder that was filled so can be the baseStoreDirs of a server: AGENTS_FUNCTION_TOOL_SANDBOX_BASE_STORE_DIRS.',
    ],
    run: warm,
  },
};

/** Where none of them is named. */
export const all = {
  name: 'store',
  summary: 'Lists, shrinks and fills the store of installed dependencies.',
  usage: [LS, PRUNE, WARM],
  options: {},
  positionals: ['ls, prune or warm'],
  notes: ['native-sandbox-executor store ls --help, and so on, tell more.'],
};

function withStore(values, act) {
  setLogger(null);
  return withExecutor(executorOptions(values, resolve), async (session) => {
    try {
      return await act(session);
    } catch (error) {
      if (error?.name !== 'SandboxError') throw error;
      throw new CommandError(`${error.code} ${harmless(error.message).trimEnd()}`);
    }
  });
}

/** Does a task in the store of `values`, if there is one: to look for it must not make it. Gives what came of it, and where it is looked for. */
function inStore(values, task) {
  return withStore(values, async (session) => {
    const settings = await session.maintain({ task: 'settings' });
    const base = settings.find(({ option }) => option === 'storeDir').value ?? tmpdir();
    return existsSync(join(base, rootName())) ? { base, found: await session.maintain(task) } : { base };
  });
}

function tell({ base, found }, { values, nothing, text }, terminal) {
  if (values.json) terminal.json(found ?? nothing);
  else terminal.out(found ? text(found) : absent(base));
  return 0;
}

/** As `src/store/root.rs` names it. */
function rootName() {
  return ['native-sandbox-executor', process.geteuid?.()].filter((part) => part !== undefined).join('-');
}

async function ls(values, _positionals, terminal) {
  const nothing = { root: null, trees: [] };
  const text = (found) => listing(found, Date.now(), terminal.style);
  return tell(await inStore(values, { task: 'trees' }), { values, nothing, text }, terminal);
}

async function prune(values, _positionals, terminal) {
  const { all, 'max-size': maxBytes, 'older-than': unusedForMs } = values;
  if (!all && maxBytes === undefined && unusedForMs === undefined) {
    throw new UsageError('store prune needs --max-size, --older-than or --all: it removes nothing by itself');
  }
  if (all && (maxBytes !== undefined || unusedForMs !== undefined)) {
    throw new UsageError('--all leaves nothing for --max-size and --older-than: give one or the others');
  }
  const measures = { ...(unusedForMs !== undefined && { unusedForMs }), ...(maxBytes !== undefined && { maxBytes }) };
  const task = { task: 'prune', ...(all ? { maxBytes: 0 } : measures) };
  return tell(await inStore(values, task), { values, nothing: NOTHING_PRUNED, text: pruning }, terminal);
}

async function warm(values, [file], terminal) {
  const sets = setsIn(file);
  const found = await withStore(values, async (session) => {
    const what = sets.length === 1 ? named(sets[0]) : `${sets.length} sets`;
    await terminal.progress(`Installing ${what}`, () => session.executor.warm(sets));
    const { root, installs } = session.executor.getMetrics().store;
    return { root, sets: sets.length, installed: installs };
  });
  if (values.json) terminal.json(found);
  else terminal.out(`${found.sets} ready in ${found.root}, ${found.installed} of them installed now\n`);
  return 0;
}

/** The dependency sets in a file. Names and ranges are checked by who installs them. */
function setsIn(file) {
  let value;
  try {
    value = parsedJson(readFileSync(file, 'utf8'));
  } catch ({ code, message }) {
    throw new CommandError(code === 'ENOENT' ? `there is no file ${file}` : `cannot read ${file}: ${message}`);
  }
  const sets = Array.isArray(value) ? value : [value];
  if (sets.length === 0) throw new CommandError(`${file} has no dependency set`);
  for (const set of sets) checkSet(file, set);
  return sets;
}

function checkSet(file, set) {
  const isObject = typeof set === 'object' && set !== null && !Array.isArray(set);
  if (isObject && typeof set.dependencies === 'object') {
    throw new CommandError(`${file} looks like a package.json: give what is in its "dependencies"`);
  }
  if (!isObject || !Object.values(set).every((range) => typeof range === 'string')) {
    throw new CommandError(`${file} must have a dependency set, {"lodash":"^4"}, or an array of them`);
  }
}
