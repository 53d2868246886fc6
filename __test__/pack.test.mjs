// The packed package, installed into an empty project elsewhere: by require, by import, with types, launcher and all.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { LINUX, ROOT } from './helpers.mjs';

const npm = (args, cwd) =>
  execFileSync('npm', args, {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    shell: process.platform === 'win32',
  });
const node = (args, cwd) =>
  execFileSync(process.execPath, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });

let scratch;
let project;
let installed;
let packed;

before(() => {
  scratch = mkdtempSync(join(tmpdir(), 'nse pack-'));
  project = join(scratch, 'a project');
  mkdirSync(project);
  [packed] = JSON.parse(npm(['pack', '--json', '--pack-destination', scratch], ROOT));
  writeFileSync(join(project, 'package.json'), '{"name":"a-project","version":"1.0.0","private":true}');
  npm(['install', '--offline', '--no-audit', '--no-fund', join(scratch, packed.filename)], project);
  installed = join(project, 'node_modules', 'native-sandbox-executor');
});
after(() => rmSync(scratch, { recursive: true, force: true }));

test('it holds what it needs and nothing of the workshop', () => {
  const files = packed.files.map(({ path }) => path);
  for (const path of [
    'index.js',
    'index.d.ts',
    'register.js',
    'register.d.ts',
    'lib/factory.js',
    'lib/hooks-thread.mjs',
    'cli/main.mjs',
    'cli/bench/host.mjs',
    'docs/CLI.md',
    'docs/MIGRATING.md',
    'binding.cjs',
    'README.md',
    'LICENSE',
    'CHANGELOG.md',
    'package.json',
  ]) {
    assert.ok(files.includes(path), `${path} is missing`);
  }
  assert.equal(files.filter((path) => path.endsWith('.node')).length, 1);
  assert.deepEqual(
    files.filter((path) => /^(src|target|scripts|__test__|launcher\/|protocol|node_modules|\.ci)/.test(path)),
    []
  );
});

test('it brings no other package along', () => {
  assert.deepEqual(
    readdirSync(join(project, 'node_modules')).filter((name) => !name.startsWith('.')),
    ['native-sandbox-executor']
  );
});

test('the launcher can be run', { skip: !LINUX }, () => {
  const launchers = readdirSync(installed).filter((name) => name.startsWith('launcher.'));
  assert.equal(launchers.length, 1);
  assert.equal(statSync(join(installed, launchers[0])).mode & 0o111, 0o111);
});

const CALL = `SandboxExecutorFactory.getInstance().executeFunctionTool('t', { n: 20 }, {
  description: '', inputSchema: {}, dependencies: {}, executeCode: '({ n }) => n + 1',
  sandboxConfig: { provider: 'native', runtime: 'node22' },
}).then((value) => console.log('answer', value));`;

for (const [how, file, line] of [
  ['require', 'use.cjs', "const { SandboxExecutorFactory } = require('native-sandbox-executor');"],
  ['import', 'use.mjs', "import { SandboxExecutorFactory } from 'native-sandbox-executor';"],
]) {
  test(`a call by ${how}`, () => {
    writeFileSync(join(project, file), `${line}\n${CALL}\n`);
    assert.equal(node([file], project), 'answer 21\n');
  });
}

test('the conformance suite comes with it', () => {
  const line =
    "console.log(require('native-sandbox-executor/conformance').conformanceTests({ provider: { create() {} } }).length > 10);";
  writeFileSync(join(project, 'conform.cjs'), `${line}\n`);
  assert.equal(node(['conform.cjs'], project), 'true\n');
});

test('the flag finds its module', () => {
  const report = "require('native-sandbox-executor').swapReport().hook";
  for (const flag of ['--import', '--require']) {
    assert.match(node([flag, 'native-sandbox-executor/register', '-p', report], project), /^register(Hooks)?\n$/);
  }
});

test('its command runs, by the name that npm gives it', () => {
  const { version } = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8'));
  assert.equal(npm(['exec', '--offline', '--', 'native-sandbox-executor', '--version'], project), `${version}\n`);
});

test('an importing TypeScript project finds the types', () => {
  writeFileSync(
    join(project, 'use.mts'),
    "import { type FunctionToolConfig, SandboxExecutorFactory } from 'native-sandbox-executor';\nexport const run = (config: FunctionToolConfig): Promise<unknown> => SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, config);\n"
  );
  const tsc = join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc');
  assert.ok(existsSync(tsc));
  const types = join(ROOT, 'node_modules', '@types');
  node(
    [
      tsc,
      '--noEmit',
      '--strict',
      '--target',
      'es2022',
      '--module',
      'nodenext',
      '--typeRoots',
      types,
      '--types',
      'node',
      'use.mts',
    ],
    project
  );
});

test('without its addon it still imports, and its calls say what is missing', () => {
  for (const name of readdirSync(installed)) if (name.endsWith('.node')) rmSync(join(installed, name));
  writeFileSync(
    join(project, 'missing.mjs'),
    `import { SandboxExecutorFactory } from 'native-sandbox-executor';\n${CALL.replace(".then((value) => console.log('answer', value))", '.catch(({ code, message }) => console.log(code, message))')}\n`
  );
  const said = node(['missing.mjs'], project);
  assert.match(said, /^ADDON_MISSING The native addon/);
  assert.ok(said.includes(`${process.platform}-${process.arch}`));
  const doctor = spawnSync(process.execPath, [join(installed, 'cli', 'main.mjs'), 'doctor'], { encoding: 'utf8' });
  assert.equal(doctor.status, 1, doctor.stderr);
  assert.match(doctor.stdout, /^✖ ADDON_MISSING The native addon/m);
});
