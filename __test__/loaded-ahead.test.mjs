// What a package takes while it is loaded, no two calls share: on the rung `zygote` as where each call boots a process. A property of
// generated packages: each takes something in one of many ways, keeps it in one of many forms, and is loaded in one of many ways.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const skip = !RUNGS.includes('zygote') && 'no zygotes here';
/** Calls of each kind; more of them look harder. */
const CALLS = Number(process.env.NATIVE_SANDBOX_TEST_LOADS ?? 6);
/** Which packages are generated. */
const SEED = Number(process.env.NATIVE_SANDBOX_TEST_SEED ?? Date.now() % 1_000_000);

const itself = 'it';
/** What is taken: the code that takes it, what a call says of `it`, and what has to come of that. */
const DIFFERS = 'another value in each call';
const TRUE = 'true in each call';
const CONSTANT = 'the same value everywhere';

/** `fit`: the same in a zygote as in its workers, so that the package stays loaded ahead. */
const TAKEN = {
  'math-random': { take: 'Math.random()', comes: DIFFERS },
  'a-copy-of-random': { take: '(({ random }) => random())(Math)', comes: DIFFERS },
  'another-realm': { take: "require('vm').runInNewContext('Math.random()')", comes: DIFFERS },
  'a-context': {
    take: "(({ createContext, runInContext }) => runInContext('Math.random()', createContext({})))(require('vm'))",
    comes: DIFFERS,
  },
  'a-script': { take: "new (require('vm').Script)('Math.random()').runInNewContext()", comes: DIFFERS },
  bytes: { take: "require('crypto').randomBytes(8).toString('hex')", comes: DIFFERS },
  'a-copy-of-bytes': {
    take: "(({ randomBytes }) => randomBytes(8).toString('hex'))({ ...require('crypto') })",
    comes: DIFFERS,
  },
  uuid: { take: "require('crypto').randomUUID()", comes: DIFFERS },
  integer: { take: "require('crypto').randomInt(2 ** 47)", comes: DIFFERS },
  web: { take: 'crypto.randomUUID()', comes: DIFFERS },
  'web-values': { take: 'String(crypto.getRandomValues(new Uint8Array(8)))', comes: DIFFERS },
  'key-pair': {
    take: "require('crypto').generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' }).x",
    comes: DIFFERS,
  },
  inner: {
    take: "(() => { const to = Buffer.alloc(8); require('crypto').randomFillSync(to); return to.toString('hex'); })()",
    comes: DIFFERS,
  },
  device: {
    take: "(() => { const fs = require('fs'); const fd = fs.openSync('/dev/urandom'); const to = Buffer.alloc(8); fs.readSync(fd, to); fs.closeSync(fd); return to.toString('hex'); })()",
    comes: DIFFERS,
  },
  clock: { take: 'process.hrtime.bigint().toString()', comes: DIFFERS },
  'clock-of-old': { take: 'process.hrtime().join()', comes: DIFFERS },
  date: { take: 'new Date()', see: 'Date.now() - it < 60_000 && it <= Date.now()', comes: TRUE },
  'a-copy-of-the-date': { take: '(({ now }) => now())(Date)', see: 'Date.now() - it < 60_000', comes: TRUE },
  'a-seed-of-the-date': { take: '(Date.now() * 7919) % 2147483647', comes: DIFFERS },
  now: { take: 'performance.now()', see: 'it >= 0 && it <= performance.now()', comes: TRUE },
  'time-origin': { take: 'performance.timeOrigin', see: 'Math.abs(it - performance.timeOrigin) < 1', comes: TRUE },
  uptime: { take: 'process.uptime()', see: 'it >= 0 && it <= process.uptime()', comes: TRUE },
  pid: { take: 'process.pid', see: 'it === process.pid', comes: TRUE },
  parent: { take: 'process.ppid', see: 'it === process.ppid', comes: TRUE },
  directory: { take: 'process.cwd()', see: 'it === process.cwd()', comes: TRUE },
  resolved: { take: "require('path').resolve('a')", see: "it === require('path').resolve('a')", comes: TRUE },
  home: { take: 'process.env.HOME', see: 'it === process.env.HOME', comes: TRUE },
  'home-folder': { take: "require('os').homedir()", see: "it === require('os').homedir()", comes: TRUE },
  'temp-folder': { take: "require('os').tmpdir()", see: "it === require('os').tmpdir()", comes: TRUE },
  variables: { take: 'process.env', see: 'it.OF_THE_CALL', comes: DIFFERS, fit: true },
  'a-variable': { take: "process.env.OF_NO_CALL ?? 'none'", comes: CONSTANT, fit: true },
  main: { take: 'require.main?.filename', see: 'it === require.main?.filename', comes: TRUE },
  script: { take: 'process.argv[1]', see: 'it === process.argv[1]', comes: TRUE },
  arguments: { take: '[process.argv.length, process.execArgv.join()].join()', comes: CONSTANT, fit: true },
  executable: { take: 'process.argv[0] === process.execPath', comes: CONSTANT, fit: true },
  'name-of-the-machine': { take: "require('os').hostname()", comes: CONSTANT, fit: true },
  timer: {
    take: '(() => { const state = { turns: 0 }; setInterval(() => state.turns++, 1).unref(); return state; })()',
    see: 'new Promise((done) => { const before = it.turns; setTimeout(() => done(it.turns > before), 40); })',
    comes: TRUE,
  },
  socket: {
    take: "require('dgram').createSocket('udp4').bind(0, '127.0.0.1').unref()",
    see: "new Promise((done) => { it.once('message', () => done(true)); const send = () => it.send('a', it.address().port, '127.0.0.1'); try { send(); } catch { it.once('listening', send); } })",
    comes: TRUE,
  },
  server: {
    take: "require('net').createServer((socket) => socket.end('hi')).listen(0, '127.0.0.1').unref()",
    see: "new Promise((done) => { const ask = () => require('net').connect(it.address().port, '127.0.0.1').on('data', (data) => done(String(data) === 'hi')); it.listening ? ask() : it.once('listening', ask); })",
    comes: TRUE,
  },
  thread: {
    take: `(() => { const thread = new (require('worker_threads').Worker)("require('worker_threads').parentPort.on('message', (m) => require('worker_threads').parentPort.postMessage(m + 1))", { eval: true }); thread.unref(); return thread; })()`,
    see: "new Promise((done) => { it.ref(); it.once('message', (m) => { it.terminate(); done(m === 2); }); it.postMessage(1); })",
    comes: TRUE,
  },
  child: { take: "require('child_process').spawnSync('true').status", comes: CONSTANT },
  'bytes-called-back': {
    take: "new Promise((done) => require('crypto').randomBytes(8, (_, bytes) => done(bytes.toString('hex'))))",
    comes: DIFFERS,
  },
  'web-key': {
    take: "crypto.subtle.generateKey({ name: 'AES-GCM', length: 128 }, true, ['encrypt']).then((key) => crypto.subtle.exportKey('jwk', key)).then(({ k }) => k)",
    comes: DIFFERS,
  },
  'address-of-a-blob': { take: "URL.createObjectURL(new Blob(['a']))", comes: DIFFERS },
  database: {
    take: "(({ DatabaseSync }) => new DatabaseSync(':memory:').prepare('select hex(randomblob(8)) as it').get().it)(require('node:sqlite'))",
    comes: DIFFERS,
  },
  'generator-of-a-database': {
    take: "(({ DatabaseSync }) => { const it = new DatabaseSync(':memory:').prepare('select hex(randomblob(8)) as it'); it.get(); return it; })(require('node:sqlite'))",
    see: 'it.get().it',
    comes: DIFFERS,
  },
  'bytes-of-wasi': {
    take: "(() => { const wasi = new (require('node:wasi').WASI)({ version: 'preview1' }); const memory = new WebAssembly.Memory({ initial: 1 }); wasi.finalizeBindings ? wasi.finalizeBindings({ exports: { memory } }) : wasi.initialize({ exports: { memory } }); wasi.wasiImport.random_get(0, 8); return Buffer.from(memory.buffer, 0, 8).toString('hex'); })()",
    comes: DIFFERS,
  },
  'clock-of-a-context': {
    take: "require('vm').runInNewContext('Date.now()')",
    see: 'Date.now() - it < 60_000',
    comes: TRUE,
  },
  'text-of-the-date': { take: 'Date()', see: 'Date.now() - Date.parse(it) < 60_000', comes: TRUE },
  'formatted-time': {
    take: "new Intl.DateTimeFormat('en', { hour: 'numeric', minute: 'numeric', second: 'numeric', fractionalSecondDigits: 3 }).format()",
    comes: DIFFERS,
  },
  temporal: { take: 'String(globalThis.Temporal?.Now.instant() ?? process.hrtime.bigint())', comes: DIFFERS },
  'time-of-an-event': { take: "new Event('a').timeStamp", see: 'it >= 0 && it <= performance.now()', comes: TRUE },
  'time-of-a-mark': { take: "performance.mark('a').startTime", see: 'it >= 0 && it <= performance.now()', comes: TRUE },
  'date-of-a-file': {
    take: "new (require('buffer').File)([], 'a').lastModified",
    see: 'Date.now() - it < 60_000',
    comes: TRUE,
  },
  'signal-with-an-end': {
    take: 'AbortSignal.timeout(20)',
    see: 'new Promise((done) => setTimeout(() => done(it.aborted), 60))',
    comes: TRUE,
  },
  'folder-of-its-own': {
    take: "require('fs').mkdtempSync(require('path').join(require('os').tmpdir(), 'a-'))",
    see: "require('fs').existsSync(it)",
    comes: TRUE,
  },
  'real-directory': {
    take: "require('fs').realpathSync.native('.')",
    see: "it === require('fs').realpathSync.native('.')",
    comes: TRUE,
  },
  'inode-of-the-directory': {
    take: "require('fs').statSync('.').ino",
    see: "it === require('fs').statSync('.').ino",
    comes: TRUE,
  },
  'relative-file': { take: "require('fs').existsSync('of-the-call')", comes: TRUE },
  'relative-text': {
    take: "(() => { try { return require('fs').readFileSync('of-the-call', 'utf8') === 'x'; } catch { return false; } })()",
    comes: TRUE,
  },
  'relative-list': {
    take: "(() => { try { return require('fs').readdirSync('.').includes('of-the-call'); } catch { return false; } })()",
    comes: TRUE,
  },
  'link-of-the-process': {
    take: "require('fs').readlinkSync('/proc/self')",
    see: "it === require('fs').readlinkSync('/proc/self')",
    comes: TRUE,
  },
  'link-of-the-directory': {
    take: "(() => { try { return require('fs').readlinkSync('/proc/self/cwd') } catch (e) { return e.code; } })()",
    see: "it === (() => { try { return require('fs').readlinkSync('/proc/self/cwd') } catch (e) { return e.code; } })()",
    comes: TRUE,
  },
  user: {
    take: '[process.getuid(), process.getegid(), process.getgroups()].join()',
    see: 'it === [process.getuid(), process.getegid(), process.getgroups()].join()',
    comes: TRUE,
    fit: true,
  },
  title: { take: 'process.title', comes: CONSTANT, fit: true },
  streams: { take: 'process.stdout', see: 'it === process.stdout', comes: TRUE, fit: true },
  terminal: { take: '[process.stdout.isTTY, process.stdin.isTTY].join()', comes: CONSTANT, fit: true },
  'main-module': { take: 'process.mainModule?.filename', see: 'it === process.mainModule?.filename', comes: TRUE },
  'paths-of-main': { take: 'require.main?.paths.join()', see: 'it === require.main?.paths.join()', comes: TRUE },
  'limit-of-the-heap': { take: "require('v8').getHeapStatistics().heap_size_limit", comes: CONSTANT, fit: true },
  'report-of-the-process': {
    take: 'process.report.getReport().header.processId',
    see: 'it === process.pid',
    comes: TRUE,
  },
};
/** What only ES modules can write; `it` is bound by an import. */
const IMPORTED = {
  'imported-pid': { head: "import { pid } from 'node:process';", take: 'pid', see: 'it === process.pid', comes: TRUE },
  'all-of-process': {
    head: "import * as all from 'node:process';",
    take: 'all.pid',
    see: 'it === process.pid',
    comes: TRUE,
  },
  'a-live-pid': {
    head: "import { pid } from 'process';",
    take: '() => pid',
    see: 'it() === process.pid',
    comes: TRUE,
  },
  'process-alone': {
    head: "import own from 'node:process';",
    take: '() => own.pid',
    see: 'it() === process.pid',
    comes: TRUE,
    fit: true,
  },
  'imported-random': { head: "import { randomUUID } from 'node:crypto';", take: 'randomUUID()', comes: DIFFERS },
  'imported-variables': {
    head: "import { env } from 'node:process';",
    take: 'env',
    see: 'it.OF_THE_CALL',
    comes: DIFFERS,
    fit: true,
  },
  'imported-directory': {
    head: "import { cwd } from 'node:process';",
    take: 'cwd()',
    see: 'it === process.cwd()',
    comes: TRUE,
  },
};
/** Ways to keep something. */
const FORMS = {
  value: (take) => `const box = { it: ${take} };`,
  member: (take) => `class Box { static it = ${take}; }\nconst box = Box;`,
  closure: (take) => `const box = (() => { const kept = ${take}; return { get it() { return kept; } }; })();`,
  frozen: (take) => `const box = Object.freeze({ it: ${take} });`,
  'in a microtask': (take) => `const box = {};\nqueueMicrotask(() => { box.it = ${take}; });`,
  'in a function of its own': (take) => `const box = {};\nfunction fill() { box.it = ${take}; }\nfill();`,
};
const MODULES = ['a CommonJS module', 'an ES module', 'a dependency'];
const PLAIN = 'plain';

/** mulberry32: small, and the same for the same seed. */
function generator(seed) {
  let state = seed >>> 0;
  return (list) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return list[((mixed ^ (mixed >>> 14)) >>> 0) % list.length];
  };
}

/** The packages: for each thing that can be taken, a form and a kind of module that the seed says. */
function generate(seed) {
  const pick = generator(seed);
  const made = Object.entries(TAKEN).map(([name, of]) => ({
    name,
    ...of,
    form: pick(Object.keys(FORMS)),
    module: pick(MODULES),
  }));
  const imported = Object.entries(IMPORTED).map(([name, of]) => ({
    name,
    ...of,
    form: pick(Object.keys(FORMS)),
    module: 'an ES module',
  }));
  return [...made, ...imported];
}

function filesOf({ name, head = '', take, see = itself, form, module }) {
  const body = FORMS[form](take);
  const seen = `async () => { const { it } = box; return ${see}; }`;
  const common = `${body}\nexports.see = ${seen};\n`;
  const require = "import { createRequire } from 'node:module';\nconst require = createRequire(import.meta.url);";
  // There is no main module to be seen from an ES module but by the process.
  const own = (text) => text.replaceAll('require.main', 'process.mainModule');
  if (module === 'an ES module') {
    const text = own(`${head}\n${require}\n${body}\nexport const see = ${seen};\n`);
    return { [name]: { '1.0.0': { 'package.json': { type: 'module' }, 'index.js': text } } };
  }
  if (module === 'a CommonJS module') return { [name]: { '1.0.0': { 'index.js': common } } };
  return {
    [name]: {
      '1.0.0': {
        'package.json': { dependencies: { [`${name}-inside`]: '1.0.0' } },
        'index.js': `module.exports = require('${name}-inside');`,
      },
    },
    [`${name}-inside`]: { '1.0.0': { 'index.js': common } },
  };
}

const packages = generate(SEED);
/**
 * In trees of so many: a zygote begins anew without each package that leaves something behind, and not without end. What is fit stays loaded
 * ahead beside what is not.
 */
const TREE_SIZE = 30;
const TREES = Array.from({ length: Math.ceil(packages.length / TREE_SIZE) }, (_, at) =>
  packages.slice(at * TREE_SIZE, (at + 1) * TREE_SIZE)
);
const dependenciesOf = (tree) =>
  Object.fromEntries([...tree.map(({ name }) => name), PLAIN].map((name) => [name, '1.0.0']));
const codeOf = (tree) => `async () => {
  const ahead = Object.keys(require.cache).map((at) => at.split('/').at(-2));
  // Nothing that packages leave behind keeps the process alive.
  const alive = setInterval(() => {}, 1000);
  const seen = {};
  const load = { ${tree
    .map(
      ({ name, module }) =>
        `'${name}': async () => ${module === 'an ES module' ? 'await import' : 'require'}('${name}')`
    )
    .join(', ')} };
  for (const [name, loads] of Object.entries(load)) {
    const { see } = await loads();
    // What a package still does when it is loaded it has done then.
    await null;
    seen[name] = await see();
  }
  clearInterval(alive);
  return { ahead, seen, count: require('${PLAIN}')(), since: performance.now(), uptime: process.uptime() };
}`;

let registry;
let forked;
let booted;
before(async () => {
  if (skip) return;
  ownWorld();
  registry = await useRegistry({
    [PLAIN]: { '1.0.0': { 'index.js': 'let n = 0; module.exports = () => ++n;' } },
    ...Object.assign({}, ...packages.map(filesOf)),
  });
  const { NativeSandboxExecutor: Executor } = surface();
  [forked, booted] = [new Executor({ start: 'zygote' }), new Executor({ start: 'spawn' })];
});
after(async () => {
  await forked?.cleanup();
  await booted?.cleanup();
  await registry?.close();
});

const valuesOf = (all, name) => all.map(({ seen }) => seen[name]);

function agree(comes, ours, theirs) {
  for (const values of [ours, theirs]) {
    if (comes === TRUE) assert.deepEqual(values, Array(CALLS).fill(true));
    else assert.equal(new Set(values).size, comes === DIFFERS ? CALLS : 1, `${values}`);
  }
  if (comes === CONSTANT) assert.equal(ours[0], theirs[0]);
}

let count = 0;
/** Each call has a file that packages look for by a relative path. */
const call = (executor, tree) =>
  executor.executeFunctionTool('t', {}, tool(codeOf(tree), { dependencies: dependenciesOf(tree) }), {
    env: { OF_THE_CALL: `call ${++count}` },
    files: { 'of-the-call': 'x' },
  });
const calls = async (executor, tree) => {
  const all = [];
  for (let i = 0; i < CALLS; i++) all.push(await call(executor, tree));
  return all;
};

for (const [at, tree] of TREES.entries()) {
  test(`calls agree with calls of processes that were booted for them (${at + 1} of ${TREES.length})`, {
    skip,
    timeout: 1_200_000,
  }, async (t) => {
    t.diagnostic(`NATIVE_SANDBOX_TEST_SEED=${SEED}`);
    await until(async () => (await call(forked, tree)).ahead.includes(PLAIN), 120_000, 'what is fit is loaded ahead');
    const [ours, theirs] = [await calls(forked, tree), await calls(booted, tree)];
    for (const { name, comes, form, module } of tree) {
      await t.test(`${name}: ${form}, ${module}`, () => agree(comes, valuesOf(ours, name), valuesOf(theirs, name)));
    }
    for (const { count, since, uptime } of ours) {
      assert.equal(count, 1);
      assert.ok(since >= 0 && uptime >= 0, `${since} ms, ${uptime} s`);
    }
    const { notPreloaded } = forked.getMetrics();
    const told = new Map(notPreloaded.flatMap(({ packages: of, reason }) => of.map((name) => [name, reason])));
    for (const { name, fit } of tree) {
      if (fit) assert.equal(told.get(name), undefined, name);
      else assert.ok(told.has(name), `${name} is not told`);
    }
    assert.equal(told.has(PLAIN), false);
  });
}

/** Packages that read variables while they are loaded, by what a call that has its own is to find. */
const READS_VARIABLES = {
  'reads-one': 'module.exports = process.env.NSE_OWN ?? null;',
  'reads-by-destructuring': 'const { NSE_OWN = null } = process.env; module.exports = NSE_OWN;',
  'copies-all': 'module.exports = { ...process.env }.NSE_OWN ?? null;',
  'looks-for-a-name': "module.exports = 'NSE_OWN' in process.env ? process.env.NSE_OWN : null;",
  'lists-names':
    "const has = Object.keys(process.env).includes('NSE_OWN'); module.exports = has ? process.env.NSE_OWN : null;",
  'asks-for-an-own-name': "module.exports = Object.hasOwn(process.env, 'NSE_OWN') ? process.env.NSE_OWN : null;",
  'keeps-the-zone': 'module.exports = new Date(0).getTimezoneOffset();',
  'keeps-the-name-of-the-zone': 'module.exports = Intl.DateTimeFormat().resolvedOptions().timeZone;',
};
const ZONES = { 'keeps-the-zone': [-540, 300], 'keeps-the-name-of-the-zone': ['Asia/Tokyo', 'America/New_York'] };

test('packages that read a variable at load find that of the call, and stay loaded ahead for other calls', {
  skip,
  timeout: 240_000,
}, async () => {
  const own = await useRegistry(
    Object.fromEntries(Object.entries(READS_VARIABLES).map(([name, text]) => [name, { '1.0.0': { 'index.js': text } }]))
  );
  const { NativeSandboxExecutor: Executor } = surface();
  const executor = new Executor({ start: 'zygote' });
  try {
    for (const name of Object.keys(READS_VARIABLES)) {
      const code = `() => ({ ahead: Object.keys(require.cache).some((at) => at.includes('/${name}/')), found: require('${name}') })`;
      const call = (env) =>
        executor.executeFunctionTool('t', {}, tool(code, { dependencies: { [name]: '1.0.0' } }), env && { env });
      // With all variables it takes the folders of a call, too.
      const takesAll = name === 'copies-all';
      if (!takesAll) await until(async () => (await call()).ahead, 60_000, `${name} is loaded ahead`);
      const common = await call();
      assert.equal(common.ahead, !takesAll, name);
      const [first, second] = ZONES[name] ?? ['one', 'two'];
      for (const [value, zone] of [
        [first, 'Asia/Tokyo'],
        [second, 'America/New_York'],
      ]) {
        const env = name in ZONES ? { TZ: zone } : { NSE_OWN: value };
        assert.deepEqual(await call(env), { ahead: false, found: value }, name);
      }
      assert.deepEqual(await call(), common, name);
      assert.deepEqual(
        await call({ NSE_OTHER: 'x' }),
        { ...common, ahead: !['copies-all', 'lists-names'].includes(name) },
        name
      );
    }
  } finally {
    await executor.cleanup();
    await own.close();
  }
});
