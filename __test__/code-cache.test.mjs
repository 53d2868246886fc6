// V8's code cache of large texts: made at the second use, taken by later ones, out of every function's reach, and seen by nobody.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, surface, tool, until } from './helpers.mjs';
import { startRegistry } from './registry.mjs';

const LIMIT_MS = 120_000;
const HAS_CACHES = Number.parseInt(process.versions.node, 10) >= 22;

let registry;
before(async () => {
  ownWorld();
  registry = await startRegistry({ plain: { '1.0.0': { 'index.js': 'exports.value = () => "package";' } } });
  process.env.npm_config_registry = registry.url;
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

const counts = () => new (surface().NativeSandboxExecutor)().getMetrics().sources.codeCaches;
const ofRung = (start) => {
  const executor = new (surface().NativeSandboxExecutor)({ start });
  return (text, args = {}, over = {}) => executor.executeFunctionTool('t', args, tool(text, over));
};

/** Functions that nobody calls, of some hundred kilobytes. */
function ballast(name, typed = '') {
  const one = (number) =>
    `function ${name}_${number}(a${typed}, b${typed}) { return [a, b].map((value) => value * ${number}).concat(a); }\n`;
  return Array.from({ length: 1000 }, (_, number) => one(number)).join('');
}

/** Waits until each cache that was made since is known to be taken, or not: the host learns that when the call's processes are gone. */
function judged(before, times = 1) {
  const since = (now) => now.accepted + now.refused - before.accepted - before.refused;
  return until(
    () => since(counts()) >= (counts().made === before.made ? 0 : times),
    30_000,
    'V8 has said what it did with the cache'
  );
}

/** Calls until the third use of a text is over. */
async function thrice(call) {
  const before = counts();
  const results = [await call(), await call()];
  await until(() => counts().made + counts().refused > before.made + before.refused, 30_000, 'a cache');
  results.push(await call());
  await judged(before);
  const after = counts();
  const since = Object.fromEntries(['made', 'accepted', 'refused'].map((name) => [name, after[name] - before[name]]));
  return { results, since };
}

for (const rung of RUNGS) {
  test(`the third use takes what the second had made: ${rung}`, { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
    const call = ofRung(rung);
    const text = `${ballast(`f_${rung}`)}async ({ a }) => f_${rung}_3(a, 2)`;
    const { results, since } = await thrice(() => call(text, { a: 5 }));
    assert.deepEqual(results, Array(3).fill([15, 6, 5]));
    assert.deepEqual(since, { made: 1, accepted: 1, refused: 0 });
  });
}

test('places in errors are those of the text, with a cache as without', {
  timeout: LIMIT_MS,
  skip: !HAS_CACHES,
}, async () => {
  const call = ofRung(RUNGS.at(-1));
  const throwing = '  throw new RangeError("out of reach");';
  const script = `async () => {\n${throwing}\n};\n${ballast('script')}`;
  const typed = `type Wide = { a: number };\nasync ({ a }: Wide): Promise<number> => {\n${throwing}\n};\n${ballast('typed', ': number')}`;
  const inLine = `(async () => { ${throwing} }); ${ballast('line').replaceAll('\n', ' ')}`;
  for (const text of [script, typed, inLine]) {
    const places = async () => {
      const error = await rejection(call(text));
      assert.equal(error.code, 'TOOL_ERROR');
      const place = /(index|tool)\.[a-z]+:(\d+):(\d+)/.exec(error.cause.stack);
      return [error.message, ...place.slice(1)];
    };
    const { results, since } = await thrice(places);
    assert.deepEqual(since, { made: 1, accepted: 1, refused: 0 }, text.slice(0, 60));
    const line = text.split('\n').findIndex((row) => row.includes('throw'));
    assert.equal(Number(results[0][2]), line + 1);
    assert.deepEqual(results[1], results[0]);
    assert.deepEqual(results[2], results[0]);
  }
});

test('packages and imports are there', { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
  for (const rung of RUNGS) {
    const call = ofRung(rung);
    const text = `${ballast(`p_${rung}`)}async () => [require('plain').value(), (await import('node:path')).sep, (await import('plain')).default.value()]`;
    const { results, since } = await thrice(() => call(text, {}, { dependencies: { plain: '1.0.0' } }));
    assert.deepEqual(results, Array(3).fill(['package', '/', 'package']), rung);
    // Which zygote a call gets, or whether one boots still, is left open; V8 takes what there is.
    assert.equal(since.refused, 0, rung);
  }
});

test('small texts and modules have none', { timeout: LIMIT_MS }, async () => {
  const call = ofRung(RUNGS.at(-1));
  const before = counts();
  const module = `${ballast('module')}export default async () => 1;`;
  for (let use = 0; use < 3; use++) {
    assert.equal(await call('() => 1'), 1);
    assert.equal(await call(module), 1);
  }
  assert.deepEqual(counts(), before);
});

test('a function cannot put one there, by whatever descriptor', { timeout: LIMIT_MS, skip: !HAS_CACHES }, async () => {
  for (const rung of RUNGS) {
    const call = ofRung(rung);
    // Frames of both types that have to do with caches, as the host would believe them elsewhere.
    const text = `${ballast(`forge_${rung}`)}async ({ forge }) => {
      if (!forge) return 'true';
      const fs = require('node:fs');
      const forged = Buffer.alloc(5 + 64, 7);
      forged.writeUInt32LE(64, 0);
      forged[4] = forge;
      for (let fd = 3; fd < 64; fd++) {
        try { fs.writeSync(fd, forge === 28 ? Buffer.from([0, 0, 0, 0, 28]) : forged); } catch {}
      }
      return 'forged';
    }`;
    const before = counts();
    const uncached = await call(text, { forge: 28 });
    assert.equal(uncached, 'forged');
    const error = await rejection(call(text, { forge: 27 }));
    assert.match(error.message, /descriptor 3 belongs to the runtime|exited|ended/, rung);
    await until(() => counts().made > before.made, 30_000, 'a cache');
    assert.equal(await call(text, { forge: 28 }), 'forged');
    assert.equal(await call(text, {}), 'true');
    await judged(before, 2);
    const now = counts();
    assert.deepEqual([now.made - before.made, now.refused - before.refused], [1, 0], rung);
    assert.equal(now.accepted - before.accepted, 2, rung);
  }
});

test('an old Node does without', { timeout: LIMIT_MS, skip: HAS_CACHES }, async () => {
  const call = ofRung('spawn');
  const { results, since } = await thrice(() => call(`${ballast('old')}() => 1`));
  assert.deepEqual(results, [1, 1, 1]);
  assert.deepEqual([since.made, since.accepted], [0, 0]);
});
