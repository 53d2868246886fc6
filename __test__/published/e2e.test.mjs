// The published run API, unchanged, with a database, a model and chats over HTTP: once as it is, once with this package in its
// executor's place by a flag. The model decides to call a function tool that has a real dependency.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { output } from '../../scripts/steps.mjs';
import { below, LINUX, ownWorld, ROOT, until } from '../helpers.mjs';
import { originalInstalled, pgliteInstalled } from './installed.mjs';
import { startModel } from './model.mjs';

const CHATS_AT_ONCE = 16;
/** A chat on a busy machine, with an installation in it. */
const CHAT_MS = 60_000;
/** All of one server. */
const TEST_MS = 240_000;
/** What a tool that is installed already may take on such a machine. */
const WARM_TOOL_MS = 10_000;

const IDS = { tenantId: 'a-tenant', projectId: 'a-project', agentId: 'an-agent' };
const TOOL = {
  id: 'to-words',
  // In a form that the original runs too.
  executeCode: `async ({ n }) => {
    const ms = require('ms');
    return { n, words: ms(n * 60000, { long: true }), folder: process.cwd() };
  }`,
  dependencies: { ms: '2.1.3' },
  inputSchema: { type: 'object', properties: { n: { type: 'number' } }, required: ['n'] },
};
const rightWords = (n) => `${n} minute${n === 1 ? '' : 's'}`;

// Before the home folder is another.
const { modules } = await originalInstalled();
const pgliteModules = await pgliteInstalled();
const registry = output('npm', ['config', 'get', 'registry']).trim();

const started = [];
let project;
let model;
let databaseUrl;

/** Starts a process of ours; gives its first line that `ready` takes, and all it says. */
async function start(args, { env = {}, ready, stdin = 'ignore' }) {
  const child = spawn(process.execPath, args, {
    cwd: project,
    env: { ...process.env, npm_config_registry: registry, ...env },
    stdio: [stdin, 'pipe', 'pipe'],
  });
  const ended = new Promise((done) => child.on('exit', done));
  const process_ = { child, ended, log: '' };
  started.push(process_);
  const first = new Promise((found, failed) => {
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on('line', (line) => {
        process_.log += `${line}\n`;
        const match = ready(line);
        if (match) found(match);
      });
    }
    ended.then((code) => failed(new Error(`ended with ${code}\n${process_.log}`)));
  });
  process_.first = await first;
  return process_;
}

before(prepare, { timeout: TEST_MS });

async function prepare() {
  const { root } = ownWorld();
  project = join(root, 'server');
  mkdirSync(join(project, 'node_modules'), { recursive: true });
  for (const name of ['@inkeep', '@hono']) symlinkSync(join(modules, name), join(project, 'node_modules', name));
  symlinkSync(ROOT, join(project, 'node_modules', 'native-sandbox-executor'));
  copyFileSync(join(import.meta.dirname, 'server.mjs'), join(project, 'server.mjs'));
  model = await startModel(TOOL.id);
  const what = JSON.stringify({ ids: IDS, modelUrl: model.url, tool: TOOL });
  const world = await start([join(import.meta.dirname, 'world.mjs'), pgliteModules, modules, what], {
    ready: (line) => line.startsWith('{"url"') && JSON.parse(line),
    stdin: 'pipe',
  });
  databaseUrl = world.first.url;
}

after(async () => {
  for (const { child, ended } of started) {
    child.kill('SIGKILL');
    await ended;
  }
  await model?.close();
});

/** A server; with the flag, by this package. */
function startServer(flags, env = {}) {
  return start([...flags, 'server.mjs'], {
    env: {
      DATABASE_URL: databaseUrl,
      ANTHROPIC_API_KEY: 'none',
      ENVIRONMENT: 'development',
      POSTGRES_POOL_SIZE: '5',
      LOG_LEVEL: 'info',
      NODE_DEBUG: 'native-sandbox-executor',
      // The original runs whatever is called `node`.
      PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
      ...env,
    },
    ready: (line) => /listening on (\d+)/.exec(line)?.[1],
  });
}

async function stop({ child, ended }) {
  const left = LINUX ? below(child.pid) : [];
  child.kill('SIGTERM');
  await ended;
  return left;
}

/** One chat; gives what the user reads. */
async function chat({ first: port }, n) {
  const response = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
    method: 'POST',
    signal: AbortSignal.timeout(CHAT_MS),
    headers: {
      'content-type': 'application/json',
      authorization: 'Bearer dev',
      'x-inkeep-tenant-id': IDS.tenantId,
      'x-inkeep-project-id': IDS.projectId,
      'x-inkeep-agent-id': IDS.agentId,
    },
    body: JSON.stringify({
      model: 'any',
      stream: true,
      conversationId: `conversation-${n}-${Math.random().toString(36).slice(2)}`,
      messages: [{ role: 'user', content: `Call the tool with these arguments: {"n":${n}}` }],
    }),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  return text
    .split('\n')
    .filter((line) => line.startsWith('data: {'))
    .map((line) => JSON.parse(line.slice(6)).choices?.[0]?.delta?.content ?? '')
    .join('');
}

/** A chat, what the model was told by the tool, and how long the server took for that. */
async function timedChat(server, n) {
  const from = model.seen.length;
  const text = await chat(server, n);
  const mine = model.seen.slice(from).filter(({ args }) => args === `{"n":${n}}`);
  const call = mine.find(({ kind }) => kind === 'call');
  const answer = mine.find(({ kind }) => kind === 'answer');
  assert.ok(call && answer, `the model was asked ${JSON.stringify(mine)}; the user read ${text}\n${server.log}`);
  return { text, tool: JSON.parse(answer.tool), toolMs: answer.at - call.at };
}

/**
 * Many chats at once; gives what tools answered to the wrong ones of them. What the model was told counts, not what users read: of
 * chats that begin in the same millisecond, the run API loses the text of some, whatever runs the tools.
 */
async function mixedUp(server, firstNumber) {
  const numbers = Array.from({ length: CHATS_AT_ONCE }, (_, at) => firstNumber + at);
  const from = model.seen.length;
  model.together(CHATS_AT_ONCE);
  await Promise.all(numbers.map((n) => chat(server, n)));
  const told = model.seen.slice(from).filter(({ kind }) => kind === 'answer');
  return numbers.flatMap((n) => {
    const mine = told.filter(({ args }) => args === `{"n":${n}}`).map(({ tool }) => tool);
    assert.ok(mine.length > 0, `the tool of chat ${n} was not answered\n${server.log}`);
    return mine.filter((tool) => !tool.includes(`"n":${n},`));
  });
}

/** The last warm tool of each side. */
const warm = {};

async function aDay(t, side, server, inOurFolder) {
  const first = await timedChat(server, 1);
  const second = await timedChat(server, 2);
  for (const [n, { text, tool }] of [first, second].entries()) {
    const { folder, ...result } = tool.result;
    assert.deepEqual(result, { n: n + 1, words: rightWords(n + 1) });
    assert.equal(typeof tool.toolCallId, 'string');
    assert.equal(!folder.includes('inkeep-sandboxes'), inOurFolder, folder);
    assert.ok(text.includes(`"words":"${rightWords(n + 1)}"`), text);
  }
  const [cold, again] = [first, second].map(({ toolMs }) => Math.round(toolMs));
  t.diagnostic(`${side}: the first tool ${cold} ms (with its installation), the second ${again} ms`);
  assert.ok(second.toolMs > 0 && second.toolMs < WARM_TOOL_MS);
  warm[side] = second.toolMs;
}

test('the published run API as it is', { timeout: TEST_MS }, async (t) => {
  const server = await startServer([]);
  await aDay(t, 'original', server, false);
  const mixed = await mixedUp(server, 100);
  t.diagnostic(`original: ${mixed.length} of ${CHATS_AT_ONCE} chats at once got another's answer`);
  assert.ok(mixed.length > 0, 'the fault that this package is to mend is not there');
  assert.doesNotMatch(server.log, /is replaced by/);
  await stop(server);
});

test('the same with the flag', { timeout: TEST_MS }, async (t) => {
  const server = await startServer(['--import', 'native-sandbox-executor/register']);
  await aDay(t, 'ours', server, true);
  assert.deepEqual(await mixedUp(server, 200), []);
  assert.equal(server.log.match(/SandboxExecutorFactory-A2LTPE2X\.js is replaced by/g)?.length, 1, server.log);
  // By the run API's own logger.
  assert.match(server.log, /SandboxExecutorFactory initialized/);
  assert.ok(warm.ours < warm.original * 2 + 1000, JSON.stringify(warm));
  const left = await stop(server);
  if (LINUX) {
    assert.ok(left.length > 0, 'there were processes of ours to look for');
    await until(() => left.every((pid) => !alive(pid)), 10_000, 'what the server had started is gone');
  }
});

test('the switch brings the original back, in NODE_OPTIONS too', { timeout: TEST_MS }, async () => {
  const server = await startServer([], {
    NODE_OPTIONS: '--import native-sandbox-executor/register',
    NATIVE_SANDBOX_EXECUTOR: 'off',
  });
  const { tool } = await timedChat(server, 3);
  assert.ok(tool.result.folder.includes('inkeep-sandboxes'), tool.result.folder);
  assert.equal(tool.result.words, rightWords(3));
  await stop(server);
});

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
