// Makes calls to whatever the run API's own import of its executor gives, and tells the answers and the log records.
//
// Arguments: the file of the executor and that of the calls. A line on stdin is the name of a case; a line of JSON on stdout
// tells its outcomes. Ends when stdin does.

import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { loggerFactory } from '@inkeep/agents-core';

let records = [];
loggerFactory.configure({
  loggerFactory: (name) =>
    Object.fromEntries(
      ['debug', 'info', 'warn', 'error'].map((level) => [
        level,
        (fields, message) => records.push([name, level, message, Object.keys(fields)]),
      ])
    ),
});

const [executor, calls] = process.argv.slice(2);
const { SandboxExecutorFactory } = await import(pathToFileURL(executor));
const { CASES } = await import(pathToFileURL(calls));

async function outcome({ code, args = {}, sandbox, noSandbox, dependencies = {} }) {
  const config = {
    description: 'a call',
    inputSchema: {},
    executeCode: code,
    dependencies,
    sandboxConfig: noSandbox
      ? undefined
      : { provider: 'native', runtime: 'node22', timeout: 10000, vcpus: 4, ...sandbox },
  };
  try {
    const value = await SandboxExecutorFactory.getInstance().executeFunctionTool('a-tool', args, config);
    return value === undefined ? { undefined: true } : { value };
  } catch (error) {
    return { rejection: error.message, isError: error instanceof Error };
  }
}

async function serve(name) {
  const outcomes = await Promise.all(CASES.find((one) => one.name === name).calls.map(outcome));
  process.stdout.write(`${JSON.stringify({ outcomes, records })}\n`);
  records = [];
}

createInterface({ input: process.stdin })
  .on('line', serve)
  // The original's timer would hold the process.
  .on('close', () => process.exit());
process.stdout.write('{"ready":true}\n');
