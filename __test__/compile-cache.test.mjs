// Node's compile caches: made once per tree, taken by booted workers and zygotes, changed by nobody.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import zlib from 'node:zlib';
import { host, ownWorld, RUNGS, rejection, surface, tool, until } from './helpers.mjs';
import { startRegistry } from './registry.mjs';

const LIMIT_MS = 180_000;
const MEMORY_MB = 200;
/** What `zygotes.rs` and `zygote.cjs` start a zygote of a tree with. */
const ZYGOTE_FLAGS = [
  '--single-threaded',
  '--no-wasm-async-compilation',
  '--no-wasm-dynamic-tiering',
  '--no-memory-reducer',
  '--no-flush-bytecode',
];
const HAS_CACHES =
  process.platform === 'linux' && typeof (await import('node:module')).flushCompileCache === 'function';

/** Functions that are not called while it loads are not in a booted process's cache, so it has none. */
const TRUE_TEXT = 'exports.value = "source";';
/** As long as the other, which is all that V8 compares. */
const FORGED_TEXT = 'exports.value = "forged";';

let world;
let registry;

before(async () => {
  world = ownWorld();
  const one = (text, over) => ({ '1.0.0': { 'index.js': text, ...over } });
  registry = await startRegistry({
    plain: one(TRUE_TEXT),
    esm: one('export const value = () => "module";', { 'package.json': { type: 'module' } }),
    timer: one('setInterval(() => {}, 1000); exports.value = () => "timer";'),
    quits: one('process.exit(0);'),
    throws: one('throw new Error("not today");'),
  });
  process.env.npm_config_registry = registry.url;
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

let stores = 0;
const newStore = () => {
  const place = join(world.tmp, `store-${stores++}`);
  mkdirSync(place, { mode: 0o755 });
  return place;
};
const optionsOf = (storeDir, over) => ({ storeDir, memoryMb: MEMORY_MB, ...over });
const on = (...names) => Object.fromEntries(names.map((name) => [name, '1.0.0']));
const CALL = 'async () => require("plain").value';

/** Prepares a store in a process of its own: nothing of it is ready any more afterwards. */
async function warmed(options, ...sets) {
  const { code, err, said } = await host(
    `const executor = new rest.NativeSandboxExecutor(${JSON.stringify(options)});
     await executor.warm(${JSON.stringify(sets)});
     say(executor.getMetrics().store);
     await executor.cleanup();`
  ).exited;
  assert.equal(code, 0, err);
  return said[0];
}

/** A call in a process of its own. */
async function called(options, name, text = CALL) {
  const { code, err, said } = await host(
    `const executor = new rest.NativeSandboxExecutor(${JSON.stringify(options)});
     const call = () => executor.executeFunctionTool('t', {}, tool(${JSON.stringify(text)}, ${JSON.stringify({ dependencies: on(name) })}));
     say(await call());
     say(executor.getMetrics().store);
     await executor.cleanup();`
  ).exited;
  assert.equal(code, 0, err);
  return said[0];
}

/** The caches of the only tree in a store, with their files. */
function caches(storeDir) {
  const [root] = readdirSync(storeDir).filter((name) => name.startsWith('native-sandbox-executor-'));
  const trees = join(storeDir, root, 'trees');
  const generations = readdirSync(trees).flatMap((key) =>
    readdirSync(join(trees, key)).map((name) => join(trees, key, name))
  );
  assert.equal(generations.length, 1);
  const folder = join(generations[0], 'compile-cache');
  if (!existsSync(folder)) return [];
  return readdirSync(folder).map((name) => {
    const code = join(folder, name, 'code');
    const about = JSON.parse(readFileSync(join(folder, name, 'about'), 'utf8'));
    return { ...about, code, files: existsSync(code) ? readdirSync(code) : [] };
  });
}

/** A cache file that Node makes of `FORGED_TEXT` under these flags, made to look as if it were one of `TRUE_TEXT`; with its tag. */
function forgery(flags, setFlags) {
  const folder = mkdtempSync(join(world.tmp, 'forge-'));
  writeFileSync(join(folder, 'index.js'), FORGED_TEXT);
  const text = `${setFlags};const m=require('module');m.enableCompileCache(${JSON.stringify(folder)});require('./index.js');m.flushCompileCache()`;
  execFileSync(process.execPath, [...flags, `--max-old-space-size=${MEMORY_MB}`, '-e', text], { cwd: folder });
  const [tag] = readdirSync(folder).filter((name) => name.startsWith('v'));
  const [file] = readdirSync(join(folder, tag));
  const bytes = readFileSync(join(folder, tag, file));
  const word = (value) => Buffer.from(new Uint32Array([value]).buffer);
  const at = bytes.indexOf(word(zlib.crc32(FORGED_TEXT)));
  assert.ok(at >= 0 && at < 64, 'the header tells the hash of the source');
  word(zlib.crc32(TRUE_TEXT)).copy(bytes, at);
  return { bytes, tag: tag.slice(0, tag.lastIndexOf('-')) };
}

/** Puts bytes in place of the only file of a cache, as nobody but the host could. */
function replace({ code, files }, bytes) {
  assert.equal(files.length, 1);
  chmodSync(code, 0o755);
  writeFileSync(join(code, 'new'), bytes, { mode: 0o444 });
  renameSync(join(code, 'new'), join(code, files[0]));
  chmodSync(code, 0o555);
}

test('warm makes a cache for each kind of process, which nobody may write to', {
  timeout: LIMIT_MS,
  skip: !HAS_CACHES,
}, async () => {
  const storeDir = newStore();
  const before = await warmed(optionsOf(storeDir), on('plain'));
  const made = caches(storeDir).filter(({ tag }) => tag);
  assert.equal(made.length, RUNGS.includes('zygote') ? 2 : 1);
  assert.equal(before.compileCaches, made.length);
  for (const { code, files, bytes } of made) {
    assert.equal(files.length, 1);
    assert.equal(statSync(code).mode & 0o777, 0o555);
    assert.equal(statSync(join(code, files[0])).mode & 0o777, 0o444);
    assert.ok(bytes > statSync(join(code, files[0])).size);
  }
  // It counts, and is not made again.
  const again = await warmed(optionsOf(storeDir), on('plain'));
  assert.equal(again.compileCaches, 0);
});

// What is accepted runs, and V8 does not look at the source then: a forged entry tells it.
for (const rung of RUNGS.filter((name) => name !== 'standby')) {
  test(`an entry is accepted: ${rung}`, { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
    const options = optionsOf(newStore(), { start: rung });
    await warmed(options, on('plain'));
    const forged =
      rung === 'zygote' ? forgery(ZYGOTE_FLAGS, "require('v8').setFlagsFromString('--no-lazy')") : forgery([], '0');
    const [cache] = caches(options.storeDir);
    assert.equal(cache.tag, forged.tag);
    assert.equal(await called(options, 'plain'), 'source');
    replace(cache, forged.bytes);
    assert.equal(await called(options, 'plain'), 'forged');
    // What is broken, or of another source, is not taken, and nobody hears of it.
    replace(cache, Buffer.concat([forged.bytes.subarray(0, -1), Buffer.from([forged.bytes.at(-1) ^ 1])]));
    assert.equal(await called(options, 'plain'), 'source');
    replace(cache, Buffer.alloc(0));
    assert.equal(await called(options, 'plain'), 'source');
  });
}

test('a function can read the cache at most', { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
  const options = optionsOf(newStore(), { start: 'spawn' });
  await warmed(options, on('plain'));
  const [{ code, files }] = caches(options.storeDir);
  const text = `async () => {
    const fs = require('node:fs');
    const Module = require('node:module');
    const { join, dirname } = require('node:path');
    require('plain');
    const dir = Module.getCompileCacheDir();
    const attempts = { real: ${JSON.stringify(code)}, offered: dir, beside: dirname(dir) };
    const done = [];
    for (const [where, folder] of Object.entries(attempts)) {
      for (const [what, act] of Object.entries({
        write: () => fs.writeFileSync(join(folder, ${JSON.stringify(files[0])}), 'x'),
        add: () => fs.writeFileSync(join(folder, 'ffffffff'), 'x'),
        open: () => fs.chmodSync(folder, 0o777),
        remove: () => fs.unlinkSync(join(folder, ${JSON.stringify(files[0])})),
        rename: () => fs.renameSync(folder, join(process.cwd(), 'mine')),
      })) {
        try { act(); done.push(where + ' ' + what); } catch (error) { if (!/^E[A-Z]+$/.test(error.code)) throw error; }
      }
    }
    Module.flushCompileCache();
    return { done, variable: process.env.NODE_COMPILE_CACHE ?? null, dir };
  }`;
  const { done, variable, dir } = await called(options, 'plain', text);
  assert.deepEqual(done, []);
  assert.equal(variable, null);
  assert.ok(dir.includes('/runs/'), dir);
  assert.equal(await called(options, 'plain'), 'source');
});

test('made in the background after an installation, and for a tree that was found', {
  timeout: LIMIT_MS,
  skip: !HAS_CACHES,
}, async () => {
  const storeDir = newStore();
  const { NativeSandboxExecutor } = surface();
  const executor = new NativeSandboxExecutor(optionsOf(storeDir, { start: 'spawn' }));
  const call = (over) => executor.executeFunctionTool('t', {}, tool(CALL, { dependencies: on('plain'), ...over }));
  assert.equal(await call(), 'source');
  await until(() => caches(storeDir).length === 1, 30_000, 'a cache');
  assert.equal(await call(), 'source');
  await executor.cleanup();
  const [cache] = caches(storeDir);
  rmSync(join(cache.code, '..', '..'), { recursive: true, force: true });
  // Found by a process that did not install it.
  const other = host(
    `const executor = new rest.NativeSandboxExecutor(${JSON.stringify(optionsOf(storeDir, { start: 'spawn' }))});
     await executor.executeFunctionTool('t', {}, tool(${JSON.stringify(CALL)}, ${JSON.stringify({ dependencies: on('plain') })}));
     while (executor.getMetrics().store.compileCaches === 0) await new Promise((done) => setTimeout(done, 50));
     say(executor.getMetrics().store.installs);
     await executor.cleanup();`
  );
  const { said, code, err } = await other.exited;
  assert.deepEqual([said, code], [[0], 0], err);
  assert.equal(caches(storeDir).length, 1);
});

test('a package that does more than load has no cache, and the others have', {
  timeout: LIMIT_MS,
  skip: !HAS_CACHES,
}, async () => {
  const mixed = optionsOf(newStore());
  await warmed(mixed, on('plain', 'esm', 'throws', 'timer'));
  const entries = caches(mixed.storeDir);
  assert.equal(entries.length, RUNGS.includes('zygote') ? 2 : 1);
  // With the rest of `throws`: that it throws is no reason to compile it anew.
  for (const { files, tag } of entries) assert.ok(tag && files.length >= 2 && files.length <= 3, String(files));
  // One that ends its process leaves nothing, and that is remembered.
  const quits = optionsOf(newStore());
  assert.equal((await warmed(quits, on('quits'))).compileCaches, 0);
  assert.ok(caches(quits.storeDir).every(({ tag, files }) => tag === null && files.length === 0));
  assert.equal((await warmed(quits, on('quits'))).compileCaches, 0);
});

test('a base store brings its caches along', { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
  const base = newStore();
  await warmed(optionsOf(base, { start: 'spawn' }), on('plain'));
  const [cache] = caches(base);
  replace(cache, forgery([], '0').bytes);
  const options = optionsOf(newStore(), { start: 'spawn', baseStoreDirs: [base] });
  assert.equal(await called(options, 'plain'), 'forged');
  assert.equal(caches(base).length, 1);
});

test('a Node that cannot write a cache does without', { timeout: LIMIT_MS, skip: HAS_CACHES }, async () => {
  const options = optionsOf(newStore(), { start: 'spawn' });
  assert.equal((await warmed(options, on('plain'))).compileCaches, 0);
  assert.equal(await called(options, 'plain'), 'source');
  assert.equal(
    (await rejection(surface().SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, tool('1')))).code,
    'INVALID_SOURCE'
  );
});
