'use strict';

// What a call may connect to, of what its executor allows: as the option `network` is written. The core says what rules may be.

const { domainToASCII } = require('node:url');
const { bareArray, isArray } = require('./intrinsics.js');
const { plainCopy, read } = require('./options.js');

/** How deep it nests: an object of lists. */
const LIMIT_LEVELS = 3;

/** A host in a rule, with what stands around it; one in brackets is an address. */
const HOST = /^(\s*(?:\*\.)?)([^\s:/[\]*]+)(.*)$/s;

/** `network` of the options of a call; `undefined` where there is none. */
function networkOf(call) {
  const given = call === undefined || call === null ? undefined : (read('network', call, 'network') ?? undefined);
  return given === undefined ? undefined : withAsciiNames(plainCopy('network', given, LIMIT_LEVELS));
}

/** The same rules with names as DNS has them (`bücher.example` is `xn--bcher-kva.example`). What is no rule stays as it is. */
function withAsciiNames(network) {
  if (network === null || typeof network !== 'object' || isArray(network)) return network;
  return { __proto__: null, ...network, allow: asciiList(network.allow), deny: asciiList(network.deny) };
}

/** A list of ours, without a prototype, or what is none. */
function asciiList(list) {
  if (!isArray(list)) return list;
  const ascii = bareArray();
  for (let i = 0; i < list.length; i++) ascii[i] = asciiRule(list[i]);
  return ascii;
}

function asciiRule(rule) {
  if (typeof rule !== 'string') return rule;
  const [, before, host, behind] = HOST.exec(rule) ?? [];
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the first of them is where ASCII begins.
  if (host === undefined || /^[\x00-\x7f]*$/.test(host)) return rule;
  const ascii = domainToASCII(host);
  return ascii === '' ? rule : `${before}${ascii}${behind}`;
}

exports.networkOf = networkOf;
exports.withAsciiNames = withAsciiNames;
