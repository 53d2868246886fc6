'use strict';

// What a running function may say to its host before its result: calls of the host's functions, progress, yielded values. The
// core decides what is let through and counts (`src/talk.rs`); here are the functions themselves.

const { AsyncLocalStorage } = require('node:async_hooks');
const { nextTick } = require('node:process');
const { threadId } = require('node:worker_threads');
const { invalidConfig, textOf } = require('./errors.js');
const { includes, keys, orUndefined, parse, slice, stringify } = require('./intrinsics.js');
const { quietly } = require('./logger.js');
const { listenerOf, namesOf, read, shown } = require('./options.js');

/** Functions that one call may be given. */
const FUNCTIONS_LIMIT = 256;
const NAME_LIMIT_CHARS = 256;
/** One part of a name: what JavaScript takes after a dot, in ASCII. */
const NAME_PART = /^[A-Za-z_$][\w$]*$/;
/** Names that objects have already, or that `await` looks for. */
const RESERVED_PARTS = ['__proto__', 'constructor', 'prototype', 'then', 'toString', 'valueOf', 'toJSON'];
/** Characters of an error's name and of its message, as a function sees them. */
const ERROR_NAME_LIMIT_CHARS = 100;
const ERROR_MESSAGE_LIMIT_CHARS = 32 * 1024;

/** Defaults and bounds of `functionLimits`. */
const LIMITS = {
  __proto__: null,
  pending: { fallback: 64, most: 1024 },
  calls: { fallback: 1000, most: 1_000_000 },
  messageBytes: { fallback: 1024 * 1024, most: 64 * 1024 * 1024 },
};

/** The call whose host function is running, in everything that such a function starts. */
const running = new AsyncLocalStorage();
/** Conversations that go on. */
let conversations = 0;

/**
 * What a call offers its function, from the options of the call; `undefined` where it offers nothing.
 * @param {object | undefined} call
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function talkOf(call) {
  if (call === undefined || call === null) return undefined;
  const functions = functionsOf(read('functions', call, 'functions') ?? undefined);
  const onProgress = listenerOf(call, 'onProgress');
  const onYield = listenerOf(call, 'onYield');
  const limits = limitsOf(read('functionLimits', call, 'functionLimits') ?? undefined);
  if (functions === undefined && !onProgress && !onYield) return undefined;
  return new Talk(functions ?? { __proto__: null }, onProgress, onYield, limits);
}

function functionsOf(given) {
  if (given === undefined) return undefined;
  const names = namesOf('functions', given, 'names and functions');
  if (names.length > FUNCTIONS_LIMIT) {
    throw invalidConfig(`functions has ${names.length} functions, a call can be given at most ${FUNCTIONS_LIMIT}`);
  }
  const functions = { __proto__: null };
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    checkName(name);
    const value = read(`functions[${stringify(name)}]`, given, name);
    if (typeof value !== 'function') {
      throw invalidConfig(`functions[${stringify(name)}] must be a function, got ${shown(value)}`);
    }
    functions[name] = value;
  }
  checkObjects(names);
  return names.length === 0 ? undefined : functions;
}

function checkName(name) {
  const parts = name.split('.');
  const isFit = name.length <= NAME_LIMIT_CHARS && parts.every((part) => NAME_PART.test(part));
  if (!isFit) {
    throw invalidConfig(
      `functions[${stringify(slice(name, 0, NAME_LIMIT_CHARS))}]: a name is made of letters, digits, _ and $, with dots between the names of objects, as in "crm.find", and has at most ${NAME_LIMIT_CHARS} characters`
    );
  }
  const reserved = parts.find((part) => RESERVED_PARTS.includes(part));
  if (reserved !== undefined) {
    throw invalidConfig(
      `functions[${stringify(name)}]: ${reserved} cannot be the name of a host function or its object`
    );
  }
}

/** `crm` cannot be a function and the object that has `crm.find`. */
function checkObjects(names) {
  for (const name of names) {
    const within = names.find((other) => other.startsWith(`${name}.`));
    if (within !== undefined) {
      throw invalidConfig(
        `functions: ${stringify(name)} is a function and cannot be the object of ${stringify(within)} too`
      );
    }
  }
}

function limitsOf(given) {
  const names = given === undefined ? [] : namesOf('functionLimits', given, 'names and numbers');
  const unknown = names.find((name) => LIMITS[name] === undefined);
  if (unknown !== undefined) {
    throw invalidConfig(`functionLimits has no ${stringify(unknown)}; it has ${keys(LIMITS).join(', ')}`);
  }
  const limits = { __proto__: null };
  for (const name of keys(LIMITS)) {
    const { fallback, most } = LIMITS[name];
    const value = (given && read(`functionLimits.${name}`, given, name)) ?? fallback;
    if (!Number.isInteger(value) || value < 1 || value > most) {
      throw invalidConfig(`functionLimits.${name} must be a whole number from 1 to ${most}, got ${shown(value)}`);
    }
    limits[name] = value;
  }
  return limits;
}

/** The conversation of one call. */
class Talk {
  #functions;
  #onProgress;
  #onYield;
  #limits;
  #aborter = new AbortController();
  #core;
  #callId;
  #name;
  /** What was answered in this turn. */
  #answers = [];
  #flush = () => this.#sendAnswers();
  /** Yielded values are taken one after the other. */
  #taken = Promise.resolve();

  constructor(functions, onProgress, onYield, limits) {
    this.#functions = functions;
    this.#onProgress = onProgress;
    this.#onYield = onYield;
    this.#limits = limits;
  }

  /** What the request says of it. */
  get offer() {
    const { pending, calls, messageBytes } = this.#limits;
    return {
      __proto__: null,
      functions: keys(this.#functions),
      progress: this.#onProgress !== undefined,
      yields: this.#onYield !== undefined,
      maxPending: pending,
      maxCalls: calls,
      maxMessageBytes: messageBytes,
    };
  }

  /** Begins it: answers go to `core`. Gives the name that calls made by the host's functions are made within. */
  begin(core, callId) {
    this.#core = core;
    this.#callId = callId;
    this.#name = nameOf(callId);
    conversations += 1;
  }

  /** The call is settled: its functions hear of it, and what they answer is dropped. */
  end() {
    if (this.#core !== undefined) {
      conversations -= 1;
      // Before Node 24 it would go on making each `await` of the host several times as dear.
      if (conversations === 0) running.disable();
    }
    this.#core = undefined;
    // Listeners of the signal are the host's, and what they throw must not end it.
    quietly(() => this.#aborter.abort(new Error('the function call that called this function has ended')));
  }

  /** Takes an event of the core's. */
  take(kind, text) {
    // As output, news of progress may come shortly after the result.
    if (kind === 'progress') quietly(() => this.#onProgress(inert(text)));
    else if (this.#core === undefined) return;
    else if (kind === 'call') void this.#call(text);
    else this.#taken = this.#taken.then(() => this.#yielded(text));
  }

  async #call(text) {
    const { id, name, args } = inert(text);
    let answer;
    try {
      const act = this.#functions[name];
      const value = await running.run(this.#name, () => act(args, { signal: this.#aborter.signal }));
      answer = this.#written(name, value);
    } catch (error) {
      answer = { ok: false, json: errorJson(error) };
    }
    answer.id = id;
    // Those of one turn go together.
    if (this.#answers.push(answer) === 1) nextTick(this.#flush);
  }

  #sendAnswers() {
    const answers = this.#answers;
    this.#answers = [];
    for (let i = 0; i < answers.length; i++) {
      const { id, ok, json } = answers[i];
      // The last of them sends them all.
      quietly(() => this.#core?.answer(this.#callId, id, ok, json, i + 1 < answers.length));
    }
  }

  /** A result as JSON text; nothing for `undefined`. */
  #written(name, value) {
    const json = stringify(value) ?? '';
    const { messageBytes } = this.#limits;
    const bytes = Buffer.byteLength(json);
    if (bytes <= messageBytes) return { ok: true, json };
    const message = `the result of host.${name} has ${bytes} bytes as JSON, at most ${messageBytes} are allowed (functionLimits.messageBytes)`;
    return { ok: false, json: stringify({ name: 'RangeError', message }) };
  }

  async #yielded(text) {
    try {
      await this.#onYield(inert(text));
    } catch {
      // What the host's callback throws is its own affair.
    }
    quietly(() => this.#core?.taken(this.#callId));
  }
}

/** Names a call for the whole process: each thread counts its own. */
function nameOf(callId) {
  return `${threadId}:${callId}`;
}

/** The name of the call whose host function runs now, if one does. */
function outerCall() {
  return running.getStore();
}

/**
 * JSON text as a value in which no key becomes a prototype, whoever copies it: `__proto__` is left out.
 * The text may spell the name with escapes.
 */
function inert(text) {
  if (!includes(text, '__proto__') && !includes(text, '\\u')) return parse(text);
  return parse(text, (key, value) => (key === '__proto__' ? undefined : value));
}

/** Name and message of what a host function threw, and nothing else of it. */
function errorJson(error) {
  const name = orUndefined(() => error.name);
  const message = orUndefined(() => error.message);
  const isNamed = typeof name === 'string' && name !== '';
  return stringify({
    name: isNamed ? slice(name, 0, ERROR_NAME_LIMIT_CHARS) : 'Error',
    message: slice(typeof message === 'string' ? message : textOf(error), 0, ERROR_MESSAGE_LIMIT_CHARS),
  });
}

exports.checkName = checkName;
exports.checkObjects = checkObjects;
exports.nameOf = nameOf;
exports.outerCall = outerCall;
exports.talkOf = talkOf;
