// Servers that are refused a part of what the kernel offers, as in containers whose filter of system calls knows it not:
// a program that puts itself under such a filter and then becomes the server.

import { chmodSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

// The kit is the text of tools, which have `require`.
globalThis.require ??= createRequire(import.meta.url);
const { kit } = await import('./kit.mjs');

const EPERM = 1;
const ENOSYS = 38;
/** `CLONE_NEW*` */
const NEW_NAMESPACES = 0x7e020080;
const NEW_PID_NAMESPACE = 0x20000000;
const SET_SECCOMP = 22;

/** Per machine: its number in filters, and those of the calls that are refused. */
const CALLS = {
  x64: {
    ...{ audit: 0xc000003e, landlock_create_ruleset: 444, unshare: 272, clone: 56, clone3: 435, setns: 308 },
    ...{ seccomp: 317, prctl: 157, setresuid: 117, pivot_root: 155, wait4: 61 },
  },
  arm64: {
    ...{ audit: 0xc00000b7, landlock_create_ruleset: 444, unshare: 97, clone: 220, clone3: 435, setns: 268 },
    ...{ seccomp: 277, prctl: 167, setresuid: 147, pivot_root: 41, wait4: 260 },
  },
};

/**
 * What each refusal is: calls, with the error they answer, and what of the first argument makes them refused, where not all are: `bits` of
 * which it has one, or the number that it `is`.
 */
const REFUSALS = {
  /** What a filter costs by itself. */
  nothing: [],
  landlock: [['landlock_create_ruleset', ENOSYS]],
  namespaces: [
    ['unshare', EPERM, { bits: NEW_NAMESPACES }],
    ['clone', EPERM, { bits: NEW_NAMESPACES }],
    ['setns', EPERM],
    // Its flags are in memory, where no filter looks.
    ['clone3', ENOSYS],
  ],
  seccomp: [
    ['seccomp', ENOSYS],
    ['prctl', EPERM, { is: SET_SECCOMP }],
  ],
  users: [['setresuid', EPERM]],
  pids: [
    ['unshare', EPERM, { bits: NEW_PID_NAMESPACE }],
    ['clone', EPERM, { bits: NEW_PID_NAMESPACE }],
    ['clone3', ENOSYS],
  ],
  // Without which a mount namespace has the root of all.
  roots: [['pivot_root', EPERM]],
  // Who is dead can be seen, but not be taken off the list.
  reaping: [['wait4', ENOSYS]],
};

function step(code, operand, jumpIf = 0, jumpElse = 0) {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt16LE(code);
  bytes[2] = jumpIf;
  bytes[3] = jumpElse;
  bytes.writeUInt32LE(operand >>> 0, 4);
  return bytes;
}

function filter(refused) {
  const { audit, ...numbers } = CALLS[process.arch];
  const load = (offset) => step(0x20, offset);
  const equal = (value, jumpElse) => step(0x15, value, 0, jumpElse);
  const answer = (value) => step(0x06, value);
  const allow = answer(0x7fff0000);
  const refuse = (errno) => answer(0x00050000 + errno);
  const rules = refused.flatMap(([name, errno, { bits, is } = {}]) => {
    if (bits === undefined && is === undefined) return [equal(numbers[name], 1), refuse(errno)];
    const test = bits === undefined ? equal(is, 1) : step(0x45, bits, 0, 1);
    return [equal(numbers[name], 4), load(16), test, refuse(errno), allow];
  });
  return Buffer.concat([load(4), step(0x15, audit, 1, 0), allow, load(0), ...rules, allow]);
}

/**
 * Writes such a program to `file`.
 * @param {string | string[]} what names of `REFUSALS`
 * @param command the program that it becomes, with its arguments
 * @param env its whole environment
 */
export function writeRefusing(file, what, command, env) {
  const steps = filter([what].flat().flatMap((name) => REFUSALS[name]));
  const environment = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  const calls = [
    // Only who can gain no privileges may filter itself.
    ['prctl', 38, 1, 0, 0, 0],
    ['seccomp', 1, 0, { words: [steps.length / 8, steps] }],
    ['execve', command[0], { words: [...command, 0] }, { words: [...environment, 0] }],
  ];
  writeFileSync(file, kit().program(calls));
  chmodSync(file, 0o755);
}
