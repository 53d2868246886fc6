// Writing what is not the call's: outside, into the tree, the store, the download cache, the package itself.

const layer = 'files';
const from = 'confined';

const targetChanged = (_outcome, stage, world) =>
  stage.textOf(world.target) !== 'as it was' && 'a file outside was changed';
const appeared = (name) => (_outcome, stage, world) =>
  stage.exists(`${world.outside}/${name}`) && 'something was made outside';

export default [
  {
    id: 'writes/overwrite',
    what: 'overwrites a file that everybody may write',
    attempt: (world) => require('node:fs').writeFileSync(world.target, 'mine'),
    escaped: targetChanged,
  },
  {
    id: 'writes/truncate',
    what: 'empties a file by its path',
    attempt: (world) => require('node:fs').truncateSync(world.target, 0),
    escaped: targetChanged,
  },
  {
    id: 'writes/create',
    what: 'makes a file in a folder that everybody may write',
    attempt: (world) => require('node:fs').writeFileSync(`${world.outside}/made`, 'mine'),
    escaped: appeared('made'),
  },
  {
    id: 'writes/make-folder',
    what: 'makes a folder outside',
    attempt: (world) => require('node:fs').mkdirSync(`${world.outside}/made`),
    escaped: appeared('made'),
  },
  {
    id: 'writes/make-symlink',
    what: 'makes a symlink outside',
    attempt: (world) => require('node:fs').symlinkSync('/', `${world.outside}/made`),
    escaped: appeared('made'),
  },
  {
    id: 'writes/make-socket',
    what: 'listens on a socket outside',
    attempt: async (world) => {
      const server = require('node:net').createServer();
      await new Promise((done, fail) => server.on('error', fail).listen(`${world.outside}/made`, done));
      // As the process ends now, the socket's file stays.
      setImmediate(() => process.kill(process.pid, 'SIGKILL'));
    },
    escaped: appeared('made'),
  },
  {
    id: 'writes/remove',
    what: 'removes a file outside',
    attempt: (world) => require('node:fs').unlinkSync(world.target),
    escaped: targetChanged,
  },
  {
    id: 'writes/rename-over',
    what: 'moves a file of its own over one outside',
    attempt: (world) => {
      require('node:fs').writeFileSync('mine', 'mine');
      require('node:fs').renameSync('mine', world.target);
    },
    escaped: targetChanged,
  },
  {
    id: 'writes/move-out',
    what: 'moves a folder of its own outside, where nobody removes it',
    attempt: (world) => {
      require('node:fs').mkdirSync('mine');
      require('node:fs').renameSync('mine', `${world.outside}/made`);
    },
    escaped: appeared('made'),
  },
  {
    id: 'writes/hard-link-out',
    what: 'links a file of its own to a place outside',
    attempt: (world) => {
      require('node:fs').writeFileSync('mine', 'mine');
      require('node:fs').linkSync('mine', `${world.outside}/made`);
    },
    escaped: appeared('made'),
  },
  {
    id: 'writes/hard-link-in',
    what: 'links a file from outside into its folder and writes to it there',
    attempt: (world) => {
      require('node:fs').linkSync(world.target, 'link');
      require('node:fs').writeFileSync('link', 'mine');
    },
    escaped: targetChanged,
  },
  {
    id: 'writes/through-symlink',
    what: 'writes through a symlink in its own folder',
    attempt: (world) => {
      require('node:fs').symlinkSync(world.folder, 'link');
      require('node:fs').writeFileSync('link/kept.txt', 'mine');
    },
    escaped: (_outcome, stage, world) =>
      stage.textOf(`${world.folder}/kept.txt`) !== 'as it was' && 'a file outside was changed',
  },
  {
    id: 'writes/through-host-root',
    what: "writes through a process's root in /proc",
    attempt: (world, { each }) =>
      each([...world.hostPids, process.ppid, 'self'], (pid) =>
        require('node:fs').writeFileSync(`/proc/${pid}/root${world.target}`, 'mine')
      ),
    escaped: targetChanged,
  },
  {
    id: 'writes/home',
    what: "appends to the user's login script",
    attempt: (world) => require('node:fs').appendFileSync(`${world.home}/.profile`, 'curl evil\n'),
    escaped: (_outcome, stage, world) =>
      stage.textOf(`${world.home}/.profile`) !== 'true\n' && 'the login script was changed',
    undo: (stage, world) => stage.write(`${world.home}/.profile`, 'true\n'),
  },
  {
    id: 'writes/temp',
    what: 'leaves a file in the temp folder of the system',
    attempt: (world) => require('node:fs').writeFileSync(`/tmp/${world.marker}`, ''),
    escaped: (_outcome, stage, world) => stage.exists(`/tmp/${world.marker}`) && 'a file is left in /tmp',
    undo: (stage, world) => stage.remove(`/tmp/${world.marker}`),
  },
  {
    id: 'writes/shared-memory',
    what: 'leaves a file in /dev/shm',
    needs: ({ exists }) => !exists('/dev/shm') && 'there is no /dev/shm',
    attempt: (world) => require('node:fs').writeFileSync(`/dev/shm/${world.marker}`, ''),
    escaped: (_outcome, stage, world) => stage.exists(`/dev/shm/${world.marker}`) && 'a file is left in /dev/shm',
    undo: (stage, world) => stage.remove(`/dev/shm/${world.marker}`),
  },
  {
    id: 'writes/device',
    what: 'opens a device that is none of its own, for writing',
    needs: ({ root, exists }) => (!root || !exists('/dev/kmsg')) && 'only root can, and only where /dev/kmsg exists',
    attempt: () => {
      require('node:fs').closeSync(require('node:fs').openSync('/dev/kmsg', 'w'));
      return 'opened';
    },
    escaped: ({ value }) => value === 'opened' && 'the device is open',
  },
  {
    id: 'writes/kernel-settings',
    what: "opens the kernel's settings for writing",
    needs: ({ root, writable }) =>
      (!root || !writable('/proc/sys/kernel/core_pattern')) && 'only root can, and not where they are read-only',
    attempt: () => {
      require('node:fs').closeSync(require('node:fs').openSync('/proc/sys/kernel/core_pattern', 'r+'));
      return 'opened';
    },
    escaped: ({ value }) => value === 'opened' && 'a setting of the kernel can be written',
  },
  {
    id: 'writes/tree',
    what: 'changes a package that later calls load',
    dependencies: true,
    attempt: (world, { each }) => {
      const fs = require('node:fs');
      const file = `${world.ownTree}/tree/node_modules/victim-package/index.js`;
      return each([() => fs.chmodSync(file, 0o644), () => fs.appendFileSync(file, ';exports.left = 1;')], (act) =>
        act()
      ).map(({ failed }) => failed ?? 'done');
    },
    escaped: (_outcome, stage, world) =>
      stage.textOf(`${world.ownTree}/tree/node_modules/victim-package/index.js`).includes('left') &&
      'the package was changed',
  },
  {
    id: 'writes/tree-permissions',
    layer: ['privateUser', 'systemCalls'],
    what: 'takes a package away from later calls by its permissions, which it changes through a file open for reading',
    dependencies: true,
    attempt: (world, { each }) => {
      const fs = require('node:fs');
      const folder = `${world.ownTree}/tree/node_modules/victim-package`;
      return each([`${folder}/index.js`, folder], (path) => fs.fchmodSync(fs.openSync(path, 'r'), 0));
    },
    escaped: (_outcome, stage, world) =>
      // Of what lies in a closed folder the permissions are not to be had.
      ['', '/index.js'].some((part) => !stage.modeOf(`${world.ownTree}/tree/node_modules/victim-package${part}`)) &&
      'the package is closed',
    undo: (stage, world) => {
      const folder = `${world.ownTree}/tree/node_modules/victim-package`;
      stage.setMode(folder, 0o555);
      stage.setMode(`${folder}/index.js`, 0o444);
    },
  },
  {
    id: 'writes/tree-times',
    layer: ['privateUser', 'systemCalls'],
    what: 'makes a package look changed by its times, which it sets through a file open for reading',
    dependencies: true,
    attempt: (world) => {
      const fs = require('node:fs');
      fs.futimesSync(fs.openSync(`${world.ownTree}/tree/node_modules/victim-package/index.js`, 'r'), 1, 1);
    },
    escaped: (_outcome, stage, world) =>
      stage.timeOf(`${world.ownTree}/tree/node_modules/victim-package/index.js`) === 1000 && 'the times were changed',
    undo: (stage, world) => stage.setTime(`${world.ownTree}/tree/node_modules/victim-package/index.js`, world.treeTime),
  },
  {
    id: 'writes/node-permissions',
    layer: ['privateUser', 'systemCalls'],
    what: 'changes the permissions of the Node binary through a file open for reading',
    needs: ({ owns, nodeFolder }) => !owns(`${nodeFolder}/node`) && 'it belongs to somebody else anyway',
    attempt: () => {
      const fs = require('node:fs');
      const fd = fs.openSync(process.execPath, 'r');
      // To what they are.
      fs.fchmodSync(fd, fs.fstatSync(fd).mode & 0o7777);
      return 'changed';
    },
    escaped: ({ value }) => value === 'changed' && 'the permissions of the Node binary can be changed',
  },
  {
    id: 'writes/tree-addition',
    what: 'adds a package to the tree',
    dependencies: true,
    attempt: (_world, { each }) => {
      const fs = require('node:fs');
      const { dirname } = require('node:path');
      const modules = dirname(dirname(require.resolve('victim-package')));
      return each([() => fs.chmodSync(modules, 0o755), () => fs.mkdirSync(`${modules}/left-pad`)], (act) => act()).map(
        ({ failed }) => failed ?? 'done'
      );
    },
    escaped: (_outcome, stage, world) =>
      stage.exists(`${world.ownTree}/tree/node_modules/left-pad`) && 'a package was added',
    undo: (stage, world) => stage.remove(`${world.ownTree}/tree/node_modules/left-pad`),
  },
  {
    id: 'writes/tree-swap',
    what: 'replaces the whole tree by one of its own',
    dependencies: true,
    attempt: (world) => {
      const fs = require('node:fs');
      fs.mkdirSync('mine');
      fs.renameSync(`${world.ownTree}/tree`, `${world.ownTree}/aside`);
      fs.renameSync('mine', `${world.ownTree}/tree`);
    },
    escaped: (_outcome, stage, world) => stage.exists(`${world.ownTree}/aside`) && 'the tree was replaced',
  },
  {
    id: 'writes/tree-marker',
    what: "removes the marker of another tenant's tree",
    attempt: (world) => require('node:fs').unlinkSync(`${world.strangerTree}/complete`),
    escaped: (_outcome, stage, world) => !stage.exists(`${world.strangerTree}/complete`) && 'the tree is invalid now',
  },
  {
    id: 'writes/new-tree',
    what: 'plants a tree that nobody installed',
    attempt: (world) => require('node:fs').mkdirSync(`${world.store}/trees/planted`),
    escaped: (_outcome, stage, world) => stage.exists(`${world.store}/trees/planted`) && 'a tree was planted',
    undo: (stage, world) => stage.remove(`${world.store}/trees/planted`),
  },
  {
    id: 'writes/worker-script',
    what: 'opens the script that every worker runs, for writing',
    attempt: (world, { each }) =>
      each(require('node:fs').readdirSync(`${world.store}/runtime`), (name) => {
        require('node:fs').closeSync(require('node:fs').openSync(`${world.store}/runtime/${name}`, 'r+'));
        return 'opened';
      }),
    escaped: ({ text }) => text.includes('"opened"') && 'the script can be written',
  },
  {
    id: 'writes/locks',
    what: 'takes the lock of an installation by its path',
    attempt: (world) => {
      require('node:fs').closeSync(require('node:fs').openSync(`${world.store}/locks/room`, 'a'));
      return 'opened';
    },
    escaped: ({ value }) => value === 'opened' && 'the lock can be taken',
  },
  {
    id: 'writes/download-cache',
    what: "poisons npm's download cache",
    attempt: (world) => require('node:fs').writeFileSync(`${world.cache}/planted`, ''),
    escaped: (_outcome, stage, world) => stage.exists(`${world.cache}/planted`) && 'the cache was changed',
    undo: (stage, world) => stage.remove(`${world.cache}/planted`),
  },
  {
    id: 'writes/package',
    what: 'opens files of the executor itself for writing',
    needs: ({ writable, packageFolder }) =>
      !writable(`${packageFolder}/lib/native.js`) && 'the user may not write them anyway',
    attempt: (world, { each }) =>
      each(['index.js', 'lib/native.js', 'package.json'], (name) => {
        require('node:fs').closeSync(require('node:fs').openSync(`${world.packageFolder}/${name}`, 'r+'));
        return 'opened';
      }),
    escaped: ({ text }) => text.includes('"opened"') && 'the executor itself can be changed',
  },
  {
    id: 'writes/node',
    what: 'opens the Node binary for writing, by its path and by /proc/self/exe',
    attempt: (_world, { each }) =>
      // A binary that runs cannot be opened for writing by anybody; a sibling of it can.
      each([process.execPath], (path) => {
        const { dirname } = require('node:path');
        const probe = `${dirname(path)}/.${process.pid}.probe`;
        require('node:fs').writeFileSync(probe, '');
        require('node:fs').unlinkSync(probe);
        return 'written';
      }),
    needs: ({ writable, nodeFolder }) => !writable(nodeFolder) && "the user may not write to Node's folder anyway",
    escaped: ({ text }) => text.includes('"written"') && "Node's own folder can be written",
  },
  {
    id: 'writes/sibling-folder',
    what: "writes into another call's folder",
    uses: ['sibling'],
    attempt: (world) => require('node:fs').writeFileSync(`${world.siblingFolder}/planted`, ''),
    escaped: (_outcome, stage, world) =>
      stage.exists(`${world.siblingFolder}/planted`) && "another call's folder was changed",
  },
  {
    id: 'writes/stranger-folder',
    what: "writes into a call's folder of another tenant",
    uses: ['stranger'],
    attempt: (world) => require('node:fs').writeFileSync(`${world.strangerFolder}/planted`, ''),
    escaped: (_outcome, stage, world) =>
      stage.exists(`${world.strangerFolder}/planted`) && "another tenant's folder was changed",
  },
  {
    id: 'writes/permissions',
    layer: ['privateUser', 'systemCalls'],
    what: 'changes the permissions of a file outside',
    attempt: (world) => require('node:fs').chmodSync(world.target, 0),
    escaped: (_outcome, stage, world) => stage.modeOf(world.target) !== 0o666 && 'the permissions were changed',
  },
  {
    id: 'writes/times',
    layer: ['privateUser', 'systemCalls'],
    what: 'changes the times of a file outside: trees are checked by them',
    attempt: (world) => require('node:fs').utimesSync(world.target, 1, 1),
    escaped: (_outcome, stage, world) => stage.timeOf(world.target) === 1000 && 'the times were changed',
  },
].map((one) => ({ from, layer, ...one }));
