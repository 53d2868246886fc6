// `run`: one function from a file, as a server would run it. The result alone is on stdout.

import { readFileSync } from 'node:fs';
import { basename, extname, resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { setLogger } from '../../index.js';
import { errorLines, errorValue, resources, summaryLines, timings } from '../run-report.mjs';
import { executorOptions, withExecutor } from '../session.mjs';
import { harmless } from '../terminal.mjs';
import { dependencies as named, parsedJson } from '../units.mjs';
import { CommandError, JSON_OUTPUT, oneOf, packageSpec, positiveDuration, STORE_DIR, UsageError } from '../usage.mjs';

/** Which runtime a file is for, by the end of its name. */
const RUNTIMES = {
  '.js': 'node22',
  '.mjs': 'node22',
  '.cjs': 'node22',
  '.ts': 'typescript',
  '.mts': 'typescript',
  '.cts': 'typescript',
};

export const command = {
  name: 'run',
  summary: 'Runs a function from a file, as a server would: the result goes to stdout, everything else to stderr.',
  usage: ['run <file> [--args <json>] [--dep <package>] [--timeout <time>] [--network none] [--json]'],
  positionals: ['<file>'],
  options: {
    args: { type: 'string', value: '<json>', text: 'the argument of the function, an object; - reads it from stdin' },
    dep: {
      type: 'string',
      multiple: true,
      value: '<package>',
      text: 'a package that the function may use: lodash@4',
      check: packageSpec,
    },
    timeout: {
      type: 'string',
      value: '<time>',
      text: 'how long the function may take: 500ms, 5s, 2m',
      check: positiveDuration,
    },
    network: {
      type: 'string',
      value: '<open|none>',
      text: 'whether it may use the network',
      check: oneOf('open', 'none'),
    },
    ...STORE_DIR,
    ...JSON_OUTPUT,
  },
  notes: [
    'The file has one function, or a module with a default export; .ts, .mts and .cts are TypeScript.',
    'With --json stdout has one object: ok, result or error, logs, timings and resources.',
    'Exit code: 0, 1 when the call failed, 2 for wrong usage.',
  ],
  run,
};

async function run(values, [file], terminal) {
  const tool = toolOf(file);
  const args = argumentsOf(values.args === '-' ? await stdinText() : values.args);
  setLogger(null);
  const call = await withExecutor(executorOptions(values, resolve), (session) => {
    return called(session, { tool, args, values, terminal });
  });
  const times = timings(call);
  const used = resources(call.usage);
  if (values.json) terminal.json(asValue(call, tool, times, used));
  else show(call, tool, { times, used }, terminal);
  return call.error ? 1 : 0;
}

function toolOf(file) {
  const runtime = RUNTIMES[extname(file)];
  if (!runtime)
    throw new UsageError(`${file} must end in ${Object.keys(RUNTIMES).join(', ')}: that tells how to run it`);
  return { file, runtime, source: read(file) };
}

function read(file) {
  try {
    return readFileSync(file, 'utf8');
  } catch ({ code, message }) {
    throw new CommandError(code === 'ENOENT' ? `there is no file ${file}` : `cannot read ${file}: ${message}`);
  }
}

/** Not at once: a signal may come while somebody types. */
async function stdinText() {
  try {
    return await text(process.stdin);
  } catch ({ message }) {
    throw new CommandError(`cannot read stdin: ${message}`);
  }
}

function argumentsOf(json = '{}') {
  let value;
  try {
    value = parsedJson(json);
  } catch ({ message }) {
    throw new UsageError(`--args must be JSON (${message}), for example --args '{"a":1}'`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new UsageError(`--args must be a JSON object, for example --args '{"a":1}', not ${json.trim()}`);
  }
  return value;
}

/** Runs it, and measures. Rejects with what is no `SandboxError` only. */
async function called({ executor }, { tool, args, values, terminal }) {
  const dependencies = Object.fromEntries(values.dep ?? []);
  const logs = [];
  const call = { logs, installMs: 0, totalMs: 0 };
  const began = performance.now();
  try {
    if (values.dep) {
      await terminal.progress(`Installing ${named(dependencies)}`, () => executor.warm([dependencies]));
      call.installMs = performance.now() - began;
    }
    call.result = await executor.executeFunctionTool(basename(tool.file), args, configOf(tool, dependencies, values), {
      onLogs: (chunk) => {
        logs.push(chunk);
        if (!values.json) terminal.err(terminal.errStyle('dim', harmless(chunk.text)));
      },
      onUsage: (usage) => {
        call.usage = usage;
      },
    });
  } catch (error) {
    if (error?.name !== 'SandboxError') throw error;
    call.error = error;
  }
  call.totalMs = performance.now() - began;
  // What was used is told when the processes are gone.
  await executor.cleanup();
  await turn();
  return call;
}

function configOf({ source, runtime }, dependencies, { timeout }) {
  return {
    description: 'from the command line',
    inputSchema: {},
    executeCode: source,
    dependencies,
    sandboxConfig: { provider: 'native', runtime, ...(timeout !== undefined && { timeout }) },
  };
}

function asValue({ error, result, logs }, tool, times, used) {
  const answer = error ? { ok: false, error: errorValue(error, tool) } : { ok: true, result };
  return { ...answer, logs, timings: times, resources: used };
}

function show({ error, result, logs }, tool, { times, used }, terminal) {
  const last = logs.at(-1)?.text;
  if (last && !last.endsWith('\n')) terminal.err('\n');
  if (error) terminal.err(`${errorLines(error, tool, terminal.errStyle).join('\n')}\n\n`);
  else if (result !== undefined) terminal.out(`${JSON.stringify(result, null, 2)}\n`);
  terminal.err(`${summaryLines({ ok: !error, times, used }, terminal.errStyle).join('\n')}\n`);
}
