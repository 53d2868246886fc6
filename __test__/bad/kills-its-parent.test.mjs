// A function that signals whatever it can reach by number: its parent, its group, everybody of its user but root's.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { LINUX, ownWorld, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const WAYS = {
  'its parent': 'process.kill(process.ppid, "SIGKILL")',
  'its process group': 'process.kill(0, "SIGKILL")',
};

for (const [what, act] of Object.entries(WAYS)) {
  test(`a function that kills ${what}`, { skip: !LINUX, timeout: 30_000 }, async () => {
    const source = `() => { try { ${act}; } catch {} return new Promise((done) => setTimeout(done, 300, 'still here')); }`;
    const answer = await run(source, {}, { sandbox: { timeout: 5000 } }).catch((error) => error);
    if (answer !== 'still here') assert.ok(answer instanceof surface().SandboxError, String(answer));
    assert.equal(await run('() => 1'), 1, 'the server and its later calls are unharmed');
  });
}
