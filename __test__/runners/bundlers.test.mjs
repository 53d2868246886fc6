// Bundlers and tracers copy a server to another folder, and often take the addon's file alone. What comes out has to run functions
// with all of the isolation, and by all of the ways to start them, that the package has where it is installed.

import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { FORKS, filesBelow, LINUX, ownWorld, surface } from '../helpers.mjs';
import { bundlers, installed, runIn, write } from './project.mjs';

const modules = LINUX ? await bundlers() : undefined;
const options = { timeout: 300_000, skip: !LINUX && 'there is nothing beside the addon outside of Linux' };
const world = ownWorld();
/** Where bundles are built; what they make goes elsewhere, so that nothing is found on the way up. */
const project = join(world.root, 'project');
let expected;

const TOOL = `{ description: '', inputSchema: {}, dependencies: {}, executeCode: '({ n }) => n + 1', sandboxConfig: { provider: 'native', runtime: 'node22' } }`;

/** A server that runs calls until one is forked, and says what it is like. */
const SERVER = `const { SandboxExecutorFactory, NativeSandboxExecutor, isolationReport } = require('native-sandbox-executor');
  module.exports = async () => {
    const factory = SandboxExecutorFactory.getInstance();
    let answer;
    const metrics = () => NativeSandboxExecutor.getInstance().getMetrics();
    const executor = NativeSandboxExecutor.getInstance();
    for (const end = Date.now() + 30000; Date.now() < end && !executor.getMetrics().counters?.workers.zygote; ) {
      answer = await executor.executeFunctionTool('a-tool', { n: 1 }, ${TOOL});
      if (${!FORKS}) break;
      await new Promise((done) => setTimeout(done, 100));
    }
    const { tier } = await isolationReport();
    const { withoutLauncher, counters } = metrics();
    await executor.cleanup();
    await factory.cleanup();
    return { answer, tier, withoutLauncher, forked: counters.workers.zygote > 0 };
  };
  if (require.main === module || process.env.NSE_RUN) module.exports().then((told) => console.log('TOLD ' + JSON.stringify(told)));`;

before(async () => {
  if (!LINUX) return;
  const own = join(project, 'node_modules');
  installed(own);
  for (const name of readdirSync(modules).filter((name) => !name.startsWith('.'))) {
    if (!name.startsWith('@')) symlinkSync(join(modules, name), join(own, name));
    else {
      mkdirSync(join(own, name));
      for (const below of readdirSync(join(modules, name)))
        symlinkSync(join(modules, name, below), join(own, name, below));
    }
  }
  write(join(project, 'package.json'), '{ "private": true }');
  write(join(project, 'server.cjs'), SERVER);
  const report = await surface().isolationReport();
  expected = { answer: 2, tier: report.tier, withoutLauncher: null, forked: FORKS };
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** A folder for a result, away from the project. */
const elsewhere = () => mkdtempSync(join(tmpdir(), 'bundle-'));

const companionsIn = (folder) => filesBelow(folder).filter((file) => /(^|\/)(launcher|zygote)\./.test(file));

/** Runs what a bundler has made, and takes its word. */
async function assertWhole(folder, args, env = {}) {
  const { out, code } = await runIn(folder, args, { NSE_RUN: '1', ...env });
  assert.equal(code, 0, out);
  const line = out.split('\n').find((text) => text.startsWith('TOLD '));
  assert.deepEqual(JSON.parse(line.slice(5)), expected, out);
}

async function build(script, args = []) {
  const { code, out } = await runIn(project, [script, ...args]);
  assert.equal(code, 0, out);
}

test('@vercel/nft: the traced files, copied', options, async () => {
  write(
    join(project, 'trace.mjs'),
    `import { nodeFileTrace } from '@vercel/nft';
     const { fileList } = await nodeFileTrace(['server.cjs'], { base: process.cwd() });
     process.stdout.write(JSON.stringify([...fileList]));`
  );
  const traced = await runIn(project, ['trace.mjs']);
  assert.equal(traced.code, 0, traced.out);
  const folder = elsewhere();
  for (const file of JSON.parse(traced.out)) {
    mkdirSync(dirname(join(folder, file)), { recursive: true });
    cpSync(join(project, file), join(folder, file), { dereference: true });
  }
  await assertWhole(folder, ['server.cjs']);
});

test('@vercel/ncc', options, async () => {
  const folder = elsewhere();
  const { code, out } = await runIn(project, [
    'node_modules/@vercel/ncc/dist/ncc/cli.js',
    'build',
    'server.cjs',
    '-o',
    folder,
    '-q',
  ]);
  assert.equal(code, 0, out);
  await assertWhole(folder, [readdirSync(folder).find((name) => /^index\.c?js$/.test(name))]);
});

test('esbuild, with the loader that copies', options, async () => {
  const folder = elsewhere();
  write(
    join(project, 'esbuild.mjs'),
    `import { build } from 'esbuild';
     await build({ entryPoints: ['server.cjs'], bundle: true, platform: 'node', format: 'cjs', outdir: process.argv[2],
       loader: { '.node': 'copy' }, logLevel: 'error', external: ['native-sandbox-executor-*', '*.wasi.cjs', '@inkeep/agents-core', '@vercel/sandbox', '@opentelemetry/api'],
       plugins: [{ name: 'absent', setup: ({ onResolve }) => onResolve({ filter: /\\.node$/ }, async (args) => {
         const { existsSync } = await import('node:fs'); const { join } = await import('node:path');
         return existsSync(join(args.resolveDir, args.path)) ? undefined : { path: args.path, external: true }; }) }] });`
  );
  await build('esbuild.mjs', [folder]);
  assert.deepEqual(companionsIn(folder), [], 'a loader knows the addon only');
  await assertWhole(folder, ['server.js']);
});

test('webpack, with node-loader', options, async () => {
  const folder = elsewhere();
  write(
    join(project, 'webpack.mjs'),
    `import webpack from 'webpack';
     const stats = await new Promise((done, failed) => webpack({ mode: 'production', target: 'node', entry: './server.cjs', context: process.cwd(),
       output: { path: process.argv[2], filename: 'server.js', libraryTarget: 'commonjs2' }, optimization: { minimize: false },
       node: { __dirname: false, __filename: false }, module: { rules: [{ test: /\\.node$/, loader: 'node-loader', options: { name: '[name].[ext]' } }] },
       ignoreWarnings: [() => true],
       externals: [({ request }, next) => (/^native-sandbox-executor-|\\.wasi|^@inkeep|^@vercel\\/sandbox|^@opentelemetry/.test(request) ? next(null, 'commonjs ' + request) : next())],
     }, (error, stats) => (error ? failed(error) : done(stats))));
     const errors = stats.toJson({ errors: true }).errors.filter(({ message }) => !/Can't resolve/.test(message));
     if (errors.length > 0) { console.log(errors.map(({ message }) => message).join('\\n')); process.exitCode = 1; }`
  );
  await build('webpack.mjs', [folder]);
  assert.deepEqual(companionsIn(folder), [], 'a loader knows the addon only');
  await assertWhole(folder, ['server.js']);
});

test('Rollup, with a plugin that copies the addon', options, async () => {
  const folder = elsewhere();
  write(
    join(project, 'rollup.mjs'),
    `import { copyFileSync, existsSync } from 'node:fs';
     import { basename, dirname, join, resolve } from 'node:path';
     import { rollup } from 'rollup';
     import commonjs from '@rollup/plugin-commonjs';
     import json from '@rollup/plugin-json';
     import nodeResolve from '@rollup/plugin-node-resolve';
     const out = process.argv[2];
     const addon = { name: 'addon', resolveId(id, from) {
       if (!id.endsWith('.node') || !from) return null;
       const file = resolve(dirname(from.replace(/^\\0|\\?.*$/g, '')), id);
       if (!existsSync(file)) return { id, external: true };
       copyFileSync(file, join(out, basename(file)));
       return { id: './' + basename(file), external: true };
     } };
     const bundle = await rollup({ input: 'server.cjs', onwarn() {}, external: (id) => /^native-sandbox-executor-|\\.wasi|^@inkeep|^@vercel\\/sandbox|^@opentelemetry/.test(id),
       plugins: [addon, nodeResolve({ preferBuiltins: true }), commonjs({ ignoreDynamicRequires: true, ignore: (id) => id.endsWith('.node') || id.startsWith('native-sandbox-executor-') }), json()] });
     await bundle.write({ dir: out, format: 'cjs', entryFileNames: 'server.cjs', interop: 'auto', dynamicImportInCjs: true });
     copyFileSync(join('node_modules/native-sandbox-executor', process.argv[3]), join(out, process.argv[3]));`
  );
  const addon = readdirSync(join(project, 'node_modules/native-sandbox-executor')).find((name) =>
    name.endsWith('.node')
  );
  await build('rollup.mjs', [folder, addon]);
  assert.deepEqual(companionsIn(folder), [], 'a plugin knows the addon only');
  await assertWhole(folder, ['server.cjs']);
});

test('Next, output "standalone"', { ...options, timeout: 600_000 }, async () => {
  const app = join(world.root, 'next');
  for (const [name, text] of Object.entries({
    'package.json': '{ "private": true }',
    'next.config.mjs': `export default { output: 'standalone', serverExternalPackages: ['native-sandbox-executor'], outputFileTracingRoot: process.cwd() };`,
    'app/layout.js': 'export default function Layout({ children }) { return <html><body>{children}</body></html>; }',
    'app/page.js': 'export default function Page() { return <p>page</p>; }',
    'app/run/route.js': `import run from '../../server.cjs';
      export const dynamic = 'force-dynamic';
      export async function GET() { return Response.json(await run()); }`,
    'server.cjs': SERVER,
  })) {
    write(join(app, name), text);
  }
  // Next takes no links out of its folder.
  cpSync(modules, join(app, 'node_modules'), { recursive: true, verbatimSymlinks: true });
  installed(join(app, 'node_modules'));
  const built = await runIn(app, ['node_modules/next/dist/bin/next', 'build', '--webpack'], {
    NEXT_TELEMETRY_DISABLED: '1',
    NODE_ENV: 'production',
  });
  assert.equal(built.code, 0, built.out);
  const folder = elsewhere();
  cpSync(join(app, '.next/standalone'), folder, { recursive: true, verbatimSymlinks: true });
  rmSync(app, { recursive: true, force: true });
  const server = readdirSync(folder).includes('server.js') ? 'server.js' : join(relative(world.root, app), 'server.js');
  write(
    join(folder, 'ask.mjs'),
    `import { createServer } from 'node:net';
     const free = await new Promise((done) => { const probe = createServer().listen(0, '127.0.0.1', () => { const { port } = probe.address(); probe.close(() => done(port)); }); });
     Object.assign(process.env, { PORT: String(free), HOSTNAME: '127.0.0.1', NODE_ENV: 'production' });
     await import(${JSON.stringify(pathToFileURL(join(folder, server)).href)});
     for (const end = Date.now() + 60000; ; ) {
       try {
         const response = await fetch('http://127.0.0.1:' + free + '/run');
         console.log('TOLD ' + (await response.text()));
         process.exit(0);
       } catch (error) {
         if (Date.now() > end) throw error;
         await new Promise((done) => setTimeout(done, 200));
       }
     }`
  );
  await assertWhole(folder, ['ask.mjs'], { NSE_RUN: '' });
});
