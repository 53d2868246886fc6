// What a function sees of its host: no variable but those that pass, an empty stdin, a folder of its own.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { ownWorld, run, surface, tool, until } from './helpers.mjs';

before(() => {
  ownWorld();
  Object.assign(process.env, {
    NSE_SECRET: 'sk-test-1',
    NSE_OTHER: 'o',
    TZ: 'Asia/Tokyo',
    NODE_OPTIONS: '--require ./only-here.cjs',
  });
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const READ = '() => ({ ...process.env })';

test('the host’s variables do not reach the function; the time zone does', async () => {
  const env = await run(READ);
  assert.ok(!JSON.stringify(env).includes('sk-test-1'));
  assert.equal(env.NODE_OPTIONS, undefined);
  assert.equal(env.TZ, 'Asia/Tokyo');
  assert.equal(await run('() => new Date(0).getHours()'), 9);
});

test('names, prefixes and all of it pass by option', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const names = await new Factory({ env: ['NSE_OTHER'] }).executeFunctionTool('t', {}, tool(READ));
  assert.deepEqual([names.NSE_OTHER, names.NSE_SECRET], ['o', undefined]);
  const prefix = await new Factory({ env: ['NSE_*'] }).executeFunctionTool('t', {}, tool(READ));
  assert.deepEqual([prefix.NSE_OTHER, prefix.NSE_SECRET], ['o', 'sk-test-1']);
  const all = await new Factory({ env: 'inherit' }).executeFunctionTool('t', {}, tool('() => process.env.NSE_SECRET'));
  assert.equal(all, 'sk-test-1');
});

test('stdin is at its end', async () => {
  assert.equal(await run('() => require("node:fs").readFileSync(0, "utf8")'), '');
});

test('the working folder and os.tmpdir() are private, writable, and gone afterwards', async () => {
  const source = `() => {
    const fs = require('node:fs'), os = require('node:os');
    const found = [...fs.readdirSync('.'), ...fs.readdirSync(os.tmpdir())].filter((name) => name.startsWith('mine'));
    fs.writeFileSync('mine.txt', 'x');
    fs.writeFileSync(os.tmpdir() + '/mine.txt', 'x');
    return { found, cwd: process.cwd(), tmp: os.tmpdir() };
  }`;
  const [first, second] = [await run(source), await run(source)];
  for (const { found, cwd, tmp } of [first, second]) {
    assert.deepEqual(found, []);
    // Removed once the processes are gone, which the answer does not wait for.
    await until(() => !existsSync(cwd) && !existsSync(tmp), 5000, `${cwd} and ${tmp} are gone`);
  }
  assert.notEqual(first.cwd, second.cwd);
});
