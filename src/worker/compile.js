// Runs in a booted worker that serves no call, and has nothing else to do: loads the packages of a tree, one after the other, so that Node
// compiles them into the cache that this worker was given. Tells which package does more at load than that, if one does.
async ({ packages, limitMs }) => {
  const fs = require('node:fs');
  const Module = require('node:module');
  const { performance } = require('node:perf_hooks');

  /** Turns of the event loop that a package gets to finish what it began at load. */
  const SETTLE_TURNS = 3;

  if (typeof Module.flushCompileCache !== 'function')
    return { reason: `${process.version} cannot write its cache when told to` };
  // Whatever it is that imports start in the background is there before anybody looks.
  await fs.promises.stat('.');
  await import('node:fs');

  async function look() {
    for (let turn = 0; turn < SETTLE_TURNS; turn++) await new Promise(setImmediate);
    return JSON.stringify([
      fs.readdirSync('/proc/self/task').length,
      fs.readdirSync('/proc/self/fd').length,
      process.getActiveResourcesInfo().sort(),
      process.cwd(),
      process.env,
    ]);
  }

  for (const name of packages) {
    const before = await look();
    const began = performance.now();
    // Tools say one or the other, and a package may have different files for them. What does not load is nobody's loss.
    for (const load of [require, (specifier) => import(specifier)]) {
      try {
        await load(name);
      } catch {}
    }
    if (performance.now() - began > limitMs || (await look()) !== before) return { unfit: name };
  }
  Module.flushCompileCache();
  return { compiled: true };
};
