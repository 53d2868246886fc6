// Using up the machine. Every bomb has an end of its own, as nobody promises that a layer stops it everywhere: at most
// 300 processes, 512 MB, 200 MB of disk. What a limit is about is whether the end was reached.

const reached = ({ value }) => value === 'all of it' && 'all of it was to be had';
/** Of what is about an option that the package may not have yet. */
const optional = (option, also) => (known) =>
  !known.options.has(option) ? `this package has no option ${option}` : also?.(known);
const memory = ['MEMORY_LIMIT', 'KILLED', 'TOOL_ERROR', 'EXITED'];

export default [
  {
    id: 'bombs/heap',
    what: 'keeps 300 MB of objects, where 64 MB are allowed',
    from: 'base',
    layer: 'heap',
    options: { memoryMb: 64 },
    attempt: () => {
      const kept = [];
      for (let at = 0; at < 300; at++) kept.push(new Array(131_072).fill(at));
      return kept.length === 300 ? 'all of it' : '';
    },
    escaped: reached,
    codes: memory,
  },
  {
    id: 'bombs/strings',
    what: 'keeps 300 MB of text, where 64 MB are allowed',
    from: 'base',
    layer: 'heap',
    options: { memoryMb: 64 },
    attempt: () => {
      const kept = [];
      for (let at = 0; at < 300; at++) kept.push(JSON.parse(`"${String(at).padEnd(1_048_576, 'x')}"`));
      return kept.length === 300 ? 'all of it' : '';
    },
    escaped: reached,
    codes: memory,
  },
  {
    id: 'bombs/thread-heap',
    what: 'keeps 300 MB of objects in a thread with a limit of its own choice, where 64 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    attempt: () =>
      new Promise((done, fail) => {
        const code = `const kept = []; for (let at = 0; at < 300; at++) kept.push(new Array(131072).fill(at));
          require('node:worker_threads').parentPort.postMessage('all of it')`;
        const { Worker } = require('node:worker_threads');
        new Worker(code, { eval: true, resourceLimits: { maxOldGenerationSizeMb: 512 } })
          .on('message', done)
          .on('error', fail);
      }),
    escaped: reached,
  },
  {
    id: 'bombs/buffers',
    what: 'keeps 512 MB of buffers, where 64 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    attempt: () => {
      const kept = [];
      for (let at = 0; at < 64; at++) kept.push(Buffer.alloc(8 * 1_048_576, 1));
      return kept.length === 64 ? 'all of it' : '';
    },
    escaped: reached,
  },
  {
    id: 'bombs/webassembly',
    what: 'keeps 512 MB of WebAssembly memory, where 64 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    attempt: () => {
      const wasm = new WebAssembly.Memory({ initial: 8192 });
      new Uint8Array(wasm.buffer).fill(1);
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/shared-buffers',
    what: 'keeps 512 MB of shared buffers, where 64 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    attempt: () => {
      new Uint8Array(new SharedArrayBuffer(512 * 1_048_576)).fill(1);
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/memory-of-children',
    what: 'has eight children keep 64 MB each, where 64 MB are allowed',
    from: 'isolated',
    layer: 'controlGroup',
    options: { memoryMb: 64 },
    attempt: (world) => {
      const code = 'const kept = Buffer.alloc(64 * 1048576, 1); console.log(kept.length); process.stdin.resume()';
      const { spawn } = require('node:child_process');
      const children = Array.from({ length: 8 }, () => spawn(process.execPath, ['-e', code, world.marker]));
      return Promise.all(
        children.map(
          (child) => new Promise((done, fail) => child.on('exit', fail).on('error', fail).stdout.on('data', done))
        )
      ).then(() => {
        for (const child of children) child.kill('SIGKILL');
        return 'all of it';
      });
    },
    escaped: reached,
  },
  {
    id: 'bombs/mapped-only',
    what: 'keeps 300 MB in a file of memory that only a mapping leads to, where 128 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    arch: 'x64',
    attempt: (_world, { syscalls }) => {
      const bytes = 300 * 1_048_576;
      const results = syscalls([
        ['memfd_create', 'kept', 0],
        ['fallocate', { result: 0 }, 0, 0, bytes],
        // PROT_READ, MAP_SHARED
        ['mmap', 0, bytes, 1, 1, { result: 0 }, 0],
        ['close', { result: 0 }],
        ['nanosleep', { words: [2, 0] }, 0],
      ]);
      return Array.isArray(results) && results.every((one) => one >= 0) ? 'all of it' : results;
    },
    escaped: reached,
  },
  {
    id: 'bombs/page-tables',
    what: 'has the kernel keep 300 MB of page tables, where 128 MB are allowed',
    from: 'base',
    layer: 'memory',
    options: { memoryMb: 64, nativeMemoryMb: 64 },
    needs: optional('nativeMemoryMb'),
    arch: 'x64',
    attempt: (_world, { syscalls }) => {
      // Reads one byte in each 2 MiB, of which each takes a table of 4 KiB: 1024 by one call.
      const [start, step, byCall, calls] = [0x1000000000, 2 * 1_048_576, 1024, 75];
      const rowOf = (call) => ({
        words: Array.from({ length: 2 * byCall }, (_, at) => (at % 2 ? 1 : start + (call * byCall + at / 2) * step)),
      });
      require('node:fs').writeFileSync('touched', '');
      const results = syscalls([
        ['open', 'touched', 2],
        // PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE
        ['mmap', start, step * byCall * calls, 1, 0x4032, -1, 0],
        // MADV_NOHUGEPAGE
        ['madvise', start, step * byCall * calls, 15],
        ...Array.from({ length: calls }, (_, call) => ['writev', { result: 0 }, rowOf(call), byCall]),
        ['nanosleep', { words: [2, 0] }, 0],
      ]);
      return Array.isArray(results) && results.every((one) => one >= 0) ? 'all of it' : results;
    },
    escaped: reached,
  },
  {
    id: 'bombs/shared-memory-file',
    what: 'keeps 64 MB in /dev/shm, where there is room for 16',
    from: 'confined',
    layer: 'files',
    options: { diskMb: 16 },
    needs: ({ exists }) => !exists('/dev/shm') && 'there is no /dev/shm',
    attempt: (world) => {
      const fs = require('node:fs');
      const path = `/dev/shm/${world.marker}`;
      try {
        for (let at = 0; at < 64; at++) fs.appendFileSync(path, Buffer.alloc(1_048_576, 1));
        return 'all of it';
      } finally {
        fs.rmSync(path, { force: true });
      }
    },
    escaped: reached,
  },
  {
    id: 'bombs/processor',
    what: 'never yields',
    from: 'base',
    layer: 'time',
    timeoutMs: 800,
    attempt: (world) => {
      process.title = world.marker;
      process.on('SIGTERM', () => {});
      const end = Date.now() + 20_000;
      while (Date.now() < end);
      return 'all of it';
    },
    control: () => {
      const end = Date.now() + 1500;
      while (Date.now() < end);
      return 'all of it';
    },
    escaped: async (outcome, stage, world) =>
      reached(outcome) || (stage.real && (await stage.processesLast(world.marker)) && 'it goes on'),
  },
  {
    id: 'bombs/processor-of-children',
    what: 'has eight children that never yield, and answers at once',
    from: 'base',
    layer: 'treeKill',
    timeoutMs: 3000,
    attempt: async (world) => {
      const code = 'process.on("SIGTERM", () => {}); const end = Date.now() + 30000; while (Date.now() < end);';
      const { spawn } = require('node:child_process');
      const children = Array.from({ length: 8 }, () =>
        spawn(process.execPath, ['-e', code, world.marker], { detached: true, stdio: 'ignore' })
      );
      await Promise.all(children.map((child) => new Promise((done) => child.once('spawn', done))));
      for (const child of children) child.unref();
    },
    escaped: (_outcome, stage, world) => stage.processesLast(world.marker).then((go) => go && 'they go on'),
  },
  {
    id: 'bombs/processor-of-threads',
    what: 'has eight threads that never yield',
    from: 'base',
    layer: 'time',
    timeoutMs: 1500,
    attempt: (world) => {
      process.title = world.marker;
      const { Worker } = require('node:worker_threads');
      for (let at = 0; at < 8; at++)
        new Worker('const end = Date.now() + 20000; while (Date.now() < end);', { eval: true });
      return new Promise((done) => setTimeout(done, 15_000, 'all of it'));
    },
    control: () => {
      const { Worker } = require('node:worker_threads');
      const code = 'const end = Date.now() + 500; while (Date.now() < end);';
      const workers = Array.from({ length: 8 }, () => new Worker(code, { eval: true }));
      return Promise.all(workers.map((worker) => new Promise((done) => worker.on('exit', done)))).then(
        () => 'all of it'
      );
    },
    escaped: async (outcome, stage, world) =>
      reached(outcome) || (stage.real && (await stage.processesLast(world.marker)) && 'they go on'),
  },
  {
    id: 'bombs/regular-expression',
    what: 'runs a regular expression that takes for ever',
    from: 'base',
    layer: 'time',
    timeoutMs: 800,
    attempt: (world) => {
      process.title = world.marker;
      return /^(a+)+$/.test(`${'a'.repeat(34)}b`) ? '' : 'all of it';
    },
    control: () => (/^(a+)+$/.test(`${'a'.repeat(22)}b`) ? '' : 'all of it'),
    escaped: async (outcome, stage, world) =>
      reached(outcome) || (stage.real && (await stage.processesLast(world.marker)) && 'it goes on'),
  },
  {
    id: 'bombs/wait',
    what: 'waits in the kernel for what never comes',
    from: 'base',
    layer: 'time',
    timeoutMs: 800,
    attempt: (world) => {
      process.title = world.marker;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20_000);
      return 'all of it';
    },
    control: () => {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1200);
      return 'all of it';
    },
    escaped: async (outcome, stage, world) =>
      reached(outcome) || (stage.real && (await stage.processesLast(world.marker)) && 'it goes on'),
  },
  {
    id: 'bombs/fork',
    what: 'starts 250 processes that stay',
    from: 'base',
    layer: 'treeKill',
    attempt: (world) =>
      new Promise((done) => {
        const script =
          'trap "" TERM HUP; i=0; while [ $i -lt 250 ]; do (while :; do sleep 5; done) & i=$((i+1)); done; exit 0';
        require('node:child_process')
          .spawn('sh', ['-c', script, world.marker], { stdio: 'ignore', detached: true })
          .on('close', done);
      }),
    escaped: (_outcome, stage, world) => stage.processesLast(world.marker).then((stay) => stay && 'they stay'),
  },
  {
    id: 'bombs/processes',
    what: 'has 250 processes at once',
    from: 'base',
    layer: 'process-limit',
    options: { maxProcesses: 64 },
    needs: optional('maxProcesses'),
    attempt: (world) =>
      new Promise((done) => {
        const script =
          'i=0; while [ $i -lt 250 ]; do sleep 5 & i=$((i+1)); done; sleep 2; echo all of it; kill $(jobs -p) 2>/dev/null; exit 0';
        let text = '';
        const child = require('node:child_process').spawn('sh', ['-c', script, world.marker], {
          stdio: ['ignore', 'pipe', 'ignore'],
        });
        child.stdout.setEncoding('utf8').on('data', (more) => {
          text += more;
        });
        child.on('close', () => done(text.trim()));
      }),
    escaped: reached,
  },
  {
    id: 'bombs/disk',
    what: 'writes 200 MB into its folder, where 16 MB are allowed',
    from: 'base',
    layer: 'disk-limit',
    options: { diskMb: 16 },
    needs: optional('diskMb'),
    // It is looked at now and then: what has to be stopped is that it stays.
    attempt: async () => {
      const fs = require('node:fs');
      for (let at = 0; at < 200; at++) fs.writeFileSync(`f${at}`, Buffer.alloc(1e6, 1));
      await new Promise((done) => setTimeout(done, 2000));
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/disk-at-once',
    what: 'writes 200 MB into its folder without a pause, where 16 MB are allowed',
    from: 'isolated',
    layer: 'diskQuota',
    options: { diskMb: 16 },
    needs: optional('diskMb'),
    attempt: () => {
      const fs = require('node:fs');
      const fd = fs.openSync('large', 'w');
      for (let at = 0; at < 200; at++) fs.writeSync(fd, Buffer.alloc(1e6, 1));
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/files-at-once',
    what: 'makes 900,000 files in its folder without a pause, where 100,000 are allowed',
    from: 'isolated',
    layer: 'diskQuota',
    attempt: () => {
      const fs = require('node:fs');
      for (let at = 0; at < 900_000; at++) fs.closeSync(fs.openSync(`f${at}`, 'w'));
      return 'all of it';
    },
    control: () => {
      const fs = require('node:fs');
      for (let at = 0; at < 2000; at++) fs.closeSync(fs.openSync(`f${at}`, 'w'));
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/file',
    what: 'writes a file of 200 MB, where 16 MB are allowed',
    from: 'base',
    layer: 'disk-limit',
    options: { fileSizeMb: 16 },
    needs: optional('fileSizeMb'),
    attempt: () => {
      const fs = require('node:fs');
      const fd = fs.openSync('large', 'w');
      for (let at = 0; at < 200; at++) fs.writeSync(fd, Buffer.alloc(1e6, 1));
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/descriptors',
    what: 'opens 2000 files, where 256 are allowed',
    from: 'base',
    layer: 'descriptor-limit',
    options: { openFiles: 256 },
    needs: optional('openFiles', ({ openFiles }) => openFiles < 3000 && 'the user may not open as many anyway'),
    attempt: () => {
      for (let at = 0; at < 2000; at++) require('node:fs').openSync('/dev/null', 'r');
      return 'all of it';
    },
    escaped: reached,
  },
  {
    id: 'bombs/core',
    what: 'leaves its memory on disk by crashing',
    from: 'base',
    layer: 'core-limit',
    needs: optional('nativeMemoryMb'),
    attempt: () => {
      const limits = require('node:fs').readFileSync('/proc/self/limits', 'utf8');
      return /Max core file size +(\S+) +(\S+)/.exec(limits).slice(1);
    },
    control: () => ['unlimited', 'unlimited'],
    escaped: ({ value }) => value?.some((limit) => limit !== '0') && 'a core file may be written',
  },
];
