// In worker threads the package works as in the main thread, shares its permits, and ends with its thread.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { gone, host, LINUX, newMarker, ownWorld, run, surface, until } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const HELPERS = new URL('./helpers.mjs', import.meta.url).href;

function worker(body) {
  const source = `import { parentPort } from 'node:worker_threads';
    const { run, surface, tool } = await import(${JSON.stringify(HELPERS)});
    void [surface, tool];
    ${body}`;
  const thread = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`));
  const message = new Promise((heard, failed) => thread.once('message', heard).once('error', failed));
  const exited = new Promise((done) => thread.once('exit', done));
  return { thread, message, exited };
}

test('calls in a worker thread and beside it', async () => {
  const { message, exited } = worker(`parentPort.postMessage(await run('({ n }) => n + 1', { n: 20 }));`);
  assert.deepEqual(await Promise.all([message, run('() => 5')]), [21, 5]);
  assert.equal(await exited, 0, 'the thread ends by itself');
});

test('permits are one per process', async () => {
  const { message, exited } = worker(`
    const call = run('() => new Promise((done) => setTimeout(done, 800, 1))', {}, { sandbox: { vcpus: 1 } });
    parentPort.postMessage('called');
    await call;`);
  await message;
  const native = new (surface().NativeSandboxExecutor)();
  await until(() => native.getExecutionStats().vcpu_1?.availablePermits === 0, 5000, 'the permit is taken');
  assert.equal(await run('() => 2', {}, { sandbox: { vcpus: 1 } }), 2);
  assert.equal(await exited, 0);
});

test('a thread that is terminated while its call runs takes only that call along', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const { thread, exited } = worker(
    `run("({ marker }) => { process.title = marker; setTimeout(() => {}, 60000); return new Promise(() => {}); }", ${JSON.stringify({ marker })}, { sandbox: { timeout: 3000 } });`
  );
  const { appears } = await import('./helpers.mjs');
  await appears(marker);
  await thread.terminate();
  await exited;
  assert.equal(await run('() => 3'), 3);
  await gone(marker);
});

test('many threads come and go', { timeout: 60_000 }, async () => {
  for (let round = 0; round < 3; round++) {
    const threads = [1, 2, 3].map((n) => worker(`parentPort.postMessage(await run('({ n }) => n', { n: ${n} }));`));
    assert.deepEqual(await Promise.all(threads.map(({ message }) => message)), [1, 2, 3]);
    assert.deepEqual(await Promise.all(threads.map(({ exited }) => exited)), [0, 0, 0]);
  }
});

test('a logger in a thread does not outlive it', async () => {
  const body = `
    import { Worker } from 'node:worker_threads';
    const source = \`
      const { run, surface } = await import(${JSON.stringify(HELPERS)});
      surface().setLogger({ debug() {}, info() {}, warn() {}, error() {} });
      await run('() => 1');
    \`;
    await new Promise((done) => new Worker(new URL('data:text/javascript,' + encodeURIComponent(source))).on('exit', done));
    say(await run('() => 2'));`;
  const { code, said, err } = await host(body).exited;
  assert.deepEqual([code, said], [0, [2]], err);
});
