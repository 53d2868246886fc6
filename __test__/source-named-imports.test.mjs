// Named imports from packages that turn out to be CommonJS, and whose names Node does not see in their text: `import { sumBy } from 'lodash'`. They
// work as bundlers have it, and places in errors stay the user's. What Node can do by itself is left to Node.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

/** Made as lodash is: a function with everything on it, given to `module.exports` in a roundabout way. */
const LOOSE = `;(function() {
  function loose(value) { return ['wrapped', value]; }
  loose.sumBy = function sumBy(list, key) { return list.reduce(function(sum, each) { return sum + each[key]; }, 0); };
  loose.default_ = 'not the default';
  loose['odd name'] = 'odd';
  loose.fail = function fail() { throw new RangeError('from the package'); };
  var root = typeof module == 'object' && module;
  (root && (root.exports = loose)).loose = loose;
}.call(this));`;

let registry;

before(async () => {
  ownWorld();
  registry = await useRegistry({
    loose: { '1.0.0': { 'index.js': LOOSE, 'sub/part.js': LOOSE } },
    '@scope/loose': { '1.0.0': { 'index.js': LOOSE } },
    seen: { '1.0.0': { 'index.js': 'exports.one = 1; exports.two = 2;' } },
    esm: {
      '1.0.0': {
        'package.json': { type: 'module', exports: './index.js' },
        'index.js':
          'export const one = 1;\nexport let count = 0;\nexport const inc = () => ++count;\nexport default { two: 2 };',
      },
    },
    compiled: {
      '1.0.0': {
        'index.js': `Object.defineProperty(exports, '__esModule', { value: true });
for (const [name, value] of [['named', 'n'], ['default', 'd']]) exports[name] = value;`,
      },
    },
    primitive: { '1.0.0': { 'index.js': `module.exports = 'text';` } },
  });
});
after(() => registry.close());

const LIST = '[{ n: 1 }, { n: 2 }]';

/** What works, with its result. */
const WORKING = [
  ['one name', `import { sumBy } from 'loose';\nexport default () => sumBy(${LIST}, 'n')`, 3],
  ['a renamed name', `import { sumBy as total } from 'loose';\nexport default () => total(${LIST}, 'n')`, 3],
  ['a name in quotes', `import { 'odd name' as odd } from 'loose';\nexport default () => odd`, 'odd'],
  [
    'several names on several lines',
    `import {\n  sumBy,\n  default_,\n} from 'loose';\nexport default () => [sumBy(${LIST}, 'n'), default_]`,
    [3, 'not the default'],
  ],
  [
    'the default beside names',
    `import _, { sumBy } from 'loose';\nexport default () => [_(1), sumBy(${LIST}, 'n')]`,
    [['wrapped', 1], 3],
  ],
  [
    'the default by its name',
    `import { default as _, sumBy } from 'loose';\nexport default () => [_(1)[0], sumBy(${LIST}, 'n')]`,
    ['wrapped', 3],
  ],
  ['the default alone', `import _ from 'loose';\nexport default () => _.sumBy(${LIST}, 'n')`, 3],
  [
    'all names',
    `import * as _ from 'loose';\nexport default () => [_.sumBy(${LIST}, 'n'), _.default(1)]`,
    [3, ['wrapped', 1]],
  ],
  [
    'the default and all names',
    `import loose, * as all from 'loose';\nexport default () => [loose(1)[0], all.sumBy(${LIST}, 'n')]`,
    ['wrapped', 3],
  ],
  ['a subpath', `import { sumBy } from 'loose/sub/part.js';\nexport default () => sumBy(${LIST}, 'n')`, 3],
  ['a scope', `import { sumBy } from '@scope/loose';\nexport default () => sumBy(${LIST}, 'n')`, 3],
  [
    'two packages',
    `import { sumBy } from 'loose';\nimport { sumBy as other } from '@scope/loose';\nexport default () => [sumBy(${LIST}, 'n'), other([], 'n'), sumBy === other]`,
    [3, 0, false],
  ],
  [
    'two statements for one package',
    `import { sumBy } from 'loose';\nimport { default_ } from 'loose';\nexport default () => [typeof sumBy, default_]`,
    ['function', 'not the default'],
  ],
  ['names that Node sees', `import { one, two as zwei } from 'seen';\nexport default () => [one, zwei]`, [1, 2]],
  [
    'a package that was compiled from a module',
    `import d, { named } from 'compiled';\nexport default () => [d.default ?? d, named]`,
    ['d', 'n'],
  ],
  [
    'a re-export',
    `export { sumBy } from 'loose';\nimport { sumBy } from 'loose';\nexport default () => sumBy(${LIST}, 'n')`,
    3,
  ],
  ['a re-export as the tool', `export { sumBy as default } from 'loose';`, 'TypeError'],
  [
    'a module',
    `import all, { one, inc, count } from 'esm';\nimport * as ns from 'esm';\nexport default () => [one, inc(), count, ns.count, all.two, Object.keys(ns), typeof ns.two]`,
    [1, 1, 1, 1, 2, ['count', 'default', 'inc', 'one'], 'undefined'],
  ],
  [
    'built-in modules',
    `import { basename } from 'node:path';\nimport * as os from 'os';\nexport default () => [basename('/a/b'), typeof os.cpus]`,
    ['b', 'function'],
  ],
  [
    'all names that Node sees',
    `import * as seen from 'seen';\nexport default () => [seen.one, seen.two, seen.default.one]`,
    [1, 2, 1],
  ],
  ['all names of a primitive', `import * as text from 'primitive';\nexport default () => text.default`, 'text'],
  [
    'an import beside other code',
    `import { sumBy } from 'loose';\nconst list = ${LIST};\nfunction helper(x) { return x.map((y) => y) }\nexport async function run() { return sumBy(helper(list), 'n') }`,
    3,
  ],
];

/** Those that are tried on every rung. */
const FEW = new Set(['one name', 'the default beside names', 'all names', 'a re-export', 'a module']);

/** What is refused, with what the error has to say. */
const MISSING = [
  [
    'a missing name',
    `import { sumsBy } from 'loose';\nexport default () => sumsBy()`,
    /'loose' has no export named 'sumsBy'/,
  ],
  [
    'a missing name beside others',
    `import { sumBy, sumsBy } from 'loose';\nexport default () => sumsBy()`,
    /'loose' has no export named 'sumsBy'/,
  ],
  [
    'a missing name of a module',
    `import { three } from 'esm';\nexport default () => three`,
    /does not provide an export named 'three'/,
  ],
  [
    'a missing name of a primitive',
    `import { length2 } from 'primitive';\nexport default () => length2`,
    /'primitive' has no export named 'length2'/,
  ],
];

for (const rung of RUNGS) {
  test(`named imports on the rung ${rung}`, { timeout: 120_000 }, async (t) => {
    const factory = new (surface().SandboxExecutorFactory)({ start: rung });
    const dependencies = Object.fromEntries(
      ['loose', '@scope/loose', 'seen', 'esm', 'compiled', 'primitive'].map((name) => [name, '1.0.0'])
    );
    const call = (code, runtime = 'node22') =>
      factory.executeFunctionTool('t', {}, tool(code, { dependencies, sandbox: { runtime } }));

    // What comes of a text is the same on every rung; what the rungs share is tried on each.
    const whole = rung === RUNGS.at(-1);
    for (const [what, code, expected] of whole ? WORKING : WORKING.filter(([what]) => FEW.has(what))) {
      for (const runtime of whole ? ['node22', 'typescript'] : ['node22']) {
        await t.test(`${what}, ${runtime}`, async () => {
          if (expected === 'TypeError') {
            // It is called with the arguments as any tool is.
            assert.match((await rejection(call(code, runtime))).message, /TypeError: list\.reduce is not a function/);
          } else {
            assert.deepEqual(await call(code, runtime), expected);
          }
        });
      }
    }

    for (const [what, code, message] of MISSING) {
      await t.test(`${what} is told`, async () => {
        const error = await rejection(call(code));
        assert.ok(['INVALID_SOURCE', 'TOOL_ERROR'].includes(error.code), error.code);
        assert.match(error.message, message);
      });
    }

    await t.test('places in errors stay those of the text', async () => {
      for (const [runtime, type] of [
        ['node22', ''],
        ['typescript', ': never'],
      ]) {
        const code = `import { fail, sumBy as s } from 'loose'; const first = () => { throw new Error('first') };
import * as all from 'loose';
export default ({ which })${type} => {
  if (which === 1) first();
  if (which === 2) fail();
  all.fail();
}`;
        const at = async (which) => {
          const config = tool(code, { dependencies, sandbox: { runtime } });
          const { cause } = await rejection(factory.executeFunctionTool('t', { which }, config));
          return [...cause.stack.matchAll(/work\/index\.mjs:(\d+:\d+)/g)].map(([, place]) => place);
        };
        assert.deepEqual(await at(1), ['1:71', '4:20'], runtime);
        assert.deepEqual(await at(2), ['5:20'], runtime);
        assert.deepEqual(await at(3), ['6:7'], runtime);
      }
    });

    await factory.cleanup();
  });
}
