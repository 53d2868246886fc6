// What `run.mjs` runs in a machine that has control groups: the package as a server in a delegated group has it.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

const { NativeSandboxExecutor, isolationReport, shutdown, setLogger } = createRequire(import.meta.url)('./index.js');
const delegated = process.argv[2];
const MIB = 1024 * 1024;
/** Everything is slow where processors are emulated. */
const PATIENCE_MS = 180_000;
const RUNGS = ['spawn', 'standby', 'zygote'];

// Waiting for what a call used keeps no process alive.
const alive = setInterval(() => {}, 1000);
setLogger({ debug() {}, info() {}, warn: console.log, error() {} });

const tool = (code, over = {}) => ({
  description: '',
  inputSchema: {},
  dependencies: {},
  executeCode: String(code),
  sandboxConfig: { provider: 'native', runtime: 'node22', timeout: PATIENCE_MS, vcpus: 4, ...over },
});

/** Runs a function; its result or error, and what it used. */
async function call(options, code, over) {
  const executor = new NativeSandboxExecutor(options);
  let usage;
  const used = new Promise((done) => {
    usage = done;
  });
  const answer = await executor
    .executeFunctionTool('t', {}, tool(code, over), { onUsage: usage })
    .catch((error) => error);
  return { answer, usage: answer instanceof Error ? undefined : await used };
}

const hostGroup = () => readdirSync(delegated).find((name) => name.startsWith('nse-'));
const groups = () => readdirSync(join(delegated, hostGroup())).filter((name) => name.startsWith('call-'));
/** What one of its files says; nothing once it is gone. */
function text(group, file) {
  try {
    return readFileSync(join(delegated, hostGroup(), group, file), 'utf8').trim();
  } catch {
    return undefined;
  }
}

async function until(condition, what) {
  for (const end = Date.now() + PATIENCE_MS; !(await condition()); await delay(100)) {
    assert.ok(Date.now() < end, `not in time: ${what}`);
  }
}

/** The group that a function says it is in. */
const WHERE = `() => require('fs').readFileSync('/proc/self/cgroup', 'utf8').trim()`;

async function step(name, act) {
  const began = Date.now();
  await act();
  console.log(`ok ${name} (${Date.now() - began} ms)`);
}

await step('the layer is in force', async () => {
  // What a dead server has left.
  mkdirSync(join(delegated, 'nse-1-dead/call-1'), { recursive: true });
  const { layers, limits, tier } = await isolationReport();
  const layer = layers.find(({ name }) => name === 'controlGroup');
  console.log(tier, JSON.stringify(layer));
  assert.equal(layer.inForce, true);
  assert.equal(limits.find(({ option }) => option === 'cpus').inForce, true);
  await until(() => !existsSync(join(delegated, 'nse-1-dead')), 'it is swept');
});

for (const start of RUNGS) {
  await step(`${start}: a call has a group of its own, with its limits`, async () => {
    const seen = new Set();
    for (let round = 0; round < 2; round++) {
      const { answer, usage } = await call({ start, memoryMb: 100, nativeMemoryMb: 50, maxProcesses: 4 }, WHERE);
      assert.match(String(answer), /^0::.*\/nse-[^/]+\/call-\d+$/, answer?.message);
      seen.add(answer);
      assert.ok(usage.memoryPeakBytes > MIB, `${usage.memoryPeakBytes} bytes`);
      assert.ok(usage.cpuMs > 0);
    }
    assert.equal(seen.size, 2);
    const held = call(
      { start, memoryMb: 100, nativeMemoryMb: 50, maxProcesses: 4, cpus: 0.5 },
      `() => new Promise((done) => setTimeout(done, 3000, require('fs').readFileSync('/proc/self/cgroup', 'utf8').trim()))`
    );
    const limited = () => groups().filter((group) => text(group, 'cpu.max') === '50000 100000');
    const seenLimited = new Set();
    let over = false;
    held.finally(() => {
      over = true;
    });
    await until(() => {
      for (const group of limited()) {
        const said = ['memory.max', 'memory.oom.group', 'pids.max'].map((file) => text(group, file));
        // One that is just being made, or removed, says less.
        if (said.every((one) => one !== undefined && one !== 'max' && one !== '0')) {
          assert.deepEqual(said, [String(406 * MIB), '1', '320']);
          seenLimited.add(group);
        }
      }
      return over;
    }, 'its end');
    const { answer } = await held;
    assert.ok(seenLimited.has(answer.split('/').at(-1)), `${answer} is one of ${[...seenLimited]}`);
  });

  await step(`${start}: a call has no way to any group`, async () => {
    const { answer } = await call(
      { start },
      `() => { const fs = require('fs'); const attempt = (act) => { try { act(); return 'done' } catch (error) { return error.code } };
        const own = fs.readFileSync('/proc/self/cgroup', 'utf8').trim().slice(3), at = '/sys/fs/cgroup' + own;
        return {
          list: attempt(() => fs.readdirSync('${delegated}')),
          leave: attempt(() => fs.writeFileSync('${delegated}/server/cgroup.procs', '0')),
          raise: attempt(() => fs.writeFileSync(at + '/memory.max', 'max')),
          make: attempt(() => fs.mkdirSync(at + '/below')),
          open: fs.readdirSync('/proc/self/fd').filter((fd) => { try { return fs.readlinkSync('/proc/self/fd/' + fd).includes('cgroup') } catch { return false } }).length,
        } }`
    );
    console.log(JSON.stringify(answer));
    for (const what of ['list', 'leave', 'raise', 'make'])
      assert.match(answer[what], /^(EACCES|EPERM|ENOENT|EROFS)$/, what);
    assert.equal(answer.open, 0);
  });

  await step(`${start}: memory that no look from the side sees ends the call`, async () => {
    // Files are in memory here, and charged to who writes them.
    const { answer } = await call(
      { start, memoryMb: 64, nativeMemoryMb: 32 },
      `() => { for (let i = 0; i < 600; i++) require('fs').appendFileSync('x', Buffer.alloc(${MIB}, 1)); return 'written' }`
    );
    assert.equal(answer.code, 'MEMORY_LIMIT', answer.message ?? answer);
    assert.match(answer.message, /all processes of the call together.*reached 352 MB.*raise memoryMb/);
  });

  await step(`${start}: what a call leaves running ends with it, and its group goes`, async () => {
    const { answer } = await call(
      { start, lingerMs: 0 },
      `() => { const { spawn } = require('child_process');
        for (let i = 0; i < 5; i++) spawn('/bin/sh', ['-c', 'trap "" TERM; while :; do /bin/sleep 1000 & done & wait'], { detached: true, stdio: 'ignore' }).unref();
        return require('fs').readFileSync('/proc/self/cgroup', 'utf8').trim().split('/').at(-1) }`
    );
    if (answer instanceof Error) assert.equal(answer.code, 'PROCESS_LIMIT', answer.message);
    else await until(() => !groups().includes(answer), 'its group is gone');
  });
}

await step('processors are limited', async () => {
  // Half a second of a tenth of one.
  const { answer } = await call(
    { start: 'spawn', cpus: 0.1 },
    `() => { const began = Date.now(), { user } = process.cpuUsage();
      while (process.cpuUsage().user - user < 5e5);
      return Date.now() - began }`
  );
  assert.ok(answer > 2500, `${answer} ms`);
});

await step('too many threads are refused and told', async () => {
  // libuv aborts where it gets no thread.
  const { answer } = await call(
    { start: 'spawn', maxProcesses: 1, nativeMemoryMb: 8192 },
    `async () => { process.env.UV_THREADPOOL_SIZE = '1000'; await require('fs').promises.stat('.'); return 'done' }`
  );
  assert.equal(answer.code, 'PROCESS_LIMIT', answer.message ?? answer);
  assert.match(answer.message, /limit is 1; start fewer, or raise maxProcesses/);
});

await step('a host’s group that somebody removes is made again', async () => {
  await new NativeSandboxExecutor().cleanup();
  await until(() => groups().length === 0, 'all groups of calls go');
  rmdirSync(join(delegated, hostGroup()));
  const { answer } = await call({ start: 'spawn' }, WHERE);
  assert.match(String(answer), /nse-/, answer?.message);
});

await step('a named group is used, and one that cannot be is refused', async () => {
  const { answer } = await call({ cgroupDir: join(delegated, 'server') }, '() => 1');
  assert.equal(answer.code, 'ISOLATION_UNAVAILABLE');
  assert.match(answer.message, /processes are in the control group/);
  const named = join(delegated, 'named');
  mkdirSync(named);
  const found = await call({ cgroupDir: named }, WHERE);
  assert.match(String(found.answer), /\/named\/nse-/, found.answer?.message);
});

await step('nothing is left', async () => {
  await shutdown({ deadlineMs: 5000 });
  assert.equal(hostGroup(), undefined);
  rmdirSync(join(delegated, 'named'));
  // This process can move where it could not if the groups were in the way.
  writeFileSync(join(delegated, 'server/cgroup.procs'), String(process.pid));
});
clearInterval(alive);
