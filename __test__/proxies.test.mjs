// Functions reach the network as their host does, by the proxies that it has now.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, surface, tool } from './helpers.mjs';

/** A proxy that answers for every host, with its own name. */
async function startProxy(name) {
  const server = createServer((request, response) => response.end(`${name} ${request.headers.host}`));
  // Some Nodes ask for a tunnel, others for the page itself.
  server.on('connect', (_, socket) => {
    socket.write('HTTP/1.1 200 Connection established\r\n\r\n');
    server.emit('connection', socket);
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

const NAMES = ['HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'https_proxy', 'NO_PROXY', 'no_proxy', 'NODE_USE_ENV_PROXY'];
/** Whether `fetch` of this Node goes by them. */
const isKnown = process.allowedNodeEnvironmentFlags.has('--use-env-proxy');
const skip = !isKnown && 'this Node has no proxies of the environment';

let first;
let second;
const kept = {};
before(async () => {
  ownWorld();
  for (const name of NAMES) {
    kept[name] = process.env[name];
    delete process.env[name];
  }
  [first, second] = [await startProxy('first'), await startProxy('second')];
});
after(async () => {
  for (const name of NAMES) if (kept[name] !== undefined) process.env[name] = kept[name];
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  first?.close();
  second?.close();
});

const ASK = `async () => ({
  variable: process.env.HTTP_PROXY ?? null,
  answer: await fetch('http://a.example/').then((response) => response.text(), (error) => 'failed'),
})`;

for (const start of RUNGS) {
  test(`proxies that the host changes count from the next call on (${start})`, { skip, timeout: 120_000 }, async () => {
    const { NativeSandboxExecutor: Executor } = surface();
    const executor = new Executor({ start });
    const call = () => executor.executeFunctionTool('t', {}, tool(ASK));
    process.env.NODE_USE_ENV_PROXY = '1';
    try {
      for (const [name, { url }] of [
        ['first', first],
        ['second', second],
        ['first', first],
      ]) {
        process.env.HTTP_PROXY = url;
        assert.deepEqual(await call(), { variable: url, answer: `${name} a.example` });
      }
      delete process.env.HTTP_PROXY;
      assert.deepEqual((await call()).variable, null);
    } finally {
      delete process.env.NODE_USE_ENV_PROXY;
      delete process.env.HTTP_PROXY;
      await executor.cleanup();
    }
  });
}

test('a call of narrower limits goes by them too', { skip, timeout: 120_000 }, async () => {
  const { NativeSandboxExecutor: Executor } = surface();
  const executor = new Executor();
  const call = () => executor.executeFunctionTool('t', {}, tool(ASK), { limits: { memoryMb: 200 } });
  try {
    await call();
    Object.assign(process.env, { NODE_USE_ENV_PROXY: '1', HTTP_PROXY: second.url });
    assert.equal((await call()).answer, 'second a.example');
  } finally {
    delete process.env.NODE_USE_ENV_PROXY;
    delete process.env.HTTP_PROXY;
    await executor.cleanup();
  }
});
