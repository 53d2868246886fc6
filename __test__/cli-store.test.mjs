// `store`: what is installed is listed, shrunk, and installed ahead; what is in use stays.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { cli, ESC } from './cli.mjs';
import { ownWorld, rejection, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const world = ownWorld();
const one = (name) => ({ '1.0.0': { 'index.js': `module.exports = ${JSON.stringify(name)};` } });
let registry;

before(async () => {
  registry = await useRegistry({ alpha: one('alpha'), beta: one('beta'), gamma: one('gamma') });
});
after(() => registry.close());

/** A store of its own for each test. */
function storeIn(name) {
  const dir = join(world.root, name);
  const at = (...words) => cli(['store', ...words, '--store-dir', dir]);
  return {
    dir,
    at,
    list: async () => JSON.parse((await at('ls', '--json')).out).trees,
    async warm(sets) {
      const file = join(world.root, `${name}.json`);
      writeFileSync(file, typeof sets === 'string' ? sets : JSON.stringify(sets));
      return await at('warm', file);
    },
  };
}

/** By its packages. */
const names = (trees) => trees.map(({ what }) => Object.keys(what.dependencies).join('+')).sort();

test('warm installs, once; ls lists', async () => {
  const { dir, at, list, warm } = storeIn('warm');
  const first = await warm([{ alpha: '1.0.0' }, { alpha: '1.0.0', beta: '^1.0.0' }]);
  assert.equal(first.code, 0, first.err);
  assert.match(first.out, /^2 ready in .*, 2 of them installed now\n$/);
  assert.match(first.err, /^Installing 2 sets …\n/);
  // As some programs write files.
  const second = await warm('\ufeff{"alpha":"1.0.0"}');
  assert.match(second.out, /^1 ready in .*, 0 of them installed now\n$/);

  const trees = await list();
  assert.deepEqual(names(trees), ['alpha', 'alpha+beta']);
  for (const tree of trees) {
    assert.match(tree.key, /^[0-9a-f]{64}$/);
    assert.deepEqual([tree.serves, tree.inUse], [true, false]);
    assert.ok(tree.bytes > 0 && tree.files > 0 && Date.now() - tree.lastUsedMs < 600_000, JSON.stringify(tree));
    assert.ok(tree.dir.startsWith(dir) && existsSync(join(tree.dir, 'tree', 'node_modules', 'alpha')));
  }
  const { out } = await at('ls');
  assert.match(out, /^PACKAGES +NODE +SIZE +LAST USED +GENERATION\n/);
  assert.match(out, /^alpha@1\.0\.0, beta@\^1\.0\.0 +ABI \d+ +[\d.]+ KiB +just now +0000000001-/m);
  assert.match(out, /\n2 in .*, [\d.]+ KiB\n$/);
  assert.ok(!out.includes(ESC));

  // It serves where it is named as a base store.
  const factory = new (surface().NativeSandboxExecutor)({ baseStoreDirs: [dir], storeDir: join(world.root, 'own') });
  const { alpha } = registry.hits;
  const uses = tool("() => require('alpha')", { dependencies: { alpha: '1.0.0' } });
  assert.equal(await factory.executeFunctionTool('t', {}, uses), 'alpha');
  assert.equal(registry.hits.alpha, alpha);
  await factory.cleanup();
});

test('to look for a store that is not there makes none', async () => {
  for (const [name, isThere] of [
    ['not-there', false],
    ['empty-folder', true],
  ]) {
    const { dir, at } = storeIn(name);
    if (isThere) mkdirSync(dir);
    for (const words of [['ls'], ['prune', '--all'], ['prune', '--older-than', '1d']]) {
      assert.deepEqual(await at(...words), { code: 0, out: `there is no store in ${dir}\n`, err: '' });
    }
    assert.deepEqual(JSON.parse((await at('ls', '--json')).out), { root: null, trees: [] });
    const nothing = { useless: 0, evicted: 0, inUse: 0, freedBytes: 0, trees: 0, bytes: 0 };
    assert.deepEqual(JSON.parse((await at('prune', '--all', '--json')).out), nothing);
    assert.deepEqual(isThere ? readdirSync(dir) : existsSync(dir), isThere ? [] : false);
  }
  // The same where a variable names it.
  const dir = join(world.root, 'by-variable');
  const { code, out } = await cli(['store', 'ls'], { env: { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: dir } });
  assert.deepEqual([code, out, existsSync(dir)], [0, `there is no store in ${dir}\n`, false]);
  // One that has nothing in it is something else.
  const { at, warm } = storeIn('emptied');
  await warm({ alpha: '1.0.0' });
  await at('prune', '--all');
  assert.match((await at('ls')).out, / is empty\n$/);
  const pruned = JSON.parse((await at('prune', '--all', '--json')).out);
  assert.deepEqual(Object.keys(pruned).sort(), ['bytes', 'evicted', 'freedBytes', 'inUse', 'trees', 'useless']);
});

test('prune keeps what is in use, by whatever process', async () => {
  const { dir, at, list, warm } = storeIn('in-use');
  await warm([{ alpha: '1.0.0' }, { beta: '1.0.0' }]);
  const executor = new (surface().NativeSandboxExecutor)({ storeDir: dir });
  const uses = tool("() => require('alpha')", { dependencies: { alpha: '1.0.0' } });
  await executor.executeFunctionTool('t', {}, uses);
  const seen = await list();
  assert.deepEqual(seen.map(({ what, inUse }) => [Object.keys(what.dependencies)[0], inUse]).sort(), [
    ['alpha', true],
    ['beta', false],
  ]);
  assert.match((await at('ls')).out, /^alpha.* in use$/m);
  const pruned = await at('prune', '--all');
  assert.equal(pruned.code, 0, pruned.err);
  assert.match(pruned.out, /^removed 1, freed [\d.]+ KiB; 1 in use stayed; 1 left, /);
  assert.deepEqual(names(await list()), ['alpha']);
  // It goes on working, and goes when nobody has it.
  assert.equal(await executor.executeFunctionTool('t', {}, uses), 'alpha');
  await executor.cleanup();
  await surface().NativeSandboxExecutor.getInstance().cleanup();
  const { evicted, trees } = JSON.parse((await at('prune', '--all', '--json')).out);
  assert.deepEqual([evicted, trees], [1, 0]);
  assert.deepEqual(await list(), []);
});

test('prune goes by age and by size, the least recently used first', async () => {
  const { at, list, warm } = storeIn('measures');
  await warm([{ alpha: '1.0.0' }, { beta: '1.0.0' }, { gamma: '1.0.0' }]);
  const ages = { alpha: 3, beta: 2, gamma: 1 };
  for (const { dir, what } of await list()) {
    const [name] = Object.keys(what.dependencies);
    const used = new Date(Date.now() - ages[name] * 24 * 3_600_000);
    utimesSync(join(dir, 'lease'), used, used);
  }
  assert.deepEqual(
    (await list()).map(({ what }) => Object.keys(what.dependencies)[0]),
    ['alpha', 'beta', 'gamma']
  );
  assert.match((await at('prune', '--older-than', '4d')).out, /^removed 0, freed 0 B; 3 left/);
  assert.match((await at('prune', '--older-than', '60h')).out, /^removed 1, /);
  assert.deepEqual(names(await list()), ['beta', 'gamma']);
  const [{ bytes }] = await list();
  assert.match((await at('prune', '--max-size', `${bytes}B`)).out, /^removed 1, /);
  assert.deepEqual(names(await list()), ['gamma']);
});

test('warm says what is wrong with a file', async () => {
  const { warm, list } = storeIn('wrong');
  for (const [text, expected] of [
    ['{', /cannot read .*JSON/],
    ['[]', /has no dependency set/],
    ['[1]', /must have a dependency set/],
    ['{"alpha":1}', /must have a dependency set/],
    ['{"name":"x","dependencies":{"alpha":"1"}}', /looks like a package\.json/],
    ['{"alpha":"git+ssh://host/x"}', /INVALID_DEPENDENCY/],
    ['[{"alpha":"1.0.0"},{"none":"1.0.0"}]', /INSTALL_FAILED/],
  ]) {
    const { code, out, err } = await warm(text);
    assert.match(err, expected, text);
    assert.deepEqual([code, out], [1, ''], text);
  }
  // All are tried.
  assert.deepEqual(names(await list()), ['alpha']);
});

test('a task that nobody knows is refused', async () => {
  const { maintain, NativeSandboxExecutor } = await import('../lib/native-executor.js');
  const error = await rejection(maintain(new NativeSandboxExecutor(), { task: 'wipe' }));
  assert.equal(error.code, 'INVALID_CONFIG');
});

test('a base store that has the set for somebody else says why it does not serve', { timeout: 60_000 }, async () => {
  const base = join(world.root, 'base-of-others');
  const { NativeSandboxExecutor, setLogger } = surface();
  const dependencies = { alpha: '1.0.0' };
  const uses = tool("() => require('alpha')", { dependencies });
  await new NativeSandboxExecutor({ storeDir: base, tenantKey: 'another' }).executeFunctionTool('t', {}, uses);
  const records = [];
  const at = (fields, message) => records.push({ fields, message });
  setLogger({ debug() {}, info() {}, warn: at, error: at });
  const factory = new NativeSandboxExecutor({ baseStoreDirs: [base], storeDir: join(world.root, 'own-of-this') });
  await factory.executeFunctionTool('t', {}, uses);
  const told = await until(
    () => records.find(({ message }) => message.startsWith('A base store has these dependencies')),
    5000,
    'the reason'
  );
  setLogger(null);
  assert.match(told.fields.reason, /tenantKey/);
  assert.deepEqual(told.fields.dependencies, dependencies);
  assert.equal(told.fields.baseStoreDir, base);
});
