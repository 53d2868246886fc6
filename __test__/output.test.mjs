// stdout, stderr and the result: separate, counted in bytes, decoded whole, limited together.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ownWorld, RUNGS, rejection, run, surface, tool, until } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const LIMIT_BYTES = 1_048_576;
const EXCEEDED = `Output size exceeded limit of ${LIMIT_BYTES} bytes`;

test('nothing that is printed can spoil the result', async () => {
  const source = `() => {
    process.stdout.write('{"success":true,"result":"not me"}');
    console.error('nor me');
    process.on('exit', () => console.log('"last line"'));
    return 'me';
  }`;
  assert.equal(await run(source), 'me');
});

test('a result of the limit fits, one byte more does not', async () => {
  const value = await run('({ n }) => "r".repeat(n)', { n: LIMIT_BYTES - 2 });
  assert.equal(value.length, LIMIT_BYTES - 2);
  assert.equal((await rejection(run('({ n }) => "r".repeat(n)', { n: LIMIT_BYTES - 1 }))).message, EXCEEDED);
});

test('stdout, stderr and result share one budget, counted in bytes', async () => {
  // Three bytes a character, three times: 900,000 bytes fit, 1,080,000 do not, though they are 360,000 characters.
  const source =
    '({ n }) => { for (const fd of [1, 2]) require("node:fs").writeSync(fd, "値".repeat(n)); return "値".repeat(n); }';
  assert.equal((await run(source, { n: 100_000 })).length, 100_000);
  const error = await rejection(run(source, { n: 120_000 }));
  assert.deepEqual([error.code, error.message], ['OUTPUT_LIMIT', EXCEEDED]);
});

test('the limit is an option', async () => {
  const factory = new (surface().SandboxExecutorFactory)({ maxOutputBytes: 1000 });
  assert.equal((await factory.executeFunctionTool('t', {}, tool('() => "r".repeat(900)'))).length, 900);
  const error = await rejection(factory.executeFunctionTool('t', {}, tool('() => { console.log("r".repeat(1100)); }')));
  assert.equal(error.message, 'Output size exceeded limit of 1000 bytes');
});

test('characters that straddle the chunks of the pipe come out whole', async () => {
  const chunks = [];
  await run(
    '() => { for (let i = 0; i < 30; i++) process.stdout.write("a" + "値😀".repeat(1500)); }',
    {},
    {},
    { onLogs: (chunk) => chunks.push(chunk) }
  );
  const expected = `a${'値😀'.repeat(1500)}`.repeat(30);
  const text = () =>
    chunks
      .filter(({ stream }) => stream === 'stdout')
      .map((chunk) => chunk.text)
      .join('');
  await until(() => text().length >= expected.length, 5000, 'all of the output');
  // Not assert.equal: its report of a difference would be of the size of the text.
  assert.ok(text() === expected, 'the text came out changed');
});

test('usage is told once, when the processes are gone', async () => {
  const usages = [];
  await run('() => { for (let i = 0; i < 1e7; i++); }', {}, {}, { onUsage: (usage) => usages.push(usage) });
  await until(() => usages.length > 0, 8000, 'the usage');
  assert.equal(usages.length, 1);
  const { rung, exit, phases, ...quantities } = usages[0];
  assert.deepEqual([exit.reason, typeof rung], ['completed', 'string']);
  for (const [name, quantity] of Object.entries({ ...quantities, ...phases })) {
    assert.ok(Number.isFinite(quantity) && quantity >= 0, name);
  }
});

test('what is left running does not delay the result', async () => {
  const began = performance.now();
  assert.equal(await run('() => { setInterval(() => {}, 1000); return 1; }'), 1);
  assert.ok(performance.now() - began < 5000);
});

for (const start of ['spawn', 'standby', undefined]) {
  test(`more than a pipe holds, written before the function settles, counts and is told (${start ?? 'any'} rung)`, async () => {
    const factory = new (surface().SandboxExecutorFactory)({ start });
    const print = (bytes, more = 'return 1') =>
      tool(
        `() => { process.stdout.write('o'.repeat(${bytes})); process.stderr.write('e'.repeat(${bytes})); ${more}; }`
      );
    const told = { stdout: 0, stderr: 0 };
    const onLogs = ({ stream, text }) => {
      told[stream] += text.length;
    };
    assert.equal(await factory.executeFunctionTool('t', {}, print(500_000), { onLogs }), 1);
    await until(() => told.stdout === 500_000 && told.stderr === 500_000, 5000, 'all of the output');
    const tooMuch = await rejection(factory.executeFunctionTool('t', {}, print(600_000)));
    assert.equal(tooMuch.message, EXCEEDED);
    const left = await rejection(
      factory.executeFunctionTool('t', {}, print(300_000, `console.log('end'); process.exit(3)`))
    );
    assert.match(left.message, /code 3/);
    assert.match(left.stdout, /oend\n$/);
  });
}

test('no warning of this package’s own making is in what a function prints', { timeout: 60_000 }, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  for (const start of RUNGS) {
    const factory = new Factory({ start });
    for (const code of [
      "async () => typeof (await import('node:fs')).readFileSync",
      "() => import('node:fs').then((fs) => typeof fs.readFileSync)",
      "import fs from 'node:fs'; export default () => typeof fs.readFileSync",
      "() => typeof require('node:fs').readFileSync",
    ]) {
      const printed = [];
      const onLogs = ({ text }) => printed.push(text);
      const result = await factory.executeFunctionTool('t', {}, tool(`${code}`), { onLogs });
      assert.deepEqual([result, printed.join('')], ['function', ''], `${start}: ${code}`);
    }
    // A warning that the function causes itself stays.
    const error = await rejection(
      factory.executeFunctionTool(
        't',
        {},
        tool(
          "async () => { await import('node:fs'); process.emitWarning('own'); await new Promise(setImmediate); process.exit(3); }"
        )
      )
    );
    assert.match(error.stderr, /Warning: own/);
    await factory.cleanup();
  }
});
