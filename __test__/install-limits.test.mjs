// Install scripts are the code of strangers, too: what one may take of memory, processes, disk and time has an end, and the error names the
// option.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { LINUX, ownWorld, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const options = { skip: !LINUX, timeout: 120_000 };
const script = (text) => ({
  '1.0.0': {
    'package.json': { scripts: { install: 'node s.js' } },
    's.js': text,
    'index.js': 'module.exports = "built"',
  },
});

let registry;
before(async () => {
  ownWorld();
  registry = await useRegistry({
    modest: script(`require('fs').writeFileSync('made', Buffer.alloc(1 << 20, 1));`),
    disk: script(
      `const fs = require('fs'); for (let i = 0; i < 8; i++) fs.writeFileSync('big' + i, Buffer.alloc(50 << 20, 1)); setTimeout(() => {}, 2000);`
    ),
    file: script(`require('fs').writeFileSync('big', Buffer.alloc(120 << 20, 1));`),
    memory: script(
      `const held = []; for (let i = 0; i < 40; i++) held.push(Buffer.alloc(64 << 20, 1)); setTimeout(() => held, 30000);`
    ),
    processes: script(
      `const { spawn } = require('child_process'); for (let i = 0; i < 40; i++) spawn('sleep', ['30'], { stdio: 'ignore' }).on('error', () => {});`
    ),
    endless: script(`setInterval(() => {}, 1000);`),
  });
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

const LOW = { diskMb: 64, fileSizeMb: 64, maxProcesses: 16, memoryMb: 64, nativeMemoryMb: 64 };

function install(name, more = {}) {
  const factory = new (surface().SandboxExecutorFactory)({ tenantKey: name, ...LOW, ...more });
  return factory.executeFunctionTool('t', {}, tool(`() => require('${name}')`, { dependencies: { [name]: '1.0.0' } }));
}

test('a script that stays below its limits runs', options, async () => {
  assert.equal(await install('modest'), 'built');
});

for (const [name, words, more] of [
  ['disk', /diskMb/],
  ['file', /EFBIG|SIGXFSZ/, { diskMb: 1024 }],
  ['memory', /memoryMb or nativeMemoryMb/],
  ['processes', /maxProcesses/],
]) {
  test(`a script that takes too much of ${name} is ended, and nothing is installed`, options, async () => {
    const error = await rejection(install(name, more));
    assert.deepEqual([error.code, error.phase], ['INSTALL_FAILED', 'install'], error.message);
    assert.match(error.message, words);
  });
}

test('a script without an end runs into the limit of time', options, async () => {
  const error = await rejection(install('endless', { installTimeoutMs: 15_000 }));
  assert.equal(error.code, 'INSTALL_TIMEOUT', error.message);
  assert.match(error.message, /installTimeoutMs/);
});
