// What programs expect of the root that they run in: a `/tmp`, an entry for their user, `/dev/fd` and its kin, and terminals. Each on
// every rung; where a process has no root of its own, it has none of these.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import test, { after, before } from 'node:test';
import { LINUX, ownWorld, RUNGS, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

ownWorld();
const { NativeSandboxExecutor, isolationReport } = surface();
const options = { skip: !LINUX && 'needs Linux', timeout: 120_000 };

/** Whether the machine has a program; then the sandbox has it, too, if it is the system's. */
const has = (program) => {
  try {
    return /^\/(usr\/)?bin\//.test(
      execFileSync('/bin/sh', ['-c', `PATH=/usr/bin:/bin command -v ${program}`], { encoding: 'utf8' })
    );
  } catch {
    return false;
  }
};

const executors = new Map();
const call = (start, code, args = {}, over = {}, settings = {}) => {
  const key = JSON.stringify([start, settings]);
  if (!executors.has(key)) executors.set(key, new NativeSandboxExecutor({ start, ...settings }));
  return executors.get(key).executeFunctionTool('root', args, tool(code, over));
};
const shell = (script, program = '/bin/sh') =>
  `async () => require('node:child_process').execFileSync('${program}', ['-c', ${JSON.stringify(script)}], { stdio: ['pipe', 'pipe', 'pipe'] }).toString().trim()`;

const PACKAGES = {
  'field-wasm': { '1.0.0': { 'index.js': 'exports.own = {};', 'core.wasm': 'wasm' } },
  '@scope/inner': { '1.0.0': { 'index.js': 'module.exports = 5' } },
  'field-temp': {
    '1.0.0': { 'index.js': "exports.write = () => require('node:fs').writeFileSync('/tmp/field', 'x');" },
  },
  'field-pty': {
    '1.0.0': {
      'index.js': "exports.open = () => require('node:fs').closeSync(require('node:fs').openSync('/dev/ptmx', 'r+'));",
    },
  },
};
const dependencies = { 'field-wasm': '1.0.0', '@scope/inner': '1.0.0' };
const terminalPackage = { 'field-pty': '1.0.0' };

let registry;
/** Whether a process of its own has a root of its own. */
let rooted;
/** Whether one that is forked without packages has. */
let forkedRooted;
before(async () => {
  registry = await useRegistry(PACKAGES);
  const { layers } = await isolationReport();
  const on = (name) => layers.find((layer) => layer.name === name)?.inForce;
  rooted = on('mountNamespace');
  forkedRooted = rooted && on('pidNamespace');
});
after(async () => {
  for (const one of executors.values()) await one.cleanup();
  await registry?.close();
});

for (const start of LINUX ? RUNGS : []) {
  const isRooted = () => (start === 'zygote' ? forkedRooted : rooted);

  test(`${start}: without dependencies the working folder is empty`, options, async () => {
    assert.deepEqual(await call(start, `() => require('node:fs').readdirSync('.')`), []);
  });

  test(`${start}: /tmp can be written to, is os.tmpdir(), and is nobody else's`, options, async () => {
    const code = `async ({ name, wait }) => {
      const fs = require('node:fs');
      const os = require('node:os');
      const before = fs.existsSync('/tmp/' + name);
      fs.writeFileSync('/tmp/' + name, 'x', { flag: 'a' });
      const dir = fs.mkdtempSync('/tmp/made-');
      const child = require('node:child_process').execFileSync('/bin/sh', ['-c', 'cd /; echo y >> /tmp/' + name + '; cat /tmp/' + name], { encoding: 'utf8' });
      if (wait) await new Promise((done) => setTimeout(done, wait));
      return [before, child, fs.readFileSync(os.tmpdir() + '/' + name, 'utf8') === child, fs.existsSync(dir)];
    }`;
    await call(start, code, { name: 'warm' }).catch(() => {});
    if (!isRooted()) return;
    for (let round = 0; round < 3; round++) {
      assert.deepEqual(await call(start, code, { name: 'one' }), [false, 'xy\n', true, true]);
    }
    const at = Array.from({ length: 4 }, () => call(start, code, { name: 'same', wait: 300 }));
    for (const found of await Promise.all(at)) assert.deepEqual(found, [false, 'xy\n', true, true]);
  });

  test(
    `${start}: a function with packages that names /tmp, or is given it, has it for itself as well`,
    options,
    async () => {
      const named = `async ({ name, wait }) => {
      const fs = require('node:fs');
      const before = fs.existsSync('/tmp/' + name);
      fs.writeFileSync('/tmp/' + name, 'x', { flag: 'a' });
      if (wait) await new Promise((done) => setTimeout(done, wait));
      return [before, fs.readFileSync('/tmp/' + name, 'utf8'), require('@scope/inner')];
    }`;
      const given = `async ({ file }) => {
      const fs = require('node:fs');
      fs.writeFileSync(file, 'x', { flag: 'a' });
      return [fs.readFileSync(require('node:os').tmpdir() + '/' + require('node:path').basename(file), 'utf8'), require('@scope/inner')];
    }`;
      const over = { dependencies };
      await call(start, named, { name: 'warm' }, over).catch(() => {});
      if (!isRooted()) return;
      for (let round = 0; round < 2; round++) {
        assert.deepEqual(await call(start, named, { name: 'one' }, over), [false, 'x', 5]);
        assert.deepEqual(await call(start, given, { file: '/tmp/one' }, over), ['x', 5]);
      }
      const at = Array.from({ length: 3 }, () => call(start, named, { name: 'same', wait: 300 }, over));
      for (const found of await Promise.all(at)) assert.deepEqual(found, [false, 'x', 5]);
    }
  );

  test(
    `${start}: a function whose package names /tmp has it once that was noticed, and from then on`,
    options,
    async () => {
      const code = `async () => { require('field-temp').write(); return 'written'; }`;
      const over = { dependencies: { 'field-temp': '1.0.0' } };
      await call(start, code, {}, over).catch(() => {});
      if (!isRooted()) return;
      // It is noticed when the first such call is over, which is after its promise has settled.
      const outcomes = [];
      await until(
        async () => {
          outcomes.push(await call(start, code, {}, over).catch((error) => error.message));
          return outcomes.at(-1) === 'written';
        },
        20_000,
        'it is noticed'
      );
      for (const message of outcomes.slice(0, -1)) assert.match(message, /EROFS.*\/tmp\/field/);
      for (let round = 0; round < 4; round++) assert.equal(await call(start, code, {}, over), 'written');
    }
  );

  test(
    `${start}: calls at once whose package names /tmp all fail at first at most, and those after them do not`,
    options,
    async () => {
      const code = `async () => { require('field-temp').write(); return 'written again'; }`;
      const over = { dependencies: { 'field-temp': '1.0.0' }, sandbox: { vcpus: 8 } };
      if (!isRooted()) return;
      const executor = new NativeSandboxExecutor({ start });
      const one = () =>
        executor.executeFunctionTool('at-once', {}, tool(code, over)).catch((error) => error.message.slice(0, 80));
      await Promise.all(Array.from({ length: 4 }, one));
      await Promise.all(Array.from({ length: 4 }, one));
      // What their workers showed is known once these are gone.
      await new Promise((done) => setTimeout(done, 1000));
      const outcomes = [];
      for (let round = 0; round < 6; round++) outcomes.push(await one());
      await executor.cleanup();
      assert.ok(outcomes.filter((outcome) => outcome !== 'written again').length <= 1, JSON.stringify(outcomes));
      assert.equal(outcomes.at(-1), 'written again');
    }
  );

  test(`${start}: shared memory is the call's own, with packages too`, options, async () => {
    const code = `async () => {
      const fs = require('node:fs');
      const before = fs.readdirSync('/dev/shm').filter((name) => name === 'sem.field');
      fs.writeFileSync('/dev/shm/sem.field', 'x');
      return [before, fs.readFileSync('/dev/shm/sem.field', 'utf8')];
    }`;
    for (const over of [{}, { dependencies }]) {
      await call(start, code, {}, over).catch(() => {});
      if (!isRooted()) return;
      assert.deepEqual(await call(start, code, {}, over), [[], 'x']);
    }
    if (!has('python3')) return;
    const python =
      'from multiprocessing import Process, Lock, Value\nv = Value("i", 1)\nl = Lock()\ndef add():\n  with l: v.value += 1\np = Process(target=add)\np.start()\np.join()\nprint(v.value)';
    const run = `async ({ python }) => require('node:child_process').execFileSync('python3', ['-c', python], { encoding: 'utf8' }).trim()`;
    assert.equal(await call(start, run, { python }), '2');
  });

  test(`${start}: there are no local sockets, not in the call's own folders either, but pairs`, options, async () => {
    const code = `async () => {
      const net = require('node:net');
      const { fork } = require('node:child_process');
      const refused = await new Promise((done) => net.createServer().on('error', (error) => done(error.code)).listen('./own', () => done('open')));
      require('node:fs').writeFileSync('child.cjs', "process.on('message', (text) => process.send(text + '!', () => process.disconnect()))");
      const child = fork('./child.cjs');
      const said = await new Promise((done, fail) => child.on('message', done).on('error', fail).send('heard'));
      return [refused, said];
    }`;
    const { tier } = await isolationReport();
    const [refused, said] = await call(start, code);
    if (tier !== 'base') assert.equal(refused, 'EPERM');
    assert.equal(said, 'heard!');
  });

  test(`${start}: a package that opens terminals finds them`, options, async () => {
    const code = `async () => { require('field-pty').open(); return 'opened'; }`;
    const over = { dependencies: terminalPackage };
    const found = await call(start, code, {}, over).catch((error) => error.message);
    if (isRooted()) assert.equal(found, 'opened');
  });

  test(`${start}: what is written to /tmp counts as what the call writes`, options, async () => {
    if (!isRooted()) return;
    const code = `async () => { try { for (let at = 0; at < 64; at++) require('node:fs').appendFileSync('/tmp/large', Buffer.alloc(1 << 20, 1)); return 'all'; } catch (error) { return error.code; } }`;
    const ended = await call(start, code, {}, {}, { diskMb: 16 }).catch((error) => error.code);
    assert.ok(['ENOSPC', 'DISK_LIMIT'].includes(ended), ended);
  });

  test(
    `${start}: below /tmp there is nothing of others, and nothing that could be changed but the call's own`,
    options,
    async () => {
      if (!isRooted()) return;
      const code = `async () => {
      const fs = require('node:fs');
      const path = require('node:path');
      const own = [process.cwd(), require('node:os').tmpdir()];
      const isOwn = (at) => own.some((folder) => at === folder || at.startsWith(folder + '/') || folder.startsWith(at + '/'));
      const trees = new Set();
      const changed = [];
      const look = (folder) => {
        for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
          const at = path.join(folder, entry.name);
          if (/\\/trees\\/[^/]+$/.test(at)) trees.add(at);
          if (entry.isDirectory() && !at.includes('/node_modules/')) { try { look(at); } catch {} }
          if (!entry.isFile()) continue;
          try { fs.closeSync(fs.openSync(at, 'r+')); changed.push(at); } catch {}
          try { fs.unlinkSync(at); changed.push(at); } catch {}
        }
      };
      look('/tmp');
      return { trees: trees.size, changed, scripts: fs.existsSync(process.argv[1] ?? '/') };
    }`;
      const alone = await call(start, code);
      assert.deepEqual([alone.trees, alone.changed], [0, []]);
      // Workers of a tree's zygote share a mount namespace.
      if (start === 'zygote') return;
      const withTree = await call(start, code, {}, { dependencies });
      assert.ok(withTree.trees <= 1, String(withTree.trees));
      assert.deepEqual(withTree.changed, []);
      // And the store is as it was.
      assert.equal(await call(start, `() => require('field-wasm').own !== undefined`, {}, { dependencies }), true);
    }
  );

  test(
    `${start}: the user has a name, in threads and in programs, and other users of the machine have none`,
    options,
    async () => {
      if (!isRooted()) return;
      const code = `async () => {
      const { Worker } = require('node:worker_threads');
      const os = require('node:os');
      const told = (worker) => new Promise((done, fail) => worker.on('message', done).on('error', fail));
      const thread = await told(new Worker("const os = require('node:os'); require('node:worker_threads').parentPort.postMessage(os.userInfo().username)", { eval: true }));
      const run = (file, ...args) => require('node:child_process').execFileSync(file, args, { encoding: 'utf8' }).trim();
      return { main: os.userInfo().username, thread, child: run(process.execPath, '-p', 'os.userInfo().username'), id: run('/bin/sh', '-c', 'id -un; id -gn'),
        users: require('node:fs').readFileSync('/etc/passwd', 'utf8').trim().split('\\n').map((line) => line.split(':')[0]) };
    }`;
      const found = await call(start, code);
      const name = found.main;
      assert.deepEqual([found.thread, found.child, found.id], [name, name, `${name}\n${name}`]);
      const others = readFileSync('/etc/passwd', 'utf8')
        .trim()
        .split('\n')
        .map((line) => line.split(':')[0]);
      const shown = found.users.filter((user) => !['root', 'nobody', 'sandbox'].includes(user));
      assert.deepEqual(
        shown.filter((user) => others.includes(user)),
        []
      );
    }
  );

  test(`${start}: /dev/fd, /dev/stdout and /dev/stderr are what the process has open`, options, async () => {
    if (!isRooted()) return;
    if (has('bash')) assert.equal(await call(start, shell('cat <(echo one) <(echo two)', '/bin/bash')), 'one\ntwo');
    assert.equal(await call(start, shell('echo told | tee /dev/stdout | cat')), 'told\ntold');
    assert.equal(
      await call(start, shell('(echo said > /dev/stderr) 2>&1 | cat; echo in | cat /dev/stdin')),
      'said\nin'
    );
  });

  test(`${start}: a program gets a terminal, and no other call's`, options, async () => {
    if (!isRooted() || !has('script')) return;
    assert.match(
      await call(start, shell('script -qec "tty; ls /dev/pts" /dev/null | cat')),
      /\/dev\/pts\/0\s+0\s+ptmx/
    );
  });
}
