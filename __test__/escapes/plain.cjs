'use strict';
// What an attempt meets outside: a Node process with nothing around it. Runs the text of one function and writes its
// answer to descriptor 3 in the frames of a worker, so that what is done to a worker's channel can be done to this one.

const { readFileSync, writeSync } = require('node:fs');
const { createRequire } = require('node:module');
const { join } = require('node:path');

const RETURNED = 18;
const THREW = 19;

function answer(type, value) {
  const payload = Buffer.from(value === undefined ? '' : JSON.stringify(value));
  const header = Buffer.alloc(5);
  header.writeUInt32LE(payload.length);
  header[4] = type;
  writeSync(3, Buffer.concat([header, payload]));
}

async function main() {
  const { source, args } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
  process.argv.length = 1;
  const tool = new Function('require', `return (${source});`)(createRequire(join(process.cwd(), 'tool.cjs')));
  answer(RETURNED, await tool(args));
}

main().catch((error) => {
  answer(THREW, String(error?.stack ?? error));
  process.exitCode = 1;
});
