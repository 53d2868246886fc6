// `native-sandbox-executor/register` on played copies of every published layout of the run API: what is swapped, what is
// left alone, what children get, and what is said.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import nodeModule, { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { ownWorld, ROOT } from './helpers.mjs';

const require = createRequire(import.meta.url);
const { isOriginal, switchOf } = require('../lib/swap.js');
const { rewritten } = require('../lib/node-options.js');

const REGISTER = 'native-sandbox-executor/register';
const REGISTER_URL = pathToFileURL(join(ROOT, 'register.js')).href;

const ORIGINAL = `export class SandboxExecutorFactory {
  static getInstance() { return new SandboxExecutorFactory(); }
  async executeFunctionTool() { return 'by the original'; }
}`;

/** Where a package is, the file that loads the executor, and how. */
const LAYOUTS = {
  chunk: ['@inkeep/agents-run-api', 'dist/index.js', './SandboxExecutorFactory-A2LTPE2X.js'],
  'chunk-of-rolldown': [
    '@inkeep/agents-run-api-rolldown/agents-run-api',
    'dist/index.js',
    './SandboxExecutorFactory-a_-b1C2d.mjs',
  ],
  bundled: ['@inkeep/agents-run-api-bundled/agents-run-api', 'dist/index.js', './SandboxExecutorFactory.js'],
  unbundled: [
    '@inkeep/agents-run-api-unbundled/agents-run-api',
    'dist/agents/Agent.js',
    '../tools/SandboxExecutorFactory.js',
  ],
  'agents-api': [
    '@inkeep/agents-api',
    'dist/domains/run/agents/tools/function-tools.js',
    '../../tools/SandboxExecutorFactory.js',
  ],
  sources: ['../repo/agents-run-api', 'src/agents/Agent.js', '../tools/SandboxExecutorFactory.ts'],
};

/** A script that waits in vain ends with this. */
const LIMIT_MS = 60_000;

let project;
const agents = {};

function write(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}

/** A played run API; gives the file that loads its executor. */
function played(folder, agent, executor) {
  write(join(folder, 'package.json'), '{ "name": "played", "type": "module" }');
  const at = join(folder, dirname(agent));
  write(join(at, executor), ORIGINAL);
  return write(
    join(folder, agent),
    `export const load = () => import('${executor}');\nexport const original = () => import('${executor}?original');\n`
  );
}

before(() => {
  project = join(ownWorld().root, 'a project');
  write(join(project, 'package.json'), '{ "private": true }');
  const modules = join(project, 'node_modules');
  mkdirSync(modules);
  symlinkSync(ROOT, join(modules, 'native-sandbox-executor'), 'junction');
  for (const [name, [where, agent, executor]] of Object.entries(LAYOUTS)) {
    agents[name] = played(join(modules, where), agent, executor);
  }
  const store = join(
    modules,
    '.pnpm',
    '@inkeep+agents-run-api@0.40.0_zod@4',
    'node_modules',
    '@inkeep',
    'agents-run-api'
  );
  played(store, 'dist/agents/Agent.js', '../tools/SandboxExecutorFactory.js');
  mkdirSync(join(modules, '@by-pnpm'));
  symlinkSync(store, join(modules, '@by-pnpm', 'agents-run-api'), 'junction');
  agents.pnpm = join(modules, '@by-pnpm', 'agents-run-api', 'dist/agents/Agent.js');
  // Takes Node's synchronous hooks away, as they are before 22.15.
  write(join(project, 'before-22.15.cjs'), "delete require('node:module').registerHooks;");
  // A logger of the run API's own, and one elsewhere that is none of its business.
  const core = (file) => `export const getLogger = (name) => ({
    debug() {}, warn() {}, error() {}, level: 'info',
    info(fields, message) { globalThis.told = true; console.log(JSON.stringify(['${file}', name, message])); },
  });`;
  write(
    join(modules, '@inkeep/agents-core/package.json'),
    '{ "name": "@inkeep/agents-core", "type": "module", "exports": { ".": { "import": "./index.js" } } }'
  );
  write(join(modules, '@inkeep/agents-core/index.js'), core('agents-core'));
});

/** Runs a script in the project. */
async function node(args, { env = {}, cwd = project, script } = {}) {
  const file = script && write(join(project, `script-${Math.random().toString(36).slice(2)}.mjs`), script);
  const child = spawn(process.execPath, [...args, ...(file ? [file] : [])], {
    cwd,
    env: { ...process.env, NODE_OPTIONS: '', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
    killSignal: 'SIGKILL',
  });
  const texts = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (text) => {
    texts.out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    texts.err += text;
  });
  const code = await new Promise((done) => child.on('close', done));
  if (file) rmSync(file);
  return { code, ...texts };
}

/** Runs a script that gives a value to `say`. */
async function said(args, script, options) {
  const { code, out, err } = await node(args, {
    ...options,
    script: `const say = (value) => console.log('said' + JSON.stringify(value));\n${script}`,
  });
  const line = out.split('\n').find((one) => one.startsWith('said'));
  assert.ok(line, `exit code ${code}\n${out}\n${err}`);
  return JSON.parse(line.slice(4));
}

/** Loads every layout; tells for each whether it is ours, and whether `?original` is not. */
const LOAD_ALL = ({ types = true } = {}) => `
  import * as ours from 'native-sandbox-executor';
  const found = {};
  for (const [name, file] of Object.entries(${JSON.stringify(agents)})) {
    if (name === 'sources' && !${types}) continue;
    const { load, original } = await import('file://' + encodeURI(file));
    const one = (await load()).SandboxExecutorFactory;
    const other = name === 'sources' ? undefined : (await original()).SandboxExecutorFactory;
    found[name] = [one === ours.SandboxExecutorFactory, other === ours.SandboxExecutorFactory];
  }
  say({ found, report: ours.swapReport() });`;

/** Whether this Node has synchronous hooks (from 22.15 on). */
const SYNC_HOOKS = typeof nodeModule.registerHooks === 'function';
const NO_SYNC_HOOKS = ['--require', './before-22.15.cjs'];
/** Runs TypeScript's file name, if nothing more, where Node does not by itself. */
const types = process.allowedNodeEnvironmentFlags.has('--experimental-strip-types');
const TYPES = types ? ['--experimental-strip-types', '--no-warnings'] : [];

for (const [how, args, hook] of [
  ['--import', ['--import', REGISTER], SYNC_HOOKS ? 'registerHooks' : 'register'],
  ['--require', ['--require', REGISTER], SYNC_HOOKS ? 'registerHooks' : 'register'],
  ['--import, where hooks are asynchronous', [...NO_SYNC_HOOKS, '--import', REGISTER], 'register'],
  ['--require, where hooks are asynchronous', [...NO_SYNC_HOOKS, '--require', REGISTER], 'register'],
]) {
  test(`every layout is swapped by ${how}`, async () => {
    const { found, report } = await said([...TYPES, ...args], LOAD_ALL());
    const wanted = Object.fromEntries(Object.keys(agents).map((name) => [name, [true, false]]));
    assert.deepEqual(found, wanted);
    assert.equal(report.swapped, true);
    assert.equal(report.hook, hook);
    assert.equal(report.modules.length, Object.keys(agents).length);
  });
}

test('without the flag nothing is swapped, and the report says so', async () => {
  const { found, report } = await said(TYPES, LOAD_ALL({ types }));
  assert.ok(Object.values(found).every(([swapped]) => !swapped));
  assert.deepEqual(report, { swapped: false, hook: 'none', modules: [] });
});

test('the switch makes the hook do nothing', async () => {
  for (const value of ['off', ' OFF ']) {
    const env = { NATIVE_SANDBOX_EXECUTOR: value };
    const { found, report } = await said([...TYPES, '--import', REGISTER], LOAD_ALL({ types }), { env });
    assert.ok(Object.values(found).every(([swapped]) => !swapped));
    assert.deepEqual(report, { swapped: false, hook: 'off', modules: [] });
  }
});

test('the switch may come from a file that the host reads later', { skip: !SYNC_HOOKS }, async () => {
  const script = `process.env.NATIVE_SANDBOX_EXECUTOR = 'off';\n${LOAD_ALL()}`;
  // Imports come before statements; that of the executor comes later still.
  const { found, report } = await said([...TYPES, '--import', REGISTER], script);
  assert.ok(Object.values(found).every(([swapped]) => !swapped));
  assert.equal(report.swapped, false);
});

test('a value of the switch that means nothing is said, and does not switch off', async () => {
  const { err, code } = await node(['--import', REGISTER, '-p', '1'], { env: { NATIVE_SANDBOX_EXECUTOR: 'of' } });
  assert.equal(code, 0);
  assert.match(
    err,
    /^native-sandbox-executor: NATIVE_SANDBOX_EXECUTOR is "of", which means nothing: use "off" or "on"\n$/
  );
  assert.deepEqual(switchOf('of').on, true);
});

for (const [what, file, change, told] of [
  ['without', 'without-hooks.cjs', 'delete m.registerHooks; delete m.register;', 'this host has no module hooks'],
  [
    'that refuses',
    'refusing-hooks.cjs',
    "m.registerHooks = () => { throw new Error('not in here'); };",
    'this host refuses module hooks (not in here)',
  ],
]) {
  test(`a host ${what} hooks starts, and says that nothing is swapped`, async () => {
    write(join(project, file), `const m = require('node:module'); ${change}`);
    const script = "import { swapReport } from 'native-sandbox-executor'; console.log(JSON.stringify(swapReport()));";
    const { code, out, err } = await node(['--require', `./${file}`, '--require', REGISTER], { script });
    assert.equal(code, 0, err);
    assert.deepEqual(JSON.parse(out), { swapped: false, hook: 'none', modules: [] });
    assert.ok(err.startsWith(`native-sandbox-executor: ${told}`), err);
  });
}

test('a thread whose host refuses hooks tells it, though the main thread is served', {
  skip: !SYNC_HOOKS,
}, async () => {
  const change =
    "if (!require('node:worker_threads').isMainThread) m.registerHooks = () => { throw new Error('not in threads'); };";
  write(join(project, 'refusing-in-threads.cjs'), `const m = require('node:module'); ${change}`);
  const script = `
    import { Worker } from 'node:worker_threads';
    await new Promise((done) => new Worker("", { eval: true }).on('exit', done));`;
  const { code, err } = await node(['--require', './refusing-in-threads.cjs', '--require', REGISTER], { script });
  assert.equal(code, 0, err);
  assert.match(err, /this host refuses module hooks \(not in threads\): the original stays in its place/);
});

for (const [what, versions, told] of [
  ['Bun', { bun: '1.4.5' }, /^native-sandbox-executor: Bun has no module hooks: register did nothing/],
  ['an old Node', { node: '20.9.0' }, /^native-sandbox-executor: this host is Node 20\.9\.0, .*20\.17 or newer/],
]) {
  test(`a host that is ${what} is told so at its start, in one line`, async () => {
    write(
      join(project, 'other-host.cjs'),
      `Object.defineProperty(process, 'versions', { value: { ...process.versions, ...${JSON.stringify(versions)} } });`
    );
    const { code, err } = await node(['--require', './other-host.cjs', '--require', REGISTER, '-p', '1']);
    assert.equal(code, 0, err);
    assert.match(err, told);
    assert.equal(err.trimEnd().split('\n').length, 1, err);
  });
}

test('an import in the program serves what is loaded after it', async () => {
  const { load } = { load: pathToFileURL(agents.chunk).href };
  const script = `
    const agent = await import('${load}');
    const { swapReport } = await import('${REGISTER}');
    const ours = await import('native-sandbox-executor');
    say([(await agent.load()).SandboxExecutorFactory === ours.SandboxExecutorFactory, swapReport().swapped]);`;
  assert.deepEqual(await said([], script), [true, true]);
});

test('one instance by require, by import and by the swap', async () => {
  const script = `
    import nodeModule, { createRequire } from 'node:module';
    const { load } = await import('${pathToFileURL(agents.chunk).href}');
    const required = createRequire(import.meta.url)('native-sandbox-executor');
    const imported = await import('native-sandbox-executor');
    const all = [required, imported, await load()].map((one) => one.SandboxExecutorFactory.getInstance());
    say(new Set(all).size);`;
  assert.equal(await said(['--import', REGISTER], script), 1);
});

test('worker threads are swapped by the flag too, and report for themselves', async () => {
  const script = `
    import { isMainThread, parentPort, Worker } from 'node:worker_threads';
    import { SandboxExecutorFactory, swapReport } from 'native-sandbox-executor';
    if (isMainThread) {
      const thread = new Worker(new URL(import.meta.url));
      thread.on('message', (heard) => say([heard, swapReport().swapped]));
    } else {
      const { load } = await import('${pathToFileURL(agents.unbundled).href}');
      parentPort.postMessage([(await load()).SandboxExecutorFactory === SandboxExecutorFactory, swapReport().swapped]);
    }`;
  for (const args of [[], NO_SYNC_HOOKS]) {
    assert.deepEqual(await said([...args, '--import', REGISTER], script), [[true, true], false]);
  }
});

test("records go to the run API's own logger, the early ones too; one record and one line tell of the swap", async () => {
  const script = `
    const { load } = await import('${pathToFileURL(agents.chunk).href}');
    (await load()).SandboxExecutorFactory.getInstance();
    await load();
    while (!globalThis.told) await new Promise((done) => setTimeout(done, 5));`;
  const { out, err, code } = await node(['--import', REGISTER], {
    script,
    env: { NODE_DEBUG: 'native-sandbox-executor' },
  });
  assert.equal(code, 0, err);
  assert.deepEqual(out.trim().split('\n'), [
    JSON.stringify(['agents-core', 'SandboxExecutorFactory', 'SandboxExecutorFactory initialized']),
  ]);
  assert.equal(err.match(/is replaced by/g).length, 1, err);
  assert.match(
    err,
    /NATIVE-SANDBOX-EXECUTOR \d+: file:.*SandboxExecutorFactory-A2LTPE2X\.js is replaced by file:.*index\.js/
  );
});

test('a logger that the host has set is left alone', async () => {
  const script = `
    import { setLogger } from 'native-sandbox-executor';
    const seen = [];
    setLogger((name) => ({ debug: (fields, message) => seen.push([name, message]), info: (fields, message) => seen.push([name, message]) }));
    const { load } = await import('${pathToFileURL(agents.chunk).href}');
    (await load()).SandboxExecutorFactory.getInstance();
    while (seen.length < 2) await new Promise((done) => setTimeout(done, 5));
    await import('@inkeep/agents-core');
    await new Promise((done) => setImmediate(done));
    say([seen.sort(), globalThis.told ?? false]);`;
  assert.deepEqual(await said(['--import', REGISTER], script), [
    [
      ['SandboxExecutorFactory', 'SandboxExecutorFactory initialized'],
      ['native-sandbox-executor', 'Sandbox executor swapped in'],
    ],
    false,
  ]);
});

const CALL = (code, over = '') => `await SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, {
  description: '', inputSchema: {}, dependencies: {}, executeCode: ${JSON.stringify(code)},
  sandboxConfig: { provider: 'native', runtime: 'node22' }, ${over} })`;

test('a flag in NODE_OPTIONS is found from everywhere until the swap, and by nobody after it', async () => {
  const elsewhere = join(project, '..', 'elsewhere');
  mkdirSync(elsewhere, { recursive: true });
  const script = `
    import { execFileSync } from 'node:child_process';
    import { SandboxExecutorFactory, swapReport } from 'native-sandbox-executor';
    const child = () => execFileSync(process.execPath, ['-p', 'JSON.stringify(process.env.NODE_OPTIONS ?? null)'], {
      cwd: ${JSON.stringify(elsewhere)}, encoding: 'utf8' });
    const { load } = await import('${pathToFileURL(agents.chunk).href}');
    const before = JSON.parse(child());
    await load();
    // Where hooks have a thread of their own, the news of a swap comes a little later, or when asked for.
    swapReport();
    say([before, JSON.parse(child()), ${CALL('() => process.env.NODE_OPTIONS ?? null')}]);`;
  for (const flag of [`--import ${REGISTER}`, `--import=${REGISTER}`]) {
    const NODE_OPTIONS = `--max-old-space-size=512 ${flag} --no-warnings`;
    assert.deepEqual(await said([], script, { env: { NODE_OPTIONS } }), [
      `--max-old-space-size=512 --import=${REGISTER_URL} --no-warnings`,
      '--max-old-space-size=512 --no-warnings',
      null,
    ]);
  }
});

test('with the switch off, children of the original start from any folder', async () => {
  const script = `
    import { execFileSync } from 'node:child_process';
    say(execFileSync(process.execPath, ['-p', '1'], { cwd: ${JSON.stringify(dirname(ROOT))}, encoding: 'utf8' }));`;
  const env = { NODE_OPTIONS: `--import ${REGISTER}`, NATIVE_SANDBOX_EXECUTOR: 'off' };
  assert.equal(await said([], script, { env }), '1\n');
});

test('a function that is given all variables is not given our entry', async () => {
  const script = `
    import { SandboxExecutorFactory } from 'native-sandbox-executor';
    SandboxExecutorFactory.configure({ env: 'inherit' });
    say(${CALL('() => process.env.NODE_OPTIONS ?? null')});`;
  assert.equal(
    await said([], script, { env: { NODE_OPTIONS: `--import ${REGISTER} --no-warnings` } }),
    '--no-warnings'
  );
});

test('a missing addon is told at the start, once, with what to do; the swap stays', async () => {
  const copy = join(project, '..', 'without-addon', 'node_modules', 'native-sandbox-executor');
  const { cpSync } = await import('node:fs');
  for (const name of ['index.js', 'register.js', 'package.json', 'lib']) {
    cpSync(join(ROOT, name), join(copy, name), { recursive: true });
  }
  const cwd = dirname(dirname(copy));
  const script = `
    import { Worker } from 'node:worker_threads';
    const { load } = await import('${pathToFileURL(agents.chunk).href}');
    const { SandboxExecutorFactory } = await load();
    await new Promise((done) => new Worker('0', { eval: true }).on('exit', done));
    ${CALL('() => 1')}.catch(({ code, message }) => console.log(code, message));`.replace(
    'await SandboxExec',
    'SandboxExec'
  );
  const { out, err, code } = await node(['--import', pathToFileURL(join(copy, 'register.js')).href], { cwd, script });
  assert.equal(code, 0, err);
  const lines = err.trim().split('\n');
  assert.equal(lines.length, 1, err);
  assert.match(lines[0], /^native-sandbox-executor: The native addon of .* NATIVE_SANDBOX_EXECUTOR=off goes back/);
  assert.match(out, /^ADDON_MISSING The native addon/m);
});

test('which URLs are the original', () => {
  const is = (path, wanted) => assert.equal(isOriginal(path), wanted, path);
  const dist = 'file:///app/node_modules/@inkeep/agents-run-api/dist';
  is(`${dist}/SandboxExecutorFactory-A2LTPE2X.js`, true);
  is(`${dist}/SandboxExecutorFactory-a_-b1C2d.mjs`, true);
  is(`${dist}/SandboxExecutorFactory.cjs`, true);
  is(`${dist}/tools/SandboxExecutorFactory.js?t=17#x`, true);
  is('file:///c:/repo/agents-run-api/src/tools/SandboxExecutorFactory.ts?tsx-namespace=1', true);
  is('file:///repo/agents-api/src/domains/run/tools/SandboxExecutorFactory.ts', true);
  is(`${dist}/SandboxExecutorFactory.js?original`, false);
  is(`${dist}/SandboxExecutorFactory.js?t=1&original=`, false);
  is(`${dist}/SandboxExecutorFactory-A2LTPE2X.js.map`, false);
  is(`${dist}/SandboxExecutorFactory-A2LTPE2X9.js`, false);
  is(`${dist}/SandboxExecutorFactory.d.ts`, false);
  is(`${dist}/SandboxExecutorFactory.test.ts`, false);
  is(`${dist}/tools/NativeSandboxExecutor.js`, false);
  is('file:///app/dist/SandboxExecutorFactory-A2LTPE2X.js', false);
  is('file:///app/my-agents-run-api/dist/SandboxExecutorFactory.js', false);
  is('file:///app/agents-api/dist/tools/SandboxExecutorFactory.js', false);
  is('node:fs', false);
  is('https://x/agents-run-api/dist/SandboxExecutorFactory.js', false);
});

test('entries of NODE_OPTIONS', () => {
  const ours = (module) => module === 'o';
  const out = (text) => rewritten(text, ours, () => undefined);
  const other = (text, name) => rewritten(text, ours, () => name);
  assert.equal(out('--import o'), '');
  assert.equal(out('--import=o'), '');
  assert.equal(out('  -r o   --require o  --x '), '--x ');
  assert.equal(out('--a --import "o" --b'), '--a --b');
  assert.equal(out('--import p --title "a --import o" --b="x\\"y"'), '--import p --title "a --import o" --b="x\\"y"');
  assert.equal(out('--import p --import o --import q'), '--import p --import q');
  assert.equal(out('--import'), '--import');
  assert.equal(out('o --important o'), 'o --important o');
  assert.equal(other('--import o -r o', '/a b\\c'), '--import=/a b\\c --require="/a b\\\\c"');
});
