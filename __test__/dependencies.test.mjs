// Installing: once per set, shared, retried after a failure, several versions at once.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { filesBelow, ownWorld, RUNGS, rejection, run, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let world;
let registry;
const packages = {
  shared: { '1.0.0': { 'index.js': 'module.exports = "one"' }, '2.0.0': { 'index.js': 'module.exports = "two"' } },
  '@scope/pkg': { '3.1.0': { 'index.js': 'exports.kind = "scoped"' } },
  modern: {
    '1.0.0': { 'package.json': { type: 'module', exports: './index.js' }, 'index.js': 'export const kind = "esm";' },
  },
  scripted: {
    '1.0.0': {
      'package.json': { scripts: { postinstall: 'node make.js' } },
      'make.js': 'require("fs").writeFileSync(__dirname + "/made.json", JSON.stringify(Object.keys(process.env)))',
      'index.js': 'try { module.exports = require("./made.json"); } catch { module.exports = "no script ran"; }',
    },
  },
};

before(async () => {
  world = ownWorld();
  process.env.NSE_INSTALL_SECRET = 'sk-install';
  registry = await useRegistry(packages);
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

test('concurrent first calls share one installation', { timeout: 60_000 }, async () => {
  const source = 'async ({ i }) => i + require("shared")';
  const calls = [0, 1, 2, 3, 4, 5].map((i) =>
    run(source, { i }, { dependencies: { shared: '1.0.0' }, sandbox: { vcpus: 6 } })
  );
  assert.deepEqual(
    await Promise.all(calls),
    [0, 1, 2, 3, 4, 5].map((i) => `${i}one`)
  );
  assert.equal(registry.hits.shared, 1);
});

test('two versions of one package at once, scoped names, tags, modules', { timeout: 90_000 }, async () => {
  const source = '() => require("shared")';
  assert.deepEqual(
    await Promise.all(
      ['1.0.0', '2.0.0', '^1.0.0'].map((range) => run(source, {}, { dependencies: { shared: range } }))
    ),
    ['one', 'two', 'one']
  );
  const dependencies = { '@scope/pkg': 'latest', modern: '1.0.0' };
  const both = 'async () => [require("@scope/pkg").kind, (await import("modern")).kind]';
  assert.deepEqual(await run(both, {}, { dependencies }), ['scoped', 'esm']);
});

test('the order of the names does not matter', { timeout: 60_000 }, async () => {
  const before = registry.hits['@scope/pkg'];
  await run('() => 1', {}, { dependencies: { modern: '1.0.0', '@scope/pkg': 'latest' } });
  assert.equal(registry.hits['@scope/pkg'], before);
});

test('a failed installation is a failure of all who waited, leaves nothing, and is tried again', {
  timeout: 90_000,
}, async () => {
  const over = { dependencies: { 'not-yet': '1.0.0' } };
  const errors = await Promise.all([run('() => 1', {}, over), run('() => 1', {}, over)].map(rejection));
  for (const error of errors) {
    assert.deepEqual([error.code, error.phase], ['INSTALL_FAILED', 'install']);
    assert.match(error.message, /^npm install failed with code \d+: [\s\S]*not-yet/);
  }
  assert.deepEqual(
    filesBelow(world.tmp).filter((path) => path.includes('not-yet')),
    []
  );
});

test('what a function installs beside itself comes before the tree, on every rung', { timeout: 120_000 }, async (t) => {
  /** Node keeps what it found first for a name. */
  const looking = (first) => `() => {
    const { mkdirSync, unlinkSync, writeFileSync } = require('node:fs');
    const before = ${first};
    // The link to the packages, as npm does it.
    unlinkSync('node_modules');
    mkdirSync('node_modules/shared', { recursive: true });
    writeFileSync('node_modules/shared/index.js', 'module.exports = "own"');
    return [before, require('node:module').createRequire(__filename)('shared')];
  }`;
  for (const rung of RUNGS) {
    await t.test(rung, async () => {
      const factory = new (surface().SandboxExecutorFactory)({ start: rung });
      const look = (code) => factory.executeFunctionTool('t', {}, tool(code, { dependencies: { shared: '1.0.0' } }));
      assert.equal(await look('() => require("shared")'), 'one');
      assert.deepEqual(await look(looking('null')), [null, 'own']);
      assert.deepEqual(await look(looking('require("shared")')), ['one', 'one']);
      await factory.cleanup();
    });
  }
});

test('packages are found below the working folder, and cannot be changed there', { timeout: 120_000 }, async (t) => {
  const look = `() => {
    const fs = require('node:fs');
    const path = require('node:path');
    const file = path.join(process.cwd(), 'node_modules', 'shared', 'index.js');
    const attempt = (act) => { try { act(); return 'done'; } catch (error) { return error.code; } };
    return {
      text: fs.readFileSync(file, 'utf8'),
      same: fs.realpathSync(file) === require.resolve('shared'),
      changed: attempt(() => fs.writeFileSync(file, 'module.exports = "spoilt"')),
      added: attempt(() => fs.writeFileSync(path.join(path.dirname(file), 'added'), '')),
    };
  }`;
  const given = `() => [require('shared'), require('node:fs').readFileSync('node_modules/shared/data', 'utf8')]`;
  // Root may, where nothing but the modes of files keeps it from it.
  const writesAnywhere = (await surface().isolationReport()).tier === 'base' && process.getuid?.() === 0;
  for (const rung of RUNGS) {
    await t.test(rung, async () => {
      const factory = new (surface().SandboxExecutorFactory)({ start: rung });
      const call = (code, companions) =>
        factory.executeFunctionTool('t', {}, tool(code, { dependencies: { shared: '1.0.0' } }), companions);
      const found = await call(look);
      assert.deepEqual([found.text.includes('one'), found.same], [true, true]);
      if (!writesAnywhere) {
        for (const code of [found.changed, found.added]) assert.match(code, /^(EROFS|EACCES|EPERM)$/);
      }
      assert.equal(await call('() => require("shared")'), 'one');
      // The caller's own file comes before the link, and is not written through it.
      const files = { 'node_modules/shared/data': 'given' };
      assert.deepEqual(await call(given, { files }), ['one', 'given']);
      const collected = [];
      const onFile = ({ path, stream }) => {
        collected.push(path);
        stream.resume();
      };
      await call(`() => { require('node:fs').writeFileSync('own', ''); }`, { collect: { match: ['**'], onFile } });
      assert.deepEqual(collected, ['own']);
      await factory.cleanup();
    });
  }
});

const asRoot = process.getuid?.() === 0 && 'root writes where it likes until the tier `confined` takes that away';

test('a tree cannot be changed by a function', { timeout: 60_000, skip: asRoot }, async () => {
  const dependencies = { shared: '1.0.0' };
  const meddle = `() => { try { require('node:fs').writeFileSync(require.resolve('shared'), 'module.exports = "spoilt"'); } catch {} return 1; }`;
  await run(meddle, {}, { dependencies });
  assert.equal(await run('() => require("shared")', {}, { dependencies }), 'one');
});

test('install scripts run by default, see no secret, and can be left out', { timeout: 120_000 }, async () => {
  const config = (salt) => tool('() => require("scripted")', { dependencies: { scripted: '1.0.0', ...salt } });
  const { SandboxExecutorFactory: Factory } = surface();
  const names = await new Factory({ tenantKey: 'a' }).executeFunctionTool('t', {}, config({}));
  assert.ok(Array.isArray(names), String(names));
  assert.ok(!names.includes('NSE_INSTALL_SECRET'));
  const ignored = await new Factory({ tenantKey: 'b', installScripts: 'ignore' }).executeFunctionTool(
    't',
    {},
    config({})
  );
  assert.equal(ignored, 'no script ran');
});
