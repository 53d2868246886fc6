// The command line as a process of its own.

import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { ROOT } from './helpers.mjs';

export const MAIN = join(ROOT, 'cli', 'main.mjs');

/** How every colour begins. */
export const ESC = '\u001b';

const LIMIT_MS = 120_000;

/** What this process was told of colours is not what the commands are. */
const PLAIN = { FORCE_COLOR: undefined, NO_COLOR: undefined, NODE_TEST_CONTEXT: undefined };

/**
 * @param {string[]} args
 * @param {{ env?: object, cwd?: string, input?: string }} how
 * @returns {Promise<{ code: number | null, out: string, err: string }>}
 */
export function cli(args, how) {
  return command(process.execPath, [MAIN, ...args], how);
}

/** Any program, in the same way. */
export function command(program, args, { env = {}, cwd = process.env.TMPDIR, input = '' } = {}) {
  const child = spawn(program, args, { cwd, env: { ...process.env, ...PLAIN, ...env }, timeout: LIMIT_MS });
  const texts = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (text) => {
    texts.out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    texts.err += text;
  });
  child.stdin.on('error', () => {}); // it need not read
  child.stdin.end(input);
  return new Promise((done, fail) => {
    child.on('error', fail);
    child.on('close', (code) => done({ code, ...texts }));
  });
}
