// Permits: how many run at once, who waits, for how long, and that every ending gives its permit back.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { host, ownWorld, rejection, run, surface, tool, until } from './helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const stats = (vcpus) => new (surface().NativeSandboxExecutor)().getExecutionStats()[`vcpu_${vcpus}`];
const SPAN =
  'async ({ ms }) => { const from = Date.now(); await new Promise((done) => setTimeout(done, ms)); return [from, Date.now()]; }';

function overlaps(spans) {
  const edges = spans
    .flatMap(([from, to]) => [
      [from, 1],
      [to, -1],
    ])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let now = 0;
  return Math.max(...edges.map(([, change]) => (now += change)));
}

test('as many at once as the vcpus say, in the order of their coming', async () => {
  const one = await Promise.all([1, 2, 3].map(() => run(SPAN, { ms: 200 }, { sandbox: { vcpus: 1 } })));
  assert.equal(overlaps(one), 1);
  assert.deepEqual(
    one,
    [...one].sort((a, b) => a[0] - b[0]),
    'first come, first served'
  );
  const three = await Promise.all([1, 2, 3].map(() => run(SPAN, { ms: 1500 }, { sandbox: { vcpus: 3 } })));
  assert.equal(overlaps(three), 3);
});

test('a text that takes long to read keeps its place', async () => {
  const long = `${'/* as long as a bundle */ '.repeat(40_000)}() => Date.now()`;
  const calls = [long, ...Array(10).fill('() => Date.now()')];
  const times = await Promise.all(calls.map((source) => run(source, {}, { sandbox: { vcpus: 1 } })));
  assert.deepEqual(
    times,
    [...times].sort((a, b) => a - b)
  );
});

test('the stats count permits and waiting calls, per distinct vcpus, for all factories', async () => {
  const factories = [1, 2, 3].map(() => new (surface().SandboxExecutorFactory)());
  const calls = factories.map((factory) =>
    factory.executeFunctionTool('t', { ms: 500 }, tool(SPAN, { sandbox: { vcpus: 1 } }))
  );
  await until(() => stats(1)?.queueLength === 2, 5000, 'two calls wait');
  assert.equal(stats(1).availablePermits, 0);
  await Promise.all(calls);
  await until(() => stats(1).availablePermits === 1 && stats(1).queueLength === 0, 5000, 'the permit is back');
});

test('every way to end gives the permit back', async () => {
  const over = { sandbox: { vcpus: 2, timeout: 700 } };
  const bad = [
    '() => process.abort()',
    '() => {{',
    '() => { for (;;); }',
    '() => { throw 1; }',
    '() => process.exit(0)',
    '() => 1n',
  ];
  for (const source of bad) await rejection(run(source, {}, over));
  await rejection(run('() => 1', { id: 1n }, over));
  await rejection(run('() => 1', {}, { ...over, dependencies: { '/x': '1' } }));
  assert.equal(await run('() => 1', {}, over), 1);
  await until(() => stats(2).availablePermits === 2, 8000, 'both permits are back');
});

test('a permit comes back when the processes are gone, not when the answer is given', async () => {
  const over = { sandbox: { vcpus: 1, timeout: 400 } };
  // Ignores SIGTERM: it lives on for the two seconds of grace after its timeout.
  const stubborn = run(
    "() => { process.on('SIGTERM', () => {}); setInterval(() => {}, 50); return new Promise(() => {}); }",
    {},
    over
  );
  assert.equal((await rejection(stubborn)).code, 'TIMEOUT');
  assert.equal(stats(1).availablePermits, 0);
  assert.equal(await run('() => 1', {}, { sandbox: { vcpus: 1 } }), 1);
});

test('waiting has an end', async () => {
  const { said, err } = await host(
    `const over = { sandbox: { vcpus: 1 } };
     const long = run('() => new Promise((done) => setTimeout(done, 1500, "first"))', {}, over);
     const late = await run('() => 2', {}, over).catch(({ code, phase, message }) => [code, phase, message]);
     say([late, await long, await run('() => 3', {}, over)]);`,
    { env: { AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS: '300' } }
  ).exited;
  const text = 'Function execution queue timeout after 300ms. Too many concurrent executions.';
  assert.deepEqual(said, [[['QUEUE_TIMEOUT', 'queue', text], 'first', 3]], err);
});

test('maxConcurrent is one budget over all queues', async () => {
  const { said, err } = await host(
    `const source = ${JSON.stringify(SPAN)};
     const calls = [1, 2, 3, 4].map((vcpus) => run(source, { ms: 200 }, { sandbox: { vcpus } }));
     say(await Promise.all(calls));`,
    { env: { AGENTS_FUNCTION_TOOL_SANDBOX_MAX_CONCURRENT: '1' } }
  ).exited;
  assert.equal(said.length, 1, err);
  assert.equal(overlaps(said[0]), 1);
});
