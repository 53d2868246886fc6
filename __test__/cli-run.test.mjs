// `run`: a function from a file, in a process as users start it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { cli, ESC } from './cli.mjs';
import { gone, LINUX, newMarker, ownWorld } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const world = ownWorld();
const folder = join(world.root, 'tools');
let registry;

before(async () => {
  mkdirSync(folder);
  registry = await useRegistry({ alpha: { '1.2.0': { 'index.js': "module.exports = () => 'alpha';" } } });
});
after(() => registry.close());

/** Runs a source text from a file of this name. */
async function ran(name, source, args = [], how) {
  writeFileSync(join(folder, name), source);
  return await cli(['run', name, ...args], { cwd: folder, ...how });
}

test('the result alone is on stdout; logs, times and resources are on stderr', async () => {
  const source = `async ({ a }) => { console.log('to stdout'); console.error('to stderr'); return { b: a + 1, text: 'ä' }; }`;
  const { code, out, err } = await ran('add.js', source, ['--args', '{"a":1}']);
  assert.equal(code, 0, err);
  assert.equal(out, `${JSON.stringify({ b: 2, text: 'ä' }, null, 2)}\n`);
  assert.match(err, /^to stdout\n/m);
  assert.match(err, /^to stderr\n/m);
  assert.match(err, /^✔ [\d.]+ m?s {2}queue .* install .* start .* run /m);
  assert.match(err, /^ {2}processor [\d.]+ m?s {2}memory [\d.]+ MiB {2}output \d+ B$/m);
  assert.ok(!(out + err).includes(ESC));
});

test('the end of the name tells the runtime', async () => {
  const typed = '({ a }: { a: number }): number => a + 1;';
  for (const name of ['typed.ts', 'typed.mts', 'typed.cts']) {
    const { code, out, err } = await ran(name, typed, ['--args', '{"a":1}']);
    assert.deepEqual([code, out], [0, '2\n'], err);
  }
  assert.deepEqual((await ran('module.mjs', 'export default () => "module"')).out, '"module"\n');
});

test('a reader of stderr that goes away changes neither the exit code nor the result', {
  skip: !LINUX && 'needs a shell',
}, () => {
  const main = fileURLToPath(new URL('../cli/main.mjs', import.meta.url));
  const shell = (redirected) => {
    const command = `set -o pipefail; '${process.execPath}' '${main}' run ${redirected}`;
    return spawnSync('bash', ['-c', command], { cwd: folder, encoding: 'utf8' });
  };
  writeFileSync(join(folder, 'chatty.js'), '() => { console.error("x".repeat(1e5)); return [1]; }');
  assert.equal(shell('chatty.js 2>&1 >chatty.out | true').status, 0);
  assert.equal(readFileSync(join(folder, 'chatty.out'), 'utf8'), '[\n  1\n]\n');
});

test('no result is no output', async () => {
  const { code, out } = await ran('nothing.js', '() => {}');
  assert.deepEqual([code, out], [0, '']);
});

test('a thrown error has its code, message, place and picture, and exit code 1', async () => {
  const source = [
    '({ n }: { n: number }) => {',
    '  const limit: number = 3;',
    "  if (n > limit) throw new RangeError('too much');",
    '}',
  ];
  const { code, out, err } = await ran('throws.ts', source.join('\n'), ['--args', '{"n":9}']);
  assert.deepEqual([code, out], [1, '']);
  assert.match(err, /^TOOL_ERROR .*RangeError: too much$/m);
  assert.match(err, /^throws\.ts:3:24$/m);
  assert.match(err, /^> 3 | {3}if \(n > limit\) throw new RangeError/m);
  assert.match(err, /^ {4}\| {24}\^$/m);
  assert.match(err, /^ {2}at .*throws\.ts:3:24\)?$/m);
  assert.doesNotMatch(err, /index\.cjs/);
  assert.match(err, /^✖ /m);
});

test('a text that is no function is pictured by its message', async () => {
  const { code, err } = await ran('broken.js', '() => {\n  let x = ;\n}');
  assert.equal(code, 1);
  assert.match(err, /^INVALID_SOURCE SyntaxError: .*\(line 2, column 11\)/);
  assert.match(err, /^broken\.js:2:11$/m);
  assert.equal(err.match(/let x = ;/g).length, 1, err);
});

test('with --json stdout is one object', async () => {
  const good = await ran('good.js', '() => { console.log("said"); return [1]; }', ['--json']);
  const { ok, result, logs, timings, resources } = JSON.parse(good.out);
  assert.deepEqual([good.code, good.err, ok, result], [0, '', true, [1]]);
  assert.deepEqual(logs, [{ stream: 'stdout', text: 'said\n' }]);
  const { totalMs, ...phases } = timings;
  assert.deepEqual(Object.keys(phases), ['queueMs', 'installMs', 'startMs', 'runMs']);
  const sum = Object.values(phases).reduce((one, other) => one + other);
  assert.ok(sum <= totalMs && sum > totalMs / 2 && phases.runMs > 0, JSON.stringify(timings));
  assert.ok(resources.cpuMs > 0 && resources.maxRssBytes > 2 ** 20 && resources.outputBytes === 8, good.out);

  const bad = await ran('bad.js', '() => {\n  throw Object.assign(new Error("no"), { status: 404 });\n}', ['--json']);
  const { error, ...rest } = JSON.parse(bad.out);
  assert.deepEqual([bad.code, bad.err, rest.ok], [1, '', false]);
  assert.deepEqual(
    [error.code, error.phase, error.place],
    ['TOOL_ERROR', 'run', { file: 'bad.js', line: 2, column: 23 }]
  );
  assert.deepEqual(error.cause, { status: 404, name: 'Error', message: 'no' });
  assert.match(error.frame, /^> 2 \|/m);
});

test('arguments come from the command line or from stdin, and are an object', async () => {
  const source = '({ a }) => a';
  assert.equal((await ran('args.js', source, ['--args', '-'], { input: '{"a":"piped"}' })).out, '"piped"\n');
  assert.deepEqual((await ran('args.js', source)).out, '');
  // As some programs write files.
  assert.equal((await ran('args.js', source, ['--args', '-'], { input: '\ufeff{"a":"marked"}' })).out, '"marked"\n');
  assert.equal((await ran('args.js', source, ['--args', '\ufeff{"a":"marked"}'])).out, '"marked"\n');
  assert.equal((await ran('marked.js', `\ufeff${source}`, ['--args', '{"a":1}'])).out, '1\n');
  for (const text of ['{a:1}', '[1]', 'null', '"x"', '']) {
    const { code, err } = await ran('args.js', source, ['--args', text]);
    assert.equal(code, 2, text);
    assert.match(err, /--args must be (a )?JSON.*--args '\{"a":1\}'/, text);
  }
});

test('a timeout ends it, and nothing stays', { skip: !LINUX && 'looks into /proc' }, async () => {
  const marker = newMarker();
  const source = `() => {
    require('node:child_process').spawn('sleep', ['60'], { argv0: ${JSON.stringify(marker)}, detached: true });
    return new Promise((_) => setTimeout(_, 60_000));
  }`;
  const { code, err } = await ran('slow.js', source, ['--timeout', '500ms']);
  assert.equal(code, 1);
  assert.match(err, /^TIMEOUT .* after 500ms/m);
  await gone(marker);
});

test('--network none closes the network', async () => {
  const source = `async ({ url }) => (await fetch(url)).status`;
  const args = ['--args', JSON.stringify({ url: `${registry.url}alpha` })];
  assert.equal((await ran('fetch.js', source, args)).out, '200\n');
  const { code, out, err } = await ran('fetch.js', source, [...args, '--network', 'none']);
  assert.deepEqual([code, out], [1, ''], err);
  assert.match(err, /^(TOOL_ERROR|ISOLATION_UNAVAILABLE) /m);
});

test('packages are installed, which is told on stderr, once', async () => {
  const source = `() => require('alpha')()`;
  const args = ['--dep', 'alpha@^1', '--store-dir', join(folder, 'store')];
  const first = await ran('uses.js', source, args);
  assert.deepEqual([first.code, first.out], [0, '"alpha"\n'], first.err);
  assert.match(first.err, /^Installing alpha@\^1 …\nInstalling alpha@\^1: [\d.]+ s\n/);
  assert.ok(existsSync(join(folder, 'store')));
  const second = await ran('uses.js', source, args);
  assert.deepEqual([second.code, second.out], [0, '"alpha"\n'], second.err);
  assert.equal(registry.hits.alpha, 1);
  const undeclared = await ran('uses.js', "import alpha from 'alpha'; export default () => alpha()");
  assert.match(undeclared.err, /^INVALID_DEPENDENCY /);
  const missing = await ran('uses.js', source, ['--dep', 'no-such-package@1']);
  assert.equal(missing.code, 1);
  assert.match(missing.err, /^INSTALL_FAILED /m);
});

test('forced colours are on stderr; the result stays what it is', async () => {
  const source = `() => { process.stdout.write('\\u001b[2J\\u001b]0;mine\\u0007plain'); return 'x'; }`;
  const { out, err } = await ran('colour.js', source, [], { env: { FORCE_COLOR: '1' } });
  assert.equal(out, '"x"\n');
  assert.ok(err.includes(`${ESC}[32m✔`), err);
  assert.match(err, /plain/);
  assert.ok(!err.includes(`${ESC}[2J`) && !err.includes('\u0007'));
});

test('a tool as servers store it, with arguments from a file, variables and functions of this machine', async () => {
  const executeCode =
    'async ({ n }, { host, progress }) => { progress(1); return [await host.double(n), await host.name(), process.env.ONE, process.env.TWO]; }';
  writeFileSync(join(folder, 'args.json'), '{"n":4}');
  writeFileSync(join(folder, 'vars.env'), 'TWO="from a file"\n');
  writeFileSync(join(folder, 'functions.mjs'), 'export default () => "default"; export const double = (n) => n * 2;');
  const flags = [
    '--args',
    '@args.json',
    '--env',
    'ONE=1',
    '--env-file',
    'vars.env',
    '--function',
    'double=functions.mjs#double',
    '--function',
    'name=functions.mjs',
  ];
  const { code, out, err } = await ran(
    'stored.json',
    JSON.stringify({ executeCode, dependencies: {}, inputSchema: {} }),
    flags
  );
  assert.equal(code, 0, err);
  assert.deepEqual(JSON.parse(out), [8, 'default', '1', 'from a file']);
  assert.match(err, /^progress 1$/m);
});

test('code from stdin', async () => {
  const { code, out, err } = await cli(['run', '-', '--args', '{"a":2}'], { cwd: folder, input: '({ a }) => a * 2' });
  assert.deepEqual([code, out], [0, '4\n'], err);
});

test('what is wrong with variables, functions and stored tools is said', async () => {
  for (const [args, message] of [
    [['--env', 'NOT_THERE_AT_ALL'], /has no such variable/],
    [['--env', '=x'], /must be NAME or NAME=value/],
    [['--function', 'x'], /must be name=module/],
    [['--function', 'x=missing.mjs'], /cannot load missing\.mjs/],
    [['--memory', '1'], /--memory must be a whole number from 16/],
  ]) {
    const { code, err } = await ran('any.js', '() => 1', args);
    assert.notEqual(code, 0);
    assert.match(err, message);
  }
  assert.match((await ran('no-tool.json', '{}')).err, /it needs executeCode/);
  assert.match((await ran('no.json', '{')).err, /is no JSON/);
});

test('files of this machine go in, and what matches comes out into a folder', async () => {
  mkdirSync(join(folder, 'given'), { recursive: true });
  writeFileSync(join(folder, 'given/orders.csv'), 'a,1\n');
  const source = `() => { const fs = require('node:fs'); fs.mkdirSync('out'); fs.writeFileSync('out/copy', fs.readFileSync('in/data.csv')); fs.writeFileSync('log', fs.readFileSync('stdin.txt')); fs.writeFileSync('left', ''); return 1; }`;
  const flags = ['--file', 'in/data.csv=given/orders.csv', '--file', 'stdin.txt=-'];
  flags.push('--collect', 'out/**=results', '--collect', 'log=results');
  const { code, out, err } = await ran('files.js', source, flags, { input: 'typed' });
  assert.deepEqual([code, out], [0, '1\n'], err);
  assert.equal(readFileSync(join(folder, 'results/out/copy'), 'utf8'), 'a,1\n');
  assert.equal(readFileSync(join(folder, 'results/log'), 'utf8'), 'typed');
  assert.equal(existsSync(join(folder, 'results/left')), false);
  const again = await ran('files.js', source, flags, { input: 'typed' });
  assert.equal(again.code, 1);
  assert.match(again.err, /FILES_FAILED/);
  assert.match(again.err, /exists in .*results already, and nothing is replaced/);
});

test('what is wrong with files and folders is said', async () => {
  for (const [args, status, message] of [
    [['--file', 'x'], 2, /--file must be path=file, as in in\/data\.csv=orders\.csv, not "x"/],
    [['--file', '=x'], 2, /--file must be path=file/],
    [['--file', 'x=missing.csv'], 1, /INVALID_CONFIG[\s\S]*missing\.csv cannot be read/],
    [['--file', '../x=any.js'], 1, /INVALID_CONFIG[\s\S]*has the part/],
    [['--file', 'a=-', '--file', 'b=-'], 2, /stdin can be the function, its argument or one of its files/],
    [['--file', 'a=-', '--args', '-'], 2, /stdin can be the function, its argument or one of its files/],
    [['--collect', 'out'], 2, /--collect must be pattern=folder, as in "out\/\*\*=results", not "out"/],
    [['--watch', '--file', 'a=-'], 2, /--watch looks at files: stdin is none/],
    [['--watch', '--collect', 'a=x'], 2, /--collect replaces no files/],
    [['--collect', 'a=x', '--collect', 'b=y'], 2, /one folder for all patterns, not x and y/],
    [['--collect', '/etc/*=x'], 1, /INVALID_CONFIG[\s\S]*is absolute/],
    [['--collect', '*=any.js'], 1, /INVALID_CONFIG[\s\S]*it is no folder/],
  ]) {
    const { code, err } = await ran('any.js', '() => 1', args);
    assert.equal(code, status, `${args}: ${err}`);
    assert.match(err, message);
  }
});
