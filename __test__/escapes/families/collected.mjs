// Getting files where nobody wanted them, or files that are none of the function's, out by `collect`: the host takes what is in the
// working folder, and believes names and sizes that the function's process tells it, or does not.

const from = 'base';
const layer = 'collected';

/** Takes the place of the worker's script: says that the function has returned, lists a file, and hands it over. */
const handOver = (path) => `(world, { frame }) => {
  const fs = require('node:fs');
  const send = (type, text) => fs.writeSync(3, frame(type, text));
  const path = ${path};
  send(18, '1');
  send(32, JSON.stringify([[path, 7]]));
  send(32, '[]');
  send(33, '{"bytes":7}');
  send(34, 'escaped');
  return new Promise((done) => setTimeout(done, 300, 1));
}`;

const landed = (_outcome, stage, world) =>
  stage.exists(`${world.outside}/escaped.txt`) && 'a file is outside of the folder';
const undo = (stage, world) => stage.remove(`${world.outside}/escaped.txt`);

/** As text, as it is written into the tool's source. */
const attemptOf = (path) => Object.assign(() => {}, { toString: () => handOver(path) });

export default [
  {
    id: 'collected/climb',
    what: 'hands over a file whose name leads out of the folder',
    attempt: attemptOf("'../outside/escaped.txt'"),
    escaped: landed,
    undo,
  },
  {
    id: 'collected/climb-by-detour',
    what: 'hands over a file whose name leads into a folder and out of it twice',
    attempt: attemptOf("'made/../../outside/escaped.txt'"),
    escaped: landed,
    undo,
  },
  {
    id: 'collected/absolute',
    what: 'hands over a file under an absolute name',
    attempt: attemptOf("world.outside + '/escaped.txt'"),
    escaped: landed,
    undo,
  },
  {
    id: 'collected/through-link',
    what: 'hands over a file below a link that the folder of the caller has',
    attempt: attemptOf("'link/escaped.txt'"),
    escaped: landed,
    undo,
  },
  {
    id: 'collected/replace',
    what: 'hands over a file under the name of one that the caller has',
    attempt: attemptOf("'kept.txt'"),
    escaped: (_outcome, stage) =>
      stage.textOf(`${stage.collected}/kept.txt`) !== 'as it was' && 'a file of the caller was replaced',
  },
  {
    id: 'collected/link-to-secret',
    what: 'hands over a link to a file that only the host may read',
    attempt: (world) => {
      const fs = require('node:fs');
      fs.symlinkSync(world.secretFile, 'link');
      fs.mkdirSync('folder');
      fs.symlinkSync(world.secretFile, 'folder/link');
      return 1;
    },
    escaped: (_outcome, stage) => stage.collectedText().includes(stage.secret) && 'the secret is among the files',
  },
  {
    id: 'collected/link-to-folder',
    what: 'hands over what is below a link to a folder that only the host may read',
    attempt: (world) => {
      require('node:fs').symlinkSync(require('node:path').dirname(world.secretFile), 'folder');
      return 1;
    },
    escaped: (_outcome, stage) => stage.collectedText().includes(stage.secret) && 'the secret is among the files',
  },
  {
    id: 'collected/flood',
    what: 'sends files without end that nobody asked for',
    attempt: (_world, { frame }) => {
      const fs = require('node:fs');
      fs.writeSync(3, frame(18, '1'));
      const piece = frame(34, 'x'.repeat(128 * 1024));
      for (let at = 0; at < 400; at++) fs.writeSync(3, piece);
      return 'all written';
    },
    escaped: ({ sizes }, stage) => (stage.real ? stage.grown(48) : sizes.answer > 48e6 && 'all of it is kept'),
  },
].map((one) => ({ from, layer, collects: true, ...one }));
