// A server as a user of the run API writes it. It knows nothing of this package.

import { serve } from '@hono/node-server';
import { createExecutionApp } from '@inkeep/agents-run-api';

const app = createExecutionApp();
serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, ({ port }) =>
  process.stdout.write(`listening on ${port}\n`)
);
