// `doctor`: looks at everything that calls need on this machine, and tells it.

import { execFile } from 'node:child_process';
import { arch, platform, release } from 'node:os';
import { resolve } from 'node:path';
import { promisify } from 'node:util';
import { isolationReport, setLogger } from '../../index.js';
import { platformArchAbi } from '../../lib/platform.js';
import { judged, report } from '../doctor-report.mjs';
import { interrupted } from '../interrupt.mjs';
import { executorOptions, withExecutor } from '../session.mjs';
import { JSON_OUTPUT, oneOf, STORE_DIR } from '../usage.mjs';

const execute = promisify(execFile);

/** How long the registry may take to answer. */
const REGISTRY_LIMIT_MS = 5000;
/** How long npm may take to tell a setting. */
const NPM_LIMIT_MS = 20_000;
/** How long it may take until a call is served by the rung that is in use: a Node boots for it first. */
const RUNG_LIMIT_MS = 10_000;

const TRIAL = {
  description: 'shows that a call works',
  inputSchema: {},
  executeCode: '() => 1',
  dependencies: {},
  sandboxConfig: { provider: 'native', runtime: 'node22' },
};

export const command = {
  name: 'doctor',
  summary: 'Tells what works on this machine, what does not, and what would change that.',
  usage: ['doctor [--require <tier>] [--store-dir <folder>] [--json]'],
  options: {
    require: {
      type: 'string',
      value: '<tier>',
      text: 'the isolation that is needed: base, confined or isolated',
      check: oneOf('base', 'confined', 'isolated'),
    },
    ...STORE_DIR,
    ...JSON_OUTPUT,
  },
  notes: [
    'It makes a few calls of an empty function, and asks the registry of npm whether it answers.',
    'Exit code: 1 when a required tier (--require, or AGENTS_FUNCTION_TOOL_SANDBOX_ISOLATION) is not in force, or when no',
    'function can run at all; 2 for wrong usage; else 0.',
  ],
  run,
};

async function run(values, _positionals, terminal) {
  const warnings = [];
  const note = (_fields, message) => warnings.push({ message, ..._fields });
  setLogger({ level: 'warn', warn: note, error() {}, info() {}, debug() {} });
  const found = await withExecutor(executorOptions(values, resolve), async (session) => ({
    ...host(),
    ...(await looks(session)),
  }));
  const verdict = judged({ ...found, warnings }, values.require);
  if (values.json) terminal.json(verdict);
  else terminal.out(report(verdict, terminal.style));
  return verdict.ok ? 0 : 1;
}

function host() {
  return {
    node: { version: process.version, path: process.execPath },
    platform: { name: platformArchAbi(), system: `${platform()} ${release()}`, arch: arch() },
  };
}

async function looks(session) {
  const settings = await outcome(() => session.maintain({ task: 'settings' }));
  // Without an addon, or with bad settings, nothing else can be told.
  if (settings.problem) return { calls: { problem: settings.problem } };
  const calls = await outcome(() => trial(session.executor));
  const [isolation, store, npm] = await Promise.all([
    outcome(isolationReport),
    outcome(() => session.maintain({ task: 'trees' })),
    outcome(async () => withRegistry(await session.maintain({ task: 'npm' }))),
  ]);
  return { settings: settings.value, calls, rung: rungOf(session.executor), isolation, store, npm };
}

/** What came of it: `{ value }`, or `{ problem: { code, message } }`. */
async function outcome(act) {
  try {
    return { value: await act() };
  } catch ({ code, message }) {
    return { problem: { code, message } };
  }
}

/** Calls until one is served by the rung that is in use; what that one took, and the first. */
async function trial(executor) {
  const began = performance.now();
  const times = [];
  for (;;) {
    const callBegan = performance.now();
    await executor.executeFunctionTool('doctor', {}, TRIAL);
    times.push(performance.now() - callBegan);
    const { rung, counters } = executor.getMetrics();
    if ((rung && counters.workers[rung] > 0) || performance.now() - began > RUNG_LIMIT_MS) break;
  }
  return { firstMs: times[0], lastMs: times.at(-1) };
}

function rungOf(executor) {
  const { rung, rungsNotUsed, withoutLauncher, counters } = executor.getMetrics();
  return { inUse: rung, served: counters.workers, notUsed: rungsNotUsed, withoutLauncher };
}

async function withRegistry(npm) {
  const url = npm.registry ?? (npm.command && (await defaultRegistry(npm.command)));
  return { ...npm, registry: url && { url, ...(await reached(url)) } };
}

/** What npm itself says, where no setting that an installation sees names one. */
async function defaultRegistry([program, ...lead]) {
  try {
    const limits = { timeout: NPM_LIMIT_MS, signal: interrupted };
    const { stdout } = await execute(program, [...lead, 'config', 'get', 'registry'], limits);
    return stdout.trim() || undefined;
  } catch {
    return undefined;
  }
}

/** Any answer will do: who answers is there. */
async function reached(url) {
  const began = performance.now();
  try {
    const { status, body } = await fetch(url, { signal: AbortSignal.timeout(REGISTRY_LIMIT_MS), redirect: 'manual' });
    await body?.cancel();
    return { reachable: true, status, ms: performance.now() - began };
  } catch (error) {
    const why = error.name === 'TimeoutError' ? `no answer within ${REGISTRY_LIMIT_MS / 1000} s` : reason(error);
    return { reachable: false, problem: why };
  }
}

/** `fetch failed` says nothing; its cause does. */
function reason({ message, cause }) {
  return cause?.message || cause?.code || message;
}
