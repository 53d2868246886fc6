// Reading what is not the call's: the host's files and secrets, other calls' folders, other tenants' packages.

const layer = 'files';
const from = 'confined';

export default [
  {
    id: 'files/private',
    what: 'reads a key that only the user of the host may read',
    attempt: (world) => require('node:fs').readFileSync(world.secretFile, 'utf8'),
  },
  {
    id: 'files/readable-by-all',
    what: 'reads a file that everybody on the machine may read',
    attempt: (world) => require('node:fs').readFileSync(world.readableFile, 'utf8'),
  },
  {
    id: 'files/npm-token',
    what: 'reads the token in the npm settings of the user',
    attempt: (world) => require('node:fs').readFileSync(world.npmrc, 'utf8'),
  },
  {
    id: 'files/list-home',
    what: 'lists the home folder',
    attempt: (world) => require('node:fs').readdirSync(world.home),
    escaped: ({ value }) => value?.includes('.npmrc') && 'the home folder is listed',
  },
  {
    id: 'files/through-symlink',
    what: 'reads through a symlink in its own folder',
    attempt: (world) => {
      require('node:fs').symlinkSync(world.readableFile, 'link');
      return require('node:fs').readFileSync('link', 'utf8');
    },
  },
  {
    id: 'files/through-symlinked-folder',
    what: 'reads through a symlink to a folder',
    attempt: (world) => {
      require('node:fs').symlinkSync(world.outside, 'link');
      return require('node:fs').readFileSync('link/readable.txt', 'utf8');
    },
  },
  {
    id: 'files/through-proc-self-root',
    what: 'reads below /proc/self/root',
    attempt: (world) => require('node:fs').readFileSync(`/proc/self/root${world.readableFile}`, 'utf8'),
  },
  {
    id: 'files/through-hard-link',
    what: 'links a file of the host into its own folder and reads it there',
    attempt: (world) => {
      require('node:fs').linkSync(world.readableFile, 'link');
      return require('node:fs').readFileSync('link', 'utf8');
    },
  },
  {
    id: 'files/through-rename',
    what: 'moves a file of the host into its own folder and reads it there',
    attempt: (world) => {
      require('node:fs').renameSync(world.readableFile, 'moved');
      return require('node:fs').readFileSync('moved', 'utf8');
    },
  },
  {
    id: 'files/copy',
    what: 'has the kernel copy a file',
    attempt: (world) => {
      require('node:fs').copyFileSync(world.readableFile, 'copy');
      return require('node:fs').readFileSync('copy', 'utf8');
    },
  },
  {
    id: 'files/by-require',
    what: 'loads a module of the host with require',
    attempt: (world) => require(world.secretModule),
  },
  {
    id: 'files/by-import',
    what: 'loads a module of the host with import',
    attempt: async (world) => (await import(`file://${world.secretModule}`)).default,
  },
  {
    id: 'files/system-accounts',
    what: "reads the system's password hashes",
    needs: ({ root }) => !root && 'only root can read them anywhere',
    attempt: () => require('node:fs').readFileSync('/etc/shadow', 'utf8').slice(0, 5),
    escaped: ({ value }) => value === 'root:' && 'the password hashes are read',
  },
  {
    id: 'files/host-environ',
    what: "reads the host's environment in /proc",
    attempt: (world, { each }) =>
      each(world.hostPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/environ`, 'latin1')),
  },
  {
    id: 'files/parents-environ',
    what: 'reads the environment of all processes above it',
    attempt: (world, { each }) =>
      each([...world.launcherPids, ...world.zygotePids], (pid) => {
        require('node:fs').readFileSync(`/proc/${pid}/environ`, 'latin1');
        return 'read';
      }),
    escaped: ({ text }) => text.includes('"read"') && 'the environment of a process above is read',
  },
  {
    id: 'files/host-cwd',
    what: "reads a file through the host's root in /proc",
    attempt: (world, { each }) =>
      each([...world.hostPids, ...world.launcherPids, ...world.zygotePids, process.ppid], (pid) =>
        require('node:fs').readFileSync(`/proc/${pid}/root${world.readableFile}`, 'utf8')
      ),
  },
  {
    id: 'files/host-descriptor',
    what: "opens a file that the host holds open, through the host's descriptors in /proc",
    attempt: (world, { each }) =>
      each(world.hostPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/fd/${world.fd}`, 'utf8')),
  },
  {
    id: 'files/host-memory',
    what: "opens the host's memory",
    attempt: (world, { each }) =>
      each(world.hostPids, (pid) => {
        require('node:fs').closeSync(require('node:fs').openSync(`/proc/${pid}/mem`, 'r+'));
        return 'opened';
      }),
    escaped: ({ text }) => text.includes('"opened"') && "the host's memory is open",
  },
  {
    id: 'files/host-maps',
    what: 'reads where things lie in the memory of host, launcher and zygote',
    attempt: (world, { each }) =>
      each([...world.hostPids, ...world.launcherPids, ...world.zygotePids], (pid) =>
        require('node:fs').readFileSync(`/proc/${pid}/maps`, 'utf8').length > 0 ? 'mapped' : 'empty'
      ),
    escaped: ({ text }) => text.includes('"mapped"') && 'a memory map is read',
  },
  {
    id: 'files/connections-of-the-machine',
    what: 'reads the connections and the local sockets of the machine in its own entry of /proc',
    attempt: (_world, { each }) =>
      each(['self', 'thread-self', `self/task/${process.pid}`, `${process.pid}`], (entry) => {
        for (const table of ['tcp', 'unix', 'dev']) require('node:fs').readFileSync(`/proc/${entry}/net/${table}`);
        return 'listed';
      }),
    escaped: ({ text }) => text.includes('"listed"') && 'the tables of the network are read',
  },
  {
    id: 'files/sibling-environ',
    what: 'reads the environment of another call',
    uses: ['sibling'],
    attempt: (world, { each }) =>
      each(world.siblingPids, (pid) => {
        require('node:fs').readFileSync(`/proc/${pid}/environ`, 'latin1');
        return 'read';
      }),
    escaped: ({ text }) => text.includes('"read"') && 'the environment of another call is read',
  },
  {
    id: 'files/sibling-memory',
    what: 'opens the memory of another call',
    uses: ['sibling'],
    attempt: (world, { each }) =>
      each(world.siblingPids, (pid) => {
        require('node:fs').closeSync(require('node:fs').openSync(`/proc/${pid}/mem`, 'r+'));
        return 'opened';
      }),
    escaped: ({ text }) => text.includes('"opened"') && 'the memory of another call is open',
  },
  {
    id: 'files/sibling-cwd',
    what: "reads another call's folder through /proc",
    uses: ['sibling'],
    attempt: (world, { each }) =>
      each(world.siblingPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/cwd/notes.txt`, 'utf8')),
  },
  {
    id: 'files/sibling-folder',
    what: "reads another call's folder by its path",
    uses: ['sibling'],
    attempt: (world) => require('node:fs').readFileSync(`${world.siblingFolder}/notes.txt`, 'utf8'),
  },
  {
    id: 'files/sibling-folders',
    what: 'lists the folders of all calls',
    uses: ['sibling'],
    attempt: (world) => {
      const { readdirSync } = require('node:fs');
      const hosts = `${world.store}/hosts`;
      return readdirSync(hosts).map((host) => readdirSync(`${hosts}/${host}/runs`));
    },
    escaped: ({ value }) => Array.isArray(value) && value.flat().length > 0 && 'the folders of other calls are listed',
  },
  {
    id: 'files/sibling-guessed',
    what: "finds another call's folder where its own is, by numbers and lists",
    uses: ['sibling'],
    attempt: (_world, { found }) => {
      const { dirname } = require('node:path');
      const own = process.cwd();
      return found(dirname(own), own).concat(
        found(dirname(dirname(own)), own),
        found(dirname(dirname(dirname(own))), own)
      );
    },
    control: (_world, { found }) => {
      const fs = require('node:fs');
      const place = fs.mkdtempSync(`${require('node:os').tmpdir()}/guessed-`);
      fs.mkdirSync(`${place}/17/work`, { recursive: true });
      try {
        return found(place, '');
      } finally {
        fs.rmSync(place, { recursive: true });
      }
    },
    escaped: ({ value }) => value?.length > 0 && `it finds ${value.join(', ')}`,
  },
  {
    id: 'files/stranger-folder',
    what: "reads a call's folder of another tenant",
    uses: ['stranger'],
    attempt: (world) => require('node:fs').readFileSync(`${world.strangerFolder}/notes.txt`, 'utf8'),
  },
  {
    id: 'files/stranger-tree',
    what: "reads another tenant's private package",
    attempt: (world) =>
      require('node:fs').readFileSync(`${world.strangerTree}/tree/node_modules/private-package/index.js`, 'utf8'),
  },
  {
    id: 'files/stranger-trees',
    what: 'lists what other tenants have installed',
    attempt: (world) => require('node:fs').readdirSync(`${world.store}/trees`),
    escaped: ({ value }) => Array.isArray(value) && 'the trees are listed',
  },
  {
    id: 'files/size',
    what: 'learns the size of a key that it may not read',
    from: 'isolated',
    layer: 'mountNamespace',
    attempt: (world) => require('node:fs').statSync(world.secretFile).size,
    escaped: ({ value }) => value > 0 && 'the size is told',
  },
  {
    id: 'files/watch',
    what: 'watches what others do in a folder that it may not read',
    from: 'isolated',
    layer: 'mountNamespace',
    attempt: (world) => {
      require('node:fs').watch(world.outside).close();
      return 'watched';
    },
    escaped: ({ value }) => value === 'watched' && 'the folder is watched',
  },
  {
    id: 'files/host-visible',
    what: "finds the host's process in /proc",
    from: 'isolated',
    layer: 'pidNamespace',
    attempt: (world) => {
      const seen = require('node:fs').readdirSync('/proc');
      return world.hostPids.filter((pid) => seen.includes(String(pid)));
    },
    escaped: ({ value }) => value?.length > 0 && 'the host is seen',
  },
].map((one) => ({ from, layer, ...one }));
