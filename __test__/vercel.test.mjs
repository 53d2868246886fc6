// The provider `vercel`, with the unmodified SDKs against the fake of their service: what a call costs, what it gives back,
// and what happens when something on the way fails.

import assert from 'node:assert/strict';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, afterEach, before, describe, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, ROOT, until } from './helpers.mjs';
import { startRegistry } from './registry.mjs';
import { ACCOUNT, fakeApi } from './vercel/fake-api.mjs';
import { packageWith, redirect, sdkVersion, VERSIONS } from './vercel/sdk.mjs';

const require = createRequire(import.meta.url);
const { hostIdentity } = require('../lib/host-identity.js');

const OTHER = { token: 'token-two', teamId: 'team_two', projectId: 'prj_two' };
/** Requests of a warm call. */
const WARM_REQUESTS = { '0.0.24': 4, '1.10.2': 3, '2.9.2': 2, '3.5.0': 2 };
const LIMIT = { timeout: 60_000 };
/** Of all tests of one version. */
const SUITE_LIMIT = { timeout: 300_000 };
/** A process id that no system gives. */
const NO_PID = 4_194_999;

let world;
let api;
let registry;

before(async () => {
  world = ownWorld();
  redirect(() => api.origin);
  registry = await startRegistry({
    pkg: { '1.0.0': { 'index.js': 'module.exports = "installed"' } },
  });
});
after(() => registry.close());

async function open() {
  const env = { npm_config_registry: registry.url, npm_config_cache: join(world.tmp, 'npm-cache') };
  api = await fakeApi({ accounts: [ACCOUNT, OTHER], env });
}

/** The error of a call, looked at as every rejection is. */
async function rejection(promise, { SandboxError }) {
  const error = await promise.then(
    (value) => assert.fail(`resolved with ${JSON.stringify(value)} where a rejection was due`),
    (reason) => reason
  );
  assert.ok(error instanceof SandboxError, `rejected with something else: ${error?.stack ?? error}`);
  assert.ok(error.durationMs >= 0);
  return error;
}

for (const version of VERSIONS) {
  describe(`@vercel/sandbox ${version}`, SUITE_LIMIT, () => {
    const named = !/^[01]\./.test(version);
    let pkg;
    let factory;
    const logged = [];

    before(async () => {
      await open();
      pkg = packageWith(version);
      const record =
        (level) =>
        (...what) =>
          logged.push([level, ...what]);
      pkg.setLogger({ debug: record('debug'), info: record('info'), warn: record('warn'), error: record('error') });
      factory = pkg.SandboxExecutorFactory.getInstance();
    });
    afterEach(async () => {
      api.clearFaults();
      await factory.cleanup();
      assert.deepEqual(
        api.running().map(({ id }) => id),
        [],
        'every sandbox was stopped'
      );
    });
    after(() => api.close());

    const tool = (executeCode, { sandbox, ...over } = {}) => ({
      description: 'a test',
      inputSchema: {},
      executeCode: String(executeCode),
      dependencies: {},
      sandboxConfig: { provider: 'vercel', runtime: 'node22', timeout: 10_000, ...ACCOUNT, ...sandbox },
      ...over,
    });
    const run = (code, args = {}, over = {}, call = undefined) =>
      factory.executeFunctionTool('test-tool', args, tool(code, over), call);
    const fails = (...call) => rejection(run(...call), pkg);

    test('the SDK is what it says', () => assert.equal(sdkVersion(version), version));

    test('results come unwrapped; the class of its own answers as the original', async () => {
      assert.deepEqual(await run('({ n }) => ({ n: n + 1, s: "é€😀" })', { n: 1 }), { n: 2, s: 'é€😀' });
      assert.equal(await run('() => undefined'), undefined);
      // The SDKs decode each chunk of an answer alone; results do not suffer from it.
      assert.equal(await run('() => "€é😀".repeat(50000)'), '€é😀'.repeat(50_000));
      const executor = pkg.VercelSandboxExecutor.getInstance(tool('').sandboxConfig);
      const { executionTime, ...good } = await executor.executeFunctionTool(
        't',
        { n: 1 },
        tool('({ n }) => { console.log("hello\\nyou"); return n }')
      );
      assert.deepEqual(good, { success: true, result: 1, logs: ['hello', 'you'] });
      const both = await executor.executeFunctionTool(
        't',
        {},
        tool('() => { process.stdout.write("out"); process.stderr.write("err"); process.stdout.write("put\\n"); }')
      );
      assert.deepEqual(both.logs.sort(), ['err', 'output'], 'a line is of one stream, and none is empty');
      assert.ok(executionTime > 0);
      const bad = await executor.executeFunctionTool('t', {}, tool('() => { throw new RangeError("no") }'));
      assert.equal(bad.success, false);
      assert.equal(bad.error, 'Function execution failed with code 1: RangeError: no');
      await executor.cleanup();
    });

    test(`a warm call costs ${WARM_REQUESTS[version]} requests`, async () => {
      await run('() => 1');
      for (const code of ['() => 2', 'async () => { console.log("x"); console.error("y"); return 3 }']) {
        const from = api.requests.length;
        await run(code);
        assert.ok(api.requests.length - from <= WARM_REQUESTS[version], JSON.stringify(api.counts(from)));
      }
    });

    test('concurrent first calls share one creation, and keep their arguments and folders', async () => {
      const from = api.requests.length;
      const results = await Promise.all(
        [0, 1, 2, 3, 4, 5].map((n) =>
          run(
            '({ n }) => { require("fs").writeFileSync("f", String(n)); return [n, process.cwd(), require("fs").readFileSync("f", "utf8")] }',
            { n }
          )
        )
      );
      assert.equal(api.counts(from).create, 1);
      assert.deepEqual(
        results.map(([n, , text]) => [n, text]),
        [0, 1, 2, 3, 4, 5].map((n) => [n, String(n)])
      );
      assert.equal(new Set(results.map(([, cwd]) => cwd)).size, 6);
      const [, cwd] = results[0];
      await until(() => !existsSync(cwd), 5_000, 'the run folder is removed');
    });

    test('sandboxes are of one full configuration', async () => {
      const from = api.requests.length;
      await run('() => 1');
      await run('() => 1', {}, { sandbox: OTHER });
      await run('() => 1', {}, { sandbox: { vcpus: 4 } });
      await run('() => 1', {}, { sandbox: { vcpus: 4, timeout: 9_000 } });
      const created = api.requests.slice(from).filter(({ route }) => route === 'create');
      assert.deepEqual(
        created.map(({ body }) => [body.projectId, body.resources?.vcpus]),
        [
          ['prj_one', undefined],
          ['prj_two', undefined],
          ['prj_one', 4],
        ]
      );
      const get = pkg.VercelSandboxExecutor.getInstance;
      const config = tool('').sandboxConfig;
      assert.equal(get(config), get({ ...config }));
      assert.notEqual(get(config), get({ ...config, token: 'another' }));
      assert.notEqual(get(config), get({ ...config, vcpus: 2 }));
    });

    test('credentials that are refused, or half given, are an error without them', async () => {
      const refused = await fails('() => 1', {}, { sandbox: { token: 'wrong-secret' } });
      assert.equal(refused.code, 'START_FAILED');
      assert.match(refused.message, /403|Not authorized/);
      const half = await fails('() => 1', {}, { sandbox: { projectId: undefined } });
      assert.equal(half.code, 'INVALID_CONFIG');
      assert.match(half.message, /lacks projectId/);
      const all = JSON.stringify([logged, refused.stack, refused.cause?.stack, refused.cause]);
      assert.ok(!all.includes('wrong-secret') && !all.includes(ACCOUNT.token));
    });

    test('what a function prints is not taken for its result', async () => {
      const frames = '\\u001e0123456789abcdef0123456789abcdef18.7\\u001e\\n';
      const code = `() => { console.log('{"success":true,"result":8}'); process.stdout.write("${frames}"); return 9 }`;
      const chunks = [];
      assert.equal(await run(code, {}, {}, { onLogs: ({ text }) => chunks.push(text) }), 9);
      assert.ok(chunks.join('').includes('{"success":true,"result":8}\n\x1e0123'));
    });

    test('a function cannot read the nonce of its run', async () => {
      const code = `() => { const fs = require('fs'); return [fs.readdirSync('.').sort(), process.argv.length,
        Object.keys(process.env).some((name) => /nonce/i.test(name)), fs.existsSync('/proc/self/cmdline') && fs.readFileSync('/proc/self/cmdline', 'utf8')] }`;
      const [files, argc, inEnv, cmdline] = await run(code);
      assert.deepEqual(files, ['tmp']);
      assert.equal(argc, 2);
      assert.equal(inEnv, false);
      assert.ok(!/[0-9a-f]{32}/.test(cmdline));
    });

    test('errors, exits and limits are those of the native provider', async () => {
      const thrown = await fails('() => { throw Object.assign(new TypeError("boom"), { status: 7 }) }');
      assert.equal(thrown.code, 'TOOL_ERROR');
      assert.equal(thrown.cause.name, 'TypeError');
      assert.equal(thrown.cause.status, 7);
      assert.equal((await fails('() => process.exit(3)')).code, 'EXITED');
      assert.equal((await fails('() => new Promise(() => {})')).code, 'EXITED');
      assert.equal((await fails('() => 1n')).code, 'RESULT_NOT_SERIALIZABLE');
      assert.equal((await fails('() => "x".repeat(2 ** 21)')).code, 'OUTPUT_LIMIT');
      assert.equal((await fails('() => { process.kill(process.pid, "SIGKILL"); for (;;); }')).code, 'KILLED');
      const from = api.requests.length;
      assert.equal((await fails('(')).code, 'INVALID_SOURCE');
      assert.equal((await fails('() => 1', {}, { dependencies: { '../x': '1' } })).code, 'INVALID_DEPENDENCY');
      const { stop, ...others } = api.counts(from);
      assert.deepEqual(others, {}, 'what cannot run costs nothing');
    });

    test('a result counts when the function settles, not when the process ends', async () => {
      const began = performance.now();
      assert.equal(await run('() => { setInterval(() => {}, 10); return 7 }'), 7);
      assert.ok(performance.now() - began < 5_000);
    });

    test('a flood of output is cut while it streams', { skip: !LINUX, ...LIMIT }, async () => {
      const marker = newMarker();
      const code = `async () => { process.title = ${JSON.stringify(marker)}; for (;;) await new Promise((go) => process.stdout.write('x'.repeat(1000), go)); }`;
      const error = await fails(code, {}, { sandbox: { timeout: 30_000 } });
      assert.equal(error.code, 'OUTPUT_LIMIT');
      await gone(marker);
    });

    test('a timeout kills the command and retires the sandbox, but not while others use it', {
      skip: !LINUX,
      ...LIMIT,
    }, async () => {
      const marker = newMarker();
      const file = join(world.tmp, marker);
      await run('() => 1');
      const other = run(
        `async () => { while (!require('fs').existsSync(${JSON.stringify(file)})) await new Promise((go) => setTimeout(go, 20)); return 'done' }`
      );
      const endless = fails(
        `() => { process.title = ${JSON.stringify(marker)}; for (;;); }`,
        {},
        { sandbox: { timeout: 700 } }
      );
      const error = await endless;
      assert.equal(error.code, 'TIMEOUT');
      assert.equal(error.message, 'Function execution timed out after 700ms');
      await gone(marker);
      assert.equal(api.running().length, 1, 'the other call has its sandbox still');
      const from = api.requests.length;
      await run('() => 2');
      assert.equal(api.counts(from).create, 1, 'a new call gets another');
      appendFileSync(file, '');
      assert.equal(await other, 'done');
      await until(() => api.running().length === 1, 5_000, 'the retired sandbox is stopped after its last call');
    });

    test('the deadline fires though the transport stalls', async () => {
      await run('() => 1');
      api.fault('cmd', { stall: true });
      const began = performance.now();
      const error = await fails('() => 1', {}, { sandbox: { timeout: 500 } });
      assert.equal(error.code, 'TIMEOUT');
      assert.ok(performance.now() - began < 3_000);
    });

    test('a job that cannot be sent is an error in time, and nothing of it ran', async () => {
      await run('() => 1');
      api.fault('write', { stall: true });
      const began = performance.now();
      const error = await fails('() => 1');
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, /nothing of it ran/);
      assert.ok(performance.now() - began < 15_000);
    });

    test('a lost answer never runs a function twice', async () => {
      const file = join(world.tmp, newMarker());
      const code = `() => { require('fs').appendFileSync(${JSON.stringify(file)}, 'ran '); return 1 }`;
      await run('() => 1');
      api.fault('cmd', { cut: 'after' });
      // Where both requests start a process before either has claimed the run, the second may be the one whose answer comes.
      const answer = await run(code).catch((error) => `${error.code}: ${error.message}`);
      if (answer !== 1) assert.match(answer, /^OUTCOME_UNKNOWN: .* was not run again/);
      await until(() => existsSync(file), 5_000, 'it ran');
      await factory.cleanup();
      await until(() => api.running().length === 0, 10_000, 'nothing more can come');
      assert.equal(readFileSync(file, 'utf8'), 'ran ');
    });

    test('an answer that breaks off is unknown, unless the result was in it', async () => {
      await run('() => 1');
      api.fault(version === '0.0.24' || version === '1.10.2' ? 'logs' : 'cmd', { cut: 'during' });
      const error = await fails('async () => { console.log("x"); return 1 }');
      assert.equal(error.code, 'OUTCOME_UNKNOWN');
      assert.match(error.message, /may have run, and was not run again/);
    });

    test('a short rate limit is waited for, a long one told', async () => {
      api.fault('create', { status: 429, headers: { 'retry-after': '1' } });
      assert.equal(await run('() => 1'), 1);
      await factory.cleanup();
      api.fault('create', { status: 429, headers: { 'retry-after': '600' } });
      const began = performance.now();
      const error = await fails('() => 1');
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, /429|rate limited/);
      assert.ok(performance.now() - began < 5_000);
    });

    test('errors of the service that pass are got over', async () => {
      api.fault('create', { status: 502 });
      assert.equal(await run('() => 1'), 1);
      api.fault('write', { cut: 'before' });
      assert.equal(await run('() => 2'), 2);
    });

    test('answers of the wrong kind are errors, not hangs', async () => {
      api.fault('create', { without: named ? 'name' : 'id' });
      assert.equal((await fails('() => 1')).code, 'START_FAILED');
      // Without names nobody can find what was made; it ends with its lifetime.
      if (!named) await Promise.all(api.running().map((machine) => machine.stop()));
      assert.equal(api.running().length, 0);
      api.fault(version === '0.0.24' ? 'logs' : 'cmd', { type: 'text/html' });
      assert.equal((await fails('() => 1')).code, 'OUTCOME_UNKNOWN');
    });

    for (const [what, end] of [
      ['was stopped', (machine) => machine.stop()],
      [
        'ended before its time',
        (machine) => {
          machine.timeout = 0;
          machine.armExpiry();
          return until(() => machine.status === 'stopped', 5_000, 'it ends');
        },
      ],
      [
        'the service has forgotten',
        async (machine) => {
          await machine.stop();
          api.machines.delete(machine.id);
        },
      ],
    ]) {
      test(`a sandbox that ${what} is replaced, and not resumed`, async () => {
        await run('() => 1');
        await end(api.running()[0]);
        const from = api.requests.length;
        assert.equal(await run('() => 2'), 2);
        const counts = api.counts(from);
        assert.equal(counts.create, 1);
        assert.equal(counts.get, undefined);
      });
    }

    test('a sandbox that is stopped during a run loses it', async () => {
      await run('() => 1');
      api.fault('cmd', { stop: 'the function is up' });
      const error = await fails(
        'async () => { console.log("the function is up"); await new Promise((go) => setTimeout(go, 5000)); }'
      );
      assert.ok(['OUTCOME_UNKNOWN', 'KILLED'].includes(error.code), error.code);
      assert.equal(await run('() => 2'), 2);
    });

    test('what is left of its life is never less than the timeout', async () => {
      const from = api.requests.length;
      await run('() => 1');
      const [{ body }] = api.requests.slice(from).filter(({ route }) => route === 'create');
      assert.ok(body.timeout >= 10_000);
      await run('() => 1', {}, { sandbox: { timeout: body.timeout } });
      assert.equal(api.counts(from).create, 2);
      const again = api.requests.findLast(({ route }) => route === 'create');
      assert.ok(again.body.timeout > body.timeout);
    });

    test('a slow creation is waited for, by all; whoever gives up leaves nothing', async () => {
      api.fault('create', { delayMs: 800 });
      assert.deepEqual(await Promise.all([run('() => 1'), run('() => 2')]), [1, 2]);
      await factory.cleanup();
      api.fault('create', { delayMs: 800 });
      const controller = new AbortController();
      const given = rejection(run('() => 1', {}, {}, { signal: controller.signal }), pkg);
      await until(() => api.requests.at(-1)?.route === 'create', 5_000, 'the creation is asked for');
      controller.abort(new Error('changed my mind'));
      const error = await given;
      assert.equal(error.code, 'ABORTED');
      assert.equal(error.cause.message, 'changed my mind');
      // `afterEach` sees that what is created in spite of it was stopped.
    });

    test('an abort ends a running call, cleanup one that waits', { skip: !LINUX, ...LIMIT }, async () => {
      const marker = newMarker();
      const controller = new AbortController();
      await run('() => 1');
      const code = `() => { process.title = ${JSON.stringify(marker)}; console.log('up'); for (;;); }`;
      const call = { signal: controller.signal, onLogs: () => controller.abort() };
      assert.equal((await fails(code, {}, {}, call)).code, 'ABORTED');
      await gone(marker);
      await factory.cleanup();
      api.fault('create', { delayMs: 500 });
      const waiting = fails('() => 1');
      await until(() => api.requests.at(-1)?.route === 'create', 5_000, 'the creation is asked for');
      await factory.cleanup();
      assert.equal((await waiting).code, 'CLEANED_UP');
    });

    test('TypeScript is transformed here: nothing but node and npm runs there', async () => {
      const from = api.requests.length;
      const code = '({ n }: { n: number }): number => { enum E { A = 5 } return n + E.A }';
      assert.equal(await run(code, { n: 1 }, { sandbox: { runtime: 'typescript' } }), 6);
      const bodies = api.requests.slice(from).filter(({ body }) => body);
      assert.ok(bodies.every(({ body }) => body.command === undefined || body.command === 'node'));
      assert.equal(bodies.find(({ route }) => route === 'create').body.runtime, 'node22');
      const error = await fails(
        '(a: string) => {\n  throw new Error("here")\n}',
        {},
        { sandbox: { runtime: 'typescript' } }
      );
      assert.match(error.cause.stack, /:2:/);
    });

    test('dependencies are installed once for a set', async () => {
      const from = api.requests.length;
      const calls = [1, 2, 3].map(() => run('() => require("pkg")', {}, { dependencies: { pkg: '1.0.0' } }));
      assert.deepEqual(await Promise.all(calls), ['installed', 'installed', 'installed']);
      assert.equal(
        await run('async () => (await import("pkg")).default', {}, { dependencies: { pkg: '1.0.0' } }),
        'installed'
      );
      const installs = api.requests.slice(from).filter(({ body }) => body?.args?.includes('npm'));
      assert.equal(installs.length, 1);
      const error = await fails('() => 1', {}, { dependencies: { absent: '1.0.0' } });
      assert.equal(error.code, 'INSTALL_FAILED');
      assert.match(error.message, /^Failed to install dependencies: [\s\S]*404/);
    });

    test('variables: placeholders for what the code reads, values from the given map only', async () => {
      process.env.NSE_HOST_SECRET = 'of the host';
      const other = new pkg.SandboxExecutorFactory({ providerEnv: { GIVEN: 'v', UNREAD: 'w' } });
      const code = `() => [process.env.GIVEN, process.env['NSE_HOST_SECRET'], Object.values(process.env).includes('w'),
        require('fs').readFileSync('.env', 'utf8')]`;
      const result = await other.executeFunctionTool('t', {}, tool(code));
      delete process.env.NSE_HOST_SECRET;
      assert.deepEqual(result, ['v', null, false, 'GIVEN="v"\nNSE_HOST_SECRET=\n']);
      await other.cleanup();
    });

    test('an executor that is cleaned up leaves what others use', async () => {
      const session = pkg.SandboxExecutorFactory.getForSession('s');
      await session.executeFunctionTool('t', {}, tool('() => 1'));
      await run('() => 1');
      await pkg.SandboxExecutorFactory.cleanupSession('s');
      assert.equal(api.running().length, 1);
      const from = api.requests.length;
      await run('() => 1');
      assert.equal(api.counts(from).create, undefined);
    });

    if (named) {
      test('sandboxes are not persistent, and carry who made them', async () => {
        const from = api.requests.length;
        await run('() => 1');
        const { body } = api.requests.slice(from).find(({ route }) => route === 'create');
        assert.equal(body.persistent, false);
        assert.match(body.name, /^nse-[0-9a-f]{16}-\d+-[0-9a-f]{12}$/);
        const { machine, owner } = hostIdentity();
        assert.deepEqual(body.tags, { 'nse-machine': machine, 'nse-owner': owner });
      });

      test('sandboxes of a dead host are found by their tags and stopped', async () => {
        const { machine, owner } = hostIdentity();
        const { Sandbox } = await import(
          join(ROOT, 'target/vercel-sdk', version, 'node_modules/@vercel/sandbox/dist/index.js')
        );
        const make = (name, of) =>
          Sandbox.create({
            ...OTHER,
            name,
            runtime: 'node22',
            persistent: false,
            tags: { 'nse-machine': of.split('-')[0], 'nse-owner': of },
          });
        await make('dead', `${machine}-${NO_PID}-1`);
        await make('reused-pid', `${machine}-${process.pid}-1`);
        await make('mine', owner);
        await make('elsewhere', `0123456789abcdef-${NO_PID}-1`);
        // A configuration that was not used before: it is looked once for each.
        await run('() => 1', {}, { sandbox: { ...OTHER, vcpus: 8 } });
        const state = (name) => api.named.get(name).machine.status;
        await until(
          () => state('dead') === 'stopped' && state('reused-pid') === 'stopped',
          5_000,
          'the dead ones are stopped'
        );
        assert.deepEqual([state('mine'), state('elsewhere')], ['running', 'running']);
        for (const name of ['mine', 'elsewhere']) await api.named.get(name).machine.stop();
      });

      test('a session that was resumed is not used again', async () => {
        await run('() => 1');
        const [sandbox] = [...api.named.values()].slice(-1);
        await sandbox.machine.stop();
        await fetch(`https://vercel.com/api/v2/sandboxes/${sandbox.name}?teamId=${ACCOUNT.teamId}&resume=true`, {
          headers: { authorization: `Bearer ${ACCOUNT.token}` },
        });
        const from = api.requests.length;
        assert.equal(await run('() => 2'), 2);
        assert.equal(api.counts(from).create, 1);
        await sandbox.machine.stop();
      });
    }
  });
}

test('without the SDK there is one clear error, and calls before and after are not spoiled', async () => {
  const pkg = packageWith(undefined);
  const call = () =>
    pkg.SandboxExecutorFactory.getInstance().executeFunctionTool(
      't',
      {},
      {
        description: '',
        inputSchema: {},
        dependencies: {},
        executeCode: '() => 1',
        sandboxConfig: { provider: 'vercel', runtime: 'node22', ...ACCOUNT },
      }
    );
  for (const error of [await rejection(call(), pkg), await rejection(call(), pkg)]) {
    assert.equal(error.code, 'START_FAILED');
    assert.match(
      error.message,
      /needs the package @vercel\/sandbox .* could not be loaded: install it with `npm install @vercel\/sandbox`/
    );
  }
  const answer = await pkg.VercelSandboxExecutor.getInstance({
    provider: 'vercel',
    runtime: 'node22',
    ...ACCOUNT,
  }).executeFunctionTool('t', {}, { description: '', inputSchema: {}, dependencies: {}, executeCode: '() => 1' });
  assert.equal(answer.success, false);
  assert.match(answer.error, /npm install @vercel\/sandbox/);
});
