// `npm run soak`: 100,000 mixed calls from 128 callers over 50 dependency sets, from a built tree. Fails when a call has another outcome than its
// own, when processes, permits, run folders or descriptors are left, when the store grew, or when memory did not stay where it was: the
// median of the last tenth of the run is compared with that of the second.
//
//   npm run soak -- [--calls N] [--callers N] [--sets N] [--results <folder>]
//
// Variable: SOAK_CALLS, as --calls. Writes soak.json and soak.svg to the folder (default: bench-results).

import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { ownWorld } from '../__test__/helpers.mjs';
import { Load, packagesOf } from '../__test__/load.mjs';
import { useRegistry } from '../__test__/registry.mjs';
import { argumentsOf, ROOT } from './steps.mjs';

const DRIFT_LIMIT = 1.05;
/** Shorter runs are too noisy to say anything about memory. */
const DRIFT_CALLS = 20_000;
/** Sandboxes are replaced, and looked for, much more often than by default. */
const RESTLESS = {
  AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT: '40',
  AGENTS_FUNCTION_TOOL_SANDBOX_CLEANUP_INTERVAL_MS: '500',
  AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS: '20000',
  AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS: '600000',
};

const { values } = argumentsOf(import.meta.url, {
  calls: { type: 'string', default: process.env.SOAK_CALLS || '100000' },
  callers: { type: 'string', default: '128' },
  sets: { type: 'string', default: '50' },
  results: { type: 'string', default: join(ROOT, 'bench-results') },
});
const size = { calls: countOf('calls'), callers: countOf('callers'), sets: countOf('sets') };
const folder = resolve(values.results);

function countOf(name) {
  const count = Number(values[name]);
  if (Number.isInteger(count) && count > 0) return count;
  console.error(`--${name} must be a whole number above 0, got ${values[name]}`);
  process.exit(2);
}

const median = (numbers) => numbers.toSorted((one, other) => one - other)[Math.floor(numbers.length / 2)];

/** What is not as it was, as sentences. */
function complaintsOf({ before, after, stretches, calls }) {
  const complaints = [];
  if (after.storeBytes > before.storeBytes * DRIFT_LIMIT) {
    complaints.push(`the store has ${after.storeBytes} bytes, it had ${before.storeBytes}`);
  }
  const tenth = Math.max(1, Math.floor(stretches.length / 10));
  const early = median(stretches.slice(tenth, 2 * tenth).map(({ rssBytes }) => rssBytes));
  const late = median(stretches.slice(-tenth).map(({ rssBytes }) => rssBytes));
  if (calls >= DRIFT_CALLS && late > early * DRIFT_LIMIT) {
    complaints.push(`memory grew from ${early} to ${late} bytes between the second and the last tenth`);
  }
  return complaints;
}

const WIDTH = 900;
const PANEL_HEIGHT = 170;
const LEFT = 70;
const LINES = { p50: '#2563eb', p95: '#d97706', p99: '#dc2626', MiB: '#2563eb' };

/** Lines over the course of the run, from 0 on. */
function panel(top, title, calls, series) {
  const most = Math.max(1, ...series.flatMap(({ points }) => points.map(([, y]) => y)));
  const x = (call) => LEFT + (call / calls) * (WIDTH - LEFT - 20);
  const y = (value) => top + PANEL_HEIGHT - (value / most) * (PANEL_HEIGHT - 30);
  const lines = series.map(
    ({ name, points }) =>
      `<polyline fill="none" stroke="${LINES[name]}" points="${points.map(([call, value]) => `${x(call).toFixed(1)},${y(value).toFixed(1)}`).join(' ')}"/>`
  );
  const names = series.map(({ name }, at) => `<tspan fill="${LINES[name]}" dx="${at === 0 ? 12 : 8}">${name}</tspan>`);
  return [
    `<text x="${LEFT}" y="${top + 14}">${title}${names.join('')}</text>`,
    `<text x="${LEFT - 6}" y="${y(most) + 4}" text-anchor="end">${Math.round(most)}</text>`,
    `<text x="${LEFT - 6}" y="${y(0)}" text-anchor="end">0</text>`,
    `<line x1="${LEFT}" x2="${WIDTH - 20}" y1="${y(0)}" y2="${y(0)}" stroke="#999"/>`,
    ...lines,
  ].join('\n');
}

function pictureOf({ calls, callers, sets, seconds, stretches }) {
  const points = (of) => stretches.map((one) => [one.call, of(one)]);
  const height = 2 * PANEL_HEIGHT + 70;
  const head = `${calls} calls, ${callers} callers, ${sets} dependency sets, ${Math.round(seconds)} s`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" font-family="sans-serif" font-size="12">`,
    `<rect width="${WIDTH}" height="${height}" fill="#fff"/>`,
    `<text x="${LEFT}" y="20" font-size="14">${head}</text>`,
    panel(
      35,
      'Latency of good calls, ms, queue included:',
      calls,
      ['p50', 'p95', 'p99'].map((name) => ({ name, points: points((one) => one[name]) }))
    ),
    panel(45 + PANEL_HEIGHT, 'Resident memory of the host:', calls, [
      { name: 'MiB', points: points(({ rssBytes }) => rssBytes / 2 ** 20) },
    ]),
    `<text x="${LEFT}" y="${height - 8}">calls →</text>`,
    '</svg>',
    '',
  ].join('\n');
}

const world = ownWorld();
Object.assign(process.env, RESTLESS);
const registry = await useRegistry(packagesOf(size.sets));
const found = await new Load({ world, ...size }).run();
await registry.close();
const complaints = complaintsOf(found);
const report = { node: process.version, ...found, complaints };
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, 'soak.json'), `${JSON.stringify(report, null, 2)}\n`);
writeFileSync(join(folder, 'soak.svg'), pictureOf(found));
for (const complaint of complaints) console.error(complaint);
console.log(
  `${found.calls} calls in ${found.seconds.toFixed(0)} s, ${found.perSecond.toFixed(0)} a second; ${join(folder, 'soak.json')}`
);
process.exitCode = complaints.length === 0 ? 0 : 1;
