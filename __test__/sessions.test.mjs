// Sessions as the run API makes them since it has them: a factory for each message, cleaned up after it. Played with its two
// places: the tools ask for the session's factory, the end of the session cleans it up.

import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { host, LINUX, newMarker, ownWorld, ROOT } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const AGENTS_API = {
  'package.json': '{ "name": "@inkeep/agents-api", "type": "module" }',
  'dist/domains/run/tools/SandboxExecutorFactory.js': 'throw new Error("the original was loaded");',
  'dist/domains/run/agents/tools/function-tools.js': `export async function callTool(sessionId, args, config) {
    const { SandboxExecutorFactory } = await import('../../tools/SandboxExecutorFactory.js');
    const factory = sessionId ? SandboxExecutorFactory.getForSession(sessionId) : new SandboxExecutorFactory();
    return factory.executeFunctionTool('a-tool', args, config);
  }`,
  'dist/domains/run/session/AgentSession.js': `export async function end(sessionId) {
    const { SandboxExecutorFactory } = await import('../tools/SandboxExecutorFactory.js');
    await SandboxExecutorFactory.cleanupSession(sessionId);
  }`,
};

let run;
let registry;

before(async () => {
  const project = join(ownWorld().root, 'project');
  registry = await useRegistry({ 'a-package': { '1.0.0': { 'index.js': 'module.exports = 1;' } } });
  run = join(project, 'node_modules/@inkeep/agents-api/dist/domains/run');
  for (const [name, text] of Object.entries(AGENTS_API)) {
    const file = join(project, 'node_modules/@inkeep/agents-api', name);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
  symlinkSync(ROOT, join(project, 'node_modules', 'native-sandbox-executor'), 'junction');
});
after(() => registry?.close());

test('the second message with the same dependencies installs nothing, in this process or in the next', async () => {
  const body = `
    const { callTool } = await import('${pathToFileURL(join(run, 'agents/tools/function-tools.js'))}');
    const { end } = await import('${pathToFileURL(join(run, 'session/AgentSession.js'))}');
    const { executeCode, ...config } = tool("({ n }) => n + require('a-package')", { dependencies: { 'a-package': '1.0.0' } });
    const { installs } = new rest.NativeSandboxExecutor().getMetrics().store;
    for (const message of [1, 2, 3]) {
      const sessionId = 'message-' + message;
      const answers = await Promise.all([10, 20].map((n) => callTool(sessionId, { n }, { executeCode, ...config })));
      await end(sessionId);
      say([answers, new rest.NativeSandboxExecutor().getMetrics().store.installs - installs]);
    }
    say(await callTool(undefined, { n: 30 }, { executeCode, ...config }));
    await end('a session that never was');
    say(rest.swapReport().swapped);`;
  const flag = { nodeArgs: ['--import', pathToFileURL(join(ROOT, 'register.js')).href] };
  const first = await host(body, flag).exited;
  const answers = [11, 21];
  assert.deepEqual([first.code, first.said], [0, [[answers, 1], [answers, 1], [answers, 1], 31, true]], first.err);
  const second = await host(body, flag).exited;
  assert.deepEqual([second.code, second.said], [0, [[answers, 0], [answers, 0], [answers, 0], 31, true]], second.err);
  assert.deepEqual(registry.hits, { 'a-package': 1 });
});

test('later messages start no Node of their own: what runs them was booted or forked ahead, sessions share it', async () => {
  const body = `
    const { callTool } = await import('${pathToFileURL(join(run, 'agents/tools/function-tools.js'))}');
    const { end } = await import('${pathToFileURL(join(run, 'session/AgentSession.js'))}');
    const config = tool("({ n }) => n + require('a-package')", { dependencies: { 'a-package': '1.0.0' } });
    const metrics = () => new rest.NativeSandboxExecutor().getMetrics();
    const message = async (sessionId) => {
      const before = metrics();
      const answer = await callTool(sessionId, { n: 1 }, config);
      await end(sessionId);
      const { counters, store } = metrics();
      const started = Object.entries(counters.workers).filter(([rung, count]) => count > before.counters.workers[rung]);
      return { answer, rungs: started.map(([rung]) => rung), installs: store.installs - before.store.installs };
    };
    await message('first');
    // The stock is made while the first messages are answered.
    let ready = 0;
    while ((await message('ready-' + ready++)).rungs.includes('spawn'));
    const later = [];
    for (let n = 0; n < 5; n++) later.push(await message('later-' + n));
    say(later);`;
  const { code, said, err } = await host(body, {
    nodeArgs: ['--import', pathToFileURL(join(ROOT, 'register.js')).href],
  }).exited;
  assert.equal(code, 0, err);
  const [later] = said;
  assert.equal(later.length, 5);
  for (const { answer, rungs, installs } of later) {
    assert.deepEqual([answer, installs], [2, 0]);
    assert.equal(rungs.length, 1);
    assert.match(rungs[0], /^(zygote|standby)$/);
  }
});

test('the end of a session while its calls run answers them all', { skip: !LINUX }, async () => {
  const marker = newMarker();
  const body = `
    const { callTool } = await import('${pathToFileURL(join(run, 'agents/tools/function-tools.js'))}');
    const { end } = await import('${pathToFileURL(join(run, 'session/AgentSession.js'))}');
    const config = tool("({ ms }) => { process.title = '${marker}'; return new Promise((done) => setTimeout(done, ms, ms)); }", { sandbox: { vcpus: 1 } });
    const calls = [1000, 1, 2].map((ms) => callTool('s', { ms }, config).catch(({ code }) => code));
    const { marked } = await import(${JSON.stringify(new URL('./helpers.mjs', import.meta.url).href)});
    while (marked('${marker}').length === 0) await new Promise((done) => setTimeout(done, 5));
    const ended = end('s');
    // Another message does not wait for it, and is not ended by it.
    const other = callTool('t', { ms: 3 }, config);
    await ended;
    say(await Promise.all([...calls, other]));`;
  const { said, code, err } = await host(body, {
    nodeArgs: ['--import', pathToFileURL(join(ROOT, 'register.js')).href],
  }).exited;
  assert.deepEqual([code, said], [0, [[1000, 'CLEANED_UP', 'CLEANED_UP', 3]]], err);
});

test('the end of a session does not wait for a long call, which ends as ever; with a deadline it does', async () => {
  const { said, code, err } = await host(`
    const config = tool('() => new Promise((done) => setTimeout(done, 2500, "done"))');
    await Factory.getForSession('warm').executeFunctionTool('t', {}, tool('() => 1'));
    for (const options of [undefined, { deadlineMs: 20_000 }]) {
      const call = Factory.getForSession('s').executeFunctionTool('t', {}, config);
      await new Promise((done) => setTimeout(done, 300));
      const began = performance.now();
      await Factory.cleanupSession('s', options);
      say(performance.now() - began < 1200);
      say(await call);
    }
    say(await Factory.cleanupSession('s', { deadlineMs: -1 }).catch(({ code }) => code));
    await factory.cleanup();`).exited;
  assert.deepEqual([code, said], [0, [true, 'done', false, 'done', 'INVALID_CONFIG']], err);
});
