// Builds what JavaScript needs: the addon, its loader and types, and the launcher beside them;
// and, for the packages, what is in the binaries.
//
//   node scripts/build.mjs [--debug] [--target <triple>]

import { chmodSync, copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cratesOf } from './crates.mjs';
import { noticesOf } from './notices.mjs';
import { sbomOf } from './sbom.mjs';
import {
  argumentsOf,
  hostTriple,
  installIfNeeded,
  needsRust,
  output,
  ROOT,
  runSteps,
  StepFailed,
  sh,
  tool,
} from './steps.mjs';

const { platformArchAbi } = createRequire(import.meta.url)('../lib/platform.js');

/** Triples of rustc, as napi-rs names the platform. */
const PLATFORMS = {
  'x86_64-unknown-linux-gnu': 'linux-x64-gnu',
  'aarch64-unknown-linux-gnu': 'linux-arm64-gnu',
  'x86_64-unknown-linux-musl': 'linux-x64-musl',
  'aarch64-unknown-linux-musl': 'linux-arm64-musl',
  'x86_64-apple-darwin': 'darwin-x64',
  'aarch64-apple-darwin': 'darwin-arm64',
  'x86_64-pc-windows-msvc': 'win32-x64-msvc',
};

/** What Linux has besides the addon: the launcher, and the library that a zygote loads. */
const COMPANIONS = [
  { crate: 'native-sandbox-launcher', file: 'native-sandbox-launcher', name: 'launcher', mode: 0o755 },
  { crate: 'native-sandbox-zygote', file: 'libnative_sandbox_zygote.so', name: 'zygote', mode: 0o644 },
];

const targetFolder = () =>
  JSON.parse(output('cargo', ['metadata', '--format-version', '1', '--no-deps'])).target_directory;

/** Where the addon takes its copies of them from, of this target and profile. */
const copiesFolder = ({ debug, target }) =>
  join(targetFolder(), target ?? '', debug ? 'debug' : 'release', 'companions');

function buildAddon({ debug, target, platform }) {
  const args = ['build', '--platform', '--js', 'binding.cjs', '--dts', 'binding.d.cts'];
  if (!debug) args.push('--release');
  if (target) args.push('--target', target);
  const env = {};
  if (platform.startsWith('linux')) {
    args.push('--features', 'companions');
    env.NSE_COMPANIONS = copiesFolder({ debug, target });
  }
  sh(process.execPath, [tool('@napi-rs/cli', 'napi'), ...args], { env });
}

/** By rename: a host that runs the old one goes on running it, and none ever finds half a file. */
function put(file, place, mode) {
  copyFileSync(file, `${place}.new`);
  chmodSync(`${place}.new`, mode);
  renameSync(`${place}.new`, place);
}

function buildCompanions({ debug, target, platform }) {
  const args = ['build', ...COMPANIONS.flatMap(({ crate }) => ['-p', crate])];
  if (!debug) args.push('--release');
  if (target) args.push('--target', target);
  sh('cargo', args);

  const copies = copiesFolder({ debug, target });
  mkdirSync(copies, { recursive: true });
  for (const { file, name, mode } of COMPANIONS) {
    const built = join(dirname(copies), file);
    put(built, join(ROOT, `${name}.${platform}`), mode);
    // One that did not change keeps its time: the addon is then not built anew.
    const copy = join(copies, name);
    if (!existsSync(copy) || !readFileSync(copy).equals(readFileSync(built))) put(built, copy, mode);
  }
}

/** What is shipped about the crates in the binaries. */
function writeAbout({ target, platform }) {
  const found = cratesOf(target ?? hostTriple());
  writeFileSync(join(ROOT, `notices.${platform}.txt`), noticesOf(found.crates));
  writeFileSync(join(ROOT, `sbom.${platform}.json`), `${JSON.stringify(sbomOf(platform, found), null, 1)}\n`);
}

/** The steps of a build, for other scripts to put among theirs. */
export function buildSteps({ debug = false, target } = {}) {
  const platform = target ? PLATFORMS[target] : platformArchAbi();
  if (!platform) throw new StepFailed(`unknown target ${target}; known are ${Object.keys(PLATFORMS).join(', ')}`);
  const addon = ['build the addon', () => buildAddon({ debug, target, platform })];
  const about = ['write the licences and the bill of materials', () => writeAbout({ target, platform })];
  if (!platform.startsWith('linux')) return [addon, about];
  // The addon carries a copy of both.
  return [['build launcher and zygote library', () => buildCompanions({ debug, target, platform })], addon, about];
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = argumentsOf(import.meta.url, { debug: { type: 'boolean' }, target: { type: 'string' } });
  try {
    const steps = [
      ['look for the tools', () => needsRust()],
      ['install the development dependencies', installIfNeeded],
      ...buildSteps(values),
    ];
    process.exitCode = (await runSteps(steps)) ? 0 : 1;
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    console.error(error.message);
    process.exitCode = 2;
  }
}
