// Where run folders are, and what keeps a call from filling more than its own: on every rung, in memory where the machine lets
// that be had (layer `diskQuota`), else on the store's disk.

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test, { after, before } from 'node:test';
import { LINUX, ownWorld, rejection, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const { tmp } = ownWorld();
const { NativeSandboxExecutor, isolationReport } = surface();
const FORKS = LINUX && [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
const RUNGS = ['spawn', 'standby', ...(FORKS ? ['zygote'] : [])];
const options = { skip: !LINUX && 'there is no such layer elsewhere', timeout: 120_000 };

/** Tries to leave something where the folders of later calls will be; it finds that place among the mounts. */
const PLANTER = `
  const fs = require('node:fs');
  const mounts = fs.readFileSync('/proc/self/mountinfo', 'utf8').split('\\n').map((line) => line.split(' ')[4]);
  const runs = mounts.findLast((at) => at?.endsWith('/runs'));
  const attempt = (act) => { try { act(); return 'done'; } catch (error) { return error.code; } };
  exports.runs = runs;
  exports.planted = runs && ['', ...Array.from({ length: 64 }, (_, slot) => '/' + slot)].map((at) =>
    [attempt(() => fs.mkdirSync(runs + at + '/planted')), attempt(() => fs.writeFileSync(runs + at + '/filled', Buffer.alloc(1 << 20, 1)))]);
`;

const executors = new Map();
const executor = (settings) => {
  const key = JSON.stringify(settings);
  if (!executors.has(key)) executors.set(key, new NativeSandboxExecutor(settings));
  return executors.get(key);
};
const call = (settings, code, args = {}, over = {}) =>
  executor(settings).executeFunctionTool('run-folders', args, tool(code, over));

let registry;
let layer;
const reportedLayer = async () => (await isolationReport()).layers.find(({ name }) => name === 'diskQuota');
before(async () => {
  registry = await useRegistry({ planter: { '1.0.0': { 'index.js': PLANTER } } });
  layer = await reportedLayer();
});
after(async () => {
  for (const one of executors.values()) await one.cleanup();
  await registry.close();
});

/** The run folders that the machine shows. */
function shown() {
  const store = readdirSync(tmp).find((name) => name.startsWith('native-sandbox-executor'));
  const hosts = join(tmp, store, 'hosts');
  return readdirSync(hosts).flatMap((host) =>
    existsSync(join(hosts, host, 'runs')) ? readdirSync(join(hosts, host, 'runs')) : []
  );
}

const PLACES = `async () => {
  const fs = require('node:fs');
  const own = __dirname;
  const free = fs.statfsSync('.');
  return {
    cwd: process.cwd(), tmp: require('node:os').tmpdir(), own, home: process.env.HOME,
    bytes: free.blocks * free.bsize, used: (free.blocks - free.bfree) * free.bsize, files: free.files,
    mode: fs.statSync('.').mode & 0o777, owner: fs.statSync('.').uid === process.getuid(),
  };
}`;

test('in memory, the machine shows none, nor anything that is mounted', options, async () => {
  for (const start of RUNGS) await call({ start }, PLACES);
  if (!layer.inForce) return assert.ok(layer.why);
  assert.deepEqual(shown(), []);
  assert.ok(!readFileSync('/proc/self/mounts', 'utf8').includes(tmp));
});

for (const start of RUNGS) {
  test(`${start}: a call sees its folders at the same places, wherever they are`, options, async () => {
    for (const runFolders of ['auto', 'disk']) {
      const found = await call({ start, runFolders, diskMb: 32 }, PLACES);
      assert.ok(found.cwd.startsWith(join(tmp, 'native-sandbox-executor-')), found.cwd);
      assert.match(found.cwd, /\/hosts\/[^/]+\/runs(\/\d+)?\/[0-9a-f]{32}\/work$/);
      assert.equal(found.tmp, join(dirname(found.cwd), 'tmp'));
      assert.deepEqual([found.own, found.home, found.mode, found.owner], [found.cwd, found.cwd, 0o700, true]);
      if (!layer.inForce || runFolders === 'disk') continue;
      assert.deepEqual([found.bytes, found.used, found.files], [32 * 2 ** 20, 0, 100_007]);
    }
  });

  test(`${start}: more than its limit is refused at once, and told by its name`, options, async () => {
    if (!layer.inForce) return assert.ok(layer.why);
    const fill = `const fd = require('node:fs').openSync('f', 'w'); const mib = Buffer.alloc(1 << 20, 1);
      for (let at = 0; at < 17; at++) require('node:fs').writeSync(fd, mib);`;
    const settings = { start, diskMb: 16 };
    const error = await rejection(call(settings, `async () => { ${fill} return 1 }`));
    assert.equal(error.code, 'DISK_LIMIT', error.message);
    assert.match(error.message, /the limit is 16 MB.*raise diskMb/);
    // One that handles it goes on.
    const handled = `async () => { try { ${fill} } catch (error) { return error.code } return 1 }`;
    assert.equal(await call(settings, handled), 'ENOSPC');
  });

  test(`${start}: a call that fills its room takes none of another's`, options, async () => {
    if (!layer.inForce) return assert.ok(layer.why);
    const settings = { start, diskMb: 16 };
    // With packages and without: those are different zygotes.
    for (const over of [{}, { dependencies: { planter: '1.0.0' } }]) {
      const filler = `async () => {
        ${over.dependencies ? "require('planter');" : ''}
        const fs = require('node:fs');
        const fd = fs.openSync('f', 'w');
        fs.unlinkSync('f');
        let written = 0;
        try { for (;;) written += fs.writeSync(fd, Buffer.alloc(1 << 16, 1)); } catch {}
        const free = fs.statfsSync('.');
        return { written, room: free.blocks * free.bsize };
      }`;
      const calls = await Promise.all(Array.from({ length: 12 }, () => call(settings, filler, {}, over)));
      // What leads to packages takes a page.
      for (const { written, room } of calls)
        assert.ok(room === 16 << 20 && written >= room - 8192, `${written} of ${room}`);
    }
  });

  test(`${start}: what a call wrote goes with it`, options, async () => {
    const settings = { start, diskMb: 16 };
    const write = `async () => { require('node:fs').mkdirSync('a/b', { recursive: true });
      for (let at = 0; at < 4; at++) require('node:fs').writeFileSync('a/b/' + at, Buffer.alloc(1 << 20, 1)); return process.cwd() }`;
    for (let more = 0; more < 4; more++) {
      const cwd = await call(settings, write);
      const left = `async ({ cwd }) => {
        const fs = require('node:fs');
        return [cwd + '/a', ...fs.readdirSync('.'), ...fs.readdirSync(require('node:os').tmpdir())].filter((name) => fs.existsSync(name));
      }`;
      assert.deepEqual(await call(settings, left, { cwd }), []);
    }
  });
}

test('places are used again, by many callers, and what was written in them before is gone', options, async () => {
  const settings = FORKS ? { start: 'zygote', diskMb: 16 } : { start: 'spawn', diskMb: 16 };
  const over = { dependencies: { planter: '1.0.0' }, sandbox: { timeout: 60_000, vcpus: 8 } };
  const code = `async () => {
    const ahead = Object.keys(require.cache).some((at) => at.includes('/planter/'));
    require('planter');
    const fs = require('node:fs');
    const { dirname } = require('node:path');
    const tmp = require('node:os').tmpdir();
    // Where it is that of the root, the call's own folders of a store below are in it. A worker of the tree's zygote is wanted: its path is not named.
    const own = fs.statSync('/' + 'tmp').ino === fs.statSync(tmp).ino ? process.cwd().split('/')[2] : undefined;
    fs.unlinkSync('node_modules');
    const left = [process.cwd(), tmp].flatMap((folder) => fs.readdirSync(folder)).filter((name) => name !== own);
    fs.writeFileSync('a', Buffer.alloc(9 << 20, 1));
    fs.mkdirSync('closed/deep', { recursive: true });
    return { ahead, left, place: dirname(dirname(process.cwd())) };
  }`;
  const places = new Map();
  let ahead = 0;
  const caller = async () => {
    for (let more = 0; more < 20; more++) {
      const found = await call(settings, code, {}, over);
      assert.deepEqual(found.left, []);
      places.set(found.place, (places.get(found.place) ?? 0) + 1);
      ahead += found.ahead;
    }
  };
  await Promise.all(Array.from({ length: 8 }, caller));
  if (!FORKS) return;
  assert.ok(ahead > 100, `${ahead} of 160 were forked by the tree's zygote`);
  if (layer.inForce) assert.ok(Math.max(...places.values()) > 1, 'no place was used twice');
});

test('what a package leaves while it is loaded is not there for any call', options, async () => {
  const code = `async () => {
    const ahead = Object.keys(require.cache).some((at) => at.includes('/planter/'));
    const { runs, planted } = require('planter');
    const fs = require('node:fs');
    const { dirname } = require('node:path');
    const places = [dirname(process.cwd()), dirname(dirname(process.cwd())), dirname(dirname(dirname(process.cwd())))];
    const there = places.flatMap((place) => ['planted', 'filled'].map((name) => fs.existsSync(place + '/' + name)));
    const free = fs.statfsSync('.');
    return { ahead, runs, planted, there, used: (free.blocks - free.bfree) * free.bsize };
  }`;
  const settings = FORKS ? { start: 'zygote' } : { start: 'spawn' };
  let found = { ahead: false };
  for (let more = 0; more < 200 && !found.ahead; more++) {
    found = await call(settings, code, {}, { dependencies: { planter: '1.0.0' } });
    assert.deepEqual(new Set(found.there), new Set([false]));
    if (layer.inForce) assert.ok(found.used <= 8192, `${found.used} bytes`);
  }
  assert.equal(found.ahead, FORKS);
  if (FORKS && layer.inForce && (await isolationReport()).layers.find(({ name }) => name === 'pidNamespace').inForce) {
    assert.match(found.runs, /\/runs$/);
    assert.deepEqual(found.planted[0], ['EROFS', 'EROFS']);
    for (const slot of [1, 2, 32]) assert.deepEqual(found.planted[slot], ['EACCES', 'EACCES']);
  }
});

test('the operator chooses, and the report says what came of it', options, async () => {
  if (!layer.inForce) return assert.ok(layer.why);
  await call({ runFolders: 'disk' }, '() => 1');
  let told = await reportedLayer();
  assert.equal(told.inForce, false);
  assert.match(told.why, /runFolders is "disk"/);
  // No machine has eight times as much.
  const diskMb = 2 ** 31;
  await call({ diskMb }, '() => 1');
  told = await reportedLayer();
  assert.equal(told.inForce, false);
  assert.match(`${told.why} ${told.enable}`, /diskMb is 2147483648, .*an eighth of the memory.* runFolders: "memory"/);
  await call({ diskMb, runFolders: 'memory' }, '() => 1');
  assert.equal((await reportedLayer()).inForce, true);
});

test('on disk, a run folder is removed too', options, async () => {
  const cwd = await call(
    { runFolders: 'disk', start: 'spawn' },
    '() => { require("node:fs").writeFileSync("f", "x"); return process.cwd() }'
  );
  await until(() => !existsSync(dirname(cwd)), 20_000, 'the folder is gone');
});
