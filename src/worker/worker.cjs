'use strict';
// Runs inside a worker: takes one job from the channel, runs the function, answers, and lets the process end.
// Frames and thrown values: docs/worker-protocol.md. Node 20.12 and later; built-ins only.
//
// The function shares this realm and may have changed anything in it (or its dependencies have, in a process forked from
// one that loaded them). So whatever runs after `serve` began uses only what is captured here: no method is looked up on a
// prototype, no iterator, regular expression or `for…of` is used, and objects that are read from have no prototype.

const fs = require('node:fs');
const Module = require('node:module');
const os = require('node:os');
const { dirname, sep } = require('node:path');
const { pathToFileURL } = require('node:url');
const { inspect, types } = require('node:util');
const vm = require('node:vm');

const self = process;
const { apply, getPrototypeOf } = Reflect;
const { defineProperty, getOwnPropertyDescriptor, keys } = Object;
const { parse, stringify } = JSON;
const { isArray } = Array;
const { isFinite: isFiniteNumber } = Number;
const { isGeneratorObject, isNativeError, isPromise } = types;
const {
  closeSync,
  existsSync,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readSync,
  readdirSync,
  unlinkSync,
  writeSync,
} = fs;
const { O_CREAT, O_EXCL, O_NOFOLLOW = 0, O_NONBLOCK = 0, O_RDONLY, O_WRONLY } = fs.constants;
const { max, min } = Math;
const { wait } = Atomics;
const idle = new Int32Array(new SharedArrayBuffer(4));
const { createRequire } = Module;
const byteLength = Buffer.byteLength;
const IntrinsicPromise = Promise;
const promisePrototype = Promise.prototype;
const IntrinsicError = Error;
const IntrinsicAggregateError = AggregateError;
const IntrinsicTypeError = TypeError;
const IntrinsicRangeError = RangeError;
const toText = String;

const uncurry = Function.prototype.bind.bind(Function.prototype.call);
const copy = uncurry(Buffer.prototype.copy);
const decode = uncurry(Buffer.prototype.toString);
const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
const charCodeAt = uncurry(String.prototype.charCodeAt);
const includes = uncurry(String.prototype.includes);
const lastIndexOf = uncurry(String.prototype.lastIndexOf);
const indexOf = uncurry(String.prototype.indexOf);
const slice = uncurry(String.prototype.slice);
const startsWith = uncurry(String.prototype.startsWith);
const toWellFormed = uncurry(String.prototype.toWellFormed);
const trimStart = uncurry(String.prototype.trimStart);
const isFileEntry = uncurry(fs.Dirent.prototype.isFile);
const isFolderEntry = uncurry(fs.Dirent.prototype.isDirectory);
const isFileStat = uncurry(fs.Stats.prototype.isFile);
const addTo = uncurry(WeakSet.prototype.add);
const isIn = uncurry(WeakSet.prototype.has);
const frameText = uncurry(framePrototype().toString);
const nodeStack = Error.prepareStackTrace;

/** What V8 makes frames of; it has no name. */
function framePrototype() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  Error.stackTraceLimit = 1;
  Error.prepareStackTrace = (_error, frames) => frames;
  const prototype = Reflect.getPrototypeOf(new Error('for its frames').stack[0]);
  Error.prepareStackTrace = prepareStackTrace;
  Error.stackTraceLimit = stackTraceLimit;
  return prototype;
}

/**
 * A worker may have a user of its own, whom no list of users names: `os.userInfo()` then answers from what the process
 * knows, instead of throwing.
 */
function nameUser() {
  const { userInfo } = os;
  const named = {
    userInfo(options = undefined) {
      try {
        return apply(userInfo, this, [options]);
      } catch (error) {
        if (read(read(error, 'info'), 'code') !== 'ENOENT') throw error;
        const text = (value) => (read(options, 'encoding') === 'buffer' ? Buffer.from(value) : value);
        const uid = self.getuid();
        const gid = self.getgid();
        return { __proto__: null, uid, gid, username: text('sandbox'), homedir: text(os.homedir()), shell: null };
      }
    },
  };
  os.userInfo = named.userInfo;
  Module.syncBuiltinESMExports();
}

nameUser();

const VERSION = 2;
const CHANNEL_FD = 3;

const JOB = 1;
const SOURCE = 2;
const ARGS = 3;
const CODE_CACHE = 4;
const ANSWER = 5;
const FILE = 7;
const FILE_DATA = 8;
const FILE_END = 9;
const WANT = 10;
const STARTED = 17;
const RETURNED = 18;
const THREW = 19;
const UNSERIALIZABLE = 20;
const TOO_LARGE = 21;
const UNCAUGHT = 22;
const DRAINED = 23;
const EXITING = 24;
const INVALID = 25;
const COMPILED = 27;
const UNCACHED = 28;
const CALL = 29;
const PROGRESS = 30;
const YIELDED = 31;
const LISTED = 32;
const OPENED = 33;
const DATA = 34;
const UNREADABLE = 35;
const UNPLACED = 36;

const HEADER_BYTES = 5;
/** What is read of the channel before it is asked for. Most jobs fit in, and are there after one call of the system's. */
const AHEAD_BYTES = 16 * 1024;
/** What is read at once of what the host says. */
const HEARD_BYTES = 64 * 1024;
/** As many characters as a frame's header has bytes: room for it in front of the payload. */
const HEADER_ROOM = '\0\0\0\0\0';
/** One text of a thrown value, UTF-16 units. */
const TEXT_LIMIT_UNITS = 32 * 1024;
/** All texts of one frame together. JSON takes at most 6 bytes for a unit, so a frame stays below 1 MiB. */
const TEXTS_LIMIT_UNITS = 128 * 1024;
const CAUSE_LIMIT_LEVELS = 8;
const AGGREGATE_LIMIT_ERRORS = 8;
/** Thrown values in one frame, however they nest. */
const VALUES_LIMIT = 32;
const FIELDS_LIMIT = 64;
const BUSY_WAIT_MS = 2;
/** Values that may be on their way to the host, before the function has to wait until it has taken some. */
const YIELD_WINDOW = 16;
const PROGRESS_LIMIT_BYTES = 64 * 1024;
/** A part of a file in one frame. */
const FILE_CHUNK_BYTES = 128 * 1024;
/** Characters of a list of files in one frame, of which each takes three bytes at most. */
const LIST_LIMIT_UNITS = 64 * 1024;
/** Levels of folders that files are looked for in. */
const FOLDERS_LIMIT_LEVELS = 64;

// ---- channel ------------------------------------------------------------------------------------------------------------

let channel = CHANNEL_FD;
/** Takes the frames where there is no channel; see `serveJob`. */
let deliver;

/** Sends one frame. What cannot be sent is given up: the host is gone, or the function closed the descriptor. */
function send(type, payload) {
  if (deliver !== undefined) return deliver(type, payload);
  const length = byteLength(payload);
  // Not `Buffer.from`, which calls methods of `Buffer.prototype`.
  const frame = encode(HEADER_ROOM + payload);
  frame[0] = length & 0xff;
  frame[1] = (length >>> 8) & 0xff;
  frame[2] = (length >>> 16) & 0xff;
  frame[3] = (length >>> 24) & 0xff;
  frame[4] = type;
  write(frame, HEADER_BYTES + length);
}

function write(frame, length) {
  let sent = 0;
  while (sent < length) {
    try {
      sent += writeSync(channel, frame, sent, length - sent);
    } catch (error) {
      if (read(error, 'code') !== 'EAGAIN') return;
      rest();
    }
  }
}

/** What was read; the first `taken` bytes of the `filled` ones were asked for. */
const ahead = Buffer.allocUnsafeSlow(AHEAD_BYTES);
let taken = 0;
let filled = 0;

/** Reads one frame that must be of `type`; its payload as text, or `undefined` when the host hung up. */
function receive(type) {
  const length = receiveHeader(type);
  if (length === undefined) return undefined;
  if (length > AHEAD_BYTES - taken) {
    const payload = take(length);
    return payload === undefined ? undefined : decode(payload, 'utf8');
  }
  if (!fill(length)) return undefined;
  taken += length;
  return decode(ahead, 'utf8', taken - length, taken);
}

function receiveBytes(type) {
  const length = receiveHeader(type);
  return length === undefined ? undefined : take(length);
}

/** The type of the frame whose header was received last. */
let receivedType;

/** The length of the payload that follows, in a frame of `type`, or of any type. */
function receiveHeader(type) {
  const fits = HEADER_BYTES <= AHEAD_BYTES - taken;
  const header = fits ? ahead : take(HEADER_BYTES);
  if (header === undefined || (fits && !fill(HEADER_BYTES))) return undefined;
  const at = fits ? taken : 0;
  if (fits) taken += HEADER_BYTES;
  receivedType = header[at + 4];
  if (type !== undefined && receivedType !== type) {
    throw new IntrinsicError(`frame ${receivedType} on the channel where ${type} is due`);
  }
  return header[at] + header[at + 1] * 0x100 + header[at + 2] * 0x10000 + header[at + 3] * 0x1000000;
}

/** Has `length` more bytes than were taken in `ahead`, which has the room; whether they came. */
function fill(length) {
  while (filled - taken < length) {
    const count = readSome(ahead, filled, AHEAD_BYTES - filled);
    if (count === 0) return false;
    filled += count;
  }
  return true;
}

/** As many bytes, in a buffer of their own. */
function take(length) {
  return takeInto(Buffer.allocUnsafe(length), length);
}

/** As many bytes at the start of `bytes`; `undefined` when the host hung up. */
function takeInto(bytes, length) {
  let got = copy(ahead, bytes, 0, taken, min(filled, taken + length));
  taken += got;
  while (got < length) {
    const count = readSome(bytes, got, length - got);
    if (count === 0) return undefined;
    got += count;
  }
  return bytes;
}

/** How many bytes were read; 0 when the host hung up. */
function readSome(bytes, at, most) {
  for (;;) {
    try {
      return readSync(channel, bytes, at, most, null);
    } catch (error) {
      if (error.code === 'EOF' || error.code === 'ECONNRESET') return 0;
      if (error.code !== 'EAGAIN') throw error;
      rest();
    }
  }
}

/** The channel is a blocking one; should somebody have made it non-blocking, wait without spinning. */
function rest() {
  wait(idle, 0, 0, BUSY_WAIT_MS);
}

// ---- thrown values ------------------------------------------------------------------------------------------------------

/** JSON text of the thrown value `value`; never throws, whatever `value` does when it is looked at. */
function describe(value, origin) {
  try {
    const budget = { __proto__: null, units: TEXTS_LIMIT_UNITS, values: VALUES_LIMIT };
    const first = origin === undefined ? '' : `"origin":${stringify(cut(origin, budget))},`;
    return `{${first}${members(value, budget, undefined)}}`;
  } catch {
    return '{"text":"something that cannot be described"}';
  }
}

/** `above` is the chain of values that `value` was reached through, innermost first. */
function members(value, budget, above) {
  budget.values -= 1;
  const path = { __proto__: null, value, above, depth: above === undefined ? 1 : above.depth + 1 };
  if (!isErrorLike(value)) return nonErrorMembers(value, budget);

  const name = asText(read(value, 'name') ?? 'Error');
  const message = asText(read(value, 'message') ?? '');
  const text = name === '' ? message : message === '' ? name : `${name}: ${message}`;
  const stack = read(value, 'stack');
  let json = textMember('text', text, budget);
  json += `,${textMember('name', name, budget)},${textMember('message', message, budget)}`;
  if (typeof stack === 'string') json += `,${textMember('stack', cleanStack(stack, value), budget)}`;
  json += fieldsMember(value, budget);
  json += causeMember(read(value, 'cause'), budget, path);
  return json + (isAggregate(value, name) ? errorsMember(read(value, 'errors'), budget, path) : '');
}

function nonErrorMembers(value, budget) {
  if (value === undefined) return `${textMember('text', 'undefined', budget)},"kind":"undefined"`;
  if (value === null || typeof value === 'boolean' || (typeof value === 'number' && isFiniteNumber(value))) {
    return `${textMember('text', toText(value), budget)},"value":${stringify(value)}`;
  }
  const json = typeof value === 'object' && value !== null ? jsonOf(value) : undefined;
  // `{}` tells nothing about a Map or a class instance; `inspect` does.
  const telling = json !== undefined && json !== '{}';
  const text = textMember('text', telling ? json : asText(value), budget);
  if (!telling || json.length > min(TEXT_LIMIT_UNITS, budget.units)) return text;
  budget.units -= json.length;
  return `${text},"fields":${json}`;
}

/** Enumerable own properties that JSON can carry, as far as they fit. */
function fieldsMember(error, budget) {
  const names = keysOf(error);
  let json = '';
  for (let i = 0; i < min(names.length, FIELDS_LIMIT); i++) {
    const name = names[i];
    if (isKnownMember(name)) continue;
    const field = jsonOf(read(error, name));
    if (field === undefined || name.length + field.length > min(TEXT_LIMIT_UNITS, budget.units)) continue;
    budget.units -= name.length + field.length;
    json += `${json === '' ? '' : ','}${stringify(name)}:${field}`;
  }
  return json === '' ? '' : `,"fields":{${json}}`;
}

function isKnownMember(name) {
  return name === 'name' || name === 'message' || name === 'stack' || name === 'cause';
}

function causeMember(cause, budget, path) {
  if (cause === undefined || !canNest(cause, budget, path)) return '';
  return `,"cause":{${members(cause, budget, path)}}`;
}

/** What other errors have under that name (validation libraries do) is a field like any other. */
function isAggregate(error, name) {
  try {
    return name === 'AggregateError' || error instanceof IntrinsicAggregateError;
  } catch {
    // A proxy may refuse to say what it is.
    return false;
  }
}

/** The errors of an `AggregateError`. */
function errorsMember(errors, budget, path) {
  if (!isArrayLike(errors)) return '';
  let json = '';
  for (let i = 0; i < min(errors.length, AGGREGATE_LIMIT_ERRORS); i++) {
    const error = read(errors, i);
    if (!canNest(error, budget, path)) continue;
    json += `${json === '' ? '' : ','}{${members(error, budget, path)}}`;
  }
  return `,"errors":[${json}]`;
}

function canNest(value, budget, path) {
  if (budget.values <= 0 || path.depth >= CAUSE_LIMIT_LEVELS) return false;
  for (let at = path; at !== undefined; at = at.above) if (at.value === value) return false;
  return true;
}

function isArrayLike(value) {
  try {
    return isArray(value) && typeof value.length === 'number';
  } catch {
    return false;
  }
}

/** Errors of every realm, things that inherit from `Error` (`DOMException`), and what looks like an error. */
function isErrorLike(value) {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return false;
  try {
    if (isNativeError(value) || value instanceof IntrinsicError) return true;
  } catch {
    // A proxy may refuse to say what it is.
  }
  return typeof read(value, 'message') === 'string' && typeof read(value, 'stack') === 'string';
}

/** One property, whatever its getter does. */
function read(object, key) {
  try {
    return object[key];
  } catch {
    return undefined;
  }
}

function keysOf(object) {
  try {
    return keys(object);
  } catch {
    return [];
  }
}

function jsonOf(value) {
  try {
    return stringify(value);
  } catch {
    return undefined;
  }
}

function asText(value) {
  if (typeof value === 'string') return value;
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return toText(value);
  const json = typeof value === 'object' ? jsonOf(value) : undefined;
  if (json !== undefined && json !== '{}') return json;
  try {
    return inspect(value, { __proto__: null, depth: 2, customInspect: false, breakLength: Infinity });
  } catch {
    return `an unreadable ${typeof value}`;
  }
}

function textMember(name, text, budget) {
  return `"${name}":${stringify(cut(text, budget))}`;
}

function cut(text, budget) {
  const units = min(text.length, TEXT_LIMIT_UNITS, budget.units);
  budget.units -= units;
  return toWellFormed(units === text.length ? text : slice(text, 0, units));
}

// ---- stack traces -------------------------------------------------------------------------------------------------------

/** How positions in stack traces lead back to the user's text; set once the job is known. */
let positions = { __proto__: null, shownAs: undefined, name: undefined, map: undefined };

/** Errors whose stack `userStack` has written. */
const written = new WeakSet();

/**
 * What `error.stack` is, for the function as well: frames with positions of the user's text, and those of this package left out.
 * Node calls it when a stack is read for the first time.
 */
function userStack(error, frames) {
  let text = nodeStack(error, []);
  for (let i = 0; i < frames.length; i++) {
    const line = `\n    at ${frameText(frames[i])}`;
    // Whatever is below was there before the user's code.
    if (isOwnFrame(line)) break;
    text += userPosition(line);
  }
  addTo(written, error);
  return text;
}

/** Has stacks read as `userStack` writes them, unless a package that is loaded already does so in another way. */
function writeStacks() {
  if (IntrinsicError.prepareStackTrace === nodeStack) defineHidden(IntrinsicError, 'prepareStackTrace', userStack);
}

/** Whether positions in the stack of `error` are the user's already: it was written by `userStack`, or put together from such. */
function isWritten(error) {
  return isIn(written, error) || read(IntrinsicError, 'prepareStackTrace') === userStack;
}

/** The stack of `error` without the frames of this package and of Node's internals, its positions those of the user's text. */
function cleanStack(stack, error) {
  const done = isWritten(error);
  let clean = '';
  for (let start = 0; start <= stack.length; ) {
    const newline = indexOf(stack, '\n', start);
    const end = newline < 0 ? stack.length : newline;
    const line = slice(stack, start, end);
    if (!isForeignFrame(line))
      clean += (start === 0 ? '' : '\n') + (done ? placeOnly(line, start) : userPosition(line));
    start = end + 1;
  }
  return clean;
}

/** In front of the stack of a syntax error Node puts the place, when the stack is written already. */
function placeOnly(line, start) {
  return start === 0 && startsWith(line, `${positions.shownAs}:`) ? userPosition(line) : line;
}

function isForeignFrame(line) {
  if (!startsWith(trimStart(line), 'at ')) return false;
  // Node's loaders run through `diagnostics_channel`.
  if (includes(line, 'node:internal/') || includes(line, 'node:diagnostics_channel:')) return true;
  return isOwnFrame(line);
}

/** The folder of this script holds what this package runs in a worker, and nothing else. */
const OWN_FOLDER = dirname(__filename) + sep;

function isOwnFrame(line) {
  return includes(line, OWN_FOLDER);
}

/** Rewrites `<file>:<line>` and `<file>:<line>:<column>` of the compiled text. */
function userPosition(text) {
  const { shownAs, map } = positions;
  const at = map === undefined ? -1 : indexOf(text, `${shownAs}:`);
  if (at < 0) return text;
  const lineStart = at + shownAs.length + 1;
  const lineEnd = skipDigits(text, lineStart);
  if (lineEnd === lineStart) return text;
  const columnStart = charCodeAt(text, lineEnd) === 58 /* : */ ? lineEnd + 1 : lineEnd;
  const columnEnd = skipDigits(text, columnStart);
  const hasColumn = columnEnd > columnStart;
  const column = hasColumn ? +slice(text, columnStart, columnEnd) : 1;
  const user = map(+slice(text, lineStart, lineEnd), column);
  if (user === undefined) return text;
  const rest = slice(text, hasColumn ? columnEnd : lineEnd);
  const name = positions.name ?? shownAs;
  return `${slice(text, 0, at)}${name}:${user.line}${hasColumn ? `:${user.column}` : ''}${rest}`;
}

function skipDigits(text, from) {
  let at = from;
  while (at < text.length && charCodeAt(text, at) >= 48 && charCodeAt(text, at) <= 57) at++;
  return at;
}

/** A function from 1-based positions of the compiled text to those of the user's, or `undefined` where they are equal. */
function positionMap({ kind, sourceMap, lineOffset, columnOffset }) {
  if (typeof sourceMap === 'string') return throughSourceMap(sourceMap);
  // Of a script V8 knows the offsets; only a column offset below the first line is beyond it.
  const lines = kind === 'module' ? lineOffset : 0;
  const columns = kind === 'module' || lineOffset !== 0 ? columnOffset : 0;
  if (lines === 0 && columns === 0) return undefined;
  return (line, column) => ({
    __proto__: null,
    line: line - lines,
    column: line - lines === 1 ? column - columns : column,
  });
}

function throughSourceMap(json) {
  let map;
  return (line, column) => {
    try {
      // Parsed when the first error needs it.
      map ??= new Module.SourceMap(parse(json));
      const { originalLine, originalColumn } = map.findEntry(line - 1, column - 1);
      if (originalLine === undefined) return undefined;
      return { __proto__: null, line: originalLine + 1, column: originalColumn + 1 };
    } catch {
      return undefined;
    }
  };
}

// ---- the job ------------------------------------------------------------------------------------------------------------

/** What install scripts of the packages left below their home folder: browsers, caches. */
const HOME_OF_SCRIPTS = '.home';
/** Links made for one call: more are no home folder of anybody's. */
const HOME_LINKS_MAX = 256;

/**
 * Leads from the call's home folder to what install scripts put below theirs. Folders at the top are made, and what is in them is
 * linked, so that the function can add to them: `~/.cache/puppeteer` is the tree's, `~/.cache/mine` its own.
 */
function linkHome(tree, home) {
  const from = `${tree}/${HOME_OF_SCRIPTS}`;
  let names;
  try {
    names = fs.readdirSync(from, { withFileTypes: true });
  } catch {
    return;
  }
  let links = 0;
  const link = (name) => {
    if (links++ >= HOME_LINKS_MAX) return;
    try {
      fs.symlinkSync(`${from}/${name}`, `${home}/${name}`);
    } catch {
      // Something of that name is there.
    }
  };
  for (let i = 0; i < names.length; i++) {
    const { name } = names[i];
    if (!names[i].isDirectory()) {
      link(name);
      continue;
    }
    try {
      fs.mkdirSync(`${home}/${name}`, { recursive: true });
      const below = fs.readdirSync(`${from}/${name}`);
      for (let j = 0; j < below.length; j++) link(`${name}/${below[j]}`);
    } catch {
      // The function finds less there.
    }
  }
}

/** Gives the process the environment, folder and arguments of the job. */
function adopt({ env, cwd, tmpdir, filename }) {
  const wanted = { __proto__: null };
  for (let i = 0; i < env.length; i += 2) wanted[env[i]] = env[i + 1];
  wanted[self.platform === 'win32' ? 'TEMP' : 'TMPDIR'] = tmpdir;
  const present = keys(self.env);
  for (let i = 0; i < present.length; i++) if (wanted[present[i]] === undefined) delete self.env[present[i]];
  const names = keys(wanted);
  // Assigning tells V8 about a new time zone; an equal value costs nothing.
  for (let i = 0; i < names.length; i++) {
    if (self.env[names[i]] !== wanted[names[i]]) self.env[names[i]] = wanted[names[i]];
  }
  if (self.cwd() !== cwd) self.chdir(cwd);
  if (standIns === undefined) self.argv = [self.execPath, filename];
  else {
    standIns.argv[1] = filename;
    self.argv = standIns.argv;
    settleModule(standIns.parent, filename);
    settleModule(standIns.main, filename);
  }
  delete require.cache[__filename];
}

/** What packages that were loaded ahead have seen of the call: `{ argv, main, parent }`. The job gives them its places. */
let standIns;

function standIn(seen) {
  standIns = seen;
}

function settleModule(module, filename) {
  const folder = dirname(filename);
  module.id = filename;
  module.path = folder;
  module.filename = filename;
  module.paths = Module._nodeModulePaths(folder);
}

/**
 * Lets a stream write at once, as Node promises for pipes on Linux and does up to 64 KiB: what is printed before the function
 * settles, or before the process exits, is then with the host before it hears of that.
 */
function writeAtOnce(name) {
  const descriptor = getOwnPropertyDescriptor(self, name);
  const makeStream = descriptor?.get;
  if (makeStream === undefined || !descriptor.configurable) return;
  let stream;
  // Made when it is first used: that costs more than many a function.
  const get = () => {
    if (stream !== undefined) return stream;
    stream = apply(makeStream, self, []);
    try {
      stream._handle.setBlocking(true);
    } catch {
      // It is no pipe: the function put something else in its place.
    }
    return stream;
  };
  defineProperty(self, name, { __proto__: null, get, set: descriptor.set, enumerable: true, configurable: true });
}

/** The body of a CommonJS function as a function. Names and places are those of the job, whoever made `cachedData`. */
function compileBody(job, code, cachedData, produceCachedData) {
  const mapped = typeof job.sourceMap === 'string';
  return vm.compileFunction(code, ['exports', 'require', 'module', '__filename', '__dirname'], {
    filename: job.filename,
    lineOffset: mapped ? 0 : -job.lineOffset,
    columnOffset: mapped || job.lineOffset !== 0 ? 0 : -job.columnOffset,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    cachedData,
    produceCachedData,
  });
}

/** The oldest Node in which what was compiled from a cache has its own name and can import. */
const OLDEST_WITH_CACHES = 22;

/** Sends V8's code cache of a text, which never runs here: nothing of anybody's has, in a process that is asked for this. */
function compileOnly(job, code) {
  if (Number.parseInt(self.versions.node, 10) >= OLDEST_WITH_CACHES) {
    const { cachedData } = compileBody(job, code, undefined, true);
    const frame = Buffer.alloc(HEADER_BYTES + cachedData.length);
    frame.writeUInt32LE(cachedData.length);
    frame[4] = COMPILED;
    cachedData.copy(frame, HEADER_BYTES);
    write(frame, frame.length);
  }
  self.exit(0);
}

/** Whether this process was booted for its job. A zygote drops the warning once for all of its children. */
const isBooted = require.main === module;

/** A text that may call `import()`. */
const IMPORT_CALL = /\bimport\s*\(/;

/**
 * Node warns once per process, at the first `import()`, of the loader that this script gives to the code it compiles. The
 * warning would be in the tool's stderr, so it is drawn here, before anything of the tool runs, and dropped.
 */
function dropLoaderWarning(filename) {
  const { emitWarning } = self;
  self.emitWarning = () => {};
  try {
    const load = vm.compileFunction("return import('node:module')", [], {
      filename,
      importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    });
    load();
  } finally {
    self.emitWarning = emitWarning;
  }
}

/** Compiles a script; gives what makes its tool function. */
function compileScript(job, code, cachedData) {
  const { filename } = job;
  if (isBooted && IMPORT_CALL.test(code)) dropLoaderWarning(filename);
  const compiled = compileBody(job, code, cachedData, false);
  if (cachedData !== undefined && compiled.cachedDataRejected !== false) send(UNCACHED, '');
  const folder = dirname(filename);
  const module = standIns?.main ?? new Module(filename);
  if (standIns === undefined) settleModule(module, filename);
  // `require.main` is what this names, as for any file that was started as a program.
  self.mainModule = module;
  const require = createRequire(filename);
  rememberPlaces(folder);
  return () => apply(compiled, module.exports, [module.exports, require, module, filename, folder]);
}

/** Writes a module to the working folder; gives what loads it. */
function prepareModule({ filename }, code) {
  fs.writeFileSync(filename, code);
  self.mainModule = undefined;
  // Globals, not declarations in the module: the module may well declare a `require` of its own.
  defineHidden(globalThis, 'require', createRequire(filename));
  rememberPlaces(dirname(filename));
  defineHidden(globalThis, '__filename', filename);
  defineHidden(globalThis, '__dirname', dirname(filename));
  return () => importModule(filename, code);
}

/** Behind a module that imports names from packages: what to write instead where Node does not see them; see `named.rs`. */
const NAMED_IMPORTS = '\n//# namedImports=';

/**
 * Imports the module. Where Node refuses a name of a CommonJS package, which it does before anything runs, the name is read from
 * `module.exports`, as bundlers do; so is what `import * as` lacks.
 */
async function importModule(filename, code) {
  const url = pathToFileURL(filename).href;
  const own = positions;
  const named = namedImports(code);
  let used = importsOf(named, refusedPackages);
  if (used.length > 0) {
    positions = { __proto__: null, ...own, map: behind(own.map, writeWithoutNames(filename, code, used)) };
  }
  for (let attempt = 0; ; attempt++) {
    try {
      return (await import(attempt === 0 ? url : `${url}?${attempt}`)).default;
    } catch (error) {
      noteRefusal(named, error);
      const refused = importsOf(named, refusedPackages);
      // It is another module's, or was tried.
      if (refused.length <= used.length) throw error;
      used = refused;
      const added = writeWithoutNames(filename, code, used);
      positions = { __proto__: null, shownAs: `${url}?${attempt + 1}`, name: url, map: behind(own.map, added) };
    }
  }
}

/** What stands behind the code of its imports by name. */
function namedImports(code) {
  const at = lastIndexOf(code, NAMED_IMPORTS);
  return at < 0 ? [] : parse(slice(code, at + NAMED_IMPORTS.length));
}

/** The packages of which Node has refused a name so far. */
const refusedPackages = { __proto__: null };

function noteRefusal(named, error) {
  const message = isNativeError(error) ? read(error, 'message') : undefined;
  if (typeof message !== 'string' || !includes(message, 'is a CommonJS module')) return;
  for (let i = 0; i < named.length; i++) {
    const { specifier } = named[i];
    if (includes(message, `'${specifier}'`)) refusedPackages[specifier] = true;
  }
}

/** Those of `named` that are written in another way: of packages among `refused`, or of all names. */
function importsOf(named, refused) {
  const found = [];
  for (let i = 0; i < named.length; i++) {
    if (named[i].all || refused[named[i].specifier] === true) found[found.length] = named[i];
  }
  return found;
}

/**
 * What `import * as` gives of a CommonJS package: what Node sees of it, and what else `module.exports` has. A module stays what it is. Is put
 * into the code of the function, which may have names of its own for everything.
 */
const ALL_NAMES = `(m=>{const d=m.default;if(d===null||typeof d!=="object"&&typeof d!=="function")return m;
if(!("module.exports"in m)&&!Object.values(globalThis.require.cache).some(c=>c.exports===d))return m;
const o={__proto__:null},own=typeof d==="function"?["length","name","prototype","arguments","caller"]:[];
for(const k of Object.keys(m))Object.defineProperty(o,k,{enumerable:true,get:()=>m[k]});
for(const k of Object.getOwnPropertyNames(d))if(!(k in o)&&!own.includes(k))Object.defineProperty(o,k,{enumerable:Object.prototype.propertyIsEnumerable.call(d,k),get:()=>d[k]});
return Object.freeze(Object.defineProperty(o,Symbol.toStringTag,{value:"Module"}))})`.replaceAll('\n', '');

/** The module with other imports in place of `named`; gives how far its first line moved. */
function writeWithoutNames(filename, code, named) {
  let check = '$has';
  while (includes(code, check)) check += '$';
  let first = `const ${check}=(m,p,n)=>{for(const k of n)if(!(k in Object(m)))throw Object.assign(new SyntaxError("The package '"+p+"' has no export named '"+k+"'"),{code:"${NO_TOOL}"})};`;
  let text = code;
  for (let i = 0; i < named.length; i++) {
    const { specifier, start, end, text: other, names, module, declare, all } = named[i];
    text = slice(text, 0, start) + other + slice(text, end);
    if (all) {
      first += `const ${declare}=${ALL_NAMES}(${module});`;
      continue;
    }
    first += `${check}(${module},${stringify(specifier)},${stringify(names)});${declare}`;
  }
  fs.writeFileSync(filename, first + text);
  return first.length;
}

/** `map` for a text whose first line has `added` columns more. */
function behind(map, added) {
  return (line, column) => {
    const own = line === 1 ? column - added : column;
    return map === undefined ? { __proto__: null, line, column: own } : map(line, own);
  };
}

/** Where the modules are that this process loaded before it was given a job, by the name they are required by. */
const places = { __proto__: null };

/** Says where `require(specifier)` leads from below the tree's folder. */
function place(specifier, filename) {
  places[specifier] = filename;
}

/**
 * Tells Node where `require` finds these from `folder`, whose packages are the tree's by a link that the function can't
 * change: reading their `package.json` by a path that is new to each call took a third of a millisecond each. What the function
 * itself puts in front of them is found as ever.
 */
function rememberPlaces(folder) {
  const specifiers = keys(places);
  if (specifiers.length === 0) return;
  const parent = { __proto__: null, id: folder, paths: Module._nodeModulePaths(folder) };
  const nearest = parent.paths[0];
  for (let i = 0; i < specifiers.length; i++) {
    const specifier = specifiers[i];
    const paths = Module._resolveLookupPaths(specifier, parent);
    if (paths === null || paths.length < 2) continue;
    let key = specifier;
    for (let at = 0; at < paths.length; at++) key += `\0${paths[at]}`;
    const found = (value) =>
      defineProperty(Module._pathCache, key, {
        __proto__: null,
        value,
        writable: true,
        configurable: true,
        enumerable: true,
      });
    defineProperty(Module._pathCache, key, {
      __proto__: null,
      get: () => (existsSync(nearest) ? undefined : found(places[specifier])[key]),
      set: found,
      configurable: true,
      enumerable: true,
    });
  }
}

function modulePath(filename) {
  return `${filename.replace(/\.[cm]?[jt]s$/, '')}.mjs`;
}

function defineHidden(object, key, value) {
  defineProperty(object, key, { __proto__: null, value, configurable: true, writable: true, enumerable: false });
}

/** The `code` of an error by which prepared code says that the text is no good: none of its values is a function, say. */
const NO_TOOL = 'ERR_NO_TOOL';

/** Whether `error` says that the text itself is no good, and not something that it runs. */
function isOwnSyntaxError(error, isModule) {
  if (!isNativeError(error) || read(error, 'name') !== 'SyntaxError') return false;
  const stack = read(error, 'stack');
  if (typeof stack !== 'string') return false;
  // Of a module that does not parse Node tells no place; nobody's code is in the stack then.
  return startsWith(stack, `${positions.shownAs}:`) || (isModule && !includes(cleanStack(stack, error), '\n    at '));
}

/** Puts the line, which V8 tells at the start of the stack only, into the message. */
function withLine(error) {
  const stack = userPosition(error.stack);
  if (!startsWith(stack, `${positions.shownAs}:`)) return error;
  const start = positions.shownAs.length + 1;
  defineHidden(error, 'message', `${error.message} (line ${slice(stack, start, skipDigits(stack, start))})`);
  return error;
}

/**
 * A plain promise that `await` will take as it is, even if the function took `Promise.prototype.constructor` away.
 * A subclass may have a `then` of its own and is left alone.
 */
function pinned(value) {
  if (isPromise(value) && getPrototypeOf(value) === promisePrototype) {
    try {
      defineHidden(value, 'constructor', IntrinsicPromise);
    } catch {
      // Frozen: then `await` looks the constructor up.
    }
  }
  return value;
}

// ---- talking with the host ----------------------------------------------------------------------------------------------

/** What goes on between function and host before the result; `undefined` where the call offers nothing. */
let talk;

/** Gives what the function gets beside its arguments, if the call offers something. */
function beginTalk(offer) {
  if (offer === undefined) return undefined;
  talk = {
    __proto__: null,
    offer,
    waiting: { __proto__: null },
    pending: 0,
    nextId: 1,
    untaken: 0,
    room: undefined,
    socket: undefined,
    // What was read of a frame that is not whole yet: the first `heldBytes` of `held`.
    held: Buffer.alloc(0),
    heldBytes: 0,
  };
  const given = {};
  if (offer.functions.length > 0) given.host = hostObject(offer.functions);
  if (offer.progress) given.progress = tellProgress;
  return keys(given).length === 0 ? undefined : given;
}

/** `crm.find` is the property `find` of the object `crm`. */
function hostObject(names) {
  const host = { __proto__: null };
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    let holder = host;
    let rest = name;
    for (let dot = indexOf(rest, '.'); dot !== -1; dot = indexOf(rest, '.')) {
      const part = slice(rest, 0, dot);
      holder[part] ??= { __proto__: null };
      holder = holder[part];
      rest = slice(rest, dot + 1);
    }
    holder[rest] = (args) => callHost(name, args);
  }
  return host;
}

function callHost(name, args) {
  return new IntrinsicPromise((resolve, reject) => {
    const json = args === undefined ? undefined : stringify(args);
    const bytes = json === undefined ? 0 : byteLength(json);
    const { maxMessageBytes } = talk.offer;
    if (bytes > maxMessageBytes) {
      throw new IntrinsicRangeError(
        `the arguments of host.${name} have ${bytes} bytes as JSON, at most ${maxMessageBytes} are allowed (functionLimits.messageBytes)`
      );
    }
    if (settled) throw new IntrinsicError(`host.${name} was called after the function had settled`);
    const id = talk.nextId++;
    talk.waiting[id] = { __proto__: null, resolve, reject };
    talk.pending += 1;
    listenToHost().ref();
    send(CALL, `{"id":${id},"name":${stringify(name)}${json === undefined ? '' : `,"args":${json}`}}`);
  });
}

function tellProgress(value) {
  const json = stringify(value);
  if (json === undefined || settled) return;
  const bytes = byteLength(json);
  if (bytes > PROGRESS_LIMIT_BYTES) {
    throw new IntrinsicRangeError(`progress has ${bytes} bytes as JSON, at most ${PROGRESS_LIMIT_BYTES} are allowed`);
  }
  send(PROGRESS, json);
}

/** What the call of a generator fails with where nobody takes what it yields; nothing of it has run then. */
const nobodyTakesYields = new IntrinsicTypeError(
  'the function is a generator, and this call takes no values from it: give onYield with the call, or return all values at once'
);

/** Hands on what a generator yields, no faster than the host takes it; gives what it returns. */
async function handOn(generator) {
  if (talk?.offer.yields !== true) throw nobodyTakesYields;
  for (;;) {
    const { done, value } = await pinned(generator.next());
    if (done) {
      // The result comes when the host has taken all that was yielded.
      while (talk.untaken > 0) await roomForYields();
      return value;
    }
    const json = stringify(value) ?? 'null';
    const bytes = byteLength(json);
    if (bytes > talk.offer.maxMessageBytes) {
      await generator.return();
      throw new IntrinsicRangeError(
        `a yielded value has ${bytes} bytes as JSON, at most ${talk.offer.maxMessageBytes} are allowed (functionLimits.messageBytes)`
      );
    }
    talk.untaken += 1;
    send(YIELDED, json);
    while (talk.untaken >= YIELD_WINDOW) await roomForYields();
  }
}

function roomForYields() {
  listenToHost().ref();
  return new IntrinsicPromise((resolve) => {
    talk.room = resolve;
  });
}

/** Reads what the host says, from when the function first waits for it. */
function listenToHost() {
  if (talk.socket !== undefined) return talk.socket;
  const { Socket } = require('node:net');
  // One buffer for every read, and no stream's machinery between: a round trip is mostly made of such costs.
  const onread = { __proto__: null, buffer: Buffer.allocUnsafeSlow(HEARD_BYTES), callback: takeIn };
  const socket = new Socket({ fd: channel, readable: true, writable: false, onread });
  // The host is gone, and this process with it before long.
  socket.on('error', () => {});
  talk.socket = socket;
  return socket;
}

/** Takes the frames out of the first `count` bytes of `chunk`, which is written over after that. */
function takeIn(count, chunk) {
  if (talk.heldBytes > 0) {
    hold(chunk, 0, count);
    const { held, heldBytes } = talk;
    const at = takeFrames(held, heldBytes);
    copy(held, held, 0, at, heldBytes);
    talk.heldBytes = heldBytes - at;
  } else {
    hold(chunk, takeFrames(chunk, count), count);
  }
  if (talk.pending === 0 && talk.room === undefined) talk.socket.unref();
}

/** Takes the whole frames among the first `end` bytes; where the next one begins. */
function takeFrames(bytes, end) {
  let at = 0;
  while (end - at >= HEADER_BYTES) {
    const length = lengthAt(bytes, at);
    const next = at + HEADER_BYTES + length;
    if (next > end) break;
    heardFromHost(bytes[at + 4], decode(bytes, 'utf8', at + HEADER_BYTES, next));
    at = next;
  }
  return at;
}

/** Keeps bytes until the rest of their frame is there. */
function hold(bytes, from, to) {
  const { held, heldBytes } = talk;
  const needed = heldBytes + to - from;
  if (needed > held.length) {
    // Twice as much each time: a long frame is then not copied for every piece of it that comes.
    talk.held = Buffer.allocUnsafeSlow(max(needed, 2 * held.length));
    copy(held, talk.held, 0, 0, heldBytes);
  }
  copy(bytes, talk.held, heldBytes, from, to);
  talk.heldBytes = needed;
}

function lengthAt(bytes, at) {
  return bytes[at] + bytes[at + 1] * 0x100 + bytes[at + 2] * 0x10000 + bytes[at + 3] * 0x1000000;
}

function heardFromHost(type, payload) {
  if (type !== ANSWER) {
    talk.untaken -= 1;
    const room = talk.room;
    talk.room = undefined;
    room?.();
    return;
  }
  const [id, ok, value] = parse(payload);
  const waiting = talk.waiting[id];
  if (waiting === undefined) return;
  delete talk.waiting[id];
  talk.pending -= 1;
  if (ok) waiting.resolve(value);
  else waiting.reject(errorOfHost(value));
}

/** The error of a host function: name and message, nothing else of the host's. */
function errorOfHost({ name, message }) {
  const error = new IntrinsicError(message);
  if (name !== 'Error') defineHidden(error, 'name', name);
  return error;
}

// ---- files --------------------------------------------------------------------------------------------------------------

/** Places the files of the call in its working folder, which nobody has written to yet; whether all are there. */
function placeFiles({ cwd, files }) {
  const chunk = Buffer.allocUnsafe(FILE_CHUNK_BYTES);
  let fit = true;
  for (let i = 0; i < files; i++) {
    const path = receive(FILE);
    if (path === undefined) self.exit(0);
    // What cannot be written is read all the same: the host goes on sending until it has heard of it.
    fit = placeFile(cwd, path, chunk, fit) && fit;
  }
  return fit;
}

function placeFile(cwd, path, chunk, isWanted) {
  let descriptor;
  let failure;
  const attempt = (act) => {
    if (!isWanted || failure !== undefined) return;
    try {
      act();
    } catch (error) {
      failure = error;
    }
  };
  attempt(() => {
    const end = lastIndexOf(path, '/');
    if (startsWith(path, 'node_modules/')) makeWayForPackages(cwd);
    if (end > 0) mkdirSync(`${cwd}/${slice(path, 0, end)}`, { __proto__: null, recursive: true });
    descriptor = openSync(`${cwd}/${path}`, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o644);
  });
  for (;;) {
    const length = receiveHeader(undefined);
    if (length === undefined) self.exit(0);
    if (receivedType === FILE_END) break;
    if (receivedType !== FILE_DATA) throw new IntrinsicError(`frame ${receivedType} on the channel within a file`);
    if (takeInto(chunk, length) === undefined) self.exit(0);
    attempt(() => {
      for (let at = 0; at < length; ) at += writeSync(descriptor, chunk, at, length - at);
    });
  }
  if (descriptor !== undefined) attempt(() => closeSync(descriptor));
  if (failure !== undefined) send(UNPLACED, describeFailure(path, failure));
  return failure === undefined;
}

/** What the caller gives comes before the link to the packages; they are found one folder above all the same. */
function makeWayForPackages(cwd) {
  const link = `${cwd}/node_modules`;
  if (lstatSync(link, { __proto__: null, throwIfNoEntry: false })?.isSymbolicLink()) unlinkSync(link);
}

/** As a thrown value; the system's errors do not always name the file. */
function describeFailure(path, error) {
  const message = toText(read(error, 'message') ?? error);
  const fields = stringify({ __proto__: null, code: read(error, 'code'), syscall: read(error, 'syscall') });
  return `{"text":${stringify(`${path}: ${message}`)},"name":"Error","message":${stringify(message)},"fields":${fields}}`;
}

/** Hands over the files that the host wants, once the function has returned. */
function handOver(cwd, roots) {
  if (!listFiles(cwd, roots)) return;
  const frame = Buffer.allocUnsafeSlow(HEADER_BYTES + FILE_CHUNK_BYTES);
  for (;;) {
    const path = nextWanted();
    // None is wanted any more, or the host is gone.
    if (path === undefined || path === '') return;
    if (!sendFile(cwd, path, frame)) return;
  }
}

/** Sends what regular files there are below `roots`, in parts, and the end of the list; whether all could be looked at. */
function listFiles(cwd, roots) {
  const walk = { __proto__: null, folders: [{ __proto__: null, path: '', level: 0 }], count: 1, list: '' };
  while (walk.count > 0) {
    walk.count -= 1;
    const { path: folder, level } = walk.folders[walk.count];
    const entries = entriesOf(cwd, folder, level);
    if (entries === undefined) return false;
    for (let i = 0; i < entries.length; i++) {
      const path = folder === '' ? entries[i].name : `${folder}/${entries[i].name}`;
      visit(walk, entries[i], path, level, cwd, roots);
    }
  }
  if (walk.list !== '') send(LISTED, `${walk.list}]`);
  send(LISTED, '[]');
  return true;
}

function visit(walk, entry, path, level, cwd, roots) {
  if (isFolderEntry(entry)) {
    if (!leadsToRoot(path, roots)) return;
    walk.folders[walk.count] = { __proto__: null, path, level: level + 1 };
    walk.count += 1;
  } else if (isFileEntry(entry) && isBelowRoot(path, roots)) {
    walk.list = withFile(walk.list, cwd, path);
  }
}

/** What is in a folder; `undefined` where the host has been told that it cannot be read. */
function entriesOf(cwd, folder, level) {
  try {
    if (level > FOLDERS_LIMIT_LEVELS) throw new IntrinsicError(`it is more than ${FOLDERS_LIMIT_LEVELS} folders deep`);
    return readdirSync(folder === '' ? cwd : `${cwd}/${folder}`, { __proto__: null, withFileTypes: true });
  } catch (error) {
    // A folder that is removed meanwhile has no files; one whose name is no UTF-8 cannot be named here.
    if (read(error, 'code') === 'ENOENT' && !includes(folder, '\ufffd')) return [];
    unreadable(folder, error);
    return undefined;
  }
}

/** The list with one file more; sent, and begun again, when it is long. */
function withFile(list, cwd, path) {
  let bytes;
  try {
    bytes = lstatSync(`${cwd}/${path}`).size;
  } catch {
    if (!includes(path, '\ufffd')) return list;
    // Its name is no UTF-8: it can be asked for, and is then told to be unreadable.
    bytes = 0;
  }
  const longer = `${list}${list === '' ? '[' : ','}[${stringify(path)},${bytes}]`;
  if (longer.length < LIST_LIMIT_UNITS) return longer;
  send(LISTED, `${longer}]`);
  return '';
}

/** Whether something wanted may be in the folder `path`. */
function leadsToRoot(path, roots) {
  for (let i = 0; i < roots.length; i++) if (startsWith(roots[i], `${path}/`)) return true;
  return isBelowRoot(path, roots);
}

function isBelowRoot(path, roots) {
  for (let i = 0; i < roots.length; i++) {
    if (roots[i] === '' || path === roots[i] || startsWith(path, `${roots[i]}/`)) return true;
  }
  return false;
}

/** The path that the host wants next. What it answered to calls that nobody waits for any more is passed over. */
function nextWanted() {
  for (;;) {
    const header = takeLate(HEADER_BYTES);
    if (header === undefined) return undefined;
    const length = lengthAt(header, 0);
    const payload = takeLate(length);
    if (payload === undefined) return undefined;
    if (header[4] === WANT) return decode(payload, 'utf8', 0, length);
  }
}

/** As `take`, behind what was read while the function waited for the host. */
function takeLate(length) {
  if (talk === undefined || talk.heldBytes === 0) return take(length);
  const { held, heldBytes } = talk;
  const bytes = Buffer.allocUnsafe(length);
  const count = copy(held, bytes, 0, 0, min(heldBytes, length));
  copy(held, held, 0, count, heldBytes);
  talk.heldBytes = heldBytes - count;
  if (count === length) return bytes;
  const rest = take(length - count);
  if (rest === undefined) return undefined;
  copy(rest, bytes, count);
  return bytes;
}

/** Sends a file of the size that it has when it is opened; whether it could. No link is followed, and nothing but a regular file is read. */
function sendFile(cwd, path, frame) {
  let descriptor;
  try {
    descriptor = openSync(`${cwd}/${path}`, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    const stat = fstatSync(descriptor);
    if (!isFileStat(stat)) throw new IntrinsicError('it is no regular file any more');
    send(OPENED, `{"bytes":${stat.size}}`);
    for (let left = stat.size; left > 0; ) {
      const count = readSync(descriptor, frame, HEADER_BYTES, min(left, FILE_CHUNK_BYTES), null);
      if (count === 0) throw new IntrinsicError('it became shorter while it was read');
      frame[0] = count & 0xff;
      frame[1] = (count >>> 8) & 0xff;
      frame[2] = (count >>> 16) & 0xff;
      frame[3] = 0;
      frame[4] = DATA;
      write(frame, HEADER_BYTES + count);
      left -= count;
    }
    return true;
  } catch (error) {
    return unreadable(path, error);
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}

function unreadable(path, error) {
  const reason = slice(toText(read(error, 'message') ?? error), 0, 200);
  send(UNREADABLE, stringify({ __proto__: null, path: slice(path, 0, 1000), reason }));
  return false;
}

let settled = false;

function settle(type, payload) {
  if (settled) return;
  settled = true;
  send(type, payload);
}

function fail(type, error) {
  settle(type, describe(error));
  self.exitCode = 1;
}

async function run(job, code, args, cachedData) {
  const isModule = job.kind === 'module';
  const shownAs = isModule ? pathToFileURL(job.filename).href : job.filename;
  positions = { __proto__: null, shownAs, name: undefined, map: positionMap(job) };
  writeStacks();
  let load;
  if (isModule) {
    load = prepareModule(job, code);
  } else {
    try {
      load = compileScript(job, code, cachedData);
    } catch (error) {
      return fail(INVALID, withLine(error));
    }
  }
  watch();
  send(STARTED, '');
  let tool;
  try {
    tool = isModule ? await load() : load();
  } catch (error) {
    return read(error, 'code') === NO_TOOL || isOwnSyntaxError(error, isModule)
      ? fail(INVALID, withLine(error))
      : fail(THREW, error);
  }
  if (typeof tool !== 'function') return fail(INVALID, noFunction(tool, isModule));
  await call(tool, args, job);
}

/** Calls the function and answers with what comes of it. */
async function call(tool, args, { talk: offer, maxResultBytes, collect, cwd }) {
  const companions = beginTalk(offer);
  let result;
  try {
    result = await pinned(apply(tool, undefined, companions === undefined ? [args] : [args, companions]));
    if (isGeneratorObject(result)) result = await handOn(result);
  } catch (error) {
    return fail(error === nobodyTakesYields ? INVALID : THREW, error);
  }
  if (answer(result, maxResultBytes) && collect !== undefined) handOver(cwd, collect);
}

function noFunction(value, isModule) {
  const is = value === null ? 'null' : value === undefined ? 'undefined' : `of type ${typeof value}`;
  if (isModule) return new IntrinsicTypeError(`the module's default export must be the tool function, but it is ${is}`);
  return new IntrinsicTypeError(`the source text must be one function, but its value is ${is}`);
}

/** Sends the result; whether it could be sent. */
function answer(result, maxResultBytes) {
  let json;
  try {
    json = stringify(result) ?? '';
  } catch (error) {
    fail(UNSERIALIZABLE, error);
    return false;
  }
  const bytes = byteLength(json);
  const fits = bytes <= maxResultBytes;
  if (fits) settle(RETURNED, json);
  else settle(TOO_LARGE, `{"bytes":${bytes}}`);
  return fits;
}

/** What `watch` added to the process. */
const watchers = [];

/** Tells the host how the process ends; changes nothing of how it ends. */
function watch() {
  let drained = false;
  listen('uncaughtExceptionMonitor', (error, origin) => send(UNCAUGHT, describe(error, origin)));
  listen('beforeExit', () => {
    if (settled || drained) return;
    drained = true;
    send(DRAINED, '');
  });
  listen('exit', (code) => {
    // A host that has its answer asks the system how the process ended.
    if (!settled || deliver !== undefined) send(EXITING, `{"code":${code | 0}}`);
  });
}

function listen(event, listener) {
  watchers[watchers.length] = [event, listener];
  self.on(event, listener);
}

/** What `rehearse` ran last. V8 keeps what it knows of the form of a job as long as there is one. */
let sample;

/** One with the properties of a job of the host's, in their order. */
function sampleJob() {
  return {
    version: VERSION,
    kind: 'script',
    filename: __filename,
    toolId: '',
    cwd: self.cwd(),
    tmpdir: '/',
    tree: '/',
    env: listed(self.env),
    lineOffset: 0,
    columnOffset: 0,
    sourceMap: null,
    maxResultBytes: 100,
  };
}

/** Names and values in turn. */
function listed(env) {
  const names = keys(env);
  const list = [];
  for (let i = 0; i < names.length; i++) {
    list[2 * i] = names[i];
    list[2 * i + 1] = env[names[i]];
  }
  return list;
}

/**
 * Goes the way of a job once, for a process that will serve one later: its pages, and what is compiled lazily, are then in
 * place. Answers to nobody and leaves no trace.
 */
async function rehearse(text = 'return async ({ a }) => ({ a })') {
  const { argv, mainModule, env } = self;
  const own = { __proto__: null, channel, module: require.cache[__filename], TMPDIR: env.TMPDIR };
  const stacks = Object.getOwnPropertyDescriptor(IntrinsicError, 'prepareStackTrace');
  channel = fs.openSync('/dev/null', 'r+');
  try {
    receive(JOB);
    decode(ahead, 'utf8', 0, 1);
    sample = parse(stringify(sampleJob()));
    adopt(sample);
    await run(sample, text, parse('{"a":"b"}'));
  } finally {
    fs.closeSync(channel);
    channel = own.channel;
    settled = false;
    for (const [event, listener] of watchers) self.off(event, listener);
    watchers.length = 0;
    self.argv = argv;
    self.mainModule = mainModule;
    if (stacks === undefined) delete IntrinsicError.prepareStackTrace;
    else defineProperty(IntrinsicError, 'prepareStackTrace', stacks);
    if (own.module !== undefined) require.cache[__filename] = own.module;
    if (own.TMPDIR === undefined) delete env.TMPDIR;
    else env.TMPDIR = own.TMPDIR;
  }
}

/**
 * Takes the one job of this process from the descriptor `fd` and runs it. `begin` is called once the job is there, before
 * anything of it runs.
 */
function serve(fd, begin) {
  channel = fd;
  const job = receive(JOB);
  const code = job === undefined ? undefined : receive(SOURCE);
  const args = code === undefined ? undefined : receive(ARGS);
  // The host went away or did not need this worker.
  if (args === undefined) self.exit(0);
  const parsed = parse(job);
  const cachedData = parsed.hasCodeCache === true ? receiveBytes(CODE_CACHE) : undefined;
  if (begin !== undefined) begin();
  if (parsed.compilesOnly === true) return compileOnly(parsed, code);
  // Where one cannot be placed, the host ends this process.
  if (parsed.files !== undefined && !placeFiles(parsed)) self.exit(1);
  start(parsed, code, args, cachedData);
}

/**
 * Runs a job that came another way, with an object of variables; `take(type, payload)` gets the frames. It must be as wary of the
 * function as this script.
 */
function serveJob(job, code, args, take) {
  deliver = take;
  start({ ...job, env: listed(job.env) }, code, args);
}

function start(parsed, code, args, cachedData) {
  if (parsed.version !== VERSION)
    throw new IntrinsicError(`job of version ${parsed.version}, this worker reads ${VERSION}`);
  if (parsed.kind === 'module') parsed.filename = modulePath(parsed.filename);
  adopt(parsed);
  if (typeof parsed.tree === 'string' && typeof self.env.HOME === 'string') linkHome(parsed.tree, self.env.HOME);
  writeAtOnce('stdout');
  writeAtOnce('stderr');
  // What is not to be had costs nothing but time: Node compiles then, and says nothing.
  if (parsed.compileCache !== undefined) Module.enableCompileCache?.(parsed.compileCache);
  run(parsed, code, parse(args), cachedData);
}

module.exports = { place, rehearse, serve, serveJob, standIn };

if (isBooted) {
  // Windows has no descriptor 3 to pass on: there the channel is a named pipe.
  const pipe = self.env.NATIVE_SANDBOX_CHANNEL;
  serve(pipe === undefined ? CHANNEL_FD : fs.openSync(pipe, 'r+'));
}
