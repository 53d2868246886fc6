// What a package takes while it is loaded, no two calls share: on the rung `zygote` as where each call boots a process.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const skip = !RUNGS.includes('zygote') && 'no zygotes here';
/** Calls of each kind; more of them look harder. */
const CALLS = Number(process.env.NATIVE_SANDBOX_TEST_LOADS ?? 6);

/** What packages keep that they took when they were loaded, and whether it has to differ from call to call. */
const TAKEN = {
  'math-random': ['Math.random()', true],
  'a-copy-of-random': ['(({ random }) => random())(Math)', true],
  'another-realm': ["require('vm').runInNewContext('Math.random()')", true],
  'a-context': [
    "(({ createContext, runInContext }) => runInContext('Math.random()', createContext({})))(require('vm'))",
    true,
  ],
  bytes: ["require('crypto').randomBytes(8).toString('hex')", true],
  uuid: ["require('crypto').randomUUID()", true],
  integer: ["require('crypto').randomInt(2 ** 47)", true],
  web: ['crypto.randomUUID()', true],
  'web-values': ['String(crypto.getRandomValues(new Uint8Array(8)))', true],
  'key-pair': ["require('crypto').generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' }).x", true],
  inner: [
    "(() => { const to = Buffer.alloc(8); require('crypto').randomFillSync(to); return to.toString('hex'); })()",
    true,
  ],
  device: [
    "(() => { const fs = require('fs'); const fd = fs.openSync('/dev/urandom'); const to = Buffer.alloc(8); fs.readSync(fd, to); fs.closeSync(fd); return to.toString('hex'); })()",
    true,
  ],
  clock: ['process.hrtime.bigint().toString()', true],
  now: ['performance.now() >= 0 && performance.now() < 60_000', false],
  main: ['require.main?.filename?.endsWith("index.cjs")', false],
  arguments: ['[process.argv.length, process.execArgv.join()].join()', false],
  executable: ['process.argv[0] === process.execPath', false],
  'name-of-the-machine': ["require('os').hostname()", false],
};
const PLAIN = 'plain';
/** Those that see the same in a zygote as in its workers. */
const FIT = new Set([PLAIN, 'arguments', 'executable', 'name-of-the-machine']);

let registry;
let forked;
let booted;
before(async () => {
  ownWorld();
  const packages = { [PLAIN]: { '1.0.0': { 'index.js': 'let n = 0; module.exports = () => ++n;' } } };
  for (const [name, [code]] of Object.entries(TAKEN)) {
    packages[name] = {
      '1.0.0': { 'index.js': `exports.kept = ${code};` },
    };
  }
  registry = await useRegistry(packages);
  const { NativeSandboxExecutor: Executor } = surface();
  [forked, booted] = [new Executor({ start: 'zygote' }), new Executor({ start: 'spawn' })];
});
after(async () => {
  await forked?.cleanup();
  await booted?.cleanup();
  await registry?.close();
});

const names = [...Object.keys(TAKEN), PLAIN];
const dependencies = Object.fromEntries(names.map((name) => [name, '1.0.0']));
/** All of them in one tree: what is fit stays loaded ahead beside what is not. */
const CODE = `() => {
  const ahead = Object.keys(require.cache).map((at) => at.split('/').at(-2));
  const kept = {};
  ${Object.keys(TAKEN)
    .map((name) => `{ const it = require('${name}'); kept['${name}'] = it.kept; }`)
    .join('\n  ')}
  const since = performance.now();
  return { ahead, kept, count: require('${PLAIN}')(), since, uptime: process.uptime() };
}`;
const calls = async (executor) => {
  const all = [];
  for (let i = 0; i < CALLS; i++) all.push(await executor.executeFunctionTool('t', {}, tool(CODE, { dependencies })));
  return all;
};

test('calls agree with calls of processes that were booted for them', { skip, timeout: 240_000 }, async (t) => {
  await until(
    async () => (await forked.executeFunctionTool('t', {}, tool(CODE, { dependencies }))).ahead.includes(PLAIN),
    120_000,
    'what is fit is loaded ahead'
  );
  const [ours, theirs] = [await calls(forked), await calls(booted)];
  for (const [name, [, differs]] of Object.entries(TAKEN)) {
    await t.test(name, () => {
      for (const all of [ours, theirs]) {
        const distinct = new Set(all.map(({ kept }) => kept[name])).size;
        assert.equal(distinct, differs ? CALLS : 1);
      }
      if (!differs) assert.equal(ours[0].kept[name], theirs[0].kept[name]);
    });
  }
  for (const { count, since, uptime } of ours) {
    assert.equal(count, 1);
    assert.ok(since >= 0 && uptime >= 0, `${since} ms, ${uptime} s`);
  }
  const { notPreloaded } = forked.getMetrics();
  const told = new Map(notPreloaded.flatMap(({ packages, reason }) => packages.map((name) => [name, reason])));
  for (const name of names) {
    if (FIT.has(name)) assert.equal(told.has(name), false, name);
    else assert.match(told.get(name) ?? 'not told', /when it is loaded/, name);
  }
});
