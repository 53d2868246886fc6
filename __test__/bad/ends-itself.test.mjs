// A function that ends its process in every way there is.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const WAIT = 'return new Promise((done) => setTimeout(done, 5000));';
const WAYS = [
  ['process.exit(0)', 'process.exit(0)', 'EXITED'],
  ['process.exit(3) in a callback', `setTimeout(() => process.exit(3), 20); ${WAIT}`, 'EXITED'],
  ['process.exitCode and nothing to do', 'process.exitCode = 5; return new Promise(() => {});', 'EXITED'],
  ['process.abort()', 'process.abort()', 'KILLED'],
  ['process.reallyExit(6)', 'process.reallyExit(6)', 'EXITED'],
  ['SIGSEGV', `process.kill(process.pid, 'SIGSEGV'); ${WAIT}`, 'KILLED'],
  ['SIGTERM', `process.kill(process.pid, 'SIGTERM'); ${WAIT}`, 'KILLED'],
  ['an uncaught exception', `setTimeout(() => { throw new Error('in a timer'); }, 20); ${WAIT}`, 'TOOL_ERROR'],
];

for (const [what, body, code] of WAYS) {
  test(what, async () => {
    const began = performance.now();
    const error = await rejection(run(`() => { ${body} }`, {}, { sandbox: { timeout: 30_000 } }));
    assert.equal(error.code, code, error.message);
    assert.ok(performance.now() - began < 5000, 'promptly');
  });
}

test('the message of an uncaught exception is told', async () => {
  const error = await rejection(run(`() => { setTimeout(() => { throw new Error('in a timer'); }, 20); ${WAIT} }`));
  assert.match(error.message, /in a timer/);
});
