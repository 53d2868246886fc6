// `doctor`: tells what works here, and judges.

import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { judged, report } from '../cli/doctor-report.mjs';
import { cli, ESC } from './cli.mjs';
import { ownWorld, RUNGS } from './helpers.mjs';
import { startRegistry } from './registry.mjs';

const world = ownWorld();
const PREFIX = 'AGENTS_FUNCTION_TOOL_SANDBOX_';
const TIERS = ['base', 'confined', 'isolated'];
let registry;
/** The registry's, as npm's settings have it. */
let url;
let env;

before(async () => {
  registry = await startRegistry({});
  url = registry.url.replace(/\/$/, '');
  env = { npm_config_registry: url };
});
after(() => registry.close());

async function doctor(args = [], more = {}) {
  return await cli(['doctor', ...args], { env: { ...env, ...more } });
}

async function json(args = [], more = {}) {
  const { code, out, err } = await doctor(['--json', ...args], more);
  assert.equal(err, '');
  return { code, ...JSON.parse(out) };
}

test('everything that it looks at is in its JSON', async () => {
  const found = await json();
  assert.deepEqual([found.code, found.ok, found.problems, found.required], [0, true, [], null]);
  assert.equal(found.node.version, process.version);
  assert.equal(found.platform.arch, process.arch);
  assert.equal(found.rung.inUse, RUNGS.at(-1));
  assert.ok(found.rung.served[found.rung.inUse] > 0);
  assert.ok(found.calls.firstMs > 0 && found.calls.lastMs > 0);
  assert.ok(TIERS.includes(found.isolation.tier) && found.isolation.layers.length > 10);
  assert.deepEqual(
    [found.store.root.startsWith(world.tmp), found.store.trees, found.store.maxBytes],
    [true, 1, 2 ** 31]
  );
  assert.match(found.npm.version, /^\d+\./);
  assert.deepEqual([found.npm.registry.url, found.npm.registry.reachable], [url, true]);
  const memory = found.settings.find(({ option }) => option === 'memoryMb');
  assert.deepEqual(memory, { option: 'memoryMb', variable: `${PREFIX}MEMORY_MB`, origin: 'default', value: 1024 });
});

test('its text has a section for each, and no colours in a pipe', async () => {
  const { code, out, err } = await doctor([], { [`${PREFIX}MEMORY_MB`]: '512' });
  assert.deepEqual([code, err], [0, '']);
  for (const title of ['Machine', 'How workers start', 'Isolation: \\w+ is in force', 'Store', 'Packages', 'Limits']) {
    assert.match(out, new RegExp(`^${title}`, 'm'));
  }
  assert.match(out, new RegExp(`^ +memoryMb +512 MiB +${PREFIX}MEMORY_MB$`, 'm'));
  assert.match(out, /^ +diskMb +1024 MiB +default$/m);
  assert.match(out, /^ +cpuSeconds +none +default$/m);
  assert.ok(out.includes(`the registry ${url} answered with `));
  assert.match(out, /✔ Functions run here\.\n$/);
  assert.ok(!out.includes(ESC));
  assert.ok((await doctor([], { FORCE_COLOR: '1' })).out.includes(`${ESC}[1mMachine${ESC}[22m`));
});

test('a required tier that is not in force is exit code 1, whoever requires it', async () => {
  const { isolation } = await json();
  const isThere = (tier) => TIERS.indexOf(tier) <= TIERS.indexOf(isolation.tier);
  for (const tier of TIERS) {
    const byFlag = await json(['--require', tier]);
    const byVariable = await json([], { [`${PREFIX}ISOLATION`]: tier });
    for (const { code, ok, required, problems } of [byFlag, byVariable]) {
      assert.deepEqual([code, ok, required], [isThere(tier) ? 0 : 1, isThere(tier), tier]);
      const codes = problems.map((problem) => problem.code);
      assert.deepEqual(codes, isThere(tier) ? [] : ['ISOLATION_UNAVAILABLE']);
    }
  }
  // The stronger of both counts.
  const both = await json(['--require', 'base'], { [`${PREFIX}ISOLATION`]: 'isolated' });
  assert.deepEqual([both.required, both.ok], ['isolated', isThere('isolated')]);
});

test('a rung that is forced is the one in use; what is not used says why', async () => {
  const { rung } = await json([], { [`${PREFIX}START`]: 'spawn' });
  assert.deepEqual([rung.inUse, rung.served.zygote, rung.served.spawn > 0], ['spawn', 0, true]);
});

test('bad settings are told, and are exit code 1', async () => {
  const { code, ok, problems } = await json([], { [`${PREFIX}MEMORY_MB`]: 'lots' });
  assert.deepEqual([code, ok, problems[0].code], [1, false, 'INVALID_CONFIG']);
  const { out } = await doctor([], { [`${PREFIX}MEMORY_MB`]: 'lots' });
  assert.ok(out.includes(`${PREFIX}MEMORY_MB`), out);
});

test('where nothing is required, nothing is said to be not as required', async () => {
  const { code, out } = await doctor([], { [`${PREFIX}MEMORY_MB`]: 'lots' });
  assert.equal(code, 1);
  assert.match(out, /✖ No function can run here\.\n$/);
  assert.doesNotMatch(out, /required/);
  const layers = [{ name: 'files', tier: 'confined', inForce: false }];
  const found = {
    node: { version: 'v1', path: '/node' },
    platform: { name: 'a-platform', system: 'a system' },
    settings: [],
    warnings: [],
    isolation: { value: { tier: 'base', layers, limits: [] } },
  };
  const works = { value: { firstMs: 1, lastMs: 1 } };
  const refused = { problem: { code: 'ISOLATION_UNAVAILABLE', message: 'too little' } };
  const broken = { problem: { code: 'START_FAILED', message: 'it is broken' } };
  for (const [calls, required, last] of [
    [works, undefined, '✔ Functions run here.'],
    [works, 'confined', '✖ Not as required.'],
    [refused, 'confined', '✖ Not as required.'],
    [broken, 'confined', '✖ No function can run here.'],
    [broken, undefined, '✖ No function can run here.'],
  ]) {
    const text = report(judged({ ...found, calls }, required), (_format, words) => words);
    assert.equal(text.trimEnd().split('\n').at(-1), last);
  }
});

test('a folder that cannot be the store is told in its section', async () => {
  const file = join(world.root, 'a-file');
  writeFileSync(file, '');
  const { code, out } = await doctor(['--store-dir', file]);
  assert.equal(code, 1);
  assert.match(out, new RegExp(`^Store\\n {2}✖ cannot use the folder ${file} for the store: `, 'm'));
  assert.doesNotMatch(out, /temp folder/);
  const { store, problems } = await json(['--store-dir', file]);
  assert.deepEqual(store.problem, problems[0]);
  // What is at the store's own name, and is none.
  const dir = join(world.root, 'taken');
  mkdirSync(dir);
  symlinkSync(world.root, join(dir, `native-sandbox-executor-${process.geteuid?.()}`));
  const taken = await doctor(['--store-dir', dir]);
  if (process.geteuid) assert.match(taken.out, /^Store\n {2}✖ refusing to use .* for the store: /m);
});

test('a variable that sets nothing is told', async () => {
  const { code, out } = await doctor([], { [`${PREFIX}ISOLATOIN`]: 'confined' });
  assert.equal(code, 0);
  assert.ok(out.includes(`! Unknown variable: it sets nothing (${PREFIX}ISOLATOIN)`), out);
});

test('an npm that is not there, and a registry that does not answer, are told; functions run all the same', async () => {
  const missing = await json([], { [`${PREFIX}NPM_PATH`]: join(world.root, 'no-npm') });
  assert.deepEqual([missing.code, missing.ok], [0, true]);
  assert.match(missing.npm.problem, /npmPath/);
  // Takes connections, and says nothing.
  const silent = createServer((socket) => socket.resume());
  await new Promise((listening) => silent.listen(0, '127.0.0.1', listening));
  const there = `http://127.0.0.1:${silent.address().port}`;
  const { code, npm } = await json([], { npm_config_registry: there });
  assert.deepEqual([code, npm.registry], [0, { url: there, reachable: false, problem: 'no answer within 5 s' }]);
  await new Promise((closed) => silent.close(closed));
  const refused = await doctor([], { npm_config_registry: there });
  assert.match(refused.out, /✖ the registry .* cannot be reached: .*ECONNREFUSED/);
});

test('npm is asked for its registry where no setting names one', async () => {
  const { npm } = await json([], { npm_config_registry: undefined });
  assert.match(npm.registry.url, /^https?:/);
});

test('the store that is named is the one that is looked at', async () => {
  const dir = join(world.root, 'other');
  const { store, settings } = await json(['--store-dir', dir]);
  assert.ok(store.root.startsWith(dir));
  assert.deepEqual(
    settings.filter(({ origin }) => origin !== 'default').map(({ option, origin }) => [option, origin]),
    [['storeDir', 'option']]
  );
});

test('each advice is given once, with the layers that it is for', () => {
  const layer = (name, over) => ({ name, tier: 'isolated', inForce: false, why: 'refused', ...over });
  const verdict = judged({
    node: { version: 'v1', path: '/node' },
    platform: { name: 'p', system: 's' },
    calls: { value: { firstMs: 1, lastMs: 1 } },
    isolation: {
      value: {
        tier: 'base',
        layers: [
          layer('mounts', { enable: 'allow namespaces' }),
          layer('pids', { enable: 'allow namespaces' }),
          layer('groups', { enable: 'delegate one' }),
          layer('works', { inForce: true, enable: 'nothing' }),
          layer('never'),
        ],
        limits: [],
      },
    },
    warnings: [],
  });
  const text = report(verdict, (_format, words) => words);
  assert.equal(text.split('allow namespaces').length - 1, 1, text);
  assert.match(text, /to enable mounts, pids: allow namespaces\n {2}to enable groups: delegate one\n/);
  assert.doesNotMatch(text, /to enable works|nothing/);
});

test('no text of it is raw JSON', async () => {
  const { out } = await doctor();
  assert.doesNotMatch(out, /[{}]|":"/, out);
});
