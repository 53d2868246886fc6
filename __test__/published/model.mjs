// A language model as far as the run API can see: OpenAI's protocol on the loopback address. It decides to call the tool that it
// is offered, with the JSON in the user's message as arguments, and repeats what the tool answered.

import { createServer } from 'node:http';

/** Texts of a message's content, which is a text or an array of parts. */
function textOf(content) {
  return typeof content === 'string' ? content : (content ?? []).map(({ text = '' }) => text).join('');
}

/** The arguments that a user asks for: the JSON after this word. */
const ASKED = /arguments: (\{[^}]*\})/;

/** @returns the played model's answer, as parts of an assistant's message, and what the request was */
function decide({ messages, tools = [] }, toolName) {
  const answer = messages.findLast(({ role }) => role === 'tool');
  const asked = messages.filter(({ role }) => role === 'user').map(({ content }) => ASKED.exec(textOf(content))?.[1]);
  const args = asked.findLast(Boolean);
  if (answer)
    return { kind: 'answer', args, tool: textOf(answer.content), content: `The tool said ${textOf(answer.content)}` };
  if (args && tools.some((one) => one.function.name === toolName)) return { kind: 'call', args };
  return { kind: 'other', content: 'ok' };
}

function message({ kind, args, content }, toolName, id) {
  if (kind !== 'call') return { role: 'assistant', content };
  const call = { index: 0, id: `call-${id}`, type: 'function', function: { name: toolName, arguments: args } };
  return { role: 'assistant', content: null, tool_calls: [call] };
}

function reply(response, { stream, model }, made, reason) {
  const about = { id: 'played', created: 0, model };
  const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
  if (!stream) {
    const choices = [{ index: 0, message: made, finish_reason: reason }];
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ ...about, object: 'chat.completion', choices, usage }));
    return;
  }
  response.setHeader('content-type', 'text/event-stream');
  const chunk = (delta, finish_reason) =>
    response.write(
      `data: ${JSON.stringify({ ...about, object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason }] })}\n\n`
    );
  chunk(made, null);
  chunk({}, reason);
  response.end('data: [DONE]\n\n');
}

/**
 * Starts one.
 * @param {string} toolName the tool it calls
 * @returns `{ url, seen, together, close }`: `seen` has `{ kind, args, tool, at }` of each request; `together(n)` makes it hold its
 *   decisions to call until `n` are due, so that as many tools run at once
 */
export async function startModel(toolName) {
  const seen = [];
  let due = [];
  let wanted = 1;
  const server = createServer(async (request, response) => {
    const body = [];
    for await (const part of request) body.push(part);
    const asked = JSON.parse(Buffer.concat(body).toString());
    const decision = decide(asked, toolName);
    const { kind, args, tool } = decision;
    seen.push({ kind, args, tool, at: performance.now() });
    const made = message(decision, toolName, seen.length);
    const send = () => reply(response, asked, made, kind === 'call' ? 'tool_calls' : 'stop');
    if (kind !== 'call') {
      send();
      return;
    }
    due.push(send);
    if (due.length < wanted) return;
    const all = due;
    due = [];
    wanted = 1;
    for (const one of all) one();
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  return {
    url: `http://127.0.0.1:${server.address().port}/v1`,
    seen,
    together: (count) => {
      wanted = count;
    },
    close: () => new Promise((closed) => server.close(closed).closeAllConnections()),
  };
}
