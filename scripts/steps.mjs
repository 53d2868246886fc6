// What the scripts share: running programs, naming steps, timing them.

import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

export const ROOT = fileURLToPath(new URL('..', import.meta.url));

const WINDOWS = process.platform === 'win32';

/**
 * The arguments of a script. What is wrong with them ends the process with 2; `--help` with 0, after what the comment at the head of
 * the script says.
 * @param {string} script its URL @param {import('node:util').ParseArgsConfig['options']} options
 */
export function argumentsOf(script, options, { allowPositionals = false } = {}) {
  try {
    const found = parseArgs({ options: { ...options, help: { type: 'boolean', short: 'h' } }, allowPositionals });
    if (!found.values.help) return found;
    console.log(headOf(readFileSync(fileURLToPath(script), 'utf8')));
    process.exit(0);
  } catch ({ message }) {
    console.error(`${message}\n\n${headOf(readFileSync(fileURLToPath(script), 'utf8'))}`);
    process.exit(2);
  }
}

/** The comment that a script begins with. */
function headOf(source) {
  const [head] = /^(?:\/\/.*\n)+/.exec(source);
  return head.replace(/^\/\/ ?/gm, '').trimEnd();
}

/** A step that failed: its message says what, and what to do about it. */
export class StepFailed extends Error {}

/**
 * Runs a program in the project's folder with the terminal's own output.
 * @throws {StepFailed} when it cannot be started or does not end with 0
 */
export function sh(program, args, { env = {}, cwd = ROOT, hint } = {}) {
  const { error, status, signal } = spawnSync(program, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'inherit', 'inherit'],
    shell: WINDOWS,
  });
  if (!error && status === 0) return;
  const how = error ? error.message : signal ? `ended by ${signal}` : `exit code ${status}`;
  throw new StepFailed(`\`${[program, ...args].join(' ')}\` failed: ${how}${hint ? `\n${hint}` : ''}`);
}

/** What `cargo metadata` prints is some megabytes. */
const OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024;

/** Runs a program for its output. @throws {StepFailed} */
export function output(program, args, { cwd = ROOT, env = {} } = {}) {
  const options = {
    cwd,
    env: { ...process.env, ...env },
    encoding: 'utf8',
    shell: WINDOWS,
    maxBuffer: OUTPUT_LIMIT_BYTES,
  };
  const { error, status, stdout, stderr } = spawnSync(program, args, options);
  if (!error && status === 0) return stdout;
  throw new StepFailed(
    `\`${[program, ...args].join(' ')}\` failed: ${error?.message ?? `exit code ${status}`}\n${stderr ?? ''}`
  );
}

/** A program of a development dependency, by `node`, so that no shell and no PATH is in between. */
export function tool(packageName, bin = packageName) {
  const folder = join(ROOT, 'node_modules', packageName);
  const { bin: bins } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  return join(folder, typeof bins === 'string' ? bins : bins[bin]);
}

/** Installs the development dependencies when they are not those of the lockfile. */
export function installIfNeeded() {
  const wanted = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')).packages;
  const marker = join(ROOT, 'node_modules', '.package-lock.json');
  const present = existsSync(marker) ? JSON.parse(readFileSync(marker, 'utf8')).packages : {};
  const current = Object.keys(wanted[''].devDependencies).every((name) => {
    const path = `node_modules/${name}`;
    return present[path]?.version === wanted[path].version;
  });
  if (!current)
    sh('npm', ['ci', '--no-audit', '--no-fund'], { hint: 'npm and a reachable package registry are needed.' });
}

/** Needs a Rust toolchain; says so where there is none. */
export function needsRust(...components) {
  const programs = {
    cargo: ['cargo', '--version'],
    clippy: ['cargo', 'clippy', '--version'],
    rustfmt: ['cargo', 'fmt', '--version'],
  };
  for (const component of ['cargo', ...components]) {
    try {
      output(programs[component][0], programs[component].slice(1));
    } catch (error) {
      const advice =
        component === 'cargo'
          ? 'A Rust toolchain is needed (see rust-version in Cargo.toml): https://rustup.rs'
          : `The component is missing: rustup component add ${component}`;
      throw new StepFailed(`${advice}\n${error.message}`);
    }
  }
}

/** The triple that rustc builds for by itself. */
export function hostTriple() {
  return output('rustc', ['-vV']).match(/^host: (.+)$/m)[1];
}

export function seconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`;
}

/**
 * Steps by a part of their name, in any case, or by their number.
 * @param {Array<[name: string, act: () => unknown]>} steps
 * @param {string} wanted
 * @throws {StepFailed} when there is none
 */
export function stepsNamed(steps, wanted) {
  const text = wanted.toLowerCase();
  const byNumber = /^\d+$/.test(wanted) ? steps[Number(wanted) - 1] : undefined;
  const found = byNumber ? [byNumber] : steps.filter(([name]) => name.toLowerCase().includes(text));
  if (found.length > 0) return found;
  throw new StepFailed(
    `no step has ${JSON.stringify(wanted)} in its name, and no test file has that name; --list shows the steps`
  );
}

/** The steps, one a line, with the numbers that `stepsNamed` takes. */
export function listOf(steps) {
  const width = `${steps.length}`.length;
  return steps.map(([name], index) => `${`${index + 1}`.padStart(width)}  ${name}`).join('\n');
}

/** How long each step took, and what part of all that was. */
export function timesOf(times) {
  const total = times.reduce((sum, { ms }) => sum + ms, 0);
  const width = Math.max(...times.map(({ name }) => name.length), 'all'.length);
  const row = (name, ms) =>
    `${name.padEnd(width)}  ${seconds(ms).padStart(9)}  ${Math.round((ms / Math.max(total, 1)) * 100)}`.concat(' %');
  return [...times.map(({ name, ms }) => row(name, ms)), row('all', total)].join('\n');
}

/**
 * Runs steps in order, naming and timing each; stops at the first that fails. Tells the time of each at the end.
 * @param {Array<[name: string, act: () => unknown]>} steps
 * @returns {Promise<boolean>} whether all went well
 */
export async function runSteps(steps) {
  const times = [];
  let failed;
  for (const [index, [name, act]] of steps.entries()) {
    const start = performance.now();
    console.log(`\n=== [${index + 1}/${steps.length}] ${name}`);
    try {
      await act();
    } catch (error) {
      failed = error instanceof StepFailed ? error.message : error.stack;
    }
    const ms = performance.now() - start;
    times.push({ name, ms });
    if (failed !== undefined) {
      console.log(`\n${failed}\n=== ${name}: FAILED after ${seconds(ms)}`);
      break;
    }
    console.log(`=== ${name}: ok, ${seconds(ms)}`);
  }
  console.log(`\n${timesOf(times)}`);
  if (failed === undefined) console.log(`\nAll ${steps.length} steps passed.`);
  return failed === undefined;
}
