// Install scripts: they may build what is in the folder that is being made, and nothing else.

import { readLocalSocket } from './sockets.mjs';

const from = 'confined';
const layer = 'files';

export default [
  {
    id: 'install/npm-token',
    what: 'reads the token in the npm settings of the user',
    script: (world) => require('node:fs').readFileSync(world.npmrc, 'utf8'),
  },
  {
    id: 'install/key',
    what: "reads the user's private key",
    script: (world) => require('node:fs').readFileSync(world.secretFile, 'utf8'),
  },
  {
    id: 'install/host-environ',
    what: "reads the host's environment in /proc",
    script: (world, { each }) =>
      each(world.hostPids, (pid) => require('node:fs').readFileSync(`/proc/${pid}/environ`, 'latin1')),
  },
  {
    id: 'install/parents-environ',
    what: "reads npm's environment, and that of whatever is above it",
    script: (world, { each }) => {
      const { readFileSync } = require('node:fs');
      const chain = [];
      for (let pid = process.ppid; pid > 1 && chain.length < 6; ) {
        chain.push(pid);
        const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
        pid = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
      }
      return each([...chain, ...world.launcherPids], (pid) => readFileSync(`/proc/${pid}/environ`, 'latin1'));
    },
  },
  {
    id: 'install/download-cache',
    what: 'poisons the download cache',
    script: (world) => require('node:fs').writeFileSync(`${world.cache}/planted`, ''),
    escaped: (_outcome, stage, world) => stage.exists(`${world.cache}/planted`) && 'the cache was changed',
    undo: (stage, world) => stage.remove(`${world.cache}/planted`),
  },
  {
    id: 'install/outside',
    what: 'writes outside',
    script: (world) => require('node:fs').writeFileSync(world.target, 'mine'),
    escaped: (_outcome, stage, world) => stage.textOf(world.target) !== 'as it was' && 'a file outside was changed',
  },
  {
    id: 'install/permissions',
    what: 'changes the permissions of a file outside',
    layer: ['privateUser', 'systemCalls'],
    script: (world) => require('node:fs').chmodSync(world.target, 0),
    escaped: (_outcome, stage, world) => stage.modeOf(world.target) !== 0o666 && 'the permissions were changed',
  },
  {
    id: 'install/other-tree',
    what: "changes another tenant's packages",
    script: (world) => {
      const file = `${world.strangerTree}/tree/node_modules/private-package/index.js`;
      require('node:fs').chmodSync(file, 0o644);
      require('node:fs').appendFileSync(file, ';exports.left = 1;');
    },
    escaped: (_outcome, stage, world) =>
      stage.textOf(`${world.strangerTree}/tree/node_modules/private-package/index.js`).includes('left') &&
      'the package was changed',
  },
  {
    id: 'install/marker',
    what: 'invalidates the trees of others',
    script: (world) => require('node:fs').unlinkSync(`${world.strangerTree}/complete`),
    escaped: (_outcome, stage, world) => !stage.exists(`${world.strangerTree}/complete`) && 'the tree is invalid now',
  },
  {
    id: 'install/kill-launcher',
    what: 'kills the process that starts all others',
    layer: 'signals',
    script: (world, { each }) => each(world.launcherPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: (_outcome, stage) => stage.harm('launcher'),
  },
  {
    id: 'install/socket',
    what: 'talks to a daemon of the machine',
    layer: 'systemCalls',
    script: readLocalSocket,
  },
].map((one) => ({ from, layer, ...one }));
