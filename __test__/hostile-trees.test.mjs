// An install script can put anything in the place of what the host reads of a tree later on. The host waits for none of it, follows none of it,
// and goes on serving that tree and others.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { LINUX, ownWorld, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const options = { skip: !LINUX, timeout: 150_000 };
/** What is put in the place of the lockfile, of npm's list of packages, and of the manifest. */
const TRICKS = {
  pipe: 'mkfifo "$p"',
  device: 'ln -s /dev/zero "$p"',
  link: 'ln -s /etc/passwd "$p"',
  loop: 'ln -s "$p" "$p"',
  folder: 'mkdir "$p"',
  sparse: 'truncate -s 64G "$p" || dd if=/dev/zero of="$p" bs=1 count=1 seek=60M 2>/dev/null',
  nothing: ':',
};
const trick = (act) =>
  `for p in ../../package-lock.json ../../node_modules/.package-lock.json; do rm -rf "$p"; ${act}; done; exit 0`;

let registry;
before(async () => {
  ownWorld();
  const packages = Object.entries(TRICKS).map(([name, act]) => [
    `trick-${name}`,
    {
      '1.0.0': {
        'package.json': { scripts: { install: 'sh s.sh' } },
        's.sh': trick(act),
        'index.js': 'module.exports = "served"',
      },
    },
  ]);
  registry = await useRegistry(Object.fromEntries(packages));
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

for (const name of Object.keys(TRICKS)) {
  test(`a tree with ${name} in its lockfile's place serves, and its ranges are resolved again`, options, async () => {
    const factory = new (surface().SandboxExecutorFactory)({ tenantKey: name, poolTtlMs: 500, cleanupIntervalMs: 300 });
    const call = () =>
      factory.executeFunctionTool(
        't',
        {},
        tool(`() => require('trick-${name}')`, { dependencies: { [`trick-${name}`]: '^1.0.0' } })
      );
    assert.equal(await call(), 'served');
    await delay(900);
    // Due by now: what the script left is read in the background, while the tree serves.
    for (let more = 0; more < 3; more++) {
      assert.equal(await call(), 'served');
      await delay(400);
    }
    const other = new (surface().SandboxExecutorFactory)({ tenantKey: `beside ${name}` });
    assert.equal(await other.executeFunctionTool('t', {}, tool('() => 1')), 1);
  });
}
