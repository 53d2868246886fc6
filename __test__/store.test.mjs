// The store: what is installed once is there for every session and process of this user, and for the next ones.

import assert from 'node:assert/strict';
import { chmodSync, existsSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { filesBelow, host, ownWorld, rejection, run, surface, tool, until } from './helpers.mjs';
import { startRegistry } from './registry.mjs';

const LIMIT_MS = 120_000;

let world;
let registry;
const one = (text) => ({ 'index.js': `module.exports = ${JSON.stringify(text)}` });
const packages = {
  alpha: { '1.0.0': one('alpha 1.0.0') },
  beta: { '1.0.0': one('beta 1.0.0') },
  gamma: { '1.0.0': one('gamma 1.0.0') },
  moving: { '1.0.0': one('moving 1.0.0') },
};
/** As long as this file is there, the install script of `slow` does not end. */
let brake;

function slow() {
  return {
    '1.0.0': {
      'package.json': { scripts: { postinstall: 'node wait.js' } },
      'wait.js': `require('node:fs').existsSync(${JSON.stringify(brake)}) && setTimeout(() => {}, 1e6)`,
      ...one('slow'),
    },
  };
}

before(async () => {
  world = ownWorld();
  brake = join(world.root, 'brake');
  writeFileSync(brake, '');
  registry = await startRegistry({ ...packages, slow: slow() });
  process.env.npm_config_registry = registry.url;
  // A download cache would hide who downloads.
  process.env.npm_config_cache = join(world.root, 'never');
  process.env.npm_config_prefer_online = 'true';
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** Archives handed out since the last time this was asked. */
function downloads() {
  const seen = { ...registry.hits };
  for (const name of Object.keys(registry.hits)) delete registry.hits[name];
  // No cache on the machine may stand in for a download.
  rmSync(join(world.root, 'never'), { recursive: true, force: true });
  return seen;
}

const uses = (name) => `() => require(${JSON.stringify(name)})`;
const on = (name, spec = '1.0.0') => ({ dependencies: { [name]: spec } });
const root = (place = world.tmp) => join(place, `native-sandbox-executor-${process.getuid?.() ?? ''}`);
/** Whether `npm` has put the script of `slow` somewhere below a folder that changes while one looks. */
function isInstallingSlow(place) {
  try {
    return filesBelow(place).some((path) => path.endsWith('wait.js'));
  } catch {
    return undefined;
  }
}
/** Folders of generations, as `<key>/<generation>`. */
function generations(place) {
  const trees = join(root(place), 'trees');
  return readdirSync(trees).flatMap((key) => readdirSync(join(trees, key)).map((name) => join(trees, key, name)));
}
const generationOf = (name, place) =>
  generations(place).filter((path) => existsSync(join(path, 'tree', 'node_modules', name)));
const storeOf = (options) => new (surface().NativeSandboxExecutor)(options).getMetrics().store;

/** A host process that makes one call; what it got, what it counted. */
async function otherHost(name, { spec = '1.0.0', env } = {}) {
  const { said, code, err } = await host(
    `say(await run(${JSON.stringify(uses(name))}, {}, ${JSON.stringify(on(name, spec))}));
     say(new rest.NativeSandboxExecutor().getMetrics().store);`,
    { env }
  ).exited;
  assert.equal(code, 0, err);
  return { value: said[0], store: said[1] };
}

test('a new session and a new host process find what is installed', { timeout: LIMIT_MS }, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  downloads();
  assert.equal(await run(uses('alpha'), {}, on('alpha')), 'alpha 1.0.0');
  assert.deepEqual(downloads(), { alpha: 1 });

  const session = Factory.getForSession('one');
  assert.equal(await session.executeFunctionTool('t', {}, tool(uses('alpha'), on('alpha'))), 'alpha 1.0.0');
  await Factory.cleanupSession('one');
  const { value, store } = await otherHost('alpha');
  assert.equal(value, 'alpha 1.0.0');
  assert.deepEqual([store.installs, store.hits, store.root], [0, 1, root()]);
  assert.deepEqual(downloads(), {});
  assert.equal(generationOf('alpha').length, 1);
});

test('cleanup gives sandboxes back; the next call finds its tree', { timeout: LIMIT_MS }, async () => {
  const before = storeOf();
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  assert.equal(await run(uses('alpha'), {}, on('alpha')), 'alpha 1.0.0');
  const { installs, hits, trees, bytes } = storeOf();
  assert.deepEqual([installs, hits], [before.installs, before.hits + 1]);
  assert.ok(trees >= 1 && bytes > 0, JSON.stringify({ trees, bytes }));
  assert.deepEqual(downloads(), {});
});

test('a used-up sandbox is replaced without an installation', { timeout: LIMIT_MS }, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = new Factory({ maxUseCount: 1, tenantKey: 'used-up' });
  for (let call = 0; call < 3; call++) {
    assert.equal(await factory.executeFunctionTool('t', {}, tool(uses('alpha'), on('alpha'))), 'alpha 1.0.0');
  }
  assert.deepEqual(downloads(), { alpha: 1 });
});

test('concurrent host processes install once', { timeout: LIMIT_MS }, async () => {
  const hosts = await Promise.all([1, 2, 3].map(() => otherHost('beta')));
  assert.deepEqual(
    hosts.map(({ value }) => value),
    ['beta 1.0.0', 'beta 1.0.0', 'beta 1.0.0']
  );
  const sum = (what) => hosts.reduce((total, { store }) => total + store[what], 0);
  assert.deepEqual([sum('installs'), sum('hits')], [1, 2]);
  assert.deepEqual(downloads(), { beta: 1 });
});

test('a host that is killed while it installs leaves nothing that counts', { timeout: LIMIT_MS }, async () => {
  const place = join(world.root, 'killed');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: place };
  const installing = host(`await run('() => 1', {}, ${JSON.stringify(on('slow'))});`, { env });
  await until(() => isInstallingSlow(place), 30_000, 'npm runs');
  installing.child.kill('SIGKILL');
  await installing.exited;
  downloads();
  // The next one is not held up by its lock, finds no tree, and takes away what was staged.
  rmSync(brake);
  const { said, err } = await host(
    `import { setTimeout as delay } from 'node:timers/promises';
     import { readdirSync } from 'node:fs';
     say(await run(${JSON.stringify(uses('slow'))}, {}, ${JSON.stringify(on('slow'))}));
     const hosts = () => readdirSync(${JSON.stringify(join(root(place), 'hosts'))}).length;
     for (let tries = 0; hosts() > 1 && tries < 300; tries++) await delay(50);
     say([hosts(), new rest.NativeSandboxExecutor().getMetrics().store.installs]);`,
    { env }
  ).exited;
  assert.deepEqual(said, ['slow', [1, 1]], err);
  assert.equal(generationOf('slow', place).length, 1);
  assert.deepEqual(readdirSync(join(root(place), 'locks')), []);
  writeFileSync(brake, '');
});

test('ranges are resolved again in the background, while what is installed serves', { timeout: LIMIT_MS }, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  // Long-lived enough that the sandbox itself never expires here: only the age of the tree counts.
  const factory = new Factory({ poolTtlMs: 60_000 });
  const call = () => factory.executeFunctionTool('t', {}, tool(uses('moving'), on('moving', '^1.0.0')));
  const aged = (path) => utimesSync(join(path, 'complete'), new Date(1e12), new Date(1e12));
  assert.equal(await call(), 'moving 1.0.0');
  registry.publish('moving', '1.1.0', one('moving 1.1.0'));
  assert.equal(await call(), 'moving 1.0.0', 'not due yet');

  const [generation] = generationOf('moving');
  aged(generation);
  // Whoever comes next sees a tree whose time is over: it serves at once, and the newer one follows.
  const session = Factory.getForSession('after');
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  const later = () => session.executeFunctionTool('t', {}, tool(uses('moving'), on('moving', '^1.0.0')));
  assert.equal(await later(), 'moving 1.0.0');
  await until(async () => (await later()) === 'moving 1.1.0', 60_000, 'the newer version serves');
  assert.ok(storeOf().renewals >= 1);
  assert.equal(generationOf('moving').length >= 1, true);
  // An exact version stays, however old it is.
  for (const path of generationOf('alpha')) aged(path);
  const { renewals } = storeOf();
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  assert.equal(await run(uses('alpha'), {}, on('alpha')), 'alpha 1.0.0');
  assert.equal(storeOf().renewals, renewals);
});

test('what is wiped is installed anew', { timeout: LIMIT_MS }, async () => {
  downloads();
  assert.equal(await run(uses('gamma'), {}, on('gamma')), 'gamma 1.0.0');
  for (const path of generationOf('gamma')) rmSync(path, { recursive: true, force: true });
  assert.equal(await run(uses('gamma'), {}, on('gamma')), 'gamma 1.0.0');
  assert.deepEqual(downloads(), { gamma: 2 });
});

test('a damaged tree is found out by a later process and installed anew', { timeout: LIMIT_MS }, async () => {
  const place = join(world.root, 'damaged');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: place };
  await otherHost('alpha', { env });
  const [path] = generationOf('alpha', place);
  const file = join(path, 'tree', 'node_modules', 'alpha', 'index.js');
  chmodSync(file, 0o644);
  writeFileSync(file, 'throw new Error("damaged");');
  const { said, err } = await host(
    `import { setTimeout as delay } from 'node:timers/promises';
     const attempt = () => run(${JSON.stringify(uses('alpha'))}, {}, ${JSON.stringify(on('alpha'))}).catch(() => 'broken');
     let answer = await attempt();
     say(answer);
     for (let tries = 0; answer === 'broken' && tries < 300; tries++) { await delay(100); answer = await attempt(); }
     say(answer);`,
    { env }
  ).exited;
  assert.deepEqual(said, ['broken', 'alpha 1.0.0'], err);
});

test('a tree that has lost a file is installed anew before it is used', { timeout: LIMIT_MS }, async () => {
  const place = join(world.root, 'lost');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: place };
  await otherHost('alpha', { env });
  const [path] = generationOf('alpha', place);
  rmSync(join(path, 'tree', 'node_modules', 'alpha', 'index.js'));
  const { value } = await otherHost('alpha', { env });
  assert.equal(value, 'alpha 1.0.0');
});

test('a tree whose files a temp cleaner took, folders left, is installed anew by this host and by others', {
  timeout: LIMIT_MS,
}, async () => {
  const place = join(world.root, 'cleaned');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: place };
  const executor = new (surface().NativeSandboxExecutor)({ storeDir: place });
  const call = () => executor.executeFunctionTool('t', {}, tool(uses('alpha'), on('alpha')));
  const clean = (isTaken) => {
    for (const path of generationOf('alpha', place)) {
      for (const name of filesBelow(path)) {
        if (isTaken(name) && !statSync(join(path, name)).isDirectory()) rmSync(join(path, name));
      }
    }
  };
  for (const isTaken of [() => true, (name) => name.startsWith('tree/'), (name) => !name.startsWith('tree/')]) {
    assert.equal(await call(), 'alpha 1.0.0');
    clean(isTaken);
    assert.equal(await call(), 'alpha 1.0.0');
    clean(isTaken);
    assert.equal((await otherHost('alpha', { env })).value, 'alpha 1.0.0');
  }
  await executor.cleanup();
});

test('the least recently used goes at the size limit, and never what is leased', { timeout: LIMIT_MS }, async () => {
  const place = join(world.root, 'small');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: place };
  for (const name of ['alpha', 'beta']) await otherHost(name, { env });
  const [older] = generationOf('alpha', place);
  utimesSync(join(older, 'lease'), new Date(1e12), new Date(1e12));
  // Room for one tree: those of other processes go, the oldest first; its own is leased.
  const blocks = filesBelow(older).reduce((sum, name) => sum + statSync(join(older, name)).blocks, 0);
  const small = { ...env, AGENTS_FUNCTION_TOOL_SANDBOX_STORE_MAX_BYTES: `${blocks * 512 + 4096}` };
  const { said, err } = await host(
    `import { existsSync } from 'node:fs';
     import { setTimeout as delay } from 'node:timers/promises';
     const call = () => run(${JSON.stringify(uses('gamma'))}, {}, ${JSON.stringify(on('gamma'))});
     say(await call());
     const store = () => new rest.NativeSandboxExecutor().getMetrics().store;
     for (let tries = 0; store().evictions < 2 && tries < 300; tries++) await delay(50);
     say([store().evictions, await call(), store().installs]);`,
    { env: small }
  ).exited;
  assert.deepEqual(said, ['gamma 1.0.0', [2, 'gamma 1.0.0', 1]], err);
  assert.deepEqual([generationOf('alpha', place), generationOf('beta', place)], [[], []]);
  assert.equal(generationOf('gamma', place).length, 1);
});

test('a base store serves without npm and is not written to', { timeout: LIMIT_MS }, async () => {
  const image = join(world.root, 'image');
  await otherHost('alpha', { spec: '^1.0.0', env: { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: image } });
  const look = () =>
    filesBelow(image)
      .map((path) => `${path} ${statSync(join(image, path)).mtimeMs}`)
      .sort();
  const before = look();
  downloads();
  const env = {
    AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: join(world.root, 'empty'),
    AGENTS_FUNCTION_TOOL_SANDBOX_BASE_STORE_DIRS: image,
    AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS: '1',
  };
  const { value, store } = await otherHost('alpha', { spec: '^1.0.0', env });
  assert.equal(value, 'alpha 1.0.0');
  assert.deepEqual([store.installs, store.hits, store.renewals], [0, 1, 0]);
  assert.deepEqual(downloads(), {});
  assert.deepEqual(look(), before);
});

test('warm() installs ahead, tells what is wrong, and can be cleaned up', { timeout: LIMIT_MS }, async () => {
  const { SandboxExecutorFactory: Factory, NativeSandboxExecutor } = surface();
  const factory = new Factory({ tenantKey: 'warm' });
  assert.equal(await factory.warm([{ alpha: '1.0.0' }, { beta: '1.0.0', gamma: '1.0.0' }, {}]), undefined);
  assert.deepEqual(downloads(), { alpha: 1, beta: 1, gamma: 1 });
  const source = '() => [require("beta"), require("gamma")]';
  const over = { dependencies: { gamma: '1.0.0', beta: '1.0.0' } };
  assert.deepEqual(await factory.executeFunctionTool('t', {}, tool(source, over)), ['beta 1.0.0', 'gamma 1.0.0']);
  assert.deepEqual(downloads(), {});

  // All are tried, whichever fails.
  const failed = await rejection(factory.warm([{ 'not-there': '1.0.0' }, { moving: '1.0.0' }]));
  assert.deepEqual([failed.code, failed.phase], ['INSTALL_FAILED', 'install']);
  assert.match(failed.stack, /store\.test\.mjs/);
  assert.deepEqual(downloads(), { moving: 1 });
  for (const [sets, code] of [
    ['lodash', 'INVALID_CONFIG'],
    [[['lodash']], 'INVALID_DEPENDENCY'],
    [[{ alpha: 1 }], 'INVALID_DEPENDENCY'],
    [[{ alpha: '../elsewhere' }], 'INVALID_DEPENDENCY'],
  ]) {
    assert.equal((await rejection(factory.warm(sets))).code, code, JSON.stringify(sets));
  }
  const stuck = new NativeSandboxExecutor({ tenantKey: 'warm' });
  const rejected = rejection(stuck.warm([{ slow: '1.0.0' }]));
  await until(() => isInstallingSlow(world.tmp), 30_000, 'npm runs');
  await stuck.cleanup();
  assert.equal((await rejected).code, 'CLEANED_UP');
  await until(() => isInstallingSlow(world.tmp) === false, 15_000, 'nothing is left');
});
