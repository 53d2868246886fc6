// Every rejection a caller can meet: its code, its phase, and the text that models read.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, rejection, run, surface } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** [what, source, parts of the configuration, code, phase, text] */
const CASES = [
  ['a syntax error', '() => { return a +; }', {}, 'INVALID_SOURCE', 'validate', /syntax|unexpected/i],
  ['no function', '42', {}, 'INVALID_SOURCE', 'validate', /function/i],
  ['an empty text', '', {}, 'INVALID_SOURCE', 'validate', /function/i],
  [
    'a climbing package name',
    '() => 1',
    { dependencies: { '../up': '1' } },
    'INVALID_DEPENDENCY',
    'validate',
    /\.\.\/up/,
  ],
  ['a spec that is a path', '() => 1', { dependencies: { up: 'file:../up' } }, 'INVALID_DEPENDENCY', 'validate', /up/],
  [
    'a thrown error',
    '() => { throw new TypeError("no entry") }',
    {},
    'TOOL_ERROR',
    'run',
    /^Function execution failed with code 1: TypeError: no entry/,
  ],
  [
    'a rejected promise',
    'async () => { throw new Error("late") }',
    {},
    'TOOL_ERROR',
    'run',
    /^Function execution failed with code 1: Error: late/,
  ],
  ['a missing module', '() => require("left-out")', {}, 'TOOL_ERROR', 'run', /left-out/],
  ['endless recursion', '() => { const f = () => f() + 1; return f(); }', {}, 'TOOL_ERROR', 'run', /call stack/i],
  [
    'an unhandled rejection',
    '() => { Promise.reject(new Error("unseen")); return new Promise((done) => setTimeout(done, 2000)); }',
    {},
    'TOOL_ERROR',
    'run',
    /unseen/,
  ],
  [
    'a timeout',
    '() => new Promise((done) => setTimeout(done, 60000))',
    { sandbox: { timeout: 600 } },
    'TIMEOUT',
    'run',
    /^Function execution timed out after 600ms$/,
  ],
  ['an exit with 7', '() => process.exit(7)', {}, 'EXITED', 'run', /^Function execution failed with code 7: /],
  ['an exit with 0', '() => process.exit(0)', {}, 'EXITED', 'run', /code 0|before/],
  ['nothing left to do', '() => new Promise(() => {})', {}, 'EXITED', 'run', /./],
  [
    'a signal of its own',
    '() => { process.kill(process.pid, "SIGKILL"); return new Promise((done) => setTimeout(done, 5000)); }',
    {},
    'KILLED',
    'run',
    /^Function execution killed by signal SIGKILL: /,
  ],
  ['a BigInt result', '() => 10n', {}, 'RESULT_NOT_SERIALIZABLE', 'result', /BigInt/],
  [
    'a circular result',
    '() => { const a = {}; a.a = a; return a; }',
    {},
    'RESULT_NOT_SERIALIZABLE',
    'result',
    /circular/i,
  ],
  [
    'a result that is too large',
    '() => "r".repeat(3e6)',
    {},
    'OUTPUT_LIMIT',
    'result',
    /^Output size exceeded limit of 1048576 bytes$/,
  ],
];

for (const [what, source, over, code, phase, text] of CASES) {
  test(what, async () => {
    const error = await rejection(run(source, {}, over));
    assert.deepEqual([error.code, error.phase], [code, phase], error.message);
    assert.match(error.message, text);
  });
}

test('a full heap says memory', { timeout: 60_000 }, async () => {
  const factory = new (surface().SandboxExecutorFactory)({ memoryMb: 64 });
  const { tool } = await import('./helpers.mjs');
  const greedy = tool('() => { const keep = []; for (;;) keep.push(new Array(1e5).fill({})); }', {
    sandbox: { timeout: 50_000 },
  });
  const error = await rejection(factory.executeFunctionTool('t', {}, greedy));
  assert.equal(error.code, 'MEMORY_LIMIT', error.message);
  assert.match(error.message, /memory/i);
});

test('the cause is the error that was thrown, with its fields and causes', async () => {
  const error = await rejection(
    run(`function fetchPrice() {
      const error = new RangeError('no price', { cause: new Error('certificate has expired') });
      error.status = 404;
      error.details = { sku: 'x' };
      throw error;
    }`)
  );
  assert.match(error.message, /RangeError: no price[\s\S]*certificate has expired/);
  assert.ok(error.cause instanceof RangeError);
  assert.equal(error.cause.message, 'no price');
  assert.match(error.cause.stack, /fetchPrice/);
  assert.deepEqual([error.cause.status, error.cause.details], [404, { sku: 'x' }]);
  assert.equal(error.cause.cause.message, 'certificate has expired');
});

test('a thrown plain object and a thrown text are told by their content', async () => {
  const object = await rejection(run(`() => { throw { code: 'QUOTA', limit: 50 }; }`));
  assert.match(object.message, /QUOTA/);
  const text = await rejection(run(`() => { throw 'just words'; }`));
  assert.match(text.message, /just words/);
  assert.equal(text.cause, 'just words');
});

test('the tails of stdout and stderr are on the error', async () => {
  const error = await rejection(run('() => { console.log("to out"); console.error("to err"); process.exit(2); }'));
  assert.match(error.stdout, /to out/);
  assert.match(error.stderr, /to err/);
  assert.match(error.message, /code 2: [\s\S]*to err/);
});

test('no frame of the writing of a result is in a stack, the function’s own are', async () => {
  for (const [code, frames] of [
    ['() => 10n', []],
    ['() => { const a = {}; a.a = a; return a; }', []],
    ['() => ({ toJSON() { throw new Error("x"); } })', [/^at Object\.toJSON /]],
    ['() => ({ get a() { throw new Error("x"); } })', [/^at get a /]],
    ['() => JSON.stringify(10n)', [/^at JSON\.stringify /, /index\.cjs:1:\d+/]],
    ['() => { const { stringify } = JSON; return stringify(10n); }', [/^at stringify /, /index\.cjs:1:\d+/]],
  ]) {
    const { cause } = await rejection(run(code, {}));
    const found = cause.stack.split('\n').filter((line) => line.startsWith('    at '));
    assert.equal(found.length, frames.length, cause.stack);
    for (const [at, frame] of frames.entries()) assert.match(found[at].trim(), frame);
  }
});

test('the stack shows the caller, and stack traces of the function its own lines', async () => {
  async function checkout() {
    return await run(`() => {

      throw new Error('line three');
    }`);
  }
  const error = await rejection(checkout());
  assert.match(error.stack, /^SandboxError: Function execution failed/);
  assert.match(error.stack, /errors\.test\.mjs/);
  assert.match(error.cause.stack, /:3:\d+/);
});

test('whatever is thrown, and whatever is its cause, arrives as what it is', async () => {
  const cause = async (source) => (await rejection(run(`() => { ${source} }`))).cause;
  for (const [thrown, expected] of [
    ['null', null],
    ['undefined', undefined],
    ['0', 0],
    ['-1.5', -1.5],
    ['false', false],
    ['""', ''],
    ['NaN', 'NaN'],
    ['10n', '10'],
    ['Symbol("s")', 'Symbol(s)'],
    ['Object.freeze({ a: 1 })', { a: 1 }],
    ['[1, null]', [1, null]],
  ]) {
    assert.deepEqual(await cause(`throw ${thrown};`), expected, thrown);
    const inner = await cause(`throw new Error('outer', { cause: ${thrown} });`);
    assert.equal(inner.message, 'outer');
    assert.deepEqual(inner.cause, expected, `a cause ${thrown}`);
    const many = await cause(`throw new AggregateError([${thrown}], 'many');`);
    assert.deepEqual([many.constructor, many.errors], [AggregateError, [expected]]);
  }
  assert.deepEqual((await cause(`throw new AggregateError([], 'none');`)).errors, []);
});

test('errors that are frozen, of another realm, behind proxies, or throw when they are looked at are told', async () => {
  for (const [source, text] of [
    ['throw Object.freeze(new RangeError("cold"))', /RangeError: cold/],
    ['throw require("vm").runInNewContext("new RangeError(\'elsewhere\')")', /RangeError: elsewhere/],
    ['throw new Proxy(new RangeError("veiled"), {})', /RangeError: veiled/],
    ['const { proxy, revoke } = Proxy.revocable({}, {}); revoke(); throw proxy', /code 1: ./],
    [
      'const no = () => { throw 1; }; throw new Proxy(new Error("x"), { get: no, getPrototypeOf: no, ownKeys: no })',
      /code 1: ./,
    ],
    [
      'const error = new Error("half"); Object.defineProperty(error, "cause", { get() { throw 1; } }); ' +
        'Object.defineProperty(error, "odd", { enumerable: true, get() { throw 1; } }); throw error',
      /Error: half/,
    ],
    ['const error = new Error("loop"); error.cause = error; throw error', /Error: loop/],
    ['throw Object.create(null)', /code 1: ./],
  ]) {
    const error = await rejection(run(`() => { ${source}; }`));
    assert.deepEqual([error.code, error.phase], ['TOOL_ERROR', 'run'], source);
    assert.match(error.message, text);
  }
});
