// A function that stops itself: nothing of it moves, and it is ended at its timeout all the same.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

test('SIGSTOP', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const source = '({ marker }) => { process.title = marker; process.kill(process.pid, "SIGSTOP"); return "never"; }';
  const error = await rejection(run(source, { marker }, { sandbox: { timeout: 700 } }));
  assert.equal(error.code, 'TIMEOUT');
  await gone(marker, 8000);
});
