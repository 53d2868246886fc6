// `describeFunctions`: declarations that TypeScript takes, and that nothing in a name, a schema or a description gets out of.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { surface } from './helpers.mjs';

const { describeFunctions } = surface();
const require = createRequire(import.meta.url);
/** What a terminal or an editor would take for more than text. */
const isControl = (one) =>
  (one < ' ' && one !== '\n') || (one > '~' && one < '\u00a0') || one === '\u2028' || one === '\u2029';

const files = { __proto__: null };

/** Notes a text that TypeScript is to take, with what uses it. */
function valid(declarations, use = '') {
  files[`good-${keys(files)}.ts`] = `${declarations}\n${use}\nexport {};\n`;
}

/** And one that it is to refuse. */
function invalid(declarations, use) {
  files[`bad-${keys(files)}.ts`] = `${declarations}\n${use}\nexport {};\n`;
}

function keys(object) {
  return Object.keys(object).length;
}

/** What TypeScript says of all of them, at once: starting it takes longer than everything else. */
after(() => {
  const folder = mkdtempSync(join(tmpdir(), 'nse-describe-'));
  try {
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    const tsc = join(dirname(require.resolve('typescript/package.json')), 'bin/tsc');
    const flags = [
      '--noEmit',
      '--strict',
      '--target',
      'esnext',
      '--module',
      'esnext',
      '--pretty',
      'false',
      '--types',
      '',
    ];
    const { stdout } = spawnSync(process.execPath, [tsc, ...flags, ...Object.keys(files)], {
      cwd: folder,
      encoding: 'utf8',
    });
    const faulty = new Set(stdout.match(/^\w+-\d+\.ts/gm) ?? []);
    const good = Object.keys(files).filter((name) => name.startsWith('good'));
    assert.ok(good.length > 20);
    assert.deepEqual(
      good.filter((name) => faulty.has(name)),
      [],
      `${stdout}\n${files[[...faulty][0]]}`
    );
    assert.deepEqual(
      Object.keys(files).filter((name) => name.startsWith('bad') && !faulty.has(name)),
      []
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

const ORDERS = {
  description: 'Orders of a year.\nOne page.',
  type: 'object',
  properties: {
    year: { type: 'integer', description: 'four digits' },
    kind: { enum: ['open', 'paid', null] },
    'sort-by': { type: ['string', 'null'] },
    pair: { type: 'array', prefixItems: [{ type: 'string' }, { type: 'number' }], minItems: 1, items: false },
    labels: { type: 'object', additionalProperties: { type: 'string' } },
    either: { oneOf: [{ type: 'string' }, { type: 'array', items: { type: 'boolean' } }] },
    both: { allOf: [{ properties: { a: { const: 1 } }, required: ['a'] }, { properties: { b: {} } }] },
  },
  required: ['year', 'unlisted'],
  additionalProperties: false,
};

test('a function is declared from its schema, with comments, in the objects that its name has', () => {
  const text = describeFunctions(
    { 'crm.orders.list': async () => [], log() {}, 'crm.new': () => 1 },
    { 'crm.orders.list': ORDERS }
  );
  valid(
    text,
    `const a: Promise<unknown> = host.crm.orders.list({ year: 1, unlisted: 0, kind: null, 'sort-by': 'x', pair: ['x'],
       labels: { a: 'b' }, either: [true], both: { a: 1 } });
     host.log(); host.log({}); host.crm.new(1);`
  );
  assert.match(text, /\/\*\*\n {7}\* Orders of a year\.\n {7}\* One page\.\n {7}\*\/\n {6}list\(args: \{/);
  assert.match(text, /\/\*\* four digits \*\/\n +year: number;/);
  for (const use of ['{ unlisted: 0 }', '{ year: "1", unlisted: 0 }', '{ year: 1, unlisted: 0, kind: "other" }']) {
    invalid(text, `host.crm.orders.list(${use});`);
  }
});

test('results are declared where a schema says what they are', () => {
  const text = describeFunctions(['find'], {
    find: {
      description: 'Finds',
      inputSchema: true,
      outputSchema: { type: 'object', properties: { id: { type: 'number' } }, required: ['id'] },
    },
  });
  valid(text, 'async function use() { const id: number = (await host.find(1)).id; return id; }');
});

test('a schema may refer to itself, to its parts and to nothing', () => {
  const tree = {
    type: 'object',
    properties: { kids: { type: 'array', items: { $ref: '#/$defs/a%20node~1x' } } },
    required: ['kids'],
  };
  const schemas = {
    tree: { $ref: '#/$defs/a%20node~1x', $defs: { 'a node/x': tree } },
    list: { type: 'object', properties: { next: { $ref: '#' } } },
    round: {
      $ref: '#/$defs/a',
      $defs: { a: { anyOf: [{ $ref: '#/$defs/b' }, { type: 'null' }] }, b: { $ref: '#/$defs/a' } },
    },
    self: { $ref: '#' },
    remote: { properties: { a: { $ref: 'https://schemas.example/x.json' }, b: { $ref: '#/no/where' } } },
  };
  const text = describeFunctions(Object.keys(schemas), schemas);
  valid(
    text,
    'host.tree({ kids: [{ kids: [] }] }); host.list({ next: { next: {} } }); host.self(1); host.remote({ a: 1 });'
  );
});

test('odd schemas give declarations all the same', () => {
  const odd = [
    true,
    false,
    {},
    7,
    'x',
    null,
    [],
    { type: 'text' },
    { enum: [] },
    { type: [] },
    { required: 'a' },
    { properties: [] },
    { items: [{ type: 'string' }], additionalItems: { type: 'number' } },
    { const: { a: [1, { b: null }] } },
    { properties: { __proto__: {}, constructor: { type: 'string' }, '': {}, 'a\nb': {}, 1: {} } },
    JSON.parse('{"properties":{"__proto__":{"type":"string"}}}'),
    { type: 'object', additionalProperties: false },
    { properties: { a: { type: 'string' } }, additionalProperties: { type: 'number' } },
    { patternProperties: { x: { type: 'string' } } },
  ];
  for (const schema of odd) valid(describeFunctions(['f'], { f: schema }));
  let deep = { type: 'string' };
  for (let level = 0; level < 500; level++) deep = { type: 'array', items: deep };
  assert.ok(describeFunctions(['f'], { f: deep }).length < 2000);
  const wide = {
    properties: Object.fromEntries(Array.from({ length: 20_000 }, (_, at) => [`p${at}`, { type: 'string' }])),
  };
  const began = performance.now();
  assert.ok(describeFunctions(['f'], { f: wide }).length < 1_000_000);
  assert.ok(performance.now() - began < 10_000);
});

test('nothing gets out of a comment, a name or a literal', () => {
  const hostile = [
    '*/ escaped(1); /*',
    '*/*/',
    '*\\/ */',
    '\u2028*/\u2029',
    '\n * @deprecated */ x',
    '\u001b[2J',
    '`$' + '{escaped}`',
    '\'"\\',
  ];
  for (const text of hostile) {
    const schema = {
      description: text,
      properties: { [text]: { description: text, enum: [text, { [text]: text }] } },
      $defs: { [text]: { type: 'string' } },
      allOf: [{ $ref: `#/$defs/${encodeURIComponent(text.replaceAll('~', '~0').replaceAll('/', '~1'))}` }],
    };
    const declarations = describeFunctions(['f'], { f: schema });
    valid(declarations);
    assert.ok(![...declarations].some(isControl), declarations);
  }
});

test('bad names and schemas are INVALID_CONFIG with a sentence', () => {
  const fails = (act, part) =>
    assert.throws(act, (error) => error.code === 'INVALID_CONFIG' && part.test(error.message));
  fails(() => describeFunctions(), /an object of functions or a list/);
  fails(() => describeFunctions('f'), /an object of functions or a list/);
  fails(() => describeFunctions([1]), /names that are texts/);
  for (const name of ['', 'a b', 'a.', '__proto__', 'a.constructor', '*/', 'x: any }; declare const y: {']) {
    fails(() => describeFunctions([name]), /functions\[/);
  }
  fails(() => describeFunctions(['a', 'a.b']), /is a function and cannot be the object/);
  fails(() => describeFunctions(['a'], { b: {} }), /there is no function of that name; there are a/);
  fails(() => describeFunctions(['a'], [{}]), /must be an object/);
  const circle = {};
  circle.self = circle;
  fails(() => describeFunctions(['a'], { a: circle }), /cannot be written as JSON/);
  assert.equal(describeFunctions({}), 'declare const host: {};\n');
});
