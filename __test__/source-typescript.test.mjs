// What TypeScript can write (`tests/fixtures/source/constructs.json`) does in a sandbox what it does when TypeScript's own compiler has transformed it and plain
// Node runs it; where it does not, the file says why. Places in errors stay the user's after everything that is lowered.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { ownWorld, ROOT, rejection, surface, tool } from './helpers.mjs';

const CONSTRUCTS = JSON.parse(readFileSync(join(ROOT, 'tests', 'fixtures', 'source', 'constructs.json'), 'utf8'));

/** Calls at a time. */
const CALLERS = 4;

let factory;
let folder;

before(() => {
  ownWorld();
  folder = mkdtempSync(join(tmpdir(), 'constructs-'));
  factory = new (surface().SandboxExecutorFactory)();
});
after(async () => {
  await factory.cleanup();
  rmSync(folder, { recursive: true, force: true });
});

function call(code) {
  return factory.executeFunctionTool('t', {}, tool(code, { sandbox: { runtime: 'typescript', vcpus: CALLERS } }));
}

const name = (index) => `case-${index}.${CONSTRUCTS[index].commonjs ? 'c' : 'm'}`;

/** Compiles all constructs of one kind of decorators with TypeScript's compiler. */
function compile(legacy) {
  const own = join(folder, legacy ? 'legacy' : 'standard');
  mkdirSync(own);
  const files = CONSTRUCTS.flatMap((construct, index) => {
    if ((construct.legacy ?? false) !== legacy) return [];
    const file = join(own, `${name(index)}ts`);
    writeFileSync(file, construct.code);
    return [file];
  });
  const options = ['--noCheck', '--target', 'es2022', '--module', 'nodenext', '--moduleDetection', 'force'];
  if (legacy) options.push('--experimentalDecorators');
  const compiler = join(createRequire(import.meta.url).resolve('typescript/package.json'), '..', 'lib', 'tsc.js');
  const args = [compiler, ...options, '--rootDir', own, '--outDir', join(own, 'out'), ...files];
  const { stderr, error } = spawnSync(process.execPath, args, { cwd: own, encoding: 'utf8' });
  assert.ok(error === undefined && stderr === '', `${error}${stderr}`);
  return join(own, 'out');
}

/** Runs what the compiler wrote, in a process of its own. */
function reference(outs) {
  const files = CONSTRUCTS.map(
    ({ legacy }, index) => pathToFileURL(join(outs[legacy ? 1 : 0], `${name(index)}js`)).href
  );
  const script = `const results = [];
    for (const file of ${JSON.stringify(files)}) {
      try {
        const { default: own } = await import(file);
        const value = await (typeof own === 'function' ? own : own.execute)({});
        results.push(JSON.parse(JSON.stringify(value) ?? 'null'));
      } catch {
        results.push(null);
      }
    }
    process.stdout.write(JSON.stringify(results));`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' });
  assert.notEqual(stdout, '', stderr);
  return JSON.parse(stdout);
}

test('the compiler of TypeScript gives what the constructs say', () => {
  const results = reference([compile(false), compile(true)]);
  const faults = CONSTRUCTS.flatMap((construct, index) => {
    const expected = 'typescript' in construct ? construct.typescript : construct.returns;
    if (isDeepStrictEqual(results[index], expected)) return [];
    return [`${construct.name}: ${JSON.stringify(results[index])}, not ${JSON.stringify(expected)}`];
  });
  assert.equal(faults.length, 0, faults.join('\n'));
});

test('every construct does the same in a sandbox', async () => {
  assert.ok(CONSTRUCTS.length >= 140, `${CONSTRUCTS.length} constructs`);
  const faults = [];
  const left = CONSTRUCTS.values();
  async function caller() {
    for (const { name, code, returns } of left) {
      const value = await call(code).catch(({ code, message }) => `${code}: ${message}`);
      if (!isDeepStrictEqual(value ?? null, returns)) {
        faults.push(`${name}: ${JSON.stringify(value)}, not ${JSON.stringify(returns)}`);
      }
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, caller));
  assert.equal(faults.length, 0, faults.join('\n'));
});

/** Code that throws, with « (which is no part of it) where the frames of the stack are; the first one is the innermost. */
const PLACES = {
  'a decorated method': `const pass = (value: any, context: any) => value;
interface Nothing { a: 1 }
class A {
  @pass
  run(): never { throw «new Error('here') }
}
export default () => new A().«run();`,
  'a decorator': `const broken = (value: any, context: any) => {
  throw «new Error('here');
};
export default () => {
  class A { @broken m() {} }
};`,
  'an accessor': `type T = number;
class A {
  accessor x: T = (() => { throw «new Error('here') })«();
}
export default () => «new A();`,
  'a static of a class with decorators': `const pass = (value: any, context: any) => {};
export default () => {
  @pass class A {
    static x: number = (() => { throw «new Error('here') })«();
  }
};`,
  'a private method with a decorator': `const pass = (value: any, context: any) => value;
class A {
  @pass #run(): never { throw «new Error('here') }
  go() { return this.«#run() }
}
export default () => new A().«go();`,
  'below a using': `type T = Disposable;
export default () => {
  using a = { [Symbol.dispose]() {} };
  throw «new Error('here');
};`,
  'below a using at the top level': `using a = { [Symbol.dispose]() {} };
enum E { A }
export default () => {
  throw «new Error('here');
};`,
  'in a loop with using': `export default () => {
  for (using a = { n: 0, [Symbol.dispose]() {} }; a.n < 1; a.n++) {
    throw «new Error('here');
  }
};`,
  'below an enum and a namespace': `enum E { A = 1, B }
namespace N { export const f = (): never => { throw «new Error('here') } }
export default () => N.«f();`,
  'below older decorators': `const older = (target: any, key: string, descriptor: PropertyDescriptor) => descriptor;
class A { @older run(): never { throw «new Error('here') } }
export default () => new A().«run();`,
};

/** `text`, and the `line:column` of each mark. */
function marked(text) {
  const places = text
    .split('\n')
    .flatMap((line, row) => [...line.matchAll(/«/g)].map(({ index }, before) => `${row + 1}:${index + 1 - before}`));
  return { code: text.replaceAll('«', ''), places };
}

for (const [where, text] of Object.entries(PLACES)) {
  test(`an error: ${where}, is shown at its place`, async () => {
    const { code, places } = marked(text);
    const { cause } = await rejection(call(code));
    const found = [...cause.stack.matchAll(/work\/index\.[cm]js:(\d+:\d+)/g)].map(([, place]) => place);
    for (const place of places) assert.ok(found.includes(place), `${place} of ${places} in\n${cause.stack}`);
    assert.equal(found[0], places[0], cause.stack);
  });
}

const REFUSED = {
  'decorators of both kinds': [
    `const a = (value: any, context: ClassMethodDecoratorContext) => value;
const b = (target: any, key: string, descriptor: PropertyDescriptor) => descriptor;
class A { @a m() {} @b n() {} }
export default () => 1;`,
    /two kinds: .* on line 1, and .* on line 2[\s\S]*@experimentalDecorators/,
  ],
  'yield in a decorator': [
    `const d = (x: any) => (value: any, context: any) => value;
export default () => { function* g() { class A { @d(yield) m() {} } } return g() };`,
    /`yield` in the decorators/,
  ],
  'import defer': [
    `import defer * as os from 'node:os';\nexport default () => os.EOL`,
    /Write `import` without `defer`/,
  ],
};

for (const [what, [code, message]] of Object.entries(REFUSED)) {
  test(`${what} is refused with what to write`, async () => {
    const error = await rejection(call(code));
    assert.equal(error.code, 'INVALID_SOURCE');
    assert.match(error.message, message);
  });
}

test('a comment says which decorators are meant', async () => {
  const code = `function d(value: any, context?: any) { return typeof context === 'object' ? () => 'standard' : undefined }
class A { @d m() { return 'older' } }
export default () => new A().m();`;
  assert.equal(await call(code), 'standard');
  assert.equal(await call(`// @experimentalDecorators\n${code}`), 'older');
  assert.equal(await call(`// @experimentalDecorators: false\n${code}`), 'standard');
});
