#!/usr/bin/env node
// `native-sandbox-executor <command>`: finds the command, and gives its exit code: 0, 1 when it failed, 2 for wrong usage, 128 and the
// number of the signal that interrupted it.

import { createRequire } from 'node:module';
import { interrupted, interruptible } from './interrupt.mjs';
import { Terminal } from './terminal.mjs';
import { CommandError, help, nearest, parsed, UsageError, unknownCommand } from './usage.mjs';

const { version } = createRequire(import.meta.url)('../package.json');

/** Loaded when they are asked for: none needs what the others do. */
const COMMANDS = {
  doctor: [
    'what works on this machine, what does not, and what would change that',
    () => import('./commands/doctor.mjs'),
  ],
  run: ['runs a function from a file, as a server would', () => import('./commands/run.mjs')],
  bench: ['how long calls take on this machine', () => import('./commands/bench.mjs')],
  store: ['lists, shrinks and fills the store of installed dependencies', () => import('./commands/store.mjs')],
  completion: ['completes this command line in bash, zsh or fish', () => import('./commands/completion.mjs')],
};

const EXIT_FAILED = 1;
const EXIT_USAGE = 2;

function overview() {
  const names = Object.entries(COMMANDS).map(([name, [summary]]) => `  ${name.padEnd(12)}${summary}`);
  return [
    'Runs function tools - small JavaScript and TypeScript functions - each in a fresh process.',
    '',
    'Usage: native-sandbox-executor <command> [options]',
    '',
    'Commands:',
    ...names,
    '',
    'native-sandbox-executor <command> --help tells about one of them; --version tells the version.',
    '',
  ].join('\n');
}

/** @returns {Promise<number>} the exit code */
async function main([name, ...args], terminal) {
  if (name === '--version' || name === '-v') return said(terminal, `${version}\n`);
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') return said(terminal, overview());
  if (!Object.hasOwn(COMMANDS, name)) throw unknown(name);
  const command = chosen(await COMMANDS[name][1](), args);
  try {
    const { values, positionals } = parsed(command, command.args);
    if (values.help) return said(terminal, help(command));
    return await command.run(values, positionals, terminal, { all: allCommands, summaries: summaries() });
  } catch (error) {
    if (error instanceof UsageError) error.command = command.name;
    throw error;
  }
}

/** What each first word does. */
function summaries() {
  return Object.fromEntries(Object.entries(COMMANDS).map(([name, [summary]]) => [name, summary]));
}

/** All commands but the one that asks, for shells. */
async function allCommands() {
  const others = Object.keys(COMMANDS).filter((name) => name !== 'completion');
  const modules = await Promise.all(others.map((name) => COMMANDS[name][1]()));
  return modules.flatMap(({ command, subcommands }) =>
    (command ? [command] : Object.values(subcommands)).map(({ name, summary, options, positionals = [] }) => {
      return { name, summary, options, takesFile: positionals.length > 0 };
    })
  );
}

/** The command of a module, or of those that it has the one that the arguments name. */
function chosen({ command, all, subcommands }, args) {
  if (command) return { ...command, args };
  const [name, ...rest] = args;
  const known = Object.values(subcommands);
  if (name !== undefined && Object.hasOwn(subcommands, name)) {
    const siblings = known.filter((one) => one !== subcommands[name]);
    return { ...subcommands[name], args: rest, siblings };
  }
  if (name !== undefined && !name.startsWith('-')) {
    throw unknownCommand(name, Object.keys(subcommands), all.name);
  }
  // Asked for help, it tells about all of them.
  return { ...all, args, siblings: known };
}

function said(terminal, text) {
  terminal.out(text);
  return 0;
}

function unknown(name) {
  const known = Object.keys(COMMANDS);
  if (!name.startsWith('-')) return unknownCommand(name, known);
  const near = nearest(name.replace(/^-+/, ''), ['help', 'version']);
  return new UsageError(
    `unknown option ${name}; ${near ? `did you mean --${near}?` : `commands are ${known.join(', ')}`}`
  );
}

function failed(error, [name], terminal) {
  const red = (text) => terminal.errStyle('red', text);
  if (error instanceof UsageError) {
    terminal.err(`${red('error:')} ${error.message}\nSee ${helpOf(error.command ?? name)}\n`);
    return EXIT_USAGE;
  }
  terminal.err(`${red('error:')} ${toldOf(error)}\n`);
  return EXIT_FAILED;
}

/** What is said of an error: without a stack where that is no help. */
function toldOf(error) {
  if (error instanceof CommandError) return error.message;
  if (error?.syscall === 'uv_cwd') return 'the working directory does not exist any more: change into one that does';
  return error?.stack ?? String(error);
}

function helpOf(name) {
  const own = name !== undefined && Object.hasOwn(COMMANDS, name.split(' ')[0]) ? ` ${name}` : '';
  return `native-sandbox-executor${own} --help`;
}

/** Whether what was asked for could not be written. */
let isLost = false;

process.stdout.on('error', ({ code, message }) => {
  // Whoever reads our output may have enough of it (`… | head`), and knows.
  if (!isLost && code !== 'EPIPE')
    terminal.err(`${terminal.errStyle('red', 'error:')} cannot write to stdout: ${message}\n`);
  isLost = true;
  process.exitCode ||= EXIT_FAILED;
});
process.stderr.on('error', () => {});

const terminal = new Terminal();
interruptible((signal) => {
  terminal.mute();
  process.stderr.write(`${terminal.errStyle('red', 'error:')} interrupted by ${signal}\n`);
});
const args = process.argv.slice(2);
const code = await main(args, terminal).catch((error) => failed(error, args, terminal));
// What is interrupted ends with another one.
if (!interrupted.aborted) process.exitCode = code || (isLost ? EXIT_FAILED : 0);
