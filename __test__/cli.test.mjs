// The command line as a whole: help, usage, colours.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { codeFrame, placeOf } from '../cli/code-frame.mjs';
import { columns } from '../cli/table.mjs';
import { harmless, wantsColor } from '../cli/terminal.mjs';
import { bytes, dependency, milliseconds, parsedJson, shownBytes, shownTime } from '../cli/units.mjs';
import { cli, ESC } from './cli.mjs';
import { ownWorld, ROOT } from './helpers.mjs';

ownWorld();

const plain = (_format, text) => text;

test('it tells its version', async () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  assert.deepEqual(await cli(['--version']), { code: 0, out: `${version}\n`, err: '' });
});

test('every command helps, on stdout', async () => {
  const overview = await cli(['--help']);
  assert.deepEqual([overview.code, overview.err], [0, '']);
  assert.deepEqual(await cli([]), overview, 'a bare command helps too');
  for (const words of ['doctor', 'run', 'bench', 'store', 'store ls', 'store prune', 'store warm']) {
    assert.ok(overview.out.includes(words.split(' ')[0]), words);
    const { code, out, err } = await cli([...words.split(' '), '--help']);
    assert.deepEqual([code, err], [0, ''], words);
    assert.match(out, /^[A-Z].*\.\n\nUsage: native-sandbox-executor /, words);
    assert.match(out, new RegExp(`Usage: native-sandbox-executor ${words}`), words);
    assert.match(out, /-h, --help/, words);
  }
});

test('wrong usage is told with what would be right, on stderr, with exit code 2', async () => {
  for (const [words, expected] of [
    [['benhc', 'x.js'], /unknown command benhc; did you mean bench\?/],
    [['whatever'], /unknown command whatever; commands are doctor, run, bench, store, completion/],
    [['--verbose'], /unknown option --verbose/],
    [['doctor', '--jsn'], /unknown option --jsn of doctor; did you mean --json\?/],
    [['doctor', '--colour'], /unknown option --colour of doctor; known are --require, /],
    [['doctor', '-x'], /unknown option -x of doctor/],
    [['doctor', '--require'], /--require needs a value: --require <tier>/],
    [['doctor', '--require', 'full'], /--require must be base, confined or isolated, not "full"/],
    [['doctor', '--json=yes'], /--json takes no value/],
    [['doctor', 'now'], /doctor takes no arguments beside its options, got now/],
    [['doctor', '--store-dir', ''], /--store-dir must not be empty/],
    [['run'], /run takes <file>, got none/],
    [['run', 'a.js', 'b.js'], /run takes <file>, got a\.js b\.js/],
    [['run', 'a.txt'], /a\.txt must end in \.js, /],
    [['run', 'a.js', '--timeout', '5'], /--timeout must be a number with a unit \(500ms, 5s, .*\), not "5"/],
    [['run', 'a.js', '--timeout', '0s'], /--timeout must be more than 0/],
    [['run', 'a.js', '--network', 'off'], /--network must be open or none/],
    [['run', 'a.js', '--dep', '@4'], /--dep must be a package with a range/],
    [['bench', '--samples', '1.5'], /--samples must be a whole number from 5 to /],
    [['store'], /store takes ls, prune or warm, got none/],
    [['stor', 'ls'], /unknown command stor; did you mean store\?\nSee native-sandbox-executor store --help/],
    [
      ['store', 'lsit'],
      /unknown command store lsit; did you mean store ls\?\nSee native-sandbox-executor store ls --help/,
    ],
    [['store', 'wram', 'x.json'], /did you mean store warm\?\nSee native-sandbox-executor store warm --help/],
    [
      ['store', 'whatever'],
      /unknown command store whatever; commands are store ls, store prune, store warm\nSee native-sandbox-executor store --help/,
    ],
    [['store', '--jsn', 'ls'], /unknown option --jsn of store; did you mean --json\?/],
    [['store', '--json', 'ls'], /unknown option --json of store; store ls, store prune and store warm have it/],
    [
      ['store', 'ls', '--older-than', '4d'],
      /unknown option --older-than of store ls; store prune has it\nSee .* store ls --help/,
    ],
    [
      ['store', 'prune', '--al'],
      /of store prune; did you mean --all\?\nSee native-sandbox-executor store prune --help/,
    ],
    [['--verison'], /unknown option --verison; did you mean --version\?/],
    [['store', 'prune'], /needs --max-size, --older-than or --all/],
    [['store', 'prune', '--all', '--max-size', '1GB'], /--all leaves nothing for --max-size/],
    [['store', 'prune', '--max-size', 'big'], /--max-size must be a number with a unit \(500MB, /],
    [['store', 'prune', '--older-than', '1week'], /--older-than must be a number with a unit/],
    [['store', 'warm'], /store warm takes <deps\.json>, got none/],
  ]) {
    const { code, out, err } = await cli(words);
    assert.match(err, expected, words.join(' '));
    assert.match(err, /\nSee native-sandbox-executor .*--help\n$/);
    assert.deepEqual([code, out], [2, ''], words.join(' '));
  }
});

test('what cannot be done is told without a stack, with exit code 1', async () => {
  for (const [words, expected] of [
    [['run', 'missing.js'], /^error: there is no file missing\.js\n$/],
    [['store', 'warm', 'missing.json'], /^error: there is no file missing\.json\n$/],
  ]) {
    assert.match((await cli(words)).err, expected);
    assert.equal((await cli(words)).code, 1);
  }
});

test('colours: forced, refused, or as the terminal has them', async () => {
  const words = ['run', 'missing.js'];
  assert.ok(!(await cli(words)).err.includes(ESC));
  assert.match((await cli(words, { env: { FORCE_COLOR: '1' } })).err, new RegExp(`^${ESC}\\[31merror:`));
  assert.ok(!(await cli(words, { env: { NO_COLOR: '1' } })).err.includes(ESC));
  for (const [env, isTerminal, expected] of [
    [{}, true, true],
    [{}, false, false],
    [{ NO_COLOR: '1' }, true, false],
    [{ NO_COLOR: '' }, true, true],
    [{ TERM: 'dumb' }, true, false],
    [{ FORCE_COLOR: '0' }, true, false],
    [{ FORCE_COLOR: '1', NO_COLOR: '1' }, false, true],
  ]) {
    assert.equal(wantsColor(env, isTerminal), expected, JSON.stringify([env, isTerminal]));
  }
});

test('quantities are read and shown', () => {
  assert.deepEqual(['500ms', '1.5s', '2m', '1h', '7d'].map(milliseconds), [500, 1500, 120_000, 3_600_000, 604_800_000]);
  assert.deepEqual(['5', 's', '-1s', '1 week', '', '1toString'].map(milliseconds), Array(6).fill(undefined));
  assert.deepEqual(['0B', '1kb', '500MB', '1.5GiB'].map(bytes), [0, 1000, 500e6, 1.5 * 2 ** 30]);
  assert.deepEqual(['5', 'GB', '1XB'].map(bytes), Array(3).fill(undefined));
  assert.deepEqual(dependency('lodash@^4'), ['lodash', '^4']);
  assert.deepEqual(dependency('@scope/name@npm:x@1'), ['@scope/name', 'npm:x@1']);
  assert.deepEqual(dependency('@scope/name'), ['@scope/name', 'latest']);
  assert.deepEqual(['', '@', 'a@'].map(dependency), Array(3).fill(undefined));
  assert.deepEqual([0, 1023, 1536, 2 ** 31].map(shownBytes), ['0 B', '1023 B', '1.5 KiB', '2 GiB']);
  assert.deepEqual([0.0123, 1.234, 999, 61_000, 121_000, 7_200_000, 8e8].map(shownTime), [
    '12 µs',
    '1.23 ms',
    '999 ms',
    '61 s',
    '2.02 min',
    '2 h',
    '9.26 d',
  ]);
});

test('a byte-order mark in front of JSON is none of it', () => {
  assert.deepEqual(parsedJson('\ufeff{"a":1}'), { a: 1 });
  assert.deepEqual(parsedJson('["\ufeff"]'), ['\ufeff']);
  assert.throws(() => parsedJson('\ufeff\ufeff{}'), SyntaxError);
});

test('columns are as wide as their widest cell, colours not counted', () => {
  const rows = [
    ['a', '\u001b[31m1\u001b[39m', 'x'],
    ['bb', '22', ''],
  ];
  assert.deepEqual(columns(rows, { right: [1] }), ['a    \u001b[31m1\u001b[39m  x', 'bb  22']);
  assert.deepEqual(columns([]), []);
});

test('text of strangers cannot drive the terminal', () => {
  assert.equal(
    harmless('a\u001b[2J\u001b]0;title\u0007b\r\n\tc\u0000\u202ed\u009b'),
    'a\\u001b[2J\\u001b]0;title\\u0007b\n\tc\\u0000\\u202ed\\u009b'
  );
});

test('a code frame shows the line, its neighbours and the place', () => {
  const source = ['one', '\ttwo(x)', 'three', 'four', 'five'].join('\r\n');
  assert.deepEqual(codeFrame(source, { line: 2, column: 5 }, plain), [
    '  1 | one',
    '> 2 | \ttwo(x)',
    '    | \t   ^',
    '  3 | three',
    '  4 | four',
  ]);
  assert.deepEqual(codeFrame(source, { line: 9, column: 1 }, plain), []);
  assert.equal(placeOf({ message: 'x', cause: 'a text' }), undefined);
  assert.deepEqual(placeOf({ message: 'Bad (line 3, column 7)\n' }), { line: 3, column: 7, isPictured: true });
});
