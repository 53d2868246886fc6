// `run --watch`: again whenever a file has other contents, until a signal ends it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, renameSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { cli, MAIN } from './cli.mjs';
import { below, isAlive, LINUX, ownWorld, until } from './helpers.mjs';

const LIMIT = { skip: !LINUX && 'looks into /proc', timeout: 180_000 };
const world = ownWorld();

function watched(args) {
  const child = spawn(process.execPath, [MAIN, 'run', ...args, '--watch'], {
    cwd: world.root,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  const texts = { out: '', err: '' };
  for (const [name, stream] of [
    ['out', child.stdout],
    ['err', child.stderr],
  ]) {
    stream.setEncoding('utf8').on('data', (text) => {
      texts[name] += text;
    });
  }
  const ended = new Promise((done) => child.on('close', (code, signal) => done({ code, signal })));
  const says = (stream, text) => until(() => texts[stream].includes(text), 60_000, `${text}\n${texts.err}`);
  return { child, texts, ended, says };
}

test('it runs again when a file is another, and ends by SIGINT', LIMIT, async () => {
  const folder = join(world.root, 'watch');
  mkdirSync(folder);
  const [file, args] = [join(folder, 'tool.js'), join(folder, 'args.json')];
  writeFileSync(file, '({ a }) => "first " + a');
  writeFileSync(args, '{"a":1}');
  const { child, texts, ended, says } = watched([file, '--args', `@${args}`]);
  await says('out', '"first 1"');
  await says('err', 'Waiting for changes');
  // As an editor saves: another file takes the place.
  writeFileSync(`${args}.new`, '{"a":2}');
  renameSync(`${args}.new`, args);
  await says('out', '"first 2"');
  // The same contents, and a file that is nobody's, are no change.
  const before = texts.out;
  utimesSync(file, new Date(), new Date());
  writeFileSync(join(folder, 'other.js'), 'x');
  // What cannot run is told, and waited for.
  writeFileSync(args, '{"a":');
  await says('err', '--args must be JSON');
  writeFileSync(args, '{"a":3}');
  await says('out', '"first 3"');
  assert.equal(texts.out.split('first 2').length, before.split('first 2').length);
  // A call that is under way gives way.
  writeFileSync(file, '() => { console.log("hangs now"); return new Promise((done) => setTimeout(done, 25_000)); }');
  await says('err', 'hangs now');
  writeFileSync(file, '() => "last"');
  await says('out', '"last"');
  const processes = below(child.pid);
  child.kill('SIGINT');
  assert.deepEqual(await ended, { code: 130, signal: null }, texts.err);
  assert.match(texts.err, /error: interrupted by SIGINT/);
  await until(() => !processes.some(isAlive), 10_000, 'its processes are gone');
});

test('stdin cannot be watched', async () => {
  for (const args of [
    ['run', '-', '--watch'],
    ['run', 'a.js', '--args', '-', '--watch'],
  ]) {
    const { code, err } = await cli(args);
    assert.equal(code, 2);
    assert.match(err, /--watch looks at files/);
  }
});

test('--function takes an export of a module, and says which there are', LIMIT, async () => {
  const module = join(world.root, 'functions.mjs');
  writeFileSync(module, 'export const twice = (n) => n * 2; export default (n) => n + 1; export const none = 1;');
  const file = join(world.root, 'calls.js');
  writeFileSync(file, 'async (a, { host }) => [await host.twice(4), await host.math.next(4)]');
  const given = ['--function', `twice=${module}#twice`, '--function', `math.next=${module}`];
  const { code, out, err } = await cli(['run', file, ...given]);
  assert.deepEqual([code, JSON.parse(out || 'null')], [0, [8, 5]], err);
  const wrong = await cli(['run', file, '--function', `twice=${module}#none`]);
  assert.equal(wrong.code, 1);
  assert.match(wrong.err, /exports no function none; it has default, twice|it has twice, default/);
  assert.equal((await cli(['run', file, '--function', 'twice'])).code, 2);
});
