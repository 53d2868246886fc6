// A server that makes attempts, in a process of its own: an attempt may well be the end of it. Says on stdout, a line of JSON
// each, what it begins and what came of it.
//
// Argument: `{ rung, ids, refused }` as JSON; without a rung, the controls. The environment has `NSE_HOST_SECRET`, and
// descriptor 50 is a file with that secret in it.

import { spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { newMarker, ownWorld, ROOT, surface } from '../helpers.mjs';
import { startRegistry } from '../registry.mjs';
import { ATTEMPTS } from './attempts.mjs';
import { BROKEN } from './source.mjs';
import { PRIVATE_PACKAGE, Real, StandIn, VICTIM_PACKAGE } from './stage.mjs';

const TOLD_LIMIT_CHARS = 300;
const TIERS = ['base', 'confined', 'isolated'];

const { rung, ids, refused } = JSON.parse(process.argv[2]);
const secret = process.env.NSE_HOST_SECRET;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

/** What attempts' `needs` are told. */
function facts() {
  const status = readFileSync('/proc/self/status', 'utf8');
  const limits = readFileSync('/proc/self/limits', 'utf8');
  const declared = readFileSync(join(ROOT, 'index.d.ts'), 'utf8');
  return {
    rung,
    refused,
    options: new Set(Array.from(declared.matchAll(/^ {2}(\w+)\?:/gm), ([, name]) => name)),
    root: process.getuid() === 0 && /CapEff:\s+0*[1-9a-f]/.test(status),
    arch: process.arch,
    exists: existsSync,
    writable: (path) => {
      try {
        accessSync(path, constants.W_OK);
        return true;
      } catch {
        return false;
      }
    },
    owns: (path) => statSync(path).uid === process.getuid(),
    packageFolder: ROOT,
    nodeFolder: join(process.execPath, '..'),
    openFiles: Number(/Max open files\s+(\d+)/.exec(limits)?.[1] ?? 0),
    noNewPrivileges: /NoNewPrivs:\s+1/.test(status),
  };
}

/** Why an attempt cannot be made on this machine, by this user. */
function obstacle(attempt, known) {
  if (attempt.arch && attempt.arch !== known.arch) return `it is for ${attempt.arch}`;
  return attempt.needs?.(known) || undefined;
}

/** Everything that a call gave, as one text. */
function textOf({ value, error, printed }) {
  const parts = [printed ?? ''];
  for (const one of [value, error?.message, error?.stack, error?.cause?.message, error?.cause?.stack]) {
    try {
      parts.push(typeof one === 'string' ? one : (JSON.stringify(one) ?? ''));
    } catch (failure) {
      parts.push(String(failure));
    }
  }
  return parts.join('\n');
}

function told({ value, error, sizes, killed }) {
  const what = error ? `${error.code ?? ''} ${error.message}` : textOf({ value });
  return `${what.trim().slice(0, TOLD_LIMIT_CHARS)}${killed ? ' (killed)' : ''} ${JSON.stringify(sizes ?? {})}`;
}

const reveals = ({ text }) => text.includes(secret) && 'the secret is told';

/** Errors after which nothing was tried at all. */
function notTried({ error, text }, attempt) {
  if (text.includes(BROKEN)) return text.slice(0, 500);
  if (!['INVALID_CONFIG', 'INVALID_SOURCE', 'INSTALL_FAILED', 'START_FAILED'].includes(error?.code)) return undefined;
  // An install script that may do nothing of what it tries may well fail.
  return attempt.script && error.code === 'INSTALL_FAILED' ? undefined : error.message;
}

async function perform(stage, attempt) {
  const { patienceMs } = stage;
  stage.reset();
  stage.wrong = undefined;
  stage.look();
  for (const victim of attempt.uses ?? []) await stage.invite(victim);
  const world = stage.world(newMarker());
  const outcome = await stage.make(attempt, world);
  outcome.text = textOf(outcome);
  if (stage.real) stage.patienceMs = attempt.patienceMs ?? patienceMs;
  try {
    const broken = notTried(outcome, attempt);
    const escaped = (await (attempt.escaped ?? reveals)(outcome, stage, world)) || (await stage.settleAll());
    return { broken, escaped: escaped || undefined, told: told(outcome) };
  } finally {
    stage.patienceMs = patienceMs;
    await stage.settleAll();
    await attempt.undo?.(stage, world, outcome);
    await outcome.tidy();
  }
}

/** The attempts that can be made here, one after the other; says of the others why not. */
function* possible(attempts) {
  const known = facts();
  for (const attempt of attempts) {
    const why = obstacle(attempt, known);
    if (why) say({ id: attempt.id, obstacle: why });
    else yield attempt;
  }
}

async function makeControls(stage, attempts) {
  for (const attempt of possible(attempts)) {
    const { id } = attempt;
    say({ begin: id });
    const began = performance.now();
    let outcome;
    const watched = {
      ...attempt,
      undo: async (...all) => {
        [, , outcome] = all;
        await attempt.undo?.(...all);
      },
    };
    const { escaped, told: what } = await perform(stage, watched);
    const lacking = escaped ? undefined : attempt.lacking?.(outcome) || lacksCall(outcome);
    say({
      id,
      works: Boolean(escaped),
      escaped,
      obstacle: lacking,
      told: what,
      ms: Math.round(performance.now() - began),
    });
  }
}

/** ENOSYS is the answer of a kernel that was built without the call. */
function lacksCall({ value }) {
  const results = Array.isArray(value) ? value.flatMap((one) => one?.gave ?? one) : [];
  return results.includes(-38) ? 'the kernel was built without it' : undefined;
}

/** Whether the report promises that the attempt fails. */
function promised({ from, layer }, { tier, layers = [] }) {
  const named = layers.filter(({ name }) => [layer].flat().includes(name));
  if (named.length > 0) return named.some(({ inForce }) => inForce);
  return TIERS.indexOf(tier) >= TIERS.indexOf(from);
}

async function makeAttempts(stage, attempts, report) {
  for (const attempt of possible(attempts)) {
    const { id } = attempt;
    if (!promised(attempt, report)) {
      say({ id, unpromised: true });
      continue;
    }
    say({ begin: id });
    const began = performance.now();
    const { escaped, broken, told: what } = await perform(stage, attempt);
    const noticed = await stage.after(attempt);
    say({ id, escaped: escaped ?? noticed, broken, told: what, ms: Math.round(performance.now() - began) });
  }
}

async function main() {
  const { root } = ownWorld();
  // Trees are closed for writing, to their owner too.
  process.prependListener('exit', () => spawnSync('chmod', ['-R', 'u+rwX', root]));
  const attempts = ATTEMPTS.filter(({ id }) => !ids || ids.includes(id));
  if (!rung) {
    const stage = new StandIn(root, secret);
    await stage.open();
    try {
      await makeControls(stage, attempts);
    } finally {
      await stage.close();
    }
    return;
  }
  const registry = await startRegistry({
    [VICTIM_PACKAGE]: { '1.0.0': { 'index.js': 'module.exports = { answer: 42 };' } },
    [PRIVATE_PACKAGE]: { '1.0.0': { 'index.js': `module.exports = '${secret}';` } },
  });
  process.env.npm_config_registry = registry.url;
  const report = await surface().isolationReport();
  say({ report });
  const stage = new Real(root, secret, { rung, options: { isolation: { require: report.tier } }, registry });
  await stage.open();
  try {
    await makeAttempts(stage, attempts, report);
  } finally {
    await stage.close();
    await registry.close();
  }
}

await main();
