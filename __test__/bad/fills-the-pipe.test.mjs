// A function that fills a pipe, with and without ending on SIGTERM, in JavaScript or through a child.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const FLOOD = 'for (;;) { try { require("node:fs").writeSync(FD, Buffer.alloc(65536, 120)); } catch {} }';

for (const fd of [1, 2]) {
  test(`a flood on descriptor ${fd}`, { skip: !LINUX }, async () => {
    const marker = newMarker();
    const source = `({ marker }) => { process.title = marker; process.on('SIGTERM', () => {}); ${FLOOD.replace('FD', fd)} }`;
    const error = await rejection(run(source, { marker }, { sandbox: { timeout: 60_000 } }));
    assert.deepEqual([error.code, error.message], ['OUTPUT_LIMIT', 'Output size exceeded limit of 1048576 bytes']);
    await gone(marker, 8000);
  });
}

test('a flood from a child', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const source = `({ marker }) => {
    require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(FLOOD.replace('FD', '1'))}, marker], { stdio: 'inherit' });
    return new Promise(() => setTimeout(() => {}, 60000));
  }`;
  assert.equal((await rejection(run(source, { marker }, { sandbox: { timeout: 60_000 } }))).code, 'OUTPUT_LIMIT');
  await gone(marker, 8000);
});

test('the pipe is read while the function blocks on it', async () => {
  assert.equal(await run('() => { require("node:fs").writeSync(1, Buffer.alloc(500000, 120)); return 1; }'), 1);
});
