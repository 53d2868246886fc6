// What the published run API needs around it, in one process: its database (PGlite, in memory, behind a socket on the loopback
// address) with an agent that has one function tool.
//
// Arguments: the folder of PGlite's packages, that of the run API's, and what to seed, as JSON:
// `{ ids: { tenantId, projectId, agentId }, modelUrl, tool: { id, executeCode, dependencies, inputSchema } }`.
// Says the database's URL in one line, and ends when stdin does.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const CONNECTIONS_MAX = 20;

const [pgliteModules, modules, what] = process.argv.slice(2);
const { ids, modelUrl, tool } = JSON.parse(what);

const load = (folder, file) => import(pathToFileURL(join(folder, file)).href);

async function database() {
  const { PGlite } = await load(pgliteModules, '@electric-sql/pglite/dist/index.js');
  const { PGLiteSocketServer } = await load(pgliteModules, '@electric-sql/pglite-socket/dist/index.js');
  const db = await PGlite.create();
  const migrations = join(modules, '@inkeep/agents-core/drizzle');
  for (const name of readdirSync(migrations).sort()) {
    if (name.endsWith('.sql')) await db.exec(readFileSync(join(migrations, name), 'utf8'));
  }
  const server = new PGLiteSocketServer({ db, host: '127.0.0.1', port: 0, maxConnections: CONNECTIONS_MAX });
  const listening = new Promise((heard) => server.addEventListener('listening', ({ detail }) => heard(detail)));
  await server.start();
  const { port } = await listening;
  return `postgresql://postgres:postgres@127.0.0.1:${port}/postgres`;
}

async function seed(connectionString) {
  // It reads its variables while it is imported.
  Object.assign(process.env, { DATABASE_URL: connectionString, ENVIRONMENT: 'development', LOG_LEVEL: 'error' });
  const core = await load(modules, '@inkeep/agents-core/dist/index.js');
  const client = core.createDatabaseClient({ connectionString, poolSize: 1 });
  const { tenantId, projectId, agentId } = ids;
  const subAgentId = `${agentId}-sub`;
  const models = { base: { model: 'custom/played', providerOptions: { baseURL: modelUrl } } };
  await core.createTestOrganization(client, tenantId);
  await core.createProject(client)({ tenantId, id: projectId, name: 'A project', description: '', models });
  await core.createAgent(client)({
    tenantId,
    projectId,
    id: agentId,
    name: 'An agent',
    defaultSubAgentId: subAgentId,
    models,
  });
  await core.createSubAgent(client)({
    tenantId,
    projectId,
    agentId,
    id: subAgentId,
    name: 'A sub-agent',
    description: '',
    prompt: 'Use the tool.',
    models,
  });
  const { id, ...functionOfTool } = tool;
  await core.upsertFunction(client)({
    data: { id: `${id}-function`, ...functionOfTool },
    scopes: { tenantId, projectId },
  });
  await core.createFunctionTool(client)({
    data: { id, name: id, description: 'A function tool', functionId: `${id}-function` },
    scopes: { tenantId, projectId, agentId },
  });
  await core.addFunctionToolToSubAgent(client)({
    scopes: { tenantId, projectId, agentId },
    subAgentId,
    functionToolId: id,
  });
  await client.$client.end();
}

const url = await database();
await seed(url);
process.stdout.write(`${JSON.stringify({ url })}\n`);
process.stdin.resume().on('end', () => process.exit());
