// The scripts that run the others: which steps and files a name means, and what is told of their times.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { listOf, StepFailed, stepsNamed, timesOf } from '../scripts/steps.mjs';
import { canRunTogether, fileNamed, QUICK, testFiles } from '../scripts/suites.mjs';
import { ROOT } from './helpers.mjs';

const STEPS = [
  ['install', 1],
  ['cargo test', 2],
  ['node tests on Node 22', 3],
  ['rungs on Node 24', 4],
];

test('steps are named by their number or a part of their name', () => {
  assert.deepEqual(stepsNamed(STEPS, '2'), [STEPS[1]]);
  assert.deepEqual(stepsNamed(STEPS, 'CARGO'), [STEPS[1]]);
  assert.deepEqual(stepsNamed(STEPS, 'on node'), STEPS.slice(2));
  // Not the number of a step: a part of names.
  assert.deepEqual(stepsNamed(STEPS, '22'), [STEPS[2]]);
  for (const wanted of ['0', '99', 'nothing']) assert.throws(() => stepsNamed(STEPS, wanted), StepFailed);
  assert.equal(listOf(STEPS.slice(0, 2)), '1  install\n2  cargo test');
});

test('files with tests are named with or without folder and ending', () => {
  for (const name of ['abort', 'abort.test.mjs', '__test__/abort.test.mjs', './__test__/abort.test.mjs']) {
    assert.deepEqual(fileNamed(name), { kind: 'node', name: 'abort.test.mjs' }, name);
  }
  assert.deepEqual(fileNamed('packages/pack'), { kind: 'node', name: join('packages', 'pack.test.mjs') });
  assert.deepEqual(fileNamed('pack'), { kind: 'node', name: join('packages', 'pack.test.mjs') });
  assert.deepEqual(fileNamed('tests/tidy.rs'), { kind: 'cargo', name: 'tidy' });
  for (const name of ['helpers.mjs', 'biome', 'none.rs', '']) assert.equal(fileNamed(name), undefined, name);
});

test('what measures, or counts what is left on the machine, runs alone', () => {
  const together = testFiles().filter(canRunTogether);
  assert.ok(together.length > 15 && together.includes('cli-run.test.mjs'), together.join());
  for (const name of ['stress', 'tracing', 'escapes', 'limits', 'cli-bench', 'properties']) {
    assert.equal(canRunTogether(`${name}.test.mjs`), false, name);
  }
});

test('the quick suites are there', () => {
  assert.deepEqual(
    QUICK.filter((name) => !testFiles().includes(name)),
    []
  );
  assert.ok(QUICK.length > 10);
});

test('the time of each step is told, with its part of all', () => {
  const told = timesOf([
    { name: 'one', ms: 1000 },
    { name: 'another', ms: 3000 },
  ]);
  assert.equal(
    told,
    ['one', 'another', 'all']
      .map((name, at) => `${name.padEnd(7)}      ${at + 1 + (at > 0 ? 1 : 0)}.0 s  ${[25, 75, 100][at]} %`)
      .join('\n')
  );
});

test('npm test lists its steps, and tells what it does not know', () => {
  const run = (...args) =>
    spawnSync(process.execPath, [join(ROOT, 'scripts', 'test.mjs'), ...args], { encoding: 'utf8' });
  const { status, stdout } = run('--list');
  assert.equal(status, 0);
  for (const name of ['biome', 'cargo test', 'node tests on Node 22', 'attacks on Node 22']) {
    assert.match(stdout, new RegExp(`^ *\\d+  ${name}$`, 'm'));
  }
  const unknown = run('--only', 'no-such-thing');
  assert.deepEqual([unknown.status, unknown.stdout], [2, '']);
  assert.match(unknown.stderr, /^no step has "no-such-thing" in its name/);
});
