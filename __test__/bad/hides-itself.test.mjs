// A function that leaves a process which may be run but not read: `/proc` does not show it to who has no privilege.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gone, LINUX, marked, ownWorld, RUNGS, surface, tool, until } from '../helpers.mjs';
import { useRegistry } from '../registry.mjs';

let registry;
before(async () => {
  ownWorld();
  registry = await useRegistry({ small: { '1.0.0': { 'index.js': 'module.exports = 1;' } } });
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** Starts a copy of sleep(1) by a shell that is gone at once, in a session of its own. */
const leave = (mode) => `async ({ seconds, waits }) => {
  const fs = require('node:fs'), { execFileSync } = require('node:child_process');
  const own = fs.openSync('x', 'w', ${mode});
  fs.writeSync(own, fs.readFileSync('/bin/sleep'));
  fs.closeSync(own);
  execFileSync('sh', ['-c', '(setsid ./x ' + seconds + ' </dev/null >/dev/null 2>&1 &)']);
  await new Promise((done) => setTimeout(done, waits));
  return require('small');
}`;

/** A number of seconds that no other process sleeps. */
const newSeconds = () => `31${Math.floor(Math.random() * 1e7)}`;

for (const mode of ['0o111', '0o755']) {
  test(`a program of mode ${mode} ends with its call, and is told of`, { skip: !LINUX && 'Linux' }, async () => {
    const executor = new (surface().NativeSandboxExecutor)();
    const call = async (seconds, waits = 0) => {
      let usage;
      const config = tool(leave(mode), { dependencies: { small: '1.0.0' } });
      const watch = { onUsage: (told) => (usage = told) };
      await executor.executeFunctionTool('t', { seconds, waits }, config, watch);
      await gone(seconds, 6000);
      await until(() => usage, 6000, 'usage');
      assert.equal(usage.exit.leftRunning, true);
    };
    // Control: it runs, as long as its call does.
    const seen = newSeconds();
    const running = call(seen, 1500);
    await until(() => marked(seen).length > 0, 20_000, 'the process runs');
    await running;
    // And in a process that is forked from a zygote which has the package.
    if (RUNGS.includes('zygote')) {
      const isUp = () => executor.getMetrics().zygotes?.dependents > 0;
      const end = performance.now() + 30_000;
      while (!isUp() && performance.now() < end) await call(newSeconds());
      assert.ok(isUp(), 'a zygote of the tree');
      for (let calls = 0; calls < 3; calls++) await call(newSeconds());
    }
    await executor.cleanup();
  });
}
