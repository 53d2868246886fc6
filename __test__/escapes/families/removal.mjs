// What the removal of a call's folder must not be led to: what a symlink names, what is swapped in while it goes on.
// The control removes as somebody would who does not expect harm.

const layer = 'runFolder';
const from = 'base';

const touched = async ({ value }, stage, world) => {
  if (stage.real && typeof value === 'string' && (await stage.lasts(() => stage.exists(value))))
    return 'the folder stays';
  return stage.textOf(`${world.folder}/kept.txt`) !== 'as it was' && 'what lies outside was removed';
};
const loosened = async ({ value }, stage, world) => {
  if (stage.real && typeof value === 'string' && (await stage.lasts(() => stage.exists(value))))
    return 'the folder stays';
  return stage.modeOf(world.target) === 0o777 && 'the permissions of a file outside were changed';
};

export default [
  {
    id: 'removal/symlinked-folder',
    what: 'leaves a symlink to a folder outside',
    attempt: (world) => {
      require('node:fs').symlinkSync(world.folder, 'link');
      return process.cwd();
    },
    escaped: touched,
  },
  {
    id: 'removal/symlink-in-closed-folder',
    what: 'leaves a symlink in a folder that has to be opened up first',
    attempt: (world) => {
      const fs = require('node:fs');
      fs.mkdirSync('closed');
      fs.symlinkSync(world.folder, 'closed/link');
      fs.chmodSync('closed', 0);
      return process.cwd();
    },
    escaped: touched,
  },
  {
    id: 'removal/swapped-working-folder',
    what: 'puts a symlink where its working folder was',
    attempt: (world) => {
      const fs = require('node:fs');
      const own = process.cwd();
      fs.renameSync(own, `${own}-aside`);
      fs.symlinkSync(world.folder, own);
      return own;
    },
    undo: (stage, _world, { folder }) => folder && stage.remove(`${folder}-aside`),
    escaped: touched,
  },
  {
    id: 'removal/permissions-through-symlink',
    what: 'has the permissions of a file outside changed, by a symlink in their place',
    attempt: (world) => {
      require('node:fs').symlinkSync(world.target, 'link');
      return process.cwd();
    },
    escaped: loosened,
  },
  {
    id: 'removal/hard-link',
    what: 'has the permissions of a file outside changed, by a hard link to it',
    attempt: (world) => {
      require('node:fs').linkSync(world.target, 'link');
      return process.cwd();
    },
    escaped: loosened,
  },
  {
    id: 'removal/race',
    what: 'keeps swapping a folder and a symlink while they are removed',
    attempt: async (world) => {
      const fs = require('node:fs');
      fs.mkdirSync('a');
      fs.symlinkSync(world.folder, 'b');
      const swap = `const fs = require('node:fs'); process.on('SIGTERM', () => {});
        const end = Date.now() + 1500;
        while (Date.now() < end) try { fs.renameSync('a', 'c'); fs.renameSync('b', 'a'); fs.renameSync('c', 'b'); } catch {}`;
      const child = require('node:child_process').spawn(process.execPath, ['-e', swap, world.marker], {
        detached: true,
        stdio: 'ignore',
      });
      child.unref();
      await new Promise((done) => child.once('spawn', done));
      return process.cwd();
    },
    escaped: touched,
  },
].map((one) => ({ from, layer, removal: true, ...one }));
