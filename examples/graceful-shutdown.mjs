// A server that is told to end: it takes no more requests, answers those that it has, function tools included, and leaves nothing
// behind. Send it SIGTERM, as an orchestrator does; a second one ends it at once.
//
//   PORT=8080 node examples/graceful-shutdown.mjs
//   curl 'localhost:8080/?ms=500'

import { createServer } from 'node:http';
import { gracefulShutdown, SandboxExecutorFactory } from 'native-sandbox-executor';

const factory = SandboxExecutorFactory.getInstance();

const TOOL = {
  description: 'Waits',
  inputSchema: {},
  dependencies: {},
  executeCode: '({ ms }) => new Promise((done) => setTimeout(done, ms, { waitedMs: ms }))',
  sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 20_000, vcpus: 4 },
};

const server = createServer(async (request, response) => {
  const ms = Number(new URL(request.url, 'http://localhost').searchParams.get('ms'));
  process.stdout.write(`a call of ${ms} ms\n`);
  try {
    const result = await factory.executeFunctionTool('wait', { ms }, TOOL);
    response.end(`${JSON.stringify(result)}\n`);
  } catch (error) {
    // Somebody else may be up: whoever asked may ask again.
    response.writeHead(error.code === 'SHUTTING_DOWN' ? 503 : 500).end(`${error.code}\n`);
  }
});

server.listen(process.env.PORT ?? 8080, () => process.stdout.write(`port ${server.address().port}\n`));

gracefulShutdown({
  // Less than what the orchestrator waits before it kills (Kubernetes: 30 s).
  deadlineMs: 25_000,
  // Resolves when the last request is answered; until then its function tools are taken.
  before: () => new Promise((done) => server.close(() => done())),
});
