// Jest and Vitest: this package imported by tests, and mapped into the played run API in every documented way.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, until } from '../helpers.mjs';
import { useRegistry } from '../registry.mjs';
import { makeProject, programs, runIn } from './project.mjs';

const FILES = ['one', 'two', 'three'];
const modules = await programs();

let world;
let registry;

before(async () => {
  world = ownWorld();
  registry = await useRegistry({ 'a-package': { '1.0.0': { 'index.js': "module.exports = 'of the package';" } } });
});
after(() => registry?.close());

/** What a test file does: calls with a dependency, errors, sessions; and it notes which processes were started for it. */
const BODY = (name) => `
  const factory = SandboxExecutorFactory.getInstance();
  const config = (executeCode, dependencies = {}) => ({
    description: '', inputSchema: {}, dependencies, executeCode,
    sandboxConfig: { provider: 'native', runtime: 'node22' },
  });
  test('calls at once', async () => {
    const calls = [1, 2, 3].map((n) => factory.executeFunctionTool('t', { n },
      config("({ n }) => n + require('a-package')", { 'a-package': '1.0.0' })));
    expect(await Promise.all(calls)).toEqual([1, 2, 3].map((n) => n + 'of the package'));
    note();
  });
  test('an error is one', async () => {
    const error = await factory.executeFunctionTool('t', {}, config("() => { throw new TypeError('no'); }")).catch((e) => e);
    expect(error).toBeInstanceOf(SandboxError);
    expect(error).toBeInstanceOf(Error);
    expect(error.code).toBe('TOOL_ERROR');
    expect(error.cause.name).toBe('TypeError');
  });
  test('a session', async () => {
    const session = SandboxExecutorFactory.getForSession('${name}');
    expect(await session.executeFunctionTool('t', {}, config("() => '${name}'"))).toBe('${name}');
    await SandboxExecutorFactory.cleanupSession('${name}');
  });
  function note() {
    if (process.platform !== 'linux') return;
    const found = [];
    for (const pid of fs.readdirSync('/proc').filter((one) => /^\\d+$/.test(one))) {
      try {
        if (fs.readFileSync('/proc/' + pid + '/stat', 'latin1').split(') ')[1].split(' ')[1] === String(process.pid)) found.push(pid);
      } catch {}
    }
    fs.writeFileSync('started-${name}.json', JSON.stringify(found));
  }
`;

const TESTS = {
  vitest: (name) => [
    `${name}.test.js`,
    `import fs from 'node:fs';\nimport { expect, test } from 'vitest';
import { SandboxError, SandboxExecutorFactory } from 'native-sandbox-executor';\n${BODY(name)}`,
  ],
  'jest by require': (name) => [
    `${name}.test.cjs`,
    `const fs = require('node:fs');
const { SandboxError, SandboxExecutorFactory } = require('native-sandbox-executor');\n${BODY(name)}`,
  ],
  'jest by import': (name) => [
    `${name}.test.mjs`,
    `import fs from 'node:fs';\nimport { SandboxError, SandboxExecutorFactory } from 'native-sandbox-executor';\n${BODY(name)}`,
  ],
};

const VITEST = ['node_modules/vitest/vitest.mjs', 'run', '--maxWorkers=3'];
const JEST_HERE = ['--no-warnings', '--experimental-vm-modules', 'node_modules/jest/bin/jest.js'];
const JEST = [...JEST_HERE, '--maxWorkers=3'];
const JEST_CONFIG = {
  'jest.config.json': JSON.stringify({
    testMatch: ['<rootDir>/*.test.{cjs,mjs}'],
    transform: {},
    moduleFileExtensions: ['js', 'cjs', 'mjs', 'json', 'node'],
  }),
};

const RUNS = [
  ...['threads', 'forks'].flatMap((pool) => [
    ['vitest', `Vitest, ${pool}`, [...VITEST, `--pool=${pool}`], {}],
    ['vitest', `Vitest, ${pool}, not isolated`, [...VITEST, `--pool=${pool}`, '--no-isolate'], {}],
  ]),
  ['jest by require', 'Jest, by require', JEST, JEST_CONFIG],
  ['jest by import', 'Jest, by import', JEST, JEST_CONFIG],
  ['jest by require', 'Jest, one process', [...JEST_HERE, '--runInBand'], JEST_CONFIG],
  ['jest by require', 'Jest, threads', [...JEST, '--workerThreads'], JEST_CONFIG],
];

function isAlive(pid) {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

for (const [at, [kind, title, args, config]] of RUNS.entries()) {
  test(`${title}: several files at once`, { timeout: 120_000 }, async () => {
    const files = Object.fromEntries(FILES.map((name) => TESTS[kind](name)));
    const folder = makeProject(join(world.root, `project-${at}`), modules, { ...files, ...config });
    const { code, out } = await runIn(folder, args);
    assert.equal(code, 0, out);
    assert.match(out, /\b9 passed/, out);
    assert.doesNotMatch(out, /did not exit|open handle|MaxListeners|Unhandled|tear/i);
    if (LINUX) {
      const started = readdirSync(folder).filter((name) => name.startsWith('started-'));
      assert.equal(started.length, FILES.length);
      const pids = new Set(started.flatMap((name) => JSON.parse(readFileSync(join(folder, name), 'utf8'))));
      assert.ok(pids.size > 0);
      await until(() => ![...pids].some(isAlive), 10_000, 'what the tests had started is gone');
    }
  });
}

test('all of them shared one installation', () => {
  assert.deepEqual(registry.hits, { 'a-package': 1 });
});

/* ------------------------------------------------------------------ a file that ends too early */

/** Starts a call that nobody waits for, and ends when its function runs. */
const LEAVES_A_CALL = `
  test('leaves a call behind', async () => {
    SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, {
      description: '', inputSchema: {}, dependencies: {},
      executeCode: "() => { process.title = '" + process.env.MARKER + "'; setTimeout(() => {}, 60000); return new Promise(() => {}); }",
      sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 60000 },
    }).catch(() => {});
    const runs = () => fs.readdirSync('/proc').some((pid) => {
      try { return fs.readFileSync('/proc/' + pid + '/comm', 'utf8').trim() === process.env.MARKER; } catch { return false; }
    });
    while (!runs()) await new Promise((done) => setTimeout(done, 20));
  }, 20000);`;

for (const [at, [title, args]] of [
  ['Vitest threads', [...VITEST, '--pool=threads']],
  ['Vitest threads, not isolated', [...VITEST, '--pool=threads', '--no-isolate']],
  ['Vitest forks', [...VITEST, '--pool=forks']],
  ['Jest', [...JEST, '--forceExit']],
  ['Jest threads', [...JEST, '--workerThreads', '--forceExit']],
].entries()) {
  test(`${title}: files that end with a call in flight leave nothing behind`, {
    skip: !LINUX,
    timeout: 120_000,
  }, async () => {
    const jest = title.startsWith('Jest');
    const [loads, end] = jest
      ? [(name, from) => `const ${name} = require('${from}');`, 'cjs']
      : [(name, from) => `import ${name} from '${from}';`, 'js'];
    const lines = [loads('fs', 'node:fs'), loads('{ SandboxExecutorFactory }', 'native-sandbox-executor')];
    if (!jest) lines.push("import { test } from 'vitest';");
    const file = `${lines.join('\n')}\n${LEAVES_A_CALL}`;
    const files = { [`one.test.${end}`]: file, [`two.test.${end}`]: file };
    const folder = makeProject(join(world.root, `early-${at}`), modules, { ...files, ...(jest ? JEST_CONFIG : {}) });
    const marker = newMarker();
    const { code, out } = await runIn(folder, args, { MARKER: marker });
    assert.equal(code, 0, out);
    assert.match(out, /\b2 passed/, out);
    await gone(marker);
  });
}

/* ------------------------------------------------------------------ the run API inside the runners */

const CALLS_RUN_API = `
  test('the run API is served', async () => {
    expect(await runTool('({ n }) => n + 1', { n: 1 })).toBe(2);
  });`;
const VITEST_API = `import { expect, test } from 'vitest';\nimport { runTool } from '@inkeep/agents-run-api';\n${CALLS_RUN_API}`;
const JEST_API = `import { runTool } from '@inkeep/agents-run-api';\n${CALLS_RUN_API}`;
const REGISTER = 'native-sandbox-executor/register';

const MAPPINGS = {
  'Vitest, setupFiles': [VITEST, { 'vitest.config.mjs': `export default { test: { setupFiles: ['${REGISTER}'] } };` }],
  'Vitest, execArgv': [
    VITEST,
    { 'vitest.config.mjs': `export default { test: { execArgv: ['--import', '${REGISTER}'] } };` },
  ],
  'Vitest threads, execArgv': [
    [...VITEST, '--pool=threads'],
    { 'vitest.config.mjs': `export default { test: { execArgv: ['--import', '${REGISTER}'] } };` },
  ],
  'Vitest, NODE_OPTIONS': [VITEST, {}, { NODE_OPTIONS: `--import ${REGISTER}` }],
  'Vitest, alias': [
    VITEST,
    {
      'vitest.config.mjs': `export default {
        resolve: { alias: [{ find: /^.*\\/SandboxExecutorFactory(-[\\w-]{8})?(\\.[cm]?[jt]s)?$/, replacement: 'native-sandbox-executor' }] },
        test: { server: { deps: { inline: [/@inkeep\\/agents-run-api/] } } },
      };`,
    },
  ],
  'Jest, moduleNameMapper': [
    JEST,
    {
      'jest.config.json': JSON.stringify({
        ...JSON.parse(JEST_CONFIG['jest.config.json']),
        moduleNameMapper: { '/SandboxExecutorFactory(-[\\w-]{8})?(\\.[cm]?[jt]s)?$': 'native-sandbox-executor' },
      }),
    },
  ],
};

for (const [at, [title, [args, config, env]]] of Object.entries(MAPPINGS).entries()) {
  test(`the run API in ${title}`, { timeout: 120_000 }, async () => {
    const jest = title.startsWith('Jest');
    const file = jest ? { 'api.test.mjs': JEST_API } : { 'api.test.js': VITEST_API };
    const folder = makeProject(join(world.root, `mapped-${at}`), modules, { ...file, ...config });
    const { code, out } = await runIn(folder, args, env);
    assert.equal(code, 0, out);
    assert.match(out, /\b1 passed/, out);
  });
}

test('without any of them the original runs, so the tests above can fail', { timeout: 120_000 }, async () => {
  const folder = makeProject(join(world.root, 'unmapped'), modules, { 'api.test.js': VITEST_API });
  const { code, out } = await runIn(folder, VITEST);
  assert.notEqual(code, 0);
  assert.match(out, /by the original/);
});
