// Packages that tests and the bench run against and that are no dependencies of this one: installed once each, into a folder
// of their own below the user's cache folder, and kept there between runs.

import { closeSync, existsSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { StepFailed, sh } from './steps.mjs';

/** How long one installation waits for another process that makes the same. */
const WAIT_MS = 600_000;
/** Between two looks whether it is done. */
const LOOK_MS = 200;

export function cacheFolder(name) {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), name);
}

/** npm writes this one last. */
const isWhole = (folder) => existsSync(join(folder, 'node_modules', '.package-lock.json'));

/**
 * Installs packages with npm, unless that was done before.
 * @param {string} folder where `node_modules` will be; made whole beside it and renamed, so that it is whole or not there
 * @param {Record<string, string>} dependencies
 * @param {{ size?: string, args?: string[], overrides?: object }} about its size in words; arguments of npm beside the usual
 *   ones; `overrides` of the root package
 * @returns {Promise<string>} the folder of the packages
 * @throws {StepFailed}
 */
export async function installOnce(folder, dependencies, { size = 'small', args = [], overrides = {} } = {}) {
  const lock = `${folder}.lock`;
  mkdirSync(dirname(folder), { recursive: true });
  const end = performance.now() + WAIT_MS;
  while (!isWhole(folder)) {
    if (taken(lock)) {
      try {
        if (!isWhole(folder)) install(folder, { dependencies, overrides }, size, args);
      } finally {
        rmSync(lock, { force: true });
      }
    } else if (performance.now() > end) {
      throw new StepFailed(
        `another process has been installing ${folder} for ${WAIT_MS / 1000} s; its lock is ${lock}`
      );
    } else {
      await delay(LOOK_MS);
    }
  }
  return join(folder, 'node_modules');
}

/** Takes the lock: a file with the id of the process that has it. One that a dead process left is taken away. */
function taken(lock) {
  try {
    const file = openSync(lock, 'wx');
    writeFileSync(file, String(process.pid));
    closeSync(file);
    return true;
  } catch (error) {
    if (error.code !== 'EEXIST') throw error;
    const owner = Number(readIfThere(lock));
    // An empty one is being written.
    if (owner && !lives(owner)) rmSync(lock, { force: true });
    return false;
  }
}

function readIfThere(file) {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function lives(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function install(folder, { dependencies, overrides }, size, args) {
  const staging = `${folder}.${process.pid}`;
  const names = Object.entries(dependencies).map(([name, range]) => `${name}@${range}`);
  console.log(`Installing ${names.join(', ')} (${size}) into ${folder} …`);
  rmSync(staging, { recursive: true, force: true });
  mkdirSync(staging);
  try {
    writeFileSync(join(staging, 'package.json'), JSON.stringify({ private: true, dependencies, overrides }));
    sh('npm', ['install', '--no-audit', '--no-fund', '--loglevel=error', ...args], {
      cwd: staging,
      hint: `npm, a reachable package registry and room on the disk of ${folder} are needed.`,
    });
    // A process that took this one for dead may have been faster: what both made is the same.
    if (isWhole(folder)) return;
    rmSync(folder, { recursive: true, force: true });
    renameSync(staging, folder);
  } finally {
    rmSync(staging, { recursive: true, force: true });
  }
}
