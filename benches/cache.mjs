// What the bench needs and the package does not: the original, and a Node 22 where the running one is another. Both are
// installed once, into a folder outside of the project.

import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { cacheFolder, installOnce } from '../scripts/published.mjs';
import { output, StepFailed } from '../scripts/steps.mjs';

export const ORIGINAL = '@inkeep/agents-run-api';
export const ORIGINAL_VERSION = '0.37.2';
export const NODE_MAJOR = 22;

/**
 * The libraries for tracing that agents-core names and never loads, in the versions that the run API has anyway: 220 MB and 30,000
 * files less.
 */
const OVERRIDES = {
  '@inkeep/agents-core': {
    '@opentelemetry/auto-instrumentations-node': '^0.64.1',
    '@opentelemetry/exporter-trace-otlp-proto': '^0.205.0',
    '@opentelemetry/sdk-node': '^0.205.0',
  },
};

export function defaultCache() {
  return cacheFolder('native-sandbox-executor-bench');
}

/** The file that has the original's factory, its version, and the folder it is installed in. @throws {StepFailed} */
export async function original(cache) {
  const folder = join(cache, `original-${ORIGINAL_VERSION}`);
  // Nothing of it needs its install scripts.
  const about = { size: 'about 390 MB', args: ['--ignore-scripts'], overrides: OVERRIDES };
  const modules = await installOnce(folder, { [ORIGINAL]: ORIGINAL_VERSION }, about);
  const root = join(modules, ORIGINAL);
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const chunk = readdirSync(join(root, 'dist')).find((name) => /^SandboxExecutorFactory-\w+\.js$/.test(name));
  if (version !== ORIGINAL_VERSION || !chunk) {
    throw new StepFailed(
      `${root} is not ${ORIGINAL}@${ORIGINAL_VERSION} as published: remove ${folder}, and try again`
    );
  }
  return { file: join(root, 'dist', chunk), version, modules };
}

/**
 * The Node of both sides: the one named, the running one if it is a 22, else one from npm.
 * @returns {Promise<{ path: string, version: string, origin: string }>}
 * @throws {StepFailed}
 */
export async function node22(cache, named) {
  const { path, origin } = await found(cache, named);
  // The original takes whatever is called `node`.
  if (basename(path) !== 'node') throw new StepFailed(`the file of Node must be called node, got ${path}`);
  const version = output(path, ['--version']).trim();
  if (!named && !version.startsWith(`v${NODE_MAJOR}.`))
    throw new StepFailed(`${path} is Node ${version}, not ${NODE_MAJOR}`);
  return { path, version, origin };
}

async function found(cache, named) {
  if (named) return { path: named, origin: 'given by --node' };
  if (process.versions.node.startsWith(`${NODE_MAJOR}.`)) {
    return { path: process.execPath, origin: 'the running one' };
  }
  const folder = join(cache, `node-${NODE_MAJOR}`);
  // Its install script puts the binary in its place.
  await installOnce(folder, { node: String(NODE_MAJOR) }, { size: 'about 120 MB' });
  return { path: join(folder, 'node_modules', 'node', 'bin', 'node'), origin: "the npm package 'node'" };
}
