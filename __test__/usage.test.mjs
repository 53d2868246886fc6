// What a call took, what it printed and how it ended, on every rung that the machine has and by a provider: `onUsage`, `onLogs`.

import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { after, before, describe, test } from 'node:test';
import { localFolders } from '../examples/local-folder-provider.mjs';
import { LINUX, ownWorld, RUNGS, rejection, surface, tool, until } from './helpers.mjs';

const MIB = 2 ** 20;
/** A booted Node, or what a forked one shares with its zygote, is not larger than this. */
const PLAIN_LIMIT_BYTES = 110 * MIB;
/** Beyond its timeout a call needs a kill and a look; on a busy machine more. */
const SLACK_MS = 8_000;
const LIMIT = { skip: !LINUX && 'measured by the kernel of Linux', timeout: 120_000 };

before(() => {
  ownWorld();
  surface().registerProvider('folders', localFolders);
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const BURN = (ms) =>
  `const busy = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
   const from = busy(); while (busy() - from < ${ms});`;

/** Places where functions run: an executor's options, and what differs. */
const PLACES = [
  ...RUNGS.map((start) => ({ name: `on the rung ${start}`, options: { start }, rung: start })),
  { name: 'by a provider', options: {}, sandbox: { provider: 'folders' } },
];

for (const { name, options, rung, sandbox } of PLACES) {
  describe(name, LIMIT, () => {
    let factory;
    before(() => {
      factory = new (surface().SandboxExecutorFactory)(options);
    });
    after(() => factory.cleanup());

    /** Runs a body; gives its usage, its output, and its value or its error. */
    async function used(body, { signal, onOutput, factory: other = factory, ...limits } = {}) {
      const told = { stdout: '', stderr: '' };
      const usages = [];
      const call = {
        signal,
        onLogs: ({ stream, text }) => {
          told[stream] += text;
          onOutput?.();
        },
        onUsage: (usage) => usages.push(usage),
      };
      const began = performance.now();
      const config = tool(`async (args) => { ${body} }`, { sandbox: { ...sandbox, ...limits } });
      const running = other.executeFunctionTool('t', { given: 1 }, config, call);
      const [value, error] = await running.then(
        (got) => [got],
        () => [undefined, rejection(running)]
      );
      const usage = await until(() => usages[0], 15_000, 'the usage');
      const wallMs = performance.now() - began;
      assert.equal(usages.length, 1);
      assert.equal(usage.rung, 'runMs' in usage.phases ? rung : undefined);
      const phases = Object.values(usage.phases);
      const sum = phases.reduce((all, ms) => all + ms, 0);
      assert.ok(
        phases.every((ms) => ms >= 0),
        JSON.stringify(usage)
      );
      assert.ok(Math.abs(sum - usage.durationMs) < 5, `phases of ${sum} ms in ${usage.durationMs} ms`);
      assert.ok(usage.durationMs <= wallMs + 5, `${usage.durationMs} ms of ${wallMs} ms`);
      return { usage, value, error: await error, told };
    }

    test('a plain call uses little, and completes', async () => {
      const { usage, value } = await used('return args.given');
      assert.equal(value, 1);
      assert.equal(usage.exit.reason, 'completed');
      assert.deepEqual(Object.keys(usage.phases), ['queueMs', 'installMs', 'startMs', 'runMs', 'endMs']);
      assert.equal(usage.outputBytes, 1);
      assert.ok(usage.maxRssBytes > MIB && usage.maxRssBytes < PLAIN_LIMIT_BYTES, `${usage.maxRssBytes} bytes`);
    });

    test('processor time is its own', async () => {
      const { usage } = await used(`${BURN(200)} return 1`);
      assert.ok(usage.cpuMs >= 150, `${usage.cpuMs} ms of processor time`);
      assert.ok(usage.phases.runMs >= 150, `${usage.phases.runMs} ms`);
      const idle = await used('return 1');
      assert.ok(idle.usage.cpuMs < usage.cpuMs, `${idle.usage.cpuMs} ms after ${usage.cpuMs} ms`);
    });

    test('peak memory is its own, of the processes below it, too', async () => {
      const { usage } = await used(`return Buffer.alloc(${100 * MIB}, 1).length`);
      assert.ok(usage.maxRssBytes >= 100 * MIB, `${usage.maxRssBytes} bytes`);
      assert.ok(usage.maxRssBytes < 100 * MIB + PLAIN_LIMIT_BYTES, `${usage.maxRssBytes} bytes`);
      const next = await used('return 1');
      assert.ok(next.usage.maxRssBytes < PLAIN_LIMIT_BYTES, `${next.usage.maxRssBytes} bytes in the next call`);
    });

    test('output comes in order, while the function runs', async () => {
      const { usage, told } = await used(
        `for (let i = 0; i < 300; i++) { console.log('o' + i); console.error('é' + i);
           if (i % 10 === 0) await new Promise((done) => setImmediate(done)); }
         return 'x'`
      );
      const lines = (letter) => Array.from({ length: 300 }, (_, i) => `${letter}${i}\n`).join('');
      assert.equal(told.stdout, lines('o'));
      assert.equal(told.stderr, lines('é'));
      assert.equal(usage.outputBytes, Buffer.byteLength(lines('o') + lines('é')) + '"x"'.length);
    });

    test('what it threw, and how its process ended, is told', async () => {
      const thrown = await used(`throw new Error('no')`);
      assert.deepEqual([thrown.error.code, thrown.usage.exit.reason], ['TOOL_ERROR', 'TOOL_ERROR']);
      const left = await used('process.exit(7)');
      assert.deepEqual([left.usage.exit.reason, left.usage.exit.code], ['EXITED', 7]);
    });

    test('a timeout', async () => {
      const { usage, error } = await used('for (;;);', { timeout: 700 });
      assert.deepEqual([error.code, usage.exit.reason], ['TIMEOUT', 'TIMEOUT']);
      assert.ok(usage.phases.runMs >= 690 && usage.phases.runMs < 700 + SLACK_MS, `${usage.phases.runMs} ms`);
      if (rung) {
        assert.match(usage.exit.signal, /^SIG(TERM|KILL)$/);
        // On a busy machine it got few of its 700 ms.
        assert.ok(usage.cpuMs >= 20, `${usage.cpuMs} ms`);
      }
    });

    test('an abort', async () => {
      const controller = new AbortController();
      const { usage } = await used(`console.log('up'); await new Promise((done) => setTimeout(done, 9000))`, {
        signal: controller.signal,
        onOutput: () => controller.abort(),
      });
      assert.equal(usage.exit.reason, 'ABORTED');
      assert.ok(usage.phases.runMs < 9000, `${usage.phases.runMs} ms`);
    });

    test('memory and processor time', { skip: !rung && 'limits of this machine' }, async () => {
      const { SandboxExecutorFactory: Factory } = surface();
      const small = new Factory({ ...options, memoryMb: 64, cpuSeconds: 1 });
      const heap = await used('const kept = []; for (let i = 0; i < 4000; i++) kept.push(new Array(1e5).fill({ i }))', {
        factory: small,
      });
      assert.equal(heap.usage.exit.reason, 'MEMORY_LIMIT');
      assert.ok(heap.usage.maxRssBytes > 50 * MIB, `${heap.usage.maxRssBytes} bytes`);
      const busy = await used('const end = Date.now() + 15000; while (Date.now() < end);', { factory: small });
      assert.equal(busy.usage.exit.reason, 'CPU_LIMIT');
      // The kernel's limit counts ticks, its report of what was used nanoseconds.
      assert.ok(busy.usage.cpuMs >= 600, `${busy.usage.cpuMs} ms`);
      await small.cleanup();
    });

    test('what is left running is told', { skip: !rung && 'a provider does not say' }, async () => {
      const { usage, value } = await used('setInterval(() => {}, 1000); return 1');
      assert.deepEqual([value, usage.exit.reason, usage.exit.leftRunning], [1, 'completed', true]);
      assert.ok(usage.phases.endMs >= 200, `${usage.phases.endMs} ms`);
    });

    test('usage never comes before the answer, also where both wait for the event loop', async () => {
      const order = [];
      const heard = () => order.push('channel');
      subscribe('native-sandbox-executor:usage', heard);
      for (const body of ['return 1', 'throw 1', 'process.exit(7)', 'this is not JavaScript']) {
        order.length = 0;
        const call = { onUsage: () => order.push('usage') };
        const config = tool(`async () => { ${body} }`, { sandbox });
        const running = factory.executeFunctionTool('t', {}, config, call);
        const answered = (async () => {
          await running.catch(() => {});
          // Whatever the caller does next with it.
          for (let turns = 0; turns < 20; turns++) await undefined;
          order.push('answer');
        })();
        // On this machine both are there by the time that the loop goes on.
        if (rung) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500);
        await answered;
        await until(() => order.length === 3, 15_000, `answer and usage of ${body}`);
        assert.deepEqual(order, ['answer', 'channel', 'usage'], body);
      }
      unsubscribe('native-sandbox-executor:usage', heard);
    });

    test('a call that never got a process has its usage, too', async () => {
      const { usage, error } = await used('this is not JavaScript');
      assert.equal(error.code, 'INVALID_SOURCE');
      assert.equal(usage.exit.reason, 'INVALID_SOURCE');
    });
  });
}

test('nothing that is printed is lost while the event loop is busy', LIMIT, async () => {
  const { SandboxExecutorFactory: Factory } = surface();
  const factory = new Factory();
  const lines = 9_000;
  let text = '';
  const usages = [];
  // Each line is a write of its own, read by itself: more pieces than any queue has room for.
  const body = `async () => { const { writeSync } = require('fs');
    for (let i = 0; i < ${lines}; i++) { writeSync(1, i + '\\n'); writeSync(2, 'e'); } return 1; }`;
  const call = {
    onLogs: ({ stream, text: piece }) => {
      if (stream === 'stdout') text += piece;
    },
    onUsage: (usage) => usages.push(usage),
  };
  const running = factory.executeFunctionTool('t', {}, tool(body), call);
  // The test blocks the loop on purpose, for as long as the function needs to print.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3000);
  assert.equal(await running, 1);
  await until(() => usages.length === 1, 10_000, 'the usage');
  assert.equal(text, Array.from({ length: lines }, (_, i) => `${i}\n`).join(''));
  await factory.cleanup();
});
