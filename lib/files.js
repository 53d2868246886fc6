'use strict';

// Files that a call gives its function, and files that it takes from it. The core checks names and moves the bytes (`src/files/`); here
// are the sources that only JavaScript can read, and the callback that takes files.

const { Readable } = require('node:stream');
const { resolve } = require('node:path');
const { fileURLToPath } = require('node:url');
const { constants } = require('node:fs');
const { lstat, open } = require('node:fs/promises');
const { isArrayBuffer } = require('node:util/types');
const { SandboxError, invalidConfig, isSandboxError, reasonOf } = require('./errors.js');
const { inertCause } = require('./inert.js');
const { charCodeAt, hidden, isArray, keys, min, orUndefined, parse, slice, stringify } = require('./intrinsics.js');
const { quietly } = require('./logger.js');
const { attempt, listenerOf, namesOf, read, shown } = require('./options.js');

/** What is handed to the core at once of a source. */
const PIECE_BYTES = 256 * 1024;
/** UTF-16 units of a text that are encoded at once: no more than a piece has bytes. */
const PIECE_UNITS = 64 * 1024;
/** Files that one call may be given. */
const FILES_LIMIT = 10_000;

/** Defaults and bounds of `collect`. */
const LIMITS = {
  __proto__: null,
  maxFiles: { fallback: 100, most: 10_000 },
  maxBytes: { fallback: 64 * 1024 * 1024, most: Number.MAX_SAFE_INTEGER },
};
/** Patterns of one `collect`; the core has the same bound. */
const PATTERNS_LIMIT = 100;
const COLLECT_FIELDS = ['match', 'into', 'onFile', 'maxFiles', 'maxBytes'];

const NOTHING = new Uint8Array(0);

/**
 * The files of a call, from its options; `undefined` where it has none and wants none.
 * @param {object | undefined} call
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function filesOf(call) {
  if (call === undefined || call === null) return undefined;
  const collect = collectOf(read('collect', call, 'collect') ?? undefined);
  // Last: what listens to streams has to be ended again.
  const sources = sourcesOf(read('files', call, 'files') ?? undefined);
  return sources === undefined && collect === undefined ? undefined : new Files(sources ?? [], collect);
}

function sourcesOf(given) {
  if (given === undefined) return undefined;
  const paths = namesOf('files', given, 'paths and contents');
  if (paths.length > FILES_LIMIT) {
    throw invalidConfig(`files has ${paths.length} files, a call can be given at most ${FILES_LIMIT}`);
  }
  const sources = [];
  try {
    for (const path of paths) {
      const what = `files[${stringify(path)}]`;
      sources.push(sourceOf(what, path, read(what, given, path)));
    }
  } catch (error) {
    for (const source of sources) source.end();
    throw error;
  }
  return sources.length === 0 ? undefined : sources;
}

function sourceOf(what, path, content) {
  if (typeof content === 'string') return new TextSource(path, content);
  if (areBytes(content))
    return new BytesSource(
      path,
      attempt(what, 'read', () => bytesOf(content))
    );
  if (typeof content === 'object' && content !== null) {
    const isMaker = typeof read(what, content, 'stream') === 'function';
    const stream = isMaker ? attempt(what, 'read', () => content.stream()) : content;
    if (typeof read(what, stream, Symbol.asyncIterator) === 'function') return new StreamSource(what, path, stream);
    const from = read(`${what}.path`, content, 'path');
    if (from !== undefined) return { __proto__: null, path, from: hostPath(`${what}.path`, from), end() {} };
  }
  throw invalidConfig(
    `${what} must be a text, a Buffer, a Uint8Array, a readable stream, a Blob or { path }, got ${shown(content)}`
  );
}

/** Asks no proxy, and knows buffers of other realms, as of a test runner's. */
function areBytes(content) {
  return ArrayBuffer.isView(content) || isArrayBuffer(content);
}

/** @throws {TypeError} when the buffer was transferred */
function bytesOf(content) {
  if (!ArrayBuffer.isView(content)) return new Uint8Array(content);
  return new Uint8Array(content.buffer, content.byteOffset, content.byteLength);
}

/** A path of this machine, as `node:fs` takes them, absolute. */
function hostPath(what, given) {
  const path = attempt(what, 'read', () => (given instanceof URL ? fileURLToPath(given) : given));
  if (typeof path !== 'string' || path === '') {
    throw invalidConfig(`${what} must be the path of a file or folder on this machine, got ${shown(given)}`);
  }
  if (path.includes('\0')) throw invalidConfig(`${what} must not have a NUL in it`);
  return resolve(path);
}

/** Bytes that are there already. They are read when it is their turn, so they must not change before the call is settled. */
class BytesSource {
  #bytes;
  #at = 0;

  constructor(path, bytes) {
    this.path = path;
    this.#bytes = bytes;
  }

  next() {
    const from = this.#at;
    this.#at = min(from + PIECE_BYTES, this.#bytes.length);
    return { piece: this.#bytes.subarray(from, this.#at), isLast: this.#at === this.#bytes.length };
  }

  end() {}
}

/** A text as UTF-8, encoded in pieces. */
class TextSource {
  #text;
  #at = 0;

  constructor(path, text) {
    this.path = path;
    this.#text = text;
  }

  next() {
    const from = this.#at;
    let to = min(from + PIECE_UNITS, this.#text.length);
    // The two halves of a pair stay together.
    if (to < this.#text.length && isFirstHalf(charCodeAt(this.#text, to - 1))) to -= 1;
    this.#at = to;
    return { piece: Buffer.from(slice(this.#text, from, to)), isLast: to === this.#text.length };
  }

  end() {}
}

const isFirstHalf = (unit) => unit >= 0xd800 && unit < 0xdc00;

/** A stream, read no faster than the function's folder takes it. */
class StreamSource {
  #stream;
  #reader;
  #rest = NOTHING;
  #isDone = false;
  #failure;

  constructor(what, path, stream) {
    this.path = path;
    this.#stream = stream;
    const { isUsed, isEmitter } = attempt(what, 'read', () => ({
      isUsed: stream.destroyed === true || stream.readableEnded === true || stream.locked === true,
      isEmitter: typeof stream.on === 'function',
    }));
    if (isUsed) throw invalidConfig(`${what} is a stream that was read, destroyed or locked already: give a new one`);
    // An error while the call waits for its turn must not end the host: the call fails with it when the stream is read.
    const note = (error) => {
      this.#failure ??= { error };
    };
    if (isEmitter) attempt(what, 'listened to', () => stream.on('error', note));
  }

  async next() {
    while (this.#rest.length === 0 && !this.#isDone) {
      if (this.#failure) throw this.#failure.error;
      this.#reader ??= readerOf(this.#stream);
      const { done, value } = await this.#reader.next();
      this.#isDone = done === true;
      if (!this.#isDone) this.#rest = chunkOf(value);
    }
    const piece = this.#rest.subarray(0, PIECE_BYTES);
    this.#rest = this.#rest.subarray(piece.length);
    return { piece, isLast: this.#isDone && this.#rest.length === 0 };
  }

  /** Nothing more of it is wanted. */
  end() {
    if (this.#isDone) return;
    this.#isDone = true;
    quietly(() => {
      this.#reader ??= readerOf(this.#stream);
      return this.#reader.end();
    });
  }
}

/** What reads a stream a chunk at a time, and gives it up, whatever it is waiting for. */
function readerOf(stream) {
  if (typeof stream.getReader === 'function') {
    const reader = stream.getReader();
    return { next: () => reader.read(), end: () => reader.cancel() };
  }
  const iterator = stream[Symbol.asyncIterator]();
  const end = () => (typeof stream.destroy === 'function' ? stream.destroy() : iterator.return?.());
  return { next: () => iterator.next(), end };
}

function chunkOf(value) {
  if (typeof value === 'string') return Buffer.from(value);
  if (areBytes(value)) return bytesOf(value);
  throw new TypeError(`the stream gave ${shown(value)}, where bytes or a text were due`);
}

function collectOf(given) {
  if (given === undefined) return undefined;
  if (typeof given !== 'object' || attempt('collect', 'read', () => isArray(given))) {
    throw invalidConfig(`collect must be an object with match and into or onFile, got ${shown(given)}`);
  }
  const unknown = attempt('collect', 'read', () => keys(given)).find((name) => !COLLECT_FIELDS.includes(name));
  if (unknown !== undefined) {
    throw invalidConfig(`collect has no ${stringify(unknown)}; it has ${COLLECT_FIELDS.join(', ')}`);
  }
  const onFile = listenerOf(given, 'onFile');
  const into = read('collect.into', given, 'into') ?? undefined;
  if ((into === undefined) === (onFile === undefined)) {
    throw invalidConfig(
      'collect must have either into, a folder that gets the files, or onFile, a function that takes them'
    );
  }
  return {
    __proto__: null,
    match: patternsOf(read('collect.match', given, 'match')),
    into: into === undefined ? undefined : hostPath('collect.into', into),
    onFile,
    maxFiles: limitOf(given, 'maxFiles'),
    maxBytes: limitOf(given, 'maxBytes'),
  };
}

function patternsOf(given) {
  if (typeof given === 'string') return [given];
  const length = attempt('collect.match', 'read', () => (isArray(given) ? given.length : 0));
  if (length === 0) {
    throw invalidConfig(
      `collect.match must be a pattern of paths or a list of them, as in ["out/**"], got ${shown(given)}`
    );
  }
  if (!(length <= PATTERNS_LIMIT)) {
    throw invalidConfig(`collect.match must have 1 to ${PATTERNS_LIMIT} patterns, it has ${shown(length)}`);
  }
  return Array.from({ length }, (_, index) => {
    const pattern = read(`collect.match[${index}]`, given, index);
    if (typeof pattern === 'string') return pattern;
    throw invalidConfig(`collect.match[${index}] must be a string, got ${shown(pattern)}`);
  });
}

function limitOf(given, name) {
  const { fallback, most } = LIMITS[name];
  const value = read(`collect.${name}`, given, name) ?? fallback;
  if (!Number.isInteger(value) || value < 1 || value > most) {
    throw invalidConfig(`collect.${name} must be a whole number from 1 to ${most}, got ${shown(value)}`);
  }
  return value;
}

/** All of a source; `undefined` where that is more than so many bytes. */
async function contentOf(source, limitBytes) {
  const reader = source.from === undefined ? source : new StreamSource(source.path, source.path, hostFile(source.from));
  const pieces = [];
  let bytes = 0;
  try {
    for (let isLast = false; !isLast; ) {
      const next = await reader.next();
      isLast = next.isLast;
      bytes += next.piece.length;
      if (bytes > limitBytes) return undefined;
      pieces.push(next.piece);
    }
    return Buffer.concat(pieces);
  } catch (cause) {
    if (isSandboxError(cause)) throw cause;
    const text = `files[${stringify(source.path)}] cannot be read: ${reasonOf(cause)}`;
    throw new SandboxError(text, { __proto__: null, code: 'FILES_FAILED', phase: 'start', cause });
  } finally {
    reader.end();
  }
}

/** A file of this machine, under the rules of the core: a regular one, and no link. */
async function* hostFile(path) {
  const file = await opened(path);
  try {
    for (;;) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(PIECE_BYTES), 0, PIECE_BYTES, null);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  } finally {
    await file.close();
  }
}

async function opened(path) {
  const { O_NOFOLLOW = 0, O_NONBLOCK = 0, O_RDONLY } = constants;
  let file;
  try {
    if ((await lstat(path)).isSymbolicLink()) throw new Error('it is a symbolic link; name the file that it leads to');
    file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!(await file.stat()).isFile()) throw new Error('it is no regular file');
    return file;
  } catch (error) {
    await file?.close();
    throw invalidConfig(`files: ${path} cannot be read: ${reasonOf(error)}`, error);
  }
}

/** The files of one call. */
class Files {
  #sources;
  #collect;
  #core;
  #callId;
  /** What a source or the callback failed with. */
  #failure;
  /** The stream that is being handed over. */
  #stream;

  constructor(sources, collect) {
    this.#sources = sources;
    this.#collect = collect;
  }

  /** What the request says of those that it gives. */
  get given() {
    if (this.#sources.length === 0) return undefined;
    return this.#sources.map(({ path, from }) => ({ __proto__: null, path, from }));
  }

  /** And of those that it takes. */
  get wanted() {
    if (this.#collect === undefined) return undefined;
    const { match, into, maxFiles, maxBytes } = this.#collect;
    return { __proto__: null, match, into, maxFiles, maxBytes };
  }

  begin(core, callId) {
    this.#core = core;
    this.#callId = callId;
  }

  /** The call is settled, or will never begin: streams that were not read to their ends are destroyed. */
  end() {
    this.#core = undefined;
    for (const source of this.#sources) source.end();
    this.#stream?.destroy(new Error('the function call that this file is of has ended'));
  }

  /** How many there are to be given. */
  get count() {
    return this.#sources.length;
  }

  /**
   * The contents of all that it gives, for whoever cannot take them a piece at a time.
   * @param {number} limitBytes of all of them together
   * @returns {Promise<Array<{ path: string, content: Buffer }>>}
   * @throws {SandboxError} `INVALID_CONFIG`, `FILES_FAILED`
   */
  async contents(limitBytes) {
    const files = [];
    let leftBytes = limitBytes;
    for (const source of this.#sources) {
      const content = await contentOf(source, leftBytes);
      if (content === undefined) {
        throw invalidConfig(
          `files has more than ${limitBytes} bytes in all, which is the limit where a provider runs a function`
        );
      }
      leftBytes -= content.length;
      files.push({ path: source.path, content });
    }
    return files;
  }

  /** Gives an error of the files what is behind it. */
  explain(error) {
    if (this.#failure && error.code === 'FILES_FAILED') hidden(error, 'cause', inertCause(this.#failure.error));
    return error;
  }

  /** Takes an event of the core's. */
  take(kind, text) {
    if (this.#core === undefined) return;
    void (kind === 'feed' ? this.#feed(this.#sources[text]) : this.#hand(parse(text)));
  }

  async #feed(source) {
    try {
      const { piece, isLast } = await source.next();
      this.#core?.feed(this.#callId, piece, isLast);
    } catch (error) {
      this.#failure ??= { error };
      quietly(() => this.#core?.feedFailed(this.#callId, reasonOf(error)));
    }
  }

  async #hand({ path, size }) {
    const stream = new Readable({ read: () => void this.#next(stream) });
    this.#stream = stream;
    const closed = new Promise((done) => stream.once('close', done));
    // What goes wrong with it ends the call; a consumer that does not listen must not end the host.
    stream.on('error', () => {});
    try {
      await this.#collect.onFile({ path, size, stream });
      // Nobody reads it, and nobody will: the file is not wanted.
      if (stream.readableFlowing === null && !stream.readableDidRead && stream.listenerCount('readable') === 0) {
        stream.destroy();
      }
      await closed;
      if (stream.errored && !this.#failure) throw stream.errored;
      quietly(() => this.#core?.fileTaken(this.#callId));
    } catch (error) {
      this.#failure ??= { error };
      stream.destroy();
      quietly(() => this.#core?.fileTaken(this.#callId, reasonOf(error)));
    }
  }

  async #next(stream) {
    const chunk = await orUndefined(() => this.#core?.nextChunk(this.#callId));
    if (stream.destroyed) return;
    if (!chunk?.ok) stream.destroy(new Error('the function call that this file is of has ended'));
    else stream.push(chunk.data ?? null);
  }
}

exports.filesOf = filesOf;
