// The conformance suite, over the example of the documentation and over the provider `vercel`; and that it finds faults.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { LINUX, ownWorld, ROOT } from './helpers.mjs';
import { ACCOUNT, fakeApi } from './vercel/fake-api.mjs';
import { packageWith, redirect, VERSIONS } from './vercel/sdk.mjs';

const require = createRequire(import.meta.url);
const { conformanceTests } = require('../conformance.js');
const LIMIT = { timeout: 120_000 };

/** What no version of the SDK does right, and why. */
const SDK_FAULTS = {
  'characters are not harmed where output is cut': 'the SDK decodes each chunk of an answer alone',
};

before(() => ownWorld());

describe('local folders, the example', { skip: !LINUX, ...LIMIT }, () => {
  for (const { name, run } of conformanceTests({ provider: localFolders })) test(name, run);

  const text = readFileSync(join(ROOT, 'examples', 'local-folder-provider.mjs'), 'utf8');

  test('it is what the documentation builds', () => {
    const steps = readFileSync(join(ROOT, 'docs', 'PROVIDERS.md'), 'utf8').split('**6.')[0];
    const blocks = [...steps.split('## A provider of your own')[1].matchAll(/```js\n(.*?)```/gs)];
    const documented = blocks.flatMap(([, block]) => block.split('\n').map((line) => line.trim()));
    const present = new Set(text.split('\n').map((line) => line.trim()));
    assert.ok(documented.length > 30);
    assert.deepEqual(
      documented.filter((line) => !line.startsWith('//') && !present.has(line)),
      []
    );
  });

  test('it has about sixty lines', () => {
    const lines = text.split('\n');
    const code = lines.filter((line) => line.trim() !== '' && !line.startsWith('//') && !line.startsWith('import'));
    assert.ok(code.length <= 66, `${code.length} lines`);
  });
});

for (const version of VERSIONS) {
  describe(`@vercel/sandbox ${version}`, LIMIT, () => {
    let api;
    let restore;
    let tests;
    before(async () => {
      api = await fakeApi();
      restore = redirect(() => api.origin);
      // Of the package that has this SDK.
      const load = packageWith(version, { from: true });
      const { vercelProvider } = load('./lib/vercel-provider.js');
      tests = new Map(
        load('./conformance.js')
          .conformanceTests({ provider: vercelProvider, config: ACCOUNT })
          .map(({ name, run }) => [name, run])
      );
    });
    after(async () => {
      assert.deepEqual(api.running(), []);
      restore();
      await api.close();
    });
    for (const { name } of conformanceTests({ provider: localFolders })) {
      test(name, { skip: SDK_FAULTS[name] ?? false }, () => tests.get(name)());
    }
  });
}

/** A provider that is right but for what `over` changes of its sandboxes. */
function spoiled(over) {
  return {
    async create(request) {
      const sandbox = await localFolders.create(request);
      const copy = {
        id: sandbox.id,
        alive: () => sandbox.alive(),
        remainingLifetimeMs: () => sandbox.remainingLifetimeMs(),
        writeFiles: (files) => sandbox.writeFiles(files),
        run: (command) => sandbox.run(command),
        stop: () => sandbox.stop(),
      };
      return Object.assign(copy, over(sandbox));
    },
  };
}

const FAULTS = {
  'a new sandbox is alive, and lives as long as was asked for': () => ({ remainingLifetimeMs: () => 1_000 }),
  'node is new enough, and npm is there': (sandbox) => ({
    run: (command) => (command.command === 'npm' ? Promise.resolve({ exitCode: 127 }) : sandbox.run(command)),
  }),
  'a program that is not there is told': (sandbox) => ({
    run: (command) => sandbox.run(command).catch(() => ({ exitCode: 0 })),
  }),
  'exit codes are told; a signal counts as 128 and its number': (sandbox) => ({
    run: async (command) => ({ exitCode: (await sandbox.run(command)).exitCode === 0 ? 0 : 1 }),
  }),
  'a command gets its arguments and variables as they are, and none of the host': (sandbox) => ({
    run: (command) => sandbox.run({ ...command, env: { ...process.env, ...command.env } }),
  }),
  'characters are not harmed where output is cut': (sandbox) => ({
    run: (command) =>
      sandbox.run({ ...command, onOutput: (stream, chunk) => command.onOutput(stream, chunk.toString()) }),
  }),
  'output comes while the command runs, on the stream it was printed to': (sandbox) => ({
    run: (command) => sandbox.run({ ...command, onOutput: (_stream, chunk) => command.onOutput('stdout', chunk) }),
  }),
  'a stop ends what runs, is told, and can be repeated': (sandbox) => ({ alive: () => true, id: sandbox.id }),
  'files of a call are in the working folder of its function, and of no other': (sandbox) => ({
    writeFiles: (files) => sandbox.writeFiles(files.filter(({ path }) => !path.endsWith('/bytes'))),
  }),
  'variables of a call reach its function, and no other one of the sandbox': (sandbox) => ({
    writeFiles: (files) =>
      sandbox.writeFiles([
        ...files,
        ...files.map(({ path, content }) => ({ path: path.replace(/\/([^/]+)\/([^/]+)$/, '/kept-$1-$2'), content })),
      ]),
  }),
  // It takes no notice of the signal: the command goes on until its time is over.
  'a fired signal ends the waiting for a command, and the sandbox goes on': (sandbox) => ({
    run: ({ signal: _, ...command }) => sandbox.run(command),
  }),
};

/** Others, each with the test that has to find it. */
const MORE_FAULTS = [
  [
    'a stop ends what runs, is told, and can be repeated',
    'a command of a stopped sandbox is waited for',
    (sandbox) => ({ run: (command) => sandbox.run(command).finally(() => sandbox.alive() || new Promise(() => {})) }),
  ],
  [
    'a program that is not there is told',
    'a program that is not there is waited for',
    (sandbox) => ({ run: (command) => sandbox.run(command).catch(() => new Promise(() => {})) }),
  ],
];

describe('it finds faults', { skip: !LINUX, ...LIMIT }, () => {
  for (const [name, what, over] of [
    ...Object.entries(FAULTS).map(([name, over]) => [name, name, over]),
    ...MORE_FAULTS,
  ]) {
    test(what, async () => {
      const { run } = conformanceTests({ provider: spoiled(over) }).find((one) => one.name === name);
      await assert.rejects(run(), (error) => error instanceof Error);
    });
  }
});
