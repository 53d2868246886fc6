#!/usr/bin/env node
// `native-sandbox-executor <command>`: finds the command, and gives its exit code: 0, 1 when it failed, 2 for wrong usage.

import { createRequire } from 'node:module';
import { Terminal } from './terminal.mjs';
import { CommandError, help, nearest, parsed, UsageError } from './usage.mjs';

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
};

const EXIT_FAILED = 1;
const EXIT_USAGE = 2;

function overview() {
  const names = Object.entries(COMMANDS).map(([name, [summary]]) => `  ${name.padEnd(8)}${summary}`);
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
  if (name === '--help' || name === '-h' || name === 'help') return said(terminal, overview());
  if (name === undefined) throw new UsageError('which command?');
  if (!Object.hasOwn(COMMANDS, name)) throw new UsageError(unknown(name));
  const command = chosen(await COMMANDS[name][1](), args);
  const { values, positionals } = parsed(command, command.args);
  if (values.help) return said(terminal, help(command));
  return await command.run(values, positionals, terminal);
}

/** The command of a module, or of those that it has the one that the arguments name. */
function chosen({ command, subcommands }, args) {
  if (command) return { ...command, args };
  const [name, ...rest] = args;
  if (name !== undefined && Object.hasOwn(subcommands, name)) return { ...subcommands[name], args: rest };
  // Asked for help, it tells about all of them.
  return { ...subcommands.all, args };
}

function said(terminal, text) {
  terminal.out(text);
  return 0;
}

function unknown(name) {
  const known = Object.keys(COMMANDS);
  const near = nearest(name, known);
  return `unknown ${name.startsWith('-') ? 'option' : 'command'} ${name}; ${near ? `did you mean ${near}?` : `commands are ${known.join(', ')}`}`;
}

function failed(error, [name], terminal) {
  const red = (text) => terminal.errStyle('red', text);
  if (error instanceof UsageError) {
    terminal.err(`${red('error:')} ${error.message}\nSee ${helpOf(name)}\n`);
    return EXIT_USAGE;
  }
  terminal.err(`${red('error:')} ${error instanceof CommandError ? error.message : error.stack}\n`);
  return EXIT_FAILED;
}

function helpOf(name) {
  const own = name !== undefined && Object.hasOwn(COMMANDS, name) ? ` ${name}` : '';
  return `native-sandbox-executor${own} --help`;
}

// Whoever reads our output may have enough of it (`… | head`): the command goes on, and its exit code counts.
process.stdout.on('error', ({ code, message }) => {
  if (code === 'EPIPE') return;
  process.stderr.write(`error: cannot write to stdout: ${message}\n`);
  process.exit(EXIT_FAILED);
});
process.stderr.on('error', () => {});

const terminal = new Terminal();
const args = process.argv.slice(2);
process.exitCode = await main(args, terminal).catch((error) => failed(error, args, terminal));
