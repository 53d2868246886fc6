// A file that is to be written when all is done: what speaks against it is told before.

import { closeSync, existsSync, mkdirSync, openSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { CommandError } from './usage.mjs';

/** @param {string} file @param {string} what for the message @throws {CommandError} */
export function assertWritable(file, what) {
  refusing(what, () => {
    makeFolder(dirname(file));
    const isNew = !existsSync(file);
    if (!isNew && statSync(file).isDirectory()) throw new Error(`${file} is a folder: name a file`);
    closeSync(openSync(file, 'a'));
    if (isNew) rmSync(file);
  });
}

/** @param {string} file @param {string} what for the message @param {string} text @throws {CommandError} */
export function write(file, what, text) {
  refusing(what, () => writeFileSync(file, text));
}

/** Not `recursive`: below a folder that takes none, as /proc, Node tries for ever. */
function makeFolder(folder) {
  if (existsSync(folder)) return;
  makeFolder(dirname(folder));
  mkdirSync(folder);
}

function refusing(what, act) {
  try {
    act();
  } catch ({ message }) {
    throw new CommandError(`cannot write ${what}: ${message}`);
  }
}
