// Cancellation, wherever the call is.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { appears, gone, LINUX, newMarker, ownWorld, rejection, run, surface, until } from './helpers.mjs';

/** A registry that takes every question and answers none. */
let silent;

before(async () => {
  ownWorld();
  silent = createServer(() => {});
  await new Promise((listening) => silent.listen(0, '127.0.0.1', listening));
  silent.unref();
  process.env.npm_config_registry = `http://127.0.0.1:${silent.address().port}/`;
});

after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  silent.closeAllConnections();
  silent.close();
});

const queueLength = () => new (surface().NativeSandboxExecutor)().getExecutionStats().vcpu_1?.queueLength;

test('a signal that has fired already', async () => {
  const error = await rejection(run('() => 1', {}, {}, { signal: AbortSignal.abort(new Error('closed')) }));
  assert.deepEqual(
    [error.code, error.message, error.cause.message],
    ['ABORTED', 'Function execution aborted: closed', 'closed']
  );
});

test('while running: the promise rejects at once, the processes end', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const controller = new AbortController();
  const call = run(
    '({ marker }) => { process.title = marker; for (;;); }',
    { marker },
    { sandbox: { timeout: 60_000 } },
    { signal: controller.signal }
  );
  call.catch(() => {});
  await appears(marker);
  const began = performance.now();
  controller.abort();
  const error = await rejection(call);
  assert.deepEqual([error.code, error.phase, error.message], ['ABORTED', 'run', 'Function execution aborted']);
  assert.ok(performance.now() - began < 1000);
  await gone(marker);
});

test('while waiting', async () => {
  const controller = new AbortController();
  const over = { sandbox: { vcpus: 1 } };
  const first = run('() => new Promise((done) => setTimeout(done, 1200, 1))', {}, over);
  const second = run('() => 2', {}, over, { signal: controller.signal });
  second.catch(() => {});
  await until(() => queueLength() === 1, 5000, 'one call waits');
  controller.abort(new Error('left the queue'));
  const error = await rejection(second);
  assert.deepEqual([error.code, error.phase], ['ABORTED', 'queue']);
  assert.equal(queueLength(), 0);
  assert.equal(await first, 1);
});

test('while installing', { timeout: 60_000 }, async () => {
  const asked = new Promise((heard) => silent.once('request', heard));
  const controller = new AbortController();
  const call = run('() => 1', {}, { dependencies: { 'never-comes': '1.0.0' } }, { signal: controller.signal });
  call.catch(() => {});
  await asked;
  controller.abort();
  const error = await rejection(call);
  assert.deepEqual([error.code, error.phase], ['ABORTED', 'install']);
});

test('one of two callers that share an installation leaves; the other still waits for it', {
  timeout: 60_000,
}, async () => {
  const asked = new Promise((heard) => silent.once('request', heard));
  const controllers = [new AbortController(), new AbortController()];
  const calls = controllers.map(({ signal }) =>
    run('() => 1', {}, { dependencies: { 'never-shared': '1.0.0' } }, { signal })
  );
  for (const call of calls) call.catch(() => {});
  await asked;
  controllers[0].abort();
  assert.equal((await rejection(calls[0])).code, 'ABORTED');
  const stillOpen = Symbol('open');
  assert.equal(
    await Promise.race([calls[1].catch(() => 'rejected'), new Promise((ok) => setImmediate(ok, stillOpen))]),
    stillOpen
  );
  controllers[1].abort();
  assert.equal((await rejection(calls[1])).code, 'ABORTED');
});

test('after the answer a signal means nothing', async () => {
  const controller = new AbortController();
  assert.equal(await run('() => 1', {}, {}, { signal: controller.signal }), 1);
  controller.abort();
  assert.equal(await run('() => 2'), 2);
});

test('AbortSignal.timeout is told by its reason', async () => {
  const error = await rejection(
    run('() => new Promise((done) => setTimeout(done, 9000))', {}, {}, { signal: AbortSignal.timeout(300) })
  );
  assert.equal(error.code, 'ABORTED');
  assert.match(error.message, /timeout/);
  assert.equal(error.cause.name, 'TimeoutError');
});
