// Options and variables that cannot work: told at the first call, by their names.

import assert from 'node:assert/strict';
import { existsSync, linkSync, mkdirSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { after, before, test } from 'node:test';
import { host, LINUX, ownWorld, ROOT, RUNGS, rejection, surface, tool } from './helpers.mjs';

let world;
before(() => {
  world = ownWorld();
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

test('a nodePath that is no Node is named', {
  timeout: 60_000,
  skip: process.platform === 'win32' && 'looks for /bin',
}, async () => {
  const text = join(world.root, 'text');
  writeFileSync(text, 'words', { mode: 0o755 });
  const { SandboxExecutorFactory: Factory } = surface();
  for (const nodePath of ['/bin/true', '/bin/false', '/bin/echo', text, world.root, join(world.root, 'missing')]) {
    for (const dependencies of [{}, { lodash: '4' }]) {
      const error = await rejection(
        new Factory({ nodePath }).executeFunctionTool('t', {}, tool('() => 1', { dependencies }))
      );
      assert.deepEqual([error.code, error.phase], ['INVALID_CONFIG', 'validate'], error.message);
      assert.ok(error.message.includes(`is ${nodePath},`), error.message);
      assert.match(error.message, /"nodePath".*_SANDBOX_NODE_PATH.*Set it to/);
    }
  }
  assert.equal(await new Factory({ nodePath: process.execPath }).executeFunctionTool('t', {}, tool('() => 1')), 1);
});

test('a variable without meaning rejects the first call', { timeout: 60_000 }, async () => {
  const env = Object.fromEntries(
    ['INSTALL_SCRIPTS=a b', 'INSTALL_SCRIPTS==true', 'ENV==,', 'OPEN_FILES=3', 'CPU_SECONDS=soon', 'DISK_MB=0'].map(
      (line) => {
        const at = line.indexOf('=');
        return [line, { [`AGENTS_FUNCTION_TOOL_SANDBOX_${line.slice(0, at)}`]: line.slice(at + 1) }];
      }
    )
  );
  for (const [line, one] of Object.entries(env)) {
    const { said } = await host(`await run('() => 1').then(say, ({ code, message }) => say({ code, message }));`, {
      env: one,
    }).exited;
    assert.equal(said[0].code, 'INVALID_CONFIG', line);
    assert.ok(said[0].message.includes(Object.keys(one)[0]), said[0].message);
  }
});

test('the rung that is told is the one that serves', { timeout: 60_000 }, async () => {
  const { NativeSandboxExecutor } = surface();
  for (const start of ['spawn', 'standby']) {
    const native = new NativeSandboxExecutor({ start });
    assert.equal(native.getMetrics().rung, start, 'before a call');
    await native.executeFunctionTool('t', {}, tool('() => 1'));
    assert.equal(native.getMetrics().rung, start);
  }
});

test('no rung is told before one was tried', { timeout: 60_000 }, async () => {
  const { said, err } = await host(
    `const { NativeSandboxExecutor: Native } = rest;
     const native = new Native();
     const before = native.getMetrics();
     for (;;) {
       await native.executeFunctionTool('t', {}, tool('() => 1'));
       const { rung, counters: { workers } } = native.getMetrics();
       if (rung && workers[rung] > 0) break;
     }
     const { rung, counters: { workers } } = native.getMetrics();
     say({ before: before.rung, notUsed: before.rungsNotUsed, rung, served: workers[rung], another: new Native().getMetrics().rung,
       forced: new Native({ start: 'spawn' }).getMetrics().rung });`
  ).exited;
  assert.equal(err, '');
  const [{ served, ...told }] = said;
  const last = RUNGS.at(-1);
  assert.deepEqual(told, { before: null, notUsed: [], rung: last, another: last, forced: 'spawn' });
  assert.ok(served > 0);
});

const NAMES = ['sp ace', 'per%cent', '%41', 'ha#sh', 'qu?estion', 'ünï-日本', 'quote"\'', 'a:b;c', 'new\nline'];

test('modules run below a folder of any name', {
  timeout: 120_000,
  skip: !LINUX && 'other systems allow other names',
}, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  for (const name of NAMES) {
    const storeDir = join(world.root, name);
    mkdirSync(storeDir);
    const factory = new Factory({ storeDir, start: 'standby' });
    const module =
      'import fs from "node:fs"; export default async () => { fs.writeFileSync("x.mjs", "export default 7"); return (await import("./x.mjs")).default; }';
    assert.equal(await factory.executeFunctionTool('t', {}, tool(module)), 7, name);
    assert.equal(
      await factory.executeFunctionTool('t', {}, tool('async () => typeof (await import("node:fs")).read')),
      'function',
      name
    );
  }
});

test('a backslash in the temp folder is no obstacle, one in storeDir is named', {
  timeout: 60_000,
  skip: !LINUX && 'separates folders elsewhere',
}, async () => {
  const TMPDIR = join(world.root, 'back\\slash');
  mkdirSync(TMPDIR);
  const body = `say(await run('import "node:fs"; export default () => import.meta.url.startsWith("file:")'));`;
  const { said, err } = await host(body, { env: { TMPDIR } }).exited;
  assert.deepEqual(said, [true], err);
  const factory = new (surface().SandboxExecutorFactory)({ storeDir: TMPDIR });
  const error = await rejection(factory.executeFunctionTool('t', {}, tool('() => 1')));
  assert.equal(error.code, 'INVALID_CONFIG');
  assert.match(error.message, /storeDir.*backslash/);
});

test('a nodePath by a symbolic link or with .. is taken by its real path', {
  timeout: 60_000,
  skip: !LINUX,
}, async () => {
  const link = join(world.root, 'node-link');
  symlinkSync(process.execPath, link);
  const crooked = join(world.root, 'x').replace(/x$/, `../${basename(world.root)}/../..${process.execPath}`);
  const { SandboxExecutorFactory: Factory } = surface();
  for (const nodePath of [link, `/tmp/..${process.execPath}`, crooked].filter((path) => existsSync(path))) {
    for (const start of RUNGS) {
      const factory = new Factory({ nodePath, start });
      const [result, path] = await factory.executeFunctionTool('t', {}, tool('() => [1, process.execPath]'));
      assert.deepEqual([result, path], [1, realpathSync(process.execPath)], `${nodePath} ${start}`);
      await factory.cleanup();
    }
  }
});

test('a runtime that nobody knows is refused, and named', async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  for (const runtime of ['python3.13', 'node18', 'TypeScript', 'bun', 7]) {
    const error = await rejection(factory.executeFunctionTool('t', {}, tool('() => 1', { sandbox: { runtime } })));
    assert.deepEqual([error.code, error.phase], ['INVALID_CONFIG', 'validate'], String(runtime));
    assert.match(error.message, /sandboxConfig\.runtime must be "node22" or "typescript", got "/);
    assert.ok(error.message.includes(`"${runtime}"`), error.message);
  }
  for (const runtime of ['node22', 'typescript', undefined, null])
    assert.equal(await factory.executeFunctionTool('t', {}, tool('() => 1', { sandbox: { runtime } })), 1);
});

test('an empty TMPDIR is none', { timeout: 60_000, skip: !LINUX }, async () => {
  const body = "say(await run('() => 1')); say(new rest.NativeSandboxExecutor().getMetrics().store ? 1 : 0);";
  const storeDir = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: join(world.root, 'tmp') };
  assert.deepEqual((await host(body, { env: { TMPDIR: '', TMP: '', TEMP: '', ...storeDir } }).exited).said, [1, 1]);
  // Without a storeDir it is the common temp folder, not the folder of the process.
  const { said } = await host(
    `const { maintain } = await import('node:module').then(({ createRequire }) => createRequire(import.meta.url)(${JSON.stringify(join(ROOT, 'lib/native-executor.js'))}));
    say((await maintain(new rest.NativeSandboxExecutor(), { task: 'trees' })).root);`,
    { env: { TMPDIR: '' } }
  ).exited;
  assert.match(said[0], /^\/tmp\/native-sandbox-executor-/);
});

test('a disk that cannot be written is told once, with the settings that name another, for a tool without packages too', {
  timeout: 60_000,
  skip: (!LINUX || process.getuid() !== 0) && 'mounts a file system',
}, async () => {
  const place = join(world.root, 'read-only');
  mkdirSync(place);
  const body = `const error = await run('() => 1').catch((error) => error); say([error.code, error.message]);`;
  const by = ['unshare', '--mount', 'sh', '-c', `mount -t tmpfs -o ro none '${place}' && exec "$@"`, 'sh'];
  const [[code, message]] = (await host(body, { by, env: { TMPDIR: place } }).exited).said;
  assert.equal(code, 'INSTALL_FAILED');
  for (const words of ['Read-only file system', 'storeDir', 'TMPDIR'])
    assert.equal(message.split(words).length - 1, 1, message);
});

test('a Node in a folder that other users cannot pass is advised to move, under a root server', {
  timeout: 60_000,
  skip: (!LINUX || process.getuid() !== 0) && 'needs the users of a root server',
}, async (t) => {
  const closed = join(world.root, 'closed');
  mkdirSync(closed, { mode: 0o700 });
  const nodePath = join(closed, 'node');
  try {
    linkSync(realpathSync(process.execPath), nodePath);
  } catch (error) {
    if (error.code === 'EXDEV') return t.skip('Node is on another file system');
    throw error;
  }
  const body = `const executor = new rest.NativeSandboxExecutor({ nodePath: ${JSON.stringify(nodePath)} });
    const answer = await executor.executeFunctionTool('t', {}, tool('() => 1'));
    const { layers } = await rest.isolationReport();
    say([answer, layers.find(({ name }) => name === 'privateUser')]);`;
  const [[answer, { inForce, why, enable }]] = (await host(body).exited).said;
  assert.equal(answer, 1);
  assert.equal(inForce, false);
  assert.match(why, /other users cannot pass/);
  assert.ok(why.includes(closed), why);
  assert.match(enable, /move what is below that folder/);
});

test('a result that is no JSON is told to be the returned value', async () => {
  const factory = new (surface().SandboxExecutorFactory)();
  for (const code of [
    '() => 10n',
    '() => { const a = {}; a.a = a; return a; }',
    '() => ({ toJSON() { throw new Error("x"); } })',
  ]) {
    const error = await rejection(factory.executeFunctionTool('t', {}, tool(code)));
    assert.equal(error.code, 'RESULT_NOT_SERIALIZABLE');
    assert.match(error.message, /value that the function returned/);
  }
});

test('a connection of a function without network is told to have none', {
  timeout: 60_000,
  skip: !LINUX,
}, async (t) => {
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = new Factory({ network: 'none' });
  const fails = (code) => rejection(factory.executeFunctionTool('t', {}, tool(code)));
  const first = await fails("async () => (await fetch('http://127.0.0.1:5001')).status");
  if (first.code === 'ISOLATION_UNAVAILABLE') return t.skip(first.message);
  for (const code of [
    "async () => (await fetch('http://127.0.0.1:5001')).status",
    "async () => (await fetch('http://host.example')).status",
    "() => new Promise((_, no) => require('net').connect(80, '192.0.2.1').on('error', no))",
    "() => require('dns').promises.lookup('host.example')",
  ]) {
    assert.match((await fails(code)).message, /The function has no network \(option network: "none"\)/, code);
  }
  assert.doesNotMatch((await fails('() => { throw new Error("fetch failed"); }')).message, /no network/);
  const open = await rejection(
    new Factory().executeFunctionTool('t', {}, tool("async () => (await fetch('http://127.0.0.1:5001')).status"))
  );
  assert.doesNotMatch(open.message, /no network/);
});
