// The benchmark's figures: what is computed from samples, and that a whole run works.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { hasSection } from '../benches/machine.mjs';
import { rungsText, table } from '../benches/report.mjs';
import { percentile, summary } from '../cli/bench/stats.mjs';
import { latencies } from '../cli/bench/svg.mjs';
import { TOOLS } from '../cli/bench/tools.mjs';
import { LINUX, ownWorld, ROOT } from './helpers.mjs';

const world = ownWorld();

test('percentiles are measured values, by nearest rank', () => {
  const hundred = Array.from({ length: 100 }, (_, at) => 100 - at);
  const { n, min, p50, p99, max, mean } = summary(hundred);
  assert.deepEqual({ n, min, p50, p99, max, mean }, { n: 100, min: 1, p50: 50, p99: 99, max: 100, mean: 50.5 });
  assert.equal(percentile([7], 0.99), 7);
  assert.throws(() => summary([]), RangeError);
  assert.throws(() => summary([1, Number.NaN]), TypeError);
});

test('a wrong answer is seen as one', () => {
  assert.ok(TOOLS.trivial.right({ n: 1 }, 2));
  assert.ok(!TOOLS.trivial.right({ n: 1 }, 3));
  assert.ok(!TOOLS.packages.right({ n: 1 }, ''));
  assert.ok(!TOOLS.computing.right({}, { checksum: 1, ms: 0 }));
});

test('a section is one by the table of sections, not by its name in a text', { skip: !LINUX && 'Linux only' }, () => {
  const node = readFileSync(process.execPath);
  assert.ok(hasSection(node, '.text'));
  const text = Buffer.concat([node, Buffer.from('\0.in_a_text_only\0')]);
  assert.ok(!hasSection(text, '.in_a_text_only'));
  assert.ok(!hasSection(node, '.no_such_section'));
  assert.throws(() => hasSection(Buffer.alloc(64), '.text'), /not an ELF file/);
});

test('rungs are told by the workers that served', () => {
  assert.equal(rungsText({ zygote: 5, standby: 0, spawn: 2 }, { zygote: 1 }), 'zygote 4, spawn 2');
  assert.equal(rungsText({ zygote: 0 }), 'none');
});

test('a row without the other side has no ratio, and no verdict that needs one', () => {
  const line = { id: 'x', title: 'x', unit: 'ms', target: '≥ 2×', sides: { ours: { value: 1 } }, workers: {} };
  const text = table([line]);
  assert.match(text, /not judged/);
  assert.doesNotMatch(text, /\bmet\b/i);
});

test('the picture has both sides, and says slower where it is slower', () => {
  const samples = (at) => Array.from({ length: 40 }, (_, n) => at + n / 100);
  const sides = { ours: { value: 20, samples: samples(20) }, original: { value: 10, samples: samples(10) } };
  const svg = latencies([{ title: 'a <call>', sides, ratio: 0.5 }], { title: 't', subtitle: 's' });
  assert.match(svg, /2\.00× slower/);
  assert.equal(svg.match(/<path /g).length, 2);
  assert.doesNotMatch(svg, /<call>|NaN/);
});

/** A run for function only. */
function quickRun(name, args) {
  const program = [
    join(ROOT, 'benches', 'run.mjs'),
    '--quick',
    '--no-build',
    '--no-original',
    '--node',
    process.execPath,
  ];
  return spawnSync(process.execPath, [...program, '--name', name, '--results', world.root, ...args], {
    encoding: 'utf8',
    timeout: 120_000,
  });
}

test('each layer of the isolation has a line, or a note why not', {
  skip: !LINUX && 'Linux only',
  timeout: 150_000,
}, () => {
  const { status, stdout, stderr } = quickRun('isolation', ['--only', 'isolation']);
  assert.equal(status, 0, stdout + stderr);
  const [tiers, ...layers] = JSON.parse(readFileSync(join(world.root, 'isolation.json'), 'utf8')).lines;
  assert.equal(tiers.id, 'isolation');
  const named = layers.map(({ id }) => id.replace('isolation-', ''));
  const noted = tiers.notes.flatMap((note) => /^([\w, ]+): no line, as /.exec(note)?.[1].split(', ') ?? []);
  // Those of docs/ISOLATION.md that this version has, each once.
  const all = readFileSync(join(ROOT, 'docs', 'ISOLATION.md'), 'utf8');
  const [table] = all.slice(all.indexOf('| layer | tier |')).split('\n\n');
  const known = table
    .split('\n')
    .filter((row) => !row.includes('Not in this version'))
    .flatMap((row) => [...(row.split('|')[1]?.matchAll(/`(\w+)`/g) ?? [])].map(([, layer]) => layer));
  assert.ok(known.length > 10, known.join());
  assert.deepEqual([...named, ...noted].sort(), known.sort());
  for (const { id, sides, ratio, notes, workers } of layers) {
    assert.ok(sides.ours.value > 0 && ratio > 0 && notes.length > 0, id);
    assert.equal(workers, undefined);
  }
  assert.match(stdout, /the same without \w+, beside all layers/);
});

test('a report that cannot be written is told before anything is measured', { skip: !LINUX && 'Linux only' }, () => {
  writeFileSync(join(world.root, 'file'), '');
  const { status, stdout, stderr } = quickRun('none', ['--only', 'warm', '--results', join(world.root, 'file')]);
  assert.deepEqual([status, stdout], [1, '']);
  assert.match(stderr, /^cannot write the report: ENOTDIR/);
});

test('a run measures, tells the rung that was forced, and writes its report', { skip: !LINUX && 'Linux only' }, () => {
  const name = `test-${process.pid}`;
  const { status, stdout, stderr } = quickRun(name, ['--only', 'warm', '--start', 'spawn']);
  assert.equal(status, 0, stdout + stderr);
  const { lines, versions } = JSON.parse(readFileSync(join(world.root, `${name}.json`), 'utf8'));
  assert.equal(lines[0].sides.ours.n, 30);
  assert.equal(lines[0].ratio, undefined);
  assert.deepEqual([lines[0].workers.spawn > 30, lines[0].workers.zygote], [true, 0]);
  assert.match(versions.original, /left out/);
  assert.match(readFileSync(join(world.root, 'latency.svg'), 'utf8'), /^<svg /);
});
