// npm's first phase talks to the registry, with credentials, and unpacks what strangers wrote. Under root it has a user of its own, which
// owns what is installed and a download cache of the tenant's, and nothing else.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, realpathSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { LINUX, ownWorld, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const TOKEN = 'first-phase-token-93';
const asRoot = { skip: LINUX && process.getuid() === 0 ? false : 'needs a host that is root', timeout: 120_000 };
/** Looks for secrets where install scripts can; they write down what they find. */
const LOOK = `const fs = require('fs'); const found = [];
const walk = (dir) => { let all; try { all = fs.readdirSync(dir, { withFileTypes: true }); } catch { return; }
  for (const one of all) { const path = dir + '/' + one.name; if (one.isDirectory()) walk(path); else try { if (fs.readFileSync(path, 'utf8').includes('${TOKEN}')) found.push(path); } catch {} } };
walk(require('path').resolve('../../../..')); for (const [name, value] of Object.entries(process.env)) if (value.includes('${TOKEN}')) found.push(name);
fs.writeFileSync('found.json', JSON.stringify(found));`;

let world;
let registry;
let npmFolder;

before(async () => {
  world = ownWorld();
  registry = await useRegistry({
    plain: { '1.0.0': { 'package.json': {}, 'index.js': 'module.exports = "plain"' } },
    looks: {
      '1.0.0': {
        'package.json': { scripts: { install: 'node look.js' } },
        'look.js': LOOK,
        'index.js': 'module.exports = require("./found.json")',
      },
    },
  });
  const program = process.env.PATH.split(':').map((folder) => join(folder, 'npm'));
  // `bin/npm-cli.js` of its folder.
  npmFolder = join(realpathSync(program.find((path) => existsSync(path))), '../..');
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** An npm that first does `code`, in npm's own process, and then what npm does. */
function hostileNpm(name, code) {
  const folder = join(world.root, name);
  mkdirSync(join(folder, 'bin'), { recursive: true });
  cpSync(join(npmFolder, 'package.json'), join(folder, 'package.json'));
  const whole = `#!/usr/bin/env node\nif (process.argv.includes('install')) { ${code} }\nrequire(${JSON.stringify(join(npmFolder, 'bin/npm-cli.js'))});\n`;
  writeFileSync(join(folder, 'bin/npm-cli.js'), whole);
  return join(folder, 'bin/npm-cli.js');
}

function caches() {
  const [store] = readdirSync(world.tmp).filter((name) => name.startsWith('native-sandbox-executor-'));
  const folder = join(world.tmp, store, 'npm-caches');
  return readdirSync(folder).map((name) => ({
    path: join(folder, name, 'cache'),
    owner: statSync(join(folder, name, 'cache')).uid,
  }));
}

async function install(options, dependencies = { plain: '1.0.0' }) {
  const factory = new (surface().SandboxExecutorFactory)(options);
  const [name] = Object.keys(dependencies);
  return factory.executeFunctionTool('t', {}, tool(`() => require('${name}')`, { dependencies }));
}

test('the first phase is a user of its own and can change nothing of the host’s', asRoot, async () => {
  const canary = join(world.root, 'canary');
  writeFileSync(canary, 'secret', { mode: 0o600 });
  const hosts = join(world.root, 'home', '.npm', '_cacache');
  mkdirSync(hosts, { recursive: true });
  const npm = hostileNpm(
    'hostile',
    `const fs = require('fs'), tried = {};
     for (const [what, act] of Object.entries({
       uid: () => process.getuid(), capabilities: () => /CapEff:\\s*(\\w+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))[1],
       read: () => fs.readFileSync('${canary}', 'utf8'), mode: () => fs.chmodSync('${canary}', 0o666), owner: () => fs.chownSync('${canary}', 1, 1),
       cache: () => fs.writeFileSync('${hosts}/red', ''), home: () => fs.readdirSync('${join(world.root, 'home')}'),
     })) try { tried[what] = act() ?? 'done'; } catch (error) { tried[what] = error.code; }
     fs.writeFileSync('tried.json', JSON.stringify(tried));`
  );
  const factory = new (surface().SandboxExecutorFactory)({ tenantKey: 'hostile', npmPath: npm });
  const source = `() => require('fs').readFileSync(require('path').resolve(require.resolve('plain'), '../../../tried.json'), 'utf8')`;
  const tried = JSON.parse(
    await factory.executeFunctionTool('t', {}, tool(source, { dependencies: { plain: '1.0.0' } }))
  );
  assert.ok(tried.uid >= 0x70000000, JSON.stringify(tried));
  assert.match(tried.capabilities, /^0+$/);
  for (const what of ['read', 'mode', 'owner', 'cache', 'home']) {
    assert.match(`${tried[what]}`, /^(EACCES|ENOENT|EPERM|EROFS)$/, `${what}: ${JSON.stringify(tried)}`);
  }
  assert.equal(statSync(canary).mode & 0o777, 0o600);
});

test('each tenant has a download cache that no other can read or write', asRoot, async () => {
  assert.equal(await install({ tenantKey: 'one' }), 'plain');
  const [one] = caches().filter(({ path }) => readdirSync(path).includes('_cacache') && !path.includes('none'));
  assert.ok(one.owner >= 0x70000000);
  const before = new Set(caches().map(({ path }) => path));
  const npm = hostileNpm(
    'poisons',
    `const fs = require('fs'); try { fs.writeFileSync('${one.path}/_cacache/red', ''); } catch {}
     for (const path of ${JSON.stringify([...before])}) try { fs.readdirSync(path); fs.writeFileSync(path + '/red', ''); } catch {}`
  );
  assert.equal(await install({ tenantKey: 'two', npmPath: npm }), 'plain');
  const two = caches().find(({ path }) => !before.has(path));
  assert.ok(two && two.owner !== one.owner);
  for (const path of before) assert.ok(!readdirSync(path).includes('red'), path);
  assert.equal(statSync(one.path).mode & 0o777, 0o700);
});

test('what a tenant has downloaded is not downloaded again', asRoot, async () => {
  await install({ tenantKey: 'again' });
  const count = () => registry.hits.plain;
  const first = count();
  // Another tree of the same tenant.
  await install({ tenantKey: 'again', installScripts: 'ignore' });
  assert.equal(count(), first);
});

test('settings that only the host can read count, and are gone before install scripts run', asRoot, async () => {
  const npmrc = join(world.root, 'home', '.npmrc');
  writeFileSync(npmrc, `//127.0.0.1:${new URL(registry.url).port}/:_authToken=${TOKEN}\n`, { mode: 0o600 });
  chmodSync(join(world.root, 'home'), 0o700);
  const since = registry.requests.length;
  const found = await install({ tenantKey: 'token' }, { looks: '1.0.0' });
  const tokens = registry.requests.slice(since).map(({ authorization }) => authorization);
  assert.ok(tokens.length > 0 && tokens.every((one) => one === `Bearer ${TOKEN}`), JSON.stringify(tokens));
  assert.deepEqual(found, []);
});

test('who works offline has the packages of the host’s own cache', asRoot, async () => {
  const cache = join(world.root, 'warm-cache');
  const env = { ...process.env, npm_config_cache: cache };
  const project = join(world.root, 'project');
  mkdirSync(project);
  writeFileSync(join(project, 'package.json'), '{}');
  const args = [join(npmFolder, 'bin/npm-cli.js'), 'install', 'plain@1.0.0', '--no-audit', '--no-fund'];
  // Not in step with this process, which is the registry.
  await promisify(execFile)(process.execPath, args, { cwd: project, env });
  Object.assign(process.env, { npm_config_cache: cache, npm_config_offline: 'true' });
  try {
    // It knows the package's own document only where an install has asked for it.
    const error = await rejection(install({ tenantKey: 'offline' }, { unknown: '1.0.0' }));
    assert.match(error.message, /ENOTCACHED/);
    const count = registry.requests.length;
    assert.equal(await install({ tenantKey: 'offline' }), 'plain');
    assert.equal(registry.requests.length, count);
  } finally {
    delete process.env.npm_config_cache;
    delete process.env.npm_config_offline;
  }
  assert.equal(statSync(cache).uid, 0);
});
