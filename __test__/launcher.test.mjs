// The launcher is one process that can be lost: calls in flight get an error, later calls work.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { writeRefusing } from './escapes/refusal.mjs';
import {
  appears,
  below,
  gone,
  LINUX,
  launcherPid,
  newMarker,
  openDescriptors,
  ownWorld,
  ROOT,
  rejection,
  run,
  surface,
  until,
} from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const options = { skip: !LINUX && 'there is no launcher outside Linux', timeout: 60_000 };

test('the launcher beside the addon can be run', options, async () => {
  const { createRequire } = await import('node:module');
  const { platformArchAbi } = createRequire(import.meta.url)('../lib/platform.js');
  assert.equal(statSync(join(ROOT, `launcher.${platformArchAbi()}`)).mode & 0o111, 0o111);
});

test('where the dead cannot be reaped, calls are rejected and nothing waits or spins for ever', options, () => {
  const folder = mkdtempSync(join(process.env.TMPDIR, 'reaping-'));
  const script = join(folder, 'host.mjs');
  writeFileSync(
    script,
    `import { run, surface } from ${JSON.stringify(new URL('./helpers.mjs', import.meta.url).href)};
    const told = [];
    for (let call = 0; call < 2; call++) told.push(await run('() => 1').catch((error) => error.code));
    process.stdout.write(JSON.stringify(told));
    await surface().SandboxExecutorFactory.getInstance().cleanup();
    process.exit(0);`
  );
  const program = join(folder, 'program');
  const { TMPDIR, PATH } = process.env;
  writeRefusing(program, 'reaping', [process.execPath, script], { TMPDIR, PATH });
  const { status, stdout, stderr } = spawnSync(program, { encoding: 'utf8', timeout: 50_000 });
  rmSync(folder, { recursive: true });
  assert.equal(status, 0, stderr);
  for (const outcome of JSON.parse(stdout))
    assert.match(String(outcome), /^(START_FAILED|OUTCOME_UNKNOWN|KILLED|ISOLATION_UNAVAILABLE)$/);
});

test('killed while calls run and wait, it is replaced', options, async () => {
  assert.equal(await run('() => 1'), 1);
  const descriptors = openDescriptors();
  for (let round = 0; round < 3; round++) {
    const launcher = launcherPid();
    assert.ok(launcher, 'no launcher found below this process');
    const marker = newMarker();
    const over = { sandbox: { vcpus: 1, timeout: 60_000 } };
    const running = run('({ marker }) => { process.title = marker; for (;;); }', { marker }, over);
    const waiting = run('() => "later"', {}, over);
    running.catch(() => {});
    waiting.catch(() => {});
    await appears(marker);
    process.kill(launcher, 'SIGKILL');
    const error = await rejection(running);
    assert.match(error.code, /^(START_FAILED|OUTCOME_UNKNOWN|KILLED)$/, error.message);
    assert.equal(await waiting, 'later', 'a call that waited is none of the launcher’s');
    assert.equal(await run('() => 2'), 2);
    assert.notEqual(launcherPid(), launcher);
    await gone(marker);
  }
  // A zygote takes three, a worker that it keeps ready three more.
  await until(() => openDescriptors() <= descriptors + 8, 5000, `no more than ${descriptors} descriptors and eight`);
  assert.equal(below(process.pid).filter((pid) => pid === launcherPid()).length, 1, 'one launcher');
});

test('stopped and continued, it goes on', options, async () => {
  assert.equal(await run('() => 1'), 1);
  const launcher = launcherPid();
  process.kill(launcher, 'SIGSTOP');
  const call = run('() => "thawed"');
  // A call that a zygote serves does not need it.
  const thaw = setTimeout(() => process.kill(launcher, 'SIGCONT'), 500);
  assert.equal(await call, 'thawed');
  clearTimeout(thaw);
  process.kill(launcher, 'SIGCONT');
});

test(
  'the host stays as it was: no children of its own but the launcher, its own child_process works',
  options,
  async () => {
    await run('() => 1');
    const { spawn } = await import('node:child_process');
    const status = await new Promise((done) => spawn(process.execPath, ['-e', 'process.exit(5)']).on('exit', done));
    assert.equal(status, 5);
    const { readFileSync } = await import('node:fs');
    const parents = below(process.pid).filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ').at(-1).split(' ')[1] === String(process.pid);
      } catch {
        return false;
      }
    });
    assert.deepEqual(parents, [launcherPid()]);
  }
);
