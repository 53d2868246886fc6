'use strict';

// TypeScript declarations of host functions, for prompts: what a model is shown of `host`. Pure.
//
// The libraries that turn JSON Schemas into TypeScript read references from files and the network, answer by promise, and bring dozens of
// packages; this one has none. What a declaration needs of a schema is little, and what cannot be told is `unknown`.

const { invalidConfig } = require('./errors.js');
const { hasOwn, isArray, keys, parse, stringify } = require('./intrinsics.js');
const { attempt, read, shown } = require('./options.js');
const { checkName, checkObjects } = require('./talk.js');

/** Parts of all schemas together that are told; what is beyond them is `unknown`. */
const PARTS_LIMIT = 10_000;
/** Schemas inside of each other that are told. */
const LEVELS_LIMIT = 32;
/** Values of an `enum`. */
const OPTIONS_LIMIT = 200;
/** Functions that one text may declare. */
const FUNCTIONS_LIMIT = 256;
const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
/** What would end a comment, or a line of it in a terminal. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken out
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/**
 * Declares `host` as a function sees it.
 * @param {object | string[]} functions as `CallOptions.functions`, or their names
 * @param {object} [schemas] by name: the JSON Schema of the argument, or `{ description, inputSchema, outputSchema }`
 * @returns {string}
 * @throws {SandboxError} `INVALID_CONFIG`
 */
function describeFunctions(functions, schemas) {
  const names = namesOf(functions);
  const given = schemasOf(schemas, names);
  const writer = new Writer();
  const tree = { __proto__: null };
  for (const name of names) {
    const parts = name.split('.');
    let object = tree;
    for (const part of parts.slice(0, -1)) object = object[part] ??= { __proto__: null };
    object[parts.at(-1)] = () => writer.method(parts, given[name]);
  }
  const host = `declare const host: ${members(tree, '')};`;
  return [...writer.aliases(), host].join('\n\n').concat('\n');
}

function namesOf(functions) {
  if (functions === null || typeof functions !== 'object') {
    throw invalidConfig(
      `describeFunctions() takes an object of functions or a list of their names, got ${shown(functions)}`
    );
  }
  const isList = attempt('functions', 'read', () => isArray(functions));
  if (isList) checkCount(read('functions', functions, 'length'));
  const names = attempt('functions', 'read', () => (isList ? [...functions] : keys(functions)));
  checkCount(names.length);
  for (const name of names) {
    if (typeof name !== 'string') throw invalidConfig(`functions must have names that are texts, got ${shown(name)}`);
    checkName(name);
  }
  checkObjects(names);
  return [...new Set(names)];
}

function checkCount(count) {
  if (!(count <= FUNCTIONS_LIMIT)) {
    throw invalidConfig(`functions has ${shown(count)} functions, at most ${FUNCTIONS_LIMIT} can be declared`);
  }
}

/** Copies, as JSON has them: a getter or a class of the caller's is looked at once. */
function schemasOf(schemas, names) {
  const given = { __proto__: null };
  if (schemas === undefined || schemas === null) return given;
  if (typeof schemas !== 'object' || attempt('schemas', 'read', () => isArray(schemas))) {
    throw invalidConfig(`schemas must be an object of JSON Schemas by the name of a function, got ${shown(schemas)}`);
  }
  for (const name of attempt('schemas', 'read', () => keys(schemas))) {
    if (!names.includes(name)) {
      throw invalidConfig(
        `schemas[${stringify(name)}]: there is no function of that name; there are ${names.join(', ')}`
      );
    }
    const what = `schemas[${stringify(name)}]`;
    const value = read(what, schemas, name);
    const text = attempt(what, 'written as JSON', () => stringify(value));
    if (text !== undefined) given[name] = parse(text);
  }
  return given;
}

/** The members of `host`, or of an object in it. */
function members(tree, indent) {
  const names = keys(tree);
  if (names.length === 0) return '{}';
  const within = `${indent}  `;
  const lines = names.map((name) => {
    const member = tree[name];
    if (typeof member === 'function') return member()(within);
    return `${within}${name}: ${members(member, within)};`;
  });
  return `{\n${lines.join('\n')}\n${indent}}`;
}

/** Writes types; what is referred to becomes a type with a name. */
class Writer {
  #partsLeft = PARTS_LIMIT;
  /** By schema and pointer: their names. */
  #named = new Map();
  #texts = new Map();

  /** @returns {(indent: string) => string} a method of `host` */
  method(parts, given) {
    const isPair = isObject(given) && (hasOwn(given, 'inputSchema') || hasOwn(given, 'outputSchema'));
    const { description, inputSchema, outputSchema } = isPair
      ? given
      : { inputSchema: given, description: given?.description };
    // `new(…)` would be a constructor.
    const name = parts.at(-1) === 'new' ? '"new"' : parts.at(-1);
    const base = parts.map((part) => part[0].toUpperCase() + part.slice(1)).join('');
    return (indent) => {
      const args =
        inputSchema === undefined ? 'args?: unknown' : `args: ${this.#root(inputSchema, `${base}Args`, indent)}`;
      const result = outputSchema === undefined ? 'unknown' : this.#root(outputSchema, `${base}Result`, indent);
      return `${comment(description, indent)}${indent}${name}(${args}): Promise<${result}>;`;
    };
  }

  /** The types with names, each once. */
  aliases() {
    return [...this.#texts.values()];
  }

  #root(schema, base, indent) {
    return this.#type({ root: schema, base, within: new Set() }, schema, indent, 0);
  }

  /** @param {{ root: unknown, base: string, within: Set<unknown> }} place `within` are the schemas that say more of the same value */
  #type(place, schema, indent, level) {
    if (schema === true) return 'unknown';
    if (schema === false) return 'never';
    if (!isObject(schema) || level > LEVELS_LIMIT || this.#partsLeft-- <= 0 || place.within.has(schema))
      return 'unknown';
    const same = { ...place, within: new Set([...place.within, schema]) };
    const parts = [];
    if (typeof schema.$ref === 'string') parts.push(this.#reference(same, schema.$ref, level));
    if (hasOwn(schema, 'const')) parts.push(literal(schema.const));
    else if (isArray(schema.enum))
      parts.push(union(schema.enum.slice(0, OPTIONS_LIMIT).map(literal), schema.enum.length > OPTIONS_LIMIT));
    else parts.push(this.#plain(place, schema, indent, level));
    for (const key of ['anyOf', 'oneOf']) {
      if (isArray(schema[key])) parts.push(union(schema[key].map((one) => this.#type(same, one, indent, level + 1))));
    }
    if (isArray(schema.allOf)) parts.push(...schema.allOf.map((one) => this.#type(same, one, indent, level + 1)));
    return intersection(parts);
  }

  /** By `type`, or by what only one type has. */
  #plain(place, schema, indent, level) {
    const has = (...names) => names.some((name) => hasOwn(schema, name));
    const inner = { ...place, within: new Set() };
    const named = isArray(schema.type) ? schema.type : [schema.type];
    const types = named.map((type) => {
      switch (type) {
        case 'string':
        case 'boolean':
        case 'null':
        case 'number':
          return type;
        case 'integer':
          return 'number';
        case 'array':
          return this.#array(inner, schema, indent, level);
        case 'object':
          return this.#object(inner, schema, indent, level);
        default:
          if (has('properties', 'required', 'additionalProperties')) return this.#object(inner, schema, indent, level);
          if (has('items', 'prefixItems')) return this.#array(inner, schema, indent, level);
          return 'unknown';
      }
    });
    return union(types);
  }

  #array(place, { items, prefixItems, additionalItems, minItems = 0 }, indent, level) {
    const type = (schema) => this.#type(place, schema, indent, level + 1);
    // draft-07 has the list in `items`.
    const first = isArray(prefixItems) ? prefixItems : isArray(items) ? items : undefined;
    const others = isArray(items) ? additionalItems : items;
    if (first === undefined) return `Array<${items === undefined ? 'unknown' : type(items)}>`;
    const places = first.map((one, at) => (at < minItems ? type(one) : optional(type(one))));
    if (others !== false) places.push(`...Array<${others === undefined ? 'unknown' : type(others)}>`);
    return `[${places.join(', ')}]`;
  }

  #object(place, schema, indent, level) {
    const properties = isObject(schema.properties) ? schema.properties : {};
    const required = isArray(schema.required) ? schema.required.filter((name) => typeof name === 'string') : [];
    const names = [...new Set([...keys(properties), ...required])];
    const { additionalProperties: others } = schema;
    const isOpen = isObject(others) || others === true || isObject(schema.patternProperties);
    const within = `${indent}  `;
    if (names.length === 0) {
      if (others === false && !isObject(schema.patternProperties)) return 'Record<string, never>';
      return `Record<string, ${isObject(others) ? this.#type(place, others, indent, level + 1) : 'unknown'}>`;
    }
    const lines = names.map((name) => {
      const member = hasOwn(properties, name) ? properties[name] : true;
      const key = IDENTIFIER.test(name) ? name : text(name);
      const mark = required.includes(name) ? '' : '?';
      return `${comment(member?.description, within)}${within}${key}${mark}: ${this.#type(place, member, within, level + 1)};`;
    });
    if (isOpen) lines.push(`${within}[name: string]: unknown;`);
    return `{\n${lines.join('\n')}\n${indent}}`;
  }

  /** A type with a name: a schema may refer to itself. */
  #reference(place, reference, level) {
    const target = resolved(place.root, reference);
    // A type that is itself, and nothing else, is none.
    if (target === undefined || place.within.has(target) || leadsTo(place.root, target, place.within)) return 'unknown';
    if (!isObject(target)) return this.#type(place, target, '', level + 1);
    const known = this.#named.get(target);
    if (known !== undefined) return known;
    const name = this.#free(place.base, reference);
    this.#named.set(target, name);
    // Its place among the others is that of its first mention.
    this.#texts.set(name, '');
    const type = this.#type({ ...place, within: new Set() }, target, '', level + 1);
    this.#texts.set(name, `${comment(target.description, '')}type ${name} = ${type};`);
    return name;
  }

  #free(base, reference) {
    const last = reference.split('/').length > 1 ? reference.split('/').at(-1) : '';
    const word = last.replace(/[^A-Za-z0-9]+/g, '');
    const start = word === '' ? base : `${base}${word[0].toUpperCase()}${word.slice(1)}`.slice(0, 100);
    for (let number = 1; ; number++) {
      const name = number === 1 ? start : `${start}${number}`;
      if (!this.#texts.has(name)) return name;
    }
  }
}

/** What `#/…` leads to. */
function resolved(root, reference) {
  if (reference === '#') return root;
  if (!reference.startsWith('#/')) return undefined;
  let place = root;
  for (const part of reference.slice(2).split('/')) {
    let key = part;
    try {
      key = decodeURIComponent(part);
    } catch {
      // As it is written.
    }
    key = key.replaceAll('~1', '/').replaceAll('~0', '~');
    if (place === null || typeof place !== 'object' || !hasOwn(place, key)) return undefined;
    place = place[key];
  }
  return place;
}

/** Whether what says more of the same value comes back to one of `ends`. */
function leadsTo(root, from, ends) {
  const seen = new Set();
  const open = [from];
  while (open.length > 0) {
    const schema = open.pop();
    if (ends.has(schema)) return true;
    if (!isObject(schema) || seen.has(schema)) continue;
    seen.add(schema);
    open.push(...sameValue(root, schema));
  }
  return false;
}

/** The schemas that say more of the value of this one. */
function sameValue(root, { $ref, ...schema }) {
  const lists = ['allOf', 'anyOf', 'oneOf'].flatMap((key) => (isArray(schema[key]) ? schema[key] : []));
  return typeof $ref === 'string' ? [...lists, resolved(root, $ref)] : lists;
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !isArray(value);
}

/** A value as a type that has this value only. */
function literal(value) {
  if (typeof value === 'string') return text(value);
  if (value === null || typeof value !== 'object') return stringify(value);
  if (isArray(value)) return `[${value.map(literal).join(', ')}]`;
  return `{ ${keys(value)
    .map((key) => `${text(key)}: ${literal(value[key])}`)
    .join('; ')} }`;
}

/** A text as source: the ends of lines that JSON leaves alone are written out. */
function text(value) {
  return stringify(value).replace(CONTROLS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

function union(types, isOpen = false) {
  const different = [...new Set(isOpen ? [...types, 'unknown'] : types)];
  if (different.length === 0) return 'never';
  if (different.includes('unknown')) return 'unknown';
  return different.length === 1 ? different[0] : `(${different.join(' | ')})`;
}

function intersection(types) {
  const different = [...new Set(types)].filter((type) => type !== 'unknown');
  if (different.length === 0) return 'unknown';
  return different.length === 1 ? different[0] : `(${different.join(' & ')})`;
}

/** As a part of a tuple that may be absent. */
function optional(type) {
  return IDENTIFIER.test(type) ? `${type}?` : `(${type})?`;
}

/** A description as a comment that ends where it should. */
function comment(description, indent) {
  if (typeof description !== 'string') return '';
  const clean = description
    .replaceAll('\r\n', '\n')
    .replaceAll('\t', ' ')
    .replace(CONTROLS, '')
    .replaceAll('*/', '*\\/')
    .trim();
  if (clean === '') return '';
  const lines = clean.split('\n').map((line) => line.trim());
  if (lines.length === 1) return `${indent}/** ${lines[0]} */\n`;
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}`.trimEnd()).join('\n')}\n${indent} */\n`;
}

exports.describeFunctions = describeFunctions;
