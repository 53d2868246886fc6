// `bench`: measures, and says what and where.

import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { rateRow, report, timeRow } from '../cli/bench-report.mjs';
import { cli } from './cli.mjs';
import { ownWorld } from './helpers.mjs';

const world = ownWorld();

test('rows compare with node, and say slower where it is slower', () => {
  const rows = [
    timeRow('warm', 'a call', { ours: [1, 2, 3], node: [20, 20, 20], original: [40, 40, 40] }),
    rateRow('throughput', 'calls per second', { ours: [10], node: [20] }),
  ];
  assert.deepEqual([rows[0].ratio, rows[1].ratio], [10, 0.5]);
  const machine = { cpu: 'a processor', cores: 2, load: '0.00' };
  const versions = { node: 'v22.0.0', original: '1.2.3' };
  const text = report({ machine, versions, start: { rung: 'spawn 3', tier: 'base' }, rows }, (_format, words) => words);
  assert.match(text, /^ {2}native-sandbox-executor +2 ms +3 ms +10\.0× faster$/m);
  assert.match(text, /^ {2}the original +40 ms +40 ms +2\.00× slower$/m);
  assert.match(text, /^ {2}native-sandbox-executor +10\/s +2\.00× slower$/m);
});

test('it measures, draws, and leaves nothing', async () => {
  const before = readdirSync(world.tmp);
  const picture = join(world.root, 'out', 'latency.svg');
  const { code, out, err } = await cli(['bench', '--samples', '7', '--json', '--svg', picture]);
  assert.equal(code, 0, err);
  const { rows, samples, versions, start } = JSON.parse(out);
  assert.deepEqual([samples, versions.node, versions.original], [7, process.version, null]);
  assert.match(start.rung, /\d/);
  const [warm, throughput] = rows;
  for (const side of ['ours', 'node']) {
    assert.equal(warm.sides[side].samples.length, 7);
    assert.ok(warm.sides[side].value > 0 && throughput.sides[side].value > 0);
  }
  const svg = readFileSync(picture, 'utf8');
  assert.match(svg, /^<svg /);
  assert.match(svg, /node, spawned for each call/);
  assert.doesNotMatch(svg, /NaN/);
  assert.deepEqual(readdirSync(world.tmp), before);
});

test('the published original is measured where the working directory has it', async () => {
  const cwd = join(world.root, 'project');
  const root = join(cwd, 'node_modules', '@inkeep', 'agents-run-api');
  mkdirSync(join(root, 'dist'), { recursive: true });
  writeFileSync(join(root, 'package.json'), '{"name":"@inkeep/agents-run-api","version":"9.9.9","type":"module"}');
  const stand =
    'export const SandboxExecutorFactory = { getInstance: () => ({ executeFunctionTool: async (_, { n }) => n + 1 }) };';
  writeFileSync(join(root, 'dist', 'SandboxExecutorFactory-ABCD1234.js'), stand);
  const { code, out, err } = await cli(['bench', '--samples', '5'], { cwd });
  assert.equal(code, 0, err);
  assert.match(out, /original: 9\.9\.9$/m);
  assert.match(out, /^ {2}the original +[\d.]+ (µs|ms) /m);
});

test('an executor that cannot run is told, and is exit code 1', async () => {
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_START: 'fork' };
  const { code, out, err } = await cli(['bench', '--samples', '5'], { env });
  assert.deepEqual([code, out], [1, '']);
  assert.match(err, /error: native-sandbox-executor failed: .*AGENTS_FUNCTION_TOOL_SANDBOX_START/);
});
