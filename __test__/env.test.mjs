// What a function sees of its host: no variable but those that pass, an empty stdin, a folder of its own.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { tracingChannel } from 'node:diagnostics_channel';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { inspect } from 'node:util';
import { LINUX, ownWorld, RUNGS, run, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

before(() => {
  ownWorld();
  Object.assign(process.env, {
    NSE_SECRET: 'sk-test-1',
    NSE_OTHER: 'o',
    TZ: 'Asia/Tokyo',
    NODE_OPTIONS: '--require ./only-here.cjs',
  });
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const READ = '() => ({ ...process.env })';

test('the host’s variables do not reach the function; the time zone does', async () => {
  const env = await run(READ);
  assert.ok(!JSON.stringify(env).includes('sk-test-1'));
  assert.equal(env.NODE_OPTIONS, undefined);
  assert.equal(env.TZ, 'Asia/Tokyo');
  assert.equal(await run('() => new Date(0).getHours()'), 9);
});

test('names, prefixes and all of it pass by option', async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const names = await new Factory({ env: ['NSE_OTHER'] }).executeFunctionTool('t', {}, tool(READ));
  assert.deepEqual([names.NSE_OTHER, names.NSE_SECRET], ['o', undefined]);
  const prefix = await new Factory({ env: ['NSE_*'] }).executeFunctionTool('t', {}, tool(READ));
  assert.deepEqual([prefix.NSE_OTHER, prefix.NSE_SECRET], ['o', 'sk-test-1']);
  const all = await new Factory({ env: 'inherit' }).executeFunctionTool('t', {}, tool('() => process.env.NSE_SECRET'));
  assert.equal(all, 'sk-test-1');
});

test('stdin is at its end', async () => {
  assert.equal(await run('() => require("node:fs").readFileSync(0, "utf8")'), '');
});

test('the working folder and os.tmpdir() are private, writable, and gone afterwards', async () => {
  const source = `() => {
    const fs = require('node:fs'), os = require('node:os');
    const found = [...fs.readdirSync('.'), ...fs.readdirSync(os.tmpdir())].filter((name) => name.startsWith('mine'));
    fs.writeFileSync('mine.txt', 'x');
    fs.writeFileSync(os.tmpdir() + '/mine.txt', 'x');
    return { found, cwd: process.cwd(), tmp: os.tmpdir() };
  }`;
  const [first, second] = [await run(source), await run(source)];
  for (const { found, cwd, tmp } of [first, second]) {
    assert.deepEqual(found, []);
    // Removed once the processes are gone, which the answer does not wait for.
    await until(() => !existsSync(cwd) && !existsSync(tmp), 5000, `${cwd} and ${tmp} are gone`);
  }
  assert.notEqual(first.cwd, second.cwd);
});

for (const start of RUNGS) {
  test(`variables that the executor names are read for each call (${start})`, { timeout: 120_000 }, async () => {
    const { SandboxExecutorFactory: Factory } = surface();
    const found = '() => Object.fromEntries(Object.entries(process.env).filter(([name]) => /^NSE_/.test(name)))';
    const old = ['old-secret-of-the', randomUUID()].join('-');
    for (const env of [['NSE_ROTATED', 'NSE_LATE'], ['NSE_*']]) {
      Object.assign(process.env, { NSE_ROTATED: old, NSE_STAYS: 's' });
      delete process.env.NSE_LATE;
      const factory = new Factory({ start, env });
      const call = (source) => factory.executeFunctionTool('t', {}, tool(source));
      assert.equal((await call(found)).NSE_ROTATED, old);
      process.env.NSE_ROTATED = 'new';
      process.env.NSE_LATE = 'late';
      const rotated = await call(found);
      assert.deepEqual([rotated.NSE_ROTATED, rotated.NSE_LATE], ['new', 'late']);
      assert.equal(await call(looksFor(old)), 'nothing', 'the old value is still there');
      delete process.env.NSE_ROTATED;
      assert.equal((await call(found)).NSE_ROTATED, undefined);
      Object.assign(process.env, { NSE_ROTATED: old });
      delete process.env.NSE_LATE;
      assert.equal((await call(found)).NSE_ROTATED, old, 'as it was at first');
      await factory.cleanup();
    }
  });
}

test('a package that reads a variable while it loads has the value of the call', { timeout: 120_000 }, async () => {
  const registry = await useRegistry({
    'keeps-a-key': { '1.0.0': { 'index.js': 'module.exports = process.env.NSE_KEY ?? null;' } },
  });
  try {
    const { SandboxExecutorFactory: Factory } = surface();
    for (const start of RUNGS) {
      process.env.NSE_KEY = 'first';
      const factory = new Factory({ start, env: ['NSE_KEY'] });
      const source = `() => require('keeps-a-key')`;
      const call = () =>
        factory.executeFunctionTool('t', {}, tool(source, { dependencies: { 'keeps-a-key': '1.0.0' } }));
      assert.equal(await call(), 'first', start);
      process.env.NSE_KEY = 'second';
      assert.equal(await call(), 'second', start);
      delete process.env.NSE_KEY;
      assert.equal(await call(), null, start);
      await factory.cleanup();
    }
  } finally {
    await registry.close();
  }
});

for (const start of RUNGS) {
  test(`secrets of a call are found by no later one, in memory too (${start})`, { timeout: 120_000 }, async () => {
    const { SandboxExecutorFactory: Factory } = surface();
    const factory = new Factory({ start });
    const secret = `secret-of-one-call-${randomUUID()}-${'x'.repeat(60)}`;
    const call = (source, options) => factory.executeFunctionTool('t', {}, tool(source), options);
    // The control: with the secret at hand the same search finds it.
    assert.equal(await call(looksFor(secret), { env: { NSE_OF_CALL: secret } }), 'variables');
    const hidden = `() => { globalThis.kept = process.env.NSE_OF_CALL; delete process.env.NSE_OF_CALL; return (${looksFor(secret)})(); }`;
    assert.equal(await call(hidden, { env: { NSE_OF_CALL: secret } }), 'heap');
    for (let n = 0; n < 3; n++) assert.equal(await call(looksFor(secret)), 'nothing');
    await factory.cleanup();
  });
}

test('variables of a call go over those of its executor, and are in no metric, event or record', async () => {
  const { NativeSandboxExecutor: Executor, setLogger } = surface();
  const secret = `secret-of-one-call-${randomUUID()}`;
  process.env.NSE_BOTH = 'of the host';
  const told = [];
  const take = (...all) => told.push(inspect(all, { depth: 8 }));
  const channels = ['call', 'queue', 'install', 'start', 'run'].map((name) =>
    tracingChannel(`native-sandbox-executor:${name}`)
  );
  const hears = Object.fromEntries(['start', 'end', 'asyncStart', 'asyncEnd', 'error'].map((event) => [event, take]));
  for (const channel of channels) channel.subscribe(hears);
  setLogger({ debug: take, info: take, warn: take, error: take });
  const executor = new Executor({ env: ['NSE_BOTH'] });
  try {
    const source = '() => { console.log(process.env.NSE_BOTH); return process.env.NSE_BOTH; }';
    const call = (code, options) => executor.executeFunctionTool('t', {}, tool(code), options);
    assert.equal(await call(source, { env: { NSE_BOTH: secret }, onUsage: take }), secret);
    assert.equal(await call(source), 'of the host');
    const error = await call('() => { throw process.env.NSE_BOTH }', { env: { NSE_BOTH: secret } }).catch((one) => one);
    take(error);
    take(executor.getMetrics());
    await executor.cleanup();
    assert.ok(told.length > 10);
    assert.deepEqual(
      told.filter((text) => text.includes(secret)),
      []
    );
  } finally {
    setLogger(undefined);
    for (const channel of channels) channel.unsubscribe(hears);
  }
});

test('secrets of a call are in no command line and no environment of a process while it runs', {
  skip: !LINUX && 'looks into /proc',
}, async () => {
  const secret = `secret-of-one-call-${randomUUID()}`;
  const running = run(
    '() => new Promise((done) => setTimeout(done, 1500, process.env.NSE_OF_CALL))',
    {},
    {},
    {
      env: { NSE_OF_CALL: secret },
    }
  );
  const found = new Set();
  let isOver = false;
  running.finally(() => {
    isOver = true;
  });
  while (!isOver) {
    for (const file of processFiles()) if (textOf(file).includes(secret)) found.add(file);
    await new Promise((turn) => setTimeout(turn, 100));
  }
  assert.equal(await running, secret);
  // V8 sets a variable in the C library's list, which the kernel's view of the start does not show.
  assert.deepEqual([...found], []);
});

function processFiles() {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  return pids.flatMap((pid) => [`/proc/${pid}/cmdline`, `/proc/${pid}/environ`]);
}

function textOf(file) {
  try {
    return readFileSync(file, 'latin1');
  } catch {
    // Gone meanwhile, or of somebody else.
    return '';
  }
}

/** A function that looks for a text in its variables, its memory as far as it can see it, and what others of its user show. */
function looksFor(secret) {
  // The text must not stand in the function itself.
  const halves = [secret.slice(0, 10), secret.slice(10)];
  return `async () => {
    const halves = ${JSON.stringify(halves)};
    const fs = require('node:fs'), v8 = require('node:v8');
    const has = (text) => { const at = text.indexOf(halves[0] + halves[1].slice(0, 20)); return at >= 0; };
    if (has(JSON.stringify(process.env))) return 'variables';
    let others = [];
    try { others = fs.readdirSync('/proc').filter((name) => /^\\d+$/.test(name)); } catch {}
    for (const pid of ['self', String(process.ppid), ...others]) {
      for (const name of ['environ', 'cmdline']) {
        try { if (has(fs.readFileSync('/proc/' + pid + '/' + name, 'latin1'))) return name + ' of ' + pid; } catch {}
      }
    }
    for await (const chunk of v8.getHeapSnapshot().setEncoding('latin1')) if (has(chunk)) return 'heap';
    for (let i = 0; i < 200; i++) if (has(Buffer.allocUnsafeSlow(64 * 1024).toString('latin1'))) return 'memory';
    return 'nothing';
  }`;
}
