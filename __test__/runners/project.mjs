// A user's project for the suites of this folder: with this package as an installation has it, a played run API, and the
// programs under test.

import { spawn } from 'node:child_process';
import { copyFileSync, cpSync, linkSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { cacheFolder, installOnce } from '../../scripts/published.mjs';
import { ROOT } from '../helpers.mjs';

/** The programs, of the versions that are current; the ranges keep a cached set for as long as they stay as they are. */
const PROGRAMS = { jest: '^30.5.0', vitest: '^5.1.0', vite: '^8.4.0', tsx: '^4.23.0', esbuild: '^0.28.0' };

/** Bundlers and tracers that copy what a server needs to another folder. */
const BUNDLERS = {
  '@rollup/plugin-commonjs': '^29.0.3',
  '@rollup/plugin-json': '^6.1.0',
  '@rollup/plugin-node-resolve': '^16.0.3',
  '@vercel/ncc': '^0.45.0',
  '@vercel/nft': '^1.11.5',
  esbuild: '^0.28.0',
  next: '^16.4.6',
  'node-loader': '^2.1.0',
  react: '^19.3.1',
  'react-dom': '^19.3.1',
  rollup: '^4.68.8',
  webpack: '^5.113.0',
};

/** A program that waits in vain ends with this. */
const LIMIT_MS = 100_000;

/** Installs them once. To be called before the home folder is another. @returns {Promise<string>} their folder */
export function programs() {
  return installOnce(cacheFolder('native-sandbox-executor-runners'), PROGRAMS, { size: 'about 110 MB' });
}

/** Installs those once. To be called before the home folder is another. @returns {Promise<string>} their folder */
export function bundlers() {
  const folder = cacheFolder('native-sandbox-executor-bundlers');
  return installOnce(folder, BUNDLERS, { size: 'about 350 MB, Next alone 300' });
}

/** Writes a file and its folders. */
export function write(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}

/** A large file without its bytes, where the file system can. */
export function linkOrCopy(from, to) {
  try {
    linkSync(from, to);
  } catch {
    copyFileSync(from, to);
  }
}

/** This package below `node_modules`: a link to it would be taken for a source of the project. */
export function installed(modules) {
  const to = join(modules, 'native-sandbox-executor');
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(ROOT)) {
    if (/\.node$|^(launcher|zygote)\./.test(name)) linkOrCopy(join(ROOT, name), join(to, name));
    else if (/^(index|register|binding|package\.json|lib$)/.test(name)) {
      cpSync(join(ROOT, name), join(to, name), { recursive: true });
    }
  }
}

/** The files of a played run API. */
export const RUN_API = {
  'package.json': JSON.stringify({ name: '@inkeep/agents-run-api', type: 'module', exports: './dist/index.js' }),
  'dist/index.js': `export async function runTool(code, args = {}) {
    const { SandboxExecutorFactory } = await import('./SandboxExecutorFactory-A2LTPE2X.js');
    return SandboxExecutorFactory.getInstance().executeFunctionTool('a-tool', args, {
      description: '', inputSchema: {}, dependencies: {}, executeCode: code,
      sandboxConfig: { provider: 'native', runtime: 'node22' },
    });
  }`,
  'dist/SandboxExecutorFactory-A2LTPE2X.js': `export class SandboxExecutorFactory {
    static getInstance() { return new SandboxExecutorFactory(); }
    async executeFunctionTool() { return 'by the original'; }
  }`,
};

/**
 * @param {string} folder
 * @param {string} modules the programs' folder
 * @param {Record<string, string>} files
 */
export function makeProject(folder, modules, files) {
  const own = join(folder, 'node_modules');
  installed(own);
  for (const name of Object.keys(PROGRAMS)) symlinkSync(join(modules, name), join(own, name));
  for (const [name, text] of Object.entries(RUN_API)) write(join(own, '@inkeep/agents-run-api', name), text);
  write(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
  for (const [name, text] of Object.entries(files)) write(join(folder, name), text);
  return folder;
}

/** Runs a program to its end. @returns {Promise<{ code: number | null, out: string }>} */
export function runIn(folder, args, env = {}) {
  const child = spawn(process.execPath, args, {
    cwd: folder,
    // What tells these programs that they run below a test runner, or in a terminal.
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, NO_COLOR: '1', CI: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
    killSignal: 'SIGKILL',
  });
  let out = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      out += text;
    });
  }
  return new Promise((done) => child.on('close', (code) => done({ code, out })));
}
