// What the kernel counts by user, container or machine can be taken by others. A call that misses it then has broken no limit of its own,
// and is told so.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chownSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { host, LINUX, ownWorld, SURFACE } from './helpers.mjs';

/** A user that nobody else is. */
const USER = 61_237;
const ROOT_USER = process.getuid?.() === 0;
const changeTo = ['setpriv', '--reuid', `${USER}`, '--regid', `${USER}`, '--clear-groups'];

let world;
before(() => {
  world = ownWorld();
});

/** A host that is no root, and may have so many processes and threads, its functions' included. */
function limited(processes, body) {
  const home = join(world.root, `home-${processes}`);
  mkdirSync(home);
  if (ROOT_USER) chownSync(home, USER, USER);
  const by = [...(ROOT_USER ? changeTo : []), 'prlimit', `--nproc=${processes}:${processes}`];
  return host(body, { by, env: { HOME: home }, limitMs: 90_000 });
}

function missing() {
  if (!LINUX) return 'Linux only';
  if (!ROOT_USER) return 'other processes of this user count, and nobody knows how many there are';
  const { status } = spawnSync(changeTo[0], [...changeTo.slice(1), process.execPath, '--check', SURFACE]);
  return status === 0 ? undefined : `user ${USER} may not read Node or this package`;
}

/** Takes all processes of the user while a call runs, then lets it go on. */
const HOG = `
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
const hogs = [];
const take = async () => {
  for (let refused = 0; refused < 20 && hogs.length < 1000; ) {
    const one = spawn('/bin/sleep', ['60'], { stdio: 'ignore' });
    const got = await new Promise((done) => one.on('spawn', () => done(true)).on('error', () => done(false)));
    if (got) hogs.push(one); else refused += 1;
  }
};
const server = createServer(async (_, response) => { await take(); response.end('on'); });
await new Promise((done) => server.listen(0, '127.0.0.1', done));
const url = 'http://127.0.0.1:' + server.address().port;
const tell = async (source) => {
  try { say(['resolved', await run(source, { url }, { sandbox: { timeout: 80_000 } })]); } catch ({ code, message }) { say([code, message]); }
  for (const one of hogs.splice(0)) one.kill('SIGKILL');
};
`;

test('a call whose neighbour has all processes of the user has not too many itself', {
  skip: missing() ?? false,
  timeout: 120_000,
}, async () => {
  const { said, err } = await limited(
    160,
    `${HOG}
await tell(async ({ url }) => { await fetch(url); require('child_process').execFileSync('/bin/true'); });
process.exit(0);`
  ).exited;
  assert.equal(said[0]?.[0], 'TOOL_ERROR', `${JSON.stringify(said)} ${err}`);
  assert.match(said[0][1], /EAGAIN[\s\S]*not this call/);
});

test('nor when it gets no thread', { skip: missing() ?? false, timeout: 120_000 }, async () => {
  const { said, err } = await limited(
    161,
    `${HOG}
await tell(async ({ url }) => { await fetch(url); const { Worker } = require('worker_threads');
  await new Promise((done, fail) => new Worker('0', { eval: true }).on('exit', done).on('error', fail)); });
process.exit(0);`
  ).exited;
  // Node itself says nothing of EAGAIN where it gets none: it is the function's own error all the same.
  assert.ok(['TOOL_ERROR', 'resolved'].includes(said[0]?.[0]), `${JSON.stringify(said)} ${err}`);
});
