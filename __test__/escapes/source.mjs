// From an attempt to what runs: the text of a tool, the package that carries it, the text of its control.

import { kit } from './kit.mjs';

/** Says, in whatever a call gives, that an attempt asked for something its surroundings do not have. */
export const BROKEN = 'the attempt itself is broken';

/** An attempt's function with its surroundings and the kit at hand; what it asks for must be there. */
function withKit(attempt) {
  return `async (given) => {
    if (given.hidden) given = JSON.parse(Buffer.from(given.hidden, 'base64').toString());
    const world = new Proxy(given, { get: (at, name) => {
      if (!(name in at)) throw new Error(${JSON.stringify(BROKEN)} + ': no ' + String(name));
      // Whoever makes the attempt may be among those that wait to be given a call.
      return String(name).endsWith('Pids') ? at[name].filter((pid) => pid !== process.pid) : at[name];
    } });
    const kit = (${kit})();
    return await (${attempt})(world, kit);
  }`;
}

/** The part of an attempt that acts. */
function actOf({ attempt, script, module }) {
  return attempt ?? script ?? module;
}

/** The text that a plain process runs. */
export function plainSource(attempt) {
  const { control, later } = attempt;
  const source = withKit(control ?? actOf(attempt));
  return later ? `async (given) => { await (${source})(given); return (${later})(); }` : source;
}

/** The package of an attempt that acts while it is installed or loaded. */
export function packageName({ id }) {
  return `carrier-${id.replaceAll('/', '-')}`;
}

/** Its files, for the registry; `world` is written into them, as nothing else reaches them. */
export function packageFiles(attempt, world) {
  const act = `(${withKit(actOf(attempt))})(${JSON.stringify(world)})`;
  const found = `const told = (error) => ({ failed: String(error && error.stack || error) });`;
  if (attempt.module) {
    // An attempt at load is over when the module is loaded: it returns a value, not a promise of later deeds.
    return { 'index.js': `${found} module.exports = ${act}.catch(told);` };
  }
  return {
    'package.json': { scripts: { postinstall: 'node act.js' } },
    'act.js': `${found} ${act}.catch(told).then((value) => require('fs').writeFileSync('found.json', JSON.stringify(value ?? null)));`,
    'index.js': `module.exports = JSON.parse(require('fs').readFileSync(require('path').join(__dirname, 'found.json'), 'utf8'));`,
  };
}

/** Whether an attempt's call has the common dependencies. One against a sibling has, to be in the same sandbox as that. */
export function sharesTree({ dependencies, uses }) {
  return Boolean(dependencies || uses?.includes('sibling'));
}

/**
 * The arguments of an attempt's call. Most paths of the world are below /tmp, and a call with packages that names that is not given a worker
 * of its tree's zygote: so nothing of the world can be read in what such a call is given.
 */
export function argumentsOf(attempt, world) {
  return sharesTree(attempt) ? { hidden: Buffer.from(JSON.stringify(world)).toString('base64') } : world;
}

/** The tool of an attempt: its text and what it depends on; `common` is what attempts with dependencies have. */
export function toolOf(attempt, common) {
  if (attempt.attempt) {
    return { executeCode: withKit(attempt.attempt), dependencies: sharesTree(attempt) ? common : {} };
  }
  const name = packageName(attempt);
  return { executeCode: `async () => await require('${name}')`, dependencies: { [name]: '1.0.0' } };
}
