// A function that changes the world it shares with nobody: built-ins, prototypes, its own folder.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

test('patched built-ins harm only the function itself', async () => {
  const source = `() => {
    JSON.stringify = () => 'spoilt';
    Object.prototype.toJSON = () => 'spoilt';
    Promise.prototype.then = () => {};
    process.exit = () => {};
    return { mine: 1 };
  }`;
  await run(source, {}, { sandbox: { timeout: 2000 } }).catch((error) =>
    assert.ok(error instanceof surface().SandboxError)
  );
  assert.deepEqual(await run('() => ({ a: 1 })'), { a: 1 });
});

test('a removed working folder does not matter', async () => {
  // Where a call has a root of its own, what it may write to cannot be removed itself, only emptied.
  const source =
    '() => { try { require("node:fs").rmSync(process.cwd(), { recursive: true, force: true }); } catch {} return 1; }';
  assert.equal(await run(source), 1);
  assert.equal(await run('() => 2'), 2);
});

test('a folder without permissions is removed all the same', async () => {
  const source =
    '() => { const fs = require("node:fs"); fs.mkdirSync("a/b", { recursive: true }); fs.writeFileSync("a/b/c", ""); fs.chmodSync("a/b", 0); fs.chmodSync("a", 0); return process.cwd(); }';
  const folder = await run(source);
  const { existsSync } = await import('node:fs');
  const { until } = await import('../helpers.mjs');
  await until(() => !existsSync(folder), 8000, `${folder} is gone`);
});
