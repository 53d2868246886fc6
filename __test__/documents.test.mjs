// The documents about operating: their programs run and print what they say, and codes, channels and attributes are those of the sources.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { promisify } from 'node:util';
import { isOdd, renderReport } from '../scripts/real-packages/report.mjs';
import { USES } from '../scripts/real-packages/uses.mjs';
import { WORDS } from '../scripts/real-packages/words.mjs';
import { ownWorld, ROOT } from './helpers.mjs';

const textOf = (...path) => readFileSync(join(ROOT, ...path), 'utf8');
const DOCUMENTS = ['OPERATING.md', 'TROUBLESHOOTING.md'];

let project;
before(() => {
  const world = ownWorld();
  project = mkdtempSync(join(world.root, 'project-'));
  mkdirSync(join(project, 'node_modules'));
  symlinkSync(ROOT, join(project, 'node_modules', 'native-sandbox-executor'), 'dir');
});

/** The programs of a document, each with what it is said to print, if it says so. */
function programs(document) {
  const found = textOf('docs', document).matchAll(/^```js\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?/gms);
  return [...found].map(([, code, output]) => ({ code, output }));
}

for (const document of DOCUMENTS) {
  programs(document).forEach(({ code, output }, at) => {
    test(`${document}, program ${at + 1}`, { timeout: 60_000 }, async () => {
      const file = join(project, `${document}-${at}.mjs`);
      writeFileSync(file, code);
      const env = { ...process.env, WARM_DIR: join(project, 'store') };
      const { stdout } = await promisify(execFile)(process.execPath, [file], { env, cwd: project });
      if (output !== undefined) assert.equal(stdout, output);
      assert.notEqual(stdout, '');
    });
  });
}

test('there are programs, and most of them say what they print', () => {
  const all = DOCUMENTS.flatMap(programs);
  assert.ok(all.length >= 6, `${all.length} programs`);
  assert.equal(all.filter(({ output }) => output === undefined).length, 1);
});

test('every error code is explained, once, and no other', () => {
  const union = textOf('index.d.ts').split('export type SandboxErrorCode =')[1].split('/** Where')[0];
  const typed = [...union.matchAll(/\| '(\w+)'/g)].map(([, code]) => code);
  const body = textOf('src', 'error.rs').split('pub enum Code {')[1].split('\n}')[0];
  const rust = [...body.matchAll(/^ {4}([A-Z]\w+),$/gm)].map(([, name]) =>
    name.replace(/(?<!^)([A-Z])/g, '_$1').toUpperCase()
  );
  const explained = [...textOf('docs', 'TROUBLESHOOTING.md').matchAll(/^### `(\w+)`$/gm)].map(([, code]) => code);
  assert.ok(typed.length > 20);
  assert.deepEqual(rust.sort(), [...typed].sort());
  assert.deepEqual(explained.sort(), [...typed].sort());
  const table = textOf('docs', 'TROUBLESHOOTING.md').split('## Before anything runs')[0];
  for (const code of typed) assert.ok(table.includes(`\`${code}\``), `${code} is nobody's`);
});

test('channels, spans and attributes are those of the sources', () => {
  const document = textOf('docs', 'OPERATING.md');
  const channels = [...textOf('lib', 'channels.js').matchAll(/`\$\{PREFIX\}:(\w+)`/g)].map(([, name]) => name);
  assert.equal(channels.length, 8);
  const documented = [...document.matchAll(/^\| `native-sandbox-executor:(\w+)` \|/gm)].map(([, name]) => name);
  assert.deepEqual(documented.sort(), channels.sort());
  const spans = textOf('lib', 'spans.js');
  const own = [...spans.matchAll(/`\$\{OWN\}\.([\w.]+)`/g)].map(([, name]) => `native_sandbox_executor.${name}`);
  const others = [...spans.matchAll(/'((?:code|process|error|exception)\.[\w.]+)'/g)].map(([, name]) => name);
  assert.ok(own.length > 6 && others.length > 3);
  for (const attribute of [...own, ...others]) assert.ok(document.includes(`\`${attribute}\``), attribute);
});

test('variables and files that are named exist', () => {
  const reference = textOf('index.d.ts');
  for (const document of DOCUMENTS) {
    const text = textOf('docs', document);
    for (const [name] of text.matchAll(/AGENTS_FUNCTION_TOOL_\w+/g)) assert.ok(reference.includes(name), name);
    for (const [, path] of text.matchAll(/\]\(((?:\.\.\/)?[\w/.-]+)(?:#[\w-]+)?\)/g)) {
      const folder = path.startsWith('../') ? ROOT : join(ROOT, 'docs');
      const parts = path.replace('../', '').split('/');
      const listed = readdirSync(join(folder, ...parts.slice(0, -1)));
      assert.ok(listed.includes(parts.at(-1)), `${document} names ${path}`);
    }
  }
});

test('the mappings of MIGRATING.md take the factory with and without its ending, and nothing beside it', () => {
  const text = readFileSync(join(ROOT, 'docs', 'MIGRATING.md'), 'utf8');
  const written = [
    /find: \/(.*)\/, replacement/.exec(text)[1],
    JSON.parse(/moduleNameMapper": \{ ("[^"]*"):/.exec(text)[1]),
    /filter: \/(.*)\/ \},/.exec(text)[1],
  ];
  for (const source of written) {
    const pattern = new RegExp(source);
    for (const path of [
      'SandboxExecutorFactory',
      'SandboxExecutorFactory.js',
      'SandboxExecutorFactory.ts',
      'SandboxExecutorFactory.mts',
      'SandboxExecutorFactory-A2LTPE2X.js',
    ])
      assert.match(`../tools/${path}`, pattern);
    for (const path of ['MySandboxExecutorFactory', 'SandboxExecutorFactory.test.ts', 'SandboxExecutorFactories'])
      assert.doesNotMatch(`../tools/${path}`, pattern);
  }
});

const keptOf = (file) => JSON.parse(textOf('scripts', 'real-packages', file));

test('docs/PACKAGES.md says what the report of the real packages says', () => {
  const [report, differences] = [keptOf('report.json'), keptOf('differences.json')];
  assert.equal(textOf('docs', 'PACKAGES.md'), renderReport(report, differences, WORDS));
  assert.deepEqual(Object.keys(WORDS).sort(), USES.map(([name]) => name).sort());
});

test('150 real packages and more are equal on every rung, and what differs is explained', () => {
  const [report, differences] = [keptOf('report.json'), keptOf('differences.json')];
  const equal = (found) =>
    ['zygote', 'standby', 'spawn'].every((rung) => found?.rungs[rung] && !found.rungs[rung].difference);
  const everywhere = Object.values(report.packages).filter((nodes) => equal(nodes[22]));
  assert.ok(everywhere.length >= 150, `${everywhere.length} packages`);
  for (const [name, nodes] of Object.entries(report.packages)) {
    if (isOdd(nodes)) assert.ok(differences[name], `${name} is not explained`);
  }
});
