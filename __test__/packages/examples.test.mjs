// The examples, each copied to a folder of its own, with the packages of this machine installed as its README says. What else
// they need, the test runners and the run API, is linked from where it is kept for other suites.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { below, isAlive, LINUX, ownWorld, ROOT, until } from '../helpers.mjs';
import { originalInstalled, pgliteInstalled } from '../published/installed.mjs';
import { programs } from '../runners/project.mjs';
import { blocksOf } from './documents.mjs';
import { NAME, node, npm, packed, registryWith } from './packed.mjs';

const EXAMPLES = join(ROOT, 'examples');
const TEST_MS = 180_000;

// Before the home folder is another.
const sources = [await programs(), (await originalInstalled()).modules, await pgliteInstalled()];
let world;
let registry;
let env;

before(async () => {
  world = ownWorld();
  const ms = join(sources[1], 'ms');
  const { version } = JSON.parse(readFileSync(join(ms, 'package.json'), 'utf8'));
  registry = await registryWith(packed(), {
    ms: { [version]: { 'index.js': readFileSync(join(ms, 'index.js'), 'utf8') } },
  });
  env = {
    npm_config_registry: registry.url,
    PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}`,
    CI: '1',
  };
});
after(() => registry?.close());

/** Where a dependency of an example is kept; the range is one that what is kept there is in. */
function kept(name) {
  // Of the database the newer one, as the run API brings an older one along.
  const order = name.startsWith('@electric-sql/') ? sources.toReversed() : sources;
  const found = order.map((modules) => join(modules, name)).find((folder) => existsSync(folder));
  assert.ok(found, `${name} is kept nowhere`);
  return found;
}

function link(modules, name) {
  const from = kept(name);
  const at = join(modules, name);
  mkdirSync(dirname(at), { recursive: true });
  symlinkSync(from, at, 'junction');
  const { bin = {} } = JSON.parse(readFileSync(join(from, 'package.json'), 'utf8'));
  const bins = typeof bin === 'string' ? { [name]: bin } : bin;
  mkdirSync(join(modules, '.bin'), { recursive: true });
  for (const [program, file] of Object.entries(bins)) symlinkSync(join(from, file), join(modules, '.bin', program));
}

/** A copy of an example, installed. */
async function example(name) {
  const folder = join(world.root, name, 'example');
  cpSync(join(EXAMPLES, name), folder, { recursive: true });
  const file = join(folder, 'package.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  const names = Object.keys({ ...manifest.dependencies, ...manifest.devDependencies });
  assert.ok(names.includes(NAME));
  for (const kind of ['dependencies', 'devDependencies']) {
    const { [NAME]: range } = manifest[kind] ?? {};
    if (manifest[kind]) manifest[kind] = range ? { [NAME]: range } : {};
  }
  writeFileSync(file, JSON.stringify(manifest));
  await npm(['install'], folder, env);
  for (const other of names) if (other !== NAME) link(join(folder, 'node_modules'), other);
  return folder;
}

test('every example is run by a suite', () => {
  const names = readdirSync(EXAMPLES);
  const files = names.filter((name) => name.endsWith('.mjs'));
  assert.deepEqual(
    names.filter((name) => !files.includes(name)),
    ['jest', 'server', 'vitest']
  );
  const suites = readdirSync(join(ROOT, '__test__'), { recursive: true }).filter((name) => name.endsWith('.test.mjs'));
  const texts = suites.map((name) => readFileSync(join(ROOT, '__test__', name), 'utf8')).join('\n');
  for (const name of files) assert.ok(texts.includes(`examples/${name}`), `examples/${name}`);
});

for (const name of ['vitest', 'jest']) {
  test(`examples/${name}`, { timeout: TEST_MS }, async () => {
    const folder = await example(name);
    const readme = readFileSync(join(folder, 'README.md'), 'utf8');
    assert.deepEqual(
      blocksOf(readme).map(({ text }) => text),
      ['npm install\nnpm test']
    );
    const { out, err } = await run('npm', ['test'], folder);
    assert.match(out + err, new RegExp(/You should see `(.+?)`/.exec(readme)[1]));
  });
}

/** Runs a program to its end, beside the registry. */
function run(program, args, cwd) {
  const child = spawn(program, args, { cwd, env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env } });
  const texts = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (text) => {
    texts.out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    texts.err += text;
  });
  return new Promise((done) => child.on('close', (code) => done({ code, ...texts })));
}

/** Starts the example's server; gives what its curl prints. */
async function askServer(folder, over) {
  const { scripts } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const [program, ...args] = scripts.start.split(' ');
  assert.equal(program, 'node');
  const server = spawn(process.execPath, args, {
    cwd: folder,
    env: { ...process.env, ...env, NODE_TEST_CONTEXT: undefined, PORT: '0', LOG_LEVEL: 'error', ...over },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((done) => server.on('close', done));
  try {
    const port = await new Promise((found, failed) => {
      createInterface({ input: server.stdout }).on('line', (line) => {
        const listening = /listening on (\d+)/.exec(line);
        if (listening) found(listening[1]);
      });
      ended.then((code) => failed(new Error(`the server ended with ${code}`)));
    });
    const [, curl] = blocksOf(readFileSync(join(folder, 'README.md'), 'utf8'));
    const answer = await run('sh', ['-c', curl.text.replace('3003', port)], folder);
    assert.equal(answer.code, 0, answer.err);
    return wordsOf(answer.out);
  } finally {
    const left = below(server.pid);
    server.kill('SIGTERM');
    await ended;
    await until(() => !left.some(isAlive), 10_000, 'all that the example had started is gone');
  }
}

/** What a user reads of a streamed answer. */
function wordsOf(stream) {
  const events = stream.split('\n').filter((line) => line.startsWith('data: {'));
  return events.map((line) => JSON.parse(line.slice(6)).choices[0].delta.content ?? '').join('');
}

test('examples/server, with the swap and without', { skip: !LINUX, timeout: TEST_MS }, async () => {
  const folder = await example('server');
  const swapped = await askServer(folder, {});
  assert.match(swapped, /2 hours/);
  assert.match(swapped, /native-sandbox-executor-/);
  const original = await askServer(folder, { NATIVE_SANDBOX_EXECUTOR: 'off' });
  assert.match(original, /2 hours/);
  assert.match(original, /inkeep-sandboxes/);
  const lines = readFileSync(join(folder, 'server.mjs'), 'utf8').split('\n').length;
  assert.ok(lines <= 51, `server.mjs has ${lines} lines`);
});

test('examples/local-folder-provider.mjs, as docs/PROVIDERS.md registers and tests it', {
  skip: process.platform === 'win32',
}, async () => {
  const folder = join(world.root, 'provider', 'project');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
  await npm(['install', NAME], folder, env);
  const from = join(folder, 'node_modules', NAME);
  cpSync(join(from, 'examples', 'local-folder-provider.mjs'), join(folder, 'local-folder-provider.mjs'));
  const blocks = blocksOf(readFileSync(join(from, 'docs', 'PROVIDERS.md'), 'utf8')).map(({ text }) => text);
  const named = "import { localFolders } from './local-folder-provider.mjs';\n";
  const register = blocks.find((text) => text.includes('registerProvider('));
  writeFileSync(
    join(folder, 'use.mjs'),
    named + register.replace('await Sandbox', 'globalThis.answer = await Sandbox')
  );
  writeFileSync(join(folder, 'check.mjs'), "await import('./use.mjs');\nconsole.log(globalThis.answer);\n");
  const used = node(['check.mjs'], folder);
  assert.deepEqual([used.code, used.out], [0, '2\n'], used.err);
  const suite = blocks.find((text) => text.includes('conformanceTests('));
  writeFileSync(join(folder, 'provider.test.mjs'), named + suite);
  const { code, out } = node(['--test', 'provider.test.mjs'], folder);
  assert.equal(code, 0, out);
  assert.match(out, /# pass \d\d/);
});
