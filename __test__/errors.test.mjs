// Every rejection a caller can meet: its code, its phase, and the text that models read.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { format, inspect } from 'node:util';
import { ownWorld, rejection, run, surface, tool } from './helpers.mjs';

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
  assert.deepEqual([error.cause.name, `${error.cause}`], ['RangeError', 'RangeError: no price']);
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
    assert.deepEqual([many.name, many.errors], ['AggregateError', [expected]]);
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

/** What the run API does with an error: it rethrows the innermost cause that is an `Error`. */
function unwrapped(error) {
  let inner = error;
  while (inner.cause instanceof Error) inner = inner.cause;
  return inner;
}

test('a server that rethrows the innermost cause keeps the text of the call, and no name that the function chose', async () => {
  const { NativeSandboxExecutor } = surface();
  const signal = AbortSignal.abort(new Error('the user left'));
  const elsewhere = `require('vm').runInNewContext("new Error('inner')")`;
  for (const [source, text, given] of [
    ["throw new Error('outer', { cause: new Error('inner') })", /code 1: Error: outer\n[\s\S]*inner$/],
    [`throw new Error('outer', { cause: ${elsewhere} })`, /code 1: Error: outer/],
    ["throw Object.assign(new Error('outer'), { name: 'connection_refused' })", /code 1: connection_refused: outer/],
    ["throw new AggregateError([new Error('inner')], 'outer')", /code 1: AggregateError: outer/],
    ["throw { name: 'Error', message: 'outer', cause: { name: 'x', message: 'inner' } }", /code 1: .*outer/],
    ["return { toJSON() { throw new Error('outer') } }", /outer/],
    ['return 1', /^Function execution aborted: the user left$/, { signal }],
  ]) {
    const error = await rejection(
      new NativeSandboxExecutor().executeFunctionTool('t', {}, tool(`() => { ${source} }`), given)
    );
    assert.equal(unwrapped(error), error, source);
    assert.equal(error.name, 'SandboxError');
    assert.match(error.message, text);
  }
});

test('an error prints whatever the keys of what was thrown', async () => {
  const odd = [
    '{ toString: 1 }',
    '{ toString: null, valueOf: null }',
    '{ toString: {}, valueOf: [] }',
    '{ toLocaleString: 1, hasOwnProperty: 1 }',
    '{ constructor: null }',
    '{ constructor: { name: 7, prototype: { spoilt: 1 } } }',
    '{ ["__proto__"]: { spoilt: 1 } }',
    '{ toJSON: 1, then: 1, inspect: 1 }',
    '{ "Symbol.toPrimitive": 1, "nodejs.util.inspect.custom": 1, "Symbol(nodejs.util.inspect.custom)": 1 }',
    '{ name: 7, message: { toString: 1 }, stack: [{ toString: 1 }], cause: { toString: 1 }, errors: 1, code: { toString: 1 } }',
    '{ name: "", message: "", stack: "" }',
    '{ deep: { message: "m", stack: { toString: 1 }, cause: { message: "n", toString: 1 }, list: [{ valueOf: 1 }] } }',
  ];
  for (const fields of odd) {
    for (const source of [
      `throw Object.assign(new Error('x'), ${fields})`,
      `throw Object.defineProperties(new Error('x'), Object.getOwnPropertyDescriptors(${fields}))`,
      `throw ${fields}`,
      `throw new Error('x', { cause: ${fields} })`,
      `throw new AggregateError([${fields}], 'x')`,
    ]) {
      const error = await rejection(run(`() => { ${source}; }`));
      assert.equal(error.code, 'TOOL_ERROR', source);
      assertPrints(error, source);
    }
  }
});

/** An error and all objects below it. */
function assertPrints(error, what) {
  for (const print of [String, inspect, JSON.stringify, (value) => format('%s %o %j', value, value, value), loggable]) {
    assert.doesNotThrow(() => print(error), what);
    assertEach(error.cause, (part) => assert.doesNotThrow(() => print(part), `${what}: ${inspect(part)}`));
  }
  assertEach(error.cause, (part) => {
    assert.ok(!(part instanceof Error), what);
    assert.equal(Object.getPrototypeOf(merged({}, part)).spoilt, undefined, what);
  });
  assert.equal({}.spoilt, undefined, what);
}

function assertEach(value, check, depth = 0) {
  check(value);
  if (value === null || typeof value !== 'object') return;
  for (const part of Object.values(value)) assertEach(part, check, depth + 1);
}

/** What the error serializer of loggers does: names of constructors, stacks and messages of causes joined. */
function loggable(error) {
  const isErrorLike = (value) => value && typeof value.message === 'string';
  if (!isErrorLike(error)) return error;
  const stacks = (one) => (one.stack || '') + (isErrorLike(one.cause) ? `\ncaused by: ${stacks(one.cause)}` : '');
  const messages = (one) => one.message + (isErrorLike(one.cause) ? `: ${messages(one.cause)}` : '');
  const out = { type: error.constructor.name, message: messages(error), stack: stacks(error) };
  for (const key in error) if (out[key] === undefined) out[key] = key === 'cause' ? undefined : loggable(error[key]);
  return JSON.stringify(out);
}

/** A merge as hosts write it, without a guard. */
function merged(target, source) {
  for (const key in source) {
    target[key] = typeof source[key] === 'object' ? merged(target[key] ?? {}, source[key] ?? {}) : source[key];
  }
  return target;
}

test('no control character is in the message, the stack or the tails of an error', async () => {
  const controls = String.fromCharCode(
    ...[
      0, 1, 7, 8, 11, 12, 13, 0x1b, 0x1f, 0x7f, 0x80, 0x85, 0x9b, 0x9f, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202e,
    ],
    ...[0x2066, 0x2069, 0x061c]
  );
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are looked for
  const control = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;
  const given = JSON.stringify(controls);
  for (const source of [
    `throw new Error(${given})`,
    `throw ${given}`,
    `throw new Error('x', { cause: new Error(${given}) })`,
    `throw Object.assign(new Error('x'), { name: ${given}, code: ${given} })`,
    `throw Object.defineProperty(new Error('x'), 'stack', { value: 'Error: x' + ${given} })`,
    `console.error(${given}); console.log(${given}); process.exit(3)`,
    `process.stderr.write(${given}); process.kill(process.pid, 'SIGKILL'); for (;;);`,
    `return { toJSON() { throw new Error(${given}) } }`,
    `Promise.reject(new Error(${given})); return new Promise(() => setTimeout(() => {}, 5000))`,
  ]) {
    const error = await rejection(run(`() => { ${source}; }`));
    for (const text of [error.message, error.stack, error.stdout, error.stderr, error.cause?.stack, error.cause?.name])
      if (text !== undefined) assert.doesNotMatch(text, control, source);
    assert.doesNotMatch(String(error.cause?.name === undefined ? '' : error.cause), control, source);
  }
  const kept = await rejection(run(`() => { throw new Error(${given}); }`));
  assert.equal(kept.cause.message, controls);
  assert.match(kept.message, /\\u001b/);
  const lines = await rejection(run(`() => { throw new Error('one\\r\\ntwo\\tthree'); }`));
  assert.match(lines.message, /one\ntwo\tthree/);
});

test('name, code and stack of what was thrown are bounded', async () => {
  const error = await rejection(
    run(`() => {
      const error = new Error('x');
      error.name = 'n'.repeat(20_000);
      error.code = 'c'.repeat(20_000);
      error.stack = 's'.repeat(1e6);
      throw error;
    }`)
  );
  const { name, code, stack } = error.cause;
  assert.deepEqual([name.length, code.length], [257, 257]);
  assert.ok(stack.length <= 32 * 1024 + 1, `${stack.length}`);
});
