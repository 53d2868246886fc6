// The suites of this repository as steps: what `npm test` and `npm run check` are made of.

import { existsSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { hostTriple, needsRust, ROOT, StepFailed, sh, tool } from './steps.mjs';

/** Where the packages are that the suites of one folder install. */
export const PACKAGES = join(ROOT, 'target', 'packages');

/** Folders of `__test__` whose suites need more than this package: they are steps of their own. */
export const SUITES = ['packages', 'published', 'runners'];

export function folderOfNode(version) {
  return join(ROOT, 'target', `node-${version}`);
}

export function nodeOf(version) {
  const name = process.platform === 'win32' ? 'node.exe' : 'node';
  return join(folderOfNode(version), 'node_modules', 'node', 'bin', name);
}

/**
 * What `npm test` adds to the environment is none of the host's that the suites play: its download cache, for one, would
 * be shared by cases that each count what is downloaded.
 */
export const WITHOUT_NPM = Object.fromEntries(
  Object.keys(process.env)
    .filter((name) => /^npm_/i.test(name) && !/^npm_config_(registry|https?_proxy|proxy|cafile)$/i.test(name))
    .map((name) => [name, undefined])
);

/** The first folder of a path, if it has one. */
export function folderOf(name) {
  return name.split(/[\\/]/, 1)[0];
}

/** Files with tests in `__test__`, by their paths below it. */
export function testFiles() {
  return readdirSync(join(ROOT, '__test__'), { recursive: true })
    .filter((name) => name.endsWith('.test.mjs'))
    .sort();
}

/**
 * Runs files with tests.
 * @param {string[]} files paths below `__test__`
 * @param {{ node: string, full?: boolean, jobs?: number }} how
 */
export function runFiles(files, { node, full = false, jobs = 1 }) {
  if (files.length === 0) throw new StepFailed('no such test files in __test__');
  const args = ['--test', `--test-concurrency=${jobs}`, '--test-reporter=spec'];
  const env = { ...WITHOUT_NPM, NSE_TEST_FULL: full ? '1' : '', NSE_TEST_PACKAGES: PACKAGES };
  sh(node, [...args, ...files.map((name) => join('__test__', name))], { env });
}

/** Files that neither measure time nor count what is left on the machine: they run two at a time. */
const TOGETHER =
  /^(cli(?!-bench)|source-(forms|modules|named-imports|places|typescript)|describe|documents|errors|inert|odd-values|scripts|surface)[\w-]*\.test\.mjs$/;

export function canRunTogether(name) {
  return TOGETHER.test(name);
}

/** Files that are done within seconds, and together touch most of the surface: `npm run check` runs them, two at a time. */
export const QUICK = [
  'cli-completion.test.mjs',
  'describe.test.mjs',
  'errors.test.mjs',
  'inert.test.mjs',
  'json.test.mjs',
  'odd-values.test.mjs',
  'properties.test.mjs',
  'queue.test.mjs',
  'scripts.test.mjs',
  'sessions.test.mjs',
  'source-named-imports.test.mjs',
  'source-typescript.test.mjs',
  'surface.test.mjs',
  'talk.test.mjs',
];

/** The test file that a name or path means: `abort`, `abort.test.mjs`, `__test__/abort.test.mjs`, `tests/tidy.rs`. */
export function fileNamed(wanted) {
  const path = wanted.replaceAll('\\', '/').replace(/^\.\//, '');
  if (path.endsWith('.rs')) return rustTest(path);
  const below = path.replace(/^__test__\//, '');
  const names = [below, `${below}.test.mjs`];
  const found = testFiles().find(
    (file) => names.includes(file.replaceAll('\\', '/')) || names.includes(basename(file))
  );
  return found === undefined ? undefined : { kind: 'node', name: found };
}

function rustTest(path) {
  const name = basename(path, '.rs');
  return existsSync(join(ROOT, 'tests', `${name}.rs`)) ? { kind: 'cargo', name } : undefined;
}

/** The triple of this machine; ends the process where there is no Rust, which says what to install. */
export function targetOfRust() {
  try {
    needsRust('rustfmt', 'clippy');
    return hostTriple();
  } catch (error) {
    console.log(error.message);
    process.exit(1);
  }
}

/** Formatters, lints and types. */
export function lintSteps(target) {
  const mend = { hint: 'Mend it with: npm run format' };
  return [
    ['cargo fmt', () => sh('cargo', ['fmt', '--all', '--check'], mend)],
    ['biome', () => sh(process.execPath, [tool('@biomejs/biome', 'biome'), 'ci', '--error-on-warnings'], mend)],
    ['types', () => sh(process.execPath, [tool('typescript', 'tsc'), '-p', 'tsconfig.json'])],
    [
      'clippy',
      () => sh('cargo', ['clippy', '--target', target, '--workspace', '--all-targets', '--', '-D', 'warnings']),
    ],
  ];
}
