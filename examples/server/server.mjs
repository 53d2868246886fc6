// The published run API with an agent that has one function tool. Nothing in here knows which executor runs it.

import { serve } from '@hono/node-server';
import * as core from '@inkeep/agents-core';
import { createExecutionApp } from '@inkeep/agents-run-api';

const ids = { tenantId: 'demo', projectId: 'demo', agentId: 'demo' };
const { tenantId, projectId, agentId } = ids;
const subAgentId = 'demo-sub-agent';
const models = { base: { model: process.env.MODEL, providerOptions: { baseURL: process.env.MODEL_URL } } };

/** The function tool: its text as it stands in the database, and the packages that it needs. */
const tool = {
  id: 'duration',
  inputSchema: { type: 'object', properties: { minutes: { type: 'number' } }, required: ['minutes'] },
  executeCode: `async ({ minutes }) => {
    const ms = require('ms');
    return { minutes, words: ms(minutes * 60000, { long: true }), folder: process.cwd() };
  }`,
  dependencies: { ms: '2.1.3' },
};

async function seed() {
  const db = core.createDatabaseClient({ connectionString: process.env.DATABASE_URL, poolSize: 1 });
  await core.createTestOrganization(db, tenantId);
  await core.createProject(db)({ tenantId, id: projectId, name: 'Demo', description: '', models });
  await core.createAgent(db)({ tenantId, projectId, id: agentId, name: 'Demo', defaultSubAgentId: subAgentId, models });
  const prompt = 'Answer questions about durations with the tool.';
  const subAgent = { tenantId, projectId, agentId, id: subAgentId, name: 'Demo', description: '', prompt, models };
  await core.createSubAgent(db)(subAgent);
  const { id, ...code } = tool;
  const functionId = `${id}-function`;
  await core.upsertFunction(db)({ data: { id: functionId, ...code }, scopes: { tenantId, projectId } });
  const data = { id, name: id, description: 'Says minutes in words', functionId };
  await core.createFunctionTool(db)({ data, scopes: ids });
  await core.addFunctionToolToSubAgent(db)({ scopes: ids, subAgentId, functionToolId: id });
  await db.$client.end();
}

await seed();
const app = createExecutionApp();
serve({ fetch: app.fetch, port: Number(process.env.PORT), hostname: '127.0.0.1' }, ({ port }) =>
  console.log(`listening on ${port}`)
);
