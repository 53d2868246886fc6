// Commands that are interrupted: they say so, end with the exit code of the signal, and leave no process and no folder.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { MAIN } from './cli.mjs';
import { below, filesBelow, isAlive, LINUX, ownWorld, until } from './helpers.mjs';

const LIMIT = { skip: !LINUX && 'looks into /proc', timeout: 120_000 };
const world = ownWorld();

/** A command in a process group of its own, as a terminal starts it; `below` are processes that it had at some time. */
function started(args, env = {}) {
  const child = spawn(process.execPath, [MAIN, ...args], {
    cwd: world.root,
    detached: true,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env },
  });
  const texts = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (text) => {
    texts.out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    texts.err += text;
  });
  const ended = new Promise((done) => child.on('close', (code, signal) => done({ code, signal, ...texts })));
  return { child, texts, ended };
}

/** Sends the signal once `isUnderWay`, to the command or to its whole group, and looks at what is left. */
async function interrupted(args, { signal, toAll, env }, isUnderWay) {
  const { child, texts, ended } = started(args, env);
  await until(() => isUnderWay(texts, child), 30_000, `${args.join(' ')} is under way`);
  const processes = below(child.pid);
  process.kill(toAll ? -child.pid : child.pid, signal);
  const { code, signal: by, out, err } = await ended;
  assert.deepEqual([code, by, out], [signal === 'SIGINT' ? 130 : 143, null, ''], err);
  assert.match(err, new RegExp(`^error: interrupted by ${signal}\\n$`, 'm'));
  assert.doesNotMatch(err, /^ {4}at /m);
  assert.doesNotMatch(err, /CLEANED_UP|SHUTTING_DOWN|ended \(/);
  await until(() => !processes.some(isAlive), 10_000, 'its processes are gone');
  return processes;
}

/** What a host has for what is under way; its own folder stays until the next one sweeps. */
function underWay() {
  return filesBelow(world.tmp).filter((path) => /[\\/](runs|staging|trash)[\\/]/.test(path));
}

test('run: while it waits for its argument', LIMIT, async () => {
  const file = join(world.root, 'one.js');
  writeFileSync(file, '() => 1');
  const { child, ended } = started(['run', file, '--args', '-']);
  // More than a pipe holds: it is written as soon as it is read.
  await new Promise((written) => child.stdin.write(' '.repeat(2 ** 20), written));
  child.kill('SIGINT');
  const { code, err } = await ended;
  assert.deepEqual([code, err], [130, 'error: interrupted by SIGINT\n']);
});

const WAYS = [
  { signal: 'SIGINT', toAll: true },
  { signal: 'SIGINT', toAll: false },
  { signal: 'SIGTERM', toAll: false },
];

for (const way of WAYS) {
  const name = `${way.signal} to ${way.toAll ? 'its group' : 'it alone'}`;

  test(`run: ${name}`, LIMIT, async () => {
    const file = join(world.root, 'stubborn.js');
    writeFileSync(
      file,
      `() => { process.on('SIGTERM', () => {});
         require('node:child_process').spawn('sleep', ['60'], { detached: true });
         console.log('up'); return new Promise((done) => setTimeout(done, 60_000)); }`
    );
    const processes = await interrupted(['run', file], way, ({ err }) => /^up$/m.test(err));
    assert.ok(processes.length > 1);
    assert.deepEqual(underWay(), []);
  });

  test(`store warm: ${name}`, LIMIT, async (t) => {
    // A registry that takes connections, and says nothing.
    const sockets = [];
    const silent = createServer((socket) => sockets.push(socket.on('error', () => {}).resume()));
    let isAsked = false;
    silent.on('connection', () => {
      isAsked = true;
    });
    await new Promise((listening) => silent.listen(0, '127.0.0.1', listening));
    t.after(async () => {
      for (const socket of sockets) socket.destroy();
      await new Promise((closed) => silent.close(closed));
    });
    const sets = join(world.root, 'sets.json');
    writeFileSync(sets, '{"alpha":"1"}');
    const env = { npm_config_registry: `http://127.0.0.1:${silent.address().port}/` };
    await interrupted(['store', 'warm', sets], { ...way, env }, () => isAsked);
    assert.deepEqual(underWay(), []);
  });

  test(`bench: ${name}`, LIMIT, async () => {
    const before = readdirSync(world.tmp);
    // Both sides are there, and each has some process.
    const isMeasuring = (_, child) => below(child.pid).length > 4;
    await interrupted(['bench', '--samples', '100000'], way, isMeasuring);
    assert.deepEqual(readdirSync(world.tmp), before);
  });
}
