'use strict';

// What this package uses of the language, taken when it is loaded. A host may change prototypes and built-in functions
// afterwards (libraries do), or have put fields on `Object.prototype` before: no method is looked up on a prototype, and
// objects that are read from have none of their own.

const { setImmediate } = require('node:timers');
const { isNativeError } = require('node:util/types');

const { apply, getPrototypeOf } = Reflect;
const { defineProperty, hasOwn, keys, setPrototypeOf } = Object;
const { parse, stringify } = JSON;
const { isArray } = Array;
const { isFinite: isFiniteNumber } = Number;
const { ceil, min } = Math;
const { captureStackTrace } = Error;
const uncurry = Function.prototype.bind.bind(Function.prototype.call);

exports.apply = apply;
exports.captureStackTrace = captureStackTrace;
exports.ceil = ceil;
exports.hasOwn = hasOwn;
exports.isArray = isArray;
exports.isFiniteNumber = isFiniteNumber;
exports.isNativeError = isNativeError;
exports.keys = keys;
exports.min = min;
exports.now = performance.now.bind(performance);
exports.parse = parse;
exports.prototypeOf = getPrototypeOf;
exports.soon = setImmediate;
exports.stringify = stringify;

exports.charCodeAt = uncurry(String.prototype.charCodeAt);
exports.includes = uncurry(String.prototype.includes);
exports.indexOf = uncurry(String.prototype.indexOf);
exports.slice = uncurry(String.prototype.slice);
exports.toWellFormed = uncurry(String.prototype.toWellFormed);
exports.mapGet = uncurry(Map.prototype.get);
exports.mapSet = uncurry(Map.prototype.set);
exports.mapHas = uncurry(Map.prototype.has);
exports.mapDelete = uncurry(Map.prototype.delete);
exports.mapForEach = uncurry(Map.prototype.forEach);
exports.weakMapGet = uncurry(WeakMap.prototype.get);
exports.weakMapSet = uncurry(WeakMap.prototype.set);

/** Defines what an ordinary `Error` does not enumerate either. */
exports.hidden = (target, key, value) =>
  defineProperty(target, key, { __proto__: null, value, writable: true, enumerable: false, configurable: true });

/** Defines an own field, whatever the prototype has under that name. */
exports.field = (target, key, value) =>
  defineProperty(target, key, { __proto__: null, value, writable: true, enumerable: true, configurable: true });

/** Defines an accessor. */
exports.accessor = (target, key, get, set) =>
  defineProperty(target, key, { __proto__: null, get, set, enumerable: false, configurable: true });

/** An array without a prototype: one with a `toJSON` could not change how it is written. */
exports.bareArray = () => setPrototypeOf([], null);

const digitsOf = uncurry(Number.prototype.toString);
const padStart = uncurry(String.prototype.padStart);

/** A number in hexadecimal digits, at least so many. */
exports.padHex = (number, digits) => padStart(digitsOf(number, 16), digits, '0');

/** What `act` gives; `undefined` when it throws. */
exports.orUndefined = (act) => {
  try {
    return act();
  } catch {
    return undefined;
  }
};
