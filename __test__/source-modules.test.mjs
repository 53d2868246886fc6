// What code finds around it: `require`, `import()` and static imports in both kinds of module, and sensible names of files. What
// it needs and nobody declared is named.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let registry;
let world;

before(async () => {
  world = ownWorld();
  registry = await useRegistry({
    alpha: { '1.0.0': { 'index.js': `exports.name = 'alpha';`, 'package.json': { dependencies: { below: '1.0.0' } } } },
    below: { '1.0.0': { 'index.js': `exports.name = 'below';` } },
  });
});
after(() => registry.close());

/** The same look at the surroundings in every kind of module. */
const LOOK = `{
  const path = await import('node:path');
  return {
    required: require('alpha').name,
    imported: (await import('alpha')).name,
    builtin: [typeof require('fs').readFileSync, typeof (await import('node:os')).cpus],
    file: path.basename(__filename),
    folder: __dirname === path.dirname(__filename) && __dirname === process.cwd(),
    resolved: [require.resolve('alpha').endsWith('/alpha/index.js'), require.resolve('fs')],
    paths: require.resolve.paths('alpha')[0] === path.join(__dirname, 'node_modules'),
    started: process.argv[1] === __filename,
    cached: Object.keys(require.cache).every((file) => file.includes('/node_modules/')),
  };
}`;
const SEEN = {
  required: 'alpha',
  imported: 'alpha',
  builtin: ['function', 'function'],
  folder: true,
  resolved: [true, 'fs'],
  paths: true,
  started: true,
  cached: true,
};

/** Imports that can never work, with the place where the text names the package. */
const UNDECLARED = [
  ['a default import', `import _ from 'left-out';\nexport default () => _`, 'left-out', '1, column 15'],
  ['a subpath', `\nimport { x } from 'left-out/deep.js';\nexport default () => x`, 'left-out', '2, column 19'],
  ['a scope', `import '@left/out/deep';\nexport default () => 1`, '@left/out', '1, column 8'],
  ['a re-export', `export * from 'left-out';\nexport default () => 1`, 'left-out', '1, column 15'],
  [
    'TypeScript',
    `import a, { type B } from 'left-out';\nexport default (b: B) => a(b)`,
    'left-out',
    '1, column 27',
    'typescript',
  ],
  ['JSX', `export default () => <a />`, 'react', '1, column 1', 'typescript'],
];

/** Names that only a run can tell to be missing. */
const MISSING = [
  ['require', `() => require('left-out/deep')`],
  ['require above the function', `const a = require('left-out');\n() => a`],
  ['import()', `async () => (await import('left-out')).x`],
  ['require.resolve', `() => require.resolve('left-out')`],
  ['a computed name', `() => require(['left', 'out'].join('-'))`],
  [
    'an error that is wrapped',
    `() => { try { require('left-out'); } catch (cause) { throw new Error('no luck', { cause }); } }`,
  ],
];

/** What works although nobody declared anything. */
const FINE = [
  ['a require that may fail', `let a; try { a = require('left-out'); } catch { a = 'without'; }\n() => a`, 'without'],
  ['an import() that may fail', `() => import('left-out').catch(({ code }) => code)`, 'ERR_MODULE_NOT_FOUND'],
  [
    'built-in modules',
    `import os from 'os';\nimport { readFile } from 'fs/promises';\nimport test from 'node:test';
    export default () => [os, readFile, test].map((it) => typeof it)`,
    ['object', 'function', 'function'],
  ],
  [
    'types',
    `import type { A } from 'left-out';\nimport { type B } from 'left-out';\nimport { C } from 'left-out';
    export default (a: A | B | C) => 'types'`,
    'types',
    'typescript',
  ],
  ['names in strings and comments', `// require('left-out')\n() => "import 'left-out'"`, `import 'left-out'`],
];

for (const rung of RUNGS) {
  test(`modules on the rung ${rung}`, { timeout: 120_000 }, async (t) => {
    const factory = new (surface().SandboxExecutorFactory)({ start: rung });
    const call = (code, { runtime = 'node22', dependencies } = {}) =>
      factory.executeFunctionTool('t', {}, tool(code, { dependencies, sandbox: { runtime } }));
    const dependencies = { alpha: '1.0.0' };

    const kinds = [
      ['script', `async () => ${LOOK}`, 'index.cjs'],
      ['module', `import 'alpha';\nexport default async () => ${LOOK}`, 'index.mjs'],
      ['script in TypeScript', `async (a: unknown) => ${LOOK}`, 'index.cjs', 'typescript'],
      [
        'module in TypeScript',
        `import { name } from 'alpha';\nexport default async (a: unknown) => { name; ${LOOK} }`,
        'index.mjs',
        'typescript',
      ],
    ];
    for (const [kind, code, file, runtime] of kinds) {
      await t.test(`a ${kind} has all it needs`, async () => {
        assert.deepEqual(await call(code, { runtime, dependencies }), { ...SEEN, file });
      });
    }

    await t.test('a script is the main module, and exports as one', async () => {
      const code = `module.exports = () => [require.main === module, process.mainModule === module, module.filename === __filename,
        module.exports === exports, typeof module.id, module.children.length]`;
      assert.deepEqual(await call(code), [true, true, true, false, 'string', 0]);
    });

    await t.test('a module has import.meta', async () => {
      const code = `import { fileURLToPath } from 'node:url';
        export default () => [fileURLToPath(import.meta.url) === import.meta.filename, import.meta.dirname === process.cwd(),
          import.meta.resolve('alpha').endsWith('/alpha/index.js'), import.meta.resolve('./a.js') === new URL('a.js', import.meta.url).href]`;
      assert.deepEqual(await call(code, { dependencies }), [true, true, true, true]);
    });

    await t.test('files that the function writes can be loaded', async () => {
      const code = `async () => { require('fs').writeFileSync('own.cjs', 'module.exports = 5');
        return [require('./own.cjs'), (await import('./own.cjs')).default]; }`;
      assert.deepEqual(await call(code), [5, 5]);
    });

    await t.test('what a dependency brings along can be imported', async () => {
      assert.equal(await call(`import { name } from 'below';\nexport default () => name`, { dependencies }), 'below');
    });

    for (const [what, code, name, place, runtime] of UNDECLARED) {
      await t.test(`${what} of an undeclared package is refused at its place`, async () => {
        const error = await rejection(call(code, { runtime }));
        assert.deepEqual([error.code, error.phase], ['INVALID_DEPENDENCY', 'validate']);
        assert.ok(error.message.includes(`the package \`${name}\``), error.message);
        assert.ok(error.message.includes(`(line ${place})`), error.message);
        assert.ok(error.message.includes(`\`dependencies\`, for example { "${name}": "latest" }`), error.message);
      });
    }

    for (const [what, code] of MISSING) {
      await t.test(`${what}: the error names the missing package and where to declare it`, async () => {
        const error = await rejection(call(code));
        assert.equal(error.code, 'TOOL_ERROR');
        assert.match(
          error.message,
          /`left-out` is missing; declare it .*`dependencies`, for example \{ "left-out": "latest" \}$/
        );
      });
    }

    await t.test('beside other dependencies, an import of an undeclared package is named too', async () => {
      const error = await rejection(call(`import 'left-out';\nexport default () => 1`, { dependencies }));
      assert.match(error.message, /`left-out` is missing; declare it/);
    });

    await t.test('a missing file of a declared package is no missing declaration', async () => {
      const error = await rejection(call(`() => require('alpha/none')`, { dependencies }));
      assert.match(error.message, /Cannot find module 'alpha\/none'/);
      assert.doesNotMatch(error.message, /declare/);
    });

    for (const [what, code, expected, runtime] of FINE) {
      await t.test(`${what} need no declaration`, async () =>
        assert.deepEqual(await call(code, { runtime }), expected)
      );
    }

    await factory.cleanup();
  });
}

test('a package that lies around the store needs no declaration', async () => {
  const folder = join(dirname(world.tmp), 'node_modules', 'around');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'index.js'), 'module.exports = 7;');
  const factory = new (surface().SandboxExecutorFactory)();
  const code = `import seven from 'around';\nexport default () => seven`;
  assert.equal(await factory.executeFunctionTool('t', {}, tool(code)), 7);
  await factory.cleanup();
});

test('the same text is prepared once', async () => {
  const { NativeSandboxExecutor } = surface();
  const executor = new NativeSandboxExecutor();
  const reused = () => executor.getMetrics().sources.reused;
  await executor.executeFunctionTool('t', {}, tool('() => "prepared once"'));
  const before = reused();
  await executor.executeFunctionTool('u', {}, tool('() => "prepared once"'));
  assert.equal(reused(), before + 1);
  await executor.executeFunctionTool('u', {}, tool('() => "prepared once"', { sandbox: { runtime: 'typescript' } }));
  assert.equal(reused(), before + 1, 'the runtime is part of the key');
  await executor.cleanup();
});
