'use strict';

// The tests that every provider has to pass: the interface by itself, then functions through the factory.

const assert = require('node:assert/strict');
const { Readable } = require('node:stream');
const { setTimeout: delay } = require('node:timers/promises');
const { OutOfTime, bounded } = require('./bounded.js');
const { SandboxExecutorFactory } = require('./factory.js');
const { hostIdentity } = require('./host-identity.js');
const { registerProvider } = require('./providers.js');

/** Nothing that a test waits for takes longer in a provider that works. */
const STEP_LIMIT_MS = 60_000;
/** Time for a command to be over once it was ended, or could not be started. */
const ENDING_LIMIT_MS = 10_000;
const LIFETIME_MS = 120_000;
const LARGE_BYTES = 1024 * 1024;
const POLL_MS = 20;

let registrations = 0;

/** What a test has at hand: sandboxes that are stopped afterwards. */
class Bench {
  #provider;
  #config;
  #made = [];

  constructor(provider, config) {
    this.#provider = provider;
    this.#config = config;
  }

  async create(lifetimeMs = LIFETIME_MS) {
    const signal = AbortSignal.timeout(STEP_LIMIT_MS);
    const request = { config: this.#config, lifetimeMs, owner: hostIdentity(), signal };
    const sandbox = await within(() => this.#provider.create(request));
    this.#made.push(sandbox);
    return sandbox;
  }

  async close() {
    await Promise.all(this.#made.map((sandbox) => within(() => sandbox.stop())));
  }
}

const within = (act) => bounded(STEP_LIMIT_MS, undefined, act);

/** Starts a script, or the `command` of the options; `out` and `err` grow while it runs, `over` gives its exit code. */
function start(sandbox, script, options = {}) {
  const { command = 'node', args = [], cwd = '.', env = {}, timeoutMs = STEP_LIMIT_MS, signal } = options;
  const run = { out: Buffer.alloc(0), err: Buffer.alloc(0), chunks: 0 };
  const onOutput = (stream, chunk) => {
    const key = { stdout: 'out', stderr: 'err' }[stream];
    assert.ok(key, `onOutput got the stream ${stream}`);
    run[key] = Buffer.concat([run[key], Buffer.from(chunk)]);
    run.chunks++;
  };
  const given = command === 'node' ? ['-e', script, ...args] : args;
  run.over = within(() => sandbox.run({ command, args: given, cwd, env, timeoutMs, onOutput, signal })).then(
    ({ exitCode }) => exitCode
  );
  run.over.catch(() => {});
  return run;
}

/** The exit code of a command that is to be over soon, or nothing where `run` rejects; fails where it goes on. */
async function overSoon(run, what) {
  try {
    return await bounded(ENDING_LIMIT_MS, undefined, () => run.over);
  } catch (error) {
    assert.ok(!(error instanceof assert.AssertionError || error instanceof OutOfTime), `${what}: ${error.message}`);
    return undefined;
  }
}

async function finished(sandbox, script, options) {
  const run = start(sandbox, script, options);
  const exitCode = await run.over;
  return { exitCode, out: run.out.toString(), err: run.err.toString() };
}

async function until(condition, what) {
  const end = performance.now() + STEP_LIMIT_MS;
  while (!condition()) {
    assert.ok(performance.now() < end, `${what}: not so after ${STEP_LIMIT_MS} ms`);
    await delay(POLL_MS);
  }
}

/** Prints about a megabyte of numbered lines that end in `text`. */
async function arrivesWhole(bench, text) {
  const sandbox = await bench.create();
  const lines = LARGE_BYTES / 16;
  const script = `let s = ''; for (let i = 0; i < ${lines}; i++) s += i + '${text}\\n'; process.stdout.write(s)`;
  const { out } = await finished(sandbox, script);
  let expected = '';
  for (let i = 0; i < lines; i++) expected += `${i}${text}\n`;
  assert.ok(out === expected, `${out.length} characters came of ${expected.length}, or others`);
}

const INTERFACE = {
  'a new sandbox is alive, and lives as long as was asked for': async (bench) => {
    const sandbox = await bench.create();
    assert.equal(sandbox.alive(), true);
    assert.ok(typeof sandbox.id === 'string' && sandbox.id !== '', 'id is a text');
    const left = sandbox.remainingLifetimeMs();
    assert.ok(left > LIFETIME_MS - STEP_LIMIT_MS, `${left} ms are left`);
    if (left !== Infinity)
      await until(() => sandbox.remainingLifetimeMs() < left, 'remainingLifetimeMs() gets smaller');
  },
  'node is new enough, and npm is there': async (bench) => {
    const sandbox = await bench.create();
    const { out } = await finished(sandbox, 'console.log(process.versions.node)');
    const [major, minor] = out.split('.').map(Number);
    assert.ok(major > 20 || (major === 20 && minor >= 12), `node is ${out.trim()}, and has to be 20.12 or newer`);
    const npm = start(sandbox, '', { command: 'npm', args: ['--version'] });
    assert.equal(await npm.over, 0, `npm --version printed ${npm.err}`);
  },
  'a program that is not there is told': async (bench) => {
    const sandbox = await bench.create();
    const none = start(sandbox, '', { command: 'no-such-program', args: [] });
    const ended = (await overSoon(none, 'the program that is not there')) ?? 127;
    assert.equal(ended, 127);
    assert.equal((await finished(sandbox, 'console.log(1)')).out, '1\n');
  },
  'files are written with their folders, replaced, and read by commands': async (bench) => {
    const sandbox = await bench.create();
    await sandbox.writeFiles([
      { path: 'a/b/text.txt', content: 'é€😀\n' },
      { path: 'bytes.bin', content: Buffer.from([0, 255, 10, 13]) },
    ]);
    await sandbox.writeFiles([{ path: 'a/b/text.txt', content: 'second' }]);
    const script = `const fs = require('fs'); console.log(fs.readFileSync('text.txt', 'utf8'), fs.readFileSync('../../bytes.bin', 'hex'))`;
    assert.deepEqual(await finished(sandbox, script, { cwd: 'a/b' }), {
      exitCode: 0,
      out: 'second 00ff0a0d\n',
      err: '',
    });
  },
  'a file of a megabyte arrives whole': async (bench) => {
    const sandbox = await bench.create();
    await sandbox.writeFiles([{ path: 'large', content: 'x'.repeat(LARGE_BYTES) }]);
    const { out } = await finished(sandbox, `console.log(require('fs').statSync('large').size)`);
    assert.equal(out, `${LARGE_BYTES}\n`);
  },
  'a command gets its arguments and variables as they are, and none of the host': async (bench) => {
    const sandbox = await bench.create();
    process.env.NSE_CONFORMANCE_SECRET = 'secret';
    const script =
      'console.log(JSON.stringify([process.argv.slice(1), process.env.GIVEN, process.env.NSE_CONFORMANCE_SECRET ?? null]))';
    const args = ['a b', '$HOME', `'"`, 'é', ''];
    const { out } = await finished(sandbox, script, { args, env: { GIVEN: 'x=y z' } });
    delete process.env.NSE_CONFORMANCE_SECRET;
    assert.deepEqual(JSON.parse(out), [args, 'x=y z', null]);
  },
  'exit codes are told; a signal counts as 128 and its number': async (bench) => {
    const sandbox = await bench.create();
    assert.equal((await finished(sandbox, 'process.exit(7)')).exitCode, 7);
    assert.equal((await finished(sandbox, `process.kill(process.pid, 'SIGKILL'); for (;;);`)).exitCode, 137);
  },
  'standard input is at its end': async (bench) => {
    const sandbox = await bench.create();
    const { out } = await finished(sandbox, `process.stdin.on('end', () => console.log('end')).resume()`);
    assert.equal(out, 'end\n');
  },
  'output comes while the command runs, on the stream it was printed to': async (bench) => {
    const sandbox = await bench.create();
    const script = `console.log('up'); console.error('err'); const t = setInterval(() => { if (require('fs').existsSync('go')) { clearInterval(t); console.log('down') } }, 10)`;
    const run = start(sandbox, script);
    await until(() => run.out.length + run.err.length >= 'up\nerr\n'.length, 'the first output');
    assert.deepEqual([run.out.toString(), run.err.toString()], ['up\n', 'err\n']);
    await sandbox.writeFiles([{ path: 'go', content: '' }]);
    assert.equal(await run.over, 0);
    assert.equal(run.out.toString(), 'up\ndown\n');
  },
  'much output arrives whole and in order': (bench) => arrivesWhole(bench, ''),
  'characters are not harmed where output is cut': (bench) => arrivesWhole(bench, '€é😀'),
  'commands of one sandbox run at the same time': async (bench) => {
    const sandbox = await bench.create();
    const meet = (own, other) =>
      `const fs = require('fs'); fs.writeFileSync('${own}', ''); const t = setInterval(() => { if (fs.existsSync('${other}')) { clearInterval(t); console.log('${own}') } }, 10)`;
    const both = await Promise.all([finished(sandbox, meet('one', 'two')), finished(sandbox, meet('two', 'one'))]);
    assert.deepEqual(
      both.map(({ out }) => out),
      ['one\n', 'two\n']
    );
  },
  'sandboxes share no files': async (bench) => {
    const [one, two] = [await bench.create(), await bench.create()];
    assert.notEqual(one.id, two.id);
    await one.writeFiles([{ path: 'file', content: '' }]);
    assert.equal((await finished(two, `console.log(require('fs').existsSync('file'))`)).out, 'false\n');
  },
  'a fired signal ends the waiting for a command, and the sandbox goes on': async (bench) => {
    const sandbox = await bench.create();
    const controller = new AbortController();
    const run = start(sandbox, `console.log('up'); setInterval(() => {}, 1000)`, { signal: controller.signal });
    await until(() => run.out.length > 0, 'the command runs');
    controller.abort(new Error('enough'));
    await overSoon(run, 'the command whose signal fired');
    assert.equal((await finished(sandbox, 'console.log(1)')).out, '1\n');
  },
  'a stop ends what runs, is told, and can be repeated': async (bench) => {
    const sandbox = await bench.create();
    const run = start(sandbox, `console.log('up'); setInterval(() => {}, 1000)`);
    await until(() => run.out.length > 0, 'the command runs');
    await within(() => sandbox.stop());
    const exitCode = await overSoon(run, 'the command of a stopped sandbox');
    assert.notEqual(exitCode, 0);
    assert.equal(sandbox.alive(), false);
    await assert.rejects(within(async () => sandbox.writeFiles([{ path: 'x', content: '' }])));
    await assert.rejects(finished(sandbox, '1'));
    await within(() => sandbox.stop());
  },
};

/** The factory's view: the provider under a name of its own, its sandboxes counted. */
class Registered {
  name = `conformance-${++registrations}`;
  created = 0;
  #open = new Set();
  #config;
  #factory = new SandboxExecutorFactory();

  constructor(provider, config) {
    this.#config = config;
    const create = async (request) => {
      const sandbox = await provider.create(request);
      this.created++;
      this.#open.add(sandbox);
      return sandbox;
    };
    registerProvider(this.name, { create });
  }

  call(executeCode, args = {}, timeout = STEP_LIMIT_MS, options = {}) {
    const sandboxConfig = { ...this.#config, provider: this.name, runtime: 'node22', timeout };
    const config = { description: '', inputSchema: {}, dependencies: {}, executeCode, sandboxConfig };
    return this.#factory.executeFunctionTool('conformance', args, config, options);
  }

  async close() {
    await this.#factory.cleanup();
    const left = [...this.#open].filter((sandbox) => sandbox.alive());
    assert.equal(left.length, 0, 'every sandbox was stopped');
  }
}

const FUNCTIONS = {
  'functions run, share a sandbox and leave none': async (registered) => {
    const results = await Promise.all([1, 2, 3].map((n) => registered.call('({ n }) => [n, "é"]', { n })));
    assert.deepEqual(results, [
      [1, 'é'],
      [2, 'é'],
      [3, 'é'],
    ]);
    assert.equal(await registered.call('() => 4'), 4);
    assert.equal(registered.created, 1);
  },
  'errors of functions are told': async (registered) => {
    await assert.rejects(registered.call('() => { throw new TypeError("boom") }'), { code: 'TOOL_ERROR' });
    await assert.rejects(registered.call('() => process.exit(3)'), { code: 'EXITED' });
    assert.equal(registered.created, 1);
  },
  'files of a call are in the working folder of its function, and of no other': async (registered) => {
    const files = { 'in/a.txt': 'é', bytes: Buffer.from([0, 255]), stream: Readable.from(['x', 'y']) };
    const code = `() => { const fs = require('node:fs'); return ['in/a.txt', 'bytes', 'stream'].map((name) => fs.existsSync(name) && fs.readFileSync(name, 'base64')); }`;
    const given = await registered.call(code, {}, STEP_LIMIT_MS, { files });
    assert.deepEqual(
      given.map((text) => [...Buffer.from(text, 'base64')]),
      [[...Buffer.from('é')], [0, 255], [...Buffer.from('xy')]]
    );
    assert.deepEqual(await registered.call(code), [false, false, false]);
    const collect = { match: '**', onFile() {} };
    const refused = { code: 'INVALID_CONFIG', message: new RegExp(`collect cannot be had.*"${registered.name}"`) };
    await assert.rejects(registered.call(code, {}, STEP_LIMIT_MS, { collect }), refused);
  },
  'variables of a call reach its function, and no other one of the sandbox': async (registered) => {
    const secret = `secret ${process.pid} "é" $HOME`;
    const env = { NSE_CONFORMANCE_CALL: secret };
    const found = '() => process.env.NSE_CONFORMANCE_CALL ?? null';
    assert.equal(await registered.call(found, {}, STEP_LIMIT_MS, { env }), secret);
    assert.equal(await registered.call(found), null);
    const left = `() => {
      const fs = require('fs'), path = require('path');
      const has = (folder, levels) => fs.readdirSync(folder, { withFileTypes: true }).some((entry) => {
        const file = path.join(folder, entry.name);
        try {
          return entry.isDirectory() ? levels > 0 && has(file, levels - 1) : fs.readFileSync(file, 'utf8').includes(['secret', '${process.pid}'].join(' '));
        } catch { return false; }
      });
      return has(path.join(process.cwd(), '..'), 3);
    }`;
    assert.equal(await registered.call(left), false, 'a file of the sandbox has the variable of another call');
    const told = await registered
      .call('() => { throw new Error(process.env.NSE_CONFORMANCE_CALL) }', {}, STEP_LIMIT_MS, { env })
      .catch((error) => error);
    assert.equal(told.code, 'TOOL_ERROR');
    assert.ok(!`${told.message}${told.stack}${told.stdout}${told.stderr}`.includes(secret), told.message);
    assert.equal(registered.created, 1);
  },
  'what a provider cannot give is refused by name, before there is a sandbox': async (registered) => {
    for (const options of [
      { functions: { one: () => 1 } },
      { functionLimits: { calls: 1 } },
      { onProgress() {} },
      { onYield() {} },
      { limits: { memoryMb: 64 } },
    ]) {
      const [option] = Object.keys(options);
      const error = await registered.call('() => 1', {}, STEP_LIMIT_MS, options).catch((one) => one);
      assert.equal(error.code, 'INVALID_CONFIG', option);
      assert.ok(error.message.includes(option) && error.message.includes(registered.name), error.message);
    }
    assert.equal(registered.created, 0);
  },
  'a function that does not end is ended, and its sandbox replaced': async (registered) => {
    await registered.call('() => 1');
    await assert.rejects(registered.call('() => { for (;;); }', {}, 1_000), { code: 'TIMEOUT' });
    assert.equal(await registered.call('() => 2'), 2);
    assert.equal(registered.created, 2);
  },
};

/** See `conformance.d.ts`. */
function conformanceTests({ provider, config = {} }) {
  const tests = (cases, make) =>
    Object.entries(cases).map(([name, act]) => ({
      name,
      run: async () => {
        const made = make();
        try {
          await act(made);
        } finally {
          await made.close();
        }
      },
    }));
  return [
    ...tests(INTERFACE, () => new Bench(provider, config)),
    ...tests(FUNCTIONS, () => new Registered(provider, config)),
  ];
}

exports.conformanceTests = conformanceTests;
