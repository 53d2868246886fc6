// The packages as a release publishes them, for the suites of this folder; and projects that install them as users do.

import { execFile, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { LIST, makePackages } from '../../scripts/pack.mjs';
import { startRegistry } from '../registry.mjs';

export const NAME = 'native-sandbox-executor';
/** A program that waits in vain ends with this. */
const LIMIT_MS = 100_000;

const WINDOWS = process.platform === 'win32';

/** All packages of this machine, the main one last: those that `npm test` has made once for all suites, else made here. */
export function packed() {
  const made = process.env.NSE_TEST_PACKAGES;
  if (made) return JSON.parse(readFileSync(join(made, LIST), 'utf8'));
  const out = mkdtempSync(join(tmpdir(), 'nse-packed-'));
  process.on('exit', () => rmSync(out, { recursive: true, force: true }));
  return makePackages({ out });
}

/** A registry that has them; `others` are `{ name: { version: files } }`. */
export async function registryWith(packages, others = {}) {
  const registry = await startRegistry(others);
  for (const { manifest, archive } of packages) registry.publishArchive(manifest, readFileSync(archive));
  return registry;
}

/**
 * Runs npm to its end, beside registries of this process; with a cache of its own, as what it gets from these is of no use later.
 * Rejects with what npm said.
 */
export async function npm(args, cwd, env = {}) {
  const cache = join(dirname(cwd), 'npm-cache');
  const options = { cwd, env: { ...process.env, ...env }, shell: WINDOWS, timeout: LIMIT_MS };
  const { stdout } = await promisify(execFile)('npm', [...args, '--no-audit', '--no-fund', '--cache', cache], options);
  return stdout;
}

/** Runs Node to its end. @returns {{ code: number | null, out: string, err: string }} */
export function node(args, cwd, env = {}) {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
    killSignal: 'SIGKILL',
  });
  return { code: status, out: stdout, err: stderr };
}

/** A folder with a manifest, and nothing else. */
export function emptyProject(folder, manifest = {}) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'a-project', private: true, ...manifest }));
  return realpathSync(folder);
}
