'use strict';

// `node --import native-sandbox-executor/register` (or `--require`, or an import in the program): from here on, whoever
// loads the executor of the published run API gets this package. The run API itself stays as it was installed.

const { writeSync } = require('node:fs');
const module_ = require('node:module');
const { pathToFileURL } = require('node:url');
const { debuglog } = require('node:util');
const { MessageChannel, isMainThread, parentPort, receiveMessageOnPort } = require('node:worker_threads');
const { CORE_NAME, adoptLoggers, log } = require('./lib/logger.js');
const { addonProblem } = require('./lib/native.js');
const { sayTier } = require('./lib/notice.js');
const { changeNodeOptions, withAbsoluteEntry, withoutOwnEntry } = require('./lib/own-entry.js');
const { hostProblem } = require('./lib/platform.js');
const { SWITCH, hooked, isOriginal, noteSwap, swapReport, switchOf } = require('./lib/swap.js');

const TARGET = pathToFileURL(require.resolve('./index.js')).href;
const AGENTS_CORE = '@inkeep/agents-core';

const debug = debuglog(CORE_NAME);

/** What the host's operator must see whatever becomes of the host's logger. */
function complain(line) {
  try {
    // Not by `process.stderr`: in a worker thread, whoever made the thread may have that.
    writeSync(2, `${CORE_NAME}: ${line}\n`);
  } catch {
    // Closed, or a pipe that is full and does not block: there is nobody to tell.
  }
}

/** What concerns the process, not this thread. */
function complainOnce(line) {
  if (isMainThread) complain(line);
}

/** @param {{ module: string, agentsCore?: string }} swap the module that was asked for; the URL of its own agents-core */
function swapped({ module, agentsCore }) {
  if (!noteSwap(module)) return;
  // From here on this process is the server, not a tool that starts it: what it starts is not ours to change.
  changeNodeOptions(process.env, withoutOwnEntry);
  if (agentsCore) adoptLoggers(() => import(agentsCore));
  debug('%s is replaced by %s', module, TARGET);
  log(CORE_NAME, 'debug', { module, by: TARGET }, 'Sandbox executor swapped in');
}

function resolve(specifier, context, nextResolve) {
  const found = nextResolve(specifier, context);
  // The switch is looked at again: the host may have read its `.env` meanwhile.
  if (!isOriginal(found.url) || !switchOf(process.env[SWITCH]).on) return found;
  swapped({ module: found.url, agentsCore: resolvedOrNothing(() => nextResolve(AGENTS_CORE, context).url) });
  return { url: TARGET, format: 'commonjs', shortCircuit: true };
}

function resolvedOrNothing(act) {
  try {
    return act();
  } catch {
    return undefined;
  }
}

/** Why `act` fails, if it does. */
function refused(act) {
  try {
    act();
    return undefined;
  } catch (error) {
    return String(error?.message ?? error);
  }
}

function register() {
  if (process.versions.bun) {
    // It has the functions, and never calls what they are given.
    complain('Bun has no module hooks: register did nothing, and the original stays in its place.');
    return;
  }
  if (typeof module_.registerHooks === 'function') {
    // Vitest's pools of vm contexts have it, and refuse it.
    const refusal = refused(() => module_.registerHooks({ resolve }));
    if (refusal) complain(`this host refuses module hooks (${refusal}): the original stays in its place.`);
    else hooked('registerHooks');
    return;
  }
  if (typeof module_.register !== 'function') {
    complain('this host has no module hooks (module.registerHooks, module.register): the original stays in its place.');
    return;
  }
  const { port1, port2 } = new MessageChannel();
  port1.on('message', swapped);
  port1.unref();
  module_.register('./lib/hooks-thread.mjs', {
    parentURL: pathToFileURL(__filename),
    data: { port: port2, target: TARGET },
    transferList: [port2],
  });
  hooked('register', () => {
    for (let next = receiveMessageOnPort(port1); next; next = receiveMessageOnPort(port1)) swapped(next.message);
  });
}

/** A missing addon makes every call fail with these words; at the start of a server they are seen in time. */
function checkAddon() {
  const problem = addonProblem() ?? hostProblem();
  if (!problem) return;
  complainOnce(
    `${problem}${problem.endsWith('.') ? '' : '.'} Until then every function tool fails with these words; ${SWITCH}=off goes back to the original.`
  );
}

function start() {
  // Node preloads what `--require` names into its own thread of asynchronous hooks too, which must not have hooks itself.
  if (!isMainThread && !parentPort) return;
  const { on, problem } = switchOf(process.env[SWITCH]);
  if (problem) complainOnce(problem);
  if (!on) {
    hooked('off');
    changeNodeOptions(process.env, withoutOwnEntry);
    return;
  }
  changeNodeOptions(process.env, withAbsoluteEntry);
  register();
  sayTier();
  if (isMainThread && !process.versions.bun) checkAddon();
}

start();

exports.swapReport = swapReport;
