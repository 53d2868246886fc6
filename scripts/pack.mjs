// Makes what a release publishes: one package per platform with its binaries, and the main one without any.
//
//   node scripts/pack.mjs [--out <folder>] [--binaries <folder>] [--all]
//
// `--binaries` is where builds have put their files, else this folder; `--all` fails where a platform's files are missing,
// else only the platforms that are there are packed. Prints sizes; the archives come in the order of publishing.

import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { argumentsOf, output, ROOT, StepFailed, tool } from './steps.mjs';

const { PLATFORMS } = createRequire(import.meta.url)('../lib/platform.js');

const NAME = 'native-sandbox-executor';

/** Beside the archives, all that is known of them. */
export const LIST = 'packages.json';

/** Of the manifest, what only the sources are for. */
const WORKSHOP_FIELDS = ['scripts', 'devDependencies', 'napi'];

const readJson = (file) => JSON.parse(readFileSync(file, 'utf8'));
const writeJson = (file, value) => writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`);

/** The files of a platform's package as builds name them, their names in the package where these differ, and their modes: archives of CI keep none. */
export function binariesOf(platform) {
  const addon = { name: `${NAME}.${platform}.node`, mode: 0o644 };
  const about = [
    { name: `notices.${platform}.txt`, packed: 'THIRD-PARTY-NOTICES.txt', mode: 0o644 },
    { name: `sbom.${platform}.json`, packed: 'sbom.cdx.json', mode: 0o644 },
  ];
  if (!platform.startsWith('linux')) return [addon, ...about];
  return [addon, ...about, { name: `launcher.${platform}`, mode: 0o755 }, { name: `zygote.${platform}`, mode: 0o644 }];
}

/** Folders with the manifests of all platforms, as napi-rs makes them. */
function platformFolders(stage) {
  copyFileSync(join(ROOT, 'package.json'), join(stage, 'package.json'));
  output(process.execPath, [tool('@napi-rs/cli', 'napi'), 'create-npm-dirs', '--npm-dir', 'npm'], { cwd: stage });
  return PLATFORMS.map((platform) => ({ platform, folder: join(stage, 'npm', platform) }));
}

/** What debuggers read is nine tenths of a debug build. By the tool that every linker on Linux comes with. */
function withoutDebugInfo(file) {
  if (process.platform === 'linux') output('strip', ['--strip-debug', file]);
}

/** @returns {boolean} whether the platform's files were all there */
function fillPlatform({ platform, folder }, binaries, debug) {
  const files = binariesOf(platform);
  if (!files.every(({ name }) => existsSync(join(binaries, name)))) return false;
  for (const { name, packed, mode } of files) {
    const place = join(folder, packed ?? name);
    copyFileSync(join(binaries, name), place);
    if (debug && packed === undefined) withoutDebugInfo(place);
    chmodSync(place, mode);
  }
  copyFileSync(join(ROOT, 'LICENSE'), join(folder, 'LICENSE'));
  const manifest = readJson(join(folder, 'package.json'));
  writeJson(join(folder, 'package.json'), { ...manifest, files: files.map(({ name, packed }) => packed ?? name) });
  return true;
}

/** The main package: npm says which files; the manifest names the platforms' packages, each of the very same version. */
function mainFolder(stage) {
  const folder = join(stage, 'main');
  const [{ files }] = JSON.parse(output('npm', ['pack', '--dry-run', '--json', '--ignore-scripts']));
  for (const { path } of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    copyFileSync(join(ROOT, path), join(folder, path));
  }
  const manifest = readJson(join(ROOT, 'package.json'));
  for (const field of WORKSHOP_FIELDS) delete manifest[field];
  manifest.optionalDependencies = Object.fromEntries(
    PLATFORMS.map((platform) => [`${NAME}-${platform}`, manifest.version])
  );
  writeJson(join(folder, 'package.json'), manifest);
  return folder;
}

function pack(folder, out) {
  const [{ name, version, filename, size, unpackedSize, files }] = JSON.parse(
    output('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', out], { cwd: folder })
  );
  const archive = join(out, filename);
  return { name, version, archive, size, unpackedSize, files, manifest: readJson(join(folder, 'package.json')) };
}

/**
 * @param {{ out: string, binaries?: string, all?: boolean, debug?: boolean }} where `out` is made if it is not there; `debug`
 *   says that the binaries are no release's: they are packed smaller than they are
 * @returns packages with `name`, `version`, `archive`, `manifest`, `files`, `debug`, and `size` and `unpackedSize` in bytes; the
 *   main package is the last
 * @throws {StepFailed} where files are missing
 */
export function makePackages({ out, binaries = ROOT, all = false, debug = false }) {
  if (!existsSync(join(ROOT, 'binding.cjs'))) throw new StepFailed('there is no binding.cjs: npm run build makes it');
  mkdirSync(out, { recursive: true });
  const stage = mkdtempSync(join(tmpdir(), 'nse-packages-'));
  try {
    const platforms = platformFolders(stage);
    const filled = platforms.filter((one) => fillPlatform(one, binaries, debug));
    const missing = platforms.filter((one) => !filled.includes(one)).map(({ platform }) => platform);
    if (filled.length === 0 || (all && missing.length > 0)) {
      throw new StepFailed(`there are no binaries for ${missing.join(', ')} in ${binaries}`);
    }
    const made = [...filled.map(({ folder }) => folder), mainFolder(stage)].map((folder) => ({
      ...pack(folder, out),
      debug,
    }));
    writeJson(join(out, LIST), made);
    return made;
  } finally {
    rmSync(stage, { recursive: true, force: true });
  }
}

/** Bytes in words, as documents have them. */
export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = argumentsOf(import.meta.url, {
    out: { type: 'string', default: join(ROOT, 'target', 'packages') },
    binaries: { type: 'string', default: ROOT },
    all: { type: 'boolean', default: false },
  });
  try {
    const made = makePackages({ out: resolve(values.out), binaries: resolve(values.binaries), all: values.all });
    for (const { name, version, archive, size, unpackedSize } of made) {
      console.log(`${name} ${version}: ${megabytes(size)} packed, ${megabytes(unpackedSize)} unpacked, ${archive}`);
    }
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}
