// README.md and docs/MIGRATING.md as somebody follows them who has the packages only: every code block is run, in order, in one
// project, and what the text promises is looked for.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { ownWorld, ROOT } from '../helpers.mjs';
import { originalInstalled } from '../published/installed.mjs';
import { programs, RUN_API, write } from '../runners/project.mjs';
import { blocksOf } from './documents.mjs';
import { emptyProject, NAME, packed, registryWith } from './packed.mjs';

const TEST_MS = 240_000;

// Before the home folder is another.
const modules = await programs();
const { modules: published } = await originalInstalled();
let world;
let registry;
let env;

before(async () => {
  world = ownWorld();
  const lodash = {
    '4.17.21': { 'index.js': 'exports.sumBy = (list, key) => list.reduce((sum, one) => sum + one[key], 0);' },
  };
  registry = await registryWith(packed(), { lodash });
  env = {
    npm_config_registry: registry.url,
    npm_config_cache: join(world.root, 'npm-cache'),
    PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}`,
    NODE_TEST_CONTEXT: undefined,
    NO_COLOR: '1',
    CI: '1',
  };
});
after(() => registry?.close());

/** A user's project: their server, with the run API, which loads its executor at the first tool. */
const SERVER = {
  'server.js': `import { runTool } from '@inkeep/agents-run-api';
    console.log('answer', await runTool('({ n }) => n + 1', { n: 1 }));`,
};

function project(name) {
  const folder = emptyProject(join(world.root, name), { type: 'module' });
  for (const [file, text] of Object.entries(SERVER)) write(join(folder, file), text);
  return folder;
}

/** What a user has besides; npm takes away what it does not know of, so it comes after npm. */
function addOthers(folder) {
  for (const [file, text] of Object.entries(RUN_API))
    write(join(folder, 'node_modules/@inkeep/agents-run-api', file), text);
  for (const [name, from] of [...['jest', 'vitest', 'esbuild'].map((one) => [one, modules]), ['pino', published]]) {
    const at = join(folder, 'node_modules', name);
    if (!existsSync(at)) symlinkSync(join(from, name), at, 'junction');
  }
}

/** Runs a program to its end. @returns {Promise<string>} what it printed, on both streams */
async function run(folder, program, args, { more = {}, code = 0 } = {}) {
  const child = spawn(program, args, { cwd: folder, env: { ...process.env, ...env, ...more } });
  let out = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      out += text;
    });
  }
  const ended = await new Promise((done) => child.on('close', done));
  assert.equal(ended, code, out);
  return out;
}

const shell = (folder, text, more) => run(folder, 'sh', ['-ec', text], { more });

function script(folder, text, { name = 'script.mjs', flags = [], more = {} } = {}) {
  write(join(folder, name), text);
  return run(folder, process.execPath, [...flags, name], { more });
}

/** Goes through a document; every block has one that runs it. */
async function follow(folder, file, steps) {
  const blocks = blocksOf(readFileSync(file, 'utf8'));
  assert.deepEqual(
    blocks.map(({ heading, language }) => `${heading}: ${language}`),
    steps.map(([where]) => where),
    `the blocks of ${file}`
  );
  for (const [at, [where, step]] of steps.entries()) {
    try {
      await step(blocks[at].text, folder);
    } catch (error) {
      error.message = `${file}:${blocks[at].line} (${where}): ${error.message}`;
      throw error;
    }
  }
}

async function install(text, folder) {
  await shell(folder, text);
  addOthers(folder);
}

/** Scripts of the manifest that a block names. */
function namesScripts(text) {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const named = [...text.matchAll(/^npm (?:run )?([\w:]+)/gm)].map(([, name]) => name);
  assert.ok(named.length > 0);
  for (const name of named) assert.ok(Object.hasOwn(scripts, name), name);
}

const OURS = /^answer 2$/m;
const THE_ORIGINAL = /^answer by the original$/m;

test('README.md', { timeout: TEST_MS, skip: process.platform === 'win32' }, async () => {
  await follow(project('readme'), join(ROOT, 'README.md'), [
    ['Install: sh', install],
    ['Use: js', async (text, folder) => assert.equal(await script(folder, text), '20\n')],
    [
      'Use: sh',
      async (text, folder) => {
        assert.match(await shell(folder, text), OURS);
        assert.match(await shell(folder, text, { NATIVE_SANDBOX_EXECUTOR: 'off' }), THE_ORIGINAL);
      },
    ],
    [
      'Use: js',
      async (text, folder) => {
        const call = `const found = await SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, {
          description: '', inputSchema: {}, dependencies: {},
          executeCode: '() => [process.env.PUBLIC_NAME, process.env.PRIVATE_NAME]',
          sandboxConfig: { provider: 'native', runtime: 'node22' } });
          console.log(JSON.stringify(found));`;
        const out = await script(folder, `${text}\n${call}`, { more: { PUBLIC_NAME: 'a', PRIVATE_NAME: 'b' } });
        assert.match(out, /"msg":"SandboxExecutorFactory initialized"/);
        assert.match(out, /^\["a",null\]$/m);
      },
    ],
    ['See for yourself: sh', namesScripts],
    [
      'Isolation: sh',
      async (text, folder) => {
        const out = await shell(folder, text);
        assert.match(out, /^(base|confined|isolated)\n/);
        assert.match(out, /processGroup.*true/);
      },
    ],
  ]);
});

const API_TEST = (imports) => `${imports}import { runTool } from '@inkeep/agents-run-api';
  test('a tool', async () => expect(await runTool('({ n }) => n + 1', { n: 1 })).toBe(2));`;

/** Runs Vitest with a configuration; it fails without. */
async function vitest(text, folder) {
  const file = write(join(folder, 'api.test.js'), API_TEST("import { expect, test } from 'vitest';\n"));
  write(join(folder, 'vitest.config.mjs'), text);
  const args = ['node_modules/vitest/vitest.mjs', 'run'];
  assert.match(await run(folder, process.execPath, args), /\b1 passed/);
  write(join(folder, 'vitest.config.mjs'), 'export default {};');
  assert.match(await run(folder, process.execPath, args, { code: 1 }), /by the original/);
  rmSync(file);
}

async function jest(text, folder) {
  write(join(folder, 'api.test.mjs'), API_TEST(''));
  const config = { testMatch: ['<rootDir>/api.test.mjs'], transform: {}, ...JSON.parse(text) };
  write(join(folder, 'jest.config.json'), JSON.stringify(config));
  const args = ['--no-warnings', '--experimental-vm-modules', 'node_modules/jest/bin/jest.js'];
  assert.match(await run(folder, process.execPath, args), /\b1 passed/);
}

async function esbuild(text, folder) {
  const build = `import { build } from 'esbuild';\n${text}
    await build({ entryPoints: ['server.js'], bundle: true, platform: 'node', format: 'esm', outfile: 'bundle.mjs',
      plugins: [nativeSandboxExecutor] });`;
  await script(folder, build, { name: 'build.mjs' });
  assert.match(await run(folder, process.execPath, ['bundle.mjs']), OURS);
}

const FLAG = ['--import', `${NAME}/register`];

test('docs/MIGRATING.md', { timeout: TEST_MS, skip: process.platform === 'win32' }, async () => {
  const serve = (folder, more) => run(folder, process.execPath, [...FLAG, 'server.js'], { more });
  let debugLine;
  await follow(project('migrating'), join(ROOT, 'docs', 'MIGRATING.md'), [
    [
      'Install: sh',
      async (text, folder) => {
        const out = await shell(folder, text);
        assert.match(out, /^registerHooks$/m);
        addOthers(folder);
      },
    ],
    ['1. The flag: sh', async (text, folder) => assert.match(await shell(folder, text), OURS)],
    [
      '2. An import: js',
      async (text, folder) => {
        const call = `await SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, { description: '', inputSchema: {},
          dependencies: {}, executeCode: '() => 3', sandboxConfig: { provider: 'native', runtime: 'node22' } }).then(console.log);`;
        assert.equal(await script(folder, `${text}\n${call}`), '3\n');
      },
    ],
    ['3. A mapping: js', vitest],
    ['3. A mapping: js', vitest],
    ['3. A mapping: json', jest],
    ['3. A mapping: js', esbuild],
    [
      'Verify: js',
      async (text, folder) => {
        const out = await script(folder, `await import('./server.js');\n${text}`, { flags: FLAG });
        assert.match(out, /swapped: true,\s+hook: 'registerHooks',\s+modules: \[\s*'file:\/\/.*A2LTPE2X\.js'\s*\]/);
      },
    ],
    [
      'Verify: ',
      async (text, folder) => {
        debugLine = (await serve(folder, { NODE_DEBUG: NAME }))
          .split('\n')
          .find((line) => line.includes('is replaced by'));
        // The document's line, with its own numbers and folders.
        const shape = text
          .trim()
          .replace(/[.()/]/g, '\\$&')
          .replace('4711', '\\d+')
          .replaceAll('…', '.*');
        assert.match(debugLine, new RegExp(`^${shape}$`));
      },
    ],
    [
      'Go back: sh',
      async (text, folder) => {
        const [name, value] = text.split('=');
        assert.match(await serve(folder, { [name]: value }), THE_ORIGINAL);
        const report = `import { swapReport } from '${NAME}';\nawait import('./server.js');\nconsole.log(swapReport());`;
        const out = await script(folder, report, { flags: FLAG, more: { [name]: value } });
        assert.match(out, /swapped: false, hook: 'off'/);
      },
    ],
  ]);
});

test('what MIGRATING.md says beside its blocks: requires, variables, going back for good', {
  timeout: TEST_MS,
  skip: process.platform === 'win32',
}, async () => {
  const folder = project('beside');
  await install(`npm install ${NAME}`, folder);
  assert.match(await run(folder, process.execPath, ['--require', `${NAME}/register`, 'server.js']), OURS);
  assert.match(await run(folder, process.execPath, ['server.js'], { more: { NODE_OPTIONS: FLAG.join(' ') } }), OURS);
  // An import in the server, after that of the run API.
  assert.match(
    await script(folder, `${SERVER['server.js'].replace('console', `await import('${NAME}/register');\nconsole`)}`),
    OURS
  );
  // The original can be had beside it.
  const original = `const file = new URL('node_modules/@inkeep/agents-run-api/dist/SandboxExecutorFactory-A2LTPE2X.js', import.meta.url);
    const { SandboxExecutorFactory } = await import(file + '?original');
    console.log('answer', await SandboxExecutorFactory.getInstance().executeFunctionTool());`;
  assert.match(await script(folder, original, { flags: FLAG }), THE_ORIGINAL);
  // A file that the server reads itself.
  write(join(folder, '.env'), 'NATIVE_SANDBOX_EXECUTOR=off');
  assert.match(await run(folder, process.execPath, ['--env-file=.env', ...FLAG, 'server.js']), THE_ORIGINAL);
  const loads = `process.loadEnvFile('.env');\nawait import('./server.js');`;
  assert.match(await script(folder, loads, { flags: FLAG }), THE_ORIGINAL);
  // What it keeps is one folder.
  const kept = join(world.tmp, `native-sandbox-executor-${process.geteuid()}`);
  assert.ok(existsSync(kept), kept);
  await shell(folder, `npm uninstall ${NAME}`);
  assert.ok(!existsSync(join(folder, 'node_modules', NAME)));
  mkdirSync(join(folder, 'node_modules'), { recursive: true });
  addOthers(folder);
  assert.match(await run(folder, process.execPath, ['server.js']), THE_ORIGINAL);
});
