// Claims of docs/ISOLATION.md that no other suite is about: each test here is named beside its claim.

import assert from 'node:assert/strict';
import { readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { LINUX, ownWorld, RUNGS, surface, tool } from './helpers.mjs';

const options = { skip: !LINUX, timeout: 60_000 };

let world;
let report;
before(async () => {
  world = ownWorld();
  report = await surface().isolationReport();
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const inForce = (name) => report.layers.find((one) => one.name === name)?.inForce === true;

function call(start, source, args = {}) {
  const factory = new (surface().SandboxExecutorFactory)({ start });
  return factory.executeFunctionTool('claims', args, tool(source));
}

for (const start of RUNGS) {
  test(`${start}: a call leads a process group of its own`, options, async () => {
    const [pid, group, session] = await call(start, () => {
      const stat = require('node:fs').readFileSync('/proc/self/stat', 'latin1');
      const [, , leader, led] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return [process.pid, Number(leader), Number(led)];
    });
    assert.equal(group, pid);
    if (!inForce('pidNamespace')) assert.equal(session, pid);
  });

  test(`${start}: namespaces are of one’s own where the report says so`, options, async () => {
    const kinds = { ipcNamespace: 'ipc', utsNamespace: 'uts', mountNamespace: 'mnt', pidNamespace: 'pid' };
    const found = await call(
      start,
      ({ names }) => names.map((name) => require('node:fs').readlinkSync(`/proc/self/ns/${name}`)),
      { names: Object.values(kinds) }
    );
    for (const [at, [layer, name]] of Object.entries(kinds).entries()) {
      const isOwn = found[at] !== readlinkSync(`/proc/self/ns/${name}`);
      assert.equal(isOwn, inForce(layer), `${layer}: ${found[at]}`);
    }
  });

  test(`${start}: a root of one’s own has what the layer files names, and is read-only`, options, async () => {
    if (!inForce('mountNamespace')) return;
    const secret = join(world.root, 'secret');
    writeFileSync(secret, 'secret', { mode: 0o644 });
    const found = await call(
      start,
      ({ path }) => {
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
          looked: attempt(() => fs.statSync(path)),
          written: ['/x', '/usr/x', '/etc/x'].map((one) => attempt(() => fs.writeFileSync(one, ''))),
        };
      },
      { path: secret }
    );
    assert.equal(found.looked, 'ENOENT');
    for (const code of found.written) assert.match(code, /^(EROFS|EACCES)$/);
  });

  test(`${start}: limits by user are those of the document`, options, async () => {
    const text = await call(start, () => require('node:fs').readFileSync('/proc/self/limits', 'utf8'));
    const limit = (name) => Number(new RegExp(`^${name} +(\\d+)`, 'm').exec(text)?.[1]);
    assert.ok(limit('Max pending signals') <= 256, text);
    assert.ok(limit('Max locked memory') <= 8 << 20, text);
    assert.equal(limit('Max msgqueue size'), 0);
    assert.equal(limit('Max nice priority'), 0);
    assert.equal(limit('Max realtime priority'), 0);
  });
}
