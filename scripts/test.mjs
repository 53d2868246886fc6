// `npm test`: every suite that CI runs, in one go, stopping at the first that fails.
//
//   npm test                 all of it
//   npm run test:full        the same, the long stress, and the attacks in every setting (scripts/attacks.mjs)
//
// Variables: SHARED_CASES, a folder of shared field cases (else ../shared/cases, where it exists).

import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { attackInAll, settings } from './attacks.mjs';
import { buildSteps } from './build.mjs';
import { runCases } from './cases.mjs';
import { denyCrates } from './deny.mjs';
import { makePackages } from './pack.mjs';
import { argumentsOf, hostTriple, installIfNeeded, needsRust, ROOT, runSteps, StepFailed, sh, tool } from './steps.mjs';

const { values: options } = argumentsOf(import.meta.url, { full: { type: 'boolean', default: false } });

/** The Node that everything runs on; the one that runs this script gets the shared cases as a smoke test. */
const MAIN_NODE = '22';
/** Others that all rungs are tried on; all suites with --full. */
const OTHER_NODES = ['24', '26'];
/** Where the packages are that the suites of one folder install. */
const packages = join(ROOT, 'target', 'packages');
const mainNode = nodeOf(MAIN_NODE);

function folderOfNode(version) {
  return join(ROOT, 'target', `node-${version}`);
}

function nodeOf(version) {
  const name = process.platform === 'win32' ? 'node.exe' : 'node';
  return join(folderOfNode(version), 'node_modules', 'node', 'bin', name);
}

function installNode(version) {
  if (existsSync(nodeOf(version))) return;
  const folder = folderOfNode(version);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }');
  sh('npm', ['install', '--no-audit', '--no-fund', `node@${version}`], { cwd: folder });
}

/**
 * What `npm test` adds to the environment is none of the host's that the suites play: its download cache, for one, would
 * be shared by cases that each count what is downloaded.
 */
const WITHOUT_NPM = Object.fromEntries(
  Object.keys(process.env)
    .filter((name) => /^npm_/i.test(name) && !/^npm_config_(registry|https?_proxy|proxy|cafile)$/i.test(name))
    .map((name) => [name, undefined])
);

/** Folders of `__test__` whose suites need more than this package: they are steps of their own. */
const SUITES = ['packages', 'published', 'runners'];

/** @param {(name: string) => boolean} chosen by the file's path below `__test__` */
function nodeTests(chosen, node = mainNode) {
  const files = readdirSync(join(ROOT, '__test__'), { recursive: true })
    .filter((name) => name.endsWith('.test.mjs') && chosen(name))
    .sort();
  if (files.length === 0) throw new StepFailed('no such test files in __test__');
  // One file at a time: several of them measure time or count what is left on the machine.
  const args = ['--test', '--test-concurrency=1', '--test-reporter=spec'];
  const env = { ...WITHOUT_NPM, NSE_TEST_FULL: options.full ? '1' : '', NSE_TEST_PACKAGES: packages };
  sh(node, [...args, ...files.map((name) => join('__test__', name))], { env });
}

/** The first folder of a path, if it has one. */
function folderOf(name) {
  return name.split(/[\\/]/, 1)[0];
}

/** Into the user's cache folder, where they stay. */
async function installSuites() {
  const { originalInstalled, pgliteInstalled } = await import('../__test__/published/installed.mjs');
  const { bundlers, programs } = await import('../__test__/runners/project.mjs');
  await originalInstalled();
  await pgliteInstalled();
  await programs();
  if (process.platform === 'linux') await bundlers();
}

function cases(node, set, how = {}) {
  runCases(node, set, { withoutNpm: WITHOUT_NPM, ...how });
}

/** Named, so that all steps share what they compile: napi names it too. */
const target = targetOfRust();

function targetOfRust() {
  try {
    needsRust('rustfmt', 'clippy');
    return hostTriple();
  } catch (error) {
    console.log(error.message);
    process.exit(1);
  }
}

const steps = [
  ['install the development dependencies', installIfNeeded],
  ...[MAIN_NODE, ...OTHER_NODES].map((version) => [`install Node ${version}`, () => installNode(version)]),
  ['cargo fmt', () => sh('cargo', ['fmt', '--all', '--check'], { hint: 'Mend it with: npm run format' })],
  [
    'biome',
    () =>
      sh(process.execPath, [tool('@biomejs/biome', 'biome'), 'ci', '--error-on-warnings'], {
        hint: 'Mend it with: npm run format',
      }),
  ],
  ['types', () => sh(process.execPath, [tool('typescript', 'tsc'), '-p', 'tsconfig.json'])],
  ['clippy', () => sh('cargo', ['clippy', '--target', target, '--workspace', '--all-targets', '--', '-D', 'warnings'])],
  ['crates: licences, duplicates and sources', () => denyCrates()],
  // It brings no package along: this says so, and asks the registry once it does.
  ['npm audit of what an installation brings along', () => sh('npm', ['audit', '--omit=dev'])],
  [
    'cargo test',
    () => sh('cargo', ['test', '--target', target, '--workspace'], { env: { NATIVE_SANDBOX_TEST_NODES: mainNode } }),
  ],
  ...buildSteps({ debug: true, target }),
  [`node tests on Node ${MAIN_NODE}`, () => nodeTests((name) => !SUITES.includes(folderOf(name)))],
  ...OTHER_NODES.map((version) => [
    options.full ? `node tests on Node ${version}` : `the rungs on Node ${version}`,
    () =>
      nodeTests(
        (name) => (options.full ? !SUITES.includes(folderOf(name)) : name === 'rungs.test.mjs'),
        nodeOf(version)
      ),
  ]),
  [
    `the flag on Node ${process.versions.node}`,
    () => nodeTests((name) => name === 'register.test.mjs', process.execPath),
  ],
  ['install the published original and the test runners, once', installSuites],
  ['the published original beside this package', () => nodeTests((name) => folderOf(name) === 'published')],
  ['make the packages that a release publishes', () => makePackages({ out: packages, debug: true })],
  [
    'the packages: contents, linters, installation, documents, examples',
    () => nodeTests((name) => folderOf(name) === 'packages'),
  ],
  ['test runners, tsx, Vite and bundles', () => nodeTests((name) => folderOf(name) === 'runners')],
  [`shared cases on Node ${MAIN_NODE}`, () => cases(mainNode, 'shared')],
  [`field cases, second set, on Node ${MAIN_NODE}`, () => cases(mainNode, 'field-2')],
  [`attacks on Node ${MAIN_NODE}`, () => cases(mainNode, 'attacks/attacks')],
  [`attacks on Node ${MAIN_NODE}, as a user`, () => cases(mainNode, 'attacks/attacks', { asUser: true })],
  [`shared cases on Node ${process.versions.node}`, () => cases(process.execPath, 'shared')],
  ...(options.full ? OTHER_NODES : []).flatMap((version) =>
    ['shared', 'field-2'].map((set) => [
      `cases of ${set} on Node ${version}`,
      () => cases(nodeOf(version), set, { jobs: 2 }),
    ])
  ),
  ...(options.full ? [['attacks in every setting', () => attackInAll(settings(), { withoutNpm: WITHOUT_NPM })]] : []),
];
process.exitCode = (await runSteps(steps)) ? 0 : 1;
