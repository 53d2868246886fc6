// The ways by which JavaScript is left behind: whatever the vehicle, the same walls.

const from = 'confined';
const layer = 'files';

export default [
  {
    id: 'vehicles/child',
    what: 'has a program of the system read a secret',
    attempt: (world) => require('node:child_process').execFileSync('cat', [world.readableFile]).toString(),
  },
  {
    id: 'vehicles/shell',
    what: 'has a shell read it',
    attempt: (world) => require('node:child_process').execSync(`cat '${world.readableFile}'`).toString(),
  },
  {
    id: 'vehicles/eval-child',
    what: 'has a Node with --eval read it',
    attempt: (world) => {
      const code = 'process.stdout.write(require("fs").readFileSync(process.argv[1]))';
      return require('node:child_process')
        .execFileSync(process.execPath, ['--eval', code, world.readableFile])
        .toString();
    },
  },
  {
    id: 'vehicles/clean-child',
    what: 'has a child read it that was given no environment, in a session of its own',
    attempt: (world) =>
      new Promise((done, fail) => {
        const { spawn } = require('node:child_process');
        const child = spawn('/bin/cat', [world.readableFile], { env: {}, detached: true, cwd: '/' });
        let text = '';
        child.stdout.setEncoding('utf8').on('data', (more) => {
          text += more;
        });
        child.on('error', fail).on('close', () => done(text));
      }),
  },
  {
    id: 'vehicles/thread',
    what: 'reads it in a thread',
    attempt: (world) =>
      new Promise((done, fail) => {
        const { Worker } = require('node:worker_threads');
        const code =
          'const w = require("worker_threads"); w.parentPort.postMessage(require("fs").readFileSync(w.workerData, "utf8"))';
        new Worker(code, { eval: true, workerData: world.readableFile }).on('message', done).on('error', fail);
      }),
  },
  {
    id: 'vehicles/thread-pool',
    what: "reads it in a thread of Node's pool",
    attempt: async (world) => await require('node:fs').promises.readFile(world.readableFile, 'utf8'),
  },
  {
    id: 'vehicles/fresh-context',
    what: 'reads it from a context whose globals are new',
    attempt: (world) => {
      const fresh = require('node:vm').runInNewContext('this.constructor.constructor("return process")()', {});
      return (fresh ?? process).getBuiltinModule('fs').readFileSync(world.readableFile, 'utf8');
    },
  },
  {
    id: 'vehicles/binding',
    what: 'reads it by process.binding',
    attempt: (world) => {
      process.removeAllListeners('warning');
      const binding = process.binding('fs');
      const fd = binding.open(world.readableFile, 0, 0o600);
      const bytes = Buffer.alloc(200);
      return bytes.toString('latin1', 0, binding.read(fd, bytes, 0, 200, -1));
    },
  },
  {
    id: 'vehicles/own-program',
    what: 'opens it from a program that it wrote itself, byte by byte',
    attempt: (world, { syscalls }) => syscalls([['open', world.readableFile, 0]]),
    arch: 'x64',
    escaped: ({ value }) => value?.[0] >= 0 && 'the file is open',
  },
  {
    id: 'vehicles/own-addon',
    what: 'opens it from a native addon that it wrote itself, inside its own process',
    arch: 'x64',
    attempt: (world, { addon }) => {
      require('node:fs').writeFileSync('own.node', addon(world.readableFile, `${process.cwd()}/told`));
      try {
        process.dlopen({ exports: {} }, `${process.cwd()}/own.node`);
      } catch (error) {
        // It is no real addon: loaded, it acts, and is then refused.
        if (!/did not self-register/.test(error.message)) throw error;
      }
      return require('node:fs').readFileSync('told').readInt32LE(0);
    },
    escaped: ({ value }) => value >= 0 && 'the file is open',
  },
  {
    id: 'vehicles/preload',
    what: 'has a child load a module of the host first, by NODE_OPTIONS',
    attempt: (world) => {
      const env = { ...process.env, NODE_OPTIONS: `--require ${world.secretModule}` };
      const code = 'process.stdout.write(Object.values(require.cache).map((m) => String(m.exports)).join())';
      return require('node:child_process').execFileSync(process.execPath, ['-e', code], { env }).toString();
    },
  },
  {
    id: 'vehicles/dependency',
    what: 'reads it from a package while that is loaded',
    module: (world) => require('node:fs').readFileSync(world.readableFile, 'utf8'),
  },
  {
    id: 'vehicles/dependency-environ',
    what: "reads the host's environment from a package while that is loaded",
    module: (world, { each }) =>
      each(world.hostPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/environ`, 'latin1')),
  },
  {
    id: 'vehicles/dependency-command-line',
    what: "reads the host's command line from a package while that is loaded",
    from: 'isolated',
    layer: 'pidNamespace',
    module: (world, { each }) =>
      each(world.hostPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/cmdline`, 'latin1')),
    escaped: ({ text }) => text.includes('"gave":') && 'the command line is read',
  },
  {
    id: 'vehicles/dependency-command-lines',
    what: 'reads the command lines of all processes from a package while that is loaded',
    from: 'isolated',
    layer: 'pidNamespace',
    module: () => {
      const fs = require('node:fs');
      const pids = fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name));
      return pids.map((pid) => {
        try {
          return fs.readFileSync(`/proc/${pid}/cmdline`, 'latin1').replaceAll('\0', ' ');
        } catch (error) {
          return error.code;
        }
      });
    },
    escaped: ({ text }) => text.includes('escapes/server.mjs') && 'the command line of the host is among them',
  },
  {
    id: 'vehicles/dependency-trees',
    what: "reads another tenant's package from a package while that is loaded",
    module: (world) =>
      require('node:fs').readFileSync(`${world.strangerTree}/tree/node_modules/private-package/index.js`, 'utf8'),
  },
  {
    id: 'vehicles/dependency-child',
    what: 'has a child, started while a package is loaded, read it',
    module: (world) => require('node:child_process').execFileSync('cat', [world.readableFile]).toString(),
  },
  {
    id: 'vehicles/install-script',
    what: 'reads it from an install script',
    script: (world) => require('node:fs').readFileSync(world.readableFile, 'utf8'),
  },
].map((one) => ({ from, layer, ...one }));
