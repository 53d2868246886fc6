// Ends that come in the middle: `process.exit` with calls in flight, of the main thread and of a worker thread. What had been
// started is gone.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { below, host, isAlive, LINUX, marked, newMarker, ownWorld, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let registry;
before(async () => {
  ownWorld();
  registry = await useRegistry({ 'a-package': { '1.0.0': { 'index.js': '' } } });
});
after(() => registry?.close());

/** Functions that run for a minute, one of which has left a process behind on purpose, and an installation. */
const IN_FLIGHT = (marker) => `
  const busy = "({ marker }) => { process.title = marker; require('node:child_process').spawn('sleep', ['60'], { detached: true, argv0: marker, stdio: 'ignore' }); setTimeout(() => {}, 60000); return new Promise(() => {}); }";
  const calls = [1, 2, 3].map(() => run(busy, { marker: '${marker}' }, { sandbox: { timeout: 60000 } }));
  calls.push(run("() => require('a-package')", {}, { dependencies: { 'a-package': '1.0.0' } }));
  for (const call of calls) call.catch(() => {});`;

/** Waits in a host until the functions run. */
const RUNNING = (marker) => `
  const { marked } = await import(${JSON.stringify(new URL('./helpers.mjs', import.meta.url).href)});
  while (marked('${marker}').length < 6) await new Promise((done) => setTimeout(done, 20));`;

/** A host that says so when its calls are in flight, and ends when it is told to. Its processes are looked at in between. */
async function endsClean(body, marker, code) {
  const { child, exited } = host(body);
  let seen = [];
  child.stdout.on('data', () => {
    seen = below(child.pid);
  });
  const end = await exited;
  assert.deepEqual([end.code, end.signal], [code, null], end.err);
  assert.ok(seen.length >= 4, `only ${seen.length} processes were seen: ${end.err}`);
  await until(() => marked(marker).length === 0, 10_000, 'the functions and what they started are gone');
  await until(() => !seen.some(isAlive), 10_000, 'every process of the host is gone');
}

test('process.exit with calls and an installation in flight', { skip: !LINUX, timeout: 60_000 }, async () => {
  const marker = newMarker();
  await endsClean(
    `${IN_FLIGHT(marker)}${RUNNING(marker)}
    say('running');
    setTimeout(() => process.exit(7), 200);`,
    marker,
    7
  );
});

test('process.exit of the host while a worker thread is busy', { skip: !LINUX, timeout: 60_000 }, async () => {
  const marker = newMarker();
  await endsClean(
    inThread(marker, `${RUNNING(marker)} say('running'); setTimeout(() => process.exit(7), 200);`),
    marker,
    7
  );
});

test('process.exit in a busy worker thread ends what the thread had started', {
  skip: !LINUX,
  timeout: 60_000,
}, async () => {
  const marker = newMarker();
  const body = inThread(
    marker,
    `${RUNNING(marker)}
    say('running');
    thread.postMessage('exit');
    await new Promise((done) => thread.on('exit', done));
    while (marked('${marker}').length > 0) await new Promise((done) => setTimeout(done, 20));
    say(await run('() => 5'));`
  );
  const { exited } = host(body);
  const { code, said, err } = await exited;
  assert.deepEqual([code, said], [0, ['running', 5]], err);
});

/** A host with a thread that has calls in flight, and leaves when it gets a message. */
function inThread(marker, body) {
  const helpers = JSON.stringify(new URL('./helpers.mjs', import.meta.url).href);
  const source = `
    import { parentPort } from 'node:worker_threads';
    const { run } = await import(${helpers});
    parentPort.on('message', () => process.exit(3));
    ${IN_FLIGHT(marker)}`;
  return `
    import { Worker } from 'node:worker_threads';
    const thread = new Worker(new URL('data:text/javascript,' + encodeURIComponent(${JSON.stringify(source)})));
    ${body}`;
}
