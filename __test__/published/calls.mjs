// Calls that are made to the published original and to this package. What they answer is the same, or differs for the reason
// that `differs` names: an id of `docs/COMPATIBILITY.md`. Then `original` and `ours` say what each answers: a value, or a
// regular expression for the text of a rejection.

/** One call. `code` in a form that the original runs, unless the form is what differs. */
const call = (name, code, over = {}) => ({ name, calls: [{ code, ...over }] });
const differs = (name, id, code, { original, ours, ...over }) => ({
  ...call(name, code, over),
  differs: id,
  original,
  ours,
});

const NO_ARGUMENTS = { args: {} };

export const CASES = [
  /* values */
  call('arguments', 'async ({ a, b }) => { return { a, b, sum: a + b.length }; }', { args: { a: 1, b: 'zwei' } }),
  call('arguments of every JSON kind', 'async (args) => { return args; }', {
    args: { s: 'ü€😀"\\\n', n: -0.5, t: true, z: null, l: [1, [2, { x: [] }]], o: { '': 0, 'a b': 1 } },
  }),
  call('arguments that JSON leaves out or changes', 'async (args) => { return [args, Object.keys(args)]; }', {
    args: { u: undefined, nan: Number.NaN, date: new Date(0), inner: { u: undefined } },
  }),
  call('no arguments', 'async (args) => { return Object.keys(args).length; }', NO_ARGUMENTS),
  call('undefined', 'async () => { return undefined; }'),
  call('no return', 'async () => {}'),
  call('null', 'async () => { return null; }'),
  call('false', 'async () => { return false; }'),
  call('zero', 'async () => { return 0; }'),
  call('empty text', "async () => { return ''; }"),
  call('NaN', 'async () => { return NaN; }'),
  call('a date', 'async () => { return new Date(86400000); }'),
  call('a map', 'async () => { return new Map([[1, 2]]); }'),
  call('toJSON', 'async () => { return { toJSON: () => ({ x: 1 }) }; }'),
  call('holes and undefined in a list', 'async () => { return [, undefined, () => 1]; }'),
  call('a function', 'async () => { return () => 1; }'),
  call('text that looks like a result', `async () => { return '{"success":true,"result":1}'; }`),
  call('an object that looks like a failure', "async () => { return { success: false, error: 'no' }; }"),
  call('a large result', "async () => { return 'x'.repeat(200000); }"),
  call('letters beyond ASCII', "async () => { return '値'.repeat(1000) + '😀'; }"),
  call('a promise within', 'async () => { return await Promise.all([Promise.resolve(1), 2]); }'),
  call('a promise without async', '() => { return new Promise((done) => setTimeout(done, 20, 7)); }'),
  call('a plain function', '() => { return 3; }'),

  /* module kinds */
  call('require of a built-in', "async () => { const { join } = require('node:path'); return join('a', 'b'); }"),
  call('import() of a built-in', "async () => { const { join } = await import('node:path'); return join('a', 'b'); }"),
  call('global functions', "async () => { return [typeof fetch, typeof structuredClone, typeof Buffer, btoa('x')]; }"),
  differs(
    'require and import() in one',
    'C9',
    "async () => { const { join } = await import('node:path'); return join(require('node:os').EOL, 'x'); }",
    {
      original: /require is not defined/,
      ours: '\n/x',
    }
  ),

  /* printing */
  call('printing before the result', "async () => { console.log('one'); console.error('two'); return 3; }"),
  call('printing JSON before the result', `async () => { console.log('{"success":true,"result":9}'); return 3; }`),
  call('printing without a newline', "async () => { process.stdout.write('...\\n'); return 3; }"),
  differs(
    'printing without a newline, right before the result',
    'C3',
    "async () => { process.stdout.write('...'); return 3; }",
    {
      original: '...{"success":true,"result":3}\n',
      ours: 3,
    }
  ),
  differs('printing after the result', 'C3', "async () => { setTimeout(() => console.log('late'), 20); return 3; }", {
    original: '{"success":true,"result":3}\nlate\n',
    ours: 3,
  }),
  differs(
    'printing a result after the result',
    'C3',
    `async () => { process.on('exit', () => console.log('{"success":true,"result":"not mine"}')); return 'mine'; }`,
    {
      original: 'not mine',
      ours: 'mine',
    }
  ),

  /* failing */
  differs('a thrown error', 'C14', "async () => { throw new Error('boom'); }", {
    original: /^Function execution failed with code 1: \{"success":false,"error":"boom"\}\n$/,
    ours: /^Function execution failed with code 1: Error: boom$/,
  }),
  differs(
    'a thrown error of a kind',
    'C14',
    "async () => { throw new TypeError('no', { cause: new Error('deep') }); }",
    {
      original: /^Function execution failed with code 1: \{"success":false,"error":"no"\}\n$/,
      ours: /^Function execution failed with code 1: TypeError: no.*deep/s,
    }
  ),
  differs('a thrown text', 'C14', "async () => { throw 'boom'; }", {
    original: /^Function execution failed with code 1: \{"success":false,"error":"boom"\}\n$/,
    ours: /^Function execution failed with code 1: boom$/,
  }),
  differs('a result that JSON cannot carry', 'C14', 'async () => { return 1n; }', {
    original: /^Function execution failed with code 1: .*BigInt/,
    ours: /BigInt/,
  }),
  differs('a result with a cycle', 'C14', 'async () => { const a = {}; a.a = a; return a; }', {
    original: /^Function execution failed with code 1: .*circular/,
    ours: /circular/,
  }),
  differs(
    'an error in a timer',
    'C14',
    "async () => { setTimeout(() => { throw new Error('later'); }, 10); return new Promise((done) => setTimeout(done, 5000)); }",
    {
      original: /^Function execution failed with code 1: .*later/s,
      ours: /^Function execution failed with code 1: .*later/s,
    }
  ),
  differs('a syntax error', 'C11', 'async () => { return 1 +; }', {
    original: /^Function execution failed with code 1: .*SyntaxError/s,
    ours: /SyntaxError|1:\d+|Unexpected/,
  }),
  differs('its own exit code', 'C13', 'async () => { process.exit(3); }', {
    original: /^Function execution failed with code 3: $/,
    ours: /^Function execution failed with code 3: the process exited before/,
  }),
  differs(
    'its own exit code, after words on stderr',
    'C14',
    "async () => { process.stderr.write('because\\n', () => process.exit(3)); await new Promise(() => {}); }",
    {
      original: /^Function execution failed with code 3: because\n$/,
      ours: /^Function execution failed with code 3: because$/,
    }
  ),
  differs('its own exit code 0', 'C13', 'async () => { process.exit(0); }', { original: '', ours: /code 0/ }),
  differs('nothing left to wait for', 'C13', 'async () => { await new Promise(() => {}); }', {
    original: '',
    ours: /settle|event loop/i,
  }),
  differs(
    'its own signal',
    'C13',
    "async () => { process.kill(process.pid, 'SIGKILL'); await new Promise((done) => setTimeout(done, 5000)); }",
    {
      original: /^Function execution killed by signal SIGKILL: $/,
      ours: /^Function execution killed by signal SIGKILL: the process was killed before/,
    }
  ),
  call('a timeout', 'async () => { await new Promise((done) => setTimeout(done, 20000)); }', {
    sandbox: { timeout: 400 },
  }),
  call('a timeout with a busy loop', 'async () => { for (;;); }', { sandbox: { timeout: 400 } }),
  call(
    'too much output',
    "async () => { console.log('x'.repeat(3000000)); await new Promise((done) => setTimeout(done, 3000)); return 1; }"
  ),
  call(
    'too much output on stderr',
    "async () => { console.error('x'.repeat(3000000)); await new Promise((done) => setTimeout(done, 3000)); return 1; }"
  ),
  call('a result beyond the limit', "async () => { return 'x'.repeat(2000000); }"),

  /* forms */
  differs('an expression', 'C9', '({ n }) => n + 1', { args: { n: 1 }, original: '', ours: 2 }),
  differs('an async expression', 'C9', 'async ({ n }) => n + 1', { args: { n: 1 }, original: '', ours: 2 }),
  call('an expression and a semicolon', '({ n }) => n + 1;', { args: { n: 1 } }),
  differs('a function expression', 'C9', 'async function (a) { return a.n; }', {
    args: { n: 4 },
    original: /is not a function/,
    ours: 4,
  }),
  differs('a named function', 'C9', 'function execute({ n }) { return n; }', {
    args: { n: 4 },
    original: /is not a function/,
    ours: 4,
  }),
  differs('TypeScript', 'C10', 'async ({ n }: { n: number }): Promise<number> => { return n; }', {
    args: { n: 4 },
    sandbox: { runtime: 'typescript' },
    original: /SyntaxError/,
    ours: 4,
  }),

  /* the world of the function */
  differs('the variables of the server', 'C8', 'async () => { return process.env.SERVER_SECRET ?? null; }', {
    original: 'a secret',
    ours: null,
  }),
  differs('reading stdin', 'C19', 'async () => { for await (const _ of process.stdin); return 1; }', {
    sandbox: { timeout: 2000 },
    original: /timed out/,
    ours: 1,
  }),
  differs('a timer that is left running', 'C4', 'async () => { setInterval(() => {}, 1000); return 1; }', {
    sandbox: { timeout: 1500 },
    original: /timed out/,
    ours: 1,
  }),

  /* configuration */
  call('no sandbox', 'async () => { return 1; }', { noSandbox: true }),
  call('an unknown provider', 'async () => { return 1; }', { sandbox: { provider: 'moon' } }),
  call('timeout 0 is the default', 'async () => { return 1; }', { sandbox: { timeout: 0 } }),
  call('no timeout, no vcpus', 'async () => { return 1; }', { sandbox: { timeout: undefined, vcpus: undefined } }),
  call('a fraction of vcpus', 'async () => { return 1; }', { sandbox: { vcpus: 0.5 } }),
  call('vcpus as a text', 'async () => { return 1; }', { sandbox: { vcpus: '2' } }),
  differs('a negative timeout', 'C21', 'async () => { return 1; }', {
    sandbox: { timeout: -5 },
    original: /timed out after -5ms/,
    ours: /timeout must be a positive number/,
  }),

  /* dependencies */
  call('a dependency', "async () => { const one = require('a-package'); return one.name; }", {
    dependencies: { 'a-package': '1.0.0' },
  }),
  call('a dependency, the second time', "async () => { const one = require('a-package'); return one.name; }", {
    dependencies: { 'a-package': '1.0.0' },
  }),
  call('a dependency by import()', "async () => { const one = await import('a-package'); return one.default.name; }", {
    dependencies: { 'a-package': '1.0.0' },
  }),
  call('a range and a tag', "async () => { return [require('a-package').version, require('b-package').version]; }", {
    dependencies: { 'a-package': '^1.0.0', 'b-package': 'latest' },
  }),
  call(
    'a package that is not a dependency',
    "async () => { try { require('b-package'); return 'found'; } catch (error) { return error.code; } }",
    {
      dependencies: { 'a-package': '1.0.0' },
    }
  ),
  {
    ...call('a package that does not exist', 'async () => { return 1; }', {
      dependencies: { 'no-such-package': '1.0.0' },
    }),
    alike: /^npm install failed with code 1: .*E404/s,
  },
  {
    ...call('a version that does not exist', 'async () => { return 1; }', { dependencies: { 'a-package': '9.9.9' } }),
    alike: /^npm install failed with code 1: .*ETARGET/s,
  },
  differs('a spec that is a folder', 'C22', 'async () => { return 1; }', {
    dependencies: { 'a-package': 'file:../../elsewhere' },
    original: 1,
    ours: /a-package/,
  }),

  /* many at once */
  {
    name: 'calls at once with arguments of their own',
    differs: 'C2',
    calls: Array.from({ length: 8 }, (_, n) => ({
      code: 'async ({ n }) => { return n; }',
      args: { n },
      sandbox: { vcpus: 8 },
    })),
    ours: [0, 1, 2, 3, 4, 5, 6, 7],
  },
  {
    name: 'tools at once with dependencies of their own',
    calls: ['a-package', 'b-package'].map((name) => ({
      code: `async () => { return require('${name}').name; }`,
      dependencies: { [name]: '1.0.0' },
    })),
  },
  {
    name: 'calls beyond the permits wait their turn',
    differs: 'C2',
    calls: Array.from({ length: 4 }, (_, n) => ({
      code: 'async ({ n }) => { await new Promise((done) => setTimeout(done, 100)); return n; }',
      args: { n },
      sandbox: { vcpus: 2 },
    })),
    ours: [0, 1, 2, 3],
  },
  {
    name: 'a wait beyond the limit of the queue',
    differs: 'C1',
    env: { AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS: '300' },
    calls: Array.from({ length: 2 }, () => ({
      code: 'async () => { await new Promise((done) => setTimeout(done, 1500)); return 1; }',
      sandbox: { vcpus: 1 },
    })),
    original: [1, 1],
    ours: [1, /^Function execution queue timeout after 300ms\. Too many concurrent executions\.$/],
  },

  /* limits by variables */
  {
    ...call('a timeout by a variable', 'async () => { await new Promise((done) => setTimeout(done, 20000)); }', {
      sandbox: { timeout: undefined },
    }),
    env: { AGENTS_FUNCTION_TOOL_EXECUTION_TIMEOUT_MS_DEFAULT: '5e2' },
  },
  {
    ...call('an output limit by a variable', "async () => { console.log('x'.repeat(5000)); return 1; }"),
    env: { AGENTS_FUNCTION_TOOL_SANDBOX_MAX_OUTPUT_SIZE_BYTES: ' 4096 ' },
  },
];

/** What the calls depend on. */
export const PACKAGES = Object.fromEntries(
  ['a-package', 'b-package'].map((name) => [
    name,
    { '1.0.0': { 'index.js': `exports.name = '${name}'; exports.version = require('./package.json').version;` } },
  ])
);
