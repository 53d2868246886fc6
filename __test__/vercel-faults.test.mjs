// Faults that real servers meet, with the unmodified SDKs against the fake of their service: refusals, rate limits, answers that
// break off, stall, come twice or never, sandboxes that end at the wrong time, hosts that die.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, afterEach, before, describe, test } from 'node:test';
import { host, LINUX, newMarker, ownWorld, ROOT, until } from './helpers.mjs';
import { startRegistry } from './registry.mjs';
import { ACCOUNT, fakeApi } from './vercel/fake-api.mjs';
import { packageWith, redirect, VERSIONS } from './vercel/sdk.mjs';

const require = createRequire(import.meta.url);
const { hostIdentity } = require('../lib/host-identity.js');

const LIMIT = { skip: !LINUX, timeout: 240_000 };
/** A rate limit that the SDKs do not wait for. */
const LONG_WAIT = { headers: { 'retry-after': '600' } };

let world;
let api;
let registry;
let restore;

before(async () => {
  world = ownWorld();
  restore = redirect(() => api.origin);
  registry = await startRegistry({ pkg: { '1.0.0': { 'index.js': 'module.exports = "installed"' } } });
});
after(() => {
  restore();
  return registry.close();
});

async function rejection(promise, { SandboxError }) {
  const error = await promise.then(
    (value) => assert.fail(`resolved with ${JSON.stringify(value)} where a rejection was due`),
    (reason) => reason
  );
  assert.ok(error instanceof SandboxError, `rejected with something else: ${error?.stack ?? error}`);
  return error;
}

function tool(executeCode, { sandbox, ...over } = {}) {
  return {
    description: 'a test',
    inputSchema: {},
    executeCode,
    dependencies: {},
    sandboxConfig: { provider: 'vercel', runtime: 'node22', timeout: 10_000, ...ACCOUNT, ...sandbox },
    ...over,
  };
}

for (const version of VERSIONS) {
  describe(`@vercel/sandbox ${version}`, LIMIT, () => {
    const isNamed = !/^[01]\./.test(version);
    /** Where what a command prints comes from. */
    const stream = version === '0.0.24' ? 'logs' : isNamed ? 'cmd' : 'logs';
    const records = [];
    let pkg;
    let factory;

    before(async () => {
      const env = { npm_config_registry: registry.url, npm_config_cache: join(world.tmp, 'npm-cache') };
      api = await fakeApi({ env });
      pkg = packageWith(version);
      const record =
        (level) =>
        (...what) =>
          records.push([level, ...what]);
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

    const run = (code, args = {}, over = {}, call = undefined) =>
      factory.executeFunctionTool('test-tool', args, tool(code, over), call);
    const fails = (...call) => rejection(run(...call), pkg);
    const once = () => {
      const file = join(world.tmp, newMarker());
      writeFileSync(file, '');
      const code = `() => { require('fs').appendFileSync(${JSON.stringify(file)}, 'ran '); return 1 }`;
      return { code, times: () => readFileSync(file, 'utf8').split(' ').length - 1 };
    };

    for (const status of [400, 401, 402, 403, 404, 409, 410, 422, 429]) {
      test(`${status}, wherever it is answered, fails one call in time and says so`, async () => {
        const fault = { status, code: 'made_up', ...(status === 429 ? LONG_WAIT : {}) };
        const began = performance.now();
        // A name that is taken is not tried again by the same name.
        api.fault('create', fault, status === 409 ? 2 : 1);
        const refused = await fails('() => 1');
        assert.equal(refused.code, 'START_FAILED');
        assert.match(refused.message, new RegExp(`${status}`));
        // Some SDKs have these words in the text of their error, too.
        assert.equal(refused.message.split('as the test wants').length - 1, 1, refused.message);
        api.clearFaults();
        assert.equal(await run('() => 2'), 2);
        api.fault('write', fault, Infinity);
        api.fault('mkdir', fault, Infinity);
        const unsent = await fails('() => 3');
        assert.equal(unsent.code, 'START_FAILED', unsent.message);
        assert.match(unsent.message, new RegExp(`${status}`));
        api.clearFaults();
        assert.equal(await run('() => 4'), 4);
        const { code, times } = once();
        api.fault('cmd', fault);
        const unknown = await fails(code);
        // A request before it may have started the function.
        assert.equal(unknown.code, 'OUTCOME_UNKNOWN');
        assert.match(unknown.message, new RegExp(`${status}`));
        assert.equal(times(), 0);
        assert.equal(await run('() => 5'), 5);
        assert.ok(performance.now() - began < 15_000);
      });
    }

    test('a stop that is refused is told, and a stop that is too late is none', async () => {
      await run('() => 1');
      api.fault('stop', { status: 410, code: 'sandbox_stopped' });
      records.length = 0;
      await factory.cleanup();
      assert.deepEqual(
        records.filter(([level]) => level === 'warn'),
        []
      );
      await Promise.all(api.running().map((machine) => machine.stop()));
      await run('() => 1');
      api.fault('stop', { status: 403 });
      await factory.cleanup();
      const [[, fields, message]] = records.filter(([level]) => level === 'warn');
      assert.equal(message, 'Failed to clean up sandbox');
      assert.match(fields.error, /403/);
      assert.ok(!JSON.stringify(records).includes(ACCOUNT.token));
      await Promise.all(api.running().map((machine) => machine.stop()));
    });

    test('a sandbox that an answer calls gone is stopped all the same', async () => {
      await run('() => 1');
      api.fault('write', { status: 404 }, Infinity);
      await fails('() => 2');
      api.clearFaults();
      assert.equal(await run('() => 3'), 3);
      await factory.cleanup();
      // `afterEach` sees that nothing runs.
    });

    test('a connection that is reset before a command started runs it once', async () => {
      await run('() => 1');
      const { code, times } = once();
      api.fault('cmd', { cut: 'before' });
      assert.equal(await run(code), 1);
      assert.equal(times(), 1);
    });

    test('an installation whose answer is lost is not run beside itself, nor twice', async () => {
      for (const [pkg, expected] of [
        ['pkg', 'installed'],
        ['absent', 'INSTALL_FAILED'],
      ]) {
        api.fault('cmd', { cut: 'early' });
        const from = api.requests.length;
        const over = { dependencies: { [pkg]: '1.0.0' } };
        const answer = await run(`() => require("${pkg}")`, {}, over).catch(({ code, message }) => {
          assert.match(message, /404/);
          return code;
        });
        assert.equal(answer, expected);
        const sent = api.requests.slice(from).filter(({ body }) => body?.args?.includes('npm'));
        assert.equal(sent.length, 2, 'the request came twice');
      }
    });

    if (isNamed) {
      test('errors of the service that do not pass end in time', async () => {
        const began = performance.now();
        for (const [route, code] of [
          ['create', 'START_FAILED'],
          ['write', 'START_FAILED'],
          ['cmd', 'OUTCOME_UNKNOWN'],
        ]) {
          if (route !== 'create') await run('() => 1');
          api.fault(route, { status: 503 }, 10);
          const error = await fails('() => 2');
          assert.equal(error.code, code, route);
          assert.match(error.message, /503/);
          api.clearFaults();
          await factory.cleanup();
        }
        assert.ok(performance.now() - began < 20_000);
      });

      test('a creation whose answer is lost leaves no sandbox, and the call has one', async () => {
        api.fault('create', { cut: 'after' });
        assert.equal(await run('() => 1'), 1);
        assert.equal(api.running().length, 1);
      });

      test('a creation without any answer leaves no sandbox', async () => {
        api.fault('create', { cut: 'after' }, 1);
        const from = api.requests.length;
        api.fault('create', { cut: 'after' }, 10);
        assert.equal((await fails('() => 1')).code, 'START_FAILED');
        assert.ok(api.counts(from).create > 1);
      });

      test('sandboxes of dead hosts are stopped though one of them cannot be', async () => {
        const { machine } = hostIdentity();
        const { Sandbox } = await import(
          join(ROOT, 'target/vercel-sdk', version, 'node_modules/@vercel/sandbox/dist/index.js')
        );
        for (const name of ['one', 'two', 'three']) {
          const tags = { 'nse-machine': machine, 'nse-owner': `${machine}-4194999-1` };
          await Sandbox.create({ ...ACCOUNT, name, runtime: 'node22', persistent: false, tags });
        }
        api.fault('get', { status: 404 }, 1);
        await run('() => 1', {}, { sandbox: { vcpus: 3 } });
        await until(() => api.running().length === 2, 10_000, 'two of three are stopped');
        await factory.cleanup();
        await Promise.all(api.running().map((left) => left.stop()));
      });

      test('a host that dies while it creates leaves nothing for long', async () => {
        // The creation goes on at the service when nobody waits any more.
        api.fault('create', { delayMs: 700 });
        const project = inProject(version);
        const { child, exited } = host(
          `${project}
          pkg.SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, ${JSON.stringify(tool('() => 1'))});`,
          { bare: true, env: { FAKE: api.origin } }
        );
        const from = api.requests.length;
        await until(() => api.counts(from).create === 1, 20_000, 'the creation is asked for');
        child.kill('SIGKILL');
        await exited;
        await until(() => api.running().length === 1, 10_000, 'the orphan is there');
        const [orphan] = api.running();
        await run('() => 1', {}, { sandbox: { vcpus: 5 } });
        await until(() => orphan.status === 'stopped', 10_000, 'it is found and stopped');
      });
    }

    test('an answer that ends early, as if it were whole, is unknown', async () => {
      await run('() => 1');
      for (const lines of [0, 1]) {
        api.fault(stream, { end: lines });
        const error = await fails(
          '() => { process.stdout.write("x"); return new Promise((go) => setTimeout(go, 300, 1)) }'
        );
        assert.equal(error.code, 'OUTCOME_UNKNOWN', error.message);
      }
    });

    test('lines that come twice change no result', async () => {
      await run('() => 1');
      api.fault(stream, { twice: true });
      const long = 'x€'.repeat(30_000);
      assert.equal(await run('() => { console.log("printed"); return "x€".repeat(30000) }'), long);
    });

    test('an answer that stalls in its middle is a timeout', async () => {
      await run('() => 1');
      api.fault(stream, { stall: 'during' });
      const began = performance.now();
      const error = await fails('() => 1', {}, { sandbox: { timeout: 700 } });
      assert.equal(error.code, 'TIMEOUT');
      assert.ok(performance.now() - began < 3_000);
    });

    test('output without an end of line is cut, and bytes that are no text do no harm', async () => {
      const flood = "() => { for (let i = 0; i < 64; i++) process.stdout.write('x'.repeat(65536)); return 1 }";
      assert.equal((await fails(flood)).code, 'OUTPUT_LIMIT');
      const bytes = '() => { process.stdout.write(Buffer.from([0xff, 0x1e, 0xe2, 0x82, 0x1e, 0x1e, 0])); return "é" }';
      assert.equal(await run(bytes), 'é');
    });

    test('a service whose clock is wrong changes nothing', async () => {
      for (const skewMs of [3_600_000, -3_600_000]) {
        api.skewMs = skewMs;
        const from = api.requests.length;
        assert.equal(await run('() => 1'), 1);
        assert.equal(await run('() => 2'), 2);
        assert.equal(api.counts(from).create, 1);
        await factory.cleanup();
      }
      api.skewMs = 0;
    });

    test('TypeScript with a dependency runs as it would here', async () => {
      const code =
        'import pkg from "pkg"; enum E { A = 5 } export default ({ n }: { n: number }): string => [pkg, n + E.A].join()';
      const over = { dependencies: { pkg: '1.0.0' }, sandbox: { runtime: 'typescript' } };
      assert.equal(await run(code, { n: 1 }, over), 'installed,6');
    });

    test('large and odd arguments arrive', async () => {
      const args = { text: 'é"\\\u2028'.repeat(1_300_000), '\ud800': '\udfff', zero: -0 };
      const lengths = '(given) => [given.text.length, given["\\ud800"] === "\\udfff", Object.is(given.zero, 0)]';
      assert.deepEqual(await run(lengths, args), [args.text.length, true, true]);
    });

    test('a token that is replaced takes the calls from then on, whatever becomes of the former', async () => {
      await run('() => 1');
      const renewed = { ...ACCOUNT, token: 'token-renewed' };
      api.accounts.splice(0, 1, renewed);
      assert.equal(await run('() => 2', {}, { sandbox: renewed }), 2);
      await factory.cleanup();
      api.accounts.splice(0, 1, ACCOUNT);
      assert.equal(api.running().length, 1, 'what the former one made cannot be stopped with it');
      await Promise.all(api.running().map((machine) => machine.stop()));
    });

    test('the answer of the class of its own does not change afterwards', async () => {
      const executor = pkg.VercelSandboxExecutor.getInstance(tool('').sandboxConfig);
      const chunks = [];
      const code = '() => { console.log("before"); setTimeout(() => console.log("after"), 100); return 1 }';
      const answer = await executor.executeFunctionTool('t', {}, tool(code), {
        onLogs: ({ text }) => chunks.push(text),
      });
      const logs = [...answer.logs];
      await executor.cleanup();
      assert.ok(chunks.join('').includes('after'), chunks.join(''));
      assert.deepEqual(answer.logs, logs);
    });

    test('a host ends by itself soon after its last call, whatever that was', async () => {
      const project = inProject(version);
      for (const [code, expected] of [
        ['() => 1', 1],
        ['() => { for (;;); }', 'TIMEOUT'],
      ]) {
        const config = JSON.stringify(tool(code, { sandbox: { timeout: code === '() => 1' ? 10_000 : 700 } }));
        const { child, exited } = host(
          `${project}
          const call = pkg.SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, ${config});
          console.log(JSON.stringify(await call.catch((error) => error.code)));`,
          { bare: true, env: { FAKE: api.origin }, nodeArgs: ['--unhandled-rejections=strict'] }
        );
        let last;
        child.stdout.on('data', () => {
          last = performance.now();
        });
        const { said, code: status, err } = await exited;
        assert.equal(status, 0, err);
        assert.deepEqual(said, [expected]);
        const afterMs = performance.now() - last;
        assert.ok(afterMs < 7_000, `${code}: ${afterMs} ms`);
      }
      await Promise.all(api.running().map((machine) => machine.stop()));
    });

    test('without any credentials there is one clear error', async () => {
      const { VERCEL_OIDC_TOKEN: kept } = process.env;
      delete process.env.VERCEL_OIDC_TOKEN;
      const none = { token: undefined, teamId: undefined, projectId: '' };
      const began = performance.now();
      const error = await fails('() => 1', {}, { sandbox: none });
      if (kept !== undefined) process.env.VERCEL_OIDC_TOKEN = kept;
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, /OIDC|oidc|credentials/i);
      assert.ok(performance.now() - began < 10_000);
    });
  });
}

/** The beginning of a script that has the package with one SDK as `pkg`, and the fake at `FAKE` in the place of the service. */
function inProject(version) {
  const load = packageWith(version, { from: true });
  const entry = load.resolve('./index.js');
  return `import { createRequire } from 'node:module';
    const original = globalThis.fetch;
    globalThis.fetch = (input, options) => original(String(input).replace('https://vercel.com', process.env.FAKE), options);
    const pkg = createRequire(import.meta.url)(${JSON.stringify(entry)});`;
}

describe('the installed package', LIMIT, () => {
  /** The package beside an SDK made up of `files`. */
  function withSdk(files) {
    const load = packageWith(undefined, { from: true });
    const folder = join(load.resolve('./index.js'), '..', '..', '@vercel', 'sandbox');
    mkdirSync(folder, { recursive: true });
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    return load('./index.js');
  }
  const call = (pkg) =>
    rejection(pkg.SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, tool('() => 1')), pkg);
  const SANDBOX = 'class Sandbox { static async create() { throw new Error("it was asked") } }';

  test('that is too old is told with its version', async () => {
    for (const version of ['0.0.23', '0.1.0', '1.0.2', '1.9.9']) {
      const manifest = JSON.stringify({ name: '@vercel/sandbox', version, main: 'index.js' });
      const pkg = withSdk({ 'package.json': manifest, 'index.js': `${SANDBOX} exports.Sandbox = Sandbox;` });
      const error = await call(pkg);
      assert.equal(error.code, 'START_FAILED');
      assert.match(
        error.message,
        new RegExp(`0\\.0\\.24 \\|\\| \\^1\\.10 .*version ${version.replaceAll('.', '\\.')} is installed`)
      );
    }
  });

  test('may be one that only `import` loads, and may hide its version', async () => {
    const manifest = { name: '@vercel/sandbox', version: '3.9.0', type: 'module', exports: { import: './index.js' } };
    const pkg = withSdk({ 'package.json': JSON.stringify(manifest), 'index.js': `export ${SANDBOX}` });
    assert.match((await call(pkg)).message, /it was asked/);
  });

  test('that is something else, or breaks while it is loaded, is told', async () => {
    const manifest = JSON.stringify({ name: '@vercel/sandbox', version: '3.9.0', main: 'index.js' });
    const other = withSdk({ 'package.json': manifest, 'index.js': 'exports.other = 1;' });
    assert.match((await call(other)).message, /could not be loaded: .*it has no Sandbox\.create/);
    for (const thrown of ['new Error("broken inside")', 'undefined', '"a text"']) {
      const broken = withSdk({ 'package.json': manifest, 'index.js': `throw ${thrown};` });
      const error = await call(broken);
      assert.equal(error.code, 'START_FAILED');
      assert.match(error.message, /could not be loaded/);
    }
  });
});
