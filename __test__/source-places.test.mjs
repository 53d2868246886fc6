// Errors at run time point at the line and column of the user's own text, whatever was done to run it: thrown, caught and
// looked at by the function itself, uncaught, in nested and asynchronous functions. Frames of the package are nobody's business.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let registry;

before(async () => {
  ownWorld();
  registry = await useRegistry({
    react: {
      '1.0.0': { 'index.js': 'exports.createElement = (type, props, ...children) => ({ type, props, children });' },
    },
    caller: { '1.0.0': { 'index.js': 'module.exports = function call(f) {\n  return f();\n};' } },
  });
});
after(() => registry.close());

/** `text`, and the `line:column` of each `«` in it, which marks a place and is not part of the code. */
function marked(text) {
  const places = text
    .split('\n')
    .flatMap((line, row) => [...line.matchAll(/«/g)].map(({ index }, before) => `${row + 1}:${index + 1 - before}`));
  return { code: text.replaceAll('«', ''), places };
}

/** The frames of a stack, innermost first: places in the user's text, or else the whole line. */
function frames(stack) {
  const lines = stack.split('\n').filter((line) => line.startsWith('    at '));
  return lines.map((line) => line.match(/work\/index\.[cm]js:(\d+:\d+)/)?.[1] ?? line.trim());
}

/** Texts whose marks are the frames of what they throw, innermost first. */
const THROWERS = {
  'a nested function': {
    text: `async () => {
  await null;
  function inner() {
    throw «new Error('here');
  }
  return inner();
}`,
    innermost: true,
  },
  'an asynchronous chain': {
    text: `async () => {
  async function inner() {
    await new Promise((done) => setTimeout(done, 1));
    throw «new Error('here');
  }
  const outer = async () => {
    return «await inner();
  };
  return «await outer();
}`,
  },
  'an asynchronous chain in TypeScript': {
    runtime: 'typescript',
    text: `interface Unused {
  a: number;
}
enum Kind { One, Two }

async ({ a }: { a?: Kind }): Promise<never> => {
  type Inner = { b: string };

  async function inner<T extends Inner>(): Promise<T> {
    await new Promise<void>((done) => setTimeout(done, 1));
    throw «new TypeError('here' satisfies string);
  }
  return «await inner();
}`,
  },
  'a module with JSX': {
    runtime: 'typescript',
    dependencies: { react: '1.0.0' },
    text: `import React from 'react';

type Props = { a: string };
const Part = (props: Props) => {
  throw «new Error(\`here \${props.a}\`);
};

export default () => <div>

  {«Part({ a: 'x' })}
</div>;`,
  },
  'a callback that a package calls': {
    dependencies: { caller: '1.0.0' },
    text: `const call = require('caller');
() => call(() => {
  throw «new Error('here');
})`,
    innermost: true,
  },
  'text above the function': {
    runtime: 'typescript',
    text: `type A = {
  b: 1;
};
const a: number = (null as any).«x;
() => a`,
  },
  'code that V8 compiles later': {
    runtime: 'typescript',
    text: `type A = {

  b: 1;
};
() => «new Function('return {{')`,
    above: ['at new Function (<anonymous>)'],
  },
  'a timer': {
    runtime: 'typescript',
    text: `type A = {
  b: 1;
};
async (): Promise<void> => {
  setTimeout(() => {
    throw «new Error('here');
  }, 1);
  await new Promise<void>((done) => setTimeout(done, 5000));
}`,
  },
  'a cause': {
    runtime: 'typescript',
    text: `interface A {
  b: 1 }
(): void => {
  try {
    (null as any).x;
  } catch (cause) {
    throw «new Error('here', { cause });
  }
}`,
  },
};

for (const rung of RUNGS) {
  test(`places on the rung ${rung}`, { timeout: 120_000 }, async (t) => {
    const factory = new (surface().SandboxExecutorFactory)({ start: rung });
    const call = (code, { runtime, dependencies } = {}) =>
      factory.executeFunctionTool('t', {}, tool(code, { dependencies, sandbox: { runtime: runtime ?? 'node22' } }));

    for (const [where, { text, innermost, above = [], ...options }] of Object.entries(THROWERS)) {
      await t.test(`thrown in ${where}`, async () => {
        const { code, places } = marked(text);
        const { cause } = await rejection(call(code, options));
        const found = frames(cause.stack);
        const expected = [...above, ...places];
        assert.deepEqual(innermost ? found.slice(0, expected.length) : found, expected, cause.stack);
        assert.doesNotMatch(cause.stack, /worker\.cjs|zygote\.cjs|node:internal/);
      });
    }

    await t.test('a stack that the function reads is the same, and stays so when the error is thrown', async () => {
      const { code, places } = marked(`type A = {
  b: 1;
};
export default (a: A): void => {
  const error: Error & { seen?: string } = «new Error('here');
  error.seen = error.stack;
  throw error;
};`);
      const { cause } = await rejection(call(code, { runtime: 'typescript' }));
      assert.deepEqual(frames(cause.seen), places, cause.seen);
      assert.deepEqual(frames(cause.stack), places, cause.stack);
    });

    await t.test('a stack taken from another error is not led back twice', async () => {
      const { code, places } = marked(`type A = {
  b: 1;
};
(): void => {
  const inner: Error = «new Error('inner');
  const outer = new Error('outer');
  outer.stack = \`outer: \${inner.stack}\`;
  throw outer;
}`);
      const { cause } = await rejection(call(code, { runtime: 'typescript' }));
      assert.deepEqual(frames(cause.stack), places, cause.stack);
    });

    await t.test('a function that writes stacks its own way gets its way, and its errors their places', async () => {
      const { code, places } = marked(`type A = {
  b: 1;
};
(): void => {
  Error.prepareStackTrace = undefined;
  throw «new Error('here');
}`);
      const { cause } = await rejection(call(code, { runtime: 'typescript' }));
      assert.deepEqual(frames(cause.stack), places, cause.stack);
      const own = `() => { Error.prepareStackTrace = (error, frames) => frames.length > 0 ? 'mine' : 'none'; return new Error().stack; }`;
      assert.equal(await call(own), 'mine');
    });

    await t.test('a stack that the function makes up is left alone', async () => {
      const code = `() => { const error = new Error('x'); error.stack = 'no frames'; throw error; }`;
      assert.equal((await rejection(call(code))).cause.stack, 'no frames');
    });

    await factory.cleanup();
  });
}
