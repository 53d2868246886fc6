// Whatever a function throws, what the host gets of it prints, is bounded, and harms no naive code. Tried with many values that are made at
// random, from the parts that have caused trouble before. NSE_TEST_SEED repeats a run.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { format, inspect } from 'node:util';

const { plainFields, plainMessage, thrownValue } = createRequire(import.meta.url)('../lib/inert.js');

const ROUNDS = 3000;
const LONGEST_NAME = 257;
const LONGEST_STACK = 32 * 1024 + 1;
const LONGEST_MESSAGE = 256 * 1024 + 1;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are looked for
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;

const KEYS = ['toString', 'valueOf', 'toJSON', 'then', 'constructor', '__proto__', 'hasOwnProperty', 'inspect', 'name'];
const MORE_KEYS = [
  'message',
  'stack',
  'cause',
  'errors',
  'code',
  'toLocaleString',
  'prototype',
  'length',
  '0',
  '',
  '\u001b[2J',
];
const TEXTS = [
  '',
  'x',
  '\u001b]0;t\u0007',
  '\r\nforged',
  '\u202egnp',
  '\u0000',
  'n'.repeat(300),
  's'.repeat(40_000),
  '\ud800',
];

/** Numbers from 0 up to 1, the same for the same seed (mulberry32). */
function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function maker(random) {
  const one = (list) => list[Math.floor(random() * list.length)];
  const key = () => one([...KEYS, ...MORE_KEYS]);
  const data = (depth) => {
    const kind = depth > 4 ? 0 : random();
    if (kind < 0.5) return one([null, true, 0, -1.5, 1e308, ...TEXTS]);
    if (kind < 0.65) return Array.from({ length: Math.floor(random() * 4) }, () => data(depth + 1));
    // As it comes from JSON: `__proto__` is a key of its own.
    const members = Array.from({ length: Math.floor(random() * 5) }, () => [JSON.stringify(key()), data(depth + 1)]);
    return JSON.parse(`{${members.map(([name, value]) => `${name}:${JSON.stringify(value)}`).join()}}`);
  };
  const chance = (part, make) => (random() < part ? make() : undefined);
  /** A thrown value as the worker tells it, or as one that lies would. */
  const thrown = (depth = 0) => {
    if (depth > 6 || random() < 0.1) return data(depth);
    const text = () => (random() < 0.8 ? one(TEXTS) : data(3));
    const told = {
      text: one(TEXTS),
      name: chance(0.7, text),
      message: chance(0.7, text),
      stack: chance(0.7, text),
      fields: chance(0.6, () => data(1)),
      cause: chance(0.4, () => thrown(depth + 1)),
      errors: chance(0.2, () => chance(0.8, () => [thrown(depth + 1), thrown(depth + 2)]) ?? data(3)),
      value: chance(0.1, () => data(2)),
      kind: chance(0.05, () => one(['undefined', 'x', 7])),
    };
    return Object.fromEntries(Object.entries(told).filter(([, value]) => value !== undefined));
  };
  return { thrown, data };
}

function eachPart(value, check) {
  check(value);
  if (value !== null && typeof value === 'object') for (const part of Object.values(value)) eachPart(part, check);
}

/** A merge as hosts write it, without a guard. */
function merge(target, source) {
  for (const key in source) {
    const value = source[key];
    target[key] = value !== null && typeof value === 'object' ? merge(target[key] ?? {}, value) : value;
  }
  return target;
}

function assertInert(value, what) {
  eachPart(value, (part) => {
    for (const print of [
      String,
      inspect,
      JSON.stringify,
      (all) => format('%s %o %j %d', all, all, all, all),
      (all) => `${all}`,
    ])
      assert.doesNotThrow(() => print(part), what);
    if (part === null || typeof part !== 'object') return;
    assert.ok(!(part instanceof Error) && typeof part.then !== 'function' && typeof part.toJSON !== 'function', what);
    assert.equal(Object.getPrototypeOf(part), Array.isArray(part) ? Array.prototype : Object.prototype, what);
  });
  assert.doesNotThrow(() => merge({}, value), what);
  assert.equal({}.spoilt ?? Object.prototype.spoilt, undefined, what);
}

/** Whether a thrown value is told as an error. */
const isError = (told) =>
  ['name', 'message', 'stack'].some((key) => key in told) && !('value' in told) && told.kind !== 'undefined';

function assertBounded(value, what) {
  assert.ok(value.name.length <= LONGEST_NAME && value.message.length <= LONGEST_MESSAGE, what);
  assert.ok((value.stack ?? '').length <= LONGEST_STACK, what);
  assert.ok(typeof value.code !== 'string' || value.code.length <= LONGEST_NAME, what);
  for (const text of [value.name, value.stack ?? '', String(value)]) assert.doesNotMatch(text, CONTROL, what);
}

test('whatever is thrown prints, is plain data, and is bounded', () => {
  const seed = Number(process.env.NSE_TEST_SEED) || Date.now();
  const { thrown } = maker(numbers(seed));
  let errors = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const told = thrown();
    const what = `seed ${seed}, round ${round}: ${JSON.stringify(told).slice(0, 500)}`;
    const value = thrownValue(told);
    assertInert(value, what);
    if (told === null || typeof told !== 'object' || !isError(told)) continue;
    errors += 1;
    assertBounded(value, what);
  }
  assert.ok(errors > ROUNDS / 2);
});

test('no text of a record or a message has a control character, however deep it lies', () => {
  const seed = Number(process.env.NSE_TEST_SEED) || Date.now();
  const { data } = maker(numbers(seed));
  for (let round = 0; round < ROUNDS; round++) {
    const given = { fields: data(0), list: [data(0)] };
    const what = `seed ${seed}, round ${round}`;
    eachPart(plainFields(given), (part) => {
      const texts = part !== null && typeof part === 'object' ? Object.keys(part) : [part];
      for (const text of texts) if (typeof text === 'string') assert.doesNotMatch(text, CONTROL, what);
    });
    for (const text of TEXTS) assert.doesNotMatch(plainMessage(text), CONTROL);
  }
});
