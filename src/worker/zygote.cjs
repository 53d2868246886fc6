'use strict';
// Boots a zygote: loads what many tools need and is costly to load in a child, then waits in native code and forks.
//
//   node --single-threaded --no-wasm-async-compilation --no-wasm-dynamic-tiering --no-memory-reducer --no-flush-bytecode
//     --no-lazy --v8-pool-size=1 --max-old-space-size=N zygote.cjs <library> [<worker script>]
//
// The first three keep V8 from giving tasks to worker threads, which a child does not have and would wait for at its end; the
// next one from setting a timer at a collection that starts another one eight seconds later, in every child forked after that.
// The next two have all functions compiled here, once, and stay so. The last one saves threads, whose stacks each child copies from.
//
// Descriptor 3 is the control socket. What the native calls do:
//   serve(fd, ready)  sends READY and never returns here; in each forked child it returns [role, payload, warm, seed, pid]
//   scout()           forks a scout. There, gives { fd } for report(fd), which tells what it made its own and ends it; here,
//                     gives { pages }, how many it told
//   tryFork(f)        throws unless a forked child can run `f` and end; true in that child
//   refuse(fd, why)   sends REFUSED and ends the process
//   intend(status)    the status to end with once Node gets to its tear-down; leave(status) ends at once
//   doom()            ends once Node has printed the error that nobody handles
//   random()          a number in [0, 1); handles(): active handles of the event loop, unreferenced ones included
//
// A child inherits every state that this process is in. So nothing in here opens anything, starts a thread, or fills a
// cache of random numbers: what was drawn before a fork is the same in all children.

const crypto = require('node:crypto');
const fs = require('node:fs');
const Module = require('node:module');
const os = require('node:os');
const { join } = require('node:path');
const { performance } = require('node:perf_hooks');
const v8 = require('node:v8');
const vm = require('node:vm');

/** The oldest Node whose forked children can do all that tools do. */
const OLDEST_NODE = 22;
const CONTROL_FD = 3;
const CHANNEL_FD = 3;
/** What the library is called that this process has inherited, and by which descriptor. */
const LIBRARY_IN_MEMORY = '/proc/self/fd/4';
const LIBRARY_FD = 4;
/** How long one module may take to load, unless the request says otherwise. */
const LOAD_LIMIT_MS = 2000;
/** Turns of the event loop that a module gets to finish what it began at load. */
const SETTLE_TURNS = 3;

/** Turns for the tasks that a collection leaves, for those that wait for garbage: each registry takes one. */
const TASK_TURNS = 16;

/** What Node ends with when a handler of uncaught errors throws. */
const EXIT_OF_THROWING_HANDLER = 7;

/** Built-ins that tools use, directly or through packages; each is compiled once, here. */
const COMMON_BUILTINS = [
  'assert',
  'child_process',
  'dns',
  'events',
  'fs/promises',
  'http',
  'http2',
  'https',
  'net',
  'os',
  'querystring',
  'readline',
  'stream',
  'stream/promises',
  'stream/web',
  'string_decoder',
  'timers/promises',
  'tls',
  'tty',
  'url',
  'util',
  'worker_threads',
  'zlib',
];

/**
 * Times that the way of a job is gone at boot: V8 has then collected what it wants to know of the functions on it, and
 * compiled them once more (its baseline compiler takes what has run some ten times; with 8, each worker did it).
 */
const REHEARSALS = 30;

/** Flags that this file needs and tools do not see. */
const OWN_FLAGS = [
  '--single-threaded',
  '--no-wasm-async-compilation',
  '--no-wasm-dynamic-tiering',
  '--no-memory-reducer',
  '--no-flush-bytecode',
  '--no-lazy',
  '--v8-pool-size=1',
];

const { apply } = Reflect;
const { defineProperty } = Object;
const builtinRandom = Math.random;
const native = loadNative(process.argv[2]);

function loadNative(path) {
  const module = { exports: {} };
  process.dlopen(module, path);
  if (path === LIBRARY_IN_MEMORY) fs.closeSync(LIBRARY_FD);
  return module.exports;
}

function defineHidden(object, key, value) {
  defineProperty(object, key, { __proto__: null, value, configurable: true, writable: true, enumerable: false });
}

// ---- random numbers -----------------------------------------------------------------------------------------------------

let inWorker = false;
/** What a loaded module did that children must not share; reason for not loading it. */
let taint;

/** Until a child is a worker, no generator of V8 or Node is used: what a module draws at load comes from the kernel. */
function forwardRandom() {
  // A module may keep this function, so it has to be right in a worker too.
  const random = { random: () => (inWorker ? builtinRandom() : native.random()) }.random;
  defineHidden(Math, 'random', random);

  const { randomUUID, randomInt } = crypto;
  crypto.randomUUID = (options) => randomUUID(inWorker ? options : { ...options, disableEntropyCache: true });
  defineHidden(crypto.randomUUID, 'name', 'randomUUID');
  crypto.randomInt = function (...args) {
    if (!inWorker) taint = 'it draws from crypto.randomInt when it is loaded';
    return apply(randomInt, this, args);
  };
  defineHidden(crypto.randomInt, 'name', 'randomInt');
  const web = Object.getPrototypeOf(crypto.webcrypto);
  const webRandomUUID = web.randomUUID;
  const descriptor = Object.getOwnPropertyDescriptor(web, 'randomUUID');
  const forward = {
    randomUUID() {
      return inWorker ? apply(webRandomUUID, this, []) : randomUUID({ disableEntropyCache: true });
    },
  };
  defineProperty(web, 'randomUUID', { ...descriptor, value: forward.randomUUID });
  Module.syncBuiltinESMExports();
  return random;
}

/** A seed of its own for the built-in generator, which takes it at its first use. `vm` contexts have it too. */
function seedRandom(forwarder, seed) {
  v8.setFlagsFromString(`--random-seed=${seed}`);
  inWorker = true;
  if (Math.random === forwarder) defineHidden(Math, 'random', builtinRandom);
}

// ---- what differs from call to call -------------------------------------------------------------------------------------

/** Variables that tell the folders of a call. */
const PLACES = new Set(['HOME', 'PWD', 'TEMP', 'TMP', 'TMPDIR', 'USERPROFILE']);

/** A module that looks for the folders of its call when it is loaded is loaded by each worker for itself. */
function watchPlaces() {
  const { env, cwd } = process;
  const { homedir, tmpdir } = os;
  const note = (what) => {
    if (loading !== undefined) taint ??= `it reads ${what} when it is loaded`;
  };
  const noting = (name, what, read) => {
    const reader = () => {
      note(what);
      return read();
    };
    defineHidden(reader, 'name', name);
    return reader;
  };
  // It stays: a module may keep it. What it forwards to is the variables of the worker then.
  process.env = new Proxy(env, {
    __proto__: null,
    get(target, name) {
      if (loading !== undefined && PLACES.has(name)) note(`the variable ${name}`);
      return target[name];
    },
    // Node wants to be given all attributes, which a proxy would not do by itself.
    set(target, name, value) {
      target[name] = value;
      return true;
    },
  });
  process.cwd = noting('cwd', 'the working folder', cwd);
  os.homedir = noting('homedir', 'the home folder', homedir);
  os.tmpdir = noting('tmpdir', 'the temp folder', tmpdir);
  Module.syncBuiltinESMExports();
  return () => {
    process.env = env;
    process.cwd = cwd;
    os.homedir = homedir;
    os.tmpdir = tmpdir;
    Module.syncBuiltinESMExports();
  };
}

// ---- clocks -------------------------------------------------------------------------------------------------------------

/** Lets `performance` and `process.uptime` start anew; gives the function that does it. */
function rebaseableClock() {
  const prototype = Object.getPrototypeOf(performance);
  const { mark, measure, now, toJSON } = prototype;
  const { uptime } = process;
  const timeOrigin = Object.getOwnPropertyDescriptor(prototype, 'timeOrigin');
  let baseMs = 0;
  let originMs;
  let baseSeconds = 0;
  const rebased = {
    now() {
      return apply(now, this, []) - baseMs;
    },
    mark(name, options = undefined) {
      return apply(mark, this, [name, { ...options, startTime: options?.startTime ?? this.now() }]);
    },
    measure(name, startOrOptions = undefined, endMark = undefined) {
      if (endMark !== undefined || baseMs === 0) return apply(measure, this, arguments);
      if (typeof startOrOptions !== 'object' || startOrOptions === null) {
        return apply(measure, this, [name, { start: startOrOptions ?? 0, end: this.now() }]);
      }
      const { end, duration } = startOrOptions;
      const open = end === undefined && duration === undefined;
      return apply(measure, this, [name, open ? { ...startOrOptions, end: this.now() } : startOrOptions]);
    },
    toJSON() {
      return { ...apply(toJSON, this, []), timeOrigin: this.timeOrigin };
    },
  };
  for (const name of Object.keys(rebased)) {
    defineProperty(prototype, name, { ...Object.getOwnPropertyDescriptor(prototype, name), value: rebased[name] });
  }
  defineProperty(prototype, 'timeOrigin', {
    ...timeOrigin,
    ...(timeOrigin.get === undefined
      ? { value: undefined }
      : {
          get() {
            return originMs ?? apply(timeOrigin.get, this, []);
          },
        }),
  });
  process.uptime = { uptime: () => uptime() - baseSeconds }.uptime;
  return () => {
    baseMs = apply(now, performance, []);
    originMs = Date.now();
    baseSeconds = uptime();
  };
}

// ---- the end of a child -------------------------------------------------------------------------------------------------

let loading;

/** Puts `_exit` in front of Node's tear-down, which joins threads that a child does not have; see zygote/src/exit.rs. */
function guardExit() {
  const { doom, intend, leave } = native;
  const tell = (code) => intend(Number(process.exitCode ?? code) | 0);
  const watched = (emit) =>
    function (event, code) {
      if (event !== 'exit') return apply(emit, this, arguments);
      if (loading !== undefined)
        native.refuse(CONTROL_FD, JSON.stringify({ ...loading, reason: 'it ends the process' }));
      // Should a listener throw, Node ends by this status as well.
      intend(Number(process.exitCode) || 1);
      const emitted = apply(emit, this, arguments);
      tell(code);
      // Nothing is to be printed then, and what follows is the tear-down.
      if (process._exiting && code === 0 && Number(process.exitCode ?? 0) === 0 && !isExitReplaced) leave(0);
      return emitted;
    };
  // A handler of uncaught errors that throws ends Node by 7, through no hook. C++ looks this property up each time.
  const handle = process._fatalException;
  defineHidden(process, '_fatalException', function () {
    try {
      const handled = apply(handle, this, arguments);
      if (!handled) doom();
      return handled;
    } catch (error) {
      process._rawDebug(`${error?.stack ?? error}\n\nNode.js ${process.version}`);
      leave(EXIT_OF_THROWING_HANDLER);
    }
  });
  // Accessors, because packages (signal-exit) assign these; what they assign is called, and then the guard acts.
  let emit = watched(process.emit);
  defineProperty(process, 'emit', {
    __proto__: null,
    get: () => emit,
    set: (assigned) => {
      emit = watched(assigned);
    },
    enumerable: false,
    configurable: false,
  });
  let isExitReplaced = false;
  let reallyExit = { reallyExit: (code) => leave(code | 0) }.reallyExit;
  defineProperty(process, 'reallyExit', {
    __proto__: null,
    get: () => reallyExit,
    set: (assigned) => {
      isExitReplaced = true;
      reallyExit = (code) => {
        try {
          return apply(assigned, process, [code]);
        } finally {
          leave(code | 0);
        }
      };
    },
    enumerable: true,
    configurable: false,
  });
}

// ---- roles --------------------------------------------------------------------------------------------------------------

function becomeChild({ pid }) {
  defineProperty(process, 'pid', { ...Object.getOwnPropertyDescriptor(process, 'pid'), value: pid });
}

/** In a worker: waits for the job on the channel, and runs it. */
async function work(child) {
  beginWork(child);
  // What the scout told is in place already; else the pages that a job takes are, afterwards.
  if (!child.warm) await worker.rehearse();
  // In a macrotask of its own, as in a process that was booted for it. The worker starts the clock again when its job is
  // there: it may have waited long.
  setImmediate(() => worker.serve(CHANNEL_FD, startClock));
}

function beginWork(child) {
  becomeChild(child);
  seedRandom(forwarder, child.seed);
  startClock();
  delete require.cache[__filename];
  process.execArgv = process.execArgv.filter((flag) => !OWN_FLAGS.includes(flag));
}

/** In a scout: goes the way of a job up to its end, and reports what that took. */
async function explore(fd) {
  beginWork({ pid: process.pid, seed: 1 });
  process.once('exit', () => native.report(fd));
  await new Promise(setImmediate);
  // A text that V8 has not compiled yet, as that of a job is none.
  await worker.rehearse('return async ({ a, b }) => ({ a, b })');
}

/** In a new zygote: loads the modules it was asked for, or refuses. */
async function prepare(child) {
  becomeChild(child);
  const began = performance.now();
  const { cwd, env, modules, limitMs = LOAD_LIMIT_MS, compileCache, compiles } = JSON.parse(child.payload);
  process.chdir(cwd);
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, env);
  const loaded = [];
  const skipped = [];
  const load = loaderIn(cwd);
  await fillThreadPool();
  v8.setFlagsFromString('--no-lazy');
  // After the flags, which are part of what names a cache.
  const letGo = useCompileCache(compileCache);
  for (const wanted of modules) {
    const { specifier, kind } = wanted;
    const report = await loadOne(() => load(specifier, kind), wanted, limitMs);
    if (report.off !== undefined) native.refuse(CONTROL_FD, JSON.stringify({ specifier, kind, reason: report.off }));
    if (report.reason === undefined) {
      loaded.push({ specifier, kind, ms: report.ms });
      if (kind === 'require') worker.place(specifier, load.resolve(specifier));
    } else skipped.push({ specifier, kind, reason: report.reason });
  }
  letGo();
  if (compiles) return native.refuse(CONTROL_FD, JSON.stringify({ compiled: fs.existsSync(compileCache) }));
  wait({ loaded, skipped, ms: Math.round(performance.now() - began) });
}

/**
 * Has Node look in a folder for what it compiled before. Gives what ends that: what is new is written, where it may be, and what was read
 * is let go of.
 */
function useCompileCache(folder) {
  if (folder === undefined) return () => {};
  Module.enableCompileCache?.(folder);
  return () => Module.flushCompileCache?.();
}

/** `import()` reads files on libuv's pool. Started here, with one thread, it is no thread of any module. */
async function fillThreadPool() {
  const before = process.env.UV_THREADPOOL_SIZE;
  process.env.UV_THREADPOOL_SIZE = '1';
  await fs.promises.stat('.');
  // A worker starts a pool of its own, of the size that its own environment says.
  if (before === undefined) delete process.env.UV_THREADPOOL_SIZE;
  else process.env.UV_THREADPOOL_SIZE = before;
}

/** What loads a module as a file in `folder` would. */
function loaderIn(folder) {
  const filename = join(folder, 'preload.cjs');
  const require = Module.createRequire(filename);
  const importFrom = importerOf(filename);
  const load = (specifier, kind) => (kind === 'import' ? importFrom(specifier) : require(specifier));
  load.resolve = require.resolve;
  return load;
}

function importerOf(filename) {
  return vm.compileFunction('return import(specifier)', ['specifier'], {
    filename,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
}

/** Loads one module and looks at what that did: `off` says that children must not inherit it. */
async function loadOne(load, wanted, limitMs) {
  await settle();
  const before = look();
  const unwatch = watchOutput();
  const unwatchPlaces = watchPlaces();
  loading = wanted;
  const began = performance.now();
  let reason;
  try {
    await load();
  } catch (error) {
    reason = `it does not load: ${String(error?.message ?? error).slice(0, 500)}`;
  }
  const ms = Math.round(performance.now() - began);
  await settle();
  loading = undefined;
  unwatchPlaces();
  const output = unwatch();
  const off = difference(before, look()) ?? output ?? (ms > limitMs ? `it takes ${ms} ms to load` : undefined);
  return { off, reason, ms };
}

async function settle() {
  for (let turn = 0; turn < SETTLE_TURNS; turn++) await new Promise(setImmediate);
}

/** The state that a module must leave as it was. */
function look() {
  return {
    threads: fs.readdirSync('/proc/self/task').length,
    descriptors: fs.readdirSync('/proc/self/fd').length,
    handles: native.handles(),
    requests: process.getActiveResourcesInfo().sort().join(),
    cwd: process.cwd(),
    environment: JSON.stringify(process.env),
    random: Math.random,
  };
}

function difference(before, after) {
  if (taint !== undefined) return taint;
  if (after.threads > before.threads) return `it starts ${after.threads - before.threads} threads`;
  if (after.descriptors > before.descriptors) return 'it leaves a file or socket open';
  if (after.handles > before.handles) return 'it leaves a handle or timer active';
  if (after.requests !== before.requests) return `it leaves something pending: ${after.requests}`;
  if (after.cwd !== before.cwd) return 'it changes the working folder';
  if (after.environment !== before.environment) return 'it changes the environment';
  if (after.random !== before.random) return 'it replaces Math.random';
  return undefined;
}

/** Notices writes to stdout and stderr: what a module prints at load, it must print in each worker. */
function watchOutput() {
  let written;
  const undo = [];
  for (const name of ['stdout', 'stderr']) {
    const descriptor = Object.getOwnPropertyDescriptor(process, name);
    let stream;
    const get = () => {
      if (stream === undefined) {
        stream = apply(descriptor.get, process, []);
        const { write } = stream;
        stream.write = function () {
          written = `it writes to ${name} when it is loaded`;
          return apply(write, this, arguments);
        };
        undo.push(() => delete stream.write);
      }
      return stream;
    };
    defineProperty(process, name, { ...descriptor, get });
    undo.push(() => defineProperty(process, name, descriptor));
  }
  return () => {
    for (const step of undo) step();
    return written;
  };
}

/** Serves, as a macrotask of its own: a child comes out of `serve` with nothing of the boot below it on the stack. */
function wait(report) {
  setImmediate(() => {
    v8.setFlagsFromString('--lazy');
    // A child of a heap in the middle of marking goes on with it, and copies a thousand pages doing so (measured: 8 to 40 ms). Of
    // this kind, because it also closes the gaps: each page that is left is one that each fork passes on.
    collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
    // Ends the sweeping, which children would else each do for themselves.
    v8.getHeapCodeStatistics();
    afterTurns(TASK_TURNS, () => serve(report));
  });
}

function afterTurns(turns, done) {
  setImmediate(() => (turns > 1 ? afterTurns(turns - 1, done) : done()));
}

function serve(report) {
  const { fd, pages } = native.scout();
  if (fd !== undefined) return void explore(fd).catch(fatal);
  const ready = JSON.stringify({ node: process.version, loaded: [], skipped: [], pages, ...report });
  const told = native.serve(CONTROL_FD, ready);
  const child = { payload: told[1], warm: told[2], seed: told[3], pid: told[4] };
  if (told[0] === 'worker') work(child).catch(fatal);
  else prepare(child).catch(refuse);
}

/** Ends a worker that cannot even begin. */
function fatal(error) {
  process._rawDebug(String(error?.stack ?? error));
  native.leave(1);
}

/** V8's `gc`, without leaving it to be found by tools. */
function exposedGc() {
  v8.setFlagsFromString('--expose-gc');
  const gc = vm.runInNewContext('gc');
  v8.setFlagsFromString('--no-expose-gc');
  return gc;
}

function refuse(error) {
  native.refuse(CONTROL_FD, JSON.stringify({ reason: String(error?.message ?? error).slice(0, 1000) }));
}

// ---- boot ---------------------------------------------------------------------------------------------------------------

/** `(module (func (export "f") (param i32) (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))` */
const COUNTDOWN = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 1, 127, 0, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 16, 1, 14, 0, 3, 64, 32,
  0, 65, 1, 107, 34, 0, 13, 0, 11, 11,
];
/** Rounds after which V8 has long wanted a better compilation (its budget is 13 million bytes of code run). */
const HOT_ROUNDS = 20_000_000;
/** Garbage of 16 KiB apiece: 256 MiB in all, several times the largest young generation. */
const GARBAGE_ARRAYS = 16_384;
const GARBAGE_ELEMENTS = 2048;

/** Runs some of everything that V8 has worker threads for: collecting, and compiling what is hot. */
function trial() {
  let last;
  for (let i = 0; i < GARBAGE_ARRAYS; i++) last = new Array(GARBAGE_ELEMENTS).fill(i);
  if (last[GARBAGE_ELEMENTS - 1] !== GARBAGE_ARRAYS - 1) throw new Error('a forked child computes wrongly');
  const countdown = new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(COUNTDOWN)));
  countdown.exports.f(HOT_ROUNDS);
}

/** Loads what is costly to load in a child. */
async function boot() {
  // On Node 20, instantiating WebAssembly (and so `fetch`) hangs in a forked child, whatever the flags.
  if (Number.parseInt(process.versions.node, 10) < OLDEST_NODE) {
    throw new Error(`Node ${OLDEST_NODE} or newer is needed for forked processes, this is ${process.version}`);
  }
  for (const name of COMMON_BUILTINS) require(`node:${name}`);
  // Node 20 warns, once, of the loader that workers give to the code they compile; a tool's output is no place for it.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  await importerOf(__filename)('node:fs');
  process.emitWarning = emitWarning;
  // The implementation behind `fetch` with the classes that each call of it makes.
  const response = new Response('{}');
  await response.json();
  void [new Headers({ a: 'b' }), new Request('http://localhost/', { signal: new AbortController().signal }), FormData];
  await fetch('data:,');
  vm.runInNewContext('0');
  for (let i = 0; i < REHEARSALS; i++) await worker.rehearse();
  if (native.tryFork(trial)) return;
  guardExit();
  wait({});
}

const collect = exposedGc();
const forwarder = forwardRandom();
const startClock = rebaseableClock();
const worker = require(process.argv[3] ?? join(__dirname, 'worker.cjs'));
boot().catch(refuse);
