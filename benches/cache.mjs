// What the bench needs and the package does not: the original, and a Node 22 where the running one is another. Both are
// installed once, into a folder outside of the project.

import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, join } from 'node:path';
import { output, StepFailed, sh } from '../scripts/steps.mjs';

export const ORIGINAL = '@inkeep/agents-run-api';
export const ORIGINAL_VERSION = '0.37.2';
export const NODE_MAJOR = 22;

export function defaultCache() {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'native-sandbox-executor-bench');
}

/** Installs one package with npm unless that was done before, whole. @throws {StepFailed} */
function install(folder, name, spec, size) {
  // npm writes this one last.
  if (existsSync(join(folder, 'node_modules', '.package-lock.json'))) return;
  console.log(`Installing ${name}@${spec} (${size}) into ${folder} …`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies: { [name]: spec } }));
  sh('npm', ['install', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: folder,
    hint: `npm, a reachable package registry and room on the disk of ${folder} are needed (--cache names another folder).`,
  });
}

/** The file that has the original's factory, and its version. @throws {StepFailed} */
export function original(cache) {
  const folder = join(cache, `original-${ORIGINAL_VERSION}`);
  install(folder, ORIGINAL, ORIGINAL_VERSION, 'about 620 MB');
  const root = join(folder, 'node_modules', ORIGINAL);
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const chunk = readdirSync(join(root, 'dist')).find((name) => /^SandboxExecutorFactory-\w+\.js$/.test(name));
  if (version !== ORIGINAL_VERSION || !chunk) {
    throw new StepFailed(
      `${root} is not ${ORIGINAL}@${ORIGINAL_VERSION} as published: remove ${folder}, and try again`
    );
  }
  return { file: join(root, 'dist', chunk), version };
}

/**
 * The Node of both sides: the one named, the running one if it is a 22, else one from npm.
 * @returns {{ path: string, version: string, origin: string }}
 * @throws {StepFailed}
 */
export function node22(cache, named) {
  const { path, origin } = found(cache, named);
  // The original takes whatever is called `node`.
  if (basename(path) !== 'node') throw new StepFailed(`the file of Node must be called node, got ${path}`);
  const version = output(path, ['--version']).trim();
  if (!named && !version.startsWith(`v${NODE_MAJOR}.`))
    throw new StepFailed(`${path} is Node ${version}, not ${NODE_MAJOR}`);
  return { path, version, origin };
}

function found(cache, named) {
  if (named) return { path: named, origin: 'given by --node' };
  if (process.versions.node.startsWith(`${NODE_MAJOR}.`)) {
    return { path: process.execPath, origin: 'the running one' };
  }
  const folder = join(cache, `node-${NODE_MAJOR}`);
  install(folder, 'node', String(NODE_MAJOR), 'about 120 MB');
  return { path: join(folder, 'node_modules', 'node', 'bin', 'node'), origin: "the npm package 'node'" };
}
