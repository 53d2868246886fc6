// What the tier `confined` closes and what it leaves open, on every rung. Where the machine does not offer the tier, that
// is what has to be reported.

import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, readdirSync, readlinkSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import test, { after, before } from 'node:test';
import { LINUX, ownWorld, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const { root, tmp } = ownWorld();
const { NativeSandboxExecutor, isolationReport } = surface();
const secret = join(root, 'secret');
writeFileSync(secret, 'the secret');

const executors = new Map();
const executor = (start, options = {}) => {
  const key = JSON.stringify([start, options]);
  if (!executors.has(key)) executors.set(key, new NativeSandboxExecutor({ ...(start && { start }), ...options }));
  return executors.get(key);
};
const call = (start, code, args = {}, over = {}, options = {}) =>
  executor(start, options).executeFunctionTool('isolation', args, tool(code, over));

/** What third-party code finds out while it is loaded, or installed, about files outside of its tree. */
const SPY = `
  const fs = require('node:fs');
  const attempt = (act) => { try { act(); return 'done'; } catch (error) { return error.code; } };
  module.exports = (secret, host, trees) => ({
    secret: attempt(() => fs.readFileSync(secret)),
    write: attempt(() => fs.writeFileSync(secret + '.new', '')),
    environ: attempt(() => fs.readFileSync('/proc/' + host + '/environ')),
    signal: attempt(() => process.kill(host, 0)),
    ...(trees && { trees: attempt(() => fs.readdirSync(trees)) }),
    uid: process.getuid(),
  });
`;
const packages = {
  loaded: {
    '1.0.0': {
      'spy.js': SPY,
      'index.js': `exports.found = require('./spy.js')(${JSON.stringify(secret)}, ${process.pid}, __dirname + '/../../../../..');`,
    },
  },
  installed: {
    '1.0.0': {
      'package.json': { scripts: { postinstall: 'node make.js' } },
      'spy.js': SPY,
      'make.js': `
        const fs = require('node:fs');
        const found = require('./spy.js')(${JSON.stringify(secret)}, ${process.pid});
        try { fs.readFileSync(${JSON.stringify(join(root, 'home', '.npmrc'))}); found.npmrc = 'done'; } catch (error) { found.npmrc = error.code; }
        fs.writeFileSync('made.json', JSON.stringify(found));
        fs.chmodSync('made.json', 0o640);`,
      'index.js': 'exports.found = require("./made.json");',
    },
  },
};

/** Takes more memory than a call may have, while it is loaded; pages that nobody touches, so that it costs nothing elsewhere. */
const GREEDY = `
  try {
    exports.held = [6, 6].map((gib) => new ArrayBuffer(gib * 2 ** 30)).length;
  } catch (error) {
    exports.held = error.name;
  }
`;
const otherPackages = {
  greedy: { '1.0.0': { 'index.js': GREEDY } },
};

/** A function that tries to change the tree of its package `name`. */
const changesOf = (name) => `async () => {
  const fs = require('node:fs');
  const { found } = require('${name}');
  const file = fs.realpathSync(require.resolve('${name}'));
  const attempt = (act) => { try { act(); return 'done'; } catch (error) { return error.code; } };
  return {
    found,
    overwrite: attempt(() => fs.writeFileSync(file, 'module.exports = {}')),
    add: attempt(() => fs.writeFileSync(file + '.new', '')),
    remove: attempt(() => fs.rmSync(file)),
    mode: attempt(() => fs.chmodSync(file, 0o666)),
    uid: process.getuid(),
  };
}`;

function assertEach(values, pattern) {
  for (const [what, value] of Object.entries(values)) assert.match(String(value), pattern, what);
}

let report;
let registry;
after(async () => {
  for (const one of executors.values()) await one.cleanup();
  await registry.close();
});
before(async () => {
  registry = await useRegistry({ ...packages, ...otherPackages });
  report = await isolationReport();
});
const layer = (name) => report.layers.find((one) => one.name === name);
const inForce = (name) => layer(name)?.inForce === true;

test('the report names every layer, and why one is not in force', async () => {
  assert.match(report.tier, /^(base|confined|isolated)$/);
  for (const one of report.layers) {
    assert.match(one.tier, /^(base|confined|isolated)$/);
    assert.equal(typeof one.inForce, 'boolean', one.name);
    if (!one.inForce) assert.ok(one.why, `${one.name} is not in force, without a reason`);
  }
  const names = report.layers.map((one) => one.name);
  assert.equal(new Set(names).size, names.length);
  for (const name of ['files', 'systemCalls', 'capabilities', 'noNewPrivileges', 'privateUser'])
    assert.ok(layer(name), name);
  assert.deepEqual(await isolationReport(), report);
});

test('what is required and not there is refused by the name of what is missing', async () => {
  const missing = report.layers.find((one) => one.tier === 'isolated' && !one.inForce);
  if (report.tier === 'isolated') return;
  const error = await rejection(call('spawn', 'async () => 1', {}, {}, { isolation: { require: 'isolated' } }));
  assert.equal(error.code, 'ISOLATION_UNAVAILABLE');
  assert.ok(error.message.includes(missing.name), error.message);
});

test('a package is held to the limits of a call while a zygote loads it', {
  skip: !LINUX,
  timeout: 90_000,
}, async () => {
  const code = `async () => {
    const ahead = Object.keys(require.cache).some((at) => at.includes('/greedy/'));
    return { ahead, held: require('greedy').held };
  }`;
  const forks = [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
  let found = { ahead: false };
  // Until its tree's zygote is there, each call loads it for itself.
  for (let more = 0; more < 200 && !found.ahead; more++) {
    found = await call('zygote', code, {}, { dependencies: { greedy: '1.0.0' } });
    assert.equal(found.held, 'RangeError');
  }
  assert.equal(found.ahead, forks);
});

for (const start of LINUX ? ['spawn', 'standby', 'zygote'] : ['spawn']) {
  test(`${start}: the host's files cannot be read, listed or written`, { skip: !inForceOnLinux() }, async () => {
    if (!inForce('files')) return assert.ok(layer('files').why);
    const found = await call(
      start,
      async ({ secret, root, host }) => {
        const fs = require('node:fs');
        const attempt = (act) => {
          try {
            act();
            return 'done';
          } catch (error) {
            return error.code;
          }
        };
        return {
          read: attempt(() => fs.readFileSync(secret)),
          promised: await fs.promises.readFile(secret).then(
            () => 'done',
            (error) => error.code
          ),
          list: attempt(() => fs.readdirSync(root)),
          write: attempt(() => fs.writeFileSync(`${root}/new`, '')),
          link: attempt(() => fs.linkSync(secret, 'link')),
          // The folder may be one of its own, with what everybody needs of the host's.
          etc: attempt(() => {
            if (!fs.readdirSync('/etc').includes('shadow'))
              throw Object.assign(new Error('not there'), { code: 'ENOENT' });
          }),
          environ: attempt(() => fs.readFileSync(`/proc/${host}/environ`)),
          command: attempt(() => fs.readFileSync(`/proc/${host}/cmdline`)),
          proc: attempt(() => fs.readdirSync('/proc')),
          siblings: attempt(() => fs.readdirSync('../..')),
          child: require('node:child_process').spawnSync('cat', [secret], { encoding: 'utf8' }).stdout,
          node: require('node:child_process').spawnSync(
            process.execPath,
            ['-p', `try { require('fs').readFileSync(${JSON.stringify(secret)}) } catch (error) { error.code }`],
            { encoding: 'utf8' }
          ).stdout,
        };
      },
      { secret, root, host: process.pid }
    );
    const { write, link, child, node, ...others } = found;
    // Refused, or not even there.
    for (const [what, code] of Object.entries(others)) assert.match(code, /^(EACCES|ENOENT)$/, `${what}: ${code}`);
    assert.match(write, /^(EACCES|EPERM|EROFS|ENOENT)$/);
    assert.match(link, /^(EACCES|EPERM|EXDEV|ENOENT)$/);
    assert.equal(child, '');
    assert.match(node.trim(), /^(EACCES|ENOENT)$/);
    assert.ok(!readdirSync(root).includes('new'));
  });

  test(`${start}: no capability, no new privileges, no forbidden call`, { skip: !inForceOnLinux() }, async () => {
    const status = await call(start, async () => require('node:fs').readFileSync('/proc/self/status', 'utf8'));
    const field = (name) => status.match(new RegExp(`^${name}:[ \\t]*(.*)$`, 'm'))?.[1];
    for (const name of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb']) assert.match(field(name), /^0+$/, name);
    const { why = '' } = report.layers.find(({ name }) => name === 'capabilities');
    // Where it cannot be emptied, the report says so.
    if (!/bounding set stays/.test(why)) assert.match(field('CapBnd'), /^0+$/);
    assert.ok(process.getuid() !== 0 || why === '', why);
    assert.equal(field('NoNewPrivs'), '1');
    if (inForce('systemCalls')) assert.equal(field('Seccomp'), '2');
    if (inForce('privateUser')) {
      const uid = Number(field('Uid').split(/\s/)[0]);
      assert.ok(uid >= 0x70000000, `uid ${uid}`);
      assert.equal(field('Groups').trim(), '');
    }
    if (!inForce('systemCalls')) return;
    const codes = await call(
      start,
      async ({ host }) => {
        const { once } = require('node:events');
        const net = require('node:net');
        const [error] = await once(net.connect('/run/nothing.sock'), 'error');
        let signal = 'done';
        try {
          process.kill(host, 0);
        } catch (error) {
          signal = error.code;
        }
        const { status } = require('node:child_process').spawnSync('unshare', ['--user', 'true']);
        return { local: error.code, signal, namespace: status };
      },
      { host: process.pid }
    );
    assert.equal(codes.local, 'EPERM');
    if (inForce('pidNamespace')) assert.equal(codes.signal, 'ESRCH');
    else if (inForce('signals')) assert.equal(codes.signal, 'EPERM');
    assert.notEqual(codes.namespace, 0);
  });

  for (const name of Object.keys(packages)) {
    test(`${start}: a package that is ${name} sees no more than functions, and no tree changes`, {
      timeout: 90_000,
    }, async () => {
      const answer = await call(start, changesOf(name), {}, { dependencies: { [name]: '1.0.0' } });
      const { found, mode, uid, ...changes } = answer;
      const { signal, uid: uidBefore, ...reads } = found;
      if (inForce('files')) {
        assertEach(changes, /^(EACCES|EROFS|EPERM)$/);
        assertEach(reads, /^(EACCES|ENOENT|EROFS)$/);
      }
      assert.match(mode, /^(EPERM|EROFS)$/);
      assert.equal(signal, inForce('pidNamespace') ? 'ESRCH' : 'EPERM');
      if (inForce('privateUser')) assertEach({ uid, uidBefore }, /^(18[789]|19\d|20[01])\d{7}$/);
    });
  }

  test(`${start}: processes are in PID namespaces of their own`, { skip: !LINUX, timeout: 90_000 }, async () => {
    if (!inForce('pidNamespace')) return assert.ok(layer('pidNamespace').why);
    // Two at a time, that wait for each other: the number of a namespace that is gone is another's soon.
    const server = createServer();
    const here = new Set();
    server.on('connection', (socket) => {
      here.add(socket.on('error', () => {}));
      if (here.size < 2) return;
      for (const one of here) one.destroy();
      here.clear();
    });
    await new Promise((done) => server.listen(0, '127.0.0.1', done));
    const two = (over) => Promise.all([where(over), where(over)]);
    const where = (over) =>
      call(
        start,
        async ({ port }) => {
          const fs = require('node:fs');
          const socket = require('node:net').connect(port, '127.0.0.1');
          await new Promise((done) => socket.on('error', () => {}).on('close', done));
          const listed = (path) => {
            try {
              return fs.readdirSync(path).length;
            } catch (error) {
              return error.code;
            }
          };
          const space = fs.readlinkSync('/proc/self/ns/pid');
          return { space, pid: process.pid, own: Number(fs.readlinkSync('/proc/self')), init: listed('/proc/1') };
        },
        { port: server.address().port },
        { ...over, sandbox: { vcpus: 4 } }
      );
    const plain = await two({});
    const shares = start === 'zygote' && [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
    const same = (all) => new Set(all.map(({ space }) => space)).size === 1;
    let dependent = await two({ dependencies: { loaded: '1.0.0' } });
    // Until its tree's zygote is there, a call is served by the base.
    for (let more = 0; more < 200 && shares && !same(dependent); more++) {
      dependent = await two({ dependencies: { loaded: '1.0.0' } });
    }
    server.close();
    assert.equal(same(dependent), shares, 'workers of a tree’s zygote are in its namespace');
    const each = start !== 'zygote' || !layer('pidNamespace').why.includes('that are forked are in their');
    assert.equal(same(plain), !each, 'others have one each');
    for (const { space } of [...plain, ...dependent]) assert.notEqual(space, readlinkSync('/proc/self/ns/pid'));
    for (const { pid, own, init } of [...plain, ...dependent]) {
      assert.notEqual(pid, 1, 'the first process of a namespace is deaf to its own signals');
      assert.equal(own, pid, '/proc is that of the namespace');
      assert.match(String(init), /^(EACCES|ENOENT)$/);
    }
  });

  test(`${start}: a program of the function has its figures by resourceUsage(), its entry of /proc is closed`, {
    skip: !inForceOnLinux(),
  }, async () => {
    const source = `() => {
      const run = (text) => require('node:child_process').spawnSync(process.execPath, ['-p', text], { encoding: 'utf8' });
      const [usage, cpu, memory] = ['resourceUsage().maxRSS', 'cpuUsage().user', 'memoryUsage().rss'].map((of) => run('process.' + of + ' > 0'));
      return { own: process.memoryUsage().rss > 0, usage: usage.stdout.trim(), cpu: cpu.stdout.trim(), memory: memory.stderr };
    }`;
    const { memory, ...found } = await call(start, source);
    assert.deepEqual(found, { own: true, usage: 'true', cpu: 'true' });
    assert.match(memory, /EACCES/);
  });

  test(`${start}: what Node itself needs goes on`, async () => {
    const server = createServer((_, answer) => answer.end('served'));
    await new Promise((done) => server.listen(0, '127.0.0.1', done));
    const found = await call(
      start,
      async ({ port }) => {
        const fs = require('node:fs');
        const os = require('node:os');
        const { execFileSync, execSync, fork } = require('node:child_process');
        const { Worker } = require('node:worker_threads');
        const { once } = require('node:events');
        fs.writeFileSync('file', 'x');
        fs.mkdirSync('a/b', { recursive: true });
        fs.renameSync('file', 'a/b/moved');
        fs.copyFileSync('a/b/moved', `${os.tmpdir()}/copied`);
        fs.symlinkSync('a/b/moved', 'link');
        await fs.promises.appendFile('link', 'y');
        fs.writeFileSync(
          'child.cjs',
          'process.on("message", (text) => { process.send(text + "!"); process.disconnect() })'
        );
        const child = fork('./child.cjs');
        child.send('ipc');
        const [message] = await once(child, 'message');
        const thread = new Worker('require("node:worker_threads").parentPort.postMessage(1 + 1)', { eval: true });
        const [sum] = await once(thread, 'message');
        return {
          text: fs.readFileSync('link', 'utf8'),
          copied: fs.readFileSync(`${os.tmpdir()}/copied`, 'utf8'),
          fetched: await (await fetch(`http://127.0.0.1:${port}/`)).text(),
          localhost: (await require('node:dns/promises').lookup('localhost')).address.length > 0,
          roots: require('node:tls').rootCertificates.length > 0,
          user: os.userInfo().username.length > 0,
          sameUser: os.userInfo().uid === process.getuid(),
          cpus: os.cpus().length > 0,
          memory: process.memoryUsage().rss > 0,
          zone:
            new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', timeZoneName: 'short' }).format(0).length > 0,
          wasm: WebAssembly.validate(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0)),
          report: process.report.getReport().header.cwd === process.cwd(),
          interfaces: Object.keys(os.networkInterfaces()).length > 0,
          datagram: await new Promise((done, fail) => {
            const socket = require('node:dgram').createSocket('udp4');
            socket.on('message', (bytes) => socket.close(() => done(String(bytes)))).on('error', fail);
            socket.bind(0, '127.0.0.1', () => socket.send('sent', socket.address().port, '127.0.0.1'));
          }),
          watched: await new Promise((done) => {
            try {
              const watcher = fs.watch('.', () => {
                watcher.close();
                done('told');
              });
              fs.writeFileSync('new', '');
            } catch (error) {
              done(error.code);
            }
          }),
          shell: execSync('echo shell > /dev/null; echo out', { encoding: 'utf8' }).trim(),
          version: execFileSync(process.execPath, ['-p', '1 + 1'], { encoding: 'utf8' }).trim(),
          message,
          sum,
        };
      },
      { port: server.address().port }
    );
    server.close();
    assert.deepEqual(found, {
      text: 'xy',
      copied: 'x',
      fetched: 'served',
      localhost: true,
      roots: true,
      user: true,
      sameUser: true,
      cpus: true,
      memory: true,
      zone: true,
      wasm: true,
      report: true,
      interfaces: true,
      datagram: 'sent',
      // Instances are counted by user: a function gets none of those of the server.
      watched: inForce('systemCalls') && !inForce('privateUser') ? 'EPERM' : 'told',
      shell: 'out',
      version: '2',
      message: 'ipc!',
      sum: 2,
    });
  });

  test(`${start}: network 'none' closes loopback too, or is refused`, async () => {
    const server = createServer((_, answer) => answer.end('served'));
    await new Promise((done) => server.listen(0, '127.0.0.1', done));
    const code = async ({ port }) => {
      const causes = [];
      await fetch(`http://127.0.0.1:${port}/`).catch((error) => causes.push(error.cause?.code ?? error.name));
      const listener = require('node:net').createServer();
      const [error] = await new Promise((done) => {
        listener.on('error', (error) => done([error]));
        listener.listen(0, '127.0.0.1', () => done([]));
      });
      listener.close();
      // None of the machine's, not even their names.
      let interfaces = {};
      try {
        interfaces = require('node:os').networkInterfaces();
      } catch {
        // Refused, where there is no network namespace.
      }
      return [...causes, error?.code, Object.keys(interfaces).filter((name) => name !== 'lo')];
    };
    const options = { network: 'none' };
    const answer = call(start, code, { port: server.address().port }, {}, options);
    if (inForce('networkClosed')) {
      assert.deepEqual(await answer, ['EPERM', 'EPERM', []]);
    } else {
      assert.equal((await rejection(answer)).code, 'ISOLATION_UNAVAILABLE');
    }
    server.close();
  });
}

/** Whether there is anything to look for: elsewhere the report is all there is. */
function inForceOnLinux() {
  return LINUX;
}

test('a store that other users cannot reach keeps the host’s user, and says so', { skip: !LINUX }, async () => {
  if (process.getuid() !== 0) return;
  const storeDir = join(tmp, 'closed', 'store');
  mkdirSync(storeDir, { recursive: true });
  chmodSync(join(tmp, 'closed'), 0o700);
  const uid = await call('spawn', async () => process.getuid(), {}, {}, { storeDir });
  assert.equal(uid, 0);
  const closed = await isolationReport();
  const one = closed.layers.find(({ name }) => name === 'privateUser');
  assert.equal(one.inForce, false);
  assert.match(one.why, /closed/);
  assert.equal(statSync(join(tmp, 'closed')).mode & 0o777, 0o700);
});

test('a control group that is named and cannot be used rejects calls, with the reason', {
  skip: !LINUX && 'Linux',
}, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  for (const [cgroupDir, why] of [
    ['/proc', /cgroupDir.*\/proc is no folder of a cgroup v2 file system/],
    ['/sys/fs/cgroup/there-is-none', /cgroupDir.*is no folder of a cgroup v2 file system/],
  ]) {
    const error = await rejection(new Factory({ cgroupDir }).executeFunctionTool('t', {}, tool('() => 1')));
    assert.deepEqual([error.code, error.phase], ['ISOLATION_UNAVAILABLE', 'validate']);
    assert.match(error.message, why);
  }
  const { layers, limits } = await surface().isolationReport();
  const group = layers.find(({ name }) => name === 'controlGroup');
  assert.match(group.enable, /Delegate=yes.*cgroupDir/s);
  assert.equal(limits.find(({ option }) => option === 'cpus').inForce, false);
});

test('whether calls have control groups is said, with what would give them some', {
  skip: !LINUX && 'Linux',
}, async () => {
  const group = layer('controlGroup');
  if (group.inForce) assert.match(group.why, /MiB of memory, \d+ processes and threads/);
  else assert.match(group.why, /cgroup v2|control group/);
  assert.equal(group.tier, 'isolated');
});
