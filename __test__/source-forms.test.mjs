// The corpus of source forms through the whole executor: what each text gives when it is called as a tool. What a case may
// hold is told in `tests/source_corpus.rs`, which runs the same files without the package around them.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { ownWorld, ROOT, RUNGS, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const FOLDER = join(ROOT, 'tests', 'fixtures', 'source');
const CORPUS = readdirSync(FOLDER)
  .filter((name) => name.endsWith('.json'))
  .flatMap((file) => JSON.parse(readFileSync(join(FOLDER, file), 'utf8')).map((entry) => ({ file, ...entry })));

/** Files whose cases run on one rung: they tell texts apart, which no rung does. */
const ONE_RUNG = new Set(['constructs.json', 'shapes.json']);

/** Calls at a time. */
const CALLERS = 8;

/** A stand-in for React, so that what JSX becomes can be seen; the same as in `run.cjs`. */
const REACT = {
  'package.json': { exports: { '.': './index.js', './jsx-runtime': './jsx-runtime.js' } },
  'index.js': `exports.Fragment = 'fragment';
exports.createElement = (type, props, ...children) => ({ type, props: props ?? {}, children });`,
  'jsx-runtime.js': 'exports.jsx = exports.jsxs = (type, props) => ({ type, props });',
};

let registry;

before(async () => {
  ownWorld();
  registry = await useRegistry({ react: { '1.0.0': REACT } });
});
after(() => registry.close());

function outcomeOf(factory, { code, args, runtime, packages }) {
  const dependencies = packages?.includes('react') || code.includes('react') ? { react: '1.0.0' } : {};
  const config = tool(code, { dependencies, sandbox: { runtime, vcpus: CALLERS } });
  return factory.executeFunctionTool('test-tool', args, config).then(
    (value) => ({ value }),
    (error) => ({ error })
  );
}

/** The user's place of the topmost frame in the tool's text. */
function place({ stack }) {
  return stack.match(/index\.[cm]js:(\d+:\d+)/)?.[1];
}

function judge({ returns, fails, at, refused }, { value, error }) {
  if (refused !== undefined) {
    assert.equal(error?.code, 'INVALID_SOURCE');
    assert.equal(error.phase, 'validate');
    assert.ok(error.message.includes(refused), error.message);
  } else if (error?.code === 'INVALID_DEPENDENCY') {
    // Where plain Node fails at an import, the package tells before it runs anything.
    assert.ok(fails !== undefined && error.message.includes(fails), error.message);
  } else if (fails !== undefined && error?.code === 'INVALID_SOURCE') {
    // What only running the code can tell to be no function.
    assert.ok(error.message.includes(fails), error.message);
  } else if (fails !== undefined) {
    assert.equal(error?.code, 'TOOL_ERROR');
    assert.ok(String(error.cause).includes(fails), String(error.cause));
    if (at !== undefined) assert.equal(place(error.cause), at, error.cause.stack);
  } else {
    assert.equal(error, undefined);
    assert.deepEqual(value ?? null, returns);
  }
}

for (const rung of RUNGS) {
  test(`every form of the corpus does what it says on the rung ${rung}`, async () => {
    assert.ok(CORPUS.length >= 800, `${CORPUS.length} cases`);
    const factory = new (surface().SandboxExecutorFactory)({ start: rung });
    const faults = [];
    const left = CORPUS.filter(({ file }) => rung === RUNGS.at(-1) || !ONE_RUNG.has(file)).values();
    async function caller() {
      for (const entry of left) {
        const outcome = await outcomeOf(factory, entry);
        try {
          judge(entry, outcome);
        } catch (error) {
          const came = outcome.error
            ? `${outcome.error.code}: ${outcome.error.message}`
            : JSON.stringify(outcome.value);
          faults.push(`${entry.file}, ${entry.name}: ${error.message.split('\n')[0]}\n  came to ${came}`);
        }
      }
    }
    await Promise.all(Array.from({ length: CALLERS }, caller));
    await factory.cleanup();
    assert.equal(faults.length, 0, `${faults.length} of ${CORPUS.length}:\n${faults.join('\n')}`);
  });
}
