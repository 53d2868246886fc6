// Uses real npm packages in functions, in plain Node and in the sandbox on every rung, and compares the results.
//
//   node scripts/packages-real.mjs [--node <path>] [--only <package,…>] [--rungs zygote,standby,spawn] [--jobs 2]
//                                  [--resume] [--note <text>] [--render]
//
// Needs a build, and a package registry that npm reaches. Downloads some gigabytes into target/real-packages. Ends with 1 when a
// result differs from plain Node's and the difference is not explained in scripts/real-packages/differences.json.
// What was found goes into scripts/real-packages/report.json, over what stood there of these packages, this Node and these rungs, and
// docs/PACKAGES.md is written from that. --resume leaves out what stands there as equal; --note says there what the machine was doing;
// --render only writes docs/PACKAGES.md.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { cpus, release } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { describe, renderReport } from './real-packages/report.mjs';
import { USES } from './real-packages/uses.mjs';
import { WORDS } from './real-packages/words.mjs';
import { argumentsOf, ROOT } from './steps.mjs';

const RUNGS = ['zygote', 'standby', 'spawn'];
/** Upper bound of one package's installation and plain run, milliseconds. */
const PLAIN_LIMIT_MS = 900_000;
/** Upper bound of one package on one rung, its installation included, milliseconds. */
const RUNG_LIMIT_MS = 900_000;

const { values: options } = argumentsOf(import.meta.url, {
  node: { type: 'string', default: process.execPath },
  only: { type: 'string' },
  rungs: { type: 'string', default: RUNGS.join(',') },
  jobs: { type: 'string', default: '2' },
  resume: { type: 'boolean', default: false },
  note: { type: 'string' },
  render: { type: 'boolean', default: false },
});

const work = join(ROOT, 'target', 'real-packages');
const differencesFile = join(ROOT, 'scripts', 'real-packages', 'differences.json');
const reportFile = join(ROOT, 'scripts', 'real-packages', 'report.json');
const document = join(ROOT, 'docs', 'PACKAGES.md');
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

/** What npm is told, and what a package's scripts find: addons are built for the Node that is found first. */
const npmEnv = { ...process.env, PATH: `${dirname(options.node)}${delimiter}${process.env.PATH}` };

/** Whether anything in a tree was made for the Node that installed it. */
function hasScripts(folder) {
  const { packages } = JSON.parse(readFileSync(join(folder, 'node_modules', '.package-lock.json'), 'utf8'));
  return Object.values(packages).some((entry) => entry.hasInstallScript);
}

/** Installs what a use needs, for the Node that runs it. @returns {Promise<string | undefined>} what went wrong */
async function installPlain(folder, dependencies) {
  const stampFile = join(folder, 'installed');
  const stamp = JSON.stringify(dependencies);
  const [installed, abi] = existsSync(stampFile) ? readFileSync(stampFile, 'utf8').split('\n') : [];
  if (installed === stamp && abi === node.abi) return undefined;
  if (installed !== stamp) {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies }));
    const npm = ['install', '--no-audit', '--no-fund', '--prefer-offline'];
    const { code, stderr } = await run('npm', npm, { cwd: folder, limitMs: PLAIN_LIMIT_MS, env: npmEnv });
    if (code !== 0) return `npm install ended with ${code}: ${stderr.slice(-400)}`;
  } else if (hasScripts(folder)) {
    // An optional package may fail to build: npm install leaves it out, npm rebuild does not, so its end tells nothing.
    await run('npm', ['rebuild'], { cwd: folder, limitMs: PLAIN_LIMIT_MS, env: npmEnv });
  }
  writeFileSync(stampFile, `${stamp}\n${node.abi}`);
  return undefined;
}

/** Installs a package with npm and runs its use in plain Node: `{ versions, outcome, ms }`. */
async function plain([name, body, { with: others = {}, range = 'latest' } = {}], url) {
  const folder = join(work, 'plain', name.replace('/', '__'));
  const dependencies = { [name]: range, ...others };
  const failed = await installPlain(folder, dependencies);
  if (failed) return { versions: {}, outcome: { error: failed } };

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
  const job = { name, body, dependencies: versions, rung, url, storeDir: join(work, 'store') };
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
const report = existsSync(reportFile) ? JSON.parse(readFileSync(reportFile, 'utf8')) : { nodes: {}, packages: {} };

function writeDocument() {
  writeFileSync(document, renderReport(report, differences, WORDS));
}

if (options.render) {
  writeDocument();
  process.exit(0);
}

/** The Node that runs everything: its release line, version, and the version of its addons. */
const node = await askNode();
async function askNode() {
  const program = 'process.stdout.write(JSON.stringify([process.versions.node, process.versions.modules]))';
  const { stdout, stderr } = await run(options.node, ['-e', program], { cwd: ROOT, limitMs: 20_000 });
  if (!stdout) fail(`${options.node} does not run: ${stderr}`);
  const [version, abi] = JSON.parse(stdout);
  return { line: version.split('.')[0], version, abi };
}

/** Whether the report has a use as equal on all these rungs. */
function isDone([name, body]) {
  const found = report.packages[name]?.[node.line];
  return found?.use === digest(body) && rungs.every((rung) => found.rungs[rung] && !found.rungs[rung].difference);
}

/** Tells one use from what it was before. */
function digest(body) {
  return createHash('sha256').update(body).digest('hex').slice(0, 8);
}

const uses = USES.filter((use) => (!only || only.includes(use[0])) && !(options.resume && isDone(use)));
const { server, url } = await startServer();
mkdirSync(work, { recursive: true });
report.nodes[node.line] = {
  version: node.version,
  date: new Date().toISOString().slice(0, 10),
  kernel: release(),
  cores: cpus().length,
  jobs: Number(options.jobs),
  ...(options.note && { note: options.note }),
};
let done = 0;
let unexplained = 0;
let next = 0;

async function compare(use) {
  const [name, body, { differs = false } = {}] = use;
  const found = { use: digest(body), rungs: {}, plain: await plain(use, url) };
  for (const rung of found.plain.outcome.error === undefined ? rungs : []) {
    const calls = await sandboxed(use, found.plain.versions, rung, url);
    found.rungs[rung] = { ...calls, difference: difference(found.plain, calls, differs) };
  }
  return { name, found };
}

/** What was found now, with what stood there of rungs that were not tried this time. */
function merged(before, now) {
  if (before === undefined || before.use !== now.use || before.version !== now.version) return now;
  const rungs = { ...before.rungs, ...now.rungs };
  for (const [rung, { firstMs, installMs }] of Object.entries(before.rungs)) {
    // The time of an installation is worth keeping: a later run finds the set in the store.
    if (installMs !== undefined && rungs[rung].installMs === undefined)
      rungs[rung] = { ...rungs[rung], firstMs, installMs };
  }
  return { ...now, rungs };
}

/** Keeps what was found and says it. */
function take({ name, found }) {
  const now = merged(report.packages[name]?.[node.line], describe(found));
  report.packages[name] = { ...report.packages[name], [node.line]: now };
  writeReport();

  done += 1;
  const wrong = rungs.filter((rung) => now.rungs[rung]?.difference);
  const state = now.error ? 'plain Node fails' : wrong.length > 0 ? 'DIFFERS' : 'same';
  console.log(`${String(done).padStart(3)}/${uses.length} ${name}: ${state}`);
  if (now.error) console.log(`      ${now.error.split('\n')[0]}`);
  for (const rung of wrong) console.log(`      ${rung}: ${now.rungs[rung].difference}`);
  if (!Object.hasOwn(differences, name) && state !== 'same') unexplained += 1;
}

/** One line a package and Node, so that changes can be read. */
function writeReport() {
  const byName = ([a], [b]) => a.localeCompare(b, 'en');
  const lines = Object.entries(report.packages)
    .sort(byName)
    .map(([name, nodes]) => {
      const entries = Object.entries(nodes).map(([line, found]) => `   "${line}": ${JSON.stringify(found)}`);
      return `  ${JSON.stringify(name)}: {\n${entries.join(',\n')}\n  }`;
    });
  const text = `{\n "nodes": ${JSON.stringify(report.nodes)},\n "packages": {\n${lines.join(',\n')}\n }\n}\n`;
  writeFileSync(reportFile, text);
}

async function worker() {
  while (next < uses.length) take(await compare(uses[next++]));
}
await Promise.all(Array.from({ length: Number(options.jobs) }, worker));
server.close();
writeReport();
writeDocument();

console.log(`\n${done - unexplained} passed, ${unexplained} failed`);
process.exitCode = unexplained === 0 ? 0 : 1;
