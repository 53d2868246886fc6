'use strict';

// Which modules of the published run API are the executor, whether the swap is on, and what was swapped in this thread.
// Nothing here touches Node's loader: `register.js` and `hooks-thread.mjs` do.

/** The variable that leaves the original in place: the way back without a deployment. */
const SWITCH = 'NATIVE_SANDBOX_EXECUTOR';

/** Distinct modules that are remembered as swapped; a server has one. */
const SWAPPED_MODULES_MAX = 16;

/** Query of a module that is to stay the original: `import('…/SandboxExecutorFactory.js?original')`. */
const ORIGINAL_QUERY = 'original';

const NAME = 'SandboxExecutorFactory';

/**
 * Where the original lives. A hash of eight is what its bundlers of three generations add to the names of chunks.
 * - `agents-run-api`: a chunk or a bundled file in `dist`, a file in `dist/tools`, a source in `src/tools`
 * - `agents-api`, its later name: `domains/run/tools`
 */
const LAYOUTS = [
  new RegExp(`/agents-run-api/(?:dist|src)/(?:tools/)?${NAME}(?:-[\\w-]{8})?\\.[cm]?[jt]s$`),
  new RegExp(`/agents-api/(?:dist|src)/domains/run/tools/${NAME}(?:-[\\w-]{8})?\\.[cm]?[jt]s$`),
];

/**
 * Whether a resolved module is the original's factory, and not asked for as the original.
 * @param {string} url of a file, with query and fragment
 */
function isOriginal(url) {
  // Asked for every module of the host.
  if (!url.includes(NAME) || !url.startsWith('file:')) return false;
  const { pathname, searchParams } = new URL(url);
  return !searchParams.has(ORIGINAL_QUERY) && LAYOUTS.some((layout) => layout.test(pathname));
}

/**
 * What the switch says.
 * @param {string | undefined} value of the variable
 * @returns {{ on: boolean, problem?: string }}
 */
function switchOf(value = '') {
  const word = value.trim().toLowerCase();
  if (word === 'off') return { on: false };
  if (word === '' || word === 'on') return { on: true };
  return { on: true, problem: `${SWITCH} is ${JSON.stringify(value)}, which means nothing: use "off" or "on"` };
}

/** @type {'none' | 'off' | 'registerHooks' | 'register'} */
let hook = 'none';
/** URLs, without query. */
const modules = new Set();
/** Takes in what the thread of asynchronous hooks has reported meanwhile. */
let catchUp = () => {};

/** @param {typeof hook} kind */
function hooked(kind, catchUpWith = () => {}) {
  hook = kind;
  catchUp = catchUpWith;
}

/**
 * Notes a swap.
 * @returns {boolean} whether it is the first of this module
 */
function noteSwap(url) {
  const module = url.replace(/[?#].*$/s, '');
  if (modules.has(module) || modules.size >= SWAPPED_MODULES_MAX) return false;
  modules.add(module);
  return true;
}

/** What `index.d.ts` promises under this name. */
function swapReport() {
  catchUp();
  return { swapped: modules.size > 0, hook, modules: [...modules] };
}

exports.SWITCH = SWITCH;
exports.hooked = hooked;
exports.isOriginal = isOriginal;
exports.noteSwap = noteSwap;
exports.swapReport = swapReport;
exports.switchOf = switchOf;
