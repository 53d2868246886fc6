// What zygotes may hold and how long they may load: fewer start faster then, and every call is served all the same.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const skip = !RUNGS.includes('zygote') && 'no zygotes here';
const MIB = 1024 * 1024;
/** Of pages that are really there. */
const large = { '1.0.0': { 'index.js': `exports.held = Buffer.alloc(${200 * MIB}, 1);` } };
/** Spins where zygotes load, and not where functions do. */
const spinning = {
  '1.0.0': { 'index.js': `if (!process.cwd().endsWith('work')) for (;;) {}` },
};

let registry;
let native;
before(async () => {
  ownWorld();
  registry = await useRegistry({ 'large-a': large, 'large-b': large, spinning });
  native = new (surface().NativeSandboxExecutor)({ zygoteMemoryMb: 400 });
});
after(async () => {
  await native.cleanup();
  await registry.close();
});

/** Whether a call of this package comes from a zygote that has it loaded. */
const isPreloaded = (name, executor = native) =>
  executor.executeFunctionTool(
    name,
    {},
    tool(
      `() => { const ahead = Object.keys(require.cache).some((at) => at.includes('/${name}/')); require('${name}'); return ahead; }`,
      { dependencies: { [name]: '1.0.0' } }
    )
  );
const reasonOf = (name) => native.getMetrics().notPreloaded.find(({ packages }) => packages.includes(name))?.reason;

test('of two zygotes that hold too much the one ends that was not used for longest', {
  skip,
  timeout: 120_000,
}, async () => {
  await until(() => isPreloaded('large-a'), 60_000, 'the first one has its zygote');
  const { zygoteMemory } = native.getMetrics();
  assert.equal(zygoteMemory.limitBytes, 400 * MIB);
  assert.ok(zygoteMemory.bytes > 200 * MIB && zygoteMemory.bytes < 400 * MIB, `${zygoteMemory.bytes} bytes`);
  assert.equal(zygoteMemory.ended, 0);
  await until(() => isPreloaded('large-b'), 60_000, 'and the second');
  await until(() => native.getMetrics().zygoteMemory.ended === 1, 30_000, 'both do not fit');
  assert.match(reasonOf('large-a'), /not used for longest.*400 MiB \(zygoteMemoryMb\)/);
  assert.equal(reasonOf('large-b'), undefined);
  assert.equal(native.getMetrics().zygotes.dependents, 1);
  assert.equal(await isPreloaded('large-a'), false, 'the call loads it itself');
  assert.equal(await isPreloaded('large-b'), true);
});

test('a package that spins while it is loaded ends, and is not loaded ahead any more', {
  skip,
  timeout: 120_000,
}, async () => {
  await until(
    async () => {
      assert.equal(await isPreloaded('spinning'), false);
      return reasonOf('spinning') !== undefined;
    },
    60_000,
    'the reason is told'
  );
  assert.match(reasonOf('spinning'), /more than 10 s of processor time to load|did not load within 20 s/);
  // The tree has a zygote all the same, without it.
  await until(() => native.getMetrics().zygotes.dependents === 2, 60_000, 'its zygote is up');
  assert.equal(await isPreloaded('spinning'), false);
});

test('where zygotes may hold nothing there is none of a tree, and no worker is kept ready', {
  skip,
  timeout: 120_000,
}, async () => {
  const least = new (surface().NativeSandboxExecutor)({ zygoteMemoryMb: 0 });
  const name = 'large-b';
  assert.equal(typeof (await isPreloaded(name, least)), 'boolean');
  // Told to all that there are: the smallest number counts.
  await until(
    () => {
      const { zygotes, zygoteMemory } = least.getMetrics();
      return zygoteMemory.limitBytes === 0 && zygotes.dependents === 0 && zygotes.ready === 0;
    },
    60_000,
    'all of them end'
  );
  assert.equal(await isPreloaded(name), false);
  await least.cleanup();
});
