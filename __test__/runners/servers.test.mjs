// Ways to run a server other than plain Node: tsx on the run API's TypeScript sources, Vite's dev server, and bundles.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { ownWorld } from '../helpers.mjs';
import { makeProject, programs, runIn } from './project.mjs';

const modules = await programs();
const REGISTER = 'native-sandbox-executor/register';
let world;

before(() => {
  world = ownWorld();
});

/** A server in TypeScript beside the sources of the run API, in a repository. */
const SOURCES = {
  'agents-run-api/package.json': '{ "name": "played", "type": "module" }',
  'agents-run-api/src/agents/Agent.ts': `export async function runTool(code: string, args: object): Promise<unknown> {
    const { SandboxExecutorFactory } = await import('../tools/SandboxExecutorFactory');
    return SandboxExecutorFactory.getInstance().executeFunctionTool('a-tool', args, {
      description: '', inputSchema: {}, dependencies: {}, executeCode: code,
      sandboxConfig: { provider: 'native', runtime: 'node22' },
    });
  }`,
  'agents-run-api/src/tools/SandboxExecutorFactory.ts': `export class SandboxExecutorFactory {
    static getInstance(): SandboxExecutorFactory { return new SandboxExecutorFactory(); }
    async executeFunctionTool(..._: unknown[]): Promise<unknown> { return 'by the original'; }
  }`,
  'server.mts': `import { SandboxExecutorFactory, swapReport } from 'native-sandbox-executor';
    import { runTool } from './agents-run-api/src/agents/Agent';
    const answer: unknown = await runTool('({ n }) => n + 1', { n: 1 });
    const { swapped, hook } = swapReport();
    const own: unknown = await SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, {
      description: '', inputSchema: {}, dependencies: {}, executeCode: '() => 3', sandboxConfig: { provider: 'native', runtime: 'node22' },
    });
    console.log(JSON.stringify({ answer, swapped, hook, own }));`,
};

/** Takes Node's synchronous hooks away, as they are before 22.15. */
const BEFORE = { 'before-22.15.cjs': "delete require('node:module').registerHooks;" };

test('tsx, on sources, in every order of flags', { timeout: 120_000 }, async () => {
  const folder = makeProject(join(world.root, 'tsx'), modules, { ...SOURCES, ...BEFORE });
  const tsx = 'node_modules/tsx/dist/cli.mjs';
  // Newer Nodes warn of what older ones have only.
  const asBefore = ['--no-warnings', '--require', './before-22.15.cjs'];
  for (const args of [
    ['--import', 'tsx', '--import', REGISTER],
    ['--import', REGISTER, '--import', 'tsx'],
    [...asBefore, '--import', 'tsx', '--import', REGISTER],
    [...asBefore, '--import', REGISTER, '--import', 'tsx'],
    [tsx, '--import', REGISTER],
  ]) {
    const { code, out } = await runIn(folder, [...args, 'server.mts']);
    assert.equal(code, 0, `${args.join(' ')}\n${out}`);
    const hook = args.includes('./before-22.15.cjs') ? 'register' : 'registerHooks';
    assert.deepEqual(JSON.parse(out), { answer: 2, swapped: true, hook, own: 3 }, args.join(' '));
  }
  const { out } = await runIn(folder, ['--import', 'tsx', 'server.mts']);
  assert.equal(JSON.parse(out).answer, 'by the original');
});

test('records of an imported package go to the loggers of agents-core, where that is installed', async () => {
  const folder = makeProject(join(world.root, 'peer'), modules, {
    'node_modules/@inkeep/agents-core/package.json':
      '{ "name": "@inkeep/agents-core", "type": "module", "exports": { ".": { "import": "./index.js" } } }',
    'node_modules/@inkeep/agents-core/index.js': `export const getLogger = (name) => ({
      getPinoInstance: () => ({ level: 'info' }),
      debug() { console.log('told of debug'); }, warn() {}, error() {},
      info(fields, message) { console.log(name + ': ' + message); },
    });`,
    'server.mjs': `import { SandboxExecutorFactory, setLogger } from 'native-sandbox-executor';
      if (process.argv[2] === 'silent') setLogger(null);
      const factory = SandboxExecutorFactory.getInstance();
      const call = () => factory.executeFunctionTool('t', {}, { description: '', inputSchema: {}, dependencies: {},
        executeCode: '() => 1', sandboxConfig: { provider: 'native', runtime: 'node22' } });
      await call();
      await call();`,
  });
  const { out, code } = await runIn(folder, ['server.mjs']);
  assert.equal(code, 0, out);
  assert.deepEqual(out.trim().split('\n'), [
    'SandboxExecutorFactory: SandboxExecutorFactory initialized',
    'SandboxExecutorFactory: Native sandbox executor created',
  ]);
  assert.equal((await runIn(folder, ['server.mjs', 'silent'])).out, '');
});

const SERVER = `import { runTool } from '@inkeep/agents-run-api';
  export const answer = await runTool('({ n }) => n + 1', { n: 1 });
  console.log('answer', JSON.stringify(answer));`;

test("Vite's dev server, with the flag given to Node", { timeout: 120_000 }, async () => {
  const folder = makeProject(join(world.root, 'vite-dev'), modules, {
    'server.ts': SERVER,
    'dev.mjs': `import { createServer } from 'vite';
      const vite = await createServer({ server: { middlewareMode: true, ws: false, watch: null }, appType: 'custom', logLevel: 'warn', optimizeDeps: { noDiscovery: true } });
      await vite.ssrLoadModule('/server.ts');
      await vite.close();`,
  });
  const { code, out } = await runIn(folder, ['--import', REGISTER, 'dev.mjs']);
  assert.equal(code, 0, out);
  assert.match(out, /answer 2/);
  assert.match((await runIn(folder, ['dev.mjs'])).out, /answer "by the original"/);
});

test('a bundle by esbuild, with the documented plugin', { timeout: 120_000 }, async () => {
  const folder = makeProject(join(world.root, 'esbuild'), modules, {
    'server.mjs': SERVER,
    'build.mjs': `import { build } from 'esbuild';
      const nativeSandboxExecutor = {
        name: 'native-sandbox-executor',
        setup: ({ onResolve }) => onResolve({ filter: /\\/SandboxExecutorFactory(-[\\w-]{8})?(\\.[cm]?[jt]s)?$/ }, () => (
          { path: 'native-sandbox-executor', external: true })),
      };
      await build({ entryPoints: ['server.mjs'], bundle: true, platform: 'node', format: 'esm', outfile: process.argv[2],
        plugins: process.argv[3] === 'mapped' ? [nativeSandboxExecutor] : [] });`,
  });
  for (const [mapped, answer] of [
    ['mapped', '2'],
    ['unmapped', '"by the original"'],
  ]) {
    const built = await runIn(folder, ['build.mjs', `${mapped}.mjs`, mapped]);
    assert.equal(built.code, 0, built.out);
    assert.match((await runIn(folder, [`${mapped}.mjs`])).out, new RegExp(`answer ${answer}`));
  }
});

test('a bundle by Vite, with the documented alias', { timeout: 120_000 }, async () => {
  const folder = makeProject(join(world.root, 'vite-build'), modules, {
    'server.mjs': SERVER,
    'vite.config.mjs': `export default {
      logLevel: 'warn',
      build: { ssr: 'server.mjs', target: 'node22' },
      resolve: { alias: [{ find: /^.*\\/SandboxExecutorFactory(-[\\w-]{8})?(\\.[cm]?[jt]s)?$/, replacement: 'native-sandbox-executor' }] },
      ssr: { noExternal: [/@inkeep\\/agents-run-api/], external: ['native-sandbox-executor'] },
    };`,
  });
  const built = await runIn(folder, ['node_modules/vite/bin/vite.js', 'build']);
  assert.equal(built.code, 0, built.out);
  assert.match((await runIn(folder, ['dist/server.js'])).out, /answer 2/);
});
