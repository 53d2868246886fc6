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
//   watch()           notices what a package takes below JavaScript that differs from call to call; whether it sees all of that.
//                     unwatch() ends it, drawn() tells what it was; variables() those that addons have read
//   posted()          [tasks that V8 gave to threads, whether it should give none]; programs(): changes once a program has run
//
// A child inherits every state that this process is in. So nothing in here opens anything, starts a thread, or fills a
// cache of random numbers: what was drawn before a fork is the same in all children.

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
  'crypto',
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
const { syncBuiltinESMExports } = Module;
const builtinRandom = Math.random;
/** The clock, whatever is made of `performance.now`. */
const now = performance.now.bind(performance);
const native = loadNative(process.argv[2]);

/** The library's functions. Nobody else gets them: what Node keeps of them is emptied, and it hands them out once. */
function loadNative(path) {
  const given = preloaded() ?? opened(path);
  const functions = { __proto__: null, ...given };
  for (const name of Object.keys(given)) delete given[name];
  return functions;
}

/** Where the library was preloaded, Node takes it for a module that is linked in. */
function preloaded() {
  try {
    return process._linkedBinding('native_sandbox_zygote');
  } catch {
    return undefined;
  }
}

function opened(path) {
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

/**
 * Until a child is a worker, V8's generator is not used: its numbers would be the same in all children. A module that draws when it is
 * loaded is noticed. Crypto needs no such forwarder: the library answers for OpenSSL's generator.
 */
function forwardRandom() {
  // A module may keep this function, so it has to be right in a worker too.
  const random = {
    random() {
      if (inWorker) return builtinRandom();
      note('it draws from Math.random when it is loaded');
      return native.random();
    },
  }.random;
  defineHidden(Math, 'random', random);
  return random;
}

/** A seed of its own for the built-in generator, which takes it at its first use. `vm` contexts have it too. */
function seedRandom(forwarder, seed) {
  v8.setFlagsFromString(`--random-seed=${seed}`);
  inWorker = true;
  if (Math.random === forwarder) defineHidden(Math, 'random', builtinRandom);
}

// ---- what differs from call to call -------------------------------------------------------------------------------------

/** The module that is being loaded. */
let loading;

/** A module that takes what differs from call to call when it is loaded is loaded by each worker for itself. */
function note(reason) {
  if (loading !== undefined) taint ??= reason;
}

const noteRead = (what) => note(`it reads ${what} when it is loaded`);

/** Upper bounds of the names of variables that are told. */
const MAX_VARIABLES = 500;
const VARIABLES_LIMIT_CHARS = 16_384;
/** Stands for all variables. */
const EVERY_VARIABLE = '*';

/**
 * Variables that modules have read while they were loaded. The executor's are the same in every call; a call that has one of these of
 * its own is not forked from here.
 */
const variablesRead = new Set();

function noteVariable(name) {
  if (loading !== undefined && typeof name === 'string') variablesRead.add(name);
}

/** The names, for the host. */
function listOfVariables() {
  const names = [...variablesRead, ...native.variables().split('\0').filter(Boolean)];
  const chars = names.reduce((sum, name) => sum + name.length, 0);
  return names.length > MAX_VARIABLES || chars > VARIABLES_LIMIT_CHARS ? [EVERY_VARIABLE] : names;
}

/** Variables that tell the folders of a call. */
const PLACES = new Set(['HOME', 'PWD', 'TEMP', 'TMP', 'TMPDIR', 'USERPROFILE']);
/** Those of them that each call has. */
const CALL_PLACES = ['HOME', 'TEMP', 'TMP', 'TMPDIR'];

/** Functions whose result differs from call to call, by the object that has them. */
const READERS = [
  [process, 'cwd', 'the working folder'],
  [process, 'hrtime', 'process.hrtime()'],
  [process, 'cpuUsage', 'process.cpuUsage()'],
  [process, 'threadCpuUsage', 'process.threadCpuUsage()'],
  [process, 'memoryUsage', 'process.memoryUsage()'],
  [process, 'resourceUsage', 'process.resourceUsage()'],
  [process, 'availableMemory', 'process.availableMemory()'],
  [os, 'homedir', 'the home folder'],
  [os, 'tmpdir', 'the temp folder'],
  [os, 'freemem', 'os.freemem()'],
  [os, 'loadavg', 'os.loadavg()'],
  [os, 'networkInterfaces', 'os.networkInterfaces()'],
  [os, 'uptime', 'os.uptime()'],
  [os, 'userInfo', 'os.userInfo()'],
];
/** Functions that read what changes, and tell what does not. */
const CONSTANTS = [
  [os, 'totalmem'],
  [process, 'constrainedMemory'],
];
/** Node's inner modules by which the above can be got around. */
const INNER_MODULES = new Set(['contextify', 'crypto', 'os', 'process_wrap', 'spawn_sync', 'v8']);

/**
 * Watches what a module reads while it is loaded. What it keeps of that must work in a worker as well; gives what puts
 * everything back that the module has not changed.
 */
function watchReads() {
  const undo = [];
  const replace = (object, name, value) => {
    const before = Object.getOwnPropertyDescriptor(object, name);
    if (before === undefined) return;
    defineProperty(object, name, { ...before, value });
    undo.push(() => object[name] === value && defineProperty(object, name, before));
  };
  for (const [object, name, what] of READERS) {
    if (object[name] !== undefined)
      replace(
        object,
        name,
        noting(object[name], () => noteRead(what))
      );
  }
  for (const [object, name] of CONSTANTS)
    if (object[name] !== undefined) replace(object, name, unnoticed(object[name]));
  replace(os, 'cpus', quietCpus(os.cpus));
  replace(Date, 'now', quietForLodash(Date.now));
  replace(process, 'env', watchedEnv(process.env));
  replace(process, 'argv', watchedList(process.argv));
  replace(process, 'binding', notingName(process.binding, INNER_MODULES));
  const makesRealm = () => note('it makes a realm of its own (vm) when it is loaded');
  for (const name of ['createContext', 'runInNewContext']) replace(vm, name, noting(vm[name], makesRealm));
  replace(vm.Script.prototype, 'runInNewContext', noting(vm.Script.prototype.runInNewContext, makesRealm));
  for (const name of ['pid', 'ppid']) undo.push(watchNumber(name));
  const makesThread = () => note('it starts a thread when it is loaded');
  process.on('worker', makesThread);
  undo.push(() => process.off('worker', makesThread));
  const { parent, main } = modules;
  for (const [module, what] of [
    [parent, 'module.parent'],
    [main, 'require.main'],
  ])
    for (const name of ['id', 'path', 'filename', 'paths']) undo.push(watchMember(module, name, what));
  syncBuiltinESMExports();
  return () => {
    for (const step of undo) step();
    syncBuiltinESMExports();
  };
}

/** A function as `original`, members included, that calls `told` first. */
function noting(original, told) {
  return new Proxy(original, {
    __proto__: null,
    apply(target, self, args) {
      if (loading !== undefined) told();
      return apply(target, self, args);
    },
    get(target, name) {
      const member = target[name];
      // `hrtime.bigint`, `memoryUsage.rss`.
      if (loading === undefined || typeof member !== 'function' || !Object.hasOwn(target, name)) return member;
      return noting(member, told);
    },
  });
}

function notingName(original, names) {
  return new Proxy(original, {
    __proto__: null,
    apply(target, self, args) {
      if (names.has(String(args[0]))) noteRead(`process.binding('${args[0]}')`);
      return apply(target, self, args);
    },
  });
}

function unnoticed(original) {
  return new Proxy(original, {
    __proto__: null,
    apply(target, self, args) {
      if (loading === undefined) return apply(target, self, args);
      native.unwatch();
      try {
        return apply(target, self, args);
      } finally {
        native.watch();
      }
    },
  });
}

/** lodash's files, in packages of one function too. It asks for the time to count its own calls, and keeps it for nothing else. */
const LODASH_FRAME = /[\\/]node_modules[\\/]lodash[^\\/]*[\\/][^\\/]+$/;

/** The clock, for which lodash's reads do not count: nearly every tree has it. The library sees all others. */
function quietForLodash(original) {
  const unseen = unnoticed(original);
  return new Proxy(original, {
    __proto__: null,
    apply(target, self, args) {
      if (loading === undefined) return apply(target, self, args);
      return LODASH_FRAME.test(frame(2)) ? apply(unseen, self, args) : apply(target, self, args);
    },
  });
}

/** The frame so many calls above the caller of this, as text. */
function frame(above) {
  const { stackTraceLimit, prepareStackTrace } = Error;
  Error.stackTraceLimit = above + 1;
  Error.prepareStackTrace = undefined;
  const text = String(new Error('where').stack).split('\n')[above + 1] ?? '';
  Error.stackTraceLimit = stackTraceLimit;
  Error.prepareStackTrace = prepareStackTrace;
  return text;
}

/** `os.cpus()`: how many there are is for everybody to read, how busy they are is not. */
function quietCpus(original) {
  return new Proxy(unnoticed(original), {
    __proto__: null,
    apply(target, self, args) {
      const cpus = apply(target, self, args);
      if (loading === undefined) return cpus;
      for (const cpu of cpus) {
        for (const name of ['speed', 'times']) {
          const value = cpu[name];
          const get = () => {
            noteRead(`os.cpus()[].${name}`);
            return value;
          };
          defineProperty(cpu, name, { __proto__: null, get, enumerable: true, configurable: true });
        }
      }
      return cpus;
    },
  });
}

/** It stays: a module may keep it. What it forwards to is the variables of the worker then. */
function watchedEnv(env) {
  return new Proxy(env, {
    __proto__: null,
    get(target, name) {
      if (PLACES.has(name)) noteRead(`the variable ${name}`);
      noteVariable(name);
      return target[name];
    },
    has(target, name) {
      noteVariable(name);
      return name in target;
    },
    getOwnPropertyDescriptor(target, name) {
      noteVariable(name);
      return Object.getOwnPropertyDescriptor(target, name);
    },
    ownKeys(target) {
      noteVariable(EVERY_VARIABLE);
      return Reflect.ownKeys(target);
    },
    // Node wants to be given all attributes, which a proxy would not do by itself.
    set(target, name, value) {
      target[name] = value;
      return true;
    },
  });
}

/**
 * The arguments: which file is run differs from call to call. Looking for another argument, as many packages do, is no read of it.
 */
function watchedList(list) {
  const searches = { __proto__: null };
  for (const name of ['includes', 'indexOf', 'lastIndexOf']) {
    searches[name] = function () {
      return apply(list[name], this === watched ? list : this, arguments);
    };
    defineHidden(searches[name], 'name', name);
  }
  const watched = new Proxy(list, {
    __proto__: null,
    get(target, name) {
      if (loading === undefined) return target[name];
      if (name === '1') noteRead('process.argv[1]');
      return searches[name] ?? target[name];
    },
  });
  return watched;
}

/**
 * Whether a module has imported `process`: Node then keeps its members as they were, `pid` too. The library reads which modules import
 * that (zygote/src/imports.rs), and each worker has them set anew.
 */
let isProcessKept = false;
/** The frame in which Node does that, by way of `Reflect.get`. */
const KEEPING_FRAME = /^ +at getOwn \(node:internal\/bootstrap\/realm:/;

/** `process.pid` and `ppid`. */
function watchNumber(name) {
  const before = Object.getOwnPropertyDescriptor(process, name);
  const get = () => {
    if (loading !== undefined && KEEPING_FRAME.test(frame(3))) isProcessKept = true;
    else noteRead(`process.${name}`);
    return before.get === undefined ? before.value : apply(before.get, process, []);
  };
  const { enumerable, configurable } = before;
  const set = before.set ?? ((value) => defineProperty(process, name, { ...before, value }));
  defineProperty(process, name, { __proto__: null, get, set, enumerable, configurable });
  return () => Object.getOwnPropertyDescriptor(process, name).get === get && defineProperty(process, name, before);
}

/** A frame below which Node itself is at work. */
const INNER_FRAME = /^ +at (?:.* \()?node:internal\//;

/** A member of a module that stands for one of the call; Node itself reads them to find other modules. */
function watchMember(module, name, what) {
  let value = module[name];
  const get = () => {
    if (!INNER_FRAME.test(frame(2))) noteRead(`${what}.${name}`);
    return value;
  };
  const set = (assigned) => {
    value = assigned;
  };
  defineProperty(module, name, { __proto__: null, get, set, enumerable: true, configurable: true });
  return () => defineProperty(module, name, { value, writable: true, enumerable: true, configurable: true });
}

/** Modules of the call that packages see when they are loaded; the job gives them its places. */
let modules;

/** Has packages see, when they are loaded, what a function sees: its arguments, its main module, and nothing of this file. */
function seeAsFunctions(folder) {
  const filename = join(folder, 'index.cjs');
  const stand = (id) => {
    const module = new Module(id);
    module.filename = filename;
    module.paths = Module._nodeModulePaths(folder);
    return module;
  };
  modules = { main: stand(filename), parent: stand(filename) };
  process.mainModule = modules.main;
  const argv = [process.execPath, filename];
  process.argv = argv;
  delete require.cache[__filename];
  for (const key of Object.keys(require.cache)) if (require.cache[key]?.exports === worker) delete require.cache[key];
  worker.standIn({ ...modules, argv });
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
      if (loading !== undefined) noteRead('performance.now()');
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
            if (loading !== undefined) noteRead('performance.timeOrigin');
            return originMs ?? apply(timeOrigin.get, this, []);
          },
        }),
  });
  const { timeStamp } = Object.getOwnPropertyDescriptors(Event.prototype);
  const { get } = Object.getOwnPropertyDescriptor(
    {
      get timeStamp() {
        if (loading !== undefined) noteRead('event.timeStamp');
        return apply(timeStamp.get, this, []) - baseMs;
      },
    },
    'timeStamp'
  );
  defineProperty(Event.prototype, 'timeStamp', { ...timeStamp, get });
  const { nodeTiming } = performance;
  const duration = Object.getOwnPropertyDescriptor(nodeTiming, 'duration');
  defineProperty(nodeTiming, 'duration', { ...duration, get: { now: () => performance.now() }.now });
  process.uptime = {
    uptime() {
      if (loading !== undefined) noteRead('process.uptime()');
      return uptime() - baseSeconds;
    },
  }.uptime;
  return () => {
    baseMs = apply(now, performance, []);
    originMs = Date.now();
    baseSeconds = uptime();
  };
}

// ---- the end of a child -------------------------------------------------------------------------------------------------

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
  if (isProcessKept) syncBuiltinESMExports();
  seedRandom(forwarder, child.seed);
  startClock();
  delete require.cache[__filename];
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
  const began = now();
  const request = JSON.parse(child.payload);
  const { cwd, env, compileCache, compiles } = request;
  process.chdir(cwd);
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, env);
  // A module that lists the variables is to find those that each call has.
  for (const name of CALL_PLACES) process.env[name] = cwd;
  seeAsFunctions(cwd);
  await fillThreadPool();
  v8.setFlagsFromString('--no-lazy');
  // After the flags, which are part of what names a cache.
  const letGo = useCompileCache(compileCache);
  const { loaded, skipped, unfit } = await loadAll(loaderIn(cwd), request);
  letGo();
  for (const name of CALL_PLACES) delete process.env[name];
  Object.assign(process.env, env);
  // What is only compiled may take what it likes.
  if (compiles) return native.refuse(CONTROL_FD, JSON.stringify({ compiled: fs.existsSync(compileCache) }));
  if (unfit.length > 0) return native.refuse(CONTROL_FD, JSON.stringify({ ...unfit[0], unfit }));
  wait({ loaded, skipped, variables: listOfVariables(), ms: Math.round(now() - began) });
}

/** Loads all modules, one after the other. Those that are `unfit` are told together: each start anew costs as much as all of them. */
async function loadAll(load, { modules: all, limitMs = LOAD_LIMIT_MS, compiles }) {
  const loaded = [];
  const skipped = [];
  const unfit = [];
  for (const wanted of all) {
    const { specifier, kind } = wanted;
    const { off, taken, reason, ms } = await loadOne(() => load(specifier, kind), wanted, limitMs);
    if (off !== undefined) native.refuse(CONTROL_FD, JSON.stringify({ specifier, kind, reason: off, unfit }));
    if (taken !== undefined && !compiles) unfit.push({ specifier, kind, reason: taken });
    else if (reason !== undefined) skipped.push({ specifier, kind, reason });
    else {
      loaded.push({ specifier, kind, ms });
      if (kind === 'require') worker.place(specifier, load.resolve(specifier));
    }
  }
  return { loaded, skipped, unfit };
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
  const filename = join(folder, 'index.cjs');
  const importFrom = importerOf(filename);
  const load = (specifier, kind) => (kind === 'import' ? importFrom(specifier) : modules.parent.require(specifier));
  load.resolve = Module.createRequire(filename).resolve;
  return load;
}

function importerOf(filename) {
  return vm.compileFunction('return import(specifier)', ['specifier'], {
    filename,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
}

/**
 * Loads one module and looks at what that did: `off` says that no child must inherit it, `taken` that it took what differs from
 * call to call.
 */
async function loadOne(load, wanted, limitMs) {
  await settle();
  const before = look();
  const unwatch = watchOutput();
  const unwatchReads = watchReads();
  taint = undefined;
  native.drawn();
  loading = wanted;
  const began = now();
  const seesAll = native.watch();
  let reason;
  try {
    await load();
  } catch (error) {
    reason = `it does not load: ${String(error?.message ?? error).slice(0, 500)}`;
  }
  const ms = Math.round(now() - began);
  await settle();
  native.unwatch();
  loading = undefined;
  unwatchReads();
  const output = unwatch();
  const off = difference(before, look()) ?? output ?? (ms > limitMs ? `it takes ${ms} ms to load` : undefined);
  const blind = seesAll ? undefined : 'what it draws at load cannot be noticed here';
  return { off, reason, ms, taken: taint ?? native.drawn() ?? blind };
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
    programs: native.programs(),
    realms: v8.getHeapStatistics().number_of_native_contexts,
  };
}

function difference(before, after) {
  if (after.threads > before.threads) return `it starts ${after.threads - before.threads} threads`;
  if (after.descriptors > before.descriptors) return 'it leaves a file or socket open';
  if (after.handles > before.handles) return 'it leaves a handle or timer active';
  if (after.requests !== before.requests) return `it leaves something pending: ${after.requests}`;
  if (after.cwd !== before.cwd) return 'it changes the working folder';
  if (after.environment !== before.environment) return 'it changes the environment';
  if (after.random !== before.random) return 'it replaces Math.random';
  if (after.programs !== before.programs) return 'it runs a program when it is loaded';
  if (after.realms > before.realms) return 'it makes a realm of its own when it is loaded';
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
  const [posted, isThreadless] = native.posted();
  if (isThreadless && posted > 0) throw new Error(`V8 gave ${posted} tasks to threads that a forked child lacks`);
}

/** Loads what is costly to load in a child. */
async function boot() {
  // On Node 20, instantiating WebAssembly (and so `fetch`) hangs in a forked child, whatever the flags.
  if (Number.parseInt(process.versions.node, 10) < OLDEST_NODE) {
    throw new Error(`Node ${OLDEST_NODE} or newer is needed for forked processes, this is ${process.version}`);
  }
  // Those of this file are no tool's to see.
  process.execArgv = process.execArgv.filter((flag) => !OWN_FLAGS.includes(flag));
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
  const [posted, isThreadless] = native.posted();
  if (isThreadless && posted > 0) throw new Error(`V8 gave ${posted} tasks to threads that a forked child lacks`);
  guardExit();
  wait({});
}

const collect = exposedGc();
const forwarder = forwardRandom();
const startClock = rebaseableClock();
const worker = require(process.argv[3] ?? join(__dirname, 'worker.cjs'));
boot().catch(refuse);
