// What a hostile tool may try. Every attempt must succeed outside, or it shows nothing, and must fail inside, from the tier
// on that promises it: on every rung, as this user and as one without privileges, and where the kernel's help is refused.
//
// Variables: NSE_TEST_TIER, the tier that this machine must offer, so that a run that offers less fails; NSE_TEST_FULL, all
// rungs, and refusals. A plain run has the rung that calls get by default, as both users.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ATTEMPTS } from './escapes/attempts.mjs';
import { writeRefusing } from './escapes/refusal.mjs';
import { INHERITED_FD, newSecret } from './escapes/stage.mjs';
import { LINUX, SURFACE } from './helpers.mjs';

const SERVER = fileURLToPath(new URL('./escapes/server.mjs', import.meta.url));
const TIERS = ['base', 'confined', 'isolated'];
/** A user that nobody else is. */
const UNPRIVILEGED = 61_234;
/** How often a server that an attempt ended is started again. */
const MAX_RESTARTS = 8;
const SERVER_LIMIT_MS = 900_000;
/** How often an attempt that fails outside is tried there. */
const CONTROL_ROUNDS = 3;

const FORKS = [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
const RUNGS = [...(FORKS ? ['zygote'] : []), 'standby', 'spawn'];
const FULL = Boolean(process.env.NSE_TEST_FULL);
const ROOT_USER = process.getuid?.() === 0;

/** Who makes the attempts, and what is refused to the server. `is` says of a report whether it is that of such a server. */
const VARIANTS = [
  { name: 'as this user' },
  { name: 'without privileges', user: UNPRIVILEGED },
  { name: 'with namespaces refused', refused: 'namespaces', most: 'confined' },
  { name: 'with Landlock refused', refused: 'landlock', most: 'base' },
  { name: 'without privileges, with Landlock refused', user: UNPRIVILEGED, refused: 'landlock', most: 'base' },
];
/** The fastest alone in a plain run: it is what calls get by default. */
const TRIED_RUNGS = FULL ? RUNGS : RUNGS.slice(0, 1);

let world;

before(() => {
  world = mkdtempSync(join(tmpdir(), 'nse-escapes-'));
  chmodSync(world, 0o755);
});
after(() => rmSync(world, { recursive: true, force: true }));

/** A folder for temporary files that belongs to the variant's user. */
function folderOf({ name, user }) {
  const folder = join(world, name.replaceAll(/\W+/g, '-'));
  mkdirSync(folder, { recursive: true });
  if (user !== undefined) chownSync(folder, user, user);
  return folder;
}

/** Runs a server; calls `hear` with each thing it says. Resolves with how it ended. */
async function runServer(variant, job, hear) {
  const folder = folderOf(variant);
  const secret = newSecret();
  const secretFile = join(folder, 'inherited');
  writeFileSync(secretFile, secret, { mode: 0o600 });
  if (variant.user !== undefined) chownSync(secretFile, variant.user, variant.user);
  const env = { ...process.env, TMPDIR: folder, HOME: folder, NSE_HOST_SECRET: secret };
  const command = [process.execPath, '--inspect-port=0', SERVER, JSON.stringify(job)];
  let program = command;
  if (variant.refused) {
    program = [join(folder, 'refusing')];
    writeRefusing(program[0], variant.refused, command, env);
  }
  const inherited = openSync(secretFile, 'r');
  const stdio = ['ignore', 'pipe', 'pipe'];
  stdio[INHERITED_FD] = inherited;
  const child = spawn(program[0], program.slice(1), {
    env,
    stdio: Array.from(stdio, (one) => one ?? 'ignore'),
    ...(variant.user !== undefined && { uid: variant.user, gid: variant.user }),
  });
  closeSync(inherited);
  const limit = setTimeout(() => child.kill('SIGKILL'), SERVER_LIMIT_MS);
  let err = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    err = (err + text).slice(-4000);
  });
  const ended = new Promise((done, fail) =>
    child.on('error', fail).on('close', (code, signal) => done({ code, signal, err }))
  );
  try {
    for await (const line of createInterface({ input: child.stdout })) hear(JSON.parse(line));
    return await ended;
  } finally {
    clearTimeout(limit);
    child.kill('SIGKILL');
    rmSync(secretFile, { force: true });
  }
}

/** Runs a server over attempts; one that ends in the middle is an escape of the attempt that it was at. */
async function collect(variant, job) {
  const results = new Map();
  let report;
  let ids = job.ids;
  for (let starts = 0; ; starts++) {
    let at;
    const { code, signal, err } = await runServer(variant, { ...job, ids }, (said) => {
      if (said.report) report = said.report;
      else if (said.begin) at = said.begin;
      else results.set(said.id, said);
    });
    if (code === 0) return { report, results };
    assert.ok(at && starts < MAX_RESTARTS, `the server ended with ${signal ?? code}: ${err}`);
    if (!results.has(at))
      results.set(at, { id: at, escaped: `the server died of ${signal ?? code}: ${err.slice(-500)}` });
    ids = ids.filter((id) => !results.has(id));
  }
}

/** Why a variant cannot be had here. */
function missing({ user, refused }) {
  if (refused && !FULL) return 'of a full run (npm run test:full, NSE_TEST_FULL=1)';
  if (refused && !['x64', 'arm64'].includes(process.arch)) return `no filter is written for ${process.arch}`;
  if (user === undefined) return undefined;
  if (!ROOT_USER) return 'the tests run without privileges anyway';
  const { status } = spawnSync(process.execPath, ['--check', SURFACE], { uid: user, gid: user, env: {} });
  return status === 0 ? undefined : `user ${user} may not read Node or this package`;
}

test('the attempts are whole', () => {
  assert.ok(ATTEMPTS.length >= 60, `${ATTEMPTS.length} attempts`);
  assert.equal(new Set(ATTEMPTS.map(({ id }) => id)).size, ATTEMPTS.length, 'each has a name of its own');
  for (const { id, what, from, layer, attempt, script, module } of ATTEMPTS) {
    assert.ok(what && layer && TIERS.includes(from), id);
    assert.equal([attempt, script, module].filter(Boolean).length, 1, id);
  }
});

for (const variant of VARIANTS) {
  const why = LINUX ? missing(variant) : 'the attempts are for Linux';
  test(`escapes ${variant.name}`, { skip: why ?? false }, async (t) => {
    const tried = new Set();
    for (const rung of TRIED_RUNGS) {
      await t.test(`on the rung ${rung}`, (t2) => attemptAll(t2, variant, rung, tried));
    }
    // Once, every attempt that there is is shown to be worth something; in a full run also those that were made, by their user.
    const isPlain = variant.user === undefined && !variant.refused;
    const ids = isPlain ? ATTEMPTS.map(({ id }) => id) : FULL ? [...tried] : [];
    if (ids.length > 0) await t.test('outside, every attempt succeeds', (t2) => controlAll(t2, variant, ids));
  });
}

async function attemptAll(t, variant, rung, allTried) {
  // Install scripts run before there is a worker: one rung is enough for them.
  const attempts = FULL || rung === TRIED_RUNGS[0] ? ATTEMPTS : ATTEMPTS.filter(({ script }) => !script);
  const ids = attempts.map(({ id }) => id);
  const { report, results } = await collect(variant, { rung, ids, refused: variant.refused });
  assert.ok(TIERS.includes(report?.tier), `the report names no tier: ${JSON.stringify(report)}`);
  if (variant.most) {
    assert.ok(TIERS.indexOf(report.tier) <= TIERS.indexOf(variant.most), `${report.tier} is reported ${variant.name}`);
  } else if (process.env.NSE_TEST_TIER) {
    assert.ok(TIERS.indexOf(report.tier) >= TIERS.indexOf(process.env.NSE_TEST_TIER), `only ${report.tier} is offered`);
  }
  for (const { name, inForce, why } of report.layers ?? []) assert.ok(inForce || why, `why is ${name} not in force?`);
  const all = [...results.values()];
  assert.equal(all.length, ids.length, 'each has an outcome');
  const tried = all.filter(({ unpromised, obstacle }) => !unpromised && !obstacle);
  const unpromised = all.filter((one) => one.unpromised).length;
  t.diagnostic(
    `${variant.name}, rung ${rung}, tier ${report.tier}: ${tried.length} attempts made, ${unpromised} that it does not promise to stop, ${all.length - tried.length - unpromised} that cannot be made here`
  );
  for (const { id } of tried) allTried.add(id);
  for (const family of new Set(tried.map(({ id }) => id.split('/')[0]))) {
    await t.test(family, () => {
      const bad = tried
        .filter(({ id, escaped, broken }) => id.startsWith(`${family}/`) && (escaped || broken))
        .map(({ id, escaped, broken, told }) => `${id}: ${escaped ?? `nothing was tried: ${broken}`} [${told}]`);
      assert.deepEqual(bad, []);
    });
  }
}

async function controlAll(t, variant, ids) {
  let failed = [];
  let wanted = ids;
  // Some are races, and a busy machine may decide one the wrong way: an attempt is worth something if it succeeds at times.
  for (let round = 0; round < CONTROL_ROUNDS && wanted.length > 0; round++) {
    const { results } = await collect(variant, { ids: wanted, refused: variant.refused });
    const all = [...results.values()];
    for (const { id, obstacle } of all) if (obstacle) t.diagnostic(`${id} cannot be made here: ${obstacle}`);
    failed = all.filter(({ works, obstacle, escaped }) => !works && !escaped && !obstacle);
    wanted = failed.map(({ id }) => id);
  }
  assert.deepEqual(
    failed.map(({ id, told }) => `${id}: ${told}`),
    []
  );
}
