// Changing what the bootstrap or a later call relies on. That a later call does not notice is looked at after every attempt;
// these are the ones that try. Outside, the later call is a second function in the same process.

const from = 'base';
const layer = 'fresh-process';

/** What a later call would notice; runs in the same process for the control. */
const later = `() => {
  const odd = [];
  for (const name in {}) odd.push(name);
  if (JSON.stringify({ a: [1] }) !== '{"a":[1]}') odd.push('JSON');
  if (globalThis.left || require('node:util').left || process.env.LEFT_BEHIND || process.left) odd.push('left');
  if (Promise.prototype.then.left || process.cwd().endsWith('left')) odd.push('left');
  return odd.length > 0 ? 'noticed' : undefined;
}`;

const noticed = (outcome, stage) =>
  !stage.real && ['noticed', 'forged'].includes(outcome.value) && 'a later function notices';

export default [
  {
    id: 'poison/prototypes',
    what: 'adds to the prototypes of everything',
    attempt: () => {
      Object.prototype.left = 1;
      Array.prototype.left = 1;
      Function.prototype.left = 1;
    },
  },
  {
    id: 'poison/json',
    what: 'replaces how results become text',
    attempt: () => {
      JSON.stringify = () => '"forged"';
      Object.prototype.toJSON = () => 'forged';
    },
  },
  {
    id: 'poison/promises',
    what: 'replaces how results are waited for',
    attempt: () => {
      const { then } = Promise.prototype;
      const name = 'then';
      Promise.prototype[name] = function (...args) {
        return Reflect.apply(then, this, args);
      };
      Promise.prototype[name].left = true;
    },
  },
  {
    id: 'poison/modules',
    what: 'changes the built-in modules',
    attempt: () => {
      require('node:util').left = 1;
      require('node:module').left = 1;
      require('node:module').syncBuiltinESMExports();
    },
  },
  {
    id: 'poison/globals',
    what: 'leaves globals, variables and a working folder',
    attempt: () => {
      globalThis.left = 1;
      process.left = 1;
      process.env.LEFT_BEHIND = '1';
      require('node:fs').mkdirSync('left');
      process.chdir('left');
    },
  },
  {
    id: 'poison/dependency',
    what: 'changes a package that is loaded already where calls are forked from',
    dependencies: true,
    attempt: () => {
      require('victim-package').left = 1;
      require('node:util').left = 1;
    },
  },
  {
    id: 'poison/bootstrap',
    what: 'replaces what the script of the worker uses, to answer with something else than what is returned',
    attempt: () => {
      const fs = require('node:fs');
      const { writeSync } = fs;
      fs.writeSync = (...args) => {
        globalThis.left = args;
        return writeSync(...args);
      };
      TextEncoder.prototype.encode = () => Buffer.from('forged');
      Buffer.byteLength = () => 1;
      require('node:util').left = 1;
    },
  },
  {
    id: 'poison/package-at-load',
    what: 'poisons, while it is loaded, what functions without that package are forked from',
    module: () => {
      Object.prototype.left = 1;
      require('node:util').left = 1;
      globalThis.left = 1;
    },
  },
].map((one) => ({ from, layer, later, escaped: noticed, ...one }));
