// A function that closes its own descriptors: the streams, or the channel that its result goes over.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

test('stdout and stderr closed, the result still comes', async () => {
  assert.equal(
    await run('() => { const fs = require("node:fs"); fs.closeSync(1); fs.closeSync(2); return "kept"; }'),
    'kept'
  );
});

test('the channel closed: a prompt error, not a wait for the timeout', async () => {
  const began = performance.now();
  const source =
    '() => { const fs = require("node:fs"); for (let fd = 3; fd < 64; fd++) { try { fs.closeSync(fd); } catch {} } return "lost"; }';
  const error = await rejection(run(source, {}, { sandbox: { timeout: 30_000 } }));
  assert.match(error.code, /^(EXITED|KILLED|TOOL_ERROR|OUTCOME_UNKNOWN)$/, error.message);
  assert.ok(performance.now() - began < 10_000);
  assert.equal(await run('() => 1'), 1);
});
