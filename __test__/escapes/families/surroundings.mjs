// What a process gets from the one that starts it: environment and descriptors.

const from = 'base';

export default [
  {
    id: 'surroundings/environment',
    what: "finds the host's secrets in its environment",
    layer: 'environment',
    attempt: () => ({ ...process.env }),
  },
  {
    id: 'surroundings/start-environment',
    what: 'finds them in the environment that it was started with',
    layer: 'environment',
    attempt: () => require('node:fs').readFileSync('/proc/self/environ', 'latin1'),
  },
  {
    id: 'surroundings/child-environment',
    what: 'finds them in the environment of a child',
    layer: 'environment',
    attempt: () => require('node:child_process').execFileSync('env').toString(),
  },
  {
    id: 'surroundings/thread-environment',
    what: 'finds them in the environment of a thread',
    layer: 'environment',
    attempt: () =>
      new Promise((done, fail) => {
        const { Worker, SHARE_ENV } = require('node:worker_threads');
        const code = 'require("worker_threads").parentPort.postMessage({ ...process.env })';
        new Worker(code, { eval: true, env: SHARE_ENV }).on('message', done).on('error', fail);
      }),
  },
  {
    id: 'surroundings/report',
    what: "finds them in Node's diagnostic report",
    layer: 'environment',
    attempt: () => process.report.getReport(),
  },
  {
    id: 'surroundings/install-environment',
    what: 'finds them in an install script',
    layer: 'environment',
    script: () => ({ ...process.env }),
  },
  {
    id: 'surroundings/descriptor',
    what: 'reads a file that the host left open for its children',
    layer: 'descriptors',
    attempt: (world) => {
      const bytes = Buffer.alloc(200);
      return bytes.toString('latin1', 0, require('node:fs').readSync(world.fd, bytes, 0, 200, 0));
    },
  },
  {
    id: 'surroundings/descriptors',
    what: 'reads whatever it has open',
    layer: 'descriptors',
    attempt: (_world, { each }) => {
      const fs = require('node:fs');
      const files = fs.readdirSync('/proc/self/fd').filter((fd) => {
        try {
          return fs.fstatSync(Number(fd)).isFile();
        } catch {
          return false;
        }
      });
      return each(files, (fd) => {
        const bytes = Buffer.alloc(200);
        return bytes.toString('latin1', 0, fs.readSync(Number(fd), bytes, 0, 200, 0));
      });
    },
  },
  {
    id: 'surroundings/child-descriptor',
    what: 'has a child read it',
    layer: 'descriptors',
    attempt: (world) =>
      require('node:child_process')
        .execFileSync('cat', [], { stdio: [world.fd, 'pipe', 'ignore'] })
        .toString(),
  },
  {
    id: 'surroundings/install-descriptor',
    what: 'reads it in an install script',
    layer: 'descriptors',
    script: (world) => {
      const bytes = Buffer.alloc(200);
      return bytes.toString('latin1', 0, require('node:fs').readSync(world.fd, bytes, 0, 200, 0));
    },
  },
].map((one) => ({ from, ...one }));
