// Getting around the option `network` where an attempt of `escapes/families/egress.mjs` does not suffice: with servers of its own, with many
// tries, with a host that is stopped, and by npm. Each has its control: the same, allowed, gets through.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { channel } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import test, { after, before } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { host, LINUX, ownWorld, rejection, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const FULL = Boolean(process.env.NSE_TEST_FULL);
const PYTHON = '/usr/bin/python3';
/** How often a second thread may try to change the address. Questions of one call are slowed down after some thousand: many calls ask. */
const RACES = FULL ? { calls: 20, tries: 50_000 } : { calls: 2, tries: 1500 };
const STOPPED_MS = 1000;
/** Another address of this machine, and the one where clouds give credentials to whoever asks. */
const OTHER = '127.0.0.2';
const METADATA = '169.254.169.254';

const world = ownWorld();
const { NativeSandboxExecutor, isolationReport } = surface();
const servers = [];
async function serve(answer, address = '127.0.0.1') {
  const server = createServer(answer).listen(0, address);
  await once(server, 'listening');
  servers.push(server);
  return server.address().port;
}

const registry = await useRegistry({ elsewhere: { '1.0.0': { 'index.js': 'module.exports = 42;' } } });
let isInForce = false;
before(async () => {
  if (!LINUX) return;
  await new NativeSandboxExecutor().executeFunctionTool('t', {}, tool('() => 1'));
  const { layers } = await isolationReport();
  isInForce = layers.find(({ name }) => name === 'networkRules').inForce;
});
after(async () => {
  for (const server of servers) server.close().closeAllConnections();
  await surface().SandboxExecutorFactory.getInstance().cleanup();
});

const options = { skip: !LINUX, timeout: 120_000 };
const call = (network, code, { args = {}, over = {}, options = {}, executor = {} } = {}) =>
  new NativeSandboxExecutor({ network, ...executor }).executeFunctionTool('attack', args, tool(code, over), options);
const FETCH = async ({ url }) => {
  try {
    return await (await fetch(url, { signal: AbortSignal.timeout(3000) })).text();
  } catch (error) {
    return error.cause?.code ?? String(error);
  }
};

test('a redirect leads no further than a connection', options, async () => {
  if (!isInForce) return;
  const secret = await serve((_, answer) => answer.end('secret'), OTHER);
  const places = { '/private': `http://${OTHER}:${secret}/`, '/metadata': `http://${METADATA}/latest/meta-data/` };
  const port = await serve(({ url }, answer) => answer.writeHead(302, { location: places[url] }).end());
  const via = (network, path) => call(network, FETCH, { args: { url: `http://127.0.0.1:${port}${path}` } });
  assert.equal(await via({ allow: [`127.0.0.1:${port}`] }, '/private'), 'EACCES');
  assert.equal(await via({ allow: [`127.0.0.1:${port}`] }, '/metadata'), 'EACCES');
  assert.equal(await via('open', '/metadata'), 'EACCES');
  assert.equal(await via({ allow: [`127.0.0.1:${port}`, OTHER] }, '/private'), 'secret');
});

test('a thread that changes the address gets nowhere, however often it tries', {
  ...options,
  skip: options.skip || (!existsSync(PYTHON) && 'there is no Python'),
  timeout: 900_000,
}, async (t) => {
  if (!isInForce) return;
  let reached = 0;
  const port = await serve(() => {});
  servers.at(-1).on('connection', (socket) => {
    reached += 1;
    socket.destroy();
  });
  // Nobody listens at port 9: to connect there is allowed, and ends at once, and the same socket may try again.
  const text = `import ctypes, errno, socket, sys, threading
port, tries = int(sys.argv[1]), int(sys.argv[2])
connect = ctypes.CDLL(None, use_errno=True).connect
good = bytes([2, 0, 0, 9, 127, 0, 0, 1]) + bytes(8)
bad = bytes([2, 0, port >> 8, port & 255, 127, 0, 0, 1]) + bytes(8)
buffer = ctypes.create_string_buffer(good, 16)
over = False
sys.setswitchinterval(1e-6)
def change():
    while not over:
        ctypes.memmove(buffer, bad, 16)
        ctypes.memmove(buffer, good, 16)
threading.Thread(target=change, daemon=True).start()
seen = {}
s = socket.socket()
for _ in range(tries):
    if connect(s.fileno(), buffer, 16) == 0:
        said = 'connected'
        s.close()
        s = socket.socket()
    else:
        said = errno.errorcode[ctypes.get_errno()]
    seen[said] = seen.get(said, 0) + 1
over = True
print(seen.get('ECONNREFUSED', 0), seen.get('EACCES', 0), seen.get('connected', 0), sum(seen.values()))`;
  const code = `({ port, tries }) => {
    const { execFileSync } = require('node:child_process');
    return execFileSync(${JSON.stringify(PYTHON)}, ['-c', ${JSON.stringify(text)}, String(port), String(tries)]).toString().trim().split(' ').map(Number);
  }`;
  const race = (network, count) =>
    Promise.all(
      Array.from({ length: count }, () =>
        // As many permits as calls: one that waited longer than the queue's limit for its turn would be rejected.
        call(network, code, {
          args: { port, tries: RACES.tries },
          over: { sandbox: { timeout: 800_000, vcpus: RACES.calls } },
        })
      )
    );
  const all = await race({ allow: ['127.0.0.1:9'] }, RACES.calls);
  const [allowed, refused, connected, tries] = all.reduce((sum, one) => sum.map((value, at) => value + one[at]));
  t.diagnostic(`${tries} tries: ${allowed} where it may, ${refused} refused`);
  assert.deepEqual([connected, reached, tries], [0, 0, RACES.calls * RACES.tries]);
  assert.ok(allowed > 0 && refused > 0, 'the host has seen both addresses');
  const [[, , through]] = await race({ allow: ['127.0.0.1'] }, 1);
  assert.ok(through > 0 && reached > 0, 'control: where both are allowed, both are reached');
});

test('the network of a host that is stopped waits, and that of one that is killed is closed', options, async () => {
  if (!isInForce) return;
  let reached = 0;
  const port = await serve((_, answer) => answer.end(String(++reached)));
  const code = `async ({ port }) => { for (;;) {
    await new Promise((done) => require('http').get({ port, host: '127.0.0.1', agent: false }, (answer) => answer.resume().on('end', done)).on('error', done));
    await new Promise((done) => setTimeout(done, 10));
  } }`;
  const { child, exited } = host(
    `const { NativeSandboxExecutor } = rest;
    new NativeSandboxExecutor({ network: { allow: ['127.0.0.1'] } })
      .executeFunctionTool('t', { port: ${port} }, tool(${JSON.stringify(code)}, { sandbox: { timeout: 60000 } })).catch(() => {});`
  );
  await until(() => reached > 5, 20_000, 'the function connects');
  child.kill('SIGSTOP');
  // What was under way may still end.
  await delay(200);
  const stopped = reached;
  await delay(STOPPED_MS);
  assert.equal(reached, stopped);
  child.kill('SIGCONT');
  await until(() => reached > stopped, 20_000, 'control: it connects again');
  child.kill('SIGKILL');
  await exited;
  await delay(200);
  const killed = reached;
  await delay(STOPPED_MS);
  assert.equal(reached, killed);
});

test('a root server without the capability to look into memory refuses rules, and says what to do', {
  ...options,
  skip: options.skip || (process.getuid?.() !== 0 && 'a server that is no root needs no capability'),
}, async () => {
  if (!isInForce) return;
  const { exited } = host(
    `const { NativeSandboxExecutor, isolationReport } = rest;
    const call = (network) => new NativeSandboxExecutor({ network }).executeFunctionTool('t', {}, tool('() => 1')).catch(({ code, message }) => code + ' ' + message);
    say([await call({ allow: ['api.example'] }), await call('internet'), await call('none'), await call('open')]);
    say((await isolationReport()).layers.filter(({ name }) => ['networkRules', 'metadataAddresses', 'privateUser'].includes(name)));
    process.exit(0);`,
    { by: ['setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace'] }
  );
  const { said, err } = await exited;
  const [answers, layers] = said;
  assert.ok(layers, err);
  const named = Object.fromEntries(layers.map((layer) => [layer.name, layer]));
  // Where functions have the server's own user, it may look.
  if (!named.privateUser.inForce) return;
  for (const refused of answers.slice(0, 2)) {
    assert.match(refused, /^ISOLATION_UNAVAILABLE .*cannot be enforced here: networkRules.*SYS_PTRACE/s);
  }
  assert.deepEqual(answers.slice(2), [1, 1], 'what needs nobody’s memory is to be had');
  for (const name of ['networkRules', 'metadataAddresses']) {
    assert.equal(named[name].inForce, false);
    assert.match(named[name].why, /CAP_SYS_PTRACE/);
  }
});

test('who has subscribed hears of what was refused, once for each place', options, async () => {
  if (!isInForce) return;
  const heard = [];
  const hear = (message) => heard.push(message);
  const connections = channel('native-sandbox-executor:connection');
  connections.subscribe(hear);
  try {
    const code = async ({ urls }) => {
      for (const url of urls) await fetch(url).catch(() => {});
    };
    const urls = ['http://127.0.0.1:8/', 'http://127.0.0.1:8/', 'http://nobody.example/'];
    await call({ allow: ['api.example'] }, code, { args: { urls } });
    await call({ allow: [], audit: true }, code, { args: { urls: urls.slice(1, 2) } });
    await until(() => heard.length >= 3, 5000, 'messages');
  } finally {
    connections.unsubscribe(hear);
  }
  const about = { provider: 'native', caller: 'attack', reason: 'not in network.allow' };
  assert.deepEqual(heard, [
    { ...about, event: 'refused', host: 'localhost', port: 8 },
    { ...about, event: 'refused', host: 'nobody.example' },
    { ...about, event: 'audited', host: 'localhost', port: 8 },
  ]);
});

test('the bytes of a call’s connections are told, of open and of closed ones', options, async () => {
  if (!isInForce) return;
  const port = await serve((request, answer) => request.resume().on('end', () => answer.end('x'.repeat(50_000))));
  const code = async ({ port }) => {
    for (const connection of ['close', 'keep-alive']) {
      const body = 'y'.repeat(20_000);
      await (await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body, headers: { connection } })).text();
    }
  };
  const usageOf = (network) =>
    new Promise((done, failed) => {
      call(network, code, { args: { port }, options: { onUsage: ({ network }) => done(network) } }).catch(failed);
    });
  const { places } = await usageOf({ allow: ['127.0.0.1'] });
  assert.deepEqual(
    places.map(({ host, port, count }) => [host, port, count]),
    [['localhost', port, 2]]
  );
  const [{ sentBytes, receivedBytes }] = places;
  // Headers are a part of it.
  assert.ok(sentBytes >= 40_000 && sentBytes < 42_000, `${sentBytes} sent`);
  assert.ok(receivedBytes >= 100_000 && receivedBytes < 102_000, `${receivedBytes} received`);
  const [open] = (await usageOf('open')).places;
  assert.equal(open.sentBytes, undefined, 'without rules the kernel is not asked');
});

test('npm reaches its registry, and no other host that the registry sends it to', options, async () => {
  if (!isInForce) return;
  let asked = 0;
  const other = await serve(async ({ url }, answer) => {
    asked += 1;
    answer.end(Buffer.from(await (await fetch(new URL(url, registry.url))).arrayBuffer()));
  }, OTHER);
  const naming = await serve(async ({ url }, answer) => {
    if (url.endsWith('.tgz')) return answer.writeHead(302, { location: `http://${OTHER}:${other}${url}` }).end();
    const text = await (await fetch(new URL(url, registry.url))).text();
    answer.setHeader('content-type', 'application/json');
    return answer.end(text.replaceAll(registry.url, `http://127.0.0.1:${naming}/`));
  });
  const before = process.env.npm_config_registry;
  process.env.npm_config_registry = `http://127.0.0.1:${naming}/`;
  try {
    const install = (network) =>
      call(network, `() => require('elsewhere')`, { over: { dependencies: { elsewhere: '1.0.0' } } });
    const error = await rejection(install({ allow: [`${OTHER}:9`] }));
    assert.deepEqual([error.code, asked], ['INSTALL_FAILED', 0]);
    assert.equal(await install('open'), 42, 'control');
    assert.ok(asked > 0);
  } finally {
    process.env.npm_config_registry = before;
  }
});

test('npm fetches from git where the option lets it, and nowhere else', {
  ...options,
  skip: options.skip || (!hasGit() && 'there is no git'),
}, async () => {
  if (!isInForce) return;
  const folder = join(world.root, 'repository');
  const bare = join(world.root, 'bare.git');
  mkdirSync(folder);
  writeFileSync(join(folder, 'package.json'), '{"name":"of-git","version":"1.0.0"}');
  writeFileSync(join(folder, 'index.js'), 'module.exports = 42;');
  const git = (...args) => execFileSync('git', ['-c', 'user.name=a', '-c', 'user.email=a@b', ...args], { cwd: folder });
  git('init', '-q');
  git('add', '.');
  git('commit', '-q', '-m', 'all');
  git('clone', '-q', '--bare', '.', bare);
  execFileSync('git', ['update-server-info'], { cwd: bare });
  const port = await serve(({ url }, answer) => {
    const file = join(bare, new URL(url, 'http://x').pathname.replace('/bare.git', ''));
    if (existsSync(file)) answer.end(readFileSync(file));
    else answer.writeHead(404).end();
  });
  const over = { dependencies: { 'of-git': `git+http://127.0.0.1:${port}/bare.git` } };
  const install = (network) =>
    call(network, `() => require('of-git')`, { over, executor: { dependencies: { specs: ['git'] } } });
  assert.equal((await rejection(install({ allow: [] }))).code, 'INSTALL_FAILED');
  assert.equal(await install({ allow: [`127.0.0.1:${port}`] }), 42, 'control');
});

function hasGit() {
  try {
    return execFileSync('git', ['--version']).length > 0;
  } catch {
    return false;
  }
}
