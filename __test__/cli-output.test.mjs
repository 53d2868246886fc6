// What commands write: streams that cannot be written, files that cannot, and what strangers would have a terminal do.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, openSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { harmless, Terminal } from '../cli/terminal.mjs';
import { cli, ESC, MAIN } from './cli.mjs';
import { LINUX, ownWorld } from './helpers.mjs';

const world = ownWorld();
const COMMANDS = [
  ['--version'],
  ['--help'],
  ['store', '--help'],
  ['store', 'ls'],
  ['run', 'one.js'],
  ['run', 'one.js', '--json'],
];

writeFileSync(join(world.root, 'one.js'), '() => [1]');

test('a stdout that takes nothing is told in one line, with exit code 1', { skip: !LINUX && 'needs /dev/full' }, () => {
  for (const words of [...COMMANDS, ['doctor'], ['bench', '--samples', '5'], ['store', 'prune', '--all']]) {
    const full = openSync('/dev/full', 'w');
    const { status, stderr } = spawnSync(process.execPath, [MAIN, ...words], {
      cwd: world.root,
      encoding: 'utf8',
      stdio: ['ignore', full, 'pipe'],
      env: { ...process.env, NODE_TEST_CONTEXT: undefined },
    });
    assert.equal(status, 1, words.join(' '));
    const lines = stderr.split('\n').filter((line) => /error|cannot write/i.test(line));
    assert.deepEqual(lines, ['error: cannot write to stdout: ENOSPC: no space left on device, write'], words.join(' '));
    assert.doesNotMatch(stderr, /^ {4}at /m);
  }
});

test('a stdout that nobody reads any more is exit code 1, quietly', { skip: !LINUX && 'needs a shell' }, async () => {
  for (const words of COMMANDS) {
    const child = spawn(process.execPath, [MAIN, ...words], {
      cwd: world.root,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, NODE_TEST_CONTEXT: undefined },
    });
    child.stdout.destroy();
    let err = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      err += text;
    });
    const code = await new Promise((done) => child.on('close', done));
    assert.equal(code, 1, `${words.join(' ')}\n${err}`);
    assert.doesNotMatch(err, /error|EPIPE/);
  }
});

test('a picture that cannot be written is told before anything is measured', async () => {
  writeFileSync(join(world.root, 'file'), '');
  for (const [svg, code, expected] of [
    ['', 2, /^error: --svg must not be empty\n/],
    [world.root, 1, /^error: cannot write the picture: .* is a folder: name a file\n$/],
    [join(world.root, 'file', 'latency.svg'), 1, /^error: cannot write the picture: ENOTDIR/],
    ...(LINUX ? [['/proc/none/latency.svg', 1, /^error: cannot write the picture: ENOENT/]] : []),
  ]) {
    const found = await cli(['bench', '--samples', '100000', '--svg', svg]);
    assert.match(found.err, expected);
    assert.deepEqual([found.code, found.out], [code, '']);
  }
});

test('what was measured is told even if the picture cannot be written in the end', async () => {
  const svg = join(world.root, 'later', 'latency.svg');
  const child = cli(['bench', '--samples', '5', '--svg', svg]);
  // The way to it was free at the start: it is tried before the folder is made that all is measured in.
  const measures = () => readdirSync(tmpdir()).some((name) => name.startsWith('native-sandbox-executor-bench-'));
  while (!measures()) await new Promise((done) => setTimeout(done, 5));
  rmdirSync(join(world.root, 'later'));
  writeFileSync(join(world.root, 'later'), 'a file now');
  const { code, out, err } = await child;
  assert.equal(code, 1);
  assert.match(out, /^ {2}native-sandbox-executor +[\d.]+ /m);
  assert.match(err, /^error: cannot write the picture: ENOTDIR/m);
});

test('a folder that a picture needs is made, and what was there is kept until it is replaced', async () => {
  const svg = join(world.root, 'new', 'folder', 'latency.svg');
  const env = { AGENTS_FUNCTION_TOOL_SANDBOX_START: 'fork' };
  mkdirSync(join(world.root, 'new', 'folder'), { recursive: true });
  writeFileSync(svg, 'of last time');
  assert.equal((await cli(['bench', '--samples', '5', '--svg', svg], { env })).code, 1);
  assert.equal(readFileSync(svg, 'utf8'), 'of last time');
  const other = join(world.root, 'other', 'latency.svg');
  assert.equal((await cli(['bench', '--samples', '5', '--svg', other], { env })).code, 1);
  assert.ok(!existsSync(other), 'nothing was measured');
});

/* ------------------------------------------------------------------ terminals */

/** C0, C1, directions, lines: whatever drives a terminal. */
const EVIL = `a${ESC}[2Jb\u009b2Jc\u009dd\u0007e\u202ef\u2066g\u200fh\u061ci\u2028j\u007fk\rl`;
const SHOWN = 'a\\u001b[2Jb\\u009b2Jc\\u009dd\\u0007e\\u202ef\\u2066g\\u200fh\\u061ci\\u2028j\\u007fk\\u000dl';
const DRIVING = /(?!\n)[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u;

/** The line that is drawn while something takes its time, and is wiped. */
const WAITING_LINE = new RegExp(`\r(?:⠋|⠙|⠹|⠸|⠼|⠴|⠦|⠧|⠇|⠏).*?…|\r${ESC}\\[2K`, 'g');

function recorder(isTTY) {
  return {
    isTTY,
    text: '',
    write(text) {
      this.text += text;
    },
  };
}

test('what would drive a terminal is shown as its number there, and stays what it is elsewhere', () => {
  assert.equal(harmless(EVIL), SHOWN);
  assert.equal(harmless('one\r\n\ttwo\n'), 'one\n\ttwo\n');
  for (const isTTY of [true, false]) {
    const [stdout, stderr] = [recorder(isTTY), recorder(isTTY)];
    const terminal = new Terminal({ stdout, stderr, env: { TERM: 'xterm' } });
    terminal.json({ text: EVIL });
    terminal.out(EVIL);
    terminal.err(EVIL);
    const [json, plain] = stdout.text.split('\n}\n');
    assert.deepEqual(JSON.parse(`${json}\n}`), { text: EVIL });
    assert.equal(DRIVING.test(json), !isTTY);
    assert.deepEqual([plain, stderr.text], isTTY ? [SHOWN, SHOWN] : [EVIL, EVIL]);
  }
});

test('our own colours are colours on a terminal', () => {
  const stdout = recorder(true);
  const terminal = new Terminal({ stdout, stderr: recorder(true), env: { TERM: 'xterm' } });
  terminal.out(terminal.style('bold', terminal.style('green', 'good')));
  assert.equal(stdout.text, `${ESC}[1m${ESC}[32mgood${ESC}[39m${ESC}[22m`);
});

/** A command on a terminal: `script` gives it one. */
function onTerminal(words) {
  const { stdout } = spawnSync('script', ['-qec', words.map((word) => `'${word}'`).join(' '), '/dev/null'], {
    cwd: world.root,
    encoding: 'utf8',
    input: '',
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, NO_COLOR: '1', TERM: 'xterm' },
  });
  return stdout.replaceAll('\r\n', '\n');
}

const hasScript = spawnSync('script', ['-qec', 'true', '/dev/null']).status === 0;

test('results, logs and errors of a function cannot drive the terminal; in a pipe the result is exact', {
  skip: !hasScript && 'needs the program script',
}, async () => {
  const text = JSON.stringify(EVIL);
  writeFileSync(join(world.root, 'evil.js'), `() => { console.log(${text}); console.error(${text}); return ${text}; }`);
  writeFileSync(join(world.root, 'evil-error.js'), `() => { throw new Error(${text}); }`);
  for (const words of [['evil.js'], ['evil-error.js'], ['evil.js', '--json'], ['evil-error.js', '--json']]) {
    const shown = onTerminal([process.execPath, MAIN, 'run', ...words]);
    assert.doesNotMatch(shown.replaceAll(WAITING_LINE, ''), DRIVING, words.join(' '));
    assert.ok(shown.includes('\\u009b2J') && shown.includes('\\u202e'), shown);
  }
  const { out } = await cli(['run', 'evil.js'], { cwd: world.root });
  assert.equal(out, `${text}\n`);
});

test('a working directory that is gone is told without a stack', {
  skip: !LINUX && 'cannot be removed elsewhere',
}, () => {
  for (const [words, status] of [
    [['bench', '--samples', '5'], 1],
    [['store', 'ls', '--store-dir', 'here'], 1],
    [['store', 'ls', '--store-dir', world.tmp], 0],
    [['run', join(world.root, 'one.js'), '--store-dir', 'here'], 1],
  ]) {
    const script = `mkdir gone && cd gone && rmdir ../gone && exec '${process.execPath}' '${MAIN}' ${words.join(' ')}`;
    const found = spawnSync('sh', ['-c', script], {
      cwd: world.root,
      encoding: 'utf8',
      env: { ...process.env, NODE_TEST_CONTEXT: undefined },
    });
    assert.equal(found.status, status, found.stderr);
    if (status === 1) {
      assert.equal(found.stderr, 'error: the working directory does not exist any more: change into one that does\n');
    }
  }
});
