// The same calls to the published original and to this package in its place: what they answer is the same, or differs for a
// reason that docs/COMPATIBILITY.md lists.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, readFileSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { ownWorld, ROOT } from '../helpers.mjs';
import { useRegistry } from '../registry.mjs';
import { CASES, PACKAGES } from './calls.mjs';
import { originalInstalled } from './installed.mjs';

const { file, modules } = await originalInstalled();
const LISTED = new Set(
  readFileSync(join(ROOT, 'docs', 'COMPATIBILITY.md'), 'utf8')
    .split('\n')
    .map((line) => /^\| (C\d+)\b/.exec(line)?.[1])
    .filter(Boolean)
);

let world;
let project;
let registry;
const hosts = new Map();

before(async () => {
  world = ownWorld();
  registry = await useRegistry(PACKAGES);
  project = join(world.root, 'server');
  mkdirSync(join(project, 'node_modules'), { recursive: true });
  symlinkSync(join(modules, '@inkeep'), join(project, 'node_modules', '@inkeep'));
  symlinkSync(ROOT, join(project, 'node_modules', 'native-sandbox-executor'));
  copyFileSync(join(import.meta.dirname, 'calls-host.mjs'), join(project, 'calls-host.mjs'));
});

after(async () => {
  for (const host of hosts.values()) await (await host).end();
  await registry?.close();
});

const FLAGS = { original: [], ours: ['--import', 'native-sandbox-executor/register'] };

/** A host of one side with these variables; one for all cases that want the same. */
function hostOf(side, env = {}) {
  const key = JSON.stringify([side, env]);
  if (!hosts.has(key)) hosts.set(key, startHost(side, env, join(world.tmp, String(hosts.size))));
  return hosts.get(key);
}

async function startHost(side, env, tmp) {
  mkdirSync(tmp, { mode: 0o1777 });
  const child = spawn(
    process.execPath,
    [...FLAGS[side], 'calls-host.mjs', file, join(import.meta.dirname, 'calls.mjs')],
    {
      cwd: project,
      env: {
        ...process.env,
        TMPDIR: tmp,
        PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
        ANTHROPIC_API_KEY: 'none',
        ENVIRONMENT: 'development',
        SERVER_SECRET: 'a secret',
        ...env,
      },
      stdio: ['pipe', 'pipe', 'inherit'],
    }
  );
  const ended = new Promise((done) => child.on('exit', done));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const answer = async () => {
    for (;;) {
      const { value, done } = await lines.next();
      if (done) throw new Error(`the host of ${side} ended`);
      // Whatever else is printed there is somebody's log.
      if (value.startsWith('{')) return JSON.parse(value);
    }
  };
  await answer();
  return {
    ask: (name) => {
      child.stdin.write(`${name}\n`);
      return answer();
    },
    end: () => {
      child.stdin.end();
      return ended;
    },
  };
}

/** Kinds of log records seen so far, with their fields, by side. */
const kinds = { original: new Map(), ours: new Map() };

async function ask(side, { name, env }) {
  const answer = await (await hostOf(side, env)).ask(name);
  for (const [logger, level, message, fields] of answer.records) {
    const kind = `${logger} ${level}: ${message}`;
    kinds[side].set(kind, new Set([...(kinds[side].get(kind) ?? []), ...fields]));
  }
  return answer;
}

async function both(one) {
  const [original, ours] = await Promise.all([ask('original', one), ask('ours', one)]);
  return { original, ours };
}

/** Looks at one answer by what a case says of it. */
function judge(wanted, outcome, what) {
  const told = `${what} answered ${JSON.stringify(outcome)}`;
  if (!(wanted instanceof RegExp)) assert.deepEqual(outcome, { value: wanted }, told);
  else if (outcome.rejection === undefined) assert.match(JSON.stringify(outcome.value) ?? '', wanted, told);
  else assert.match(outcome.rejection, wanted, told);
}

function judgeAll(wanted, { outcomes }, what) {
  const list = outcomes.length === 1 ? [wanted] : wanted;
  for (const [at, outcome] of outcomes.entries()) judge(list[at], outcome, what);
}

for (const one of CASES) {
  const title = one.differs ? `${one.name}: differs by ${one.differs}` : `${one.name}: the same`;
  test(title, { timeout: 60_000 }, async () => {
    const { original, ours } = await both(one);
    for (const { rejection, isError } of [...original.outcomes, ...ours.outcomes]) {
      if (rejection !== undefined) assert.equal(isError, true, rejection);
    }
    if (one.alike) {
      // npm's own words, which name times and paths.
      for (const { outcomes } of [original, ours]) assert.match(outcomes[0].rejection ?? '', one.alike);
    } else if (one.differs) {
      assert.ok(LISTED.has(one.differs), `docs/COMPATIBILITY.md does not list ${one.differs}`);
      assert.notDeepEqual(ours.outcomes, original.outcomes, 'they answer the same: it is no difference');
      if ('original' in one) judgeAll(one.original, original, 'the original');
      judgeAll(one.ours, ours, 'this package');
    } else {
      assert.deepEqual(ours.outcomes, original.outcomes);
    }
  });
}

/** Records that only one side makes, with the id of the reason. */
const RECORDS = {
  original: {
    'native-sandbox-executor warn: Failed to parse execution result': 'C3',
    'native-sandbox-executor warn: Both ESM and CommonJS syntax detected, defaulting to ESM': 'C9',
  },
  ours: {
    'native-sandbox-executor warn: Function output of a failed call': 'C16',
    // Under `register`, once.
    'native-sandbox-executor info: Isolation is in force': 'C16',
  },
};

test('log records have the same loggers, levels, messages and fields, or differ for a listed reason', async () => {
  // What was logged after the last answers of the hosts.
  for (const side of ['original', 'ours']) await ask(side, CASES[0]);
  assert.ok(kinds.original.size >= 10, 'the cases above ran');
  for (const [side, other] of [
    ['original', 'ours'],
    ['ours', 'original'],
  ]) {
    const alone = [...kinds[side].keys()].filter((kind) => !kinds[other].has(kind));
    assert.deepEqual(
      // Those of this package's own at debug are C16, one and all.
      alone.filter((kind) => !LISTED.has(RECORDS[side][kind] ?? (/ debug: /.test(kind) && side === 'ours' && 'C16'))),
      [],
      `records that ${side} makes alone`
    );
  }
  for (const [kind, fields] of kinds.original) {
    const missing = [...fields].filter((field) => kinds.ours.has(kind) && !kinds.ours.get(kind).has(field));
    assert.deepEqual(missing, [], kind);
  }
});

test('the original can still be had beside this package', () => {
  const url = pathToFileURL(file).href;
  const script = `
    const [swapped, original, ours] = await Promise.all(['${url}', '${url}?original', 'native-sandbox-executor'].map((from) => import(from)));
    const classes = [swapped, original, ours].map((one) => one.SandboxExecutorFactory);
    console.log(classes[0] === classes[2], classes[1] === classes[2], typeof classes[1].getInstance);
    process.exit();`;
  const args = [...FLAGS.ours, '--input-type=module', '--eval', script];
  const env = { ...process.env, ANTHROPIC_API_KEY: 'none', ENVIRONMENT: 'development', LOG_LEVEL: 'error' };
  assert.equal(execFileSync(process.execPath, args, { cwd: project, env, encoding: 'utf8' }), 'true false function\n');
});

test('every id is listed once', () => {
  const ids = readFileSync(join(ROOT, 'docs', 'COMPATIBILITY.md'), 'utf8').match(/^\| C\d+\b/gm);
  assert.ok(ids.length >= 25);
  assert.equal(new Set(ids).size, ids.length);
});
