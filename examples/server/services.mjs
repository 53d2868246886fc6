// What the run API needs around it, played in memory: a database, and a model that speaks OpenAI's protocol. It calls the tool
// with the number in the question, and repeats what the tool has answered.

import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { PGlite } from '@electric-sql/pglite';
import { PGLiteSocketServer } from '@electric-sql/pglite-socket';

const CONNECTIONS_MAX = 20;

export async function startDatabase() {
  const db = await PGlite.create();
  const core = createRequire(import.meta.url).resolve('@inkeep/agents-core/package.json');
  const migrations = join(dirname(core), 'drizzle');
  for (const name of readdirSync(migrations).sort()) {
    if (name.endsWith('.sql')) await db.exec(readFileSync(join(migrations, name), 'utf8'));
  }
  const server = new PGLiteSocketServer({ db, host: '127.0.0.1', port: 0, maxConnections: CONNECTIONS_MAX });
  const listening = new Promise((heard) => server.addEventListener('listening', ({ detail }) => heard(detail.port)));
  await server.start();
  return `postgresql://postgres:postgres@127.0.0.1:${await listening}/postgres`;
}

const textOf = ({ content }) =>
  typeof content === 'string' ? content : (content ?? []).map(({ text = '' }) => text).join('');

function answer({ messages, tools = [] }) {
  const told = messages.findLast(({ role }) => role === 'tool');
  if (told) return { role: 'assistant', content: `The tool says ${textOf(told)}` };
  const minutes = messages.filter(({ role }) => role === 'user').map((one) => /\d+/.exec(textOf(one))?.[0]);
  const number = minutes.findLast(Boolean);
  if (!number || tools.length === 0) return { role: 'assistant', content: 'How many minutes?' };
  const call = { name: 'duration', arguments: `{"minutes":${number}}` };
  return { role: 'assistant', content: null, tool_calls: [{ index: 0, id: 'call', type: 'function', function: call }] };
}

export async function startModel() {
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const part of request.setEncoding('utf8')) body += part;
    const asked = JSON.parse(body);
    const message = answer(asked);
    const finish_reason = message.tool_calls ? 'tool_calls' : 'stop';
    const about = { id: 'played', created: 0, model: asked.model };
    if (asked.stream) {
      response.setHeader('content-type', 'text/event-stream');
      for (const choice of [
        { delta: message, finish_reason: null },
        { delta: {}, finish_reason },
      ]) {
        const chunk = { ...about, object: 'chat.completion.chunk', choices: [{ index: 0, ...choice }] };
        response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      }
      response.end('data: [DONE]\n\n');
      return;
    }
    const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
    const choices = [{ index: 0, message, finish_reason }];
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ ...about, object: 'chat.completion', choices, usage }));
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  return `http://127.0.0.1:${server.address().port}/v1`;
}
