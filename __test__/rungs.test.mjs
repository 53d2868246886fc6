// What Node offers works on every rung that the machine has: forked, booted ahead of need, booted for the call.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { LINUX, ownWorld, RUNGS, rejection, surface, tool } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** Bodies of functions with what they give. */
const JOBS = {
  timers: [`await new Promise((done) => setTimeout(done, 5)); return 'late'`, 'late'],
  'asynchronous files': [`return (await require('fs').promises.readFile('/dev/null')).length`, 0],
  'crypto on the thread pool': [
    `const { promisify } = require('util'); return (await promisify(require('crypto').pbkdf2)('a', 'b', 100, 8, 'sha1')).length`,
    8,
  ],
  zlib: [`const zlib = require('zlib'); return zlib.gunzipSync(zlib.gzipSync('abc')).toString()`, 'abc'],
  'look-ups of names': [`return (await require('dns').promises.lookup('localhost')).address.length > 2`, true],
  WebAssembly: [
    `return String((await WebAssembly.instantiate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))).module)`,
    '[object WebAssembly.Module]',
  ],
  fetch: [
    `const server = require('http').createServer((request, answer) => answer.end('{"a":1}'));
     await new Promise((done) => server.listen(0, '127.0.0.1', done));
     const answer = await (await fetch('http://127.0.0.1:' + server.address().port)).json();
     server.close(); server.closeAllConnections(); return answer`,
    { a: 1 },
  ],
  'worker threads': [
    `const { Worker } = require('worker_threads');
     const worker = new Worker('require("worker_threads").parentPort.postMessage(42)', { eval: true });
     return await new Promise((done, fail) => worker.on('message', done).on('error', fail))`,
    42,
  ],
  'child processes': [
    `const { execFileSync, spawn } = require('child_process'); const sync = execFileSync('echo', ['a']).toString();
     const child = spawn('cat', { stdio: ['pipe', 'pipe', 'inherit'] }); child.stdin.end('b');
     let text = ''; for await (const chunk of child.stdout) text += chunk; return sync + text`,
    'a\nb',
  ],
  'dynamic import': [`return typeof (await import('node:os')).cpus`, 'function'],
  'collected garbage': [
    `let kept = []; for (let i = 0; i < 400; i++) { kept.push(new Array(20000).fill({ i })); kept = kept.slice(-50); }
     return kept.length`,
    50,
  ],
  'a hot loop': [`let sum = 0; for (let i = 0; i < 5e6; i++) sum = (sum + i * 3) | 0; return sum > -Infinity`, true],
  'an inspector': [
    `const inspector = require('inspector'); inspector.open(0, '127.0.0.1'); const url = inspector.url();
     inspector.close(); return url.startsWith('ws://127.0.0.1:')`,
    true,
  ],
  'its own process id': [`return process.pid === Number(require('fs').readlinkSync('/proc/self'))`, true],
};

for (const rung of RUNGS) {
  test(`on the rung ${rung}`, { skip: !LINUX && 'looks into /proc', timeout: 120_000 }, async (t) => {
    const { SandboxExecutorFactory: Factory } = surface();
    const factory = new Factory({ start: rung });
    const run = (body) => factory.executeFunctionTool('t', {}, tool(`async () => { ${body} }`));
    for (const [what, [body, expected]] of Object.entries(JOBS)) {
      await t.test(what, async () => assert.deepEqual(await run(body), expected));
    }
    await t.test('nothing random is shared', async () => {
      const body = `return [Math.random(), require('crypto').randomUUID(), require('vm').runInNewContext('Math.random()')]`;
      const drawn = (await Promise.all(Array.from({ length: 12 }, () => run(body)))).map(([a, b]) => [a, b]);
      assert.equal(new Set(drawn.flat()).size, 24);
    });
    await t.test('a signal of its own and an exit code are told', async () => {
      const wait = 'await new Promise((done) => setTimeout(done, 5000));';
      assert.equal((await rejection(run(`process.kill(process.pid, 'SIGTERM'); ${wait}`))).code, 'KILLED');
      assert.match((await rejection(run(`process.exit(7)`))).message, /code 7/);
    });
    await factory.cleanup();
  });
}

test('a process forked from a zygote', {
  skip: !RUNGS.includes('zygote') && 'no zygotes here',
  timeout: 120_000,
}, async (t) => {
  const { SandboxExecutorFactory: Factory } = surface();
  const run = (start, body) => new Factory({ start }).executeFunctionTool('t', {}, tool(`async () => { ${body} }`));
  await t.test('passes on nothing that its zygote was loaded with', async () => {
    const body = `const { execFileSync } = require('child_process');
      return [process.env.LD_PRELOAD ?? null, execFileSync('env').toString().includes('LD_PRELOAD')]`;
    assert.deepEqual(await run('zygote', body), [null, false]);
  });
  await t.test('has its heap close together', async () => {
    const body = `return Number(/VmPTE:\\s+(\\d+)/.exec(require('fs').readFileSync('/proc/self/status', 'utf8'))[1])`;
    const [forked, booted] = [await run('zygote', body), await run('spawn', body)];
    assert.ok(forked * 2 < booted, `${forked} KiB of page tables, against ${booted}`);
  });
  await t.test('is not ended by an exit event that is no exit', async () => {
    assert.equal(await run('zygote', `process.emit('exit', 0); return 'alive'`), 'alive');
  });
  await t.test('ends by what an exit listener sets', async () => {
    const body = `process.on('exit', () => { process.exitCode = 3 }); process.exit()`;
    assert.match((await rejection(run('zygote', body))).message, /code 3/);
  });
  await surface().SandboxExecutorFactory.getInstance().cleanup();
});

test('tenants share no zygote', { skip: !RUNGS.includes('zygote') && 'has no zygotes', timeout: 120_000 }, async () => {
  const { NativeSandboxExecutor } = surface();
  // The place of the C library is the zygote's.
  const where = tool(
    `async () => require('fs').readFileSync('/proc/self/maps', 'utf8').split('\\n').find((line) => /libc[.-]/.test(line))`
  );
  const placeOf = async (tenantKey) => {
    const executor = new NativeSandboxExecutor({ start: 'zygote', ...(tenantKey && { tenantKey }) });
    return executor.executeFunctionTool('place', {}, where);
  };
  const places = [];
  for (const tenantKey of ['one', 'other', undefined]) {
    const place = await placeOf(tenantKey);
    assert.equal(await placeOf(tenantKey), place, 'one tenant, one zygote');
    places.push(place);
  }
  assert.equal(new Set(places).size, 3, places.join('\n'));
  // More than have one at a time: the zygotes of some end for others.
  for (let at = 0; at < 20; at++) assert.ok(await placeOf(`tenant-${at}`));
  const { zygotes } = NativeSandboxExecutor.getInstance().getMetrics();
  assert.ok(zygotes.base <= 16, `${zygotes.base} base zygotes`);
});
