// `run`: one function from a file, as a server would run it. The result alone is on stdout.

import { readFileSync } from 'node:fs';
import { basename, extname, resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { parseEnv } from 'node:util';
import { setLogger } from '../../index.js';
import { interrupted } from '../interrupt.mjs';
import { errorLines, errorValue, resources, summaryLines, timings } from '../run-report.mjs';
import { executorOptions, withExecutor } from '../session.mjs';
import { harmless } from '../terminal.mjs';
import { dependencies as named, parsedJson } from '../units.mjs';
import {
  CommandError,
  JSON_OUTPUT,
  nonEmpty,
  oneOf,
  packageSpec,
  positiveDuration,
  STORE_DIR,
  UsageError,
  wholeNumber,
} from '../usage.mjs';
import { WatchedFiles } from '../watch.mjs';

/** Which runtime a file is for, by the end of its name. */
const RUNTIMES = {
  '.js': 'node22',
  '.mjs': 'node22',
  '.cjs': 'node22',
  '.ts': 'typescript',
  '.mts': 'typescript',
  '.cts': 'typescript',
};

/** What is collected is for whoever asked for it, on a machine of theirs: the defaults are for servers. */
const COLLECT_LIMITS = { maxFiles: 10_000, maxBytes: 1024 ** 3 };

export const command = {
  name: 'run',
  summary: 'Runs a function from a file, as a server would: the result goes to stdout, everything else to stderr.',
  usage: [
    'run <file> [--args <json>] [--dep <package>] [--timeout <time>] [--network none] [--json]',
    'run <tool.json> [--args @<file>] [--env <name>] [--function <name>=<module>]',
    'run <file> [--file <path>=<file>] [--collect <pattern>=<folder>]',
    'run - < <file>',
  ],
  positionals: ['<file>'],
  options: {
    args: {
      type: 'string',
      value: '<json>',
      text: 'the argument of the function, an object; @<file> reads it from a file, - from stdin',
    },
    env: {
      type: 'string',
      multiple: true,
      value: '<name[=value]>',
      text: 'a variable of the call; without a value that of this process',
      check: variable,
    },
    'env-file': {
      type: 'string',
      multiple: true,
      value: '<file>',
      text: 'a file of variables of the call, as Node reads .env files',
      check: nonEmpty,
    },
    function: {
      type: 'string',
      multiple: true,
      value: '<name=module[#export]>',
      text: 'a function of this machine that the function may call as host.<name>',
      check: hostFunction,
    },
    watch: {
      type: 'boolean',
      text: 'run it again whenever its file, or a file of its argument, its variables or --file, changes',
    },
    file: {
      type: 'string',
      multiple: true,
      value: '<path=file>',
      text: 'a copy of a file of this machine that the function finds at that path of its working folder; - is stdin',
      check: givenFile,
    },
    collect: {
      type: 'string',
      multiple: true,
      value: '<pattern=folder>',
      text: 'a folder of this machine that gets the files that match when the function has returned: "out/**=results"',
      check: collected,
    },
    memory: { type: 'string', value: '<MiB>', text: 'heap of the function', check: wholeNumber(16, 1_048_576) },
    cpu: {
      type: 'string',
      value: '<seconds>',
      text: 'processor time of the function',
      check: wholeNumber(1, 1_000_000),
    },
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
    'The file has one function, or a module with a default export; .ts, .mts and .cts are TypeScript, .json is a tool as servers store it',
    '(executeCode, dependencies, inputSchema, sandboxConfig), - is the text on stdin.',
    'What the function tells by progress goes to stderr; what it yields, too, a line of JSON each.',
    'With --json stdout has one object: ok, result or error, logs, timings and resources.',
    'With --watch it goes on until it is interrupted; a call that is under way when a file changes is ended.',
    'Exit code: 0, 1 when the call failed, 2 for wrong usage.',
  ],
  run,
};

async function run(values, [file], terminal) {
  const usesStdin = checkStdin(file, values);
  setLogger(null);
  if (!values.watch)
    return withExecutor(executorOptions(values, resolve), (session) => once(session, values, file, terminal));
  if (usesStdin) throw new UsageError('--watch looks at files: stdin is none');
  if (values.collect)
    throw new UsageError('--collect replaces no files, so with --watch its folder would do once only');
  return withExecutor(executorOptions(values, resolve), (session) => again(session, values, file, terminal));
}

/** Runs it now, and whenever a file of it is another, until the command is interrupted. */
async function again(session, values, file, terminal) {
  const { args = '', 'env-file': variables = [], file: given = [] } = values;
  const named = [
    file,
    ...(args.startsWith('@') ? [args.slice(1)] : []),
    ...variables,
    ...given.map(([, from]) => from),
  ];
  const files = named.map((one) => resolve(one));
  const watched = new WatchedFiles(files);
  try {
    while (!interrupted.aborted) {
      const stop = new AbortController();
      const change = watched.changed(interrupted).finally(() => stop.abort());
      change.catch(() => {});
      await told(terminal, () => once(session, values, file, terminal, stop.signal));
      if (!stop.signal.aborted)
        terminal.err(terminal.errStyle('dim', `\nWaiting for changes of ${files.join(', ')}\n`));
      await change;
    }
  } catch (error) {
    if (!interrupted.aborted) throw error;
  } finally {
    watched.close();
  }
  return 1;
}

/** Half a file is no reason to end: the next change may be the other half. */
async function told(terminal, act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof CommandError || error instanceof UsageError)) throw error;
    terminal.err(`${terminal.errStyle('red', 'error:')} ${error.message}\n`);
  }
}

/** @param {AbortSignal} [signal] ends the call; nothing is shown of it then */
async function once(session, values, file, terminal, signal) {
  const tool = await toolOf(file);
  const args = await argumentsOf(values.args);
  const given = await companionsOf(values, terminal);
  const call = await called(session, { tool, args, given: { ...given, signal }, values, terminal });
  if (signal?.aborted) return 1;
  const times = timings(call);
  const used = resources(call.usage);
  if (values.json) terminal.json(asValue(call, tool, times, used));
  else show(call, tool, { times, used }, terminal);
  return call.error ? 1 : 0;
}

async function toolOf(file) {
  if (file === '-') return { file: 'stdin.js', runtime: 'node22', source: await stdinText(), dependencies: {} };
  if (extname(file) === '.json') return storedTool(file);
  const runtime = RUNTIMES[extname(file)];
  if (!runtime)
    throw new UsageError(`${file} must end in ${Object.keys(RUNTIMES).join(', ')} or .json: that tells how to run it`);
  return { file, runtime, source: read(file), dependencies: {} };
}

/** A tool as servers store it. */
function storedTool(file) {
  let stored;
  try {
    stored = parsedJson(read(file));
  } catch (error) {
    if (error instanceof CommandError) throw error;
    throw new CommandError(`${file} is no JSON: ${error.message}`);
  }
  const { executeCode, dependencies = {}, sandboxConfig = {} } = stored ?? {};
  if (typeof executeCode !== 'string') {
    throw new CommandError(`${file} is no function tool: it needs executeCode, the source text of the function`);
  }
  const { runtime = 'node22', timeout } = sandboxConfig ?? {};
  return { file, runtime, source: executeCode, dependencies: dependencies ?? {}, timeout };
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

async function argumentsOf(given = '{}') {
  const json = given === '-' ? await stdinText() : given.startsWith('@') ? read(given.slice(1)) : given;
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

/** `NAME=value`, or `NAME` for the value that this process has. */
function variable(given, name) {
  const at = given.indexOf('=');
  const key = at === -1 ? given : given.slice(0, at);
  const value = at === -1 ? process.env[key] : given.slice(at + 1);
  if (key === '') throw new UsageError(`--${name} must be NAME or NAME=value, not "${given}"`);
  if (value === undefined) throw new UsageError(`--${name} ${key}: this process has no such variable; give NAME=value`);
  return [key, value];
}

/** `name=module`, whose default export it is, or `name=module#export`. */
function hostFunction(given, name) {
  const [, key, module, member = 'default'] = /^([^=]+)=([^#]+)(?:#(.+))?$/.exec(given) ?? [];
  if (!key) throw new UsageError(`--${name} must be name=module or name=module#export, not "${given}"`);
  return { key, module, member };
}

/** `path=file`: where the function finds it, and what it is a copy of. */
function givenFile(given, name) {
  const at = given.indexOf('=');
  if (at < 1 || at === given.length - 1) {
    throw new UsageError(`--${name} must be path=file, as in in/data.csv=orders.csv, not "${given}"`);
  }
  return [given.slice(0, at), given.slice(at + 1)];
}

/** `pattern=folder`; a pattern may have a `=` in it. */
function collected(given, name) {
  const at = given.lastIndexOf('=');
  if (at < 1 || at === given.length - 1) {
    throw new UsageError(`--${name} must be pattern=folder, as in "out/**=results", not "${given}"`);
  }
  return [given.slice(0, at), given.slice(at + 1)];
}

/** Stdin is one thing; whether it is used. */
function checkStdin(file, { args, file: files = [] }) {
  const uses = [file === '-', args === '-', ...files.map(([, from]) => from === '-')].filter(Boolean).length;
  if (uses > 1)
    throw new UsageError('stdin can be the function, its argument or one of its files, not several of them');
  return uses === 1;
}

/** Files for the function, and the folder for what it hands over. */
function filesOf({ file: given = [], collect: wanted = [] }) {
  const folders = new Set(wanted.map(([, folder]) => folder));
  if (folders.size > 1) {
    throw new UsageError(`--collect takes one folder for all patterns, not ${[...folders].join(' and ')}`);
  }
  const files = given.map(([path, from]) => [path, from === '-' ? process.stdin : { path: resolve(from) }]);
  return {
    ...(files.length > 0 && { files: Object.fromEntries(files) }),
    ...(wanted.length > 0 && {
      collect: { match: wanted.map(([pattern]) => pattern), into: resolve(wanted[0][1]), ...COLLECT_LIMITS },
    }),
  };
}

/** What the call gives its function. */
async function companionsOf(
  { env = [], 'env-file': files = [], function: named = [], memory, cpu, ...rest },
  terminal
) {
  const variables = {};
  for (const file of files) Object.assign(variables, parseEnv(read(file)));
  for (const [key, value] of env) variables[key] = value;
  const functions = {};
  for (const { key, module, member } of named) functions[key] = await exported(module, member);
  const limits = { ...(memory !== undefined && { memoryMb: memory }), ...(cpu !== undefined && { cpuSeconds: cpu }) };
  const line = (label) => (value) =>
    terminal.err(`${terminal.errStyle('dim', `${label} ${harmless(JSON.stringify(value))}`)}\n`);
  return {
    ...(Object.keys(variables).length > 0 && { env: variables }),
    ...(named.length > 0 && { functions }),
    ...(Object.keys(limits).length > 0 && { limits }),
    ...filesOf(rest),
    onProgress: line('progress'),
    onYield: line('yield'),
  };
}

async function exported(module, member) {
  let found;
  try {
    found = await import(pathToFileURL(resolve(module)).href);
  } catch ({ message }) {
    throw new CommandError(`cannot load ${module}: ${message}`);
  }
  if (typeof found[member] === 'function') return found[member];
  const names = Object.keys(found).filter((name) => typeof found[name] === 'function');
  throw new CommandError(`${module} exports no function ${member}; it has ${names.join(', ') || 'none'}`);
}

/** Runs it, and measures. Rejects with what is no `SandboxError` only. */
async function called({ executor }, { tool, args, given, values, terminal }) {
  const dependencies = { ...tool.dependencies, ...Object.fromEntries(values.dep ?? []) };
  const logs = [];
  const call = { logs, installMs: 0, totalMs: 0 };
  const began = performance.now();
  try {
    if (Object.keys(dependencies).length > 0) {
      await terminal.progress(`Installing ${named(dependencies)}`, () => executor.warm([dependencies]));
      call.installMs = performance.now() - began;
    }
    call.result = await executor.executeFunctionTool(basename(tool.file), args, configOf(tool, dependencies, values), {
      ...given,
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

function configOf({ source, runtime, timeout: stored }, dependencies, { timeout = stored }) {
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
