// The limits of a call, each with a bomb of bounded size, on every rung: its own code, its own words.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { appears, gone, LINUX, newMarker, ownWorld, rejection, surface, tool } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const FORKS = LINUX && [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
const RUNGS = ['spawn', 'standby', ...(FORKS ? ['zygote'] : [])];
const options = { skip: !LINUX && 'the limits are the kernel’s of Linux', timeout: 120_000 };

/** [what, options, body, code, words]; none goes on for ever where its limit does not hold. */
const BOMBS = [
  [
    'heap',
    { memoryMb: 64 },
    `const kept = []; for (let i = 0; i < 4000; i++) kept.push(new Array(1e5).fill({ i })); return kept.length`,
    'MEMORY_LIMIT',
    /heap out of memory, the limit is 64 MB.*memoryMb/s,
  ],
  [
    'buffers',
    { memoryMb: 64, nativeMemoryMb: 64 },
    `const kept = []; for (let i = 0; i < 3000; i++) kept.push(Buffer.alloc(1 << 20, 1));
     await new Promise((done) => setTimeout(done, 2000)); return kept.length`,
    'MEMORY_LIMIT',
    /nativeMemoryMb/,
  ],
  [
    'WebAssembly',
    { memoryMb: 64, nativeMemoryMb: 64 },
    `const memory = new WebAssembly.Memory({ initial: 1 });
     for (let i = 0; i < 40; i++) { const at = memory.grow(1000) * 65536; new Uint8Array(memory.buffer, at).fill(1); }
     await new Promise((done) => setTimeout(done, 2000)); return 1`,
    'MEMORY_LIMIT',
    /nativeMemoryMb/,
  ],
  [
    'CPU time',
    { cpuSeconds: 1 },
    `const end = Date.now() + 15000; while (Date.now() < end); return 1`,
    'CPU_LIMIT',
    /1 s.*cpuSeconds/,
  ],
  [
    'CPU time with the signal handled',
    { cpuSeconds: 1 },
    `process.on('SIGXCPU', () => {}); const end = Date.now() + 15000; while (Date.now() < end); return 1`,
    'CPU_LIMIT',
    /1 s.*cpuSeconds/,
  ],
  [
    'open files',
    { openFiles: 80 },
    `const fs = require('fs'); for (let i = 0; i < 200; i++) fs.openSync('/dev/null'); return 1`,
    'TOOL_ERROR',
    /EMFILE.*the limit is 80.*openFiles/s,
  ],
  [
    'the size of a file',
    { fileSizeMb: 4 },
    `const fs = require('fs'); const fd = fs.openSync('f', 'w'); const mib = Buffer.alloc(1 << 20);
     for (let i = 0; i < 16; i++) fs.writeSync(fd, mib); return 1`,
    'DISK_LIMIT',
    /EFBIG.*4 MB.*fileSizeMb/s,
  ],
  [
    'disk',
    { diskMb: 8 },
    `const fs = require('fs'); const mib = Buffer.alloc(1 << 20, 1);
     for (let i = 0; i < 32; i++) fs.writeFileSync((i % 2 ? process.env.TMPDIR + '/' : './') + i, mib);
     await new Promise((done) => setTimeout(done, 10000)); return 1`,
    'DISK_LIMIT',
    /8 MB.*diskMb/,
  ],
  [
    'processes',
    { maxProcesses: 8 },
    `const { spawn } = require('child_process'); for (let i = 0; i < 16; i++) spawn('sleep', ['20']);
     await new Promise((done) => setTimeout(done, 10000)); return 1`,
    'PROCESS_LIMIT',
    /limit is 8.*maxProcesses/,
  ],
];

/** What an ordinary tool does must not come near the defaults. */
const ORDINARY = {
  'worker threads': `const { Worker } = require('worker_threads');
    return (await Promise.all(Array.from({ length: 8 }, () => new Promise((done, fail) => new Worker('require("worker_threads").parentPort.postMessage(new Array(1e6).fill(1).length)', { eval: true }).on('message', done).on('error', fail))))).length`,
  'large buffers': `const kept = []; for (let i = 0; i < 400; i++) kept.push(Buffer.alloc(1 << 20, i)); return kept.length`,
  'WebAssembly with a large reservation': `const kept = []; for (let i = 0; i < 4; i++) kept.push(new WebAssembly.Memory({ initial: 100, maximum: 65536 }));
    kept[0].grow(4000); return kept.length`,
  'a large heap': `const kept = []; for (let i = 0; i < 300; i++) kept.push(new Array(1e5).fill({ i })); return kept.length`,
  'children with memory of their own': `const { execFileSync } = require('child_process');
    return Number(execFileSync(process.execPath, ['-p', 'Buffer.alloc(1 << 28).length']))`,
  'many files': `const fs = require('fs'); for (let i = 0; i < 3000; i++) fs.writeFileSync('f' + i, 'x'); return fs.readdirSync('.').length`,
  'a large file': `require('fs').writeFileSync('f', Buffer.alloc(200 << 20)); await new Promise((done) => setTimeout(done, 300)); return 1`,
};

for (const start of RUNGS) {
  test(`limits on the rung ${start}`, options, async (t) => {
    const { SandboxExecutorFactory: Factory } = surface();
    const run = (settings, body) =>
      new Factory({ start, ...settings }).executeFunctionTool(
        't',
        {},
        tool(`async () => { ${body} }`, { sandbox: { timeout: 30_000 } })
      );
    for (const [what, settings, body, code, words] of BOMBS) {
      await t.test(what, async () => {
        const error = await rejection(run(settings, body));
        assert.equal(error.code, code, error.message);
        assert.match(error.message, words);
      });
    }
    for (const [what, body] of Object.entries(ORDINARY)) {
      await t.test(`within the defaults: ${what}`, async () => assert.ok((await run({}, body)) >= 1));
    }
  });
}

test('a fork bomb is found and ended, all of it', options, async () => {
  const marker = newMarker();
  const factory = new (surface().SandboxExecutorFactory)({ maxProcesses: 20 });
  // Doubles with each generation, five of them; each of the last ones lives for 30 seconds.
  const script = `depth=$1; if [ $depth -gt 0 ]; then sh "$0" $((depth - 1)) ${marker} & sh "$0" $((depth - 1)) ${marker} & wait; else sleep 30; fi`;
  const body = `const fs = require('fs'); fs.writeFileSync('bomb', ${JSON.stringify(script)});
    require('child_process').spawn('sh', ['bomb', '5', '${marker}']); await new Promise((done) => setTimeout(done, 20000)); return 1`;
  const error = await rejection(
    factory.executeFunctionTool('t', {}, tool(`async () => { ${body} }`, { sandbox: { timeout: 25_000 } }))
  );
  assert.equal(error.code, 'PROCESS_LIMIT', error.message);
  await gone(marker);
});

test('what a call leaves running is held to its limits, too', options, async () => {
  const marker = newMarker();
  const factory = new (surface().SandboxExecutorFactory)({ diskMb: 4, lingerMs: 20_000 });
  const script = `setInterval(() => require("fs").appendFileSync("x", Buffer.alloc(1 << 20, 1)), 200) // ${marker}`;
  const body = `require('child_process').spawn(process.execPath, ['-e', ${JSON.stringify(script)}], { stdio: 'ignore' }).unref(); setInterval(() => {}, 1000); return 1`;
  assert.equal(
    await factory.executeFunctionTool('t', {}, tool(`() => { ${body} }`, { sandbox: { timeout: 30_000 } })),
    1
  );
  await appears(marker);
  await gone(marker, 10_000);
});

test('the report tells which limits are enforced, and by whom', async () => {
  const { limits } = await surface().isolationReport();
  assert.deepEqual(
    limits.map(({ option }) => option),
    ['memoryMb', 'nativeMemoryMb', 'cpuSeconds', 'cpus', 'openFiles', 'fileSizeMb', 'diskMb', 'maxProcesses']
  );
  for (const { by } of limits) assert.match(by, /./);
  assert.match(limits.at(-1).by, /a call can exceed it between two looks.*RLIMIT_NPROC/);
});
