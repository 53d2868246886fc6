// Uses real npm packages in functions, in plain Node and in the sandbox on every rung, and compares the results.
//
//   node scripts/packages-real.mjs [--node <path>] [--only <package,…>] [--rungs zygote,standby,spawn] [--jobs 2] [--report docs/PACKAGES.md]
//
// Needs a build, and a package registry that npm reaches. Downloads some gigabytes into target/real-packages. Ends with 1 when a
// result differs from plain Node's and the difference is not explained in scripts/real-packages/differences.json.

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { cpus } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { renderReport } from './real-packages/report.mjs';
import { USES } from './real-packages/uses.mjs';
import { argumentsOf, ROOT } from './steps.mjs';

const RUNGS = ['zygote', 'standby', 'spawn'];
/** Upper bound of one package's installation and plain run, milliseconds. */
const PLAIN_LIMIT_MS = 240_000;
/** Upper bound of one package on one rung, its installation included, milliseconds. */
const RUNG_LIMIT_MS = 240_000;

const { values: options } = argumentsOf(import.meta.url, {
  node: { type: 'string', default: process.execPath },
  only: { type: 'string' },
  rungs: { type: 'string', default: RUNGS.join(',') },
  jobs: { type: 'string', default: '2' },
  report: { type: 'string' },
});

const work = join(ROOT, 'target', 'real-packages');
const differencesFile = join(ROOT, 'scripts', 'real-packages', 'differences.json');
const rungs = options.rungs.split(',').filter(Boolean);
const unknown = rungs.filter((rung) => !RUNGS.includes(rung));
if (unknown.length > 0) fail(`unknown rung: ${unknown.join(', ')}; known are ${RUNGS.join(', ')}`);
const only = options.only?.split(',');
const missing = only?.filter((name) => !USES.some(([known]) => known === name)) ?? [];
if (missing.length > 0) fail(`no use of ${missing.join(', ')} in scripts/real-packages/uses.mjs`);

function fail(message) {
  console.error(message);
  process.exit(2);
}

/** The server that uses talk to: what a request asks for, in the form of the service that it imitates. */
function startServer() {
  const answers = {
    '/json': () => ({ ok: true, list: [1, 2, 3] }),
    '/v1/chat/completions': () => ({
      id: 'x',
      object: 'chat.completion',
      choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'hello' } }],
    }),
    '/v1/messages': () => ({
      id: 'x',
      type: 'message',
      role: 'assistant',
      model: 'm',
      content: [{ type: 'text', text: 'hello' }],
      usage: { input_tokens: 1, output_tokens: 1 },
    }),
  };
  const server = http.createServer((request, response) => {
    const answer = answers[request.url.split('?')[0]];
    response.writeHead(answer ? 200 : 404, { 'content-type': 'application/json' });
    request.resume().on('end', () => response.end(JSON.stringify(answer?.() ?? { error: 'not found' })));
  });
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => resolve({ server, url: `http://127.0.0.1:${server.address().port}` }));
  });
}

/** Runs a program; resolves with exit code and output, never rejects. */
function run(program, args, { cwd, limitMs, env }) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd,
      env: env ?? process.env,
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    let stdout = '';
    let stderr = '';
    const end = () => {
      try {
        process.kill(-child.pid, 'SIGKILL');
      } catch {
        // It has ended already.
      }
    };
    const timer = setTimeout(end, limitMs);
    child.stdout.on('data', (chunk) => (stdout += chunk));
    child.stderr.on('data', (chunk) => (stderr += chunk));
    child.on('error', (error) => resolve({ code: -1, stdout, stderr: error.message }));
    child.on('close', (code) => {
      clearTimeout(timer);
      resolve({ code, stdout, stderr });
    });
  });
}

/** Installs a package with npm and runs its use in plain Node: `{ versions, outcome, ms }`. */
async function plain([name, body, { with: others = {}, range = 'latest' } = {}], url) {
  const folder = join(work, 'plain', name.replace('/', '__'));
  const dependencies = { [name]: range, ...others };
  const stamp = JSON.stringify(dependencies);
  if (!existsSync(join(folder, 'installed')) || readFileSync(join(folder, 'installed'), 'utf8') !== stamp) {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies }));
    const npm = ['install', '--no-audit', '--no-fund', '--prefer-offline'];
    // Addons are built for the Node that is found first.
    const env = { ...process.env, PATH: `${dirname(options.node)}${delimiter}${process.env.PATH}` };
    const { code, stderr } = await run('npm', npm, { cwd: folder, limitMs: PLAIN_LIMIT_MS, env });
    if (code !== 0) return { versions: {}, outcome: { error: `npm install failed: ${stderr.slice(-400)}` } };
    writeFileSync(join(folder, 'installed'), stamp);
  }
  const versionOf = (dependency) =>
    JSON.parse(readFileSync(join(folder, 'node_modules', dependency, 'package.json'), 'utf8')).version;
  const versions = Object.fromEntries(
    Object.keys(dependencies).map((dependency) => [dependency, versionOf(dependency)])
  );
  const cwd = join(folder, 'run');
  rmSync(cwd, { recursive: true, force: true });
  mkdirSync(cwd);
  writeFileSync(join(folder, 'use.cjs'), `module.exports = async (args) => { ${body} };\n`);
  const began = performance.now();
  const { code, stdout, stderr } = await run(
    options.node,
    [join(ROOT, 'scripts', 'real-packages', 'plain-run.cjs'), join(folder, 'use.cjs'), JSON.stringify({ url })],
    { cwd, limitMs: PLAIN_LIMIT_MS, env: { ...process.env, ANTHROPIC_LOG: 'off' } }
  );
  const ms = performance.now() - began;
  const line = stdout.split('\n').findLast((text) => text.startsWith('{"outcome":'));
  const outcome = line ? JSON.parse(line).outcome : { error: `ended with ${code}: ${stderr.slice(-400)}` };
  return { versions, outcome, ms };
}

/** Runs a use in the sandbox on one rung, in a host process of its own. */
async function sandboxed([name, body], versions, rung, url) {
  const job = { name, body, dependencies: versions, rung, url, storeDir: join(work, `store-${process.version}`) };
  const { code, stdout, stderr } = await run(
    options.node,
    [join(ROOT, 'scripts', 'real-packages', 'sandbox-run.mjs'), JSON.stringify(job)],
    { cwd: work, limitMs: RUNG_LIMIT_MS }
  );
  const line = stdout.split('\n').findLast((text) => text.startsWith('{"calls":'));
  return line ? JSON.parse(line) : { calls: [], error: `the host ended with ${code}: ${stderr.slice(-400)}` };
}

/** What kind of value it is, for results that differ from call to call. */
function shapeOf(value) {
  return typeof value === 'string' ? `string of ${value.length}` : typeof value;
}

/** What is wrong with the calls of one rung; `undefined` when nothing is. */
function difference({ outcome }, { calls, error }, differs) {
  if (error) return error;
  for (const [index, call] of calls.entries()) {
    if (call.error) return `call ${index + 1}: ${call.error}`;
    const same = differs
      ? shapeOf(call.value) === shapeOf(outcome.value) ||
        Math.abs(`${call.value}`.length - `${outcome.value}`.length) <= 4
      : isDeepStrictEqual(call.value, outcome.value);
    if (!same)
      return `call ${index + 1} returned ${JSON.stringify(call.value)?.slice(0, 120)}, plain Node ${JSON.stringify(outcome.value)?.slice(0, 120)}`;
  }
  if (differs && new Set(calls.map((call) => JSON.stringify(call.value))).size < calls.length)
    return `two calls returned the same value: ${JSON.stringify(calls.map((call) => call.value)).slice(0, 200)}`;
  return undefined;
}

const differences = JSON.parse(readFileSync(differencesFile, 'utf8'));
const uses = USES.filter(([name]) => !only || only.includes(name));
const { server, url } = await startServer();
mkdirSync(work, { recursive: true });
const rows = [];
let next = 0;

async function compare(use) {
  const [name, , { differs = false } = {}] = use;
  const row = { name, differs, rungs: {}, plain: await plain(use, url) };
  for (const rung of row.plain.outcome.error === undefined ? rungs : []) {
    const found = await sandboxed(use, row.plain.versions, rung, url);
    row.rungs[rung] = { ...found, difference: difference(row.plain, found, differs) };
  }
  return row;
}

function tell({ name, plain: { outcome }, rungs: found }) {
  const wrong = rungs.filter((rung) => found[rung]?.difference);
  const state = outcome.error ? 'plain Node fails' : wrong.length > 0 ? 'DIFFERS' : 'same';
  console.log(`${String(rows.length).padStart(3)}/${uses.length} ${name}: ${state}`);
  if (outcome.error) console.log(`      ${outcome.error.split('\n')[0]}`);
  for (const rung of wrong) console.log(`      ${rung}: ${found[rung].difference}`);
}

async function worker() {
  while (next < uses.length) {
    const row = await compare(uses[next++]);
    rows.push(row);
    tell(row);
  }
}

await Promise.all(Array.from({ length: Number(options.jobs) }, worker));
server.close();
rows.sort((a, b) => a.name.localeCompare(b.name, 'en'));
writeFileSync(join(work, 'report.json'), JSON.stringify(rows, null, 1));
const about = {
  node: rows.length > 0 ? (await run(options.node, ['--version'], { cwd: work, limitMs: 5000 })).stdout.trim() : '',
  cores: cpus().length,
  rungs,
};
if (options.report) writeFileSync(join(ROOT, options.report), renderReport(rows, differences, about));

const unexplained = rows.filter(
  (row) =>
    !Object.hasOwn(differences, row.name) &&
    (row.plain.outcome.error || rungs.some((rung) => row.rungs[rung]?.difference))
);
console.log(`\n${rows.length - unexplained.length} passed, ${unexplained.length} failed`);
process.exitCode = unexplained.length === 0 && rows.length > 0 ? 0 : 1;
