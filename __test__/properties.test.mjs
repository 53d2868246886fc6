// Properties of the whole package, tried with generated values: JSON survives both ways through a real call; no shape of what a caller gives
// throws synchronously, breaks the host or leaves a promise unsettled; no order of operations breaks a promise's rules.
//
// NSE_TEST_SEED repeats a run: a failure prints its seed. NSE_TEST_FULL tries ten times as many.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import {
  below,
  filesBelow,
  LINUX,
  launcherPid,
  openDescriptors,
  ownWorld,
  ROOT,
  run,
  surface,
  tool,
  until,
} from './helpers.mjs';
import { useRegistry } from './registry.mjs';
import { CALL_KINDS, runInThread } from './sequences.mjs';
import { callShape, configShape, GOOD_CONFIG, good, maker, named, odd, optionsShape, shape } from './shapes.mjs';

const FULL = Boolean(process.env.NSE_TEST_FULL);
const SEED = Number(process.env.NSE_TEST_SEED) || Date.now() % 2 ** 31;
/** Of one property; what is not tried by then is left to other runs. */
const LIMIT_MS = FULL ? 60_000 : 4500;
const SETTLED_WITHIN_MS = 30_000;

let world;
let registry;

before(async () => {
  world = ownWorld();
  process.chdir(world.root);
  process.env.AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS = '60000';
  registry = await useRegistry({ alpha: { '1.0.0': { 'index.js': 'module.exports = "alpha"' } } });
});
after(() => registry.close());

/** @param {(...values: any[]) => Promise<void>} holds */
async function check(t, runs, arbitraries, holds) {
  const end = performance.now() + LIMIT_MS;
  let tried = 0;
  // Once at least, however slow the machine is.
  const inTime = async (...values) => {
    if (tried > 0 && performance.now() > end) return;
    tried += 1;
    await holds(...values);
  };
  const parameters = { seed: SEED, numRuns: FULL ? runs * 10 : runs };
  await fc.assert(fc.asyncProperty(...arbitraries, inTime), parameters);
  t.diagnostic(`${tried} tried, NSE_TEST_SEED=${SEED}`);
}

/* ------------------------------------------------------------------ JSON */

/** Any UTF-16 text, halves of pairs included. */
const text = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 8 }).map((units) => String.fromCharCode(...units))
);
const keyText = fc.oneof(
  text,
  fc.constantFrom('__proto__', 'constructor', 'toString', 'toJSON', 'then', '', '0', '-1')
);
const numberValue = fc.oneof(fc.integer(), fc.double({ noNaN: true, noDefaultInfinity: true }), fc.maxSafeInteger());

/** What `JSON.parse` can give; a key `__proto__` is a key. */
const { json } = fc.letrec((tie) => ({
  json: fc.oneof(
    { maxDepth: 5, withCrossShrink: true },
    fc.oneof(fc.constantFrom(null, true, false), numberValue, text),
    fc.array(tie('json'), { maxLength: 6 }),
    fc
      .array(fc.tuple(keyText, tie('json')), { maxLength: 6 })
      .map((members) =>
        JSON.parse(`{${members.map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`).join()}}`)
      )
  ),
}));
const manyJson = fc.array(json, { minLength: 1, maxLength: 200, size: 'max' });

test('what JSON can carry comes back equal through a call', async (t) => {
  await check(t, 40, [manyJson], async (values) => {
    // Both ways, and as the function sees it: its own text of the arguments.
    const [back, seen] = await run('({ values }) => [values, JSON.stringify(values)]', { values });
    assert.equal(seen, JSON.stringify(values));
    assert.equal(JSON.stringify(back), seen);
    assert.deepEqual(back, JSON.parse(seen));
  });
});

/** Values that JSON has no word for, as source text, so that host and function can make the same. */
const oddSource = fc
  .anything({
    withBoxedValues: true,
    withDate: true,
    withMap: true,
    withSet: true,
    withNullPrototype: true,
    withSparseArray: true,
    withTypedArray: true,
    maxDepth: 3,
  })
  .map((value) => fc.stringify(value));

test('what JSON has no word for is as JSON.stringify makes it, on both ways', async (t) => {
  await check(t, 15, [fc.array(oddSource, { minLength: 1, maxLength: 100, size: 'max' })], async (sources) => {
    const source = `[${sources.join(',\n')}]`;
    // biome-ignore lint/security/noGlobalEval: the text is made here
    const values = globalThis.eval(source);
    const expected = JSON.stringify(values);
    const [seen, back] = await Promise.all([
      run('({ values }) => JSON.stringify(values)', { values }),
      run(`() => ${source}`),
    ]);
    assert.equal(seen, expected);
    assert.equal(JSON.stringify(back), expected);
  });
});

/** A value without what host functions are never given: a key that would become a prototype. */
function withoutProto(value) {
  return JSON.parse(JSON.stringify(value), (key, one) => (key === '__proto__' ? undefined : one));
}

test('what JSON can carry comes back equal through host functions, progress and yielded values', async (t) => {
  const source = `async function* ({ values }, { host, progress }) {
    const echoed = [];
    for (const value of values) {
      progress(value);
      yield value;
      echoed.push(await host.echo(value));
    }
    return echoed;
  }`;
  await check(t, 15, [fc.array(json, { minLength: 1, maxLength: 25, size: 'max' })], async (values) => {
    const yielded = [];
    const progressed = [];
    const back = await run(source, { values }, undefined, {
      functions: { echo: (value) => value },
      onYield: (value) => void yielded.push(value),
      onProgress: (value) => void progressed.push(value),
    });
    const expected = JSON.stringify(values.map(withoutProto));
    assert.equal(JSON.stringify(yielded), expected);
    assert.equal(JSON.stringify(back), expected);
    // News of progress may come shortly after the result, and of many the oldest are dropped.
    await until(() => progressed.length === values.length, 5000, 'all progress is there');
    assert.equal(JSON.stringify(progressed), expected);
  });
});

const fileName = fc.stringMatching(/^[a-z0-9 _é~-]{1,12}$/).filter((name) => !/^[ .]|[ .]$/.test(name));
const filesGiven = fc.dictionary(
  fc.array(fileName, { minLength: 1, maxLength: 3 }).map((parts) => parts.join('/')),
  fc.uint8Array({ maxLength: 3000, size: 'max' }),
  { minKeys: 1, maxKeys: 12, noNullPrototype: true }
);
/** No file is a folder of another. */
const fits = (files) =>
  Object.keys(files).every((one) => !Object.keys(files).some((other) => other.startsWith(`${one}/`)));

test('bytes come back equal through files', async (t) => {
  const source = `async ({ names }) => {
    const { readFileSync, mkdirSync, writeFileSync } = await import('node:fs');
    for (const name of names) {
      const to = 'out/' + name;
      mkdirSync(to.slice(0, to.lastIndexOf('/')), { recursive: true });
      writeFileSync(to, readFileSync(name).reverse());
    }
  }`;
  const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');
  await check(
    t,
    15,
    [filesGiven.filter((files) => fits(files) && !Object.keys(files).includes('out'))],
    async (files) => {
      const names = Object.keys(files);
      const found = {};
      await run(source, { names }, undefined, {
        files: { ...files },
        collect: {
          match: 'out/**',
          onFile: async ({ path, stream }) => {
            found[path.slice('out/'.length)] = digest(Buffer.concat(await stream.toArray()));
          },
        },
      });
      const expected = names.map((name) => [name, digest(Buffer.from(files[name]).reverse())]);
      assert.deepEqual(Object.entries(found).sort(), expected.sort());
    }
  );
});

/* ------------------------------------------------------------------ shapes */

const CODES = (() => {
  const types = readFileSync(join(ROOT, 'index.d.ts'), 'utf8');
  const [, union] = /export type SandboxErrorCode =\n(.+?)\n\n/s.exec(types);
  return new Set([...union.matchAll(/\| '([A-Z_]+)'/g)].map(([, code]) => code));
})();

/** The outcome of a promise that has to settle, with a value or a `SandboxError` of a documented code. */
async function assertSettles(what, make) {
  let promise;
  try {
    promise = make();
  } catch (error) {
    assert.fail(`${what} threw synchronously: ${error?.stack}`);
  }
  assert.ok(promise instanceof Promise, `${what} gave no promise`);
  const late = delay(SETTLED_WITHIN_MS, 'late', { ref: false });
  const error = await Promise.race([
    promise.then(
      () => undefined,
      (reason) => reason ?? new Error('rejected with nothing')
    ),
    late,
  ]);
  assert.notEqual(error, 'late', `${what} is not settled after ${SETTLED_WITHIN_MS} ms`);
  if (error !== undefined) assertDocumented(what, error);
}

function assertDocumented(what, error) {
  assert.ok(error instanceof surface().SandboxError, `${what} failed with no SandboxError: ${error?.stack ?? error}`);
  assert.ok(CODES.has(error.code), `${what}: undocumented code ${error.code}`);
  // The package's word for a fault of its own: no shape of a value may come to that.
  assert.notEqual(error.code, 'OUTCOME_UNKNOWN', `${what}: ${error.message}`);
}

/** Calls `act`, which may throw, but nothing else than a documented error. */
function assertThrowsKnown(what, act) {
  try {
    return act();
  } catch (error) {
    assertDocumented(what, error);
    return undefined;
  }
}

const argsShape = fc.oneof({ weight: 3, arbitrary: good({ n: 1 }) }, odd);
const idShape = fc.oneof({ weight: 3, arbitrary: good('a-tool') }, odd);
const AT_ONCE = { minLength: 1, maxLength: 12 };

test('any shape of a call settles', { timeout: 90_000 }, async (t) => {
  const given = fc.array(fc.tuple(idShape, argsShape, configShape, callShape), AT_ONCE);
  // A range that npm would look for is nothing that this is about.
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = new Factory({ dependencies: { allow: ['alpha'] } });
  await check(t, 150, [given], async (calls) => {
    const made = calls.map((makers) => makers.map((make) => make()));
    await Promise.all(
      made.map((values, n) => assertSettles(`call ${n}`, () => factory.executeFunctionTool(...values)))
    );
  });
  assert.deepEqual(await factory.executeFunctionTool('t', { n: 2 }, GOOD_CONFIG), { n: 2 });
});

test('any shape of options settles', { timeout: 90_000 }, async (t) => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native } = surface();
  const classes = fc.constantFrom(Factory, Native);
  await check(t, 150, [fc.array(fc.tuple(classes, optionsShape), AT_ONCE)], async (given) => {
    const made = given.map(([Class, make]) => [Class, make()]);
    await Promise.all(
      // The source is refused after the options are taken, and before anything is spent.
      made.map(([Class, options], n) =>
        assertSettles(`options ${n}`, () => new Class(options).executeFunctionTool('t', {}, tool('() =>')))
      )
    );
  });
});

/** The other entry points, by how their arguments are given. */
const entryPoints = ({ SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native, ...rest }) => ({
  'settles getForSession': (id) => Factory.getForSession(id).executeFunctionTool('t', {}, tool('() =>')),
  'settles cleanupSession': (id, options) => Factory.cleanupSession(id, options),
  'settles cleanup': (options) => new Factory().cleanup(options),
  'settles cleanup of a native executor': (options) => new Native().cleanup(options),
  'settles warm': (sets) => new Factory({ dependencies: { allow: ['alpha'] } }).warm(sets),
  'settles shutdown': (options) => rest.shutdown(options).finally(() => rest.gracefulShutdown({ signals: [] })()),
  'throws describeFunctions': (functions, schemas) => rest.describeFunctions(functions, schemas),
  'throws registerProvider': (name, provider) => rest.registerProvider(name, provider),
  'throws gracefulShutdown': (options) => rest.gracefulShutdown(options)(),
});

const entryPoint = fc.constantFrom(...Object.keys(entryPoints(surface())));
const entryArgument = fc.oneof(
  odd,
  shape({ deadlineMs: good(100), signals: good(['SIGUSR2']), before: good(() => {}), create: undefined }),
  fc.array(odd, { maxLength: 3 }).map((makers) => maker(() => makers.map((make) => make()), fc.stringify(makers))),
  named(['alpha', 'crm.find'], odd)
);

test('any shape of what the other entry points take settles, or throws a documented error', {
  timeout: 90_000,
}, async (t) => {
  const acts = entryPoints(surface());
  await check(t, 400, [entryPoint, entryArgument, entryArgument], async (name, ...makers) => {
    const values = makers.map((make) => make());
    const act = () => acts[name](...values);
    if (name.startsWith('settles')) await assertSettles(name, act);
    else assertThrowsKnown(name, act);
  });
});

/* ------------------------------------------------------------------ orders */

const SESSIONS = ['session 1', 'session 2'];
const TARGETS = ['main', 'native', 'own 1', 'own 2', ...SESSIONS];
const deadlineMs = fc.constantFrom(undefined, undefined, 0, 40, 5000);
const of = (op, fields = {}) => fc.record({ op: fc.constant(op), ...fields });
const target = fc.constantFrom(...TARGETS);

const operation = fc.oneof(
  { weight: 12, arbitrary: of('call', { kind: fc.constantFrom(...CALL_KINDS), target }) },
  { weight: 2, arbitrary: of('cleanup', { target, deadlineMs }) },
  { weight: 2, arbitrary: of('cleanupSession', { target: fc.constantFrom(...SESSIONS, 'session 3'), deadlineMs }) },
  { weight: 1, arbitrary: of('warm', { target }) },
  { weight: 1, arbitrary: of('shutdown', { deadlineMs: fc.constantFrom(0, 40, 1000) }) },
  { weight: 1, arbitrary: of('reopen') },
  { weight: 1, arbitrary: of('configure') },
  { weight: 1, arbitrary: of('look') },
  { weight: 4, arbitrary: of('wait', { ms: fc.constantFrom(0, 1, 10, 60) }) }
);

test('any order of calls, cleanups, configurations, sessions and shutdowns keeps the rules', {
  timeout: 90_000,
}, async (t) => {
  const sequence = fc.array(operation, { minLength: 1, maxLength: 40, size: 'max' });
  const { NativeSandboxExecutor: Native } = surface();
  await run('() => 1');
  await check(t, 25, [sequence], async (operations) => {
    assert.deepEqual(await runInThread(operations), []);
    const isIdle = () =>
      Object.entries(new Native().getExecutionStats()).every(
        ([name, { availablePermits, queueLength }]) =>
          availablePermits === Number(name.slice('vcpu_'.length)) && queueLength === 0
      );
    await until(isIdle, 10_000, 'every permit is back');
  });
});

test('nothing is left of all of these', { skip: !LINUX }, async () => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native } = surface();
  await Factory.getInstance().cleanup();
  await Native.getInstance().cleanup();
  const others = () => below(process.pid).filter((pid) => pid !== launcherPid());
  await until(() => others().length === 0, 15_000, 'no process but the launcher');
  const runFolders = () => filesBelow(world.tmp).filter((path) => /(^|\/)runs?\/[^/]+$/.test(path));
  await until(() => runFolders().length === 0, 15_000, 'no run folder');
  await until(() => openDescriptors() < 60, 15_000, 'descriptors are closed');
});
