// A project that has this package and one version of the unmodified SDK installed; and the fake in the place of the service.

import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { ROOT } from '../helpers.mjs';

/** The one that the original pins, and the newest of each later major; the middle ones in the full run only. */
export const VERSIONS = process.env.NSE_TEST_FULL ? ['0.0.24', '1.10.2', '2.9.2', '3.5.0'] : ['0.0.24', '3.5.0'];

const SERVICE = 'https://vercel.com';

// While this is loaded: later a test file has made a world of its own, without the npm settings of this machine.
for (const version of VERSIONS) installed(version);

/** The folder of an installed SDK; installed when it is not there yet, and kept with what is built. */
function installed(version) {
  const folder = join(ROOT, 'target', 'vercel-sdk', version);
  const sdk = join(folder, 'node_modules', '@vercel', 'sandbox');
  if (existsSync(join(sdk, 'package.json'))) return sdk;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }');
  const args = ['install', '--no-audit', '--no-fund', '--no-package-lock', `@vercel/sandbox@${version}`];
  execFileSync('npm', args, {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
    shell: process.platform === 'win32',
  });
  return sdk;
}

/**
 * The package as `require` gives it in such a project; without a version there is no SDK. With `from`: what gives the
 * package's own files.
 */
export function packageWith(version, { from = false } = {}) {
  const project = mkdtempSync(join(process.env.TMPDIR, 'project-'));
  const target = join(project, 'node_modules', 'native-sandbox-executor');
  mkdirSync(target, { recursive: true });
  for (const name of ['index.js', 'conformance.js', 'lib', 'package.json', 'binding.cjs']) {
    cpSync(join(ROOT, name), join(target, name), { recursive: true });
  }
  for (const name of readdirSync(ROOT).filter((file) => /\.node$|^(launcher|zygote)\./.test(file))) {
    symlinkSync(join(ROOT, name), join(target, name));
  }
  if (version) {
    mkdirSync(join(project, 'node_modules', '@vercel'));
    symlinkSync(installed(version), join(project, 'node_modules', '@vercel', 'sandbox'), 'junction');
  }
  if (from) return createRequire(join(target, 'use.js'));
  return createRequire(join(project, 'use.js'))('native-sandbox-executor');
}

/** The version that is really there. */
export function sdkVersion(version) {
  return JSON.parse(readFileSync(join(installed(version), 'package.json'), 'utf8')).version;
}

/**
 * Sends what is meant for the service to the fake, unchanged otherwise. The SDKs take the global function whenever they make
 * a client, and none has an option for the address.
 */
export function redirect(origin) {
  const original = globalThis.fetch;
  globalThis.fetch = (input, options) => {
    const url = String(input?.url ?? input);
    return original(url.startsWith(SERVICE) ? `${origin()}${url.slice(SERVICE.length)}` : input, options);
  };
  return () => {
    globalThis.fetch = original;
  };
}
