'use strict';

// Makes values that a function chose safe for the host's own code: text without control characters, and objects that no
// printer, serializer or naive merge of the host trips over. Pure.

const {
  charCodeAt,
  field,
  hasOwn,
  hidden,
  isArray,
  isNativeError,
  keys,
  orUndefined,
  padHex,
  slice,
} = require('./intrinsics.js');

/** Longest name or code of an error, in UTF-16 units. */
const NAME_LIMIT_CHARS = 256;
/** Longest stack of a cause. The worker's script cuts texts to this length; a forged frame could have a longer one. */
const STACK_LIMIT_CHARS = 32 * 1024;
/** Longest message of an error. */
const MESSAGE_LIMIT_CHARS = 256 * 1024;
/** How deep a cause may nest. `JSON.stringify` of much deeper data overflows the stack. */
const DEPTH_LIMIT = 64;
/** Stands for what lies deeper. */
const TOO_DEEP = '[nested too deep]';
/** How many causes of one of the host's own errors are copied. */
const HOST_CAUSES_LIMIT = 8;

/** What every object inherits, and the methods that printers and serializers look for on any object. */
const METHOD_KEYS = { __proto__: null };
for (const name of [
  '__proto__',
  '__defineGetter__',
  '__defineSetter__',
  '__lookupGetter__',
  '__lookupSetter__',
  'constructor',
  'hasOwnProperty',
  'inspect',
  'isPrototypeOf',
  'propertyIsEnumerable',
  'then',
  'toJSON',
  'toLocaleString',
  'toString',
  'valueOf',
]) {
  field(METHOD_KEYS, name, true);
}

/**
 * Whether a UTF-16 unit acts on whatever shows it instead of being shown: C0 but tab and newline, DEL, C1, the marks that
 * change the direction of text, and the two line separators of Unicode.
 */
function isControl(unit) {
  if (unit < 0x20) return unit !== 0x09 && unit !== 0x0a;
  if (unit < 0x7f) return false;
  if (unit < 0xa0) return true;
  if (unit === 0x061c) return true;
  if (unit < 0x200e || unit > 0x2069) return false;
  return unit <= 0x200f || (unit >= 0x2028 && unit <= 0x202e) || unit >= 0x2066;
}

/** Text with each control character as `\uXXXX`; a carriage return before a newline is dropped. */
function plainText(text) {
  if (typeof text !== 'string') return text;
  let plain = '';
  let from = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = charCodeAt(text, i);
    if (!isControl(unit)) continue;
    const isLineEnd = unit === 0x0d && charCodeAt(text, i + 1) === 0x0a;
    plain += slice(text, from, i);
    if (!isLineEnd) plain += `\\u${padHex(unit, 4)}`;
    from = i + 1;
  }
  return from === 0 ? text : plain + slice(text, from);
}

/** At most so many units of a text. */
function cut(text, limit) {
  return text.length > limit ? `${slice(text, 0, limit)}…` : text;
}

/** A copy of a log record's fields, their texts without control characters. Anything but plain data stays as it is. */
function plainFields(value, depth = 0) {
  if (typeof value === 'string') return plainText(value);
  if (value === null || typeof value !== 'object' || depth > DEPTH_LIMIT || isNativeError(value)) return value;
  const copy = isArray(value) ? [] : {};
  const names = keys(value);
  for (let i = 0; i < names.length; i++) field(copy, plainText(names[i]), plainFields(value[names[i]], depth + 1));
  return copy;
}

/**
 * A key under which data shadows no method. `toString: 1` would make `String(data)` throw, `__proto__` and `constructor`
 * lead a naive merge to the prototypes of the host.
 */
function safeKey(key) {
  return key in METHOD_KEYS ? `_${key}` : key;
}

/** A copy of JSON data that prints whatever its keys are. */
function inertData(value, depth = 0) {
  if (value === null || typeof value !== 'object') return value;
  if (depth >= DEPTH_LIMIT) return TOO_DEEP;
  const copy = isArray(value) ? [] : {};
  addFields(copy, value, depth);
  return copy;
}

function addFields(target, fields, depth) {
  const names = keys(fields);
  for (let i = 0; i < names.length; i++) {
    const name = isArray(fields) ? names[i] : safeKey(names[i]);
    field(target, name, inertData(fields[names[i]], depth + 1));
  }
}

/**
 * What the function threw (`docs/worker-protocol.md`, "thrown value"), as data: of an error an object with its name,
 * message, stack, fields and causes, which is no `Error`; of anything else its fields, itself, or its text.
 */
function thrownValue(given, depth = 0) {
  if (given === null || typeof given !== 'object') return given;
  if (depth >= DEPTH_LIMIT) return TOO_DEEP;
  const thrown = { __proto__: null, ...given };
  if (thrown.kind === 'undefined') return undefined;
  if ('value' in thrown) return inertData(thrown.value, depth);
  if ('name' in thrown || 'message' in thrown || 'stack' in thrown) return thrownError(thrown, depth);
  return 'fields' in thrown ? inertData(thrown.fields, depth) : thrown.text;
}

function thrownError(thrown, depth) {
  const { name, message, stack, errors, fields } = thrown;
  const data = errorData(name, message, stack);
  if (fields !== null && typeof fields === 'object') addErrorFields(data, fields, depth);
  if ('cause' in thrown) field(data, 'cause', thrownValue(thrown.cause, depth + 1));
  if (isArray(errors)) {
    const all = [];
    for (let i = 0; i < errors.length; i++) field(all, i, thrownValue(errors[i], depth + 1));
    field(data, 'errors', all);
  }
  return data;
}

function addErrorFields(data, fields, depth) {
  const names = keys(fields);
  for (let i = 0; i < names.length; i++) {
    const key = safeKey(names[i]);
    const value = fields[names[i]];
    // Name, message and stack are what the worker said they are, and texts, also where it said none.
    const isNoStack = key === 'stack' && typeof value !== 'string';
    if (!isNoStack && !hasOwn(data, key)) field(data, key, fieldData(key, value, depth));
  }
}

function fieldData(key, value, depth) {
  if (key === 'code' && typeof value === 'string') return cut(plainText(value), NAME_LIMIT_CHARS);
  if (key === 'stack') return cut(plainText(value), STACK_LIMIT_CHARS);
  return inertData(value, depth + 1);
}

/** The beginning of an error as data. As a text it reads as the error would. */
function errorData(name, message, stack) {
  const data = {};
  field(data, 'name', typeof name === 'string' && name !== '' ? cut(plainText(name), NAME_LIMIT_CHARS) : 'Error');
  field(data, 'message', typeof message === 'string' ? cut(message, MESSAGE_LIMIT_CHARS) : '');
  if (typeof stack === 'string') field(data, 'stack', cut(plainText(withoutWriting(stack)), STACK_LIMIT_CHARS));
  hidden(data, 'toString', () => (data.message === '' ? data.name : `${data.name}: ${plainText(data.message)}`));
  return data;
}

/** The worker writes results with `JSON.stringify`. A function's own call of it has frames of the function below. */
const WRITING_FRAME = '\n    at stringify (<anonymous>)';

/** A stack without the frame at its end that is not the function's but the worker's. */
function withoutWriting(stack) {
  const end = stack.length - WRITING_FRAME.length;
  return end >= 0 && slice(stack, end) === WRITING_FRAME ? slice(stack, 0, end) : stack;
}

/** Whether a value is an error, of whatever realm. Never throws. */
function isError(value) {
  if (value === null || typeof value !== 'object') return false;
  return isNativeError(value) || orUndefined(() => value instanceof Error) === true;
}

/**
 * The cause of one of our own errors. An error of the host's becomes data: its name, message, stack, causes, and fields
 * that are texts, numbers or booleans. A server that rethrows the innermost `cause` that is an `Error` keeps our text so.
 */
function inertCause(cause, depth = 0) {
  if (!isError(cause)) return cause;
  const read = (key) => orUndefined(() => cause[key]);
  const data = errorData(read('name'), read('message'), read('stack'));
  const names = orUndefined(() => keys(cause)) ?? [];
  for (let i = 0; i < names.length; i++) addPrimitive(data, safeKey(names[i]), read(names[i]));
  const inner = orUndefined(() => hasOwn(cause, 'cause')) ? read('cause') : undefined;
  if (inner !== undefined && depth < HOST_CAUSES_LIMIT) field(data, 'cause', inertCause(inner, depth + 1));
  return data;
}

function addPrimitive(data, key, value) {
  if (hasOwn(data, key)) return;
  const type = typeof value;
  if (type === 'string') field(data, key, cut(plainText(value), key === 'code' ? NAME_LIMIT_CHARS : STACK_LIMIT_CHARS));
  else if (type === 'number' || type === 'boolean') field(data, key, value);
}

/** A message for people: bounded, without control characters. */
function plainMessage(text) {
  return cut(plainText(text), MESSAGE_LIMIT_CHARS);
}

exports.inertCause = inertCause;
exports.isError = isError;
exports.plainFields = plainFields;
exports.plainMessage = plainMessage;
exports.plainText = plainText;
exports.thrownValue = thrownValue;
