// The end in good order: cleanups with a deadline, `shutdown()`, and processes that get signals.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import {
  appears,
  below,
  gone,
  host,
  LINUX,
  newMarker,
  ownWorld,
  ROOT,
  rejection,
  surface,
  tool,
  until,
} from './helpers.mjs';

const LIMIT = { skip: !LINUX && 'looks into /proc', timeout: 60_000 };
/** A deadline that is not reached. */
const AMPLE_MS = 20_000;

let world;
before(() => {
  world = ownWorld();
  surface().registerProvider('folders', localFolders);
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** Runs until the marker is no process's any more; `body` runs after it has shown itself. */
const SHOWN = (body) => `async ({ marker }) => { process.title = marker; ${body} }`;
/** Goes on until it is told to end, by a file of its own folder. */
const STUBBORN = SHOWN(`process.on('SIGTERM', () => {}); setInterval(() => {}, 1000); await new Promise(() => {});`);
const SOON = SHOWN(`await new Promise((done) => setTimeout(done, 400)); return 'done';`);

test('of two cleanups the nearer deadline counts, and both wait for the end', LIMIT, async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  const marker = newMarker();
  const call = factory.executeFunctionTool('t', { marker }, tool(STUBBORN, { sandbox: { timeout: 30_000 } }));
  await appears(marker);
  const first = factory.cleanup();
  const [, , error] = await Promise.all([first, factory.cleanup({ deadlineMs: 200 }), rejection(call)]);
  assert.equal(error.code, 'CLEANED_UP');
  await gone(marker);
});

for (const [place, sandbox] of [
  ['this machine', {}],
  ['a provider', { provider: 'folders' }],
]) {
  describe(`cleanup with a deadline, on ${place}`, LIMIT, () => {
    const config = (code) => tool(code, { sandbox: { ...sandbox, timeout: 30_000, vcpus: 1 } });

    test('what was taken goes on, what waits too; what is new is refused; then the factory works on', async () => {
      const factory = new (surface().SandboxExecutorFactory)();
      const marker = newMarker();
      const calls = [1, 2].map(() => factory.executeFunctionTool('t', { marker }, config(SOON)));
      await appears(marker);
      const over = factory.cleanup({ deadlineMs: AMPLE_MS });
      const refused = await rejection(factory.executeFunctionTool('t', {}, config('() => 1')));
      assert.deepEqual([refused.code, refused.phase], ['SHUTTING_DOWN', 'validate']);
      assert.deepEqual(await Promise.all(calls), ['done', 'done']);
      await over;
      assert.equal(await factory.executeFunctionTool('t', {}, config('() => 2')), 2);
      await factory.cleanup();
    });

    test('what is left at the deadline is ended and rejected', async () => {
      const factory = new (surface().SandboxExecutorFactory)();
      const marker = newMarker();
      const ended = rejection(factory.executeFunctionTool('t', { marker }, config(STUBBORN)));
      await appears(marker);
      const waiting = rejection(factory.executeFunctionTool('t', { marker }, config(STUBBORN)));
      const began = performance.now();
      await factory.cleanup({ deadlineMs: 300 });
      const took = performance.now() - began;
      assert.ok(took >= 290 && took < 15_000, `${took} ms`);
      const first = await ended;
      assert.deepEqual([first.code, first.phase], ['CLEANED_UP', 'run']);
      assert.equal((await waiting).code, 'CLEANED_UP');
      await gone(marker);
    });
  });
}

test('executors by themselves have it too; a session’s factory takes it on', LIMIT, async () => {
  const { NativeSandboxExecutor, SandboxExecutorFactory: Factory } = surface();
  const native = new NativeSandboxExecutor();
  const marker = newMarker();
  const ended = rejection(native.executeFunctionTool('t', { marker }, tool(STUBBORN)));
  await appears(marker);
  const over = native.cleanup({ deadlineMs: 200 });
  assert.equal((await rejection(native.executeFunctionTool('t', {}, tool('() => 1')))).code, 'SHUTTING_DOWN');
  assert.equal((await rejection(native.warm([{}]))).code, 'SHUTTING_DOWN');
  await over;
  assert.equal((await ended).code, 'CLEANED_UP');
  assert.equal(await native.executeFunctionTool('t', {}, tool('() => 1')), 1);
  await native.cleanup();
  const inSession = rejection(Factory.getForSession('s').executeFunctionTool('t', { marker }, tool(STUBBORN)));
  await appears(marker);
  await Factory.cleanupSession('s', { deadlineMs: 100 });
  assert.equal((await inSession).code, 'CLEANED_UP');
  await gone(marker);
});

test('a deadline is a number from 0 on', async () => {
  const { SandboxExecutorFactory: Factory, gracefulShutdown, shutdown } = surface();
  for (const deadlineMs of [-1, Number.NaN, Infinity, '5', {}]) {
    assert.equal((await rejection(new Factory().cleanup({ deadlineMs }))).code, 'INVALID_CONFIG');
    assert.equal((await rejection(shutdown({ deadlineMs }))).code, 'INVALID_CONFIG');
    assert.throws(() => gracefulShutdown({ deadlineMs }), { code: 'INVALID_CONFIG' });
  }
  assert.throws(() => gracefulShutdown({ signals: ['term'] }), { code: 'INVALID_CONFIG' });
  assert.throws(() => gracefulShutdown({ before: 1 }), { code: 'INVALID_CONFIG' });
  assert.throws(() => gracefulShutdown(5), { code: 'INVALID_CONFIG' });
  const listeners = process.listenerCount('SIGTERM');
  assert.throws(() => gracefulShutdown({ signals: ['SIGTERM', 'SIGKILL'] }), { code: 'INVALID_CONFIG' });
  assert.equal(process.listenerCount('SIGTERM'), listeners);
  const undo = gracefulShutdown({ signals: ['SIGTERM', 'SIGTERM'] });
  assert.equal(process.listenerCount('SIGTERM'), listeners + 1);
  undo();
  assert.equal(process.listenerCount('SIGTERM'), listeners);
  const count = process.listenerCount('SIGTERM');
  gracefulShutdown()();
  assert.equal(process.listenerCount('SIGTERM'), count);
  assert.equal(await new Factory().executeFunctionTool('t', {}, tool('() => 1')), 1, 'it was taken back');
});

test('a deadline that cannot be is shown, with what it may be', async () => {
  const { SandboxExecutorFactory: Factory, gracefulShutdown, shutdown } = surface();
  for (const [deadlineMs, text] of [
    [-1, '-1'],
    [-0.5, '-0.5'],
    [Number.NaN, 'NaN'],
    [Infinity, 'Infinity'],
    ['5', '"5"'],
    [5n, '5n'],
    [{}, 'an object'],
    [[], 'an array'],
  ]) {
    const message = new RegExp(`deadlineMs must be a number of milliseconds from 0 on, got ${text}$`);
    assert.match((await rejection(new Factory().cleanup({ deadlineMs }))).message, message);
    assert.match((await rejection(shutdown({ deadlineMs }))).message, message);
    assert.throws(() => gracefulShutdown({ deadlineMs }), { message });
  }
  assert.throws(() => gracefulShutdown({ signals: ['SIGTERM', 'term'] }), { message: /signals .*, got "term"$/ });
  assert.throws(() => gracefulShutdown({ signals: 'SIGTERM' }), { message: /signals .*, got "SIGTERM"$/ });
});

test('calls are refused until the last of several graceful shutdowns is taken back', LIMIT, async () => {
  const { SandboxExecutorFactory: Factory, gracefulShutdown, shutdown } = surface();
  const call = () => new Factory().executeFunctionTool('t', {}, tool('() => 1'));
  const [first, second] = [gracefulShutdown(), gracefulShutdown({ signals: ['SIGHUP'] })];
  await shutdown({ deadlineMs: 0 });
  first();
  // Once more is no other one.
  first();
  assert.equal((await rejection(call())).code, 'SHUTTING_DOWN');
  second();
  assert.equal(await call(), 1);
});

test('shutdown() is of the process: all factories, all threads, nothing left', LIMIT, async () => {
  const { said, err, code } = await host(
    `import { below } from ${JSON.stringify(new URL('./helpers.mjs', import.meta.url).href)};
     import { Worker } from 'node:worker_threads';
     const surfacePath = ${JSON.stringify(join(ROOT, 'index.js'))};
     const call = run('() => new Promise((done) => setTimeout(done, 400, "whole"))');
     await run('() => 1');
     const over = rest.shutdown({ deadlineMs: ${AMPLE_MS} });
     const refused = (promise) => promise.then(() => 'taken', ({ code }) => code);
     const codes = [await refused(run('() => 1')), await refused(new Factory().executeFunctionTool('t', {}, tool('() => 1'))),
       await refused(factory.warm([{}]))];
     const worker = new Worker(\`const { SandboxExecutorFactory: F } = require(process.argv[2]);
       F.getInstance().executeFunctionTool('t', {}, { description: '', inputSchema: {}, dependencies: {}, executeCode: '() => 1',
         sandboxConfig: { provider: 'native', runtime: 'node22' } })
         .then(() => 'taken', ({ code }) => code).then((text) => require('worker_threads').parentPort.postMessage(text))\`,
       { eval: true, argv: [surfacePath] });
     codes.push(await new Promise((done) => worker.on('message', done)));
     say([codes, await call]);
     await over;
     await rest.shutdown({ deadlineMs: 0 });
     say(below(process.pid).length);`
  ).exited;
  assert.equal(code, 0, err);
  const refused = 'SHUTTING_DOWN';
  assert.deepEqual(said, [[[refused, refused, refused, refused], 'whole'], 0]);
});

/** Starts a process that says `up`, sends it the signals, and tells how it ended. */
async function signalled(body, signals, { whenSaid = 1 } = {}) {
  const { child, exited } = host(`
    const marker = ${JSON.stringify(signalled.marker)};
    ${body}`);
  let lines = 0;
  child.stdout.on('data', (text) => {
    lines += text.split('\n').length - 1;
  });
  await until(() => lines >= whenSaid, 20_000, 'the process is up');
  const family = below(child.pid);
  for (const signal of signals) child.kill(signal);
  const result = await exited;
  await gone(signalled.marker);
  return { ...result, family };
}

describe('signals', LIMIT, () => {
  before(() => {
    signalled.marker = newMarker();
  });

  const RUNNING = (code, extra = '') => `
    const call = run(${JSON.stringify(code)}, { marker }, { sandbox: { timeout: 30000 } }, { onLogs() { say('up'); } });
    call.then((value) => say(['value', value]), ({ code }) => say(['code', code]));
    ${extra}`;
  const FINISHES = `async ({ marker }) => { process.title = marker; console.log('up'); await new Promise((done) => setTimeout(done, 500)); return 'whole'; }`;
  const NEVER = `async ({ marker }) => { process.title = marker; process.on('SIGTERM', () => {}); console.log('up'); setInterval(() => {}, 999); await new Promise(() => {}); }`;

  for (const signal of ['SIGTERM', 'SIGINT']) {
    test(`${signal}: calls finish, then the process ends by it`, async () => {
      const {
        said,
        signal: by,
        code,
        err,
      } = await signalled(RUNNING(FINISHES, `rest.gracefulShutdown({ deadlineMs: ${AMPLE_MS} });`), [signal]);
      assert.deepEqual([by, code], [signal, null], err);
      assert.deepEqual(said, ['up', ['value', 'whole']]);
    });
  }

  test('calls that do not finish are ended at the deadline', async () => {
    const { said, signal } = await signalled(RUNNING(NEVER, 'rest.gracefulShutdown({ deadlineMs: 300 });'), [
      'SIGTERM',
    ]);
    assert.equal(signal, 'SIGTERM');
    assert.deepEqual(said, ['up', ['code', 'CLEANED_UP']]);
  });

  test('a second signal ends it at once', async () => {
    const { signal, said } = await signalled(
      RUNNING(
        NEVER,
        `rest.gracefulShutdown({ deadlineMs: ${AMPLE_MS}, before: () => process.kill(process.pid, 'SIGTERM') });`
      ),
      ['SIGTERM']
    );
    assert.equal(signal, 'SIGTERM');
    assert.deepEqual(said, ['up']);
  });

  test('what comes before may still make calls; a host that listens ends itself', async () => {
    const { code, said, err } = await signalled(
      `process.on('SIGTERM', () => {});
       const keep = setInterval(() => {}, 1000);
       rest.gracefulShutdown({ before: async (signal) => { say([signal, await run('() => 5')]); clearInterval(keep); } });
       say('up');`,
      ['SIGTERM']
    );
    assert.equal(code, 0, err);
    assert.deepEqual(said, ['up', ['SIGTERM', 5]]);
  });

  test('without the helper a signal ends the process, and what runs', async () => {
    const { signal, said, family } = await signalled(RUNNING(NEVER), ['SIGTERM']);
    assert.equal(signal, 'SIGTERM');
    assert.deepEqual(said, ['up']);
    assert.ok(family.length > 0);
  });

  const unshare = spawnSync('unshare', ['--pid', '--fork', '--kill-child', 'true']).status === 0;
  test('the first process of a container ends, too', { skip: !unshare && 'needs PID namespaces' }, async () => {
    const script = `const { gracefulShutdown } = require(${JSON.stringify(join(ROOT, 'index.js'))});
      gracefulShutdown(); setInterval(() => {}, 1000); console.log(process.pid);`;
    const child = spawn('unshare', ['--pid', '--fork', '--kill-child', process.execPath, '-e', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = new Promise((done) => child.on('exit', (code, signal) => done([code, signal])));
    const [said] = await once(child.stdout, 'data');
    assert.equal(String(said), '1\n');
    process.kill(below(child.pid)[0], 'SIGTERM');
    assert.deepEqual(await ended, [128 + 15, null]);
  });

  test('the example: a server that is told to end answers what it has taken', async () => {
    const child = spawn(process.execPath, [join(ROOT, 'examples/graceful-shutdown.mjs')], {
      env: { ...process.env, PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let out = '';
    child.stdout.setEncoding('utf8').on('data', (text) => {
      out += text;
    });
    const ended = new Promise((done) => child.on('exit', (code, signal) => done({ code, signal })));
    const port = await until(() => /port (\d+)/.exec(out)?.[1], 10_000, 'the server listens');
    const warm = await fetch(`http://127.0.0.1:${port}/?ms=1`);
    assert.equal(await warm.text(), '{"waitedMs":1}\n');
    const slow = fetch(`http://127.0.0.1:${port}/?ms=700`);
    await until(() => out.includes('700'), 10_000, 'the request is taken');
    const family = below(child.pid);
    assert.ok(family.length > 0);
    child.kill('SIGTERM');
    assert.equal(await (await slow).text(), '{"waitedMs":700}\n');
    assert.deepEqual(await ended, { code: null, signal: 'SIGTERM' });
    await assert.rejects(fetch(`http://127.0.0.1:${port}/`));
    await until(() => family.every((pid) => !below(process.pid).includes(pid)), 10_000, 'its processes are gone');
  });
});

test('nothing is left in the temp folder', LIMIT, async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  const left = () => readdirSync(world.tmp).filter((name) => name.startsWith('local-folder-'));
  await until(() => left().length === 0, 10_000, 'the folders of sandboxes are gone');
});
