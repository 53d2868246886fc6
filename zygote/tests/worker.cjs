'use strict';
// Stands in for the worker script: `u32` length and the text of an async function's body come in, JSON goes out.

const fs = require('node:fs');

function readExactly(fd, length) {
  const bytes = Buffer.allocUnsafeSlow(length);
  for (let got = 0; got < length; ) {
    const count = fs.readSync(fd, bytes, got, length - got, null);
    if (count === 0) process.exit(0);
    got += count;
  }
  return bytes;
}

function answer(fd, value) {
  const bytes = Buffer.from(`    ${JSON.stringify(value) ?? 'null'}`);
  bytes.writeUInt32LE(bytes.length - 4, 0);
  for (let sent = 0; sent < bytes.length; ) sent += fs.writeSync(fd, bytes, sent);
}

function compile(text) {
  const vm = require('node:vm');
  return vm.compileFunction(`return async () => {${text}}`, ['require'], {
    filename: `${process.cwd()}/job.cjs`,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  })(require('node:module').createRequire(`${process.cwd()}/job.cjs`));
}

async function run(fd, text) {
  try {
    answer(fd, { value: await compile(text)() });
  } catch (error) {
    answer(fd, { error: String(error.stack) });
  }
}

/** Runs a trivial job once, answering to nobody. */
async function rehearse() {
  const fd = fs.openSync('/dev/null', 'r+');
  fs.readSync(fd, Buffer.allocUnsafeSlow(4), 0, 4, null);
  answer(fd, { value: {} });
  await compile('return 1')();
  fs.closeSync(fd);
}

function serve(fd, begin) {
  const length = readExactly(fd, 4).readUInt32LE(0);
  const text = readExactly(fd, length).toString();
  begin();
  // Not `run`'s promise: what a job throws later is to end the process as it would anywhere.
  if (text.startsWith('//raw\n'))
    require('node:vm').compileFunction(text, ['require'], { filename: '/job.cjs' })(require);
  else run(fd, text);
}

module.exports = { place() {}, rehearse, serve, standIn() {} };
