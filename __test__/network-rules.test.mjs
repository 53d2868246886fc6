// What functions, packages that are loaded, and install scripts may connect to: the option `network`, of an executor and of a call.
// Nothing here needs the Internet: names are those that every machine has, or that nobody may have.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import test, { after, before } from 'node:test';
import { LINUX, ownWorld, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

ownWorld();
const { NativeSandboxExecutor, isolationReport } = surface();

/** Connects while it is loaded, and says how that ended; a function asks it to connect once more. */
const CONNECTS = `
  const net = require('node:net');
  exports.connect = (port, host = '127.0.0.1') => new Promise((done) => {
    const socket = net.connect(port, host, () => { socket.destroy(); done('connected'); });
    socket.on('error', (error) => done(error.code));
  });
  exports.loaded = exports.connect(PORT);
`;
const server = createServer((_, answer) => answer.end('served'));
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const { port } = server.address();
useRegistry({ connects: { '1.0.0': { 'index.js': CONNECTS.replace('PORT', port) } } });

let rules;
before(async () => {
  await new NativeSandboxExecutor().executeFunctionTool('t', {}, tool('() => 1'));
  const { layers } = await isolationReport();
  rules = layers.find(({ name }) => name === 'networkRules');
});
after(() => server.close());

const executors = new Map();
function executor(network, start) {
  const key = JSON.stringify([network, start]);
  if (!executors.has(key)) executors.set(key, new NativeSandboxExecutor({ network, ...(start && { start }) }));
  return executors.get(key);
}
const call = (network, code, { start, args = {}, over = {}, options } = {}) =>
  executor(network, start).executeFunctionTool('network', { port, ...args }, tool(code, over), options);

/** Whether rules can be had here; if not, that they are refused. */
async function inForce() {
  if (rules.inForce) return true;
  const error = await rejection(call({ allow: [] }, '() => 1'));
  assert.deepEqual([error.code, error.phase], ['ISOLATION_UNAVAILABLE', 'validate']);
  assert.match(error.message, /network: \{"allow":\[\]\} cannot be enforced here: networkRules/);
  return false;
}

const FETCH = async ({ port, host = '127.0.0.1' }) => {
  try {
    return await (await fetch(`http://${host}:${port}/`)).text();
  } catch (error) {
    return error.cause?.code ?? error.cause?.errors?.[0]?.code ?? String(error);
  }
};

for (const start of LINUX ? ['zygote', 'standby', 'spawn'] : []) {
  test(`${start}: a function reaches what is listed, and nothing else`, async () => {
    if (!(await inForce())) return;
    const listed = { allow: [`127.0.0.1:${port}`] };
    assert.equal(await call(listed, FETCH, { start }), 'served');
    assert.equal(await call(listed, FETCH, { start, args: { host: '127.0.0.2' } }), 'EACCES');
    assert.equal(await call({ allow: ['localhost'] }, FETCH, { start, args: { host: 'localhost' } }), 'served');
    assert.equal(await call({ allow: [] }, FETCH, { start }), 'EACCES');
    assert.equal(await call('internet', FETCH, { start }), 'EACCES');
    assert.equal(await call('open', FETCH, { start }), 'served');
  });

  test(`${start}: every way to say a closed address is closed`, async () => {
    if (!(await inForce())) return;
    const hosts = [
      '127.0.0.1',
      '127.1',
      '2130706433',
      '0x7f000001',
      '0177.0.0.1',
      '0.0.0.0',
      '[::1]',
      '[::ffff:127.0.0.1]',
      '[::]',
      '[::127.0.0.1]',
    ];
    const code = async ({ hosts, port }) => {
      const net = require('node:net');
      const said = {};
      for (const host of hosts) {
        said[host] = await new Promise((done) => {
          const socket = net.connect(port, host.replace(/[[\]]/g, ''), () => done('connected'));
          socket.on('error', (error) => done(error.code));
        });
      }
      return said;
    };
    const said = await call('internet', code, { start, args: { hosts } });
    for (const host of hosts) assert.match(said[host], /^(EACCES|ENOTFOUND)$/, host);
  });

  test(`${start}: what a program that the function starts connects to is the function's`, async () => {
    if (!(await inForce())) return;
    const code = ({ port }) => {
      const { spawnSync } = require('node:child_process');
      const script = `const s = require('net').connect(${port}, '127.0.0.1', () => { console.log('connected'); s.destroy(); }); s.on('error', (e) => console.log(e.code));`;
      const again = `require('child_process').spawnSync(process.execPath, ['-e', ${JSON.stringify(script)}], { stdio: 'inherit' });`;
      return [script, again].map((text) => spawnSync(process.execPath, ['-e', text]).stdout.toString().trim());
    };
    assert.deepEqual(await call({ allow: [] }, code, { start }), ['EACCES', 'EACCES']);
    assert.deepEqual(await call({ allow: ['127.0.0.1'] }, code, { start }), ['connected', 'connected']);
  });

  test(`${start}: a package connects under the same rules while it is loaded, and a call's own rules count for it`, async () => {
    if (!(await inForce())) return;
    const code = async ({ port }) => {
      const { loaded, connect } = require('connects');
      return [await loaded, await connect(port)];
    };
    const over = { dependencies: { connects: '1.0.0' } };
    const open = { allow: ['127.0.0.1'] };
    for (let i = 0; i < 3; i++) {
      assert.deepEqual(await call(open, code, { start, over }), ['connected', 'connected']);
      assert.deepEqual(await call({ allow: [] }, code, { start, over }), ['EACCES', 'EACCES']);
      const options = { network: 'none' };
      assert.deepEqual(await call(open, code, { start, over, options }), ['EACCES', 'EACCES']);
    }
  });

  test(`${start}: sockets of datagrams and listening are closed where the network is, and open where not`, async () => {
    if (!(await inForce())) return;
    const code = async () => {
      const opened = (emitter, act, event) =>
        new Promise((done) => {
          emitter.on('error', (error) => done(error.code)).on(event, () => done('open'));
          act();
        });
      const socket = require('node:dgram').createSocket('udp4');
      const listener = require('node:net').createServer();
      return [
        await opened(socket, () => socket.bind(0), 'listening'),
        await opened(listener, () => listener.listen(0), 'listening'),
      ];
    };
    assert.deepEqual(await call({ allow: ['127.0.0.1'] }, code, { start }), ['EACCES', 'EACCES']);
    assert.deepEqual(await call('open', code, { start }), ['open', 'open']);
  });
}

test('the metadata address of clouds is closed by default, and opened by a rule', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const code = () =>
    new Promise((done) => {
      const socket = require('node:net').connect({ port: 80, host: '169.254.169.254', timeout: 300 });
      socket
        .on('error', (error) => done(error.code))
        .on('connect', () => done('through'))
        .on('timeout', () => done('through'));
    });
  assert.equal(await call('open', code), 'EACCES');
  // Whoever is there, or nobody: it was not refused here.
  assert.notEqual(await call({ preset: 'open', allow: ['169.254.169.254:80'] }, code), 'EACCES');
});

test('a call can only be narrower than its executor', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const wider = { network: { allow: ['127.0.0.1'] } };
  assert.equal(await call('internet', FETCH, { options: wider }), 'EACCES');
  assert.equal(await call('open', FETCH, { options: wider }), 'served');
  assert.equal(await call('open', FETCH, { options: { network: { allow: [`127.0.0.1:${port + 1}`] } } }), 'EACCES');
  assert.equal(await call('open', FETCH), 'served');
});

test('names that are not listed are not there, and the error says why', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const looks = async () => (await fetch('http://nobody.example/')).status;
  const error = await rejection(call({ allow: ['api.example'] }, looks));
  assert.equal(error.code, 'TOOL_ERROR');
  assert.match(error.message, /ENOTFOUND nobody\.example/);
  assert.match(error.message, /looking up nobody\.example was refused: not in network\.allow \(option network\)/);
  const cares = async () =>
    require('node:dns')
      .promises.resolve4('nobody.example')
      .catch((error) => error.code);
  assert.equal(await call({ allow: ['api.example'] }, cares), 'ENOTFOUND');
  const connects = async ({ port }) => (await fetch(`http://127.0.0.1:${port}`)).text();
  const refused = await rejection(call({ allow: [] }, connects));
  assert.match(refused.message, new RegExp(`a connection to localhost \\(127\\.0\\.0\\.1:${port}\\) was refused`));
});

test('usage, metrics and the log tell of connections; an audit refuses nothing', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const usageOf = (network) =>
    new Promise((done, failed) => {
      call(network, FETCH, { options: { onUsage: (usage) => done(usage.network) } }).catch(failed);
    });
  const listed = { places: [{ host: 'localhost', port, count: 1 }], more: 0 };
  const { places, ...rest } = await usageOf({ allow: ['127.0.0.1'] });
  const withoutBytes = places.map(({ sentBytes: _sent, receivedBytes: _received, ...place }) => place);
  assert.deepEqual({ places: withoutBytes, ...rest }, listed);
  const before = executor('open').getMetrics().connectionsRefused;
  const refused = { places: [{ host: 'localhost', port, refused: 'not in network.allow', count: 1 }], more: 0 };
  assert.deepEqual(await usageOf({ allow: [] }), refused);
  assert.equal(executor('open').getMetrics().connectionsRefused, before + 1);
  const { places: audited } = await usageOf({ allow: [], audit: true });
  assert.deepEqual([audited.length, audited[0].refused], [1, 'not in network.allow']);
  assert.equal(await call({ allow: [], audit: true }, FETCH), 'served');
  assert.equal(executor('open').getMetrics().connectionsRefused, before + 1);
});

test('a thousand connections at once from several calls are all made', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const code = async ({ port }) => {
    const net = require('node:net');
    const one = () =>
      new Promise((done, failed) => {
        const socket = net.connect(port, '127.0.0.1', () => done(socket.destroy()));
        socket.on('error', failed);
      });
    return (await Promise.all(Array.from({ length: 100 }, one))).length;
  };
  const calls = Array.from({ length: 10 }, () => call({ allow: ['127.0.0.1'] }, code));
  assert.deepEqual(await Promise.all(calls), Array(10).fill(100));
});

test('a blocking socket waits for its connection, and its call ends all the same', {
  skip: !(LINUX && hasPython()),
}, async () => {
  if (!(await inForce())) return;
  const python = (text) => `async ({ port }) => {
    const { execFile } = require('node:child_process');
    const args = ['-c', ${JSON.stringify(text)}, String(port)];
    return await new Promise((done) => execFile('python3', args, (error, out) => done(out.trim() || String(error))));
  }`;
  const connects = 'import socket, sys\nsocket.create_connection(("127.0.0.1", int(sys.argv[1])))\nprint("connected")';
  assert.equal(await call({ allow: ['127.0.0.1'] }, python(connects)), 'connected');
  // Nobody answers there: RFC 5737.
  const hangs = 'import socket\nsocket.create_connection(("192.0.2.1", 9))';
  const ended = call({ allow: ['192.0.2.1'] }, python(hangs), { over: { sandbox: { timeout: 500 } } });
  // Where there is no way there, the machine says so at once.
  assert.match(await ended.catch((error) => error.code), /^TIMEOUT$|Error/);
});

test('rules that are none are named', async () => {
  for (const [network, part] of [
    ['off', /"open", "internet", "none"/],
    [{ allow: ['https://api.example/'] }, /network\.allow: "https:\/\/api\.example\/" is no rule: it is a URL/],
    [{ allow: 'api.example' }, /must be a list/],
    [{ allowed: [] }, /no "allowed"/],
    [{ preset: 'none', allow: [] }, /network: "none"/],
  ]) {
    const error = await rejection(call(network, '() => 1'));
    assert.equal(error.code, 'INVALID_CONFIG');
    assert.match(error.message, part);
    const own = await rejection(call('open', '() => 1', { options: { network } }));
    assert.equal(own.code, 'INVALID_CONFIG');
    assert.match(own.message, part);
  }
});

test('names are those of DNS, whatever script they are written in', { skip: !LINUX }, async () => {
  if (!(await inForce())) return;
  const looks = async () =>
    require('node:dns')
      .promises.lookup('bücher.example')
      .then(
        () => 'found',
        (error) => error.code
      );
  const refusedOf = async (network) => {
    const error = await rejection(
      call(network, ({ name }) => fetch(`http://${name}`), { args: { name: 'bücher.example' } })
    );
    return /was refused/.test(error.message);
  };
  assert.equal(await call({ allow: ['bücher.example'] }, looks), 'ENOTFOUND');
  assert.equal(await refusedOf({ allow: ['bücher.example'] }), false);
  assert.equal(await refusedOf({ allow: ['other.example'] }), true);
});

function hasPython() {
  try {
    return execFileSync('python3', ['--version']).length > 0;
  } catch {
    return false;
  }
}
