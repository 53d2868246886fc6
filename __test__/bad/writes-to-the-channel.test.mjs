// A function that writes to the channel itself can spoil its own answer, and nothing else.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const WRITES = {
  'random bytes': 'require("node:crypto").randomBytes(4096)',
  'a frame of four gigabytes': 'Buffer.from([255, 255, 255, 255, 18, 1, 2, 3])',
  'a frame of an unknown type': 'Buffer.from([1, 0, 0, 0, 200, 0])',
  'a result that is no JSON': 'Buffer.from([2, 0, 0, 0, 18, 123, 123])',
};

for (const [what, bytes] of Object.entries(WRITES)) {
  test(what, { timeout: 30_000 }, async () => {
    const source = `() => { const fs = require('node:fs'); try { fs.writeSync(3, ${bytes}); } catch {} return 'mine'; }`;
    const call = run(source, {}, { sandbox: { timeout: 5000 } });
    const answer = await call.then(
      (value) => ({ value }),
      (error) => ({ error })
    );
    if (answer.error) assert.ok(answer.error instanceof surface().SandboxError, String(answer.error));
    else assert.equal(answer.value, 'mine');
    assert.equal(await run('() => "another"'), 'another');
  });
}
