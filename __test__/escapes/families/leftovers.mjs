// What should end with the call, and tries not to: processes, files, objects of the kernel.

const layer = 'treeKill';
const from = 'base';

const stays = (_outcome, stage, world) => stage.processesLast(world.marker).then((stay) => stay && 'a process stays');
const filesStay = ({ value }, stage) =>
  typeof value === 'string' && stage.lasts(() => stage.exists(value)).then((stay) => stay && 'files stay');

export default [
  {
    id: 'leftovers/child',
    what: 'leaves a child that holds its pipes',
    attempt: (world) => {
      const child = require('node:child_process').spawn(
        process.execPath,
        ['-e', 'setTimeout(() => {}, 60000)', world.marker],
        {
          stdio: 'inherit',
        }
      );
      child.unref();
      return new Promise((done) => child.once('spawn', done));
    },
    escaped: stays,
  },
  {
    id: 'leftovers/daemon',
    what: 'leaves a child in a session of its own that ignores signals',
    attempt: (world) => {
      const code =
        'for (const s of ["SIGTERM", "SIGHUP", "SIGINT"]) process.on(s, () => {}); setTimeout(() => {}, 60000)';
      const child = require('node:child_process').spawn(process.execPath, ['-e', code, world.marker], {
        detached: true,
        stdio: 'ignore',
      });
      child.unref();
      return new Promise((done) => child.once('spawn', done));
    },
    escaped: stays,
  },
  {
    id: 'leftovers/double-fork',
    what: 'leaves a grandchild whose parent is gone',
    attempt: (world) =>
      new Promise((done) => {
        const script = '(trap "" HUP TERM; while :; do sleep 0.2; done) </dev/null >/dev/null 2>&1 & exit 0';
        require('node:child_process')
          .spawn('sh', ['-c', script, world.marker], { stdio: 'ignore', detached: true })
          .on('close', done);
      }),
    escaped: stays,
  },
  {
    id: 'leftovers/stopped',
    what: 'leaves a child that is stopped, and so acts on no signal but one',
    attempt: async (world) => {
      const child = require('node:child_process').spawn(
        process.execPath,
        ['-e', 'setTimeout(() => {}, 60000)', world.marker],
        {
          detached: true,
          stdio: 'ignore',
        }
      );
      child.unref();
      await new Promise((done) => child.once('spawn', done));
      process.kill(child.pid, 'SIGSTOP');
    },
    escaped: stays,
  },
  {
    id: 'leftovers/respawner',
    what: 'leaves processes that start their successor before they end',
    attempt: (world) => {
      const script = 'n=$1; [ "$n" -gt 300 ] && exit 0; sh "$0" $((n+1)) "$2" & sleep 0.05';
      require('node:fs').writeFileSync('again.sh', script);
      const folder = process.cwd();
      const child = require('node:child_process').spawn('sh', [`${folder}/again.sh`, '0', world.marker], {
        detached: true,
        stdio: 'ignore',
      });
      child.unref();
      return new Promise((done) => child.once('spawn', done));
    },
    escaped: stays,
  },
  {
    id: 'leftovers/hidden-program',
    what: 'leaves a program that may be run and not read, which /proc shows to nobody but root',
    needs: ({ root }) => !root && 'nobody could see whether it stays',
    attempt: (world) => {
      const fs = require('node:fs');
      const file = fs.openSync('hidden', 'w', 0o111);
      fs.writeSync(file, fs.readFileSync('/bin/sh'));
      fs.closeSync(file);
      const script = 'trap "" HUP TERM; while :; do sleep 0.2; done';
      const child = require('node:child_process').spawn('./hidden', ['-c', script, world.marker], {
        detached: true,
        stdio: 'ignore',
      });
      child.unref();
      return new Promise((done, fail) => child.once('spawn', done).once('error', fail));
    },
    escaped: stays,
  },
  {
    id: 'leftovers/timer',
    what: 'keeps itself alive after its result',
    attempt: (world) => {
      process.title = world.marker;
      setInterval(() => {}, 1000);
    },
    controlMs: 1500,
    // The control is killed by the suite: that it had to be says that it stays.
    escaped: (outcome, stage, world) => (stage.real ? stays(outcome, stage, world) : outcome.killed && 'it stays'),
  },
  {
    id: 'leftovers/busy-thread',
    what: 'leaves a thread that never yields',
    attempt: (world) => {
      process.title = world.marker;
      process.on('SIGTERM', () => {});
      new (require('node:worker_threads').Worker)('for (;;);', { eval: true });
    },
    controlMs: 1500,
    escaped: (outcome, stage, world) => (stage.real ? stays(outcome, stage, world) : outcome.killed && 'it stays'),
  },
  {
    id: 'leftovers/install-daemon',
    what: 'leaves a process from an install script',
    script: (world) => {
      const child = require('node:child_process').spawn(
        process.execPath,
        ['-e', 'setTimeout(() => {}, 60000)', world.marker],
        {
          detached: true,
          stdio: 'ignore',
        }
      );
      child.unref();
      return new Promise((done) => child.once('spawn', done));
    },
    escaped: stays,
  },
  {
    id: 'leftovers/load-daemon',
    what: 'leaves a process from a package that is loaded',
    module: (world) => {
      const child = require('node:child_process').spawn(
        process.execPath,
        ['-e', 'setTimeout(() => {}, 60000)', world.marker],
        {
          detached: true,
          stdio: 'ignore',
        }
      );
      child.unref();
    },
    escaped: stays,
  },
  {
    id: 'leftovers/load-daemon-of-child',
    what: 'leaves a process from a package that is loaded, by a child that is over by then',
    from: 'isolated',
    layer: 'pidNamespace',
    module: (world) => {
      const left = `['-e', 'setTimeout(() => {}, 60000)', '${world.marker}']`;
      const code = `require('node:child_process').spawn(process.execPath, ${left}, { detached: true, stdio: 'ignore' }).unref()`;
      require('node:child_process').execFileSync(process.execPath, ['-e', code], { stdio: 'ignore' });
    },
    escaped: stays,
  },
  {
    id: 'leftovers/files',
    what: 'leaves files in its folder',
    layer: 'runFolder',
    attempt: () => {
      require('node:fs').writeFileSync('left', 'left');
      return process.cwd();
    },
    escaped: filesStay,
  },
  {
    id: 'leftovers/closed-folders',
    what: 'leaves folders without permissions',
    layer: 'runFolder',
    attempt: () => {
      const fs = require('node:fs');
      fs.mkdirSync('a/b', { recursive: true });
      fs.writeFileSync('a/b/c', '');
      fs.chmodSync('a/b', 0);
      fs.chmodSync('a', 0);
      fs.chmodSync('.', 0);
      return process.cwd();
    },
    escaped: filesStay,
  },
  {
    id: 'leftovers/deep-folders',
    what: 'leaves folders deeper than a path can be long',
    layer: 'runFolder',
    attempt: () => {
      const own = process.cwd();
      const name = 'd'.repeat(200);
      for (let depth = 0; depth < 300; depth++) {
        require('node:fs').mkdirSync(name);
        process.chdir(name);
      }
      process.chdir(own);
      return own;
    },
    escaped: filesStay,
  },
  {
    id: 'leftovers/many-files',
    what: 'leaves 20 000 files',
    layer: 'runFolder',
    attempt: () => {
      for (let at = 0; at < 20_000; at++) require('node:fs').writeFileSync(`f${at}`, '');
      return process.cwd();
    },
    escaped: filesStay,
  },
  {
    id: 'leftovers/large-file',
    what: 'leaves 150 MB',
    layer: 'runFolder',
    attempt: () => {
      const fs = require('node:fs');
      const fd = fs.openSync('large', 'w');
      for (let at = 0; at < 150; at++) fs.writeSync(fd, Buffer.alloc(1e6, 1));
      return process.cwd();
    },
    escaped: filesStay,
  },
  {
    id: 'leftovers/shared-memory-segment',
    what: 'leaves a shared memory segment with the kernel',
    from: 'confined',
    layer: 'systemCalls',
    // IPC_PRIVATE, one page, IPC_CREAT | 0600
    attempt: (_world, { syscalls }) => syscalls([['shmget', 0, 4096, 0o1600]]),
    escaped: ({ value }, stage) => stage.segmentExists(value?.[0]) && 'the segment stays',
    undo: (stage, _world, { value }) => stage.removeSegment(value?.[0]),
  },
  {
    id: 'leftovers/key',
    what: "leaves a key in the kernel's keyring of the user",
    from: 'confined',
    layer: 'systemCalls',
    // KEY_SPEC_USER_KEYRING; unlinked again, as this is about getting there at all
    attempt: (world, { syscalls }) =>
      syscalls([
        ['add_key', 'user', world.marker, 'data', 4, -4],
        ['keyctl', 9, { result: 0 }, -4],
      ]),
    escaped: ({ value }) => value?.[0] > 0 && 'the key is added',
  },
].map((one) => ({ from, layer, ...one }));
