// A function that ignores SIGTERM, busy or idle, is gone soon after its timeout.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

for (const [how, rest] of [
  ['busy', 'for (;;);'],
  ['idle', 'setInterval(() => {}, 50); return new Promise(() => {});'],
]) {
  test(`${how}, ignoring SIGTERM`, { skip: !LINUX }, async () => {
    const marker = newMarker();
    const source = `({ marker }) => { process.title = marker; process.on('SIGTERM', () => {}); ${rest} }`;
    const error = await rejection(run(source, { marker }, { sandbox: { timeout: 600 } }));
    assert.equal(error.message, 'Function execution timed out after 600ms');
    await gone(marker, 6000);
  });
}
