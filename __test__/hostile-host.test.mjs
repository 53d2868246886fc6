// Hosts that changed the language: fields on `Object.prototype`, built-in functions replaced, before the package is
// imported or after.

import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { host, ownWorld, SURFACE } from './helpers.mjs';

before(ownWorld);

/** What is done to the language, by what it is called here. */
const DEEDS = {
  'fields on Object.prototype': `
    Object.prototype.get = () => 1; Object.prototype.set = () => 1; Object.prototype.value = 1;
    for (const name of ['stdout', 'stderr', 'cause', 'causeJson', 'onLogs', 'nodePath', 'lingerMs', 'start', 'code'])
      Object.prototype[name] = 'from the prototype';`,
  'a toJSON on every array and object': `
    Array.prototype.toJSON = () => 'spoilt';
    Object.defineProperty(Object.prototype, 'toJSON', { value() { return 'spoilt'; }, configurable: true, writable: true });`,
};

/** What is only done once the package is there: what it takes of the language must be the language's own then. */
const LATER_DEEDS = {
  'collections without their methods': `
    for (const { prototype } of [Map, WeakMap, Set])
      for (const name of ['get', 'set', 'has', 'add', 'delete', 'forEach']) delete prototype[name];`,
  'arrays without their methods': `
    for (const name of ['map', 'filter', 'some', 'includes', 'find', 'push', 'join', 'entries'])
      Array.prototype[name] = () => { throw new Error(name + ' is gone'); };`,
  'texts without their methods': `
    for (const name of ['slice', 'indexOf', 'includes', 'split', 'toWellFormed', 'replace'])
      String.prototype[name] = () => { throw new Error(name + ' is gone'); };`,
  'another JSON': `JSON.parse = JSON.stringify = () => { throw new Error('JSON is gone'); };`,
  'another Promise': `
    Promise.prototype.then = Promise.prototype.catch = Promise.prototype.finally = () => { throw new Error('then is gone'); };`,
  'other functions of Object and Reflect': `
    for (const holder of [Object, Reflect])
      for (const name of ['keys', 'entries', 'fromEntries', 'defineProperty', 'assign', 'hasOwn', 'apply'])
        holder[name] = () => { throw new Error(name + ' is gone'); };`,
};

/** Runs calls and prints what became of them, by what was taken of the language at the start. */
function body(beforeImport, afterImport) {
  const call = `{ description: '', inputSchema: {}, dependencies: {}, executeCode: code,
    sandboxConfig: { __proto__: null, provider: 'native', runtime: 'node22', timeout: 20000, vcpus: 1 } }`;
  return `
    const { stringify } = JSON; const { write } = process.stdout; const out = process.stdout; const { apply } = Reflect;
    const { exit } = process; const { createRequire } = await import('node:module');
    const require = createRequire(${JSON.stringify(SURFACE)});
    ${beforeImport}
    const { NativeSandboxExecutor } = require(${JSON.stringify(SURFACE)});
    ${afterImport}
    const native = new NativeSandboxExecutor({ __proto__: null, timeoutMs: 9000, env: ['NSE_*'] });
    const run = async (code) => {
      try { return { __proto__: null, is: (await native.executeFunctionTool('t', { __proto__: null, n: 2 }, ${call})) }; }
      catch (error) { return { __proto__: null, code: error.code, message: error.message, stack: typeof error.stack, why: error.cause && error.cause.message }; }
    };
    const first = await run('({ n }) => ({ twice: n * 2 })');
    const second = await run('() => { throw new TypeError("no") }');
    const bare = (object) => (Object.setPrototypeOf(object, null), object);
    const stats = native.getExecutionStats();
    apply(write, out, [stringify(bare([bare(first.is ?? first), second, bare(stats).vcpu_1 !== undefined])) + '\\n', () => exit(0)]);`;
}

for (const [when, deeds] of [
  ['before', DEEDS],
  ['after', { ...DEEDS, ...LATER_DEEDS }],
]) {
  for (const [what, deed] of Object.entries(deeds)) {
    test(`${what}, ${when} the import`, { timeout: 60_000 }, async () => {
      const { said, err, code } = await host(when === 'before' ? body(deed, '') : body('', deed), { bare: true })
        .exited;
      assert.equal(code, 0, err);
      const [[first, second, counted]] = said;
      assert.deepEqual(first, { twice: 4 });
      assert.deepEqual(second, {
        code: 'TOOL_ERROR',
        message: 'Function execution failed with code 1: TypeError: no',
        stack: 'string',
        why: 'no',
      });
      assert.equal(counted, true);
    });
  }
}
