// `npm test`: every suite that CI runs, in one go, stopping at the first that fails; and how long each step took.
//
//   npm test                            all of it
//   npm run test:full                   the same, the long stress, and the attacks in every setting (scripts/attacks.mjs)
//   npm test -- --list                  the steps
//   npm test -- --only <step or file>   a part, by a step's number or a part of its name, or by a test file: `abort`, `tests/tidy.rs`;
//                                       may be given more than once, and builds nothing by itself
//
// Variables: SHARED_CASES, a folder of shared field cases (else ../shared/cases, where it exists).

import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { attackInAll, settings } from './attacks.mjs';
import { buildSteps } from './build.mjs';
import { runCases } from './cases.mjs';
import { denyCrates } from './deny.mjs';
import { makePackages } from './pack.mjs';
import { argumentsOf, installIfNeeded, listOf, runSteps, StepFailed, sh, stepsNamed } from './steps.mjs';
import {
  canRunTogether,
  fileNamed,
  folderOf,
  folderOfNode,
  lintSteps,
  nodeOf,
  PACKAGES,
  runFiles,
  SUITES,
  targetOfRust,
  testFiles,
  WITHOUT_NPM,
} from './suites.mjs';

const { values: options } = argumentsOf(import.meta.url, {
  full: { type: 'boolean', default: false },
  list: { type: 'boolean', default: false },
  only: { type: 'string', multiple: true, default: [] },
});

/** The Node that everything runs on; the one that runs this script gets the shared cases as a smoke test. */
const MAIN_NODE = '22';
/** Others that all rungs are tried on; all suites with --full. */
const OTHER_NODES = ['24', '26'];
const mainNode = nodeOf(MAIN_NODE);

function installNode(version) {
  if (existsSync(nodeOf(version))) return;
  const folder = folderOfNode(version);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }');
  sh('npm', ['install', '--no-audit', '--no-fund', `node@${version}`], { cwd: folder });
}

/** @param {(name: string) => boolean} chosen by the file's path below `__test__` */
function nodeTests(chosen, node = mainNode) {
  const files = testFiles().filter(chosen);
  const [together, alone] = [files.filter(canRunTogether), files.filter((name) => !canRunTogether(name))];
  if (together.length > 0) runFiles(together, { node, full: options.full, jobs: 2 });
  if (alone.length > 0 || together.length === 0) runFiles(alone, { node, full: options.full });
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

function cargoTest(...chosen) {
  sh('cargo', ['test', '--target', target, ...chosen], { env: { NATIVE_SANDBOX_TEST_NODES: mainNode } });
}

/** What `--only` names: a file with tests, or steps. */
function part(wanted) {
  const file = fileNamed(wanted);
  if (file === undefined) return stepsNamed(steps, wanted);
  if (file.kind === 'cargo') return [[`tests/${file.name}.rs`, () => cargoTest('--test', file.name)]];
  return [[`${file.name} on Node ${MAIN_NODE}`, () => nodeTests((name) => name === file.name)]];
}

const steps = [
  ['install the development dependencies', installIfNeeded],
  ...[MAIN_NODE, ...OTHER_NODES].map((version) => [`install Node ${version}`, () => installNode(version)]),
  ...lintSteps(target),
  ['crates: licences, duplicates and sources', () => denyCrates()],
  // It brings no package along: this says so, and asks the registry once it does.
  ['npm audit of what an installation brings along', () => sh('npm', ['audit', '--omit=dev'])],
  ['cargo test', () => cargoTest('--workspace')],
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
  ['make the packages that a release publishes', () => makePackages({ out: PACKAGES, debug: true })],
  [
    'the packages: contents, linters, installation, documents, examples',
    () => nodeTests((name) => folderOf(name) === 'packages'),
  ],
  ['test runners, tsx, Vite and bundles', () => nodeTests((name) => folderOf(name) === 'runners')],
  [`shared cases on Node ${MAIN_NODE}`, () => cases(mainNode, 'shared')],
  [`field cases, second set, on Node ${MAIN_NODE}`, () => cases(mainNode, 'field-2')],
  [`field cases, second set, on Node ${MAIN_NODE}, as a user`, () => cases(mainNode, 'field-2', { asUser: true })],
  [`attacks on Node ${MAIN_NODE}`, () => cases(mainNode, 'attacks/attacks')],
  [`attacks on Node ${MAIN_NODE}, as a user`, () => cases(mainNode, 'attacks/attacks', { asUser: true })],
  [`shared cases on Node ${process.versions.node}`, () => cases(process.execPath, 'shared')],
  ...(options.full ? OTHER_NODES : []).flatMap((version) =>
    ['shared', 'field-2'].flatMap((set) =>
      [false, true].map((asUser) => [
        `cases of ${set} on Node ${version}${asUser ? ', as a user' : ''}`,
        () => cases(nodeOf(version), set, { jobs: 2, asUser }),
      ])
    )
  ),
  ...(options.full ? [['attacks in every setting', () => attackInAll(settings(), { withoutNpm: WITHOUT_NPM })]] : []),
];

if (options.list) {
  console.log(listOf(steps));
} else {
  try {
    const chosen = options.only.length > 0 ? options.only.flatMap(part) : steps;
    process.exitCode = (await runSteps(chosen)) ? 0 : 1;
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    console.error(error.message);
    process.exitCode = 2;
  }
}
