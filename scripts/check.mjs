// `npm run check`: what answers soon after a change: formatters, lints, types, the Rust unit tests, a build, and the quick JavaScript suites.
// `npm test` has all the others.
//
//   npm run check

import { existsSync } from 'node:fs';
import { buildSteps } from './build.mjs';
import { argumentsOf, installIfNeeded, runSteps, sh } from './steps.mjs';
import { lintSteps, nodeOf, QUICK, runFiles, targetOfRust } from './suites.mjs';

argumentsOf(import.meta.url, {});

const target = targetOfRust();
/** The Node that `npm test` has installed, else this one. */
const node = existsSync(nodeOf('22')) ? nodeOf('22') : process.execPath;

const steps = [
  ['install the development dependencies', installIfNeeded],
  ...lintSteps(target),
  [
    'unit tests, and the tidy ones',
    () =>
      sh('cargo', ['test', '--target', target, '--workspace', '--lib', '--bins', '--test', 'tidy', '--quiet'], {
        env: { NATIVE_SANDBOX_TEST_NODES: node },
      }),
  ],
  ...buildSteps({ debug: true, target }),
  ['quick JavaScript suites', () => runFiles(QUICK, { node, jobs: 2 })],
];
process.exitCode = (await runSteps(steps)) ? 0 : 1;
